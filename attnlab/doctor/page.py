"""The answer of the doctor as one page: what differs, why, where, and the conversion."""

import math
import platform
from importlib import metadata

from attnlab import __version__
from attnlab.doctor.diagnosis import Diagnosis
from attnlab.doctor.words import sentences
from attnlab.reports.html import as_html
from attnlab.reports.report import Block, Plot, Report, Sample, Section, Series, Table


def page(found: Diagnosis, command: str) -> str:
    """The HTML; nothing in it comes from elsewhere."""
    return as_html(report(found, command))


def report(found: Diagnosis, command: str) -> Report:
    lines = [line.strip() for line in sentences(found)]
    sections = [_causes(found)] if found.sets else []
    sections.append(_places(found))
    if found.conversion:
        sections.append(_conversion(found))
    return Report(
        title=f"{found.a} and {found.b}",
        question="Are they the same function, and if not, why?",
        answer=f"{lines[0][:1].upper()}{lines[0][1:]}.\n\n" + "\n\n".join(lines[1:]),
        sections=sections,
        versions=_versions(),
        command=command,
    )


def _causes(found: Diagnosis) -> Section:
    blocks: list[Block] = [
        Table(
            title="Causes" if number == 0 else "Or, as good",
            columns=["cause", "A", "B", "to set, where no weights move"],
            rows=[[one.cause, one.a, one.b, one.setting or None] for one in some],
        )
        for number, some in enumerate(found.sets)
    ]
    text = "The smallest set of causes that makes the outputs equal; each was undone and compared."
    return Section(heading="Why", text=text, blocks=blocks)


def _places(found: Diagnosis) -> Section:
    first = found.parting.first
    text = "No place was found where they part." if first is None else f"They part at {first}."
    growth = [one for one in found.parting.growth if math.isfinite(one[1])]
    blocks: list[Block] = []
    if len(growth) > 1:
        names, errors = zip(*growth, strict=True)
        series = Series(name="difference", x=list(range(1, len(names) + 1)), y=list(errors))
        about = "Of each layer's outputs, as a part of the largest."
        blocks = [
            Plot(title="Growth", x="layer", y="difference", series=[series], note=about),
            Table(
                title="By layer", columns=["layer", "difference"], rows=[list(o) for o in growth]
            ),
        ]
    return Section(heading="Where", text=text, blocks=blocks)


def _conversion(found: Diagnosis) -> Section:
    text = "Weights of A as B takes them. It needs torch alone, and was run to compare the two."
    return Section(
        heading="The conversion",
        text=text,
        blocks=[Sample(title="convert.py", text=found.conversion)],
    )


def _versions() -> dict[str, str]:
    known = {"attnlab": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers"):
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known
