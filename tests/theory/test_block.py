"""The block and the order of tokens."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch

from attnlab.kernels.reference import masked_softmax
from attnlab.models import transformer
from attnlab.theory import block, draw
from attnlab.theory.block import BlockEquivariant, PositionsBreakIt, SoftmaxPermutes
from attnlab.theory.claim import EQUAL

CLAIMS = [SoftmaxPermutes, BlockEquivariant, PositionsBreakIt]


@cache
def run(claim):
    return claim.run()


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_documents_are_right_about_order(claim):
    assert set(run(claim()).right.values()) == {True}


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

    monkeypatch.setattr(transformer.Gelu, "forward", forward)
    evidence = BlockEquivariant().run()
    assert evidence.verdict == "refuted"
    worst = {row[1]: row[2] for row in evidence.details[0].rows}
    assert worst["gelu"] > 1e-3 and worst["swiglu"] <= EQUAL


def test_the_answers_are_about_the_course_block_which_has_no_rotary_positions():
    assert set(BlockEquivariant(positions="rotary").run().right.values()) == {True}
    assert set(BlockEquivariant(positions="sinusoidal").run().right.values()) == {False}


def test_permuted_words_at_fixed_places_are_fixed_words_at_permuted_places():
    """Z(PX + Φ) = P Z(X + PᵀΦ), which is what positions-break-it starts from."""
    claim = PositionsBreakIt(length=6)
    network, codes = claim._network(0), claim._codes()
    x, order = block.tensor(0, "tokens", 6, block.WIDTH), np.array([4, 0, 5, 1, 3, 2])
    back = np.argsort(order)
    left = network(x[None, order] + codes)
    right = network(x[None] + codes[:, back])[:, order]
    torch.testing.assert_close(left, right, rtol=0, atol=EQUAL)


def test_weak_positions_show_in_proportion_and_below_a_rounding_not_at_all():
    weak, weaker = PositionsBreakIt(scale=1e-3).run(), PositionsBreakIt(scale=1e-4).run()
    assert weak.measures[0].value / weaker.measures[0].value == pytest.approx(10, rel=0.01)
    assert weak.verdict == "refuted" and weak.measures[0].value > 1e6 * weak.measures[1].value


def test_a_block_that_does_nothing_moves_by_its_positions_alone():
    claim, order = PositionsBreakIt(length=5), np.array([[3, 1, 0, 4, 2]])
    tokens, codes = block.tensor(0, "tokens", 5, block.WIDTH), 0.5 * claim._codes()
    (found,) = block._amounts(lambda x: x, tokens, order, codes)
    codes = codes[0].numpy()
    size = np.linalg.norm(tokens.numpy() + codes)
    assert found == pytest.approx(np.linalg.norm(codes - codes[order[0]]) / size, rel=1e-12)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("length", [2, 33])
def test_added_positions_of_both_kinds_show_at_odd_lengths(positions, length):
    claim = PositionsBreakIt(positions=positions, length=length, seed=5)
    assert claim.run().verdict == "holds"
    assert not (claim._orders() == np.arange(length)).all(axis=1).any()


def test_one_word_at_two_places_comes_out_alike_without_positions():
    """000's reason, which is judged by this."""
    claim = PositionsBreakIt()
    x, network = block.tensor(0, "tokens", claim.length, block.WIDTH), claim._network(0)
    assert block._twins(network, x, 0 * claim._codes()) <= EQUAL
    assert block._twins(network, x, claim._codes()) > block.VISIBLE


def test_positions_that_are_not_added_are_refused(unchecked_shapes):
    with pytest.raises(ValueError, match=r"positions is 'rotary'; only sinusoidal and learned"):
        PositionsBreakIt(positions="rotary")


@pytest.mark.parametrize(
    ("claim", "changes", "message"),
    [
        (SoftmaxPermutes, {"size": 1}, "size is 1; it goes from 2 to 200"),
        (BlockEquivariant, {"permutations": 5}, "permutations is 5; it goes from 24"),
        (PositionsBreakIt, {"scale": -1.0}, "scale is -1"),
    ],
)
def test_settings_out_of_range_are_refused(claim, changes, message):
    with pytest.raises(ValueError, match=message):
        claim(**changes)
