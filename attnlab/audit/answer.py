"""What an audit comes to: a certificate, finished or not, or in one line why there is none.

It goes from one process to another as plain data (`plain_of`, `answer_of`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from attnlab import config, stop
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.partial import cut_short
from attnlab.json_files import finite


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A certificate, or in one line why there is none; `examples` are of its failures.

    With a traceback attnlab itself failed: before the certificate, or on the way to its examples.
    Beside a certificate, `detail` says what is missing in it or in its examples.
    """

    target: str
    certificate: Certificate | None = None
    detail: str = ""
    traceback: str = ""  # of an error of attnlab itself
    examples: tuple[dict[str, Any], ...] = ()
    interrupted: bool = False  # by Ctrl-C or another signal

    @property
    def verdict(self) -> str:
        if self.traceback:
            return "error"
        return "incomplete" if self.certificate is None else self.certificate.verdict

    def plain(self) -> dict[str, Any]:
        """For `--json`: the verdict is that of the certificate, if there is one."""
        known = {"target": self.target, "verdict": self.verdict, "checks": []}
        if self.certificate is not None:
            known = self.certificate.plain()
        more = {"detail": self.detail, "traceback": self.traceback}
        return {**known, **{name: text for name, text in more.items() if text}}


def ended(target: str, known: Answer | None, cause: str, reason: str) -> Answer:
    """What was known when an audit ended early; the rest cannot be told for this cause."""
    if known is None or known.certificate is None:
        return Answer(target=target, detail=reason)
    certificate = cut_short(known.certificate, cause, reason)
    return replace(known, certificate=certificate, detail=reason)


def stopped(target: str, known: Answer | None, where: str = "") -> Answer:
    """The same, of an audit that a person stopped."""
    cause = stop.reason(stop.received())
    answer = ended(target, known, cause, f"{cause}{where}")
    return replace(answer, interrupted=True)


def plain_of(answer: Answer) -> dict[str, Any]:
    """For another process; `answer_of` reads it."""
    return {
        "certificate": answer.certificate and _certificate_as_plain(answer.certificate),
        "detail": answer.detail,
        "traceback": answer.traceback,
        "examples": list(answer.examples),
    }


def answer_of(target: str, plain: Mapping[str, Any]) -> Answer:
    found = plain["certificate"]
    certificate = None if found is None else _certificate_of(found)
    known = {**plain, "certificate": certificate, "examples": tuple(plain["examples"])}
    return Answer(target=target, **known)


def _certificate_as_plain(certificate: Certificate) -> dict[str, Any]:
    """Everything that it holds, as JSON."""
    known = {one.name: getattr(certificate, one.name) for one in fields(certificate)}
    known["contract"] = certificate.contract.declared()
    known["findings"] = [vars(one) for one in certificate.findings]
    plain: dict[str, Any] = finite(known)
    return plain


def _certificate_of(plain: Mapping[str, Any]) -> Certificate:
    return Certificate(
        **{
            **plain,
            "contract": config.from_dict(Contract, plain["contract"]),
            "findings": tuple(Finding(**finding) for finding in plain["findings"]),
            "influence": tuple(tuple(row) for row in plain["influence"]),
        }
    )
