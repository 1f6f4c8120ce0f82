"""The result of a claim: the evidence with its settings, and again with its knob turned."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from attnlab import config, registry
from attnlab.experiments.progress import Progress
from attnlab.theory.claim import (
    Answer,
    Claim,
    ErrorRates,
    Evidence,
    Judgement,
    Kind,
    Mark,
    PlainMeasure,
    Rule,
    Verdict,
)


class PlainJudgement(TypedDict):
    conclusion: Mark
    reason: Mark | None


class PlainAnswer(TypedDict):
    """An answer of a document with its marks."""

    document: str
    part: str
    line: int
    quote: str
    conclusion: str
    reason: str
    marks: PlainJudgement


class PlainErrorRates(TypedDict):
    false_refutation: float
    false_confirmation: float | None
    power: float | None


class Headline(TypedDict):
    """The first measure of a result, for readers that show one number."""

    measured: float | str
    rule: Rule
    bound: float | str


class PlainResult(Headline):
    """A result in JSON, without pictures and tables."""

    name: str
    statement: str
    formula: str
    verdict: Verdict
    expected: Verdict
    condition: str | None
    evidence: Kind
    trials: int
    measures: list[PlainMeasure]
    outside: list[PlainMeasure]
    error_rates: PlainErrorRates | None
    questions: list[str]
    answers: list[PlainAnswer]
    settings: Mapping[str, object]
    knob: Mapping[str, object]
    knob_verdict: Verdict
    knob_measures: list[PlainMeasure]


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    name: str
    claim: Claim
    evidence: Evidence
    knob_evidence: Evidence

    @property
    def verdict(self) -> Verdict:
        return self.evidence.verdict

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.claim.about.expected

    @property
    def knob_flips(self) -> bool:
        return self.knob_evidence.verdict != self.verdict

    def with_knob(self) -> "ClaimResult":
        """The result with the knob turned, as if it were the claim's own."""
        return dataclasses.replace(self, claim=self.claim.with_knob(), evidence=self.knob_evidence)

    def plain(self) -> PlainResult:
        about, evidence = self.claim.about, self.evidence
        measures = [measure.plain() for measure in evidence.measures]
        return {
            "name": self.name,
            "statement": about.statement,
            "formula": about.formula,
            "verdict": self.verdict,
            "expected": about.expected,
            "condition": about.condition or None,
            "evidence": evidence.kind,
            "trials": evidence.trials,
            **headline(measures[0]),
            "measures": measures,
            "outside": [measure.plain() for measure in evidence.outside],
            "error_rates": _error_rates(evidence.error_rates),
            "questions": list(about.questions),
            "answers": self._answers(),
            "settings": config.to_dict(self.claim),
            "knob": {"words": about.knob.words, **config.to_dict(self.claim.with_knob())},
            "knob_verdict": self.knob_evidence.verdict,
            "knob_measures": [measure.plain() for measure in self.knob_evidence.measures],
        }

    def _answers(self) -> list[PlainAnswer]:
        """None with other settings: the documents said nothing about these."""
        if not self.claim.has_default_settings:
            return []
        return [_answer(one, self.evidence.judgements) for one in self.claim.about.answers]


def _answer(answer: Answer, judgements: Mapping[str, Judgement]) -> PlainAnswer:
    judgement = judgements[answer.key]
    return {
        "document": answer.document,
        "part": answer.part,
        "line": answer.line,
        "quote": answer.quote,
        "conclusion": answer.conclusion,
        "reason": answer.reason,
        "marks": {"conclusion": judgement.conclusion, "reason": judgement.reason},
    }


def _error_rates(rates: ErrorRates | None) -> PlainErrorRates | None:
    if rates is None:
        return None
    return {
        "false_refutation": rates.false_refutation,
        "false_confirmation": rates.false_confirmation,
        "power": rates.power,
    }


def headline(first: PlainMeasure) -> Headline:
    return {"measured": first["value"], "rule": first["rule"], "bound": first["bound"]}


def run_claim(name: str, claim: Claim, progress: Progress | None = None) -> ClaimResult:
    """Run a claim with its settings, and again with its knob turned."""
    knob = claim.with_knob()
    for one in (claim, knob):
        one.prepare(progress or Progress())
    return ClaimResult(
        name=registry.find("claim", name).name,
        claim=claim,
        evidence=claim.run(),
        knob_evidence=knob.run(),
    )
