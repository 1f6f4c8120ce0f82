"""Shapes in signatures are checked in every test, when beartype is installed."""

import importlib.util
import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # cli/app.py does the same and says why

import jaxtyping
import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores: one thread for each
    torch.set_num_threads(1)

if importlib.util.find_spec("beartype"):
    jaxtyping.install_import_hook("attnlab", "typechecker.check")


def pytest_collection_modifyitems(items):
    """Without a C compiler, what tests the compiled path is skipped and says so."""
    from attnlab.kernels import native

    reason = native.why_unavailable()
    for item in items if reason else []:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        by_name = any(isinstance(value, str) and value == "native" for value in values)
        if by_name or item.get_closest_marker("needs_compiler"):
            item.add_marker(pytest.mark.skip(reason=f"no compiled path here: {reason}"))


def pytest_terminal_summary(terminalreporter):
    """Tests that did not run because there is no browser are easily taken for tests that passed."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = {one.longrepr[2] for one in skipped if isinstance(one.longrepr, tuple)}
    for reason in sorted(one for one in reasons if "not tested in a browser" in one):
        terminalreporter.write_line(f"WARNING: {reason}", yellow=True, bold=True)


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
