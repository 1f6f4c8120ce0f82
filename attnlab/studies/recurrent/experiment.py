"""`attnlab study recurrent`: recurrent networks and a transformer, and a network that cheats.

Axes: b batch, t time.

Three language models of equally many parameters are compared after equally many steps, and after
equally many seconds. A fourth, bidirectional over the whole text, is trained as if it were one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from attnlab import counter_rng, presets
from attnlab.config import settings
from attnlab.data.batches import Batch
from attnlab.experiments import costs, held, samples
from attnlab.experiments.experiment import Findings
from attnlab.experiments.match import count, with_nearest_width
from attnlab.experiments.workspace import Job, Workspace
from attnlab.generate import evaluating
from attnlab.models.model import ModelSettings
from attnlab.models.recurrent import (
    BidirectionalReader,
    BidirectionalSettings,
    ElmanSettings,
    PrefixBidirectionalLM,
    PrefixBidirectionalSettings,
)
from attnlab.studies import language
from attnlab.studies.language import LanguageStudy
from attnlab.training.optim import Muon
from attnlab.training.parallel import torch_device
from attnlab.training.recipe import Recipe

HONEST = ["transformer", "elman", "prefix-birnn"]  # language models
ALL = [*HONEST, "birnn"]
# jobs by name
SIZES, TIMES, SAMPLES = "sizes", "time of a step", "samples"
DECODING, MEMORY = "decoding", "memory of a step"
SWAPPED = 256  # held-out samples in which a character is swapped
DECODED = 5  # turns of each model when decoding is timed


@dataclass(frozen=True, kw_only=True)
class Size:
    context: int
    width: int  # of the transformer; the others are made to fit
    depth: int
    heads: int
    batch: int
    steps: int
    turns: int
    sample: int = 200  # characters


SCALES = {
    "tiny": Size(context=8, width=32, depth=1, heads=2, batch=4, steps=6, turns=2, sample=20),
    "small": Size(context=32, width=64, depth=2, heads=4, batch=16, steps=250, turns=6),
    # no more steps, since a step of the recurrent models is hundreds of small kernels
    "full": Size(context=64, width=128, depth=4, heads=4, batch=64, steps=1000, turns=10),
}


@settings
class RecurrentStudy(LanguageStudy):
    @property
    def size(self) -> Size:
        return SCALES[self.chosen_scale]

    def text(self) -> str:
        return self.fingerprint(self.size.context)

    def recipes(self, vocabulary: int) -> dict[str, Recipe]:
        """One for each model: equally many parameters, and everything else the same."""
        size = self.size
        transformer = presets.transformer(
            vocabulary=vocabulary,
            context=size.context,
            width=size.width,
            depth=size.depth,
            heads=size.heads,
            **presets.MODERN,
        )
        wanted = count(transformer)
        recurrent: dict[str, ModelSettings] = {
            "elman": ElmanSettings(vocabulary=vocabulary),
            "prefix-birnn": PrefixBidirectionalSettings(vocabulary=vocabulary),
            "birnn": BidirectionalSettings(vocabulary=vocabulary),
        }
        models: dict[str, Any] = {
            "transformer": transformer,
            **{name: with_nearest_width(model, wanted) for name, model in recurrent.items()},
        }
        return {name: self._recipe(model) for name, model in models.items()}

    def _recipe(self, model: ModelSettings) -> Recipe:
        on_cuda = torch_device("auto").type == "cuda"
        return Recipe(
            corpus=self.corpus,
            model=model,
            # the best of the rates 0.005, 0.01 and 0.02 for each of the three at scale=small
            optimiser=Muon(rate=0.02, momentum=0.9),
            schedule=presets.FAST["schedule"],
            context=self.size.context,
            batch=self.size.batch,
            steps=self.size.steps,
            # the loops of the others would be unrolled, and compiled for minutes
            compile=on_cuda and hasattr(model, "depth"),
            evaluate_every=None,
            save_every=None,
            keep=1,
        )

    def jobs(self, workspace: Workspace) -> list[Job]:
        vocabulary, characters = self.measures()
        recipes = self.recipes(vocabulary)
        honest = {name: recipes[name] for name in HONEST}
        jobs = [
            Job(SIZES, lambda: sizes(recipes)),
            Job(
                TIMES, lambda: costs.step_costs(recipes, self.size.turns), lambda: 5.0, renews=True
            ),
        ]
        for seed in self.repeats:
            seeded = {n: dataclasses.replace(recipe, seed=seed) for n, recipe in recipes.items()}
            jobs += [_training(workspace, n, recipe, characters) for n, recipe in seeded.items()]
            jobs += [_timed(workspace, name, seeded, characters) for name in HONEST[1:]]
            jobs.append(Job(f"leak, seed {seed}", partial(leak, workspace, seed)))
        jobs.append(Job(SAMPLES, lambda: write_samples(workspace, self.size.sample)))
        jobs.append(Job(DECODING, lambda: costs.decoding_speeds(honest, DECODED), lambda: 3.0))
        jobs.append(
            Job(MEMORY, lambda: costs.step_memory(recipes, workspace.result(TIMES)), lambda: 2.0)
        )
        return jobs

    def findings(self, results: dict[str, Any]) -> Findings:
        from attnlab.studies.recurrent.report import findings  # which knows this class

        return findings(self, results)


def sizes(recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    return {
        name: {"width": recipe.model.width, "parameters": count(recipe.model)}
        for name, recipe in recipes.items()
    } | {"vocabulary": recipes["transformer"].model.vocabulary}


def _training(workspace: Workspace, name: str, recipe: Recipe, characters: int) -> Job:
    job = f"{name}, seed {recipe.seed}"
    return Job(
        job,
        lambda: language.train(workspace, job, recipe),
        lambda: costs.expected_seconds(recipe, characters),
        trainings=lambda: [(job, recipe)],
    )


def _timed(workspace: Workspace, name: str, seeded: Mapping[str, Recipe], characters: int) -> Job:
    """A training of as many steps as fit into the seconds of the transformer's steps."""
    job = f"{name} in equal time, seed {seeded[name].seed}"

    def fitting() -> Recipe:
        fits = steps_that_fit(workspace.result(TIMES), name, seeded["transformer"].steps)
        return dataclasses.replace(seeded[name], steps=fits)

    return Job(
        job,
        lambda: language.train(workspace, job, fitting()),
        lambda: costs.expected_seconds(seeded["transformer"], characters),
        trainings=lambda: [(job, fitting())] if workspace.has(TIMES) else [],
    )


def steps_that_fit(times: Mapping[str, Any], name: str, steps: int) -> int:
    return max(int(steps * times["transformer"]["step_ms"] / times[name]["step_ms"]), 1)


def leak(workspace: Workspace, seed: int) -> dict[str, Any]:
    """What the bidirectional network knows when it is given what a language model is given."""
    found: dict[str, Any] = {"swap": {}, "position": {}}
    for name in ALL:
        saved = language.open_trained(workspace, f"{name}, seed {seed}")
        source, batches = held.held_out(saved)
        losses = held.position_losses(saved.model, batches)
        found["position"][name] = np.nanmean(losses, axis=0).tolist()
        few = next(iter(source.validation(min(SWAPPED, source.validation_count - 1))))
        found["swap"][name] = swap(saved.model, few, seed)
        if isinstance(saved.model, BidirectionalReader):
            _, batches = held.held_out(saved)
            losses = held.position_losses(by_prefixes(saved.model), batches)
            found["position"]["by prefixes"] = np.nanmean(losses, axis=0).tolist()
            found["by prefixes"] = float(np.nanmean(losses))
    return found


def by_prefixes(model: BidirectionalReader) -> PrefixBidirectionalLM:
    """The same weights, given each prefix alone and read at its last position, in O(t).

    There the backward half has read one token, so that all prefixes share the forward half.
    """
    alike = dataclasses.asdict(model.settings)
    reader = PrefixBidirectionalSettings(**alike, readout="last").build()
    reader.load_state_dict(model.state_dict())
    return reader.to(next(model.parameters()).device)


def swap(model: nn.Module, batch: Batch, seed: int) -> dict[str, float]:
    """Put another character after the middle one: does the prediction before it change?

    `changed` is the share of samples with other logits, `followed` of those whose first guess is
    now the character that was put there.
    """
    device = next(model.parameters()).device
    tokens = batch.tokens.to(device)
    rows, middle = len(tokens), tokens.shape[1] // 2 - 1
    size: int = model.settings.vocabulary  # type: ignore[assignment, union-attr]
    shifts = 1 + counter_rng.bits(seed, "swap", np.arange(rows)) % np.uint64(max(size - 1, 1))
    other = (tokens[:, middle + 1] + torch.from_numpy(shifts.astype(np.int64)).to(device)) % size
    swapped = tokens.clone()
    swapped[:, middle + 1] = other
    with evaluating(model), torch.no_grad():
        before, after = model(tokens)[:, middle], model(swapped)[:, middle]
    # float32: rounding that depends on what else is in a batch is below 1e-5
    changed = ((after - before).abs().amax(-1) > 1e-4).float().mean()
    return {
        "changed": changed.item(),
        "followed": (after.argmax(-1) == other).float().mean().item(),
    }


def write_samples(workspace: Workspace, tokens: int) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in ALL:
        saved = language.open_trained(workspace, f"{name}, seed 0")
        source, _ = held.held_out(saved)
        first = next(iter(source.validation(1))).tokens[0].tolist()
        prompt = first[: max(len(first) // 2, 1)]
        texts["prompt"] = saved.tokenizer.decode(prompt)
        texts[name] = samples.write(saved, prompt, tokens)
    return texts
