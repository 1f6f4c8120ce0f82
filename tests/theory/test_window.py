"""Windows: the mask by hand, the documents' programs by hand, and costs that are really counted."""

import dataclasses

import pytest
import torch

from attnlab.kernels import attention
from attnlab.theory import window
from attnlab.theory.ledger import Ledger
from attnlab.theory.window import DenseCost, TiledCost, WindowMask


@pytest.fixture
def few(monkeypatch):
    """All windows of texts up to 5: enough to see a fault."""
    monkeypatch.setattr(window, "LONGEST", 5)


def test_documents_are_judged_by_their_own_programs_and_formulas(few):
    assert WindowMask().run().right == {"004 student": False, "004 GPT-4": False}
    right = {"004 student": False, "004 notes": True, "004 GPT-4": True}
    assert DenseCost()._right() == right
    assert TiledCost()._right() == {"004 student": False, "004 GPT-4": True}


@pytest.mark.parametrize(
    ("length", "width", "verdict"),
    [(13, 2, "holds"), (7, 0, "holds"), (64, 60, "holds"), (5, 8, "refuted"), (1, 0, "refuted")],
)
def test_a_window_hides_something_only_in_a_longer_text(few, length, width, verdict):
    assert WindowMask(length=length, width=width).run().verdict == verdict


def test_row_sums_of_the_printed_matrix_are_those_of_three_keys():
    assert [sum(row) for row in window.PRINTED] == [1, 2, 3, 3, 3, 3]
    assert window.rule(6, 4).tolist() == [list(map(float, row)) for row in window.PRINTED]


@pytest.mark.parametrize("keys", [lambda w: w // 2 + 2, lambda w: max(w // 2, 1), lambda w: w + 1])
def test_another_count_of_keys_is_refuted(few, monkeypatch, keys):
    monkeypatch.setattr(window, "keys_of_course_width", keys)
    assert WindowMask().run().verdict == "refuted"


def test_a_mask_with_the_right_sums_over_the_wrong_keys_is_seen(monkeypatch):
    visible = window.visible
    monkeypatch.setattr(window, "visible", lambda *asked: visible(*asked).flip(1))
    pairs, rows, used_by_kernels = window.unlike_rule(0, 5, 2)
    # rows {0} {0,1} {1,2} {2,3} {3,4} against {4} {3,4} {2,3} {1,2} {0,1}
    assert (pairs, rows, used_by_kernels) == (2 + 4 + 2 + 2 + 4, 0, 0)


def test_a_kernel_that_ignores_the_window_is_refuted(few, monkeypatch):
    def careless(q, k, v, window=None, path="auto"):
        return attention(q, k, v, path=path)

    monkeypatch.setattr(window, "attention", careless)
    assert WindowMask().run().verdict == "refuted"


def test_equal_scores_give_means_over_the_window():
    zeros, values = torch.zeros(3, 1).double(), torch.tensor([[2.0], [4.0], [8.0]]).double()
    # w = 2: each query averages its own value and the one before
    assert window.definition(zeros, zeros, values, 2)[:, 0].tolist() == [2, 3, 6]
    # the student's first row shares its weight with an empty slot; all other rows are right
    kind = window.program_of_student(zeros, zeros, values, 2, reach=0, matched=True)
    assert kind[:, 0].tolist() == [1, 3, 6]
    # as written: three slots, of which the first row fills one and the second two
    written = window.program_of_student(zeros, zeros, values, 2)
    assert written[:, 0].tolist() == pytest.approx([2 / 3, 6 / 3, 14 / 3], abs=1e-12)
    assert torch.equal(window.program_of_gpt4(zeros, zeros, values, 2), values)


def test_the_students_weights_meet_the_wrong_values_even_in_a_full_window():
    q, k, v = window.drawn(1, 9, 3)
    true = torch.from_numpy(window.definition(q, k, v, 4))
    reversed_rows = window.program_of_student(q, k, v, 4, reach=0) - true
    matched_rows = window.program_of_student(q, k, v, 4, reach=0, matched=True) - true
    assert (reversed_rows[2:].abs().amax(1) > 1e-3).all()
    assert matched_rows[2:].abs().max() <= 1e-12 < matched_rows[:2].abs().max()


def test_gpt4s_program_with_its_mask_opened_is_the_definition(monkeypatch):
    q, k, v = window.drawn(2, 11, 3)
    assert torch.equal(window.program_of_gpt4(q, k, v, 6), v)
    monkeypatch.setattr(torch, "full_like", lambda x, _: torch.zeros_like(x))
    opened = window.program_of_gpt4(q, k, v, 6).numpy()
    assert abs(opened - window.definition(q, k, v, 6)).max() <= 1e-12


def test_the_ledger_counts_tensors_that_are_made_and_not_views():
    x = torch.ones(10)
    with Ledger(x) as ledger:
        view = x[2:]
        once = view + 1
        twice = once.view(2, 4) * 2
        del once
        result = twice.flatten() + 1
    assert ledger.held == 16  # never more than two of 8 numbers
    assert ledger.largest_beside(result) == 8
    with Ledger(x) as ledger:
        result = x + 1
    assert ledger.largest_beside(result) == 0


def test_costs_of_small_shapes_are_those_counted_by_hand():
    cost = window.counted(window.dense, 5, 2, 3)
    assert (cost.multiply_adds, cost.largest) == (2 * 25 * 3, 25)
    # w = 0: two tiles of 64 queries that see 64 keys each, and a third of 1 and 1
    cost = window.counted(window.in_tiles, 129, 0, 1)
    assert (cost.multiply_adds, cost.largest) == (2 * (2 * 64 * 64 + 1), 64 * 64)
    # w = 200: the tiles see 64, 128 and 64 + 100 keys
    cost = window.counted(window.in_tiles, 192, 200, 3)
    assert (cost.multiply_adds, cost.largest) == (2 * 3 * 64 * (64 + 128 + 164), 64 * 164)
    assert window.seen_pairs(6, 4) == 15


def test_what_is_counted_computes_the_window():
    q, k, v = window.drawn(0, 150, 3)
    for program in (window.dense, window.in_tiles):
        out = program(q, k, v, 20).numpy()
        assert abs(out - window.definition(q, k, v, 20)).max() <= 1e-12


def test_one_product_more_than_the_formula_is_refuted(monkeypatch):
    dense = window.dense
    monkeypatch.setattr(window, "dense", lambda q, k, v, w: dense(q, k, v, w) + 0 * (q @ k[:1].T))
    assert DenseCost(length=9).run().verdict == "refuted"


def test_a_text_within_a_tile_costs_the_same_in_tiles():
    assert DenseCost(length=33, path="tiled").run().verdict == "holds"
    assert DenseCost(length=129, path="tiled").run().verdict == "refuted"


def test_tiles_that_look_at_everything_or_at_too_little_are_refuted(monkeypatch):
    in_tiles, claim = window.in_tiles, TiledCost(tiles=2, width=2)
    monkeypatch.setattr(TiledCost, "_right", lambda self: {})
    assert claim.run().verdict == "holds"
    monkeypatch.setattr(window, "in_tiles", window.dense)
    assert claim.run().verdict == "refuted"
    monkeypatch.setattr(window, "in_tiles", lambda q, k, v, w: in_tiles(q, k, v, w // 4))
    assert claim.run().verdict == "refuted"


def test_the_slope_in_n_is_within_what_the_edge_adds_at_its_limit():
    measure = TiledCost(tiles=3, width=12).run().measures[0]
    assert 1 < measure.value <= measure.bound == 32 / 31
    with pytest.raises(ValueError, match="width is 14"):
        TiledCost(tiles=3, width=14)


def test_settings_that_make_no_sense_are_refused(unchecked_shapes):
    with pytest.raises(ValueError, match=r"width is 5; .* use 4 or 6"):
        WindowMask(width=5)
    with pytest.raises(ValueError, match="width is 7"):
        DenseCost(width=7)
    with pytest.raises(ValueError, match="choose dense or tiled"):
        DenseCost(path="dens")
    with pytest.raises(ValueError, match="use 32 or less, or more tiles"):
        dataclasses.replace(TiledCost(), width=64)
