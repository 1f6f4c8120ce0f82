"""What a training or an experiment would cost, before anything is written.

A training is prepared as ever: text, tokens, model. A few of its steps are taken on a copy of the
weights that nobody keeps, for their time and memory; the rest is arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from attnlab.experiments.costs import peak_bytes
from attnlab.experiments.experiment import Experiment, identity_of
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Workspace, place
from attnlab.kernels import hardware
from attnlab.models.model import parameters
from attnlab.training.parallel import World, torch_device
from attnlab.training.recipe import Recipe
from attnlab.training.report import Opening
from attnlab.training.setup import prepare, refuse_large_step
from attnlab.training.step import Stepper, all_parts


@dataclass(frozen=True)
class Forecast:
    """A training as it would run here, by itself."""

    recipe: Recipe  # with the vocabulary of its text
    text: str
    samples: int  # in the training split
    held_out: int  # in the validation split
    opening: Opening
    memory: int | None  # peak bytes of a step; None where it cannot be read
    checkpoint: int  # bytes of weights and optimiser state
    device: str


def forecast(recipe: Recipe, root: Path, note: Callable[[str], None]) -> Forecast:
    """Refuses what training would refuse, in the same words."""
    setup = prepare(recipe, root, note=note)
    recipe, model = setup.recipe, setup.model
    world = World(rank=0, size=1, device=torch_device(recipe.device))
    refuse_large_step(recipe, world)
    hardware.require(getattr(torch, recipe.dtype), world.device)
    model.to(world.device)
    optimiser = recipe.optimiser.build(model)
    stepper = Stepper(model, optimiser, recipe, world)
    parts = all_parts(setup.source, recipe, world, 0)
    with torch.random.fork_rng(devices=[world.device] if world.device.type == "cuda" else []):
        ready, step_seconds = stepper.rehearse(parts)
        captured = recipe.compile and stepper.asynchronous
        memory = None if captured else peak_bytes(stepper, parts, model, optimiser)
    return Forecast(
        recipe=recipe,
        text=setup.corpus.name,
        samples=setup.source.count,
        held_out=setup.source.validation_count,
        opening=Opening.of(
            model,
            setup.source,
            recipe,
            ready=ready,
            step_seconds=step_seconds,
            matrix_rate=hardware.matrix_rate(world.device, getattr(torch, recipe.dtype)),
        ),
        memory=memory,
        checkpoint=4 * parameters(model)
        + sum(one.numel() * one.element_size() for one in optimiser.state().values()),
        device=str(world.device),
    )


@dataclass(frozen=True)
class Part:
    """A part of an experiment."""

    name: str
    seconds: float  # an estimate; 0 if it is done
    done: bool


def parts_of(name: str, experiment: Experiment, *, root: Path, again: bool) -> list[Part]:
    """What its command would run, and what is cached already."""
    identity, _ = identity_of(experiment)
    folder = place(root, name, identity, experiment.kind, again)
    workspace = Workspace(folder, Progress(), experiment.kind)
    found = []
    for job in experiment.jobs(workspace):
        done = workspace.has(job.name)
        found.append(Part(job.name, 0.0 if done else job.seconds(), done))
    return found
