"""Codes of sines and cosines, against digits of π and codes that do repeat."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from attnlab.attention import positions as schemes
from attnlab.attention.positions import sinusoids
from attnlab.theory import enclosure
from attnlab.theory.claim import Judgement
from attnlab.theory.sinusoid import SinusoidUnique

# 40 digits after the point, cut off
PI = Fraction("3.1415926535897932384626433832795028841971")


def test_two_pi_lies_between_whole_numbers_close_together():
    low, high = enclosure.two_pi()
    last_digit = Fraction(1, 10**40)
    assert Fraction(low, enclosure.UNIT) < 2 * (PI + last_digit)
    assert Fraction(high, enclosure.UNIT) > 2 * PI
    assert 0 < Fraction(high - low, enclosure.UNIT) < last_digit


def test_two_pi_is_enclosed_in_coarse_units_too(monkeypatch):
    """Against 500 bits: a fraction cut off on the wrong side would show in some of these."""
    monkeypatch.setattr(enclosure, "UNIT", 1 << 500)
    low, high = (Fraction(end, 1 << 500) for end in enclosure.two_pi())
    assert low < 2 * (PI + Fraction(1, 10**40)) and high > 2 * PI
    for bits in range(10, 300):
        monkeypatch.setattr(enclosure, "UNIT", 1 << bits)
        below, above = enclosure.two_pi()
        assert Fraction(below, 1 << bits) < low < high < Fraction(above, 1 << bits)
        for x in (5, 239):
            one, other = enclosure._arctan_of_inverse(x)
            assert one / 2**bits < math.atan(1 / x) * (1 + 1e-15)
            assert other / 2**bits > math.atan(1 / x) * (1 - 1e-15)


def test_the_nearest_offsets_are_the_best_fractions_of_two_pi():
    records = enclosure.nearest(400_000)
    offsets, turns, lows, highs = zip(*records, strict=True)
    assert offsets == (1, 6, 19, 25, 44, 333, 710, 103_993, 312_689)
    assert turns == (0, 1, 3, 4, 7, 53, 113, 16_551, 49_766)
    for offset, count, low, high in records:
        true = abs(offset - 2 * count * PI)
        assert low - Fraction(1, 10**30) < true < high + Fraction(1, 10**30)
    assert float(lows[6]) == pytest.approx(6.0288706728e-05, rel=1e-10)
    assert all(low < high for low, high in zip(lows, highs, strict=True))


@pytest.mark.parametrize("distance", ["1", "1/7", "1/100000"])
def test_a_chord_lies_between_its_bounds(distance):
    d = Fraction(distance)
    low, high = enclosure.chord(d, d)
    assert float(low) <= 2 * math.sin(d / 2) * (1 + 1e-15)
    assert 2 * math.sin(d / 2) * (1 - 1e-15) <= float(high)
    assert float(high - low) == pytest.approx(float(d**5 / 1920))


@pytest.mark.parametrize("longest", [1, 5, 6, 43, 709, 710])
def test_the_certified_distance_is_the_smallest_of_all_pairs(longest):
    codes = sinusoids(torch.arange(longest + 1)[None], 2)[0]
    smallest = float(torch.pdist(codes).min())
    bound = SinusoidUnique(longest=longest).run().measures[0].value
    # sin x ≥ x − x³/6 gives away x⁵/120, and pairs far from 0 are rounded
    assert smallest - smallest**5 / 1000 - 1e-12 <= bound <= smallest + 1e-12


def test_each_document_is_marked_by_its_conclusion_and_by_its_reason():
    assert SinusoidUnique(longest=1000).run().judgements == {
        "000 2(b)ii": Judgement("wrong", "incomplete"),  # a column returns, the code does not
        "001 2(b)ii": Judgement("right", "right"),
        "003 2(b)ii": Judgement("right", "wrong"),
    }


def test_the_marks_follow_what_is_measured():
    short = SinusoidUnique(longest=43).run().judgements
    assert short["003 2(b)ii"].reason == "right"  # seven turns are not far above one
    assert short["000 2(b)ii"].reason == "wrong"  # no column has come back so far
    repeating = SinusoidUnique(periods=(4, 6), longest=100).run().judgements
    assert repeating["000 2(b)ii"] == Judgement("right", "right")
    assert repeating["001 2(b)ii"] == Judgement("wrong", "wrong")


def test_the_first_angle_passes_a_turn_at_position_7():
    notes = {longest: SinusoidUnique(longest=longest).run().details[0].note for longest in (6, 7)}
    assert notes[6] == "" and "passes 2π at 7" in notes[7]


@pytest.mark.parametrize(
    ("periods", "repeat"), [((4, 6), 12), ((7,), 7), ((1, 1), 1), ((2, 9), 18)]
)
def test_whole_periods_repeat_at_their_least_common_multiple_and_not_before(periods, repeat):
    evidence = SinusoidUnique(periods=periods, longest=repeat).run()
    assert evidence.verdict == "refuted"
    assert evidence.judgements["000 2(b)ii"].conclusion == "right"
    if repeat == 1:
        return
    evidence = SinusoidUnique(periods=periods, longest=repeat - 1).run()
    assert evidence.verdict == "holds"
    assert evidence.judgements["000 2(b)ii"].conclusion == "wrong"
    offsets = np.arange(1, repeat)
    apart = np.linalg.norm([2 * np.sin(np.pi * offsets / period) for period in periods], axis=0)
    assert 0 < evidence.measures[0].value <= apart.min()


def test_a_module_with_another_first_frequency_is_noticed(monkeypatch):
    monkeypatch.setattr(
        schemes, "sinusoids", lambda places, width, base: sinusoids(2 * places, width, base)
    )
    evidence = SinusoidUnique(longest=1000).run()
    assert evidence.measures[0].met and not evidence.measures[1].met


def test_periods_that_are_none_are_refused():
    with pytest.raises(ValueError, match="periods has 0; each is a whole number"):
        SinusoidUnique(periods=(6, 0))
