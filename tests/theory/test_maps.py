"""Symmetric maps and several heads, against numbers that were found another way."""

import math

import numpy as np
import pytest

from attnlab.theory import maps
from attnlab.theory.claim import EQUAL, Judgement
from attnlab.theory.draw import normal, softmax
from attnlab.theory.maps import HeadsAreNotOneHead, SymmetricAttention
from attnlab.theory.scores import attend, projections


@pytest.fixture(scope="module")
def runs():
    claims = (SymmetricAttention, HeadsAreNotOneHead)
    return {claim: (claim().run(), claim().with_knob().run()) for claim in claims}


def test_each_document_is_marked_as_its_answer_deserves(runs):
    assert {claim: found.judgements for claim, (found, _) in runs.items()} == {
        SymmetricAttention: {
            "004 student 2.2(a) always": Judgement("right"),
            "004 student 2.2(a) condition": Judgement("wrong", "incomplete"),
            "004 GPT-4 2.2(a) always": Judgement("right", "incomplete"),
            "004 GPT-4 2.2(a) condition": Judgement("wrong", "incomplete"),
        },
        HeadsAreNotOneHead: {
            "004 student 2.2(b)": Judgement("right", "incomplete"),
            "004 GPT-4 2.2(b)": Judgement("right", "right"),
        },
    }


def test_if_all_maps_were_symmetric_nobody_would_be_right_that_they_are_not(monkeypatch):
    def even(*_, **__):
        return np.full((2, 2), 0.5), np.ones(2)

    monkeypatch.setattr(maps, "_attention_map", even)
    marks = SymmetricAttention().run().judgements
    assert marks["004 student 2.2(a) always"] == Judgement("wrong")
    assert marks["004 student 2.2(a) condition"] == Judgement("right", "right")
    # symmetric with W_q = −W_k as well, so not only then
    assert marks["004 GPT-4 2.2(a) condition"] == Judgement("wrong", "right")


def test_twice_the_keys_give_the_smallest_example_without_a_tie(runs):
    free, tied = runs[SymmetricAttention][0].details[1].rows
    assert free[1:3] == [21, 0] and tied[1:3] == [21, 0]
    assert free[3] == pytest.approx(0.5 - 1 / (math.e**2 + 1), rel=1e-12)
    assert runs[SymmetricAttention][1].details[1].rows[1][1:3] == [6, 6]


def test_the_smallest_map_with_equal_projections_is_not_symmetric(runs):
    rows = runs[SymmetricAttention][0].details[0].rows
    sigmoid = 1 / (1 + math.exp(-1))
    assert rows[0][1:] == pytest.approx([sigmoid, 1 - sigmoid], rel=1e-14)
    assert rows[1][1:] == [0.5, 0.5]
    assert rows[0][2] == pytest.approx(0.269, abs=5e-4)


def test_maps_are_symmetric_exactly_when_the_rows_have_equal_sums():
    for case in range(6):
        map_, sums = maps._attention_map(*SymmetricAttention()._random(case))
        symmetric = np.abs(map_ - map_.T).max() <= EQUAL
        assert symmetric == (np.ptp(sums) <= EQUAL * sums.max())
    map_, sums = maps._attention_map(*SymmetricAttention()._circle(7))
    assert np.abs(map_ - map_.T).max() <= EQUAL and np.ptp(sums) <= EQUAL * sums.max()


@pytest.mark.parametrize("sign", [1, -1])
def test_each_weight_times_the_sum_of_its_row_is_the_exponential_of_the_score(sign):
    tokens, projection = SymmetricAttention()._random(2)
    map_, sums = maps._attention_map(tokens, projection, factor=sign)
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
    q, k, v = (part.numpy() for part in projections(several))
    summed = sum(tokens @ q[i].T @ k[i] @ tokens.T for i in range(3)) / math.sqrt(15)
    maps, outputs = attend(one, tokens)
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
    assert turned.judgements["004 GPT-4 2.2(b)"].reason == "wrong"  # there are no different maps


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_for_a_single_map_stays_below_what_is_measured(seed):
    claim = HeadsAreNotOneHead(seed=seed)
    for case in range(5):
        differences, bound = claim._differences(case, np.geomspace(0.01, 100, 9), False)
        assert 0 < bound <= differences.min()


@pytest.mark.parametrize(
    ("claim", "settings"), [(SymmetricAttention, {"tokens": 1}), (HeadsAreNotOneHead, {"heads": 1})]
)
def test_settings_out_of_range_are_refused(claim, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        claim(**settings)
