"""A comparison from its command line to its report: matched, trained, measured, judged.

    runs/compare-<id>/
      parts/            the result of each job      runs/<label>-seed-<n>/  a run folder each
      log.txt           output of the workers       report.html, report.md, results.json

The id is a hash of settings, recipes, text, device and version. A comparison that was stopped or
killed resumes, to the same bits on a CPU.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from attnlab import config
from attnlab.compare.analysis import (
    CachedTraining,
    Conditions,
    RateSearch,
    TrainingResult,
    VariantResult,
)
from attnlab.compare.parse import ComparisonSettings, Plan, Search, Variant, plain
from attnlab.compare.report import findings
from attnlab.experiments import costs, held, samples
from attnlab.experiments.costs import one_thread
from attnlab.experiments.experiment import Experiment, Findings
from attnlab.experiments.match import MatchedRecipe, count, match, operations
from attnlab.experiments.pool import Ending, Pool, Task
from attnlab.experiments.presentation import condense
from attnlab.experiments.workspace import Job, Workspace
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import Saved, open_saved
from attnlab.training.setup import Setup, prepare

POINTS = 30  # of a learning curve
PROMPT = 32  # characters
STARTING = 4.0  # seconds until a worker is ready to train
# jobs by name
PACE, SEARCH, TRAININGS = "step times before", "search", "trainings"
SAMPLES, STEPS, DECODING, MEMORY = "samples", "step times", "decoding", "memory"


@dataclass
class Comparison(Experiment):
    kind: ClassVar[str] = "compare"

    plan: Plan
    pool: Pool

    @property
    def chosen(self) -> ComparisonSettings:
        return self.plan.settings

    @property
    def variants(self) -> Sequence[Variant]:
        return self.plan.variants

    def settings(self) -> dict[str, Any]:
        variants = {variant.label: variant.spec for variant in self.variants}
        common = {"for_all": list(self.plan.common)} if self.plan.common else {}
        rates = self.search.rates or ((self.search.single,) if self.search.requested else ())
        return {"variants": variants, **common, **config.to_dict(self.chosen), "rates": list(rates)}

    @cached_property
    def search(self) -> Search:
        """As planned, unless there is too little held-out text to choose rates by."""
        found, held_out = self.plan.search, self._first.source.validation_count
        few = held_out < held.LEAST
        if found.rates and few and found.requested:
            raise ValueError(
                f"{self._first.corpus.name} keeps {held_out} samples of "
                f"{self._first.recipe.length} tokens for validation; a search of rates needs "
                f"{held.LEAST}: use tune=none or a larger validation"
            )
        if found.rates and few:
            return Search((), f"fewer than {held.LEAST} samples of text are held out")
        return found

    def text(self) -> str:
        """Of the text and of all recipes: a preset may change between two versions of attnlab."""
        settings = {label: config.to_dict(recipe) for label, recipe in self.recipes.items()}
        for recipe in self.recipes.values():
            for rate in (*self.search.rates, self.search.single):
                with_rate(recipe, rate)  # refuses a rate that is too high
        if self.chosen.match != "seconds":  # else a step has to be timed first
            self._match({})
        found = json.dumps([self._first.corpus.fingerprint, settings], sort_keys=True)
        return hashlib.sha256(found.encode()).hexdigest()

    @cached_property
    def _first(self) -> Setup:
        """The text, and the first variant on it."""
        first = prepare(self.variants[0].recipe, Path())
        if first.source.validation_count == 0:
            raise ValueError(
                f"{first.corpus.name} keeps no text for validation; set corpus.validation=0.1"
            )
        return first

    @property
    def _held(self) -> int:
        """Tokens of the held-out text, or a few more."""
        return self._first.source.validation_count * self._first.recipe.length

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """As they were written, with the vocabulary of the text."""
        vocabulary = self._first.recipe.model.vocabulary
        found = {}
        for variant in self.variants:
            model = dataclasses.replace(variant.recipe.model, vocabulary=vocabulary)
            found[variant.label] = dataclasses.replace(plain(variant.recipe), model=model)
        return found

    def _match(self, results: Mapping[str, Any]) -> dict[str, MatchedRecipe]:
        pace = results.get(PACE)
        step_ms = None if pace is None else {label: one["step_ms"] for label, one in pace.items()}
        return match(self.chosen.match, self.recipes, seconds=self.chosen.seconds, step_ms=step_ms)

    @property
    def seeds(self) -> list[int]:
        return [self.chosen.seed + number for number in range(self.chosen.seeds)]

    def jobs(self, workspace: Workspace) -> list[Job]:
        """Times before memory: reading its peak slows a CPU's allocator."""
        recipes, turns, measuring = self.recipes, self.chosen.turns, 0.5 * self.chosen.turns
        jobs = list[Job]()

        def add(name: str, work: Callable[[], object], seconds: Callable[[], float]) -> None:
            jobs.append(Job(name, work, seconds))

        def measure(
            name: str, work: Callable[[dict[str, Recipe]], object], seconds: float = measuring
        ) -> None:
            def on_one_thread() -> object:
                final = self._final(workspace)
                with one_thread():
                    return work(final)

            add(name, on_one_thread, lambda: seconds)

        if self.chosen.match == "seconds":
            add(PACE, lambda: self._pace(turns), lambda: measuring)
        if self.search.rates:
            tries = len(self.search.rates)
            add(SEARCH, lambda: self._search(workspace), lambda: self._expected(tries))
        add(TRAININGS, lambda: self._trainings(workspace), lambda: self._expected(len(self.seeds)))
        add(SAMPLES, lambda: self._samples(workspace), lambda: 1.0 * len(recipes))
        measure(STEPS, lambda final: costs.step_costs(final, turns))
        measure(DECODING, lambda final: decoding(final, turns))
        measure(
            MEMORY,
            lambda final: costs.step_memory(final, workspace.result(STEPS)),
            1.0 * len(recipes),
        )
        return jobs

    def _pace(self, turns: int) -> dict[str, costs.StepCost]:
        with one_thread():
            return costs.step_costs(self.recipes, turns)

    def findings(self, results: dict[str, Any]) -> Findings:
        """From the results of the jobs; sizes and caches are counted anew, which takes no time."""
        matched = self._match(results)
        searched, cached = bool(self.search.rates), results[TRAININGS]
        # in a folder of an older version, evaluations are of all held-out text
        by_stretch = searched and all(
            len(one["evaluations"]) == len(one.get("by_stretch", ()))
            for one in cached.values()
            if one["ending"] == "finished"
        )
        trained = {n: TrainingResult.of(one, searched, by_stretch) for n, one in cached.items()}
        variants = [
            VariantResult(
                label=variant.label,
                spec=variant.spec,
                change=matched[variant.label].change,
                parameters=count(matched[variant.label].recipe.model),
                operations=operations(matched[variant.label].recipe),
                steps=matched[variant.label].recipe.steps,
                cache=costs.cache_bytes(matched[variant.label].recipe),
                searched=results.get(SEARCH, {}).get(variant.label),
                trained={seed: trained[name_of(variant.label, seed)] for seed in self.seeds},
                step=results[STEPS][variant.label],
                memory=results[MEMORY][variant.label],
                decoding=results[DECODING][variant.label],
            )
            for variant in self.variants
        ]
        first = self._first.recipe
        texts = [text for one in variants for text in one.texts.values()]
        conditions = Conditions(
            settings=self.chosen,
            seeds=self.seeds,
            text=self._first.corpus.name,
            search=self.search,
            held_out=round(sum(texts[0].counts)) if texts else self._held,
            tokens=first.batch * first.length,
            context=first.length,
            samples=results[SAMPLES],
            same_text=by_stretch or not searched,
        )
        return findings(conditions, variants)

    def _matched(self, workspace: Workspace) -> dict[str, MatchedRecipe]:
        known = {PACE: workspace.result(PACE)} if self.chosen.match == "seconds" else {}
        return self._match(known)

    def _final(self, workspace: Workspace) -> dict[str, Recipe]:
        """Matched, and with the rate that was found."""
        found = {label: made.recipe for label, made in self._matched(workspace).items()}
        if not self.search.rates:
            return {label: with_rate(r, self.search.single) for label, r in found.items()}
        best = workspace.result(SEARCH)
        return {label: with_rate(r, best[label]["chosen"]) for label, r in found.items()}

    def _task(
        self, workspace: Workspace, name: str, recipe: Recipe, seed: int, evaluations: int
    ) -> Task:
        every = math.ceil(recipe.steps / evaluations)
        seeded = dataclasses.replace(recipe, seed=seed, evaluate_every=every, save_every=every)
        return Task(name, workspace.run_of(name).folder, seeded)

    def _train(self, workspace: Workspace, tasks: Sequence[Task]) -> dict[str, CachedTraining]:
        endings = workspace.train_all(tasks, self.pool)
        for name, ending in endings.items():
            if ending["ending"] != "finished":
                workspace.progress.note(f"{name} {ending['ending']}: {ending['why']}")
        return {task.name: read_log(task, endings[task.name]) for task in tasks}

    def _trainings(self, workspace: Workspace) -> dict[str, CachedTraining]:
        recipes, evaluations = self._final(workspace), self.chosen.evaluations
        tasks = [
            self._task(workspace, name_of(label, seed), recipe, seed, evaluations)
            for seed in self.seeds
            for label, recipe in recipes.items()
        ]
        return self._train(workspace, tasks)

    def _search(self, workspace: Workspace) -> dict[str, RateSearch]:
        """The same multiples for each variant, with a seed and a text used for nothing else."""
        seed, tasks = self.seeds[-1] + 1, {}
        for label, made in self._matched(workspace).items():
            for rate in self.search.rates:
                name = f"{label} rate {rate:g} seed {seed}"
                recipe = with_rate(made.recipe, rate)
                tasks[label, rate] = self._task(workspace, name, recipe, seed, evaluations=1)
        trained = self._train(workspace, list(tasks.values()))
        found: dict[str, RateSearch] = {}
        for label in self.recipes:
            losses = {}
            for rate in self.search.rates:
                one = trained[tasks[label, rate].name]
                whole = one["ending"] == "finished"
                losses[rate] = held.tuning_part(one["held"]).loss if whole else None
            finished = {rate: loss for rate, loss in losses.items() if loss is not None}
            found[label] = {
                "losses": list(losses.items()),
                "chosen": min(finished, key=lambda rate: finished[rate]) if finished else 1.0,
            }
        return found

    def _samples(self, workspace: Workspace) -> samples.Samples:
        seed, trained = self.seeds[0], workspace.result(TRAININGS)

        def models() -> Iterator[tuple[str, Saved]]:
            for label in self.recipes:
                name = name_of(label, seed)
                if trained[name]["ending"] == "finished":
                    folder = workspace.run_of(name).folder
                    yield label, open_saved(str(folder), folder.parent, best=False)

        prompt = samples.prompt_of(self._first.corpus, PROMPT)
        with one_thread():
            return samples.write_all(models(), prompt, seed, self.chosen.sample)

    def _expected(self, each: int) -> float:
        """Seconds of `each` trainings of every variant."""
        tokens = self.chosen.evaluations * self._held
        with one_thread():
            alone = [each * costs.expected_seconds(r, tokens) for r in self.recipes.values()]
        return STARTING + sum(alone) / self.pool.concurrency(each * len(alone))


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


def decoding(recipes: Mapping[str, Recipe], turns: int) -> dict[str, float | None]:
    """Tokens a second; None for models without a KV cache, which read all anew for each token."""
    cached = {name: r for name, r in recipes.items() if costs.cache_sizes(r) is not None}
    return {**dict.fromkeys(recipes), **costs.decoding_speeds(cached, turns)}


def read_log(task: Task, ending: Ending) -> CachedTraining:
    """Losses of a run: held-out at every evaluation, training as means of its parts."""
    run = Run(task.folder)
    losses = [row["loss"] for row in run.read("metrics")]
    trained: CachedTraining = {
        "ending": ending["ending"],
        "why": ending["why"],
        "evaluations": [[row["step"], row["loss"]] for row in run.read("eval")],
        "by_stretch": held.read_log(run),
        "curve": [[step, loss] for step, loss in condense(losses, POINTS)],
    }
    if ending["ending"] == "finished":
        trained["held"] = held.measure(run)
    return trained
