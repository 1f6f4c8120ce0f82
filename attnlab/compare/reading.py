"""What the parts of a comparison say: losses, verdicts, costs, and the answer in words.

All that the clock decides is under "measured" in the results, and in one section of the report:
without these, a comparison that was stopped and went on gives the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean, variance
from typing import Any

from attnlab.compare.verdicts import (
    Pair,
    Stretches,
    Verdict,
    over_text,
    pairs,
    residual,
    text_variance,
    turned,
)
from attnlab.compare.words import Comparison, Search
from attnlab.statistics import Interval, Variance, mean_interval
from attnlab.studies.language import with_ends

LEAST_TURNS = 3  # fewer say nothing about how much the times of a step vary


@dataclass(frozen=True, kw_only=True)
class About:
    comparison: Comparison
    seeds: list[int]
    text: str
    search: Search
    held_out: int  # tokens
    tokens: int  # in a step
    context: int
    samples: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A variant, and what came of it."""

    label: str
    spec: str
    change: str  # made to be equal
    parameters: int
    operations: float  # for each token, in training
    steps: int
    cache: dict[str, Any] | None
    searched: dict[str, Any] | None
    trained: dict[int, dict[str, Any]]  # by seed
    step: dict[str, Any]
    memory: int | None
    decoding: float | None

    @property
    def finished(self) -> dict[int, dict[str, Any]]:
        return {s: one for s, one in self.trained.items() if one["ending"] == "finished"}

    @property
    def losses(self) -> dict[int, float]:
        """Held out, at the end of each training that came to its end."""
        last = {seed: one["evaluations"][-1][1] for seed, one in self.finished.items()}
        return {**last, **{seed: text.loss for seed, text in self.texts.items()}}

    @property
    def texts(self) -> dict[int, Stretches]:
        """The same losses by stretches of the text, where they were measured."""
        return {seed: one["held"] for seed, one in self.finished.items() if "held" in one}

    @property
    def stranded(self) -> dict[int, dict[str, str]]:
        return {
            seed: {"ending": one["ending"], "why": one["why"]}
            for seed, one in self.trained.items()
            if seed not in self.finished
        }

    @property
    def curve(self) -> list[tuple[int, list[float]]]:
        """Held-out losses of all seeds at each evaluation."""
        rows = [one["evaluations"] for one in self.finished.values()]
        return [(at[0][0], [loss for _, loss in at]) for at in zip(*rows, strict=True)]

    def steps_to(self, target: float) -> float | None:
        """Until the mean over the seeds is there, on a straight line between evaluations."""
        before: tuple[int, float] | None = None
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
class Reading:
    about: About
    contenders: Sequence[Contender]

    @property
    def level(self) -> float:
        return self.about.comparison.level

    @property
    def percent(self) -> str:
        return f"{100 * self.level:g} %"

    @cached_property
    def ranked(self) -> list[Contender]:
        """Those with a loss, the best first."""
        there = [one for one in self.contenders if one.losses]
        return sorted(there, key=lambda one: fmean(one.losses.values()))

    @cached_property
    def pairs(self) -> list[Pair]:
        texts = {one.label: one.texts for one in self.contenders}
        return pairs(self._losses, self.level, texts)

    @property
    def _losses(self) -> dict[str, dict[int, float]]:
        return {one.label: one.losses for one in self.contenders}

    @cached_property
    def noise(self) -> Variance | None:
        """Of one training around its variant and its seed, from all variants together."""
        return residual(self._losses)

    def verdict(self, first: str, second: str) -> Verdict:
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair.verdict
            if (pair.second, pair.first) == (first, second):
                return turned(pair.verdict)
        raise KeyError((first, second))

    def above_best(self, one: Contender) -> Interval | None:
        """By how much its loss is above the lowest; None for the best itself and for no loss."""
        best = self.ranked[0].label if self.ranked else None
        for pair in self.pairs:
            if pair.interval is not None and (pair.first, pair.second) == (one.label, best):
                return pair.interval
            if pair.interval is not None and (pair.second, pair.first) == (one.label, best):
                return pair.interval.negated
        return None

    def loss(self, one: Contender) -> Interval | None:
        """By the choice of seeds and, where stretches of it were measured, of the text."""
        if not one.losses:
            return None
        by_seeds = mean_interval(list(one.losses.values()), self.level)
        texts = list(one.texts.values())
        if len(one.losses) < 2 or len(texts) < len(one.losses):
            return by_seeds
        by_text = text_variance(*over_text([text.batches() for text in texts]))
        if by_text is None:
            return by_seeds
        spread = Variance(variance(one.losses.values()) / len(texts), len(texts) - 1)
        return (spread + by_text).interval(by_seeds.mean, self.level, len(texts))

    @cached_property
    def target(self) -> float | None:
        """A loss that was asked for, or the best one that all variants with a loss have reached."""
        if self.about.comparison.target is not None:
            return self.about.comparison.target
        best = [min(fmean(losses) for _, losses in one.curve) for one in self.ranked]
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
            for one in self.contenders
        }

    @property
    def step_costs(self) -> dict[str, Cost | None]:
        found: dict[str, Cost | None] = {}
        for one in self.contenders:
            ends = one.step["fastest_ms"], one.step["slowest_ms"]
            if self.about.comparison.turns < LEAST_TURNS:
                ends = 0.0, math.inf
            found[one.label] = Cost(ends[0], one.step["step_ms"], ends[1])
        return found

    @property
    def counted_seeds(self) -> str:
        return f"{len(self.about.seeds)} seed" + ("" if len(self.about.seeds) == 1 else "s")


def answer(reading: Reading) -> str:
    stranded = _stranded(reading)
    if not reading.ranked:
        return f"None came to its end: {stranded}."
    best, others = reading.ranked[0], [one.label for one in reading.ranked[1:]]
    loss = fmean(best.losses.values())
    beaten = [name for name in others if reading.verdict(best.label, name) == "better"]
    alike = [name for name in others if name not in beaten]
    parts = []
    if beaten:
        parts.append(f"that is better than {listed(beaten)}")
    if alike:
        parts.append(f"{reading.counted_seeds} cannot tell it from {listed(alike, 'or')}")
    said = f"; {', and '.join(parts)} at the level of {reading.percent}" if parts else ""
    sentences = [
        f"{best.label} has the lowest held-out loss, {loss:.3f} nats a token"
        f"{_lead(reading)}{said}.",
        f"{stranded[0].upper()}{stranded[1:]}." if stranded else "",
        matching(reading),
        rates(reading),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _lead(reading: Reading) -> str:
    """How far the next is behind, seeds and text counted."""
    for one in reading.ranked[1:]:
        lead = reading.above_best(one)
        if lead is not None:
            return f", {with_ends(lead)} below {one.label}"
    return ""


def matching(reading: Reading) -> str:
    """What was changed to make the variants equal, and what is unequal through that."""
    by_parameters = reading.about.comparison.match == "parameters"
    unequal = "operations a token" if by_parameters else "parameters"

    def measure(one: Contender) -> float:
        return one.operations if by_parameters else one.parameters

    first, changed = reading.contenders[0], dict[str, list[str]]()
    for one in reading.contenders[1:]:
        if one.change:
            more = f"{100 * (measure(one) / measure(first) - 1):+.1f} % {unequal}"
            changed.setdefault(f"{one.change} ({more})", []).append(one.label)
    if not changed:
        return ""
    said = [f"{listed(labels)}: {change}" for change, labels in changed.items()]
    return f"To be equal in {EQUAL_IN[reading.about.comparison.match]}, {'; '.join(said)}."


EQUAL_IN = {
    "parameters": "parameters",
    "flops": "operations",
    "seconds": "seconds of steps",
    "steps": "steps",
}


def rates(reading: Reading) -> str:
    """Whether learning rates were searched, and which were taken."""
    search = reading.about.search
    if not search.rates:
        return f"Learning rates were not searched: {search.why}."
    taken = dict[float, list[str]]()
    for one in reading.contenders:
        if one.searched is not None:
            taken.setdefault(one.searched["chosen"], []).append(one.label)
    said = [f"× {rate:g} for {listed(labels)}" for rate, labels in sorted(taken.items())]
    grid = listed([f"{rate:g}" for rate in search.rates])
    return (
        f"Learning rates were searched for each over × {grid}, on held-out text of their own; "
        f"taken: {', '.join(said)}."
    )


def _stranded(reading: Reading) -> str:
    """Who diverged or failed, and how often."""
    said = []
    for one in reading.contenders:
        for ending in ("diverged", "failed"):
            times = sum(found["ending"] == ending for found in one.stranded.values())
            if times:
                said.append(f"{one.label} {ending} in {times} of {len(one.trained)} trainings")
    return listed(said)


def summary(reading: Reading) -> dict[str, Any]:
    about, target = reading.about, reading.target
    on_front = reading.front(reading.cache_costs)
    return {
        "match": about.comparison.match,
        "level": reading.level,
        "seeds": about.seeds,
        "tuning": {"rates": list(about.search.rates), "why": about.search.why},
        "residual_spread": None if reading.noise is None else math.sqrt(reading.noise.value),
        "target": target,
        "variants": {
            one.label: {
                "spec": one.spec,
                "change": one.change,
                "parameters": one.parameters,
                "operations_per_token": one.operations,
                "steps": one.steps,
                "loss": None if (found := reading.loss(one)) is None else asdict(found),
                "above_best": None if (lead := reading.above_best(one)) is None else asdict(lead),
                "by_seed": {str(seed): loss for seed, loss in one.losses.items()},
                "stranded": {str(seed): why for seed, why in one.stranded.items()},
                "steps_to_target": None if target is None else one.steps_to(target),
                "cache_bytes": one.cache,
                "on_front_of_cache": one.label in on_front,
                "rates": one.searched,
                "curve": [[step, fmean(losses)] for step, losses in one.curve],
            }
            for one in reading.contenders
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
            for pair in reading.pairs
        ],
        "correction": "holm",
        "samples": about.samples,
        "measured": {
            one.label: {
                **{k: v for k, v in one.step.items() if k != "memory"},
                "seconds_to_target": None if target is None else one.seconds_to(target),
                "memory_bytes": one.memory,
                "decode_tokens_per_second": one.decoding,
                "on_front_of_time": one.label in reading.front(reading.step_costs),
            }
            for one in reading.contenders
        },
    }


def listed(names: Sequence[str], last: str = "and") -> str:
    """a, b and c"""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
