"""`attnlab study window`: what a sliding window loses against full attention, and where.

Axes: n held-out samples, s segments of positions.

The models differ only in which keys a query attends to. A window of w keys in each of d layers
reaches d·(w−1)+1 characters back, including the newest; one layer of full attention reaches all.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlab import presets
from attnlab.config import setting, settings
from attnlab.experiments import costs as measured
from attnlab.experiments import held
from attnlab.experiments.costs import StepCost
from attnlab.experiments.experiment import Findings
from attnlab.experiments.match import count
from attnlab.experiments.workspace import Job, Workspace
from attnlab.studies import language
from attnlab.studies.language import LanguageStudy
from attnlab.training.parallel import torch_device
from attnlab.training.recipe import Recipe

FULL = "full attention"
# jobs by name
SIZES, CACHES, COSTS = "sizes", "caches", "costs of a step"
Pattern = tuple[int | None, ...]  # keys of each layer in turn, over and over; None: all


def reach(pattern: Pattern, depth: int) -> int | None:
    """How many characters a prediction depends on, including the newest; None: on all."""
    windows = [pattern[layer % len(pattern)] for layer in range(depth)]
    known = [keys for keys in windows if keys is not None]
    return sum(keys - 1 for keys in known) + 1 if len(known) == depth else None


def edges(context: int, depth: int, windows: Sequence[int]) -> list[int]:
    """Where the segments of positions end: at powers of two, windows, their reach, and half-way
    (on a log axis) from there to the end."""
    found = {1 << power for power in range(context.bit_length())}
    for keys in windows:
        far = reach((keys,), depth)
        assert far is not None
        found |= {keys, far, half_way(far, context)}
    return sorted({edge for edge in found if 1 <= edge < context} | {context})


def half_way(start: int, end: int) -> int:
    return round(math.sqrt(start * end))


@dataclass(frozen=True, kw_only=True)
class Size:
    context: int
    width: int
    depth: int  # a multiple of 4: three local layers and a full one
    heads: int
    batch: int
    steps: int
    turns: int
    windows: tuple[int, ...]
    dropout: float = 0.0


SCALES = {
    "tiny": Size(context=16, width=16, depth=4, heads=2, batch=2, steps=4, turns=2, windows=(2, 4)),
    "small": Size(
        context=256, width=64, depth=4, heads=4, batch=4, steps=120, turns=4, windows=(8, 32, 128)
    ),
    "full": Size(
        context=2048,
        width=256,
        depth=8,
        heads=4,
        batch=8,
        steps=800,
        turns=8,
        windows=(64, 256, 1024),
        dropout=0.2,  # a text of a million characters is read 13 times
    ),
}


@settings
class WindowStudy(LanguageStudy):
    windows: tuple[int, ...] = setting(
        (),
        low=1,
        because="it counts the query's own key",
        about="keys a query attends to, including its own; empty: those of the scale",
    )

    def check(self) -> None:
        for keys in self.windows:
            if keys >= self.size.context:
                raise ValueError(
                    f"windows has {keys}; scale={self.chosen_scale} has samples of "
                    f"{self.size.context} characters, so use 1 to {self.size.context - 1}"
                )

    @property
    def size(self) -> Size:
        return SCALES[self.chosen_scale]

    def text(self) -> str:
        return self.fingerprint(self.size.context)

    def widths(self) -> list[int]:
        """Of the windows, each once."""
        return sorted(set(self.windows or self.size.windows))

    def patterns(self) -> dict[str, Pattern]:
        """The windows of the layers, by the name of the model; the narrowest one is also mixed."""
        narrow = self.widths()[0]
        return {
            FULL: (None,),
            **{f"window {keys}": (keys,) for keys in self.widths()},
            f"3 of {narrow} + 1 full": (narrow, narrow, narrow, None),
            f"1 full + 3 of {narrow}": (None, narrow, narrow, narrow),
        }

    def edges(self) -> list[int]:
        return edges(self.size.context, self.size.depth, self.widths())

    def recipes(self, vocabulary: int) -> dict[str, Recipe]:
        """One for each pattern, and everything else the same."""
        size, on_cuda = self.size, torch_device("auto").type == "cuda"
        models = {
            name: presets.transformer(
                vocabulary=vocabulary,
                context=size.context,
                width=size.width,
                depth=size.depth,
                heads=size.heads,
                dropout=size.dropout,
                window=pattern,
                **presets.MODERN,
            )
            for name, pattern in self.patterns().items()
        }
        return {
            name: Recipe(
                corpus=self.corpus,
                model=model,
                **presets.FAST,
                batch=size.batch,
                steps=size.steps,
                dtype="bfloat16" if on_cuda else "float32",
                compile=on_cuda,
                evaluate_every=None,
                save_every=None,
                keep=1,
            )
            for name, model in models.items()
        }

    def jobs(self, workspace: Workspace) -> list[Job]:
        vocabulary, characters = self.measures()
        recipes = self.recipes(vocabulary)
        jobs = [Job(SIZES, lambda: sizes(recipes)), Job(CACHES, lambda: caches(recipes))]
        for seed in self.repeats:
            for name, recipe in recipes.items():
                seeded = dataclasses.replace(recipe, seed=seed)
                jobs.append(_training(workspace, name, seeded, characters, self.edges()))
        jobs.append(Job(COSTS, lambda: costs(recipes, self.size.turns), lambda: 10.0))
        return jobs

    def findings(self, results: dict[str, Any]) -> Findings:
        from attnlab.studies.window.report import findings  # which knows this class

        return findings(self, results)


def in_segments(
    losses: Float[np.ndarray, "n t"], ends: Sequence[int]
) -> Float[np.ndarray, "whole s"]:
    """The mean loss of every whole sample in each segment of positions."""
    whole = losses[~np.isnan(losses).any(axis=1)]
    parts = np.split(whole, ends[:-1], axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1)


def sizes(recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    model = recipes[FULL].model
    return {"parameters": count(model), "vocabulary": model.vocabulary}


def _training(
    workspace: Workspace, name: str, recipe: Recipe, characters: int, ends: list[int]
) -> Job:
    job = f"{name}, seed {recipe.seed}"

    def work() -> dict[str, Any]:
        found = language.train(workspace, job, recipe)
        saved = language.open_trained(workspace, job)
        _, batches = held.held_out(saved)
        losses = held.position_losses(saved.model, batches, recipe.dtype)
        rows = in_segments(losses, ends)
        return {**found, "rows": np.round(rows, 5).tolist()}

    # the held-out text is read twice: by the training, and for the loss by position
    expected = partial(measured.expected_seconds, recipe, 2 * characters)
    return Job(job, work, expected, trainings=lambda: [(job, recipe)])


def caches(recipes: Mapping[str, Recipe]) -> dict[str, list[int]]:
    """Bytes of the KV cache in float32 after one context and after two; the same anywhere."""
    return {name: list(measured.cache_sizes(recipe) or ()) for name, recipe in recipes.items()}


def costs(recipes: Mapping[str, Recipe], turns: int) -> dict[str, StepCost]:
    """Times of steps first, since reading the memory of a CPU slows them."""
    found = measured.step_costs(recipes, turns)
    for name, peak in measured.step_memory(recipes, found).items():
        found[name]["memory"] = peak
    return found
