"""The theory as a document: one section a claim, made from what the runs found and nothing else.

    claims --settle--> outcomes.json (numbers, tables, plots) --> theory.md and its pictures

Whoever has the outcomes can make the document again, so a test can tell whether it is stale
without training anything.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab import registry
from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Block, Picture, Plot, Report, Sample, Section, Series, Table
from attnlab.theory.claim import KINDS, About, Measure
from attnlab.theory.settle import Outcome, said
from attnlab.theory.sources import DOCUMENTS, VOICES

PICTURES = "theory"  # the folder beside theory.md
COMMAND = "attnlab claims --docs docs"


def kept(outcome: Outcome) -> dict[str, Any]:
    """What the document needs of an outcome, as plain JSON."""
    plain = outcome.plain()
    picture = outcome.evidence.picture
    return {
        **plain,
        "picture": {"type": type(picture).__name__, **_rounded(dataclasses.asdict(picture))},
        "details": [
            {"type": type(block).__name__, **_rounded(dataclasses.asdict(block))}
            for block in outcome.evidence.details
        ],
    }


def document(outcomes: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """The text, and its pictures by name."""
    report = Report(
        title="The theory, claim by claim",
        question="What is true of attention, and who was right about it? Every verdict here is "
        "computed from an experiment, and each experiment has a knob that changes the verdict.",
        answer=_answer(outcomes),
        sections=[_contents(outcomes), _documents(), *map(_section, outcomes)],
        command=COMMAND,
    )
    return as_markdown(report, PICTURES)


def who_was_right(answers: Sequence[Mapping[str, Any]]) -> str:
    """For a cell: "✓ 001, 002 ✗ 000"."""
    parts = []
    for mark, supported in (("✓", True), ("✗", False)):
        found = [a["document"] for a in answers if a["supported"] is supported]
        parts += [f"{mark} {', '.join(found)}"] if found else []
    return " ".join(parts)


def _answer(outcomes: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [outcome["verdict"] for outcome in outcomes]
    told = {"holds": "hold", "holds with a condition": "hold with a condition"}
    told["refuted"] = "are refuted" if verdicts.count("refuted") != 1 else "is refuted"
    counts = [f"{verdicts.count(verdict)} {told[verdict]}" for verdict in dict.fromkeys(verdicts)]
    answers = [answer for outcome in outcomes for answer in outcome["answers"]]
    right = sum(answer["supported"] for answer in answers)
    return (
        f"Of {len(outcomes)} claims {', '.join(counts)}. Of the {len(answers)} answers that the "
        f"documents give to them, the runs support {right}."
    )


def _contents(outcomes: Sequence[Mapping[str, Any]]) -> Section:
    rows = [
        [
            outcome["name"],
            outcome["verdict"],
            outcome["evidence"],
            f"{outcome['knob']['words']}: {outcome['knob_verdict']}",
            who_was_right(outcome["answers"]),
        ]
        for outcome in outcomes
    ]
    columns = ["claim", "verdict", "evidence", "knob", "documents"]
    kinds = [[kind, meaning] for kind, meaning in KINDS.items()]
    return Section(
        heading="All claims",
        blocks=[
            Table(title="", columns=columns, rows=rows),
            Table(title="Kinds of evidence, strongest first", columns=["kind", "is"], rows=kinds),
        ],
    )


def _documents() -> Section:
    rows = [[number, about] for number, about in DOCUMENTS.items()]
    rows += [[f"004 {voice}", about] for voice, about in VOICES.items()]
    return Section(
        heading="The documents",
        text="Five sheets of answers to two university assignments ask the same questions and "
        "contradict each other. They are named by their number.",
        blocks=[Table(title="", columns=["number", "is"], rows=rows)],
    )


def _section(outcome: Mapping[str, Any]) -> Section:
    about: About = registry.load("claim", outcome["name"]).about
    parts = [about.statement, *about.formula.splitlines(), about.derivation]
    parts.append(verdict_text(outcome, about))
    if about.remark:
        parts.append(about.remark)
    blocks: list[Block] = [_block(outcome["picture"]), *map(_block, outcome["details"])]
    if outcome["answers"]:
        blocks.append(answers_table(outcome["answers"]))
    return Section(heading=outcome["name"], text="\n\n".join(parts), blocks=blocks)


def verdict_text(outcome: Mapping[str, Any], about: About) -> str:
    """The verdict with its evidence, and what the knob does, as a paragraph."""
    measured = "; ".join(said(_measure(one)) for one in outcome["measures"])
    text = (
        f"Verdict: {outcome['verdict']}. Evidence ({outcome['evidence']}, "
        f"{outcome['trials']:,} {'case' if outcome['trials'] == 1 else 'cases'}): {measured}."
    )
    if outcome["verdict"] == "holds with a condition":
        beyond = "; ".join(said(_measure(one)) for one in outcome["outside"])
        text += f" Condition: {about.condition}. Beyond it: {beyond}."
    if outcome["false_alarm"] is not None:
        text += f" If true, it is refuted by chance in {outcome['false_alarm']:g} of runs."
    return (
        f"{text} Knob: {about.knob.words}. With it the verdict is "
        f"{outcome['knob_verdict']} ({_why(outcome['knob_measures'])})."
    )


def _why(measures: Sequence[Mapping[str, Any]]) -> str:
    """The measure that decided."""
    failed = [one for one in measures if not one["met"]] or list(measures)
    return said(_measure(failed[0]))


def answers_table(answers: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        title="What the documents answer",
        columns=["document", "part", "says", "the run"],
        rows=[
            [a["document"], a["part"], a["said"], "agrees" if a["supported"] else "disagrees"]
            for a in answers
        ],
    )


def _measure(plain: Mapping[str, Any]) -> Measure:
    value = plain["value"] if plain["value"] is not None else float("inf")
    return Measure(plain["what"], value, plain["rule"], plain["bound"])


def _block(plain: Mapping[str, Any]) -> Any:
    types = {cls.__name__: cls for cls in (Plot, Picture, Table, Sample)}
    fields = {name: value for name, value in plain.items() if name != "type"}
    if "series" in fields:
        fields["series"] = [Series(**series) for series in fields["series"]]
    return types[plain["type"]](**fields)


def _rounded(value: Any) -> Any:
    """Six digits are more than a picture shows; the last ones differ from machine to machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
