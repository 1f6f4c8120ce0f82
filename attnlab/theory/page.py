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
from attnlab.theory.settle import Outcome, deciding, names, said
from attnlab.theory.sources import COURSES, DOCUMENTS, QUESTIONS, UNSETTLED, VOICES

PICTURES = "theory"  # the folder beside theory.md
COMMAND = "attnlab claims --docs docs"


POLICY = """What a document concludes and the reason it gives are marked apart, by one policy.
    Right: with the hedges it has ("≈", "could") and under the conditions that it or the course's
    question states, it is what the run finds. Incomplete: it is true as far as it goes, but only
    under a condition that neither states, or it is a part of the answer. Wrong: the run contradicts
    it. A dash: no reason is given.

    The marks are computed from measurements. Which statement a document's words amount to, and so
    which measurements speak of it, is our reading: it is typed by hand. Its own words stand beside
    it, with the line of the file, so that anybody can judge."""
SIGNS = {"right": "✓", "incomplete": "◐", "wrong": "✗"}


def kept(outcome: Outcome) -> dict[str, Any]:
    """What the document needs of an outcome, as plain JSON."""
    picture = outcome.evidence.picture
    return {
        **outcome.plain(),
        "picture": {"type": type(picture).__name__, **_rounded(dataclasses.asdict(picture))},
        "details": [
            {"type": type(block).__name__, **_rounded(dataclasses.asdict(block))}
            for block in outcome.evidence.details
        ],
    }


def record(outcomes: Sequence[Outcome], hardware: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the document is made from: outcomes.json."""
    return {"hardware": dict(hardware), "outcomes": [kept(outcome) for outcome in outcomes]}


def document(recorded: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The text, and its pictures by name."""
    outcomes = recorded["outcomes"]
    report = Report(
        title="The theory, claim by claim",
        question="What is true of attention, and who was right about it? Every verdict here is "
        "computed from an experiment, and each experiment has a knob that changes the verdict.",
        answer=_answer(outcomes),
        sections=[
            _contents(outcomes),
            _questions(),
            _documents(),
            *map(_section, outcomes),
        ],
        versions=recorded["hardware"],
        command=COMMAND,
    )
    return as_markdown(report, PICTURES)


def who_was_right(answers: Sequence[Mapping[str, Any]]) -> str:
    """What the documents conclude, for a cell: "✓ 001, 002 1(d)i ◐ 002 1(d)ii ✗ 000"."""
    documents = [answer["document"] for answer in answers]

    def named(answer: Mapping[str, Any]) -> str:
        document: str = answer["document"]
        return document if documents.count(document) == 1 else f"{document} {answer['part']}"

    parts = []
    for mark, sign in SIGNS.items():
        found = [named(one) for one in answers if one["marks"]["conclusion"] == mark]
        parts += [f"{sign} {', '.join(found)}"] if found else []
    return " ".join(parts)


def _answer(outcomes: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [outcome["verdict"] for outcome in outcomes]
    told = {"holds": "hold", "holds with a condition": "hold with a condition"}
    told["cannot tell"] = "cannot be told"
    told["refuted"] = "are refuted" if verdicts.count("refuted") != 1 else "is refuted"
    counts = [f"{verdicts.count(verdict)} {told[verdict]}" for verdict in dict.fromkeys(verdicts)]
    marks = [answer["marks"] for outcome in outcomes for answer in outcome["answers"]]
    reasons = [one["reason"] for one in marks if one["reason"] is not None]
    return (
        f"Of {len(outcomes)} claims {', '.join(counts)}. Of {len(marks)} conclusions that the "
        f"documents draw about them, {_counted([one['conclusion'] for one in marks])}; of the "
        f"{len(reasons)} reasons they give, {_counted(reasons)}."
    )


def _counted(marks: Sequence[str]) -> str:
    counts = [(marks.count(mark), mark) for mark in SIGNS]
    return ", ".join(f"{count} {'is' if count == 1 else 'are'} {mark}" for count, mark in counts)


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
    columns = ["claim", "verdict", "evidence", "knob", "documents conclude"]
    kinds = [[kind, meaning] for kind, meaning in KINDS.items()]
    return Section(
        heading="All claims",
        blocks=[
            Table(
                title="",
                columns=columns,
                rows=rows,
                note="✓ right, ◐ incomplete, ✗ wrong: the policy is below, under The documents.",
            ),
            Table(title="Kinds of evidence, strongest first", columns=["kind", "is"], rows=kinds),
        ],
    )


def _questions() -> Section:
    """An index by the questions of the courses."""
    settled = {name: registry.load("claim", name).about.questions for name in names()}
    rows = []
    for key, words in QUESTIONS.items():
        found = [name for name, keys in settled.items() if key in keys]
        rows.append([key, words, ", ".join(found) or f"none: {UNSETTLED[key]}"])
    courses = "; ".join(f"{short}: {name}" for short, name in COURSES.items())
    return Section(
        heading="By question",
        text="The questions of the courses, in our words, and the claims that settle them. "
        f"{courses}. "
        'attnlab claims --question "A4 1(c)" runs those of one question.',
        blocks=[Table(title="", columns=["question", "asks", "claims"], rows=rows)],
    )


def _documents() -> Section:
    rows = [[number, about] for number, about in DOCUMENTS.items()]
    rows += [[f"004 {voice}", about] for voice, about in VOICES.items()]
    return Section(
        heading="The documents",
        text="Five documents hold answers to two university assignments: three to one of them, one "
        "to an earlier year of it, and one, with several voices, to the other. They are named by "
        f"their number.\n\n{POLICY}",
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
    measured = "; ".join(said(Measure.from_plain(one)) for one in outcome["measures"])
    text = (
        f"Verdict: {outcome['verdict']}. Evidence ({outcome['evidence']}, "
        f"{outcome['trials']:,} {'case' if outcome['trials'] == 1 else 'cases'}): {measured}."
    )
    if outcome["verdict"] == "holds with a condition":
        beyond = "; ".join(said(Measure.from_plain(one)) for one in outcome["outside"])
        text += f" Condition: {about.condition}. Beyond it: {beyond}."
    if outcome["chance"] is not None:
        text += f" {chance_text(outcome['chance'], outcome['verdict'])}"
    return (
        f"{text} Knob: {about.knob.words}. With it the verdict is "
        f"{outcome['knob_verdict']} ({_why(outcome['knob_measures'])})."
    )


def chance_text(chance: Mapping[str, Any], verdict: str) -> str:
    """The error rates, each under its own name."""
    text = f"Where the claim is true, at most {chance['false_refutation']:g} of runs refute it"
    if chance["false_confirmation"] is not None:
        text += f"; where it is false, at most {chance['false_confirmation']:g} say that it holds"
    if chance["power"] is not None:
        text += (
            f". If the truth is what was measured here, a run with other draws says “{verdict}” "
            f"with probability {_probable(chance['power'])}"
        )
    return f"{text}."


def _probable(power: float) -> str:
    return "above 0.9999" if power > 0.9999 else f"{power:.4f}"


def _why(measures: Sequence[Mapping[str, Any]]) -> str:
    """The measure that decided."""
    return said(deciding([Measure.from_plain(one) for one in measures]))


def answers_table(answers: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        title="What the documents answer",
        columns=["document", "its words", "concludes", "because"],
        rows=[
            [
                f"{a['document']} {a['part']}, line {a['line']}",
                f"“{a['quote']}”",
                f"{SIGNS[a['marks']['conclusion']]} {a['marks']['conclusion']}: {a['conclusion']}",
                f"{SIGNS[a['marks']['reason']]} {a['marks']['reason']}: {a['reason']}"
                if a["marks"]["reason"]
                else "–",
            ]
            for a in answers
        ],
    )


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
