"""What FlexAttention is told to compute, against the mask. What it computes: test_dispatch.py."""

import pytest
import torch

from attnlab.kernels import flex
from attnlab.kernels.dispatch import request_of
from attnlab.kernels.problems import SHAPES, Problem

LARGE = {
    "a long window": Problem(queries=700, keys=905, window=300, batch=1),
    "long documents": Problem(queries=900, documents=3, batch=3),
    "long documents, no blocks at once": Problem(queries=600, documents=2, padding=True),
    "long chunks": Problem(queries=800, chunk=257, causal=False),
    "a long prefix": Problem(queries=520, prefix=True, batch=3),
}


@pytest.mark.parametrize("name", [*SHAPES, *LARGE])
def test_its_blocks_and_their_mask_are_the_mask(name):
    (q, k, v), _, options = {**SHAPES, **LARGE}[name].tensors()
    request = request_of(q, k, v, **options)
    blocks = flex._blocks(request)
    true = request.visible().expand(q.shape[0], 1, -1, -1)[:, 0]
    made = torch.zeros_like(true)
    for row in range(len(true)):
        for tile in range(blocks.kv_num_blocks.shape[2]):
            for block, whole in _listed(blocks, row, tile):
                i = torch.arange(tile * flex.BLOCK, min((tile + 1) * flex.BLOCK, request.queries))
                j = torch.arange(block * flex.BLOCK, min((block + 1) * flex.BLOCK, request.keys))
                seen = torch.ones(len(i), len(j), dtype=torch.bool)
                if not whole:
                    seen &= blocks.mask_mod(torch.tensor(row), None, i[:, None], j)
                made[row, i[:, None], j] = seen
    assert (made == true).all()


def test_blocks_that_all_of_a_tile_attend_to_need_no_mask():
    (q, k, v), _, options = Problem(queries=1024, batch=1).tensors()
    blocks = flex._blocks(request_of(q, k, v, **options))
    assert blocks.full_kv_num_blocks.flatten().tolist() == list(range(8))
    assert blocks.kv_num_blocks.flatten().tolist() == [1] * 8


def _listed(blocks, row, tile):
    """The blocks of a tile of queries, and whether each is whole."""
    pairs = [(blocks.kv_num_blocks, blocks.kv_indices, False)]
    if blocks.full_kv_num_blocks is not None:
        pairs.append((blocks.full_kv_num_blocks, blocks.full_kv_indices, True))
    for counts, indices, whole in pairs:
        at = row if len(counts) > 1 else 0
        for block in indices[at, 0, tile, : counts[at, 0, tile]].tolist():
            yield block, whole
