"""Moves of rows: what undoes them, and the convention that they stand for."""

import pytest
import torch

from attnlab.doctor.moves import (
    move_part,
    reverse_half_split,
    reverse_interleaved,
    shift_rows,
    swap_halves,
)
from attnlab.doctor.pairs.separate import rotate
from attnlab.doctor.pairs.style import Style


@pytest.mark.parametrize(
    "move",
    [
        swap_halves,
        lambda w: reverse_half_split(w, 2, 4),
        lambda w: reverse_interleaved(w, 2, 4),
    ],
)
def test_it_is_its_own_inverse(move):
    weight = torch.randn(12, 5)
    assert not torch.equal(move(weight), weight)
    assert torch.equal(move(move(weight)), weight)


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
def test_mirrored_queries_and_keys_turn_the_other_way(layout):
    q, k = torch.randn(2, 1, 1, 7, 8, dtype=torch.float64)
    mirror = reverse_half_split if layout == "half-split" else reverse_interleaved

    def scores(q, k, backward):
        style = Style(layout=layout, backward=backward)
        return rotate(q, style, 0) @ rotate(k, style, 0).mT

    mirrored = [mirror(x[0, 0].T, 1, 8).T[None, None] for x in (q, k)]
    torch.testing.assert_close(scores(*mirrored, True), scores(q, k, False), rtol=0, atol=1e-12)


def test_a_part_of_each_head_moves_and_comes_back():
    weight = torch.arange(16).view(16, 1)
    moved = move_part(weight, 2, 4, 0, 3)
    assert moved.flatten().tolist()[:8] == [4, 5, 6, 0, 1, 2, 3, 7]
    assert torch.equal(move_part(moved, 2, 4, 3, 0), weight)


@pytest.mark.parametrize(("by", "rows"), [(2, 7), (-1, 5), (0, 3), (0, 9)])
def test_row_i_of_a_table_moves_to_i_plus_that_many(by, rows):
    table = torch.randn(5, 3)
    moved = shift_rows(table, by, rows)
    for i in range(rows):
        wanted = table[i - by] if 0 <= i - by < 5 else torch.zeros(3)
        assert torch.equal(moved[i], wanted)
