"""Sizes of tiles by chip, head width and window, chosen beforehand: nothing is tried at run time.

`attnlab bench window device=cuda tune=yes` tries others and prints the rows to put here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

Kernel = Literal["forward", "queries", "keys"]  # the last two of the backward pass
KERNELS: tuple[Kernel, ...] = ("forward", "queries", "keys")


@dataclass(frozen=True)
class Tile:
    """Of one program: queries, keys, warps, and how many loads ahead.

    `parts` is 3 for loops of their own at both edges of the band, so that its inside needs no
    mask, and 1 for one loop, which takes fewer registers. `pack` lays heads of a group side by
    side, up to so many. `described` loads by descriptors (TMA) where the chip has them.
    """

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2
    parts: int = 3
    pack: int = 1
    described: bool = True


Size = tuple[int, int]  # the widest head and the longest window that a row is for
FOREVER = 1 << 30

# The first row that is wide and long enough counts. None of these spills registers when compiled
# for Hopper (a test holds that); which tiles are the fastest has not been measured.
USUAL: dict[Kernel, dict[Size, Tile]] = {
    "forward": {
        (64, 512): Tile(64, 64, 4, 3, pack=4),
        (64, FOREVER): Tile(128, 64, 8, 3, pack=4),
        (128, 512): Tile(64, 64, 4, 3, pack=4),
        (128, FOREVER): Tile(128, 64, 8, 3, pack=4),
        (256, FOREVER): Tile(64, 32, 4, 2, parts=1),
    },
    "queries": {
        (64, FOREVER): Tile(64, 64, 4, 3),
        (128, FOREVER): Tile(64, 64, 4, 2),
        (256, FOREVER): Tile(64, 32, 8, 2, parts=1),
    },
    "keys": {
        (64, FOREVER): Tile(64, 64, 4, 2, parts=1),
        (128, FOREVER): Tile(32, 64, 4, 2, parts=1),
        (256, FOREVER): Tile(16, 64, 8, 2, parts=1),
    },
}
BY_CHIP: dict[str, dict[Kernel, dict[Size, Tile]]] = {}  # the rows of a chip by its name
# for float32, which is multiplied number by number and takes twice the room
WIDE_NUMBERS: dict[int, Tile] = {
    64: Tile(32, 32, 8, 1, parts=1, described=False),
    128: Tile(32, 16, 8, 1, parts=1, described=False),
    256: Tile(16, 16, 8, 1, parts=1, described=False),
}
_forced: dict[Kernel, Tile] = {}


def chosen(
    kernel: Kernel, *, chip: str, width: int, window: int, dtype: torch.dtype, group: int
) -> Tile:
    """`width` is the larger one of keys and values, `window` all keys that a query attends to."""
    tile = _forced.get(kernel)
    if tile is None:
        rows = BY_CHIP.get(chip, {}).get(kernel) or USUAL[kernel]
        tile = next(
            tile for (widest, most), tile in rows.items() if width <= widest and window <= most
        )
        if dtype == torch.float32:
            tile = next(tile for widest, tile in WIDE_NUMBERS.items() if width <= widest)
    return replace(tile, pack=_packed(tile, group))


def _packed(tile: Tile, group: int) -> int:
    """Heads side by side: a power of two that divides the group and leaves whole queries."""
    pack = 1
    while 2 * pack <= tile.pack and group % (2 * pack) == 0 and tile.rows % (2 * pack) == 0:
        pack *= 2
    return pack


@contextmanager
def forced(**tiles: Tile) -> Iterator[None]:
    """With these tiles, whatever the chip: for tests and for tuning."""
    before = dict(_forced)
    _forced.update({kernel: tiles[kernel] for kernel in KERNELS if kernel in tiles})
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)
