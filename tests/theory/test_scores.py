"""The claims about scores, against numbers that were found another way."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnlab.attention.scores import AdditiveScore, MultiplicativeScore
from attnlab.theory import angle, scores
from attnlab.theory.claim import EQUAL, Judgement
from attnlab.theory.draw import normal, softmax
from attnlab.theory.scores import (
    AdditiveReachesTheAngle,
    ConcatenatedIgnoresTheQuery,
    MultiplicativeAddsNothing,
)

CLAIMS = [
    MultiplicativeAddsNothing,
    ConcatenatedIgnoresTheQuery,
    AdditiveReachesTheAngle,
]


@pytest.fixture(scope="module")
def runs():
    return {claim: (claim().run(), claim().with_knob().run()) for claim in CLAIMS}


def test_each_document_is_marked_as_its_answer_deserves(runs):
    assert {claim: found.judgements for claim, (found, _) in runs.items()} == {
        MultiplicativeAddsNothing: {
            "004 student 2.1(a)": Judgement("right", "incomplete"),
            "004 GPT-4 2.1(a)": Judgement("wrong", "incomplete"),
        },
        ConcatenatedIgnoresTheQuery: {
            "004 student 2.1(b)": Judgement("right", "incomplete"),
            "004 GPT-4 2.1(b)": Judgement("right", "incomplete"),
        },
        AdditiveReachesTheAngle: {
            "004 student 2.1(c)": Judgement("incomplete", "incomplete"),
            "004 GPT-4 2.1(c) cosine": Judgement("incomplete", "incomplete"),
            "004 GPT-4 2.1(c) angle": Judgement("incomplete"),
        },
    }


def test_a_tie_makes_the_maps_of_dot_products_reversible():
    shape = (6, 5, 2, 2, 3)
    for tied in (False, True):
        _, _, (_, _, plain) = scores._compare(0, shape, 0, tied)
        assert (scores._irreversibility(plain) <= EQUAL) == tied


def test_absorbing_the_wrong_way_round_is_found_out(monkeypatch):
    def transposed(self, request):
        return replace(request, q=request.q @ self.matrix)

    monkeypatch.setattr(MultiplicativeScore, "as_dot_product", transposed)
    evidence = MultiplicativeAddsNothing(cases=1).run()
    assert not evidence.measures[0].met and evidence.measures[1].met
    assert evidence.judgements == {
        "004 student 2.1(a)": Judgement("wrong", "wrong"),
        "004 GPT-4 2.1(a)": Judgement("right", "right"),
    }


def test_maps_of_symmetric_scores_are_the_same_in_both_directions_around():
    free = normal(0, "scores", 2, 5, 5)
    symmetric = free + free.transpose(0, 2, 1)
    assert scores._irreversibility(softmax(symmetric)) <= EQUAL
    # one step of a circle of three weighs e times its way back, the other two nothing more
    around = np.zeros((1, 3, 3))
    around[0, 0, 1] = 1.5
    assert scores._irreversibility(softmax(around)) == pytest.approx(1.5 / 6)


def test_the_best_concatenated_score_is_off_by_1_and_leaves_all_of_the_variance():
    claim = ConcatenatedIgnoresTheQuery(width=3)
    keys, queries = claim._pairs()
    cosine = angle.cosines(keys, queries)
    for target, farthest in ((cosine, 1), (np.arccos(cosine.clip(-1, 1)), math.pi / 2)):
        explained, left, worst = claim._fit(target, keys, queries, tanh=False)
        assert abs(explained) <= EQUAL
        assert left == pytest.approx(float(np.var(target)), rel=1e-12)
        assert worst == pytest.approx(farthest, rel=1e-7)  # arccos loses half of the digits at 1
    assert float(np.var(cosine)) == pytest.approx(1 / 3, rel=1e-12)


def test_something_linear_would_be_fitted(monkeypatch):
    def linear(keys, queries):
        return (keys[:, :1] - queries[:, 1]) / 10

    monkeypatch.setattr(scores, "cosines", linear)
    evidence = ConcatenatedIgnoresTheQuery(cases=1).run()
    assert evidence.measures[1].value == pytest.approx(1)
    assert evidence.verdict == "refuted"
    assert {found.conclusion for found in evidence.judgements.values()} == {"wrong"}


def test_a_sum_of_parts_that_is_not_linear_would_be_found():
    target = np.array([1.0, 7.0, 2.0])[:, None] ** 2 + np.array([3.0, 0.5]) ** 3
    assert np.abs(scores._sum_of_parts(target) - target).max() <= EQUAL
    assert scores._explained_variance(
        target, target - scores._sum_of_parts(target)
    ) == pytest.approx(1)
    # and 1, −1, −1, 1 is what no sum has
    met = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert scores._explained_variance(met, met - scores._sum_of_parts(met)) == 0


@pytest.mark.parametrize("width", [1, 2, 13])
def test_concatenated_scores_ignore_the_query_at_other_widths(width):
    assert ConcatenatedIgnoresTheQuery(width=width, cases=5).run().verdict == "holds"
    assert ConcatenatedIgnoresTheQuery(width=width, cases=5, tanh=True).run().verdict == "refuted"


def test_over_all_directions_no_additive_score_is_off_by_less_than_1():
    claim = AdditiveReachesTheAngle()
    keys, queries, targets = angle.pairs(claim.shortest, (180.0, 0.75, 0.0), points=3)
    for seed in range(5):
        inner = np.tanh(
            (keys @ normal(seed, "k", 3, 7))[:, None] + queries @ normal(seed, "q", 3, 7)
        )
        scored = inner @ normal(seed, "w", 7)
        assert np.abs(scored - targets[:, :, 0]).max() >= 1 - EQUAL
        assert np.abs(scored - targets[:, :, 1]).max() >= math.pi - EQUAL
    # nothing but the constant mends it
    (mended,) = angle.angle_fits(0, 0.75, (256,), (180.0, 0.75, 1.0))
    (odd,) = angle.angle_fits(0, 0.75, (256,), (180.0, 0.75, 0.0))
    assert mended.error < 0.25 < 1 < odd.error
    assert mended.angle_error < 0.5 < math.pi < odd.angle_error


def test_the_angle_is_that_of_the_vectors():
    keys, queries, targets = angle.pairs(0.75, (45.0, 0.75, 1.0), points=3)
    k, q = 4, 20
    one, other = (math.atan2(*vector[1::-1]) for vector in (keys[k], queries[q]))
    assert targets[k, q, 0] == pytest.approx(math.cos(one - other), abs=1e-14)
    assert math.cos(targets[k, q, 1]) == pytest.approx(math.cos(one - other), abs=1e-14)
    assert targets[:, :, 1].min() >= 0 and targets[:, :, 1].max() == pytest.approx(math.pi)
    # directions of queries are a STEP apart, which is what "close to θ" leaves open
    turns = np.unique(np.round(np.arctan2(queries[:, 1], queries[:, 0]), 9))
    assert np.diff(turns) == pytest.approx(angle.STEP)
    assert (keys[:, 2] == 1).all() and (queries[:, 2] == 0).all()
    lengths = np.linalg.norm(keys[:, :2], axis=1)
    assert lengths.min() == pytest.approx(0.75) and lengths.max() == pytest.approx(1)


@pytest.mark.parametrize("setting", [{"spread": 180.0}, {"spread": 90.0}, {"shortest": 0.01}])
def test_beyond_the_condition_the_additive_score_fails(setting):
    evidence = AdditiveReachesTheAngle(units=64, **setting).run()
    assert evidence.verdict == "refuted"
    assert all(measure.met for measure in evidence.outside)


@pytest.mark.parametrize("seed", [3, 11])
def test_the_angle_takes_more_units_than_its_cosine(seed):
    first, more = angle.angle_fits(seed, 0.75, (64, 256), (45.0, 0.75, 0.0))
    assert more.angle_error < first.angle_error and more.error < first.error
    # of their ranges, π and 2
    assert more.angle_error / math.pi > 2 * more.error / 2


def test_the_picture_names_the_set_that_was_tried():
    picture = AdditiveReachesTheAngle(units=16, spread=30.0, shortest=0.5).run().picture
    assert picture.series[0].name == "keys within 30°, lengths 0.5 to 1"


def test_a_module_that_leaves_out_tanh_is_found_out(monkeypatch):
    original = AdditiveScore._weights

    def without(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "tanh", lambda x: x)
            return original(self, *arguments)

    monkeypatch.setattr(AdditiveScore, "_weights", without)
    evidence = AdditiveReachesTheAngle(units=64).run()
    assert not evidence.measures[4].met


@pytest.mark.parametrize(
    ("claim", "settings"),
    [
        (MultiplicativeAddsNothing, {"cases": 0}),
        (ConcatenatedIgnoresTheQuery, {"width": 0}),
        (AdditiveReachesTheAngle, {"shortest": 0.0}),
    ],
)
def test_settings_out_of_range_are_refused(claim, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        claim(**settings)
