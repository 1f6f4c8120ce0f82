"""The claims about scores, against numbers that were found another way."""

import math

import numpy as np
import pytest
import torch

from attnlab.attention.scores import AdditiveScore, MultiplicativeScore
from attnlab.theory import angle, scores
from attnlab.theory.claim import EQUAL
from attnlab.theory.draw import normal, softmax
from attnlab.theory.scores import (
    AdditiveReachesTheAngle,
    ConcatenatedIgnoresTheQuery,
    HeadsAreNotOneHead,
    MultiplicativeAddsNothing,
    SymmetricAttention,
)

CLAIMS = [
    MultiplicativeAddsNothing,
    ConcatenatedIgnoresTheQuery,
    AdditiveReachesTheAngle,
    SymmetricAttention,
    HeadsAreNotOneHead,
]


@pytest.fixture(scope="module")
def runs():
    return {claim: (claim().run(), claim().turned().run()) for claim in CLAIMS}


def test_each_document_is_judged_as_its_answer_deserves(runs):
    right = {claim: list(found.right.values()) for claim, (found, _) in runs.items()}
    assert right == {
        MultiplicativeAddsNothing: [True, False],
        ConcatenatedIgnoresTheQuery: [True, True],
        AdditiveReachesTheAngle: [False, False],
        SymmetricAttention: [False, False],
        HeadsAreNotOneHead: [True, True],
    }


def test_a_tie_makes_the_maps_of_dot_products_reversible():
    shape = (6, 5, 2, 2, 3)
    for tied in (False, True):
        _, _, (_, _, plain) = MultiplicativeAddsNothing(tied=tied)._compared(shape, 0)
        assert (scores._irreversible(plain) <= EQUAL) == tied


def test_absorbing_the_wrong_way_round_is_found_out(monkeypatch):
    def transposed(self, q, k, v, **seeing):
        return scores.ScaledDot().build(1, 1)(q @ self.matrix, k, v, **seeing)

    monkeypatch.setattr(MultiplicativeScore, "compare", transposed)
    evidence = MultiplicativeAddsNothing(cases=1).run()
    assert not evidence.measures[0].met and evidence.measures[1].met
    assert evidence.right == {"004 student": False, "004 GPT-4": True}


def test_maps_of_symmetric_scores_are_the_same_in_both_directions_around():
    free = normal(0, "scores", 2, 5, 5)
    symmetric = free + free.transpose(0, 2, 1)
    assert scores._irreversible(softmax(symmetric)) <= EQUAL
    # one step of a circle of three weighs e times its way back, the other two nothing more
    around = np.zeros((1, 3, 3))
    around[0, 0, 1] = 1.5
    assert scores._irreversible(softmax(around)) == pytest.approx(1.5 / 6)


def test_the_best_concatenated_score_is_off_by_1_and_leaves_all_of_the_variance():
    explained, left, worst = ConcatenatedIgnoresTheQuery(width=3)._fit(tanh=False)
    assert abs(explained) <= EQUAL
    assert left == pytest.approx(1 / 3, rel=1e-12)
    assert worst == pytest.approx(1, rel=1e-12)


def test_something_linear_would_be_fitted(monkeypatch):
    monkeypatch.setattr(scores, "cosines", lambda keys, queries: keys[:, :1] - queries[:, 1])
    evidence = ConcatenatedIgnoresTheQuery(cases=1).run()
    assert evidence.measures[1].value == pytest.approx(1)
    assert evidence.verdict == "refuted"
    assert not any(evidence.right.values())


@pytest.mark.parametrize("width", [1, 2, 13])
def test_concatenated_scores_ignore_the_query_at_other_widths(width):
    assert ConcatenatedIgnoresTheQuery(width=width, cases=5).run().verdict == "holds"
    assert ConcatenatedIgnoresTheQuery(width=width, cases=5, tanh=True).run().verdict == "refuted"


def test_over_all_directions_no_additive_score_is_off_by_less_than_1():
    claim = AdditiveReachesTheAngle()
    keys, queries, cosine = angle.pairs(claim.shortest, (180.0, 0.75, 0.0), points=3)
    for seed in range(5):
        inner = np.tanh(
            (keys @ normal(seed, "k", 3, 7))[:, None] + queries @ normal(seed, "q", 3, 7)
        )
        assert np.abs(inner @ normal(seed, "w", 7) - cosine).max() >= 1 - EQUAL
    # nothing but the constant mends it
    (mended,) = angle.angle_fits(0, 0.75, (256,), (180.0, 0.75, 1.0))
    (odd,) = angle.angle_fits(0, 0.75, (256,), (180.0, 0.75, 0.0))
    assert mended.error < 0.25 < 1 < odd.error


def test_the_angle_is_that_of_the_vectors():
    keys, queries, cosine = angle.pairs(0.75, (45.0, 0.75, 1.0), points=3)
    k, q = 4, 20
    angles = [math.atan2(*vector[1::-1]) for vector in (keys[k], queries[q])]
    assert cosine[k, q] == pytest.approx(math.cos(angles[0] - angles[1]), abs=1e-14)
    assert (keys[:, 2] == 1).all() and (queries[:, 2] == 0).all()
    lengths = np.linalg.norm(keys[:, :2], axis=1)
    assert lengths.min() == pytest.approx(0.75) and lengths.max() == pytest.approx(1)


@pytest.mark.parametrize("setting", [{"spread": 180.0}, {"spread": 90.0}, {"shortest": 0.01}])
def test_beyond_the_condition_the_additive_score_fails(setting):
    assert AdditiveReachesTheAngle(units=64, **setting).run().verdict == "refuted"


def test_a_module_that_leaves_out_tanh_is_found_out(monkeypatch):
    original = AdditiveScore._chunk

    def without(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "tanh", lambda x: x)
            return original(self, *arguments)

    monkeypatch.setattr(AdditiveScore, "_chunk", without)
    evidence = AdditiveReachesTheAngle(units=64).run()
    assert not evidence.measures[2].met


def test_the_smallest_map_with_equal_projections_is_not_symmetric(runs):
    rows = runs[SymmetricAttention][0].details[0].rows
    sigmoid = 1 / (1 + math.exp(-1))
    assert rows[0][1:] == pytest.approx([sigmoid, 1 - sigmoid], rel=1e-14)
    assert rows[1][1:] == [0.5, 0.5]
    assert rows[0][2] == pytest.approx(0.269, abs=5e-4)


def test_maps_are_symmetric_exactly_when_the_rows_have_equal_sums():
    for case in range(6):
        map_, sums = scores._tied(*SymmetricAttention()._random(case))
        symmetric = np.abs(map_ - map_.T).max() <= EQUAL
        assert symmetric == (np.ptp(sums) <= EQUAL * sums.max())
    map_, sums = scores._tied(*SymmetricAttention()._circle(7))
    assert np.abs(map_ - map_.T).max() <= EQUAL and np.ptp(sums) <= EQUAL * sums.max()


@pytest.mark.parametrize("sign", [1, -1])
def test_each_weight_times_the_sum_of_its_row_is_the_exponential_of_the_score(sign):
    tokens, projection = SymmetricAttention()._random(2)
    map_, sums = scores._tied(tokens, projection, sign=sign)
    exponentials = np.exp(sign * tokens @ projection.T @ projection @ tokens.T / math.sqrt(3))
    assert np.abs(sums[:, None] * map_ / exponentials - 1).max() <= EQUAL


def test_equal_projections_make_a_reversible_chain(runs):
    assert all(run.measures[1].met for run in runs[SymmetricAttention])


def test_tokens_that_are_not_at_equal_steps_are_found_out(monkeypatch):
    def ellipse(self, count):
        tokens, turn = original(self, count)
        return tokens * [1.0, 2.0], turn

    original = SymmetricAttention._circle
    monkeypatch.setattr(SymmetricAttention, "_circle", ellipse)
    assert SymmetricAttention(alike=True).run().verdict == "refuted"


def test_one_head_has_the_sum_of_the_scores_of_all():
    claim = HeadsAreNotOneHead(heads=3, width=5)
    tokens = normal(1, "tokens", 4, 15)
    several, one = claim._module(0, 3, False), claim._module(0, 1, False)
    q, k, v = (part.numpy() for part in scores._projections(several))
    summed = sum(tokens @ q[i].T @ k[i] @ tokens.T for i in range(3)) / math.sqrt(15)
    maps, outputs = scores._attended(one, tokens)
    assert np.abs(maps[0] - softmax(summed)).max() <= EQUAL
    values = np.concatenate([tokens @ v[i].T for i in range(3)], axis=1)
    assert np.abs(outputs - softmax(summed) @ values).max() <= EQUAL


@pytest.mark.parametrize(("heads", "width"), [(2, 2), (3, 5), (8, 4)])
def test_equal_heads_are_one_head_at_one_scale_only(heads, width):
    claim = HeadsAreNotOneHead(heads=heads, width=width)
    factors = np.array([1.0, math.sqrt(heads), 1 / math.sqrt(heads)])
    differences, bound = claim._differences(1, factors, True)
    assert (differences[:2] > 1e-3).all() and differences[2] <= EQUAL
    assert bound == 0


def test_among_the_scales_that_are_tried_is_the_one_at_which_equal_heads_are_one(runs):
    turned = runs[HeadsAreNotOneHead][1]
    assert not any(measure.met for measure in turned.measures)
    assert turned.right == {"004 student": True, "004 GPT-4": False}


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_for_a_single_map_stays_below_what_is_measured(seed):
    claim = HeadsAreNotOneHead(seed=seed)
    for case in range(5):
        differences, bound = claim._differences(case, np.geomspace(0.01, 100, 9), False)
        assert 0 < bound <= differences.min()


@pytest.mark.parametrize(
    ("claim", "settings"),
    [
        (MultiplicativeAddsNothing, {"cases": 0}),
        (ConcatenatedIgnoresTheQuery, {"width": 0}),
        (AdditiveReachesTheAngle, {"shortest": 0.0}),
        (SymmetricAttention, {"tokens": 1}),
        (HeadsAreNotOneHead, {"heads": 1}),
    ],
)
def test_settings_out_of_range_are_refused(claim, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        claim(**settings)
