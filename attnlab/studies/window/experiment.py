"""`attnlab study window`: what a sliding window loses against full attention, and where.

Axes: n held-out samples, s segments of positions.

The models differ in nothing but who sees whom. A window of w keys in each of d layers reaches
d·(w−1)+1 characters back, the newest included; one layer of full attention reaches everything.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from attnlab import presets
from attnlab.studies import language
from attnlab.studies.desk import Desk, Job
from attnlab.studies.language import LanguageStudy
from attnlab.studies.study import Findings
from attnlab.studies.window import findings as conclusions
from attnlab.studies.window.findings import CACHES, COSTS, FULL, SIZES, Pattern, edges
from attnlab.training.parallel import place_of
from attnlab.training.recipe import Recipe
from attnlab.training.weights import build_model


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


@dataclass(frozen=True, kw_only=True)
class WindowStudy(LanguageStudy):
    windows: tuple[int, ...] = ()  # keys a query sees, its own included; those of the scale if none

    def __post_init__(self) -> None:
        super().__post_init__()
        for keys in self.windows:
            if not 1 <= keys < self.size.context:
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
        """What each layer sees, by the name of the model; the narrowest window is also mixed."""
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
        size, on_cuda = self.size, place_of("auto").type == "cuda"
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

    def jobs(self, desk: Desk) -> list[Job]:
        vocabulary, held = self.measures()
        recipes = self.recipes(vocabulary)
        jobs = [Job(SIZES, lambda: sizes(recipes)), Job(CACHES, lambda: caches(recipes))]
        for seed in self.repeats:
            for name, recipe in recipes.items():
                seeded = dataclasses.replace(recipe, seed=seed)
                jobs.append(_training(desk, name, seeded, held, self.edges()))
        jobs.append(Job(COSTS, lambda: costs(recipes, self.size.turns), lambda: 10.0))
        return jobs

    def findings(self, results: dict[str, Any]) -> Findings:
        return conclusions.findings(self, results)


def in_segments(
    losses: Float[np.ndarray, "n t"], ends: Sequence[int]
) -> Float[np.ndarray, "whole s"]:
    """The mean loss of every whole sample in each segment of positions."""
    whole = losses[~np.isnan(losses).any(axis=1)]
    parts = np.split(whole, ends[:-1], axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1)


def sizes(recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    model = recipes[FULL].model
    return {"parameters": language.count(model), "vocabulary": model.vocabulary}


def _training(desk: Desk, name: str, recipe: Recipe, held: int, ends: list[int]) -> Job:
    job = f"{name}, seed {recipe.seed}"

    def work() -> dict[str, Any]:
        found = language.train(desk, job, recipe)
        saved = language.opened(desk, job)
        _, batches = language.held_out(saved)
        losses = language.position_losses(saved.model, batches, recipe.dtype)
        rows = in_segments(losses, ends)
        return {**found, "rows": np.round(rows, 5).tolist()}

    # the held-out text is read twice: by the training, and for the loss by position
    return Job(job, work, lambda: language.expected_seconds(recipe, 2 * held))


def caches(recipes: Mapping[str, Recipe]) -> dict[str, list[int]]:
    """Bytes of keys and values in float32 after one context and after two; the same anywhere."""
    return {name: cached_bytes(recipe) for name, recipe in recipes.items()}


def cached_bytes(recipe: Recipe) -> list[int]:
    model: Any = build_model(recipe).eval()
    cache, found = model.new_cache(), []
    with torch.no_grad():
        for _ in range(2):
            model(torch.zeros(1, recipe.length, dtype=torch.long), cache=cache)
            found.append(cache.bytes)
    return found


def costs(recipes: Mapping[str, Recipe], turns: int) -> dict[str, dict[str, Any]]:
    """Times of steps first, since reading the memory of a CPU slows them."""
    found = language.step_costs(recipes, turns)
    if not all("memory" in one for one in found.values()):
        for name, peak in language.step_memory(recipes).items():
            found[name]["memory"] = peak
    return found
