"""`attnlab study recurrent`: recurrent networks and a transformer, and a network that cheats.

Axes: b batch, t time.

Three language models of equally many parameters are compared after equally many steps, and after
equally many seconds. A fourth, bidirectional over the whole text, is trained as if it were one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from attnlab import chance, presets
from attnlab.bench.measure import take_turns
from attnlab.data.batches import Batch
from attnlab.generate import evaluating, generate
from attnlab.models.recurrent import (
    BidirectionalReader,
    BidirectionalSettings,
    ElmanSettings,
    PrefixBidirectionalLM,
    PrefixBidirectionalSettings,
)
from attnlab.studies import language
from attnlab.studies.desk import Desk, Job
from attnlab.studies.language import LanguageStudy
from attnlab.studies.recurrent import findings as conclusions
from attnlab.studies.recurrent.findings import (
    ALL,
    DECODING,
    HONEST,
    MEMORY,
    SAMPLES,
    SIZES,
    TIMES,
)
from attnlab.studies.study import Findings
from attnlab.training.optim import Muon
from attnlab.training.parallel import place_of
from attnlab.training.recipe import Recipe
from attnlab.training.weights import build_model

SWAPPED = 256  # held-out samples in which a character is swapped


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


@dataclass(frozen=True, kw_only=True)
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
        wanted = language.count(transformer)
        recurrent = {
            "elman": ElmanSettings(vocabulary=vocabulary),
            "prefix-birnn": PrefixBidirectionalSettings(vocabulary=vocabulary),
            "birnn": BidirectionalSettings(vocabulary=vocabulary),
        }
        models: dict[str, Any] = {
            "transformer": transformer,
            **{name: language.matched(settings, wanted) for name, settings in recurrent.items()},
        }
        return {name: self._recipe(model) for name, model in models.items()}

    def _recipe(self, model: Any) -> Recipe:
        on_cuda = place_of("auto").type == "cuda"
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

    def jobs(self, desk: Desk) -> list[Job]:
        vocabulary, held = self.measures()
        recipes = self.recipes(vocabulary)
        jobs = [
            Job(SIZES, lambda: sizes(recipes)),
            Job(TIMES, lambda: language.step_costs(recipes, self.size.turns), lambda: 5.0),
        ]
        for seed in self.repeats:
            seeded = {n: dataclasses.replace(recipe, seed=seed) for n, recipe in recipes.items()}
            jobs += [_training(desk, name, recipe, held) for name, recipe in seeded.items()]
            jobs += [_timed(desk, name, seeded, held) for name in HONEST[1:]]
            jobs.append(Job(f"leak, seed {seed}", lambda seed=seed: leak(desk, seed)))  # type: ignore[misc]
        jobs.append(Job(SAMPLES, lambda: samples(desk, self.size.sample)))
        jobs.append(Job(DECODING, lambda: decoding(recipes, self.size.context), lambda: 3.0))
        jobs.append(Job(MEMORY, lambda: memory(desk, recipes), lambda: 2.0))
        return jobs

    def findings(self, results: dict[str, Any]) -> Findings:
        return conclusions.findings(self, results)


def sizes(recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    return {
        name: {"width": recipe.model.width, "parameters": language.count(recipe.model)}
        for name, recipe in recipes.items()
    } | {"vocabulary": recipes["transformer"].model.vocabulary}


def _training(desk: Desk, name: str, recipe: Recipe, held: int) -> Job:
    job = f"{name}, seed {recipe.seed}"
    return Job(
        job,
        lambda: language.train(desk, job, recipe),
        lambda: language.expected_seconds(recipe, held),
    )


def _timed(desk: Desk, name: str, seeded: Mapping[str, Recipe], held: int) -> Job:
    """A training of as many steps as fit into the seconds of the transformer's steps."""
    job = f"{name} in equal time, seed {seeded[name].seed}"

    def work() -> Any:
        fits = steps_that_fit(desk.result(TIMES), name, seeded["transformer"].steps)
        return language.train(desk, job, dataclasses.replace(seeded[name], steps=fits))

    return Job(job, work, lambda: language.expected_seconds(seeded["transformer"], held))


def steps_that_fit(times: Mapping[str, Any], name: str, steps: int) -> int:
    return max(int(steps * times["transformer"]["step_ms"] / times[name]["step_ms"]), 1)


def memory(desk: Desk, recipes: Mapping[str, Recipe]) -> dict[str, int | None]:
    known = desk.result(TIMES)
    if all("memory" in costs for costs in known.values()):  # on CUDA it comes with the times
        return {name: costs["memory"] for name, costs in known.items()}
    return language.step_memory(recipes)


def leak(desk: Desk, seed: int) -> dict[str, Any]:
    """What the bidirectional network knows when it is given what a language model is given."""
    found: dict[str, Any] = {"swap": {}, "position": {}}
    for name in ALL:
        saved = language.opened(desk, f"{name}, seed {seed}")
        source, batches = language.held_out(saved)
        losses = language.position_losses(saved.model, batches)
        found["position"][name] = np.nanmean(losses, axis=0).tolist()
        few = next(iter(source.validation(min(SWAPPED, source.validation_count - 1))))
        found["swap"][name] = swap(saved.model, few, seed)
        if isinstance(saved.model, BidirectionalReader):
            _, batches = language.held_out(saved)
            losses = language.position_losses(by_prefixes(saved.model), batches)
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
    shifts = 1 + chance.bits(seed, "swap", np.arange(rows)) % np.uint64(max(size - 1, 1))
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


def samples(desk: Desk, tokens: int) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for name in ALL:
        saved = language.opened(desk, f"{name}, seed 0")
        source, _ = language.held_out(saved)
        first = next(iter(source.validation(1))).tokens[0].tolist()
        prompt = first[: max(len(first) // 2, 1)]
        texts["prompt"] = saved.tokenizer.decode(prompt)
        texts[name] = language.written(saved, prompt, tokens)
    return texts


def decoding(recipes: Mapping[str, Recipe], tokens: int) -> dict[str, Any]:
    """Tokens a second of one text that grows to the context, each model as it decodes best."""
    device = place_of("auto")

    def writer(recipe: Recipe) -> Callable[[], object]:
        model = build_model(recipe).to(device)
        return lambda: generate(model, [[0]], tokens=tokens)

    writers = {name: writer(recipes[name]) for name in HONEST}
    times = take_turns(writers, device, 5, language.PATIENCE)
    return {name: 1e3 * tokens / timing.median for name, timing in times.items()}
