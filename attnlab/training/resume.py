"""What a training takes from a checkpoint, in the order in which it has a place for it.

A process that has all weights reads all of the checkpoint at once. One that has shards reads its
rows when FSDP has cut the model, whatever number of processes has written them.
"""

from pathlib import Path

from torch import nn

from attnlab.training import checkpoint, sharded
from attnlab.training.average import SLOT, Average, split
from attnlab.training.checkpoint import Checkpoint
from attnlab.training.optim import Optimiser
from attnlab.training.parallel import World, cut_for
from attnlab.training.recipe import Recipe
from attnlab.training.state import State
from attnlab.training.weights import load_weights, refuse_other_model


class Resumed:
    def __init__(self, folder: Path, recipe: Recipe, world: World) -> None:
        self.folder, self.recipe = folder, recipe
        whole = cut_for(recipe, world) is None
        self._kept: Checkpoint | None = checkpoint.load(folder) if whole else None
        read = checkpoint.read_plain
        state = read(folder, "state.json") if self._kept is None else self._kept.state
        if state.get("step") != checkpoint.step_of(folder):
            found = str(state.get("step"))[:40]
            raise ValueError(f"cannot resume from {folder}: it holds a state of step {found}")
        self.state = State.from_json(state)
        self._config = read(folder, "config.json") if self._kept is None else self._kept.config

    def put_weights(self, model: nn.Module) -> None:
        """Into a model that is not cut."""
        refuse_other_model(self.recipe, self._config)
        if self._kept is not None:
            load_weights(model, self._kept.model)

    def put_rows(self, model: nn.Module, optimiser: Optimiser) -> None:
        """Into a model that is cut: of every tensor the rows that this process has."""
        if self._kept is None:
            weights = dict(model.named_parameters())
            averages = {f"{name}/{SLOT}": one.detach() for name, one in weights.items()}
            self._kept = sharded.load(
                self.folder,
                weights | dict(model.named_buffers()),
                optimiser.empty_state() | averages,
            )
            load_weights(model, self._kept.model)

    def put_rest(self, optimiser: Optimiser, average: Average | None) -> None:
        assert self._kept is not None
        state, averages = split(self._kept.optimiser)
        optimiser.load(state)
        if average is not None and averages:
            average.load(averages)
