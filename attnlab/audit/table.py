"""Findings as the rows of a table: what is told by one sentence is told once.

Code that refuses a length makes many properties come to "cannot tell" for the same reason. The
certificate keeps a finding for each; a table names them together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.audit.contract import Certificate, Finding, Verdict

MOST_SETTINGS = 8  # that a line names
LENGTH = re.compile(r" at length (\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Findings of one verdict; more than one only if the same sentence tells them."""

    findings: tuple[Finding, ...]
    detail: str

    @property
    def names(self) -> str:
        return ", ".join(dict.fromkeys(one.name for one in self.findings))

    @property
    def verdict(self) -> Verdict:
        return self.findings[0].verdict


def rows(findings: Sequence[Finding]) -> list[Row]:
    """In the order of the findings; what cannot be told for one reason stands together."""
    groups: dict[Any, list[Finding]] = {}
    for number, one in enumerate(findings):
        key = _reason(one) if one.verdict == "cannot tell" else number
        groups.setdefault(key, []).append(one)
    return [
        Row(findings=tuple(some), detail=some[0].detail if len(some) == 1 else _shared(some))
        for some in groups.values()
    ]


def _reason(finding: Finding) -> str:
    """The sentence, whichever property it stopped and at whichever length."""
    name = re.escape(finding.name)
    text = re.sub(rf",? \(?during {name}\)?", "", finding.detail)
    return LENGTH.sub("", text, count=1)


def _shared(findings: Sequence[Finding]) -> str:
    found = [LENGTH.search(one.detail) for one in findings]
    lengths = sorted({int(one.group(1)) for one in found if one is not None})
    text = _reason(findings[0])
    if not lengths:
        return text
    listed = ", ".join(map(str, lengths))
    before, colon, after = text.partition(": ")
    return f"{before} at length {listed}{colon}{after}"


def text(certificate: Certificate) -> str:
    """The certificate in lines: the verdict, then what was found."""
    every = rows(certificate.findings)
    width = max((len(row.names) for row in every if len(row.findings) == 1), default=0)
    lines = [f"{certificate.target}: {certificate.verdict}"]
    lines += [f"  {row.names:{width}}  {row.verdict:14}  {row.detail}" for row in every]
    if certificate.shortfall:
        lines.append(f"  {certificate.shortfall}")
    return "\n".join(lines)


def smallest(example: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """A counter-example in one line: what is seen, and in how small a case of how small code."""
    counts = [f"{name.replace('_', ' ')} {value}" for name, value in _counts(example["sizes"])]
    made = [
        f"{name}={value}" for name, value in example["options"].items() if given.get(name) != value
    ]
    if len(made) > MOST_SETTINGS:  # the whole configuration of a model
        made = [f"{len(made)} settings, which its script has"]
    shown = [*counts, *([f"made with {' '.join(made)}"] if made else [])]
    return f"{example['sentence']} ({', '.join(shown)})" if shown else str(example["sentence"])


def _counts(sizes: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in sizes.items() if type(value) is int]
