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
from functools import cached_property, partial
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
from attnlab.experiments.reuse import is_done, settings_of
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
        pace = results.get(PACE, {})
        step_ms = {label: one["step_ms"] for label, one in pace.items() if "step_ms" in one}
        steps = {label: one["steps"] for label, one in pace.items() if "steps" in one}
        return match(
            self.chosen.match,
            self.recipes,
            seconds=self.chosen.seconds,
            step_ms=step_ms,
            steps=steps or None,
        )

    @property
    def seeds(self) -> list[int]:
        return [self.chosen.seed + number for number in range(self.chosen.seeds)]

    def jobs(self, workspace: Workspace) -> list[Job]:
        """Times before memory: reading its peak slows a CPU's allocator."""
        recipes, turns, measuring = self.recipes, self.chosen.turns, 0.5 * self.chosen.turns
        jobs = list[Job]()

        def add(
            name: str,
            work: Callable[[], object],
            seconds: Callable[[], float],
            renews: bool = False,
        ) -> None:
            jobs.append(Job(name, work, seconds, renews))

        def measure(
            name: str, work: Callable[[dict[str, Recipe]], object], seconds: float = measuring
        ) -> None:
            def on_one_thread() -> object:
                final = self._final(workspace)
                with one_thread():
                    return work(final)

            add(name, on_one_thread, lambda: seconds)

        if self.chosen.match == "seconds":
            known = None if workspace.has(PACE) else self._chosen_steps(workspace)
            if known is None:
                add(PACE, lambda: self._pace(turns), lambda: measuring, renews=True)
            else:
                workspace.progress.note(f"{PACE} is lost: the trainings keep the steps they have")
                add(PACE, lambda: known, lambda: 0.0)
        if self.search.rates:
            tries = len(self.search.rates)
            add(
                SEARCH,
                lambda: self._search(workspace),
                lambda: self._expected(tries, 1),
                renews=True,
            )
        each, evaluations = len(self.seeds), self.chosen.evaluations
        expected = partial(self._expected, each, evaluations)
        add(TRAININGS, lambda: self._trainings(workspace), expected)
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

    def _chosen_steps(self, workspace: Workspace) -> dict[str, dict[str, int]] | None:
        """The steps that trainings have, where they were matched by step times that are lost.

        Step times measured anew would be others, and so would the steps that fit into equal
        seconds. None if not every variant has such a training, or two of one do not agree.
        """
        cached = workspace.result(TRAININGS) if workspace.has(TRAININGS) else {}
        chosen = {}
        for label in self.recipes:
            found = set[int]()
            for name in self._training_names(label):
                there, kept = settings_of(workspace.run_of(name)), cached.get(name)
                if there is not None:
                    found |= {steps} if type(steps := there.get("steps")) is int else set()
                elif kept is not None and kept["ending"] == "finished":
                    found |= {int(step) for step, _ in kept["evaluations"][-1:]}
            if len(found) != 1:
                return None
            chosen[label] = {"steps": found.pop()}
        return chosen

    def _training_names(self, label: str) -> list[str]:
        searches = [self._search_name(label, rate) for rate in self.search.rates]
        return [*(name_of(label, seed) for seed in self.seeds), *searches]

    def _search_name(self, label: str, rate: float) -> str:
        return f"{label} rate {rate:g} seed {self.seeds[-1] + 1}"

    def findings(self, results: dict[str, Any]) -> Findings:
        """From the results of the jobs; sizes and caches are counted anew, which takes no time."""
        matched = self._match(results)
        searched, cached = bool(self.search.rates), results[TRAININGS]
        # in a folder of an older version, evaluations are of all held-out text
        by_stretch = searched and all(
            one.get("by_stretch") for one in cached.values() if one["ending"] == "finished"
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
        text = self._first.corpus.fingerprint  # a worker reads the text anew
        return Task(name, workspace.run_of(name).folder, seeded, text)

    def _train(self, workspace: Workspace, tasks: Sequence[Task]) -> dict[str, CachedTraining]:
        endings = workspace.train_all(tasks, self.pool)
        for name, ending in endings.items():
            if ending["why"]:
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
                name, recipe = self._search_name(label, rate), with_rate(made.recipe, rate)
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

        finished = {
            label: recipe
            for label, recipe in self._final(workspace).items()
            if trained[name_of(label, seed)]["ending"] == "finished"
        }
        self._mend(workspace, seed, finished)

        def models() -> Iterator[tuple[str, Saved]]:
            for label in finished:
                folder = workspace.run_of(name_of(label, seed)).folder
                yield label, open_saved(str(folder), folder.parent, best=False)

        prompt = samples.prompt_of(self._first.corpus, PROMPT)
        with one_thread():
            return samples.write_all(models(), prompt, seed, self.chosen.sample)

    def _mend(self, workspace: Workspace, seed: int, recipes: Mapping[str, Recipe]) -> None:
        """Train again what was finished once and has no good last checkpoint any more."""
        tasks = [
            self._task(workspace, name_of(label, seed), recipe, seed, self.chosen.evaluations)
            for label, recipe in recipes.items()
        ]
        lost = [task for task in tasks if not is_done(Run(task.folder))]
        if not lost:
            return
        for name, ending in workspace.train_all(lost, self.pool).items():
            workspace.progress.note(
                f"{name} {ending['ending']}: {ending['why'] or 'trained again'}"
            )
            if ending["ending"] != "finished":
                raise ValueError(
                    f"{name} cannot be opened, and {ending['ending']}: {ending['why']}"
                )

    def _expected(self, each: int, evaluations: int) -> float:
        """Seconds of `each` trainings of every variant, of as many steps as they will have."""
        with one_thread():
            alone = [
                each * costs.expected_seconds(recipe, evaluations * self._held)
                for recipe in self.forecast().values()
            ]
        return STARTING + sum(alone) / self.pool.concurrency(each * len(alone))

    def forecast(self) -> dict[str, Recipe]:
        """The recipes as they will be matched; with match=seconds, by a few steps taken now."""
        known = {}
        if self.chosen.match == "seconds":
            with one_thread():
                pace = {label: costs.step_seconds(recipe) for label, recipe in self.recipes.items()}
            known[PACE] = {label: {"step_ms": 1e3 * one} for label, one in pace.items()}
        return {label: made.recipe for label, made in self._match(known).items()}


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
    rows = [(row["step"], row["loss"]) for row in run.read("metrics")]
    whole = ending["ending"] == "finished"
    steps = task.recipe.steps if whole else max((step for step, _ in rows), default=0)
    trained: CachedTraining = {
        "ending": ending["ending"],
        "why": ending["why"],
        "evaluations": [[row["step"], row["loss"]] for row in run.read("eval")],
        "by_stretch": held.read_log(run),
        "curve": [[step, loss] for step, loss in condense(rows, POINTS, steps)],
    }
    if whole:
        trained["held"] = held.measure(run)
    return trained
