"""Rates of rotations are named as far as they tell: base, factor, ramp, or none of it."""

import pytest
import torch

from attnlab.attention.rotary_scaling import (
    Linear,
    Llama3,
    LongRope,
    NoScaling,
    Ntk,
    Proportional,
    Yarn,
)
from attnlab.audit.probe.rates import other_rates, read_rates

BASE = 10_000.0
LIMIT = 1e-12


def rates(scaling, pairs=32, base=BASE):
    """Those that turn."""
    every = torch.tensor([base ** (-n / pairs) for n in range(pairs)], dtype=torch.float64)
    return [one for one in scaling.apply(every, base, 8192).rates.tolist() if one > 0]


def read(scaling, pairs=32):
    return read_rates(rates(scaling, pairs), pairs, LIMIT)


@pytest.mark.parametrize("pairs", [2, 4, 32, 64])
def test_a_base_is_a_base(pairs):
    found = read(NoScaling(), pairs)
    assert found.base == pytest.approx(BASE) and not found.scaling
    assert found.text == "base 10000"


def test_a_larger_base_is_not_told_from_a_scaling():
    found = read(Ntk(factor=4.0))
    assert found.base == pytest.approx(BASE * 4 ** (32 / 31)) and not found.scaling


@pytest.mark.parametrize("factor", [1.5, 4.0, 40.0])
def test_linear_scaling_is_named_with_its_factor(factor):
    found = read(Linear(factor=factor))
    assert (found.ramp, found.slower) == ("linear", pytest.approx(factor))
    assert found.base == pytest.approx(BASE)


def test_two_pairs_are_too_few_to_call_it_linear():
    assert read(Linear(factor=4.0), 2) is None


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("factor", [4.0, 32.0])
def test_yarn_is_named_by_its_ramp(factor, truncate):
    found = read(Yarn(factor=factor, original=4096, truncate=truncate))
    assert (found.ramp, found.slower) == ("yarn", pytest.approx(factor))
    assert found.base == pytest.approx(BASE)
    assert found.kept + found.between + found.scaled == 32


@pytest.mark.parametrize("original", [256, 8192])
def test_llama_3_is_named_by_its_ramp(original):
    found = read(Llama3(factor=8.0, original=original))
    assert (found.ramp, found.slower) == ("llama3", pytest.approx(8))


@pytest.mark.parametrize(("pairs", "original", "between"), [(16, 8192, 2), (8, 256, 1)])
def test_of_few_pairs_on_a_ramp_only_what_is_seen_is_said(pairs, original, between):
    found = read(Llama3(factor=8.0, original=original), pairs)
    assert found.ramp == "" and found.slower == pytest.approx(8) and found.between == between
    assert "too few to tell which ramp" in found.text


def test_where_the_whole_factor_is_not_seen_none_is_claimed():
    found = read(Llama3(factor=8.0, original=8192), 4)
    assert found.scaled == 0 and "slower by up to" in found.text


def test_pairs_that_stand_still_are_counted():
    found = read(Proportional(turning=0.25))
    assert found.still == 24 and "the last 24 pairs do not turn" in found.text


def test_slow_pairs_that_could_not_be_seen_are_not_called_still():
    """By a base of 10^30 they turn by less than is seen."""
    every = [1e30 ** (-n / 8) for n in range(4)]
    assert read_rates(every, 8, 1e-12).still == 0


NO_RATES = {
    "of a base beyond all": [1.0, 1e-9, 1e-18],
    "growing": [1.0, 1.001, 1.0025],
    "alone": [1.0],
    "none": [],
    "two that do not begin at 1": [0.5, 0.7],
    "less slow at the end": [
        one * 0.5**n for n, one in enumerate([1.0, 1.0, 1.0, 1.0, 0.25, 0.25, 0.5, 0.5])
    ],
    "flat behind a fall": [1.0] + 39 * [1e-9],
    "faster at the end": [*(0.5**n for n in range(5)), 1.0009 * 0.5**5, 1.0018 * 0.5**6],
}


@pytest.mark.parametrize("every", NO_RATES.values(), ids=NO_RATES)
def test_numbers_that_are_no_rates_of_a_base_are_not_named(every):
    assert read_rates(every, 64) is None


def test_factors_by_pair_are_not_named():
    factors = tuple(1 + (n * 7 % 5) / 3 for n in range(32))
    assert read(LongRope(long=factors, original=4096)) is None


@pytest.mark.parametrize(
    ("scaling", "kind", "factor", "base"),
    [
        (NoScaling(), "none", None, BASE),
        (NoScaling(), "none", 1.0, None),
        (Linear(factor=4.0), "linear", 4.0, BASE),
        (Linear(factor=4.0), None, 4.0, BASE),
        (Ntk(factor=4.0), "ntk", 4.0, BASE),
        (Yarn(factor=8.0, original=4096), "yarn", 8.0, BASE),
        (Llama3(factor=8.0, original=8192), "llama3", 8.0, BASE),
    ],
)
def test_what_is_declared_rightly_is_so(scaling, kind, factor, base):
    assert other_rates(rates(scaling), 32, LIMIT, kind, factor, base) == ("", "")


@pytest.mark.parametrize(
    ("scaling", "kind", "factor", "base", "told"),
    [
        (NoScaling(), "linear", None, None, "linear scaling is declared"),
        (NoScaling(), "yarn", None, None, "yarn scaling is declared"),
        (NoScaling(), None, 4.0, None, "a factor of 4 is declared"),
        (Linear(factor=4.0), "none", None, None, "by 1 with no scaling"),
        (Linear(factor=4.0), "linear", 3.0, None, "by 0.333333 with linear scaling"),
        (Linear(factor=4.0), "yarn", None, None, "by 1 with yarn scaling"),
        (Linear(factor=4.0), "linear", 4.0, 5e5, "a base of 500000 is declared"),
        (Ntk(factor=4.0), "ntk", 3.0, BASE, "is declared"),
        (Yarn(factor=8.0, original=4096), "llama3", None, None, "llama3 scaling is declared"),
        (Yarn(factor=8.0, original=4096), "yarn", 4.0, None, "a factor of 4 is declared"),
        (Yarn(factor=8.0, original=4096), "none", None, None, "no scaling is declared"),
        (Llama3(factor=8.0, original=8192), "yarn", None, None, "yarn scaling is declared"),
    ],
)
def test_what_is_declared_wrongly_is_told(scaling, kind, factor, base, told):
    wrong, doubt = other_rates(rates(scaling), 32, LIMIT, kind, factor, base)
    assert told in wrong and not doubt


@pytest.mark.parametrize(
    ("scaling", "pairs", "kind", "factor", "base"),
    [
        (Ntk(factor=4.0), 32, "ntk", 4.0, None),
        (Llama3(factor=8.0, original=8192), 16, "llama3", None, None),
        (Llama3(factor=8.0, original=8192), 16, "yarn", None, None),
        (Llama3(factor=8.0, original=8192), 4, None, 8.0, None),
        (
            LongRope(long=tuple(1 + (n * 7 % 5) / 3 for n in range(32)), original=4096),
            32,
            "yarn",
            None,
            None,
        ),
    ],
)
def test_what_rates_do_not_tell_is_a_doubt_and_no_pass(scaling, pairs, kind, factor, base):
    wrong, doubt = other_rates(rates(scaling, pairs), pairs, LIMIT, kind, factor, base)
    assert not wrong and doubt
