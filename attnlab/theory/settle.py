"""Settling claims: each is run as it stands and with its knob turned, and held to the record."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnlab import config, registry
from attnlab.experiments.progress import Progress
from attnlab.reports.report import formatted
from attnlab.theory import sources
from attnlab.theory.claim import Claim, Evidence, Measure, Verdict


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came out for a claim; `turned` is the evidence with the knob turned."""

    name: str
    claim: Claim
    evidence: Evidence
    turned: Evidence

    @property
    def verdict(self) -> Verdict:
        return self.evidence.verdict

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.claim.about.expected

    @property
    def knob_flips(self) -> bool:
        return self.turned.verdict != self.verdict

    def broken(self) -> "Outcome":
        """The outcome with the knob turned, in the place of the other."""
        return dataclasses.replace(self, claim=self.claim.turned(), evidence=self.turned)

    def plain(self) -> dict[str, Any]:
        """For JSON: everything but the picture."""
        about, evidence = self.claim.about, self.evidence
        first = evidence.measures[0]
        return {
            "name": self.name,
            "statement": about.statement,
            "formula": about.formula,
            "verdict": self.verdict,
            "expected": about.expected,
            "condition": about.condition or None,
            "evidence": evidence.kind,
            "trials": evidence.trials,
            "measured": first.plain()["value"],
            "rule": first.rule,
            "bound": first.bound,
            "measures": [measure.plain() for measure in evidence.measures],
            "outside": [measure.plain() for measure in evidence.outside],
            "chance": None if evidence.chance is None else dataclasses.asdict(evidence.chance),
            "questions": list(about.questions),
            # of the claim as it stands: no document said anything about other settings
            "answers": [
                {**dataclasses.asdict(one), "marks": dataclasses.asdict(evidence.marks[one.key])}
                for one in about.answers
                if self.claim.standing
            ],
            "settings": config.to_dict(self.claim),
            "knob": {"words": about.knob.words, **config.to_dict(self.claim.turned())},
            "knob_verdict": self.turned.verdict,
            "knob_measures": [measure.plain() for measure in self.turned.measures],
        }


def load(name: str, words: Sequence[str] = ()) -> Claim:
    """A claim by name, with `key=value` words applied."""
    claim: Claim = config.override(registry.load("claim", name)(), words)
    return claim


def names(*, quick: bool = False) -> list[str]:
    """All claims, in the order of the theory; quick ones train nothing."""
    every = [option.name for option in registry.options("claim")]
    return [name for name in every if not quick or not registry.load("claim", name).trained]


def answering(question: str) -> list[str]:
    """The claims that settle a question of the courses, such as "A4 1(c)"."""
    wanted = sources.asked(question)
    found = [
        name for name in names() if set(wanted) & set(registry.load("claim", name).about.questions)
    ]
    if not found:
        raise ValueError(f"no claim settles {question}: {sources.UNSETTLED[wanted[0]]}")
    return found


def settle(name: str, claim: Claim, progress: Progress | None = None) -> Outcome:
    turned = claim.turned()
    for one in (claim, turned):
        one.prepare(progress or Progress())
    return Outcome(
        name=registry.find("claim", name).name,
        claim=claim,
        evidence=claim.run(),
        turned=turned.run(),
    )


def said(measure: Measure) -> str:
    """A measure in a line; rounding below 1e-9 is told as such, for it differs by machine."""
    tiny = 0 < abs(measure.value) < 1e-9 and measure.rule in ("≤", "<")
    value = "rounding only" if tiny else formatted(measure.value)
    if measure.low is not None and measure.high is not None:
        value += f", interval {formatted(measure.low)} to {formatted(measure.high)}"
    undecided = "; undecided" if measure.answer == "undecided" else ""
    return f"{measure.what}: {value} ({measure.rule} {measure.bound:g}{undecided})"


def deciding(measures: Sequence[Measure]) -> Measure:
    """The measure that made the verdict: the first that was missed, else undecided, else any."""
    for answer in ("missed", "undecided"):
        for one in measures:
            if one.answer == answer:
                return one
    return measures[0]
