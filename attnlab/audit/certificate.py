"""The certificate of an audit as one page: verdict, contract, findings, influence, evidence.

The influence matrix [t, t] is shown as measured, and beside it as declared: output i may move
with input j where a causal query sees it, and a window reaches it.
"""

import dataclasses
import math
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from attnlab import __version__
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.reports.html import as_html
from attnlab.reports.report import Block, Cell, Picture, Report, Sample, Section, Table

FAINT = -9  # powers of ten below the largest movement; what is less counts as none
ENDLESS = 1e99  # a movement to something that is not a number is larger
TOLD = (
    "seed",
    "what",
    "side",
    "wanted",
    "warm",
    "first",
    "last",
    "output",
    "input",
)  # in the sentence
MARKS = {"pass": "✓ pass", "fail": "✗ fail", "not applicable": "– n/a", "cannot tell": "? unclear"}
# two pictures of one section stand beside each other where there is room
BESIDE = """
@media (min-width: 44rem) {
  main { max-width: 54rem; }
  section:has(> figure + figure svg) {
    display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.6rem;
  }
  section:has(> figure + figure svg) > :not(figure) { grid-column: 1 / -1; }
}
"""


def page(certificate: Certificate, examples: Sequence[Mapping[str, Any]], command: str) -> str:
    """The HTML; nothing in it comes from elsewhere."""
    html = as_html(report(certificate, examples, command))
    return html.replace("</style>", f"{BESIDE}</style>", 1)


def report(certificate: Certificate, examples: Sequence[Mapping[str, Any]], command: str) -> Report:
    sections = [_findings(certificate), _contract(certificate.contract)]
    if certificate.influence:
        sections.append(_influence(certificate))
    if examples:
        sections.append(_evidence(examples))
    declared = bool(_declared(certificate.contract))
    return Report(
        title=f"Audit of {certificate.target}",
        question="Does it keep its contract, and what does it do where nothing is declared?"
        if declared
        else "What does it do? Nothing is declared, so only what no reading allows can fail.",
        answer=_answer(certificate),
        sections=sections,
        versions=_versions(),
        command=command,
    )


def _answer(certificate: Certificate) -> str:
    failed = [one for one in certificate.findings if one.verdict == "fail"]
    if failed:
        lines = "\n\n".join(f"{one.name}: {one.detail}." for one in failed)
        return f"It fails {_counted(len(failed), 'property', 'properties')}.\n\n{lines}"
    count = {
        verdict: sum(one.verdict == verdict for one in certificate.findings) for verdict in MARKS
    }
    if not count["pass"]:
        return "Nothing could be said of it: no property was examined to its end."
    told = f"It passes: {_counted(count['pass'], 'property holds', 'properties hold')}"
    if count["cannot tell"]:
        told += f", and of {count['cannot tell']} nothing can be said"
    return f"{told}."


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _findings(certificate: Certificate) -> Section:
    rows = [[one.name, MARKS[one.verdict], _seen(one), one.detail] for one in certificate.findings]
    # what fails is read first
    rows.sort(key=lambda row: list(MARKS).index(_unmarked(row[1])) != 1)
    return Section(
        heading="What was found",
        blocks=[
            Table(
                title="Properties, and what experiments showed",
                columns=["property", "verdict", "measured", "in words"],
                rows=rows,
            )
        ],
    )


def _unmarked(mark: str) -> str:
    return next(verdict for verdict, text in MARKS.items() if text == mark)


def _seen(finding: Finding) -> str:
    """What was measured, and what was declared if that is not the same."""
    measured = _spelled(finding.measured)
    if finding.declared is None or finding.declared == finding.measured:
        return measured
    return f"{measured}; declared {_spelled(finding.declared)}"


def _spelled(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_worded(key)} {_spelled(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_spelled, value))
    return str(value)


def _worded(name: Any) -> str:
    return re.sub(r"_", " ", str(name))


def _declared(contract: Contract) -> dict[str, Any]:
    fields = {one.name: getattr(contract, one.name) for one in dataclasses.fields(contract)}
    return {name: value for name, value in fields.items() if value is not None}


def _contract(contract: Contract) -> Section:
    declared = _declared(contract)
    if not declared:
        text = "Nothing was declared. Declare what it must do, such as causal=true or window=8."
        return Section(heading="The contract", text=text)
    rows: list[list[Cell]] = [[_worded(name), _spelled(it)] for name, it in declared.items()]
    table = Table(title="What is declared", columns=["field", "value"], rows=rows)
    return Section(heading="The contract", blocks=[table])


def _influence(certificate: Certificate) -> Section:
    matrix = certificate.influence
    powers = _powers(matrix)
    axes = {"x": "input j", "y": "output i"}
    blocks: list[Block] = [
        Picture(
            title="Measured",
            rows=powers,
            note="How far output i moves when input j is replaced: powers of ten, 0 where it "
            f"moves most. {FAINT}: not at all.",
            **axes,
        )
    ]
    allowed = _allowed(certificate, len(matrix))
    text = "Every input was replaced in turn, and every output watched."
    if allowed is not None:
        beyond = [
            (i, j)
            for i, row in enumerate(powers)
            for j, size in enumerate(row)
            if size > FAINT and not allowed[i][j]
        ]
        blocks.append(
            Picture(
                title="Declared",
                rows=[[1.0 if may else 0.0 for may in row] for row in allowed],
                note="1 where output i may move with input j, 0 where it must not.",
                **axes,
            )
        )
        text += (
            f" {_counted(len(beyond), 'pair moves', 'pairs move')} that must not, the first "
            f"output {beyond[0][0]} with input {beyond[0][1]}."
            if beyond
            else " No pair moves that must not."
        )
    return Section(heading="Who moves whom", text=text, blocks=blocks)


def _powers(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """By how many powers of ten a movement is below the largest."""
    # what is no longer a number moves most, and does not make the others look still
    sizes = [size for row in matrix for size in row if size < ENDLESS]
    largest = max(sizes, default=0.0) or 1.0
    least = largest * 10.0**FAINT
    return [
        [min(0.0, math.log10(size / largest)) if size > least else float(FAINT) for size in row]
        for row in matrix
    ]


def _allowed(certificate: Certificate, length: int) -> list[list[bool]] | None:
    """What the contract lets move; None where it says nothing of that."""
    contract = certificate.contract
    if contract.causal is None and contract.window is None:
        return None
    reach = contract.window or length
    for one in certificate.findings:  # through layers a window reaches further, as was found
        if one.name == "window" and one.verdict == "pass" and type(one.measured) is int:
            reach = max(reach, one.measured)
    return [
        [j >= i - reach + 1 and (j <= i or contract.causal is False) for j in range(length)]
        for i in range(length)
    ]


def _evidence(examples: Sequence[Mapping[str, Any]]) -> Section:
    blocks = []
    for one in examples:
        lines = [one["sentence"] or one["reason"]]
        for what in ("sizes", "options"):
            told = {k: v for k, v in one[what].items() if k not in TOLD and (k, v) != ("factor", 1)}
            if told:
                lines.append(f"{what}: " + ", ".join(f"{k} {_spelled(v)}" for k, v in told.items()))
        blocks.append(Sample(title=one["name"], text="\n".join(lines)))
    return Section(
        heading="The smallest counter-examples",
        text="Each failure was made smaller for as long as it stayed one. "
        "With --repro FOLDER each comes as a script that needs torch only.",
        blocks=blocks,
    )


def _versions() -> dict[str, str]:
    known = {"attnlab": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers"):
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known
