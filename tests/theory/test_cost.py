"""What a window costs, counted by hand."""

import dataclasses

import pytest
import torch

from attnlab.theory import cost, window
from attnlab.theory.claim import Judgement
from attnlab.theory.cost import DenseCost, TiledCost
from attnlab.theory.ledger import Ledger

RIGHT = Judgement("right", "right")


def test_time_and_space_are_marked_apart():
    assert DenseCost()._judgements() == {
        "004 student 3(a) time": Judgement("right"),
        "004 student 3(b) space": Judgement("wrong"),
        "004 notes 3(b) space": RIGHT,
        "004 GPT-4 3.1(a) time": RIGHT,
        "004 GPT-4 3.1(b) space": RIGHT,
    }
    assert TiledCost()._judgements() == {
        "004 student 3(d) space": Judgement("wrong"),
        "004 student 3(e) time": Judgement("right"),
        "004 GPT-4 3.1(d) space": RIGHT,
        "004 GPT-4 3.1(e) time": RIGHT,
    }


def test_the_marks_follow_what_is_counted(monkeypatch):
    """With other programs in their places, other answers are right."""
    monkeypatch.setattr(cost, "dense", lambda q, k, v, width: (q + k) * v)  # N·d, of everything
    marks = DenseCost()._judgements()
    assert marks["004 student 3(b) space"] == Judgement("right")
    assert marks["004 notes 3(b) space"] == Judgement("wrong", "wrong")
    assert marks["004 student 3(a) time"] == Judgement("right")  # no products: 0 is 4 times 0
    monkeypatch.setattr(cost, "program_of_gpt4", in_full)
    marks = TiledCost()._judgements()
    assert marks["004 GPT-4 3.1(d) space"] == Judgement("wrong", "wrong")
    assert marks["004 GPT-4 3.1(e) time"] == Judgement("wrong", "wrong")


def in_full(q, k, v, width):
    return (q @ k.T).softmax(1) @ v


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
    found = cost.cost_of(cost.dense, 5, 2, 3)
    assert (found.multiply_adds, found.largest) == (2 * 25 * 3, 25)
    # w = 0: two tiles of 64 queries that see 64 keys each, and a third of 1 and 1
    found = cost.cost_of(cost.in_tiles, 129, 0, 1)
    assert (found.multiply_adds, found.largest) == (2 * (2 * 64 * 64 + 1), 64 * 64)
    # w = 200: the tiles see 64, 128 and 64 + 100 keys
    found = cost.cost_of(cost.in_tiles, 192, 200, 3)
    assert (found.multiply_adds, found.largest) == (2 * 3 * 64 * (64 + 128 + 164), 64 * 164)
    assert cost.seen_pairs(6, 4) == 15


def test_what_is_counted_computes_the_window():
    q, k, v = window.random_qkv(0, 150, 3)
    for program in (cost.dense, cost.in_tiles):
        out = program(q, k, v, 20).numpy()
        assert abs(out - window.definition(q, k, v, 20)).max() <= 1e-12


def test_one_product_more_than_the_formula_is_refuted(monkeypatch):
    dense = cost.dense
    monkeypatch.setattr(cost, "dense", lambda q, k, v, w: dense(q, k, v, w) + 0 * (q @ k[:1].T))
    assert DenseCost(length=9).run().verdict == "refuted"


def test_a_text_within_a_tile_costs_the_same_in_tiles():
    assert DenseCost(length=33, path="tiled").run().verdict == "holds"
    assert DenseCost(length=129, path="tiled").run().verdict == "refuted"


def test_tiles_that_look_at_everything_or_at_too_little_are_refuted(monkeypatch):
    in_tiles, claim = cost.in_tiles, TiledCost(tiles=2, width=2)
    monkeypatch.setattr(TiledCost, "_judgements", lambda self: {})
    assert claim.run().verdict == "holds"
    monkeypatch.setattr(cost, "in_tiles", cost.dense)
    assert claim.run().verdict == "refuted"
    monkeypatch.setattr(cost, "in_tiles", lambda q, k, v, w: in_tiles(q, k, v, w // 4))
    assert claim.run().verdict == "refuted"


def test_the_slope_in_n_is_within_what_the_edge_adds_at_its_limit():
    measure = TiledCost(tiles=3, width=12).run().measures[0]
    assert 1 < measure.value <= measure.bound == 32 / 31
    with pytest.raises(ValueError, match="width is 14"):
        TiledCost(tiles=3, width=14)


def test_settings_that_make_no_sense_are_refused(unchecked_shapes):
    with pytest.raises(ValueError, match="width is 7"):
        DenseCost(width=7)
    with pytest.raises(ValueError, match="path is 'dens'; did you mean 'dense'"):
        DenseCost(path="dens")
    with pytest.raises(ValueError, match="use 32 or less, or more tiles"):
        dataclasses.replace(TiledCost(), width=64)
