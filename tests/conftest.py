"""Shapes in signatures are checked in every test, when beartype is installed."""

import importlib.util

import jaxtyping
import pytest
import torch

if importlib.util.find_spec("beartype"):
    jaxtyping.install_import_hook("attnlab", "typechecker.check")


@pytest.fixture
def unchecked_shapes(monkeypatch):
    """Without the shape checks of the tests: what a person's wrong input meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def poisoned_memory():
    """`torch.empty` and its kin come filled with NaN, so that reading before writing shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
