"""A claim: a sentence of the theory, an experiment that settles it, and a knob that breaks it.

    settings --run--> Evidence: measured against bounds --computed--> Verdict

The settings of a claim are its fields, each with its range, so that a command line or a slider can
change them. Turning the knob changes some of them so that the verdict must change: an experiment
whose verdict stays the same whatever is done to it shows nothing.
"""

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, ClassVar, Literal

from attnlab.reports.report import Block, Picture, Plot
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
Met = Literal["met", "missed", "undecided"]
# of what a document concludes, and of the reason it gives
Mark = Literal["right", "incomplete", "wrong"]
EQUAL = 1e-12  # how close two float64 results of one formula are: a few thousand roundings of 1

_RULES: dict[str, Callable[[float, float], bool]] = {
    "≤": operator.le,
    "<": operator.lt,
    "≥": operator.ge,
    ">": operator.gt,
    "=": operator.eq,
}


@dataclass(frozen=True)
class Measure:
    """A measured number and the bound it is held to; NaN meets nothing.

    A number that chance had a part in has the ends of an interval: it meets its bound when the
    whole interval does, misses it when none of the interval does, and is else undecided.
    """

    what: str
    value: float
    rule: Literal["≤", "<", "≥", ">", "="]
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
        """Of independent repetitions, with its interval; a single one decides nothing."""
        found = mean_interval(draws, level)
        low = -math.inf if found.low is None else found.low
        high = math.inf if found.high is None else found.high
        return cls(what, found.mean, rule, bound, low, high, tuple(draws))

    @property
    def answer(self) -> Met:
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        found = {bool(_RULES[self.rule](end, self.bound)) for end in (low, self.value, high)}
        return "undecided" if len(found) > 1 else "met" if found == {True} else "missed"

    @property
    def met(self) -> bool:
        return self.answer == "met"

    def plain(self) -> dict[str, Any]:
        """For JSON, which has no infinity and no NaN: these are text."""
        numbers = {
            name: number if number is None or math.isfinite(number) else str(number)
            for name in ("value", "bound", "low", "high")
            for number in [getattr(self, name)]
        }
        said = {"what": self.what, "rule": self.rule, "draws": list(self.draws)}
        return {**said, **numbers, "met": self.met, "answer": self.answer}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Measure":
        low, high = (None if plain[end] is None else float(plain[end]) for end in ("low", "high"))
        value, bound = float(plain["value"]), float(plain["bound"])
        return cls(plain["what"], value, plain["rule"], bound, low, high, tuple(plain["draws"]))


@dataclass(frozen=True)
class Chance:
    """How often chance decides, in runs like this one with other draws."""

    false_refutation: float  # the most, of "refuted" where the claim is true
    false_confirmation: float | None  # the most, of "holds" where it is false; None: no bound
    power: float | None = None  # of the verdict found here, if the truth is what was measured

    @classmethod
    def of_means(cls, measures: Sequence[Measure], level: float) -> "Chance":
        """An end of an interval is wrong in (1 − level)/2; for "holds" all must be right."""
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
class Marks:
    conclusion: Mark
    reason: Mark | None = None  # None: the document gives no reason


def mark(true: bool, complete: bool = True) -> Mark:
    """From two measured facts: is it true, and is it still true without what is left unsaid?"""
    return "wrong" if not true else "right" if complete else "incomplete"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an experiment found.

    The claim holds when all `measures` are met, is refuted when one is missed, and cannot be told
    when one is undecided. Where it holds with a condition, `outside` are measures taken beyond it,
    met when the claim fails there. `marks` judge the answers of the documents, by their keys: each
    is computed from measurements, of the statement that we read in the document's words.
    """

    kind: Kind
    trials: int  # cases, samples or trainings that went into it
    measures: Sequence[Measure]  # the first is the one to show in a line
    outside: Sequence[Measure] = ()
    marks: Mapping[str, Marks] = field(default_factory=dict)
    picture: Plot | Picture
    details: Sequence[Block] = ()
    chance: Chance | None = None

    def __post_init__(self) -> None:
        assert self.measures, "evidence without a measure cannot fail"
        statistical = self.kind in ("statistical", "trained")
        assert statistical == (self.chance is not None), "chance states its error rates"

    @property
    def verdict(self) -> Verdict:
        answers = {measure.answer for measure in self.measures}
        if "missed" in answers:
            return "refuted"
        if "undecided" in answers:
            return "cannot tell"
        bounded = bool(self.outside) and all(measure.met for measure in self.outside)
        return "holds with a condition" if bounded else "holds"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one of the documents (`sources.py`) answers.

    The quotation is the document's. What we read in it, and what the run therefore tests, is our
    judgement, typed by hand: `conclusion` and `reason`.
    """

    document: str  # "001", or with a voice: "004 student"
    part: str  # as the document counts them
    line: int  # of its file, where the quotation begins
    quote: str
    conclusion: str
    reason: str = ""  # empty: it gives none

    @property
    def key(self) -> str:
        return f"{self.document} {self.part}"


@dataclass(frozen=True)
class Knob:
    words: str
    changes: Mapping[str, Any]  # of the settings


@dataclass(frozen=True, kw_only=True)
class About:
    """What there is to read about a claim; formulas are plain text, one a line."""

    statement: str
    formula: str
    derivation: str  # paragraphs, for a reader with two years of university mathematics
    expected: Verdict  # recorded; a run that says otherwise is reported
    condition: str = ""  # where it holds, when it does so with a condition
    questions: Sequence[str] = ()  # of the courses (`sources.QUESTIONS`), which it settles
    answers: Sequence[Answer] = ()
    knob: Knob
    remark: str = ""  # what the runs taught beyond the verdict


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """Subclasses add settings (fields made by `setting`), `about` and `run`."""

    about: ClassVar[About]
    trained: ClassVar[bool] = False  # takes minutes: left out by --quick

    seed: int = field(default=0, metadata={"range": (0, 2**31 - 1)})

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            low, high = one.metadata.get("range", (None, None))
            value = getattr(self, one.name)
            if low is not None and value is not None and not low <= value <= high:
                raise ValueError(f"{one.name} is {value}; it goes from {low} to {high}")

    def prepare(self, progress: Any) -> None:  # noqa: B027  (most have nothing to prepare)
        """Do what takes long and is kept, such as trainings; `run` then finds it done."""

    @abstractmethod
    def run(self) -> Evidence: ...

    def turned(self) -> "Claim":
        """The same claim with its knob turned."""
        return dataclasses.replace(self, **self.about.knob.changes)

    @property
    def standing(self) -> bool:
        """Whether this is the claim as it stands: other draws or fewer cases do not change it."""
        return all(
            one.name in ("seed", "runs")
            or getattr(self, one.name) in (one.default, one.metadata.get("live") or one.default)
            for one in dataclasses.fields(self)
        )


def setting(
    default: Any, *, low: Any = None, high: Any = None, about: str = "", live: Any = None
) -> Any:
    """A field with its range (ends included) and what it is.

    `live` is the most that is tried while somebody waits for the answer at a slider.
    """
    metadata = {"about": about, "live": live, **({} if low is None else {"range": (low, high)})}
    return field(default=default, metadata=metadata)
