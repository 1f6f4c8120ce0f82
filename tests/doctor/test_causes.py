"""Every registered cause: what it says of itself, and that it is silent where nothing is."""

import pytest
import torch
from torch import nn

from attnlab import registry
from attnlab.doctor.case import Case
from attnlab.doctor.cause import all_causes
from attnlab.doctor.patient import made


@pytest.fixture(scope="module")
def bare():
    """Two modules without attention, names or conventions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Case(made(nn.Linear(6, 6), "a"), made(nn.Linear(6, 6), "b"))


# the order of axes of a square matrix cannot be seen
BLIND = {"transposed"}


@pytest.mark.parametrize("option", registry.options("cause"), ids=lambda one: one.name)
def test_it_proposes_nothing_where_there_is_nothing(option, bare):
    cause = registry.load("cause", option.name)()
    assert not list(cause.propose(bare)) or option.name in BLIND


@pytest.mark.parametrize("option", registry.options("cause"), ids=lambda one: one.name)
def test_it_says_what_it_is(option):
    assert len(registry.load("cause", option.name).__doc__.strip()) > 30


def test_all_causes_are_those_of_the_registry():
    names = [one.name for one in registry.options("cause")]
    assert [registry.name_of("cause", one) for one in all_causes()] == names
