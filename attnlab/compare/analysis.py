"""The results of a comparison: losses, verdicts, costs, and the answer in words.

All that the clock decides is under "measured" in the results, and in one section of the report:
without these, a comparison that was stopped and resumed gives the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean, variance
from typing import Any, NotRequired, TypedDict

from attnlab.compare.parse import ComparisonSettings, Search
from attnlab.experiments import held, verdicts
from attnlab.experiments.costs import CacheBytes, StepCost
from attnlab.experiments.held import Row, Sums
from attnlab.experiments.pool import Ending
from attnlab.experiments.presentation import Point, counted_seeds, listed, over_seeds, with_ends
from attnlab.experiments.samples import Samples
from attnlab.experiments.verdicts import Pair, Stretches, Verdict, Verdicts, over_text
from attnlab.statistics import Interval, Variance, mean_interval

LEAST_TURNS = 3  # fewer say nothing about how much the times of a step vary


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all variants share."""

    settings: ComparisonSettings
    seeds: list[int]
    text: str
    search: Search
    held_out: int  # tokens that a reported loss is the mean of
    tokens: int  # in a step
    context: int
    samples: Samples
    same_text: bool = True  # whether learning curves are of the text that losses are reported on


class RateSearch(TypedDict):
    """The search of a variant's learning rate."""

    losses: list[tuple[float, float | None]]  # by multiple of the rate; None: it did not finish
    chosen: float


class CachedTraining(Ending):
    """A training in the result of its job."""

    evaluations: list[list[float]]  # step and held-out loss
    by_stretch: NotRequired[list[Row]]  # the same evaluations; not in older folders
    held: NotRequired[Sums]  # after the last step; of finished trainings
    curve: list[list[float]]  # step and training loss


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    ending: str
    why: str
    curve: list[list[float]]  # step and training loss
    evaluations: list[list[float]]  # step and held-out loss
    text: Stretches | None = None  # held-out losses at the end; None: no worker measured them

    @classmethod
    def of(cls, cached: CachedTraining, searched: bool, by_stretch: bool) -> "TrainingResult":
        """Of the part of the held-out text that has chosen no rate."""
        evaluations = cached["evaluations"]
        if by_stretch:
            rows = cached.get("by_stretch", [])
            evaluations = [[row["step"], held.reporting_part(row, searched).loss] for row in rows]
        return cls(
            ending=cached["ending"],
            why=cached["why"],
            curve=cached["curve"],
            evaluations=evaluations,
            text=held.reporting_part(cached["held"], searched) if "held" in cached else None,
        )


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    label: str
    spec: str
    change: str  # made to match
    parameters: int
    operations: float  # for each token, in training
    steps: int
    cache: CacheBytes | None
    searched: RateSearch | None
    trained: dict[int, TrainingResult]  # by seed
    step: StepCost
    memory: int | None
    decoding: float | None

    @property
    def finished(self) -> dict[int, TrainingResult]:
        return {seed: one for seed, one in self.trained.items() if one.ending == "finished"}

    @property
    def unfinished(self) -> dict[int, TrainingResult]:
        return {seed: one for seed, one in self.trained.items() if seed not in self.finished}

    @property
    def losses(self) -> dict[int, float]:
        """Held out, at the end of each finished training."""
        last = {s: one.evaluations[-1][1] for s, one in self.finished.items() if one.evaluations}
        return {**last, **{seed: text.loss for seed, text in self.texts.items()}}

    @property
    def texts(self) -> dict[int, Stretches]:
        """The same losses by stretches of the text, where they were measured."""
        return {s: one.text for s, one in self.finished.items() if one.text is not None}

    @property
    def curve(self) -> list[Point]:
        """Held-out losses of all seeds at each evaluation that the logs of all of them have."""
        return over_seeds([one.evaluations for one in self.finished.values()])

    def steps_to(self, target: float) -> float | None:
        """Until the mean over the seeds is there, on a straight line between evaluations."""
        before: tuple[float, float] | None = None
        for step, losses in self.curve:
            loss = fmean(losses)
            if loss <= target:
                if before is None or before[1] == loss:
                    return float(step)
                return step - (step - before[0]) * (target - loss) / (before[1] - loss)
            before = (step, loss)
        return None

    def seconds_to(self, target: float) -> float | None:
        steps = self.steps_to(target)
        return None if steps is None else steps * self.step["step_ms"] / 1e3


@dataclass(frozen=True)
class Cost:
    """Of one variant: the lowest and highest of its turns, and the median."""

    low: float
    middle: float
    high: float

    def clearly_above(self, other: "Cost") -> bool:
        """Whether every turn of it cost more than every turn of the other."""
        return self.low > other.high


@dataclass(frozen=True)
class Analysis:
    conditions: Conditions
    variants: Sequence[VariantResult]

    @property
    def level(self) -> float:
        return self.conditions.settings.level

    @property
    def percent(self) -> str:
        return f"{100 * self.level:g} %"

    @property
    def seeds(self) -> str:
        return counted_seeds(len(self.conditions.seeds))

    @cached_property
    def ranked(self) -> list[VariantResult]:
        """Those with a loss, the best first."""
        there = [one for one in self.variants if one.losses]
        return sorted(there, key=lambda one: fmean(one.losses.values()))

    @property
    def _losses(self) -> dict[str, dict[int, float]]:
        return {one.label: one.losses for one in self.variants}

    @cached_property
    def verdicts(self) -> Verdicts:
        texts = {one.label: one.texts for one in self.variants}
        return verdicts.judge(verdicts.differences(self._losses, texts), self.level)

    @property
    def pairs(self) -> Sequence[Pair]:
        return self.verdicts.pairs

    @cached_property
    def noise(self) -> Variance | None:
        """Of one training around its variant and its seed, from all variants together."""
        return verdicts.residual(self._losses)

    def verdict(self, first: str, second: str) -> Verdict:
        return self.verdicts.between(first, second).verdict

    def above_best(self, one: VariantResult) -> Interval | None:
        """By how much its loss is above the lowest; None for the best itself and for no loss."""
        if not one.losses or one.label == self.ranked[0].label:
            return None
        return self.verdicts.between(one.label, self.ranked[0].label).interval

    def loss(self, one: VariantResult) -> Interval | None:
        """By the choice of seeds and, where stretches of it were measured, of the text."""
        if not one.losses:
            return None
        by_seeds = mean_interval(list(one.losses.values()), self.level)
        texts = list(one.texts.values())
        if len(one.losses) < 2 or len(texts) < len(one.losses):
            return by_seeds
        by_text = verdicts.text_variance(*over_text([text.batches() for text in texts]))
        if by_text is None:
            return by_seeds
        spread = Variance(variance(one.losses.values()) / len(texts), len(texts) - 1)
        return (spread + by_text).interval(by_seeds.mean, self.level, len(texts))

    @cached_property
    def target(self) -> float | None:
        """The loss asked for, or the best one that all variants with a loss have reached."""
        if self.conditions.settings.target is not None:
            return self.conditions.settings.target
        best = [min(fmean(losses) for _, losses in one.curve) for one in self.ranked if one.curve]
        return max(best) if best else None

    def front(self, cost: Mapping[str, Cost | None]) -> set[str]:
        """Variants of which no other is told to be better without clearly costing more."""
        known = {one.label: price for one in self.ranked if (price := cost[one.label]) is not None}
        return {
            label
            for label, price in known.items()
            if not any(
                other != label
                and self.verdict(other, label) == "better"
                and not theirs.clearly_above(price)
                for other, theirs in known.items()
            )
        }

    @property
    def cache_costs(self) -> dict[str, Cost | None]:
        return {
            one.label: None if one.cache is None else Cost(*3 * [one.cache["at_context"]])
            for one in self.variants
        }

    @property
    def step_costs(self) -> dict[str, Cost | None]:
        found: dict[str, Cost | None] = {}
        for one in self.variants:
            ends = one.step["fastest_ms"], one.step["slowest_ms"]
            if self.conditions.settings.turns < LEAST_TURNS:
                ends = 0.0, math.inf
            found[one.label] = Cost(ends[0], one.step["step_ms"], ends[1])
        return found


def answer(analysis: Analysis) -> str:
    unfinished = _unfinished(analysis)
    if not analysis.ranked:
        return f"No training finished: {unfinished}."
    best, others = analysis.ranked[0], [one.label for one in analysis.ranked[1:]]
    loss = fmean(best.losses.values())
    beaten = [name for name in others if analysis.verdict(best.label, name) == "better"]
    alike = [name for name in others if name not in beaten]
    parts = []
    if beaten:
        parts.append(f"that is better than {listed(beaten)}")
    if alike:
        parts.append(f"{analysis.seeds} cannot tell it from {listed(alike, 'or')}")
    said = f"; {', and '.join(parts)} at the level of {analysis.percent}" if parts else ""
    sentences = [
        f"{best.label} has the lowest held-out loss, {loss:.3f} nats a token"
        f"{_lead(analysis)}{said}.",
        f"{unfinished[0].upper()}{unfinished[1:]}." if unfinished else "",
        matching(analysis),
        rates(analysis),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _lead(analysis: Analysis) -> str:
    """How far the next is behind, seeds and text counted."""
    for one in analysis.ranked[1:]:
        lead = analysis.above_best(one)
        if lead is not None:
            return f", {with_ends(lead)} below {one.label}"
    return ""


def matching(analysis: Analysis) -> str:
    """What was changed to make the variants equal, and what is unequal through that."""
    by_parameters = analysis.conditions.settings.match == "parameters"
    unequal = "operations a token" if by_parameters else "parameters"

    def measure(one: VariantResult) -> float:
        return one.operations if by_parameters else one.parameters

    first, changed = analysis.variants[0], dict[str, list[str]]()
    for one in analysis.variants[1:]:
        if one.change:
            more = f"{100 * (measure(one) / measure(first) - 1):+.1f} % {unequal}"
            changed.setdefault(f"{one.change} ({more})", []).append(one.label)
    if not changed:
        return ""
    said = [f"{listed(labels)}: {change}" for change, labels in changed.items()]
    return f"To be equal in {EQUAL_IN[analysis.conditions.settings.match]}, {'; '.join(said)}."


EQUAL_IN = {
    "parameters": "parameters",
    "flops": "operations",
    "seconds": "seconds of steps",
    "steps": "steps",
}


def rates(analysis: Analysis) -> str:
    """Whether learning rates were searched, and which were taken."""
    search = analysis.conditions.search
    if not search.rates:
        return f"Learning rates were not searched: {search.why}."
    taken = dict[float, list[str]]()
    for one in analysis.variants:
        if one.searched is not None:
            taken.setdefault(one.searched["chosen"], []).append(one.label)
    said = [f"× {rate:g} for {listed(labels)}" for rate, labels in sorted(taken.items())]
    grid = listed([f"{rate:g}" for rate in search.rates])
    return (
        f"Learning rates were searched for each over × {grid}, on held-out text of their own; "
        f"taken: {', '.join(said)}."
    )


def _unfinished(analysis: Analysis) -> str:
    """Which variants diverged or failed, and how often."""
    said = []
    for one in analysis.variants:
        for ending in ("diverged", "failed"):
            times = sum(found.ending == ending for found in one.unfinished.values())
            if times:
                said.append(f"{one.label} {ending} in {times} of {len(one.trained)} trainings")
    return listed(said)


def summary(analysis: Analysis) -> dict[str, Any]:
    conditions, target = analysis.conditions, analysis.target
    on_front = analysis.front(analysis.cache_costs)
    return {
        "match": conditions.settings.match,
        "level": analysis.level,
        "seeds": conditions.seeds,
        "tuning": {"rates": list(conditions.search.rates), "why": conditions.search.why},
        "residual_spread": None if analysis.noise is None else math.sqrt(analysis.noise.value),
        "target": target,
        "variants": {
            one.label: {
                "spec": one.spec,
                "change": one.change,
                "parameters": one.parameters,
                "operations_per_token": one.operations,
                "steps": one.steps,
                "loss": None if (found := analysis.loss(one)) is None else asdict(found),
                "above_best": None if (lead := analysis.above_best(one)) is None else asdict(lead),
                "by_seed": {str(seed): loss for seed, loss in one.losses.items()},
                "stranded": {
                    str(seed): {"ending": found.ending, "why": found.why}
                    for seed, found in one.unfinished.items()
                },
                "steps_to_target": None if target is None else one.steps_to(target),
                "cache_bytes": one.cache,
                "on_front_of_cache": one.label in on_front,
                "rates": one.searched,
                "curve": [[step, fmean(losses)] for step, losses in one.curve],
            }
            for one in analysis.variants
        },
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "difference": None if pair.interval is None else asdict(pair.interval),
                "seeds_error": pair.seeds_error,
                "text_error": pair.text_error,
                "neighbours": pair.neighbours,
                "p": pair.p,
                "verdict": pair.verdict,
            }
            for pair in analysis.pairs
        ],
        "correction": "holm",
        "samples": conditions.samples,
        "measured": {
            one.label: {
                **{k: v for k, v in one.step.items() if k != "memory"},
                "seconds_to_target": None if target is None else one.seconds_to(target),
                "memory_bytes": one.memory,
                "decode_tokens_per_second": one.decoding,
                "on_front_of_time": one.label in analysis.front(analysis.step_costs),
            }
            for one in analysis.variants
        },
    }
