"""The weights of `start=RUN` for processes with shards: each reads its rows, and keeps no more.

The first process looks for the checkpoint and holds every byte of it against its hash; then each
reads the blocks that its rows lie in, and holds these against their hashes; a plain checkpoint,
which has one hash a file, it reads whole, a block at a time. Of a folder of transformers a process
holds what one rule needs: a matrix, a fused one with its parts, or the table.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnlab.interop import folder as folders
from attnlab.interop import reading
from attnlab.training import checkpoint, opened, sharded
from attnlab.training.average import SLOT, split, weights_to_use
from attnlab.training.checkpoint import Checkpoint
from attnlab.training.opened import Opened
from attnlab.training.shard_files import ShardFiles
from attnlab.training.shards import Cut
from attnlab.training.weights import refuse_other_weights

if TYPE_CHECKING:
    from attnlab.training.parallel import World


@dataclass(frozen=True)
class OpenedRows(Opened):
    """Weights of which only names, dtypes and shapes are known: they are on "meta"."""

    tensors: ShardFiles | None  # None: a folder of transformers

    @torch.no_grad()
    def put(self, world: "World", model: nn.Module, rows: Mapping[str, Tensor], cut: Cut) -> None:
        """Into a model before FSDP cuts it: of the weights in `rows`, the rows of this process."""
        places = refuse_other_weights(model, weights_to_use(self.kept)) | dict(rows)

        def wanted(name: str, count: int) -> tuple[int, int]:
            return cut.rows(count) if name in rows else (0, count)

        def read() -> str:
            if self.tensors is None:
                for name, one in reading.weights(self.folder):
                    places[name].copy_(one[slice(*cut.rows(len(one)))] if name in rows else one)
                return ""
            averaged = split(self.kept.optimiser)[1]
            for kind, ending in (("model", ""), ("optimiser", f"/{SLOT}")):
                specs = self.tensors.index[kind]
                names = [name for name in places if (name in averaged) == bool(ending)]
                found = self.tensors.read(
                    kind, {name + ending: wanted(name, specs[name + ending].rows) for name in names}
                )
                for name in names:
                    places[name].copy_(found[name + ending])
            return ""

        sharded.together(world, read)


def open_rows(word: str, root: Path, world: "World") -> OpenedRows:
    """As opened.open_weights, without the weights; what one process cannot read, all refuse."""
    chosen = json.loads(sharded.of_first(world, lambda: _choose(word, root)))
    folder, found = Path(chosen["folder"]), list[OpenedRows]()

    def describe() -> str:
        kept, tensors = (
            (opened.described(folder), None) if chosen["imported"] else _described(folder)
        )
        found.append(OpenedRows(folder, kept, chosen["skipped"], tensors))
        return ""

    sharded.together(world, describe)
    return found[0]


def _choose(word: str, root: Path) -> str:
    imported = bool(word) and folders.is_one(Path(word))
    folder, skipped = (Path(word), []) if imported else opened.find(word, root)
    return json.dumps({"folder": str(folder), "skipped": skipped, "imported": imported})


def _described(folder: Path) -> tuple[Checkpoint, ShardFiles]:
    tensors = checkpoint.open_tensors(folder)
    shaped = {
        kind: {
            name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
            for name, spec in tensors.index[kind].items()
        }
        for kind in ("model", "optimiser")
    }
    plain = [checkpoint.read_plain(folder, name) for name in checkpoint.PLAIN]
    return Checkpoint(shaped["model"], shaped["optimiser"], *plain), tensors
