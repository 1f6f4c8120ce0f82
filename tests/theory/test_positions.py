"""Positions as angles."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from attnlab.attention import positions as schemes
from attnlab.attention.mistakes import GrowingRotary, HeadRotary
from attnlab.attention.positions import Rotary, sinusoids
from attnlab.theory import block, enclosure, positions
from attnlab.theory.claim import EQUAL
from attnlab.theory.positions import RopeIsRotation, RopeNeedsTime, RopeRelative, SinusoidUnique

# 40 digits after the point, cut off
PI = Fraction("3.1415926535897932384626433832795028841971")


@cache
def run(claim):
    return claim.run()


def test_the_documents_are_right_about_rotations_and_two_of_three_about_codes():
    assert run(RopeIsRotation()).right == run(RopeRelative()).right == {"000": True, "003": True}
    assert run(SinusoidUnique()).right == {"000": False, "001": True, "003": True}


def test_two_pi_lies_between_whole_numbers_close_together():
    low, high = enclosure.two_pi()
    last_digit = Fraction(1, 10**40)
    assert Fraction(low, positions.UNIT) < 2 * (PI + last_digit)
    assert Fraction(high, positions.UNIT) > 2 * PI
    assert 0 < Fraction(high - low, positions.UNIT) < last_digit


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


def test_the_first_angle_passes_a_turn_at_position_7():
    """So the reason that 003 gives is false, though its answer is right."""
    notes = {longest: SinusoidUnique(longest=longest).run().details[0].note for longest in (6, 7)}
    assert notes[6] == "" and "passes 2π at 7" in notes[7]


@pytest.mark.parametrize(
    ("periods", "repeat"), [((4, 6), 12), ((7,), 7), ((1, 1), 1), ((2, 9), 18)]
)
def test_whole_periods_repeat_at_their_least_common_multiple_and_not_before(periods, repeat):
    evidence = SinusoidUnique(periods=periods, longest=repeat).run()
    assert evidence.verdict == "refuted" and evidence.right["000"]
    if repeat == 1:
        return
    evidence = SinusoidUnique(periods=periods, longest=repeat - 1).run()
    assert evidence.verdict == "holds" and not evidence.right["000"]
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
    with pytest.raises(ValueError, match=r"periods is \(6, 0\); each is a whole number"):
        SinusoidUnique(periods=(6, 0))


def test_pairs_stand_where_the_layouts_say():
    assert [one.tolist() for one in positions.coordinates("half-split", 3)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert [one.tolist() for one in positions.coordinates("interleaved", 2)] == [[0, 2], [1, 3]]


def test_a_quarter_turn_takes_the_first_axis_to_the_second():
    matrix = positions.block_form("interleaved", 3, np.array([np.pi / 2]))
    np.testing.assert_allclose(matrix, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15)


def test_the_wrong_pairing_keeps_lengths_and_a_single_pair_has_none():
    claim = RopeIsRotation(pairing="other")
    product, matrix, length = claim._differences("half-split", 6, 1.0)
    assert product > 0.1 and matrix > 0.1 and length <= EQUAL
    assert max(claim._differences("interleaved", 2, 1.0)) <= EQUAL


def test_a_rotation_the_other_way_round_is_noticed(monkeypatch):
    def backwards(x, by):
        return rotate(x, type(by)(by.cos, -by.sin, by.layout))

    rotate = positions.rotate
    monkeypatch.setattr(positions, "rotate", backwards)
    evidence = RopeIsRotation().run()
    assert [measure.met for measure in evidence.measures] == [False, False, True]
    assert evidence.right == {"000": False, "003": False}
    # which the relative property cannot tell
    assert RopeRelative().run().measures[0].met


@pytest.mark.parametrize("change", [{"longest": 1, "cases": 2}, {"seed": 9}])
def test_rotations_hold_at_odd_settings(change):
    assert RopeIsRotation(**change).run().verdict == "holds"
    assert RopeRelative(**change).run().verdict == "holds"


def test_angles_that_are_not_proportional_to_time_are_noticed(monkeypatch):
    turned = positions.turned
    monkeypatch.setattr(
        positions, "turned", lambda x, times, *rest: turned(x, np.sign(times) * times**2, *rest)
    )
    assert RopeRelative(longest=40).run().verdict == "refuted"


def test_a_bfloat16_takes_position_257_for_256():
    x = block.units(0, "x", 1, 3, 1, 2)
    at = {t: positions.turned(x, np.array([t]), Rotary(), "bfloat16") for t in (256, 257, 258)}
    assert torch.equal(at[256], at[257]) and not torch.equal(at[256], at[258])
    assert torch.equal(at[256], positions.turned(x, np.array([256]), Rotary()))


def test_lower_precisions_lose_more_the_farther_out():
    assert RopeRelative(precision="float32").run().verdict == "refuted"
    bfloat16, float32, float64 = (series.y for series in RopeRelative().run().picture.series)
    for near, far in ((0, 6), (6, 12)):
        assert float32[near] * 8 < float32[far]
    assert bfloat16[0] < 1e-3 and bfloat16[8] > 0.1
    assert all(c < b < a for a, b, c in zip(bfloat16, float32, float64, strict=True))


def test_two_known_mistakes_keep_the_relative_property():
    right, growing, by_head = RopeRelative().run().details[0].rows
    for _, difference, rounding in (right, growing, by_head):
        assert difference <= rounding
    x = block.units(0, "x", 1, 3, 9, 8)
    times = np.arange(9)
    for mistake in (GrowingRotary(), HeadRotary()):
        off = positions.turned(x, times, mistake) - positions.turned(x, times, Rotary())
        assert off.abs().max() > 0.1


def test_the_answers_formula_is_the_product_of_complex_numbers():
    """z₁ = 1, z₂ = i: the product is Re(−i e^(itθ)) = sin tθ."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    one, two = (row.expand(1, 3, 1, 2) for row in z)
    q = positions.turned(one, np.array([7]), Rotary(layout="interleaved"))
    k = positions.turned(two, np.array([4]), Rotary(layout="interleaved"))
    assert float((q * k).sum(-1)[0, 0, 0]) == pytest.approx(math.sin(3), abs=EQUAL)


def outputs(scheme, **words):
    x = block.tensor(0, "x", 9, block.WIDTH)[None]
    return block.placed(block.drawn_block(0, **words), block.position_scheme(scheme, 0, 9))(x)


def test_by_head_grouped_heads_change_their_scores_and_still_see_no_order():
    """The angles of a query head and its key head differ, but not with time."""
    assert (outputs("rotary-by-head") - outputs("none")).abs().max() <= EQUAL
    grouped = {"attention": "grouped"}
    assert (outputs("rotary-by-head", **grouped) - outputs("none", **grouped)).abs().max() > 1e-3
    rows = {row[:2]: row[2] for row in RopeNeedsTime().run().details[0].rows}
    assert rows["grouped", "scaled-dot"] <= EQUAL


def test_a_rotation_by_head_of_queries_alone_would_change_scores(monkeypatch):
    turned, calls = positions.turned, []

    def only_queries(x, times, by, precision="float64"):
        calls.append(x)
        return x if len(calls) % 2 == 0 else turned(x, times, by, precision)

    monkeypatch.setattr(positions, "turned", only_queries)
    assert RopeNeedsTime(length=5)._changed(HeadRotary(), 6) > 0.1


@pytest.mark.parametrize("length", [2, 17])
def test_the_score_falls_with_distance_by_time_only(length):
    assert RopeNeedsTime(length=length).run().verdict == "holds"
    by_time, by_head = RopeNeedsTime(length=length).run().picture.series
    assert max(by_head.y) - min(by_head.y) <= EQUAL
    assert max(by_time.y) - min(by_time.y) > 0.1 and by_time.y[0] == pytest.approx(1)
