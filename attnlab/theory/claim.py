"""A claim: a sentence of the theory, an experiment that tests it, and a knob that breaks it.

    settings --run--> Evidence: measures with their bounds --computed--> Verdict

The settings of a claim are its fields. Each has a range, so that the command line or a slider can
change it. The knob is a negative control: it changes settings so that the verdict must change. An
experiment whose verdict never changes shows nothing.
"""

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, ClassVar, Literal, TypedDict

from attnlab.config import setting, settings
from attnlab.experiments.progress import Progress
from attnlab.reports.report import Block, Picture, Plot, format_cell
from attnlab.statistics import mean_interval, power

# the kinds of evidence, strongest first
KINDS = {
    "exact": "all cases, in whole numbers or fractions",
    "construction": "an explicit equality, in float64 to 1e-12",
    "counterexample": "small numbers that anybody can check",
    "statistical": "a seeded sample, held to a bound that allows for chance",
    "counted": "operations and bytes, counted",
    "trained": "models were trained, several times with other data, and an interval",
}
Kind = Literal["exact", "construction", "counterexample", "statistical", "counted", "trained"]
Verdict = Literal["holds", "refuted", "holds with a condition", "cannot tell"]
Rule = Literal["≤", "<", "≥", ">", "="]
Decision = Literal["met", "missed", "undecided"]  # of a measure
Mark = Literal["right", "incomplete", "wrong"]  # of what a document says
EQUAL = 1e-12  # how close two float64 results of one formula are: a few thousand roundings of 1

_RULES: dict[Rule, Callable[[float, float], bool]] = {
    "≤": operator.le,
    "<": operator.lt,
    "≥": operator.ge,
    ">": operator.gt,
    "=": operator.eq,
}


class PlainMeasure(TypedDict):
    """A measure in JSON, which has no infinity and no NaN: these are text."""

    what: str
    rule: Rule
    draws: list[float]
    value: float | str
    bound: float | str
    low: float | str | None
    high: float | str | None
    met: bool
    answer: Decision


@dataclass(frozen=True)
class Measure:
    """A measured number and its bound; NaN meets no bound.

    A random number has an interval, from `low` to `high`. It meets its bound when the whole
    interval does, misses it when no part of the interval meets it, and is undecided otherwise.
    """

    what: str
    value: float
    rule: Rule
    bound: float
    low: float | None = None
    high: float | None = None
    draws: Sequence[float] = ()  # what it is the mean of

    def __post_init__(self) -> None:
        assert (self.low is None) == (self.high is None), "an interval has two ends"
        assert self.low is None or self.rule != "=", "no interval equals a number"

    @classmethod
    def mean(
        cls,
        what: str,
        draws: Sequence[float],
        rule: Literal["<", ">"],
        bound: float,
        level: float,
    ) -> "Measure":
        """The mean of independent repetitions with its interval; one repetition is undecided."""
        found = mean_interval(draws, level)
        low = -math.inf if found.low is None else found.low
        high = math.inf if found.high is None else found.high
        return cls(what, found.mean, rule, bound, low, high, tuple(draws))

    @property
    def decision(self) -> Decision:
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        found = {bool(_RULES[self.rule](end, self.bound)) for end in (low, self.value, high)}
        return "undecided" if len(found) > 1 else "met" if found == {True} else "missed"

    @property
    def met(self) -> bool:
        return self.decision == "met"

    def describe(self) -> str:
        """One line. A rounding error below 1e-9 is called that: its digits differ by machine."""
        tiny = 0 < abs(self.value) < 1e-9 and self.rule in ("≤", "<")
        value = "rounding only" if tiny else format_cell(self.value)
        if self.low is not None and self.high is not None:
            value += f", interval {format_cell(self.low)} to {format_cell(self.high)}"
        undecided = "; undecided" if self.decision == "undecided" else ""
        return f"{self.what}: {value} ({self.rule} {self.bound:g}{undecided})"

    def plain(self) -> PlainMeasure:
        return {
            "what": self.what,
            "rule": self.rule,
            "draws": list(self.draws),
            "value": _finite_or_text(self.value),
            "bound": _finite_or_text(self.bound),
            "low": None if self.low is None else _finite_or_text(self.low),
            "high": None if self.high is None else _finite_or_text(self.high),
            "met": self.met,
            "answer": self.decision,
        }

    @classmethod
    def from_plain(cls, plain: PlainMeasure) -> "Measure":
        low, high = (None if end is None else float(end) for end in (plain["low"], plain["high"]))
        value, bound = float(plain["value"]), float(plain["bound"])
        return cls(plain["what"], value, plain["rule"], bound, low, high, tuple(plain["draws"]))


def _finite_or_text(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def decisive(measures: Sequence[Measure]) -> Measure:
    """The measure that made the verdict: the first missed one, else undecided, else the first."""
    for decision in ("missed", "undecided"):
        for one in measures:
            if one.decision == decision:
                return one
    return measures[0]


@dataclass(frozen=True)
class ErrorRates:
    """Error rates of the verdict, over runs like this one with other random seeds."""

    false_refutation: float  # upper bound: "refuted" where the claim is true
    false_confirmation: float | None  # upper bound: "holds" where it is false; None: unknown
    power: float | None = None  # how often this verdict comes out if the truth is as measured

    @classmethod
    def of_means(cls, measures: Sequence[Measure], level: float) -> "ErrorRates":
        """One end of an interval is wrong in (1 − level)/2; "holds" needs all measures met."""
        tail = (1 - level) / 2
        missed = sum(1 - _power(one, level) for one in measures)
        holds = all(one.met for one in measures)
        return cls(
            false_refutation=round(tail * len(measures), 9),
            false_confirmation=round(tail, 9),
            power=max(1 - missed, 0.0) if holds else None,
        )


def _power(measure: Measure, level: float) -> float:
    sign = 1 if measure.rule == ">" else -1
    draws = [sign * one for one in measure.draws]
    return power(fmean(draws), stdev(draws), len(draws), sign * measure.bound, level)


@dataclass(frozen=True)
class Judgement:
    """The marks of one answer of a document."""

    conclusion: Mark
    reason: Mark | None = None  # None: the document gives no reason


def mark(true: bool, complete: bool = True) -> Mark:
    """From two measurements: is it true, and is it true without conditions it does not state?"""
    return "wrong" if not true else "right" if complete else "incomplete"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an experiment found.

    The claim is refuted when one of the `measures` is missed. Otherwise the verdict is "cannot
    tell" when one is undecided, and "holds" when all are met. If the claim holds with a condition,
    `outside` are measures where the condition fails; they are met when the claim fails there too.
    `judgements` holds the marks of the documents' answers, by `Answer.key`. Each mark is computed
    from measurements of what we take the document's words to state.
    """

    kind: Kind
    trials: int  # cases, samples or trainings
    measures: Sequence[Measure]  # the first one is the headline
    outside: Sequence[Measure] = ()
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    picture: Plot | Picture
    details: Sequence[Block] = ()
    error_rates: ErrorRates | None = None

    def __post_init__(self) -> None:
        assert self.measures, "evidence without a measure cannot fail"
        statistical = self.kind in ("statistical", "trained")
        assert statistical == (self.error_rates is not None), "random evidence has error rates"

    @property
    def verdict(self) -> Verdict:
        decisions = {measure.decision for measure in self.measures}
        if "missed" in decisions:
            return "refuted"
        if "undecided" in decisions:
            return "cannot tell"
        bounded = bool(self.outside) and all(measure.met for measure in self.outside)
        return "holds with a condition" if bounded else "holds"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one of the documents (`sources.py`) answers to a question.

    `quote` is the document's text. `conclusion` and `reason` are our reading of it, typed by hand;
    the run tests these.
    """

    document: str  # "001", or with a voice: "004 student"
    part: str  # in the document's own numbering
    line: int  # of its file, where the quotation begins
    quote: str
    conclusion: str
    reason: str = ""  # empty: the document gives none

    @property
    def key(self) -> str:
        return f"{self.document} {self.part}"


@dataclass(frozen=True)
class Knob:
    """Changes of the settings that must change the verdict."""

    words: str
    changes: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class About:
    """What a reader is told about a claim; formulas are plain text, one per line."""

    statement: str
    formula: str
    derivation: str  # paragraphs, for a reader with two years of university mathematics
    expected: Verdict  # a run with another verdict fails
    condition: str = ""  # where the claim holds, if it holds with a condition
    questions: Sequence[str] = ()  # of the courses that it settles: keys of `sources.QUESTIONS`
    answers: Sequence[Answer] = ()
    knob: Knob
    remark: str = ""  # what the runs showed beyond the verdict


@settings
class Claim(ABC):
    """Subclasses add settings, `about` and `run`.

    A setting whose metadata has `live` is at most that on the page, where a person at a slider
    waits for the result.
    """

    about: ClassVar[About]
    trained: ClassVar[bool] = False  # trains models, which takes minutes; --quick leaves it out

    seed: int = setting(0, low=0, high=2**31 - 1, about="random seed of all that is drawn")

    def prepare(self, progress: Progress) -> None:  # noqa: B027  (most have nothing to prepare)
        """Do slow work whose result is stored, such as training; `run` then reads the result."""

    @abstractmethod
    def run(self) -> Evidence: ...

    def with_knob(self) -> "Claim":
        """The same claim with its knob turned."""
        changes: dict[str, Any] = dict(self.about.knob.changes)  # of fields of any type
        return dataclasses.replace(self, **changes)

    @property
    def changes(self) -> str:
        """The settings that differ from the recorded ones, in words."""
        return ", ".join(
            f"{one.name}={getattr(self, one.name)} (recorded: {one.default})"
            for one in dataclasses.fields(self)
            if getattr(self, one.name) != one.default and one.name != "runs"
        )

    @property
    def has_default_settings(self) -> bool:
        """Whether all settings are the defaults, or the page's smaller number of cases.

        Another seed or another folder of runs is still the same claim.
        """
        return all(
            one.name in ("seed", "runs")
            or getattr(self, one.name) in (one.default, one.metadata.get("live") or one.default)
            for one in dataclasses.fields(self)
        )
