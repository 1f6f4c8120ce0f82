"""A claim: a sentence of the theory, an experiment that settles it, and a knob that breaks it.

    settings --run--> Evidence: measured against bounds --computed--> Verdict

The settings of a claim are its fields, each with its range, so that a command line or a slider can
change them. Turning the knob changes some of them so that the verdict must change: an experiment
whose verdict stays the same whatever is done to it shows nothing.
"""

import dataclasses
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from attnlab.reports.report import Block, Picture, Plot

# the kinds of evidence, strongest first
KINDS = {
    "exact": "all cases, in whole numbers or fractions",
    "construction": "an explicit equality, in float64 to 1e-12",
    "counterexample": "small numbers that anybody can check",
    "statistical": "a seeded sample with an interval",
    "counted": "operations and bytes, counted",
    "trained": "models were trained, with several seeds",
}
Kind = Literal["exact", "construction", "counterexample", "statistical", "counted", "trained"]
Verdict = Literal["holds", "refuted", "holds with a condition"]
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
    """A measured number and what it is held to; NaN meets nothing."""

    what: str
    value: float
    rule: Literal["≤", "<", "≥", ">", "="]
    bound: float

    @property
    def met(self) -> bool:
        return bool(_RULES[self.rule](self.value, self.bound))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an experiment found.

    The claim holds when all `measures` are met. Where it holds with a condition, `outside` are
    measures taken beyond it, met when the claim fails there. `right` says of each answer of the
    documents whether this run agrees with it; like the verdict it is computed, never typed.
    """

    kind: Kind
    trials: int  # cases, samples or trainings that went into it
    measures: Sequence[Measure]  # the first is the one to show in a line
    outside: Sequence[Measure] = ()
    right: Mapping[str, bool] = field(default_factory=dict)
    picture: Plot | Picture
    details: Sequence[Block] = ()
    false_alarm: float | None = None  # the chance that this run refutes what is true

    def __post_init__(self) -> None:
        assert self.measures, "evidence without a measure cannot fail"
        statistical = self.kind in ("statistical", "trained")
        assert statistical == (self.false_alarm is not None), "chance has a false-alarm rate"

    @property
    def verdict(self) -> Verdict:
        if not all(measure.met for measure in self.measures):
            return "refuted"
        bounded = bool(self.outside) and all(measure.met for measure in self.outside)
        return "holds with a condition" if bounded else "holds"


@dataclass(frozen=True)
class Answer:
    """What one of the documents (`sources.py`) answers, in our words."""

    document: str  # "001", or with a voice: "004 student"
    part: str  # as the document counts them
    said: str


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


def setting(
    default: Any, *, low: Any = None, high: Any = None, about: str = "", live: Any = None
) -> Any:
    """A field with its range (ends included) and what it is.

    `live` is the most that is tried while somebody waits for the answer at a slider.
    """
    metadata = {"about": about, "live": live, **({} if low is None else {"range": (low, high)})}
    return field(default=default, metadata=metadata)
