"""The block and the order of tokens."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch

from attnlab.kernels.reference import masked_softmax
from attnlab.models import feedforward
from attnlab.theory import block, draw
from attnlab.theory.block import BlockEquivariant, SoftmaxPermutes
from attnlab.theory.claim import EQUAL


@cache
def run(claim):
    return claim.run()


def marks(claim):
    return {key: (found.conclusion, found.reason) for key, found in run(claim).judgements.items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_documents_are_right_about_permutations_and_slip_on_the_way(seed):
    assert set(marks(SoftmaxPermutes(seed=seed)).values()) == {("right", None)}
    assert marks(BlockEquivariant(seed=seed)) == {
        "000 2(a)i": ("right", "right"),
        "000 2(a)i (slips)": ("wrong", None),
        "001 2(a)i": ("right", "right"),
        "003 2(a)i": ("right", "incomplete"),
        "003 2(a)i (slip)": ("wrong", None),
    }


def test_one_swap_under_a_causal_mask_changes_all_four_formulas():
    """Row 1 saw itself alone and now sees both; row 2 the other way round."""
    assert block.different_formulas((1, 0), causal=True) == 4
    assert block.different_formulas((0, 1), causal=True) == 0
    assert block.different_formulas((1, 0), causal=False) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_formulas_differ_where_numbers_do(causal):
    scores = block.tensor(0, "scores", 4, 4)
    for order in itertools.permutations(range(4)):
        rows = list(order)
        left = block.softmax_of(scores[rows][:, rows], causal)
        right = block.softmax_of(scores, causal)[rows][:, rows]
        assert ((left - right).abs() > EQUAL).sum() == block.different_formulas(order, causal)


def test_a_mask_that_moves_with_the_tokens_does_no_harm():
    scores, rows = block.tensor(0, "scores", 5, 5), [3, 0, 4, 2, 1]
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    moved = masked_softmax(scores[rows][:, rows], seen[rows][:, rows])
    torch.testing.assert_close(moved, masked_softmax(scores, seen)[rows][:, rows])


def test_a_softmax_that_scales_rows_by_their_place_is_noticed(monkeypatch):
    rows = torch.arange(200.0).double()[:, None]
    monkeypatch.setattr(
        block,
        "masked_softmax",
        lambda scores, seen: (scores * rows[: scores.shape[-1]]).softmax(-1),
    )
    assert not SoftmaxPermutes().run().measures[1].met


def test_few_permutations_are_all_there_and_many_are_different_ones():
    assert len({tuple(row) for row in block.orders(0, 4, 24)}) == 24
    many = block.orders(0, 33, 50)
    assert len({tuple(row) for row in many}) == 50
    assert (np.sort(many, axis=1) == np.arange(33)).all()


def test_what_is_added_by_place_is_how_far_the_orders_are_apart():
    x, rows = torch.zeros(3, 1).double(), np.array([[0, 1, 2], [2, 1, 0]])
    assert block.farthest(lambda x: x + torch.arange(3)[:, None], x, rows) == 2
    assert block.farthest(lambda x: x + 7, x, rows) == 0


def test_a_nan_is_worse_than_any_number():
    assert np.isnan(block.worst_of([0.0, float("nan"), 1.0]))


@pytest.mark.parametrize("causal", [False, True])
def test_the_block_of_the_course_is_its_formula(causal):
    width = block.WIDTH
    projection = draw.normal(0, "course q, k, v", 3, width, width) / np.sqrt(width)
    up, down = draw.normal(0, "course layers", 2, width, width) / np.sqrt(width)
    first, second = draw.normal(0, "course biases", 2, width)
    x = draw.normal(0, "x", 5, width)
    q, k, v = x @ projection
    scores = q @ k.T / np.sqrt(width)
    scores[np.triu_indices(5, 1)] = -np.inf if causal else scores[np.triu_indices(5, 1)]
    want = np.maximum(draw.softmax(scores) @ v @ up + first, 0) @ down + second
    found = block.course_block(0, causal)(torch.from_numpy(x)[None])[0]
    np.testing.assert_allclose(found.numpy(), want, rtol=0, atol=EQUAL)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi"])
@pytest.mark.parametrize("length", [2, 9])
def test_every_kind_of_positions_makes_the_order_visible(positions, length):
    assert BlockEquivariant(positions=positions, length=length).run().verdict == "refuted"


def test_a_feed_forward_part_that_knows_the_place_is_noticed(monkeypatch):
    def forward(self, x):
        return self.down(torch.relu(self.up(x))) * torch.arange(x.shape[1])[:, None]

    monkeypatch.setattr(feedforward.Gelu, "forward", forward)
    evidence = BlockEquivariant().run()
    assert evidence.verdict == "refuted"
    worst = {row[1]: row[2] for row in evidence.details[0].rows}
    assert worst["gelu"] > 1e-3 and worst["swiglu"] <= EQUAL


def test_the_answers_are_about_the_course_block_which_has_no_rotary_positions():
    for positions, conclusion in (("rotary", "right"), ("sinusoidal", "wrong")):
        said = marks(BlockEquivariant(positions=positions))
        assert {said[f"{one} 2(a)i"][0] for one in ("000", "001", "003")} == {conclusion}


def test_a_mask_takes_the_step_through_the_softmax_away():
    said = marks(BlockEquivariant(causal=True))
    assert said["001 2(a)i"] == ("wrong", "wrong")


def test_no_unit_of_a_dead_block_is_active():
    x = block.tensor(0, "x", 2, 5, block.WIDTH)
    out = block.course_block(0, causal=False, dead=True)(x)
    assert (out == out[0, 0]).all() and not (block.course_block(0, causal=False)(x) == out).any()


@pytest.mark.parametrize(
    ("claim", "changes", "message"),
    [
        (SoftmaxPermutes, {"size": 1}, "size is 1; use 2 to 200"),
        (BlockEquivariant, {"permutations": 5}, "permutations is 5; use 24 to 200"),
    ],
)
def test_settings_out_of_range_are_refused(claim, changes, message):
    with pytest.raises(ValueError, match=message):
        claim(**changes)
