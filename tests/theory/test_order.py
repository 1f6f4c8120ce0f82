"""What the order of tokens changes, without positions and with them."""

import numpy as np
import pytest
import torch

from attnlab.theory import block, order
from attnlab.theory.claim import EQUAL
from attnlab.theory.order import OrderInvariantOrEquivariant, PositionsBreakIt


def marks(claim):
    return {key: (found.conclusion, found.reason) for key, found in claim.run().judgements.items()}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_outputs_move_along_and_what_is_pooled_stays(seed):
    claim = OrderInvariantOrEquivariant(seed=seed)
    assert claim.run().verdict == "holds" and claim.with_knob().run().verdict == "refuted"
    assert marks(claim) == {
        "000 2(a)ii (the result)": ("incomplete", "right"),
        "000 2(a)ii (why it matters)": ("right", None),
        "001 2(a)ii (the word)": ("incomplete", None),
        "001 2(a)ii (what happens)": ("right", None),
        "003 2(a)ii": ("right", "incomplete"),
    }


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi"])
@pytest.mark.parametrize("length", [3, 16])
def test_with_positions_what_is_pooled_changes_with_the_order(positions, length):
    found = OrderInvariantOrEquivariant(positions=positions, length=length).run()
    assert found.verdict == "refuted"
    assert all(measure.value > 1e-3 for measure in found.measures[1:])


def test_under_a_mask_the_last_token_of_one_block_still_sees_all():
    *_, mean, read_out, last = OrderInvariantOrEquivariant(causal=True).run().measures
    assert not mean.met and not read_out.met and last.met


def test_what_is_read_off_by_hand():
    """Z = X: two tokens swapped; their mean stays, and so does what a fixed query finds."""
    claim = OrderInvariantOrEquivariant(length=3)
    x = block.tensor(0, "x", 3, block.WIDTH)
    found = claim._changes(lambda x: x, x, np.array([[1, 0, 2]]))
    assert found["Z(X)"] == pytest.approx(float(2**0.5 * (x[0] - x[1]).norm() / x.norm()))
    assert found["P Z(X)"] == 0 and found["the last token's output"] == 0
    assert max(found["the mean"], found["what a fixed query finds"]) <= EQUAL
    first = claim._changes(
        lambda x: x * torch.tensor([2.0, 1, 1])[:, None], x, np.array([[1, 0, 2]])
    )
    assert first["the mean"] > 0.01 and first["P Z(X)"] > 0.01


def test_a_block_that_gives_every_token_the_same_is_invariant_and_the_marks_say_so():
    """Then "order-invariant" is right, and that outputs change places is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "course_block", lambda *a, **k: lambda x: 0 * x + 1)
        said = marks(OrderInvariantOrEquivariant())
    assert said["001 2(a)ii (the word)"] == ("right", None)
    assert said["001 2(a)ii (what happens)"] == ("wrong", None)


def test_permuted_words_at_fixed_places_are_fixed_words_at_permuted_places():
    """Z(PX + Φ) = P Z(X + PᵀΦ), which is what positions-break-it starts from."""
    claim = PositionsBreakIt(length=6)
    network, codes = claim._network(0), claim._codes()
    x, moved = block.tensor(0, "tokens", 6, block.WIDTH), np.array([4, 0, 5, 1, 3, 2])
    back = np.argsort(moved)
    left = network(x[None, moved] + codes)
    right = network(x[None] + codes[:, back])[:, moved]
    torch.testing.assert_close(left, right, rtol=0, atol=EQUAL)


def test_weak_positions_show_in_proportion_and_below_a_rounding_not_at_all():
    weak, weaker = PositionsBreakIt(scale=1e-3).run(), PositionsBreakIt(scale=1e-4).run()
    assert weak.measures[0].value / weaker.measures[0].value == pytest.approx(10, rel=0.01)
    assert weak.verdict == "refuted" and weak.measures[0].value > 1e6 * weak.measures[1].value


def test_a_block_that_does_nothing_moves_by_its_positions_alone():
    claim, moved = PositionsBreakIt(length=5), np.array([[3, 1, 0, 4, 2]])
    tokens, codes = block.tensor(0, "tokens", 5, block.WIDTH), 0.5 * claim._codes()
    (found,) = order._amounts(lambda x: x, tokens, moved, codes)
    codes = codes[0].numpy()
    size = np.linalg.norm(tokens.numpy() + codes)
    assert found == pytest.approx(np.linalg.norm(codes - codes[moved[0]]) / size, rel=1e-12)


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
    assert order._twins(network, x, 0 * claim._codes()) <= EQUAL
    assert order._twins(network, x, claim._codes()) > block.VISIBLE


def test_positions_that_are_not_added_are_refused(unchecked_shapes):
    with pytest.raises(ValueError, match="positions is 'rotary'; choose from sinusoidal, learned"):
        PositionsBreakIt(positions="rotary")


def test_positions_out_of_range_are_refused():
    with pytest.raises(ValueError, match="scale is -1"):
        PositionsBreakIt(scale=-1.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_documents_are_right_about_positions(seed):
    """Sinusoids do not move away steadily: at 6 steps the fastest pair has come round."""
    assert marks(PositionsBreakIt(seed=seed)) == {
        "000 2(b)i": ("right", "right"),
        "001 2(b)i": ("right", None),
        "003 2(b)i": ("right", "incomplete"),
    }


def test_where_no_unit_is_active_the_order_does_not_show_on_an_open_set():
    """Both sides agree for all inputs nearby, so nothing is said about measure 0."""
    _, dead = PositionsBreakIt().run().details
    assert len(dead.rows) == order.NEARBY and {row[1] for row in dead.rows} == {0.0}
    claim = PositionsBreakIt()
    x, codes = block.tensor(0, "tokens", claim.length, block.WIDTH), claim._codes()
    alive = block.course_block(0, causal=False)
    assert order._amounts(alive, x, claim._orders(), codes).min() > block.VISIBLE
