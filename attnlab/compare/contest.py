"""A comparison from its words to its report: made equal, trained, measured, told apart.

    runs/compare-<id>/
      parts/            what each part gave         runs/<label>-seed-<n>/  a run folder each
      log.txt           what the processes said     report.html, report.md, results.json

The id is a function of settings, recipes, text, device and version. What was stopped or killed goes
on where it was, to the same bits on a CPU.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from attnlab import config, files
from attnlab.compare import costs, held
from attnlab.compare.findings import findings
from attnlab.compare.fleet import Outcomes, Watch
from attnlab.compare.match import Matched, matched, operations
from attnlab.compare.reading import About, Contender
from attnlab.compare.words import Comparison, Entry, Search, Variant, plain
from attnlab.compare.work import Task
from attnlab.data.corpora import Corpus
from attnlab.studies import language
from attnlab.studies.desk import Desk, Job
from attnlab.studies.study import Findings, Study
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import open_saved
from attnlab.training.setup import prepare

POINTS = 30  # of a learning curve
PROMPT = 32  # characters
STARTING = 4.0  # seconds until a process is ready to train
# parts by name
PACE, SEARCH, TRAININGS = "step times before", "search", "trainings"
SAMPLES, STEPS, DECODING, MEMORY = "samples", "step times", "decoding", "memory"


@runtime_checkable
class Hands(Protocol):
    """What carries out trainings: processes here, or a cluster."""

    def side_by_side(self, tasks: int) -> int: ...

    def train(self, tasks: Sequence[Task], log: Path, watch: Watch) -> Outcomes: ...


@dataclass
class Contest(Study):
    kind: ClassVar[str] = "compare"

    entry: Entry
    hands: Hands

    @property
    def comparison(self) -> Comparison:
        return self.entry.comparison

    @property
    def variants(self) -> Sequence[Variant]:
        return self.entry.variants

    def settings(self) -> dict[str, Any]:
        variants = {variant.label: variant.spec for variant in self.variants}
        common = {"for_all": list(self.entry.common)} if self.entry.common else {}
        rates = self.search.rates or ((self.search.single,) if self.search.asked else ())
        found = {**config.to_dict(self.comparison), "rates": list(rates)}
        return {"variants": variants, **common, **found}

    @cached_property
    def search(self) -> Search:
        """What was asked for, unless there is too little held-out text to choose rates by."""
        found, recipes = self.entry.search, self.recipes
        few = self._held_samples < held.LEAST
        if found.rates and few and found.asked:
            first = next(iter(recipes.values()))
            raise ValueError(
                f"{self._corpus.name} keeps {self._held_samples} samples of {first.length} tokens "
                f"for validation; a search of rates needs {held.LEAST}: use tune=none or a larger "
                "validation"
            )
        if found.rates and few:
            return Search((), f"fewer than {held.LEAST} samples of text are held out")
        return found

    def text(self) -> str:
        """Of the text and of all recipes: a preset may change between two versions of ours."""
        settings = {label: config.to_dict(recipe) for label, recipe in self.recipes.items()}
        for recipe in self.recipes.values():
            for rate in (*self.search.rates, self.search.single):
                with_rate(recipe, rate)  # refuses what is too high
        if self.comparison.match != "seconds":  # else they are known once a step has been timed
            self.matched({})
        found = json.dumps([self._corpus.fingerprint, settings], sort_keys=True)
        return hashlib.sha256(found.encode()).hexdigest()

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """As they were written, with the vocabulary of the text."""
        first = prepare(self.variants[0].recipe, Path())
        if first.source.validation_count == 0:
            raise ValueError(
                f"{first.corpus.name} keeps no text for validation; set validation=0.1"
            )
        self._held_samples = first.source.validation_count
        self._held = self._held_samples * first.recipe.length
        self._corpus: Corpus = first.corpus
        vocabulary = first.recipe.model.vocabulary
        found = {}
        for variant in self.variants:
            model = dataclasses.replace(variant.recipe.model, vocabulary=vocabulary)
            found[variant.label] = dataclasses.replace(plain(variant.recipe), model=model)
        return found

    def matched(self, results: Mapping[str, Any]) -> dict[str, Matched]:
        pace = results.get(PACE)
        known = None if pace is None else {label: one["step_ms"] for label, one in pace.items()}
        return matched(self.comparison, self.recipes, known)

    @property
    def seeds(self) -> list[int]:
        return [self.comparison.seed + number for number in range(self.comparison.seeds)]

    def jobs(self, desk: Desk) -> list[Job]:
        """Times before memory: reading its peak slows a CPU's allocator."""
        comparison, recipes, jobs = self.comparison, self.recipes, list[Job]()
        turns, measuring = comparison.turns, 0.5 * comparison.turns

        def part(name: str, work: Callable[[], Any], seconds: Callable[[], float]) -> None:
            jobs.append(Job(name, work, seconds))

        if comparison.match == "seconds":
            part(PACE, lambda: costs.step_times(recipes, turns), lambda: measuring)
        if self.search.rates:
            tries = len(self.search.rates)
            part(SEARCH, lambda: self._search(desk), lambda: self._expected(tries))
        part(TRAININGS, lambda: self._trainings(desk), lambda: self._expected(comparison.seeds))
        part(SAMPLES, lambda: self._samples(desk), lambda: 1.0 * len(recipes))
        part(STEPS, lambda: costs.step_times(self._final(desk), turns), lambda: measuring)
        part(DECODING, lambda: costs.decoding(self._final(desk), turns), lambda: measuring)
        part(
            MEMORY,
            lambda: costs.memory(self._final(desk), desk.result(STEPS)),
            lambda: 1.0 * len(recipes),
        )
        return jobs

    def findings(self, results: dict[str, Any]) -> Findings:
        """From what the parts gave; sizes and caches are counted anew, since that takes no time."""
        variants, equal = [], self.matched(results)
        trained = results[TRAININGS]
        for variant in self.variants:
            made = equal[variant.label]
            variants.append(
                Contender(
                    label=variant.label,
                    spec=variant.spec,
                    change=made.change,
                    parameters=language.count(made.recipe.model),
                    operations=operations(made.recipe),
                    steps=made.recipe.steps,
                    cache=costs.cache(made.recipe),
                    searched=results.get(SEARCH, {}).get(variant.label),
                    trained={
                        seed: self._reported(trained[name_of(variant.label, seed)])
                        for seed in self.seeds
                    },
                    step=results[STEPS][variant.label],
                    memory=results[MEMORY][variant.label],
                    decoding=results[DECODING][variant.label],
                )
            )
        first = self.recipes[self.variants[0].label]
        about = About(
            comparison=self.comparison,
            seeds=self.seeds,
            text=self._corpus.name,
            search=self.search,
            held_out=self._reported_tokens(variants),
            tokens=first.batch * first.length,
            context=first.length,
            samples=results[SAMPLES],
        )
        return findings(about, variants)

    def _reported_tokens(self, variants: Sequence[Contender]) -> int:
        """Targets that a reported loss is the mean of."""
        texts = [text for one in variants for text in one.texts.values()]
        return round(sum(texts[0].counts)) if texts else self._held

    def _reported(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """A training with its losses by stretches of the text that chose no rate."""
        if "held" not in outcome:
            return outcome
        part = held.reporting_part(outcome["held"], searched=bool(self.search.rates))
        return {**outcome, "held": part}

    def _final(self, desk: Desk) -> dict[str, Recipe]:
        """Made equal, and with the rate that was found."""
        known = {PACE: desk.result(PACE)} if self.comparison.match == "seconds" else {}
        found = {label: made.recipe for label, made in self.matched(known).items()}
        if not self.search.rates:
            return {label: with_rate(r, self.search.single) for label, r in found.items()}
        chosen = desk.result(SEARCH)
        return {label: with_rate(r, chosen[label]["chosen"]) for label, r in found.items()}

    def _task(
        self, desk: Desk, name: str, recipe: Recipe, seed: int, evaluations: int | None = None
    ) -> Task:
        every = math.ceil(recipe.steps / (evaluations or self.comparison.evaluations))
        seeded = dataclasses.replace(recipe, seed=seed, evaluate_every=every, save_every=every)
        return Task(name, desk.run(name).folder, seeded)

    def _carry_out(self, desk: Desk, tasks: Sequence[Task]) -> dict[str, Any]:
        total = sum(task.recipe.steps for task in tasks)
        with desk.progress.counting("trainings", total) as watch:
            outcomes = self.hands.train(tasks, desk.folder / "log.txt", watch)
        for name, outcome in outcomes.items():
            if outcome["ending"] != "finished":
                desk.progress.note(f"{name} {outcome['ending']}: {outcome['why']}")
        return {task.name: {**outcomes[task.name], **_logged(task)} for task in tasks}

    def _trainings(self, desk: Desk) -> dict[str, Any]:
        recipes = self._final(desk)
        tasks = [
            self._task(desk, name_of(label, seed), recipe, seed)
            for seed in self.seeds
            for label, recipe in recipes.items()
        ]
        return self._carry_out(desk, tasks)

    def _search(self, desk: Desk) -> dict[str, Any]:
        """The same multiples for each variant, with a seed and text that count for nothing else."""
        known = {PACE: desk.result(PACE)} if self.comparison.match == "seconds" else {}
        seed, tasks = self.seeds[-1] + 1, {}
        for label, made in self.matched(known).items():
            for rate in self.search.rates:
                name = f"{label} rate {rate:g} seed {seed}"
                recipe = with_rate(made.recipe, rate)
                tasks[label, rate] = self._task(desk, name, recipe, seed, evaluations=1)
        outcomes = self._carry_out(desk, list(tasks.values()))
        found: dict[str, Any] = {}
        for label in self.recipes:
            losses = {}
            for rate in self.search.rates:
                one = outcomes[tasks[label, rate].name]
                whole = one["ending"] == "finished"
                losses[rate] = held.tuning_part(one["held"]).loss if whole else None
            finished = {rate: loss for rate, loss in losses.items() if loss is not None}
            found[label] = {
                "losses": [[rate, loss] for rate, loss in losses.items()],
                "chosen": min(finished, key=lambda rate: finished[rate]) if finished else 1.0,
            }
        return found

    def _samples(self, desk: Desk) -> dict[str, Any]:
        """Each goes on from the same words of the held-out text, with the same random numbers."""
        trained = desk.result(TRAININGS)
        prompt, texts = language.beginning(self._corpus, PROMPT), {}
        for label in self.recipes:
            name = name_of(label, self.seeds[0])
            if trained[name]["ending"] != "finished":
                continue
            folder = desk.run(name).folder
            with costs.one_thread():
                saved = open_saved(str(folder), folder.parent, best=False)
                start = saved.tokenizer.encode(prompt).tolist()
                texts[label] = language.written(saved, start, self.comparison.sample)
        return {"prompt": prompt, "seed": self.seeds[0], "texts": texts}

    def _expected(self, each: int) -> float:
        """Seconds of `each` trainings of every variant."""
        held = self.comparison.evaluations * self._held
        with costs.one_thread():
            alone = [each * language.expected_seconds(r, held) for r in self.recipes.values()]
        return STARTING + sum(alone) / self.hands.side_by_side(each * len(alone))


def name_of(label: str, seed: int) -> str:
    return f"{label} seed {seed}"


def with_rate(recipe: Recipe, factor: float) -> Recipe:
    """The recipe with all its learning rates multiplied."""
    rates = {
        name: factor * getattr(recipe.optimiser, name)
        for name in ("rate", "rest_rate")
        if hasattr(recipe.optimiser, name)
    }
    return dataclasses.replace(recipe, optimiser=dataclasses.replace(recipe.optimiser, **rates))


def _logged(task: Task) -> dict[str, Any]:
    """Losses of a run: held-out at every evaluation, training as means of its parts."""
    run = Run(task.folder)
    losses = [row["loss"] for row in run.read("metrics")]
    parts = [part for part in np.array_split(losses, min(POINTS, len(losses) or 1)) if len(part)]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    kept = run.folder / held.FILE
    return {
        **({"held": files.read_json(kept)} if kept.exists() else {}),
        "evaluations": [[row["step"], row["loss"]] for row in run.read("eval")],
        "curve": [[end, float(part.mean())] for end, part in zip(ends, parts, strict=True)],
    }
