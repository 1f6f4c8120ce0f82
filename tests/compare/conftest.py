"""Comparisons in tests use one thread and read the memory once."""

import pytest
from experiments.small import quickly


@pytest.fixture(scope="module", autouse=True)
def speed():
    with quickly():
        yield
