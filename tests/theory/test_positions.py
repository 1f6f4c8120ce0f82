"""Rotary positions."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from attnlab.attention.mistakes import GrowingRotary, HeadRotary
from attnlab.attention.positions import Rotary
from attnlab.theory import block, positions
from attnlab.theory.claim import EQUAL, Judgement
from attnlab.theory.positions import RopeIsRotation, RopeNeedsTime, RopeRelative


@cache
def run(claim):
    return claim.run()


def test_the_documents_are_right_about_rotations_but_003_leaves_out_the_time():
    assert run(RopeIsRotation()).judgements == {
        "000 3(g)i": Judgement("incomplete"),
        "003 3(g)i": Judgement("incomplete"),
    }
    both = Judgement("right", "right")
    assert run(RopeRelative()).judgements == {"000 3(g)ii": both, "003 3(g)ii": both}
    # at position 1 the angle tθ is θ, and what 003 writes is right as it stands
    assert RopeIsRotation(longest=1, cases=2).run().judgements["003 3(g)i"] == Judgement("right")


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
    assert {found.conclusion for found in evidence.judgements.values()} == {"wrong"}
    # which the relative property cannot tell
    assert RopeRelative().run().measures[0].met


@pytest.mark.parametrize("change", [{"longest": 1, "cases": 2}, {"seed": 9}])
def test_rotations_hold_at_odd_settings(change):
    assert RopeIsRotation(**change).run().verdict == "holds"
    assert RopeRelative(**change).run().verdict == "holds"


def test_angles_that_are_not_proportional_to_time_are_noticed(monkeypatch):
    rotate_at = positions.rotate_at
    monkeypatch.setattr(
        positions,
        "rotate_at",
        lambda x, times, *rest: rotate_at(x, np.sign(times) * times**2, *rest),
    )
    evidence = RopeRelative(longest=40).run()
    assert evidence.verdict == "refuted"
    assert evidence.judgements["000 3(g)ii"] == Judgement("wrong", "wrong")


def test_a_bfloat16_takes_position_257_for_256():
    x = block.units(0, "x", 1, 3, 1, 2)
    at = {t: positions.rotate_at(x, np.array([t]), Rotary(), "bfloat16") for t in (256, 257, 258)}
    assert torch.equal(at[256], at[257]) and not torch.equal(at[256], at[258])
    assert torch.equal(at[256], positions.rotate_at(x, np.array([256]), Rotary()))


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
        off = positions.rotate_at(x, times, mistake) - positions.rotate_at(x, times, Rotary())
        assert off.abs().max() > 0.1


def test_the_answers_formula_is_the_product_of_complex_numbers():
    """z₁ = 1, z₂ = i: the product is Re(−i e^(itθ)) = sin tθ."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    one, two = (row.expand(1, 3, 1, 2) for row in z)
    q = positions.rotate_at(one, np.array([7]), Rotary(layout="interleaved"))
    k = positions.rotate_at(two, np.array([4]), Rotary(layout="interleaved"))
    assert float((q * k).sum(-1)[0, 0, 0]) == pytest.approx(math.sin(3), abs=EQUAL)


def outputs(scheme, **words):
    x = block.tensor(0, "x", 9, block.WIDTH)[None]
    return block.with_positions(
        block.random_block(0, **words), block.position_scheme(scheme, 0, 9)
    )(x)


def test_by_head_grouped_heads_change_their_scores_and_still_see_no_order():
    """The angles of a query head and its key head differ, but not with time."""
    assert (outputs("rotary-by-head") - outputs("none")).abs().max() <= EQUAL
    grouped = {"attention": "grouped"}
    assert (outputs("rotary-by-head", **grouped) - outputs("none", **grouped)).abs().max() > 1e-3
    rows = {row[:2]: row[2] for row in RopeNeedsTime().run().details[0].rows}
    assert rows["grouped", "scaled-dot"] <= EQUAL


def test_a_rotation_by_head_of_queries_alone_would_change_scores(monkeypatch):
    rotate_at, calls = positions.rotate_at, []

    def only_queries(x, times, by, precision="float64"):
        calls.append(x)
        return x if len(calls) % 2 == 0 else rotate_at(x, times, by, precision)

    monkeypatch.setattr(positions, "rotate_at", only_queries)
    assert RopeNeedsTime(length=5)._change(HeadRotary(), 6) > 0.1


@pytest.mark.parametrize("length", [2, 17])
def test_the_score_falls_with_distance_by_time_only(length):
    assert RopeNeedsTime(length=length).run().verdict == "holds"
    by_time, by_head = RopeNeedsTime(length=length).run().picture.series
    assert max(by_head.y) - min(by_head.y) <= EQUAL
    assert max(by_time.y) - min(by_time.y) > 0.1 and by_time.y[0] == pytest.approx(1)
