"""Batches: any of them can be computed alone, and together they are every sample once an epoch."""

import numpy as np
import pytest
import torch

from attnlab.data.batches import Batch, Source, as_batch, batch_of, rows_of


class Numbers(Source):
    """Each row says its epoch and its index."""

    def __init__(self, count):
        self.count = self.tokens = self.validation_count = count

    def batch(self, epochs, indices):
        return as_batch(np.stack([epochs, indices], 1), np.stack([indices, indices], 1))

    def validation_rows(self, indices):
        return np.stack([indices], 1), np.stack([indices], 1)


@pytest.mark.parametrize(("count", "size"), [(10, 4), (7, 7), (3, 8), (1, 5), (13, 1)])
def test_every_epoch_holds_every_sample_once(count, size):
    rows = [rows_of(Numbers(count), seed=5, step=step, size=size) for step in range(3 * count)]
    epochs, indices = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    assert (epochs == np.arange(len(epochs)) // count).all()
    for epoch in range(3):
        assert sorted(indices[epochs == epoch]) == list(range(count))


def test_epochs_and_seeds_have_their_own_order():
    def order(seed, step):
        return rows_of(Numbers(50), seed=seed, step=step, size=50)[1].tolist()

    one, two, other = (order(*given) for given in [(0, 0), (0, 1), (1, 0)])
    assert one != two and one != other and one != list(range(50))
    assert order(0, 0) == one


def test_changing_what_one_was_given_changes_no_other_batch():
    epochs, indices = rows_of(Numbers(4), seed=0, step=0, size=4)
    before = indices.copy()
    indices[:] = 0
    epochs[:] = 9
    assert (rows_of(Numbers(4), seed=0, step=0, size=4)[1] == before).all()


@pytest.mark.parametrize(("world", "parts"), [(1, 1), (2, 1), (1, 3), (2, 3), (4, 3), (12, 1)])
def test_ranks_and_parts_together_are_the_whole_batch_in_order(world, parts):
    source = Numbers(29)
    for step in (0, 3, 100):
        whole = batch_of(source, seed=2, step=step, size=12)
        pieces = [
            batch_of(
                source, seed=2, step=step, size=12, rank=r, world=world, part=p, parts=parts
            ).tokens
            for r in range(world)
            for p in range(parts)
        ]
        assert torch.equal(torch.cat(pieces), whole.tokens)
        assert {len(piece) for piece in pieces} == {12 // (world * parts)}


def test_validation_comes_in_order_with_a_short_last_batch():
    batches = list(Numbers(10).validation(4))
    assert [len(batch.tokens) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch.tokens for batch in batches]).flatten().tolist() == list(range(10))
    assert list(Numbers(0).validation(4)) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 10, "world": 4}, "a batch of 10 cannot be shared by 4 ranks in 1 parts; .* as 8"),
        ({"size": 10, "parts": 3}, "multiple of 3, such as 9"),
        ({"size": 2, "world": 4}, "such as 4"),
        ({"size": 0}, "a batch of 0"),
        ({"size": 4, "world": 0}, "by 0 ranks"),
        ({"size": 4, "world": 2, "rank": 2}, "rank 2 of 2"),
        ({"size": 4, "part": -1}, "part -1 of 1"),
        ({"size": 4, "step": -1}, "step is -1"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        batch_of(Numbers(10), **{"seed": 0, "step": 0, **settings})


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        rows_of(Numbers(0), seed=0, step=0, size=4)
    with pytest.raises(ValueError, match="size is 0"):
        list(Numbers(3).validation(0))


def test_tokens_and_targets_have_one_shape():
    assert Batch(torch.zeros(2, 3).long(), torch.zeros(2, 3).long())


def test_a_part_of_validation_is_evenly_spread_and_always_the_same():
    source = Numbers(10)
    found = [int(row) for batch in source.validation(2, 4) for row in batch.tokens.flatten()]
    assert found == [0, 2, 5, 7]
    every = [int(row) for batch in source.validation(3, 99) for row in batch.tokens.flatten()]
    assert every == list(range(10))


def test_a_change_of_a_batch_is_of_all_its_tensors():
    rows = np.arange(6).reshape(2, 3)
    plain, apart = as_batch(rows, rows), as_batch(rows, rows, rows)
    assert plain.options == {} and plain.changed(lambda one: one[:1]).segments is None
    cut = apart.changed(lambda one: one[:, :2])
    assert [tuple(one.shape) for one in (cut.tokens, cut.targets, cut.options["segments"])] == [
        *((2, 2), (2, 2), (2, 2))
    ]
