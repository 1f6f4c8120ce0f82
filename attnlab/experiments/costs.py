"""What models cost: time and memory of a training step, speed of decoding, bytes in the KV cache.

Times are measured in turns, in one process in which nothing else runs. A comparison measures on
one thread, as its trainings have; a study on all of them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn

from attnlab.bench.measure import take_turns, usual_peak
from attnlab.data.batches import Batch, batch_of
from attnlab.generate import generate
from attnlab.kernels import dispatch
from attnlab.training.optim import Optimiser
from attnlab.training.parallel import World, torch_device
from attnlab.training.recipe import Recipe
from attnlab.training.setup import prepare
from attnlab.training.step import Stepper
from attnlab.training.weights import build_model

STEPS_A_TURN = 4  # so that waiting for the device is a small part of what is timed
PEAKS = 3  # readings of the memory: a CPU's is right to a few percent only
PATIENCE = 30.0  # seconds of measuring for each model
LEAST = 16  # tokens: a cache has room for so many from the beginning
COMPILING, CAPTURED = 10.0, 0.004  # seconds to compile a step, and of a captured one, on an H200


class StepCost(TypedDict):
    """Of a training step: its times, and the paths that attention takes; on CUDA its memory."""

    paths: list[str]
    memory: NotRequired[int | None]
    step_ms: float
    fastest_ms: float
    slowest_ms: float
    tokens_per_second: float


class CacheBytes(TypedDict):
    """Of the KV cache: what each further token adds, and what is there besides.

    The rings of windows and the state of a recurrent model are constant.
    """

    per_token: int
    constant: int
    at_context: int


class Steps:
    """A model at the beginning of its training, ready to take the same steps again and again."""

    def __init__(self, recipe: Recipe) -> None:
        setup = prepare(recipe, Path())
        self.recipe, self.model = setup.recipe, setup.model
        self.device = torch_device(recipe.device)
        self.model.to(self.device)
        self.optimiser = recipe.optimiser.build(self.model)
        world = World(rank=0, size=1, device=self.device)
        self.stepper = Stepper(self.model, self.optimiser, self.recipe, world)
        self.batches = [
            batch_of(setup.source, seed=recipe.seed, step=step, size=recipe.batch)
            for step in range(STEPS_A_TURN)
        ]

    def take(self) -> None:
        for batch in self.batches:
            self.stepper.take(0, [batch])

    def paths(self) -> list[str]:
        """The paths of attention; on CUDA one row is enough, its kernels are compiled anyway."""
        tokens = self.batches[0].tokens[: None if self.device.type == "cpu" else 1]
        half = self.recipe.dtype == "bfloat16"
        with dispatch.record_choices() as seen:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                self.model(tokens.to(self.device))
        return sorted({choice.path for choice in seen})

    def memory(self) -> int | None:
        """Peak bytes of a step: weights, gradients, the optimiser's state, and all else in it.

        Not of a captured step, whose memory is reserved once and for all.
        """
        self.take()  # from here on there are gradients and a state
        return peak_bytes(self.stepper, self.batches[:1], self.model, self.optimiser)


def peak_bytes(
    stepper: Stepper, parts: list[Batch], model: nn.Module, optimiser: Optimiser
) -> int | None:
    """Of a step, after the first one; None where it cannot be read."""
    weights = list(model.parameters())
    kept = [*weights, *weights, *optimiser.state().values()]  # a gradient for each weight
    peak = usual_peak(lambda: stepper.take(0, parts), stepper.world.device, PEAKS)
    if peak is None:
        return None
    return int(peak["median"]) + sum(x.numel() * x.element_size() for x in kept)


def step_costs(recipes: Mapping[str, Recipe], turns: int) -> dict[str, StepCost]:
    """Of a training step of each, in turns; on CUDA with its memory."""
    devices = [torch_device("auto")] if torch_device("auto").type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # dropout sets the seed in every step
        return _step_costs(recipes, turns)


def _step_costs(recipes: Mapping[str, Recipe], turns: int) -> dict[str, StepCost]:
    ready: dict[str, Steps] = {}
    paths: dict[str, list[str]] = {}
    memory: dict[str, int | None] = {}
    for name, recipe in recipes.items():
        ready[name] = steps = Steps(recipe)
        paths[name] = steps.paths()
        if steps.device.type == "cuda":
            memory[name] = steps.memory()
        # before the next model is made, which lets the compiler forget what it knew
        steps.stepper.rehearse(steps.batches[:1])
    takes = {name: steps.take for name, steps in ready.items()}
    costs: dict[str, StepCost] = {}
    for name, timing in take_turns(takes, torch_device("auto"), turns, PATIENCE).items():
        milliseconds = timing.median / STEPS_A_TURN
        tokens = recipes[name].batch * recipes[name].length
        costs[name] = {
            "paths": paths[name],
            "step_ms": milliseconds,
            "fastest_ms": timing.fastest / STEPS_A_TURN,
            "slowest_ms": timing.slowest / STEPS_A_TURN,
            "tokens_per_second": 1e3 * tokens / milliseconds,
        }
        if name in memory:
            costs[name]["memory"] = memory[name]
    return costs


def step_memory(
    recipes: Mapping[str, Recipe], costs: Mapping[str, StepCost]
) -> dict[str, int | None]:
    """Peak bytes of a step, from its costs where they have it.

    On a CPU it is read from the process, which slows what runs afterwards: measure it last.
    """
    if all("memory" in cost for cost in costs.values()):
        return {name: cost["memory"] for name, cost in costs.items()}
    return {name: Steps(recipe).memory() for name, recipe in recipes.items()}


def decoding_speeds(recipes: Mapping[str, Recipe], turns: int) -> dict[str, float]:
    """Tokens a second of one text that grows to the context, each model as it decodes best."""
    device = torch_device("auto")

    def writer(recipe: Recipe) -> Callable[[], object]:
        model = build_model(recipe).to(device)
        return lambda: generate(model, [[0]], tokens=recipe.length)

    writers = {name: writer(recipe) for name, recipe in recipes.items()}
    times = take_turns(writers, device, turns, PATIENCE)
    return {name: 1e3 * recipes[name].length / timing.median for name, timing in times.items()}


def cache_sizes(recipe: Recipe) -> tuple[int, int] | None:
    """Bytes in the KV cache after a context and after two; None for models without a cache."""
    model: Any = build_model(recipe).eval()
    if not hasattr(model, "new_cache"):
        return None
    tokens, cache = torch.zeros(1, _cached(recipe), dtype=torch.long), model.new_cache()
    if not all(layer.keeps_keys for layer in getattr(cache, "layers", ())):
        return None  # it reads the whole text again for every token
    with torch.no_grad():
        # all at position 0: learned ones go no further than a context
        model(tokens, positions=torch.zeros_like(tokens), cache=cache)
        once: int = cache.bytes
        model(tokens, positions=torch.zeros_like(tokens), cache=cache)
    return once, cache.bytes


def _cached(recipe: Recipe) -> int:
    return max(recipe.length, LEAST)


def cache_bytes(recipe: Recipe) -> CacheBytes | None:
    """From its sizes after a context and after two; None for models without a cache."""
    sizes = cache_sizes(recipe)
    if sizes is None:
        return None
    length = _cached(recipe)
    per_token = (sizes[1] - sizes[0]) // length
    constant = sizes[0] - length * per_token
    return {
        "per_token": per_token,
        "constant": constant,
        "at_context": constant + per_token * recipe.length,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """On a CPU, where the trainings of a pool have one each."""
    before = torch.get_num_threads()
    if torch_device("auto").type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def expected_seconds(recipe: Recipe, held: int) -> float:
    """Of a training and its evaluation on `held` tokens, which is a third of as many steps."""
    more = -(-held // (3 * recipe.batch * recipe.length))
    return training_seconds(dataclasses.replace(recipe, steps=recipe.steps + more))


def training_seconds(recipe: Recipe) -> float:
    """About how long a training takes here: on a CPU by taking a few steps of it.

    A GPU's steps would first have to be compiled, so they are guessed: COMPILING and CAPTURED.
    """
    compiling = COMPILING if recipe.compile and torch_device(recipe.device).type == "cuda" else 0
    return compiling + recipe.steps * step_seconds(recipe)


def step_seconds(recipe: Recipe) -> float:
    """About how long a step takes here."""
    if torch_device(recipe.device).type == "cuda":
        return CAPTURED
    return _step_seconds(
        dataclasses.replace(recipe, steps=1, seed=0, start=None, evaluate_every=None)
    )


@cache
def _step_seconds(recipe: Recipe) -> float:
    world = World(rank=0, size=1, device=torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        model = recipe.model.build()
        tokens = torch.randint(recipe.model.vocabulary, (recipe.batch, recipe.length))
        stepper = Stepper(model, recipe.optimiser.build(model), recipe, world)
        return stepper.rehearse([Batch(tokens, tokens)])[1]
