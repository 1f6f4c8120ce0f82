"""`attnlab check corruption`: a damaged checkpoint is found before any weight of it is used.

One bit flipped anywhere, a file cut short, a file gone: each trial damages a good checkpoint, then
it must be refused, and the good one before it taken. The control is what the tensor format notices
by itself: only damage that it misses shows that the hashes do something. Then caches are damaged
(`checks/cached.py`): what can be made again must be.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from attnlab.checks import Tick
from attnlab.checks.cached import Count, damage_caches
from attnlab.checks.damage import damage
from attnlab.config import setting, settings
from attnlab.stop import stoppable
from attnlab.training import checkpoint, sharded
from attnlab.training.checkpoint import BrokenCheckpoint, Checkpoint
from attnlab.training.shard_files import Spec
from attnlab.training.shards import Cut


@settings
class CorruptionCheck:
    trials: int = setting(1000, low=1, about="checkpoints to damage")
    caches: int = setting(300, low=30, about="cached files to damage: tokens, results, kernel")
    processes: int = setting(
        1, low=1, high=64, about="processes that wrote a checkpoint; of 2 or more it is in shards"
    )
    seed: int = setting(0, about="random seed of the damages")

    def run(self, tick: Tick) -> dict[str, Any]:
        found = fallen_back = alone = tensor_flips = done = 0
        cached: dict[str, Count] = {}

        def counts() -> dict[str, Any]:
            return {
                "trials": done,
                "found": found,
                "older_one_used_instead": fallen_back,
                "control_found_by_safetensors_alone": f"{alone} of {tensor_flips}",
                "caches": {name: count.plain() for name, count in cached.items()},
            }

        with (
            stoppable(lambda: f"{done} of {self.trials} trials", counts),
            tempfile.TemporaryDirectory(prefix="attnlab-corruption-") as place,
        ):
            parent = Path(place)
            older = self._save(parent, 1, example(self.seed))
            newer = self._save(parent, 2, example(self.seed + 1))
            spare = shutil.copytree(newer, parent / "spare")
            for trial in range(self.trials):
                path = damage(newer, self.seed, trial)
                try:
                    checkpoint.load(newer)
                except BrokenCheckpoint:
                    found += 1
                fallen_back += checkpoint.newest_good(parent)[0] == older
                done = trial + 1
                if path.suffix == ".safetensors" and path.exists():
                    tensor_flips += 1
                    alone += refused_by_the_format(path)
                shutil.rmtree(newer)
                shutil.copytree(spare, newer)
                tick(f"{done} of {self.trials} checkpoints damaged, {found} found")
            intact = checkpoint.is_good(newer)
            damage_caches(parent, self.caches, self.seed, cached, tick)
        whole = all(count.passed for count in cached.values())
        proves = any(count.control_used_it for count in cached.values())
        report = {**counts(), "intact_one_accepted": intact}
        missed = alone < tensor_flips
        if not missed:
            report["proves_nothing"] = (
                "safetensors alone has missed no damage, so hashes were not needed; use more trials"
            )
        right = found == fallen_back == self.trials and intact and whole
        return {**report, "passed": right and missed and proves}

    def _save(self, parent: Path, step: int, kept: Checkpoint) -> Path:
        if self.processes == 1:
            return checkpoint.save(parent, step, kept)
        return save_in_shards(parent, step, kept, self.processes)


def save_in_shards(parent: Path, step: int, kept: Checkpoint, shards: int) -> Path:
    """As so many processes write it, one after the other."""
    tensors = {"model": kept.model, "optimiser": kept.optimiser}
    specs = {
        kind: {name: Spec.of(one, shards, cut=one.ndim > 0) for name, one in some.items()}
        for kind, some in tensors.items()
    }
    folder = parent / checkpoint.name_of(step)
    temporary, entries = checkpoint.begin(folder), dict[str, object]()
    for shard in range(shards):
        mine = {
            kind: {
                name: one[slice(*specs[kind][name].bounds[shard : shard + 2])] if one.ndim else one
                for name, one in some.items()
            }
            for kind, some in tensors.items()
        }
        entries |= sharded.write_shard(temporary, Cut(shards, shard), mine, specs)
    sharded.finish(temporary, folder, step, kept, entries, specs)
    return folder


def example(seed: int) -> Checkpoint:
    """A checkpoint with tensors of several shapes and dtypes, of no model in particular."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (65, 16), "blocks.0.up.weight": (64, 16), "norm.weight": (16,)}
    model = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    optimiser = {f"{name}/momentum": tensor.square() for name, tensor in model.items()}
    return Checkpoint(
        model=model,
        optimiser={**optimiser, "norm.weight/step": torch.tensor(3.0)},
        config={"model": {"name": "transformer", "width": 16}},
        tokenizer={"kind": "characters", "alphabet": "abc"},
        state={"step": seed, "best_loss": 1.25},
    )


def refused_by_the_format(path: Path) -> bool:
    try:
        safetensors.torch.load(path.read_bytes())
    except safetensors.SafetensorError:
        return True
    return False
