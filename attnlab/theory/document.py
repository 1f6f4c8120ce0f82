"""The theory as a document, theory.md: one section per claim, made from the record alone.

    claims --run_claim--> outcomes.json (numbers, tables, plots) --> theory.md and its pictures

The document can be made again from the record, so a test finds a stale document without training.
A picture is named after its claim: a new claim adds a file and renames none.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from attnlab import files, json_files, registry
from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Block, Report, Section, Table
from attnlab.theory import catalogue
from attnlab.theory.claim import KINDS, About, Measure, PlainMeasure, decisive
from attnlab.theory.record import FOLDER, Machine, Outcome, Record, block_of, path_in
from attnlab.theory.result import PlainAnswer, PlainErrorRates, PlainResult
from attnlab.theory.sources import COURSES, DOCUMENTS, QUESTIONS, UNSETTLED, VOICES

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


def document(record: Record) -> tuple[str, dict[str, str]]:
    """The text of theory.md, and its pictures by file name."""
    outcomes, machines = record["outcomes"], record["machines"]
    only = machines[0]["machine"] if len(machines) == 1 else {}
    report = Report(
        title="The theory, claim by claim",
        question="What is true of attention, and who was right about it? Every verdict here is "
        "computed from an experiment, and each experiment has a knob that changes the verdict.",
        answer=_answer(outcomes),
        sections=[
            _contents(outcomes),
            _questions(),
            _beyond_the_courses(),
            _documents(),
            *map(section, outcomes),
            *([] if only else [_machines(machines)]),
        ],
        versions={name: str(value) for name, value in only.items()},
        command=COMMAND,
    )
    return as_markdown(report, FOLDER)


def write(record: Record, docs: Path) -> None:
    """theory.md, its pictures and the record; pictures of claims that are gone are deleted."""
    text, pictures = document(record)
    folder = path_in(docs).parent
    files.make_folder(folder)
    for path in folder.glob("*.svg"):
        if path.name not in pictures:
            path.unlink()
    for name, svg in pictures.items():
        path = folder / name
        if not path.is_file() or path.read_text() != svg:
            files.write_whole(path, svg.encode())
    files.write_whole(path_in(docs), json_files.as_json(record))
    files.write_whole(docs / "theory.md", text.encode())


def who_was_right(
    answers: Sequence[PlainAnswer], say: Callable[[str], str] = lambda document: document
) -> str:
    """The marks of the conclusions in one line: "✓ 001, 002 1(d)i ◐ 002 1(d)ii ✗ 000".

    `say` makes the name of a document one to read.
    """
    documents = [answer["document"] for answer in answers]

    def name(answer: PlainAnswer) -> str:
        document = answer["document"]
        alone = documents.count(document) == 1
        return say(document) if alone else f"{say(document)} {answer['part']}"

    parts = []
    for mark, sign in SIGNS.items():
        found = [name(one) for one in answers if one["marks"]["conclusion"] == mark]
        parts += [f"{sign} {', '.join(found)}"] if found else []
    return " ".join(parts)


def _answer(outcomes: Sequence[Outcome]) -> str:
    verdicts = [outcome["verdict"] for outcome in outcomes]
    verbs = {
        "holds": "hold",
        "holds with a condition": "hold with a condition",
        "cannot tell": "cannot be told",
        "refuted": "are refuted" if verdicts.count("refuted") != 1 else "is refuted",
    }
    counts = [f"{verdicts.count(verdict)} {verbs[verdict]}" for verdict in dict.fromkeys(verdicts)]
    marks = [answer["marks"] for outcome in outcomes for answer in outcome["answers"]]
    reasons = [one["reason"] for one in marks if one["reason"] is not None]
    return (
        f"Of {len(outcomes)} claims {', '.join(counts)}. Of {len(marks)} conclusions that the "
        f"documents draw about them, {_count([one['conclusion'] for one in marks])}; of the "
        f"{len(reasons)} reasons they give, {_count(reasons)}."
    )


def _count(marks: Sequence[str]) -> str:
    counts = [(marks.count(mark), mark) for mark in SIGNS]
    return ", ".join(f"{count} {'is' if count == 1 else 'are'} {mark}" for count, mark in counts)


def _contents(outcomes: Sequence[Outcome]) -> Section:
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
    rows = [
        [key, QUESTIONS[key], ", ".join(claims) or f"none: {UNSETTLED[key]}"]
        for key, claims in catalogue.by_question().items()
    ]
    courses = "; ".join(f"{short}: {name}" for short, name in COURSES.items())
    return Section(
        heading="By question",
        text="The questions of the courses, in our words, and the claims that settle them. "
        f"{courses}. "
        'attnlab claims --question "A4 1(c)" runs those of one question.',
        blocks=[Table(title="", columns=["question", "asks", "claims"], rows=rows)],
    )


def _beyond_the_courses() -> Section:
    rows = [[name, registry.find("claim", name).summary] for name in catalogue.beyond_the_courses()]
    return Section(
        heading="Mechanisms in use today",
        text="The courses do not ask about these, and the documents say nothing of them.",
        blocks=[Table(title="", columns=["claim", "in short"], rows=rows)],
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


def _machines(machines: Sequence[Machine]) -> Section:
    rows = [
        [", ".join(one["claims"]), ", ".join(f"{k} {v}" for k, v in one["machine"].items())]
        for one in machines
    ]
    return Section(
        heading="Machines",
        text="The claims were not all run on one machine.",
        blocks=[Table(title="", columns=["claims", "machine"], rows=rows)],
    )


def section(outcome: Outcome) -> Section:
    """A claim with its verdict, its evidence and its picture."""
    about = catalogue.about(outcome["name"])
    parts = [about.statement, *about.formula.splitlines(), about.derivation]
    parts.append(verdict_text(outcome, about))
    if about.remark:
        parts.append(about.remark)
    blocks: list[Block] = [block_of(outcome["picture"]), *map(block_of, outcome["details"])]
    if outcome["answers"]:
        blocks.append(answers_table(outcome["answers"]))
    name = outcome["name"]
    return Section(heading=name, text="\n\n".join(parts), blocks=blocks, pictures=name)


def verdict_text(outcome: PlainResult, about: About) -> str:
    """The verdict with its evidence, and what the knob does, as a paragraph."""
    measured = _describe(outcome["measures"])
    text = (
        f"Verdict: {outcome['verdict']}. Evidence ({outcome['evidence']}, "
        f"{outcome['trials']:,} {'case' if outcome['trials'] == 1 else 'cases'}): {measured}."
    )
    if outcome["verdict"] == "holds with a condition":
        outside = _describe(outcome["outside"])
        text += f" Condition: {about.condition}. Beyond it: {outside}."
    if outcome["error_rates"] is not None:
        text += f" {error_rates_text(outcome['error_rates'], outcome['verdict'])}"
    why = decisive([Measure.from_plain(one) for one in outcome["knob_measures"]])
    return (
        f"{text} Knob: {about.knob.words}. With it the verdict is "
        f"{outcome['knob_verdict']} ({why.describe()})."
    )


def _describe(measures: Sequence[PlainMeasure]) -> str:
    return "; ".join(Measure.from_plain(one).describe() for one in measures)


def error_rates_text(rates: PlainErrorRates, verdict: str) -> str:
    """The error rates in words."""
    text = f"Where the claim is true, at most {rates['false_refutation']:g} of runs refute it"
    if rates["false_confirmation"] is not None:
        text += f"; where it is false, at most {rates['false_confirmation']:g} say that it holds"
    if rates["power"] is not None:
        text += (
            f". If the truth is what was measured here, a run with other draws says “{verdict}” "
            f"with probability {_probability(rates['power'])}"
        )
    return f"{text}."


def _probability(power: float) -> str:
    return "above 0.9999" if power > 0.9999 else f"{power:.4f}"


def answers_table(answers: Sequence[PlainAnswer]) -> Table:
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
