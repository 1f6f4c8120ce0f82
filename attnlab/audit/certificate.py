"""The certificate of an audit as one page: verdict, contract, findings, influence, evidence.

The influence matrix [t, t] is shown as measured, and beside it as declared (`Certificate.allowed`).
"""

import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from attnlab import __version__
from attnlab.audit.contract import ESTABLISHED_BY, Certificate, Finding, Verdict
from attnlab.audit.table import rows
from attnlab.reports.html import as_html
from attnlab.reports.report import Block, Cell, Picture, Report, Sample, Section, Table

FAINT = -9  # powers of ten below the largest movement; what is less counts as none
ENDLESS = 1e99  # a movement to something that is not a number is larger
# sizes of an example that its sentence names
IN_SENTENCE = ("seed", "what", "side", "wanted", "warm", "first", "last", "output", "input")
MARKS: dict[Verdict, str] = {
    "pass": "✓ pass",
    "fail": "✗ fail",
    "not applicable": "– n/a",
    "cannot tell": "? unclear",
}
# two pictures of one section stand beside each other where there is room; sentences wrap
BESIDE = """
@media (min-width: 44rem) {
  main { max-width: 54rem; }
  section:has(> figure + figure svg) {
    display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.6rem;
  }
  section:has(> figure + figure svg) > :not(figure) { grid-column: 1 / -1; }
}
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
/* on a narrow screen a finding is a block of its cells */
@media (max-width: 43.99rem) {
  td, th { white-space: normal; overflow-wrap: anywhere; }
  thead { display: none; }
  tr { display: block; padding: .4rem 0; }
  tr > th { font-weight: 600; }
  tr > td, tr > th { display: block; min-width: 0; padding: .1rem 0; border: 0; text-align: left; }
}
"""


def page(certificate: Certificate, examples: Sequence[Mapping[str, Any]], command: str) -> str:
    """The HTML; nothing in it comes from elsewhere."""
    html = as_html(report(certificate, examples, command))
    return html.replace("</style>", f"{BESIDE}</style>", 1)


def report(certificate: Certificate, examples: Sequence[Mapping[str, Any]], command: str) -> Report:
    sections = [_findings(certificate), _contract(certificate)]
    if certificate.influence:
        sections.append(_influence(certificate))
    if examples:
        sections.append(_evidence(examples))
    return Report(
        title=f"Audit of {certificate.target}",
        question="Does it keep its contract, and what does it do where nothing is declared?"
        if certificate.contract.declared()
        else "What does it do? Nothing is declared, so only what no reading allows can fail.",
        answer=_answer(certificate),
        sections=sections,
        versions=_versions(),
        command=command,
    )


def _answer(certificate: Certificate) -> str:
    verdicts = [one.verdict for one in certificate.findings]
    if certificate.verdict == "fail":
        lines = "\n\n".join(f"{one.title}: {one.detail}." for one in certificate.failed)
        broken = len({one.name for one in certificate.failed})
        count = _count(broken, "property", "properties")
        more = f"\n\nBesides: {certificate.shortfall}." if certificate.shortfall else ""
        return f"It fails {count}.\n\n{lines}{more}"
    if certificate.verdict == "incomplete":
        return f"It is incomplete, which is no pass; {certificate.reason}."
    held = _count(verdicts.count("pass"), "property holds", "properties hold")
    unclear = verdicts.count("cannot tell")
    return f"It passes: {held}" + (f", and {unclear} could not be established." if unclear else ".")


def _count(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _findings(certificate: Certificate) -> Section:
    first = sorted(rows(certificate.findings), key=lambda one: one.verdict != "fail")
    cells: list[list[Cell]] = [
        [one.names, MARKS[one.verdict], _measurement(one.findings[0]), one.detail] for one in first
    ]
    return Section(
        heading="What was found",
        blocks=[
            Table(
                title="Properties, and what experiments showed",
                columns=["property", "verdict", "measured", "in words"],
                rows=cells,
            )
        ],
    )


def _measurement(finding: Finding) -> str:
    """What was measured, and what was declared if that is not the same."""
    measured = _text(finding.measured)
    if finding.declared is None or finding.declared == finding.measured:
        return measured
    return f"{measured}; declared {_text(finding.declared)}"


def _text(value: object) -> str:
    """A plain value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(key)} {_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def _label(name: Any) -> str:
    return str(name).replace("_", " ")


def _contract(certificate: Certificate) -> Section:
    contract = certificate.contract
    if not contract.declared():
        text = "Nothing was declared. Declare what it must do, such as causal=true or window=8."
        return Section(heading="The contract", text=text)
    cells: list[list[Cell]] = [
        [_label(name), _text(value), _standing(certificate, name)]
        for name, value in contract.declared().items()
    ]
    columns = ["field", "value", "established"]
    table = Table(title="What is declared", columns=columns, rows=cells)
    return Section(heading="The contract", blocks=[table])


def _standing(certificate: Certificate, field: str) -> str:
    if field not in certificate.contract.demanded():
        return "– demands nothing"
    if field in certificate.unestablished:
        return "? not established"
    broken = any(one.name in ESTABLISHED_BY[field] for one in certificate.failed)
    return "✗ broken" if broken else "✓ established"


def _influence(certificate: Certificate) -> Section:
    matrix = certificate.influence
    sizes = powers(matrix)
    axes = {"x": "input j", "y": "output i"}
    blocks: list[Block] = [
        Picture(
            title="Measured",
            rows=sizes,
            note="How far output i moves when input j is replaced: powers of ten, 0 where it "
            f"moves most. {FAINT}: not at all.",
            **axes,
        )
    ]
    allowed = certificate.allowed()
    text = "Every input was replaced in turn, and every output watched."
    if allowed is not None:
        beyond = [
            (i, j)
            for i, row in enumerate(sizes)
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
            f" {_count(len(beyond), 'pair moves', 'pairs move')} that must not, the first "
            f"output {beyond[0][0]} with input {beyond[0][1]}."
            if beyond
            else " No pair moves that must not."
        )
    return Section(heading="Who moves whom", text=text, blocks=blocks)


def powers(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """By how many powers of ten a movement is below the largest."""
    # what is no longer a number moves most, and does not make the others look still
    sizes = [size for row in matrix for size in row if size < ENDLESS]
    largest = max(sizes, default=0.0) or 1.0
    least = largest * 10.0**FAINT
    return [
        [min(0.0, math.log10(size / largest)) if size > least else float(FAINT) for size in row]
        for row in matrix
    ]


def _evidence(examples: Sequence[Mapping[str, Any]]) -> Section:
    blocks = []
    for one in examples:
        title = f"{one['name']} ({one['aspect']})" if one.get("aspect") else one["name"]
        lines = [one["sentence"] or one["reason"]]
        for what in ("sizes", "options"):
            shown = {
                name: value
                for name, value in one[what].items()
                if name not in IN_SENTENCE and (name, value) != ("factor", 1)
            }
            if shown:
                parts = ", ".join(f"{name} {_text(value)}" for name, value in shown.items())
                lines.append(f"{what}: {parts}")
        blocks.append(Sample(title=title, text="\n".join(lines)))
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
