"""What is known of code before its audit ends: a certificate that is never a pass.

examine --after each property--> Certificate(unfinished=…) --it ends here--> cut_short
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from attnlab.audit.contract import Certificate, Finding

Keep = Callable[[Certificate], None]
UNDER_WAY = "the audit is under way"
UNEXAMINED = "it was not examined yet"


def unexamined(names: Iterable[str]) -> list[Finding]:
    """Findings of properties whose turn has not come."""
    return [Finding(name=name, verdict="cannot tell", detail=UNEXAMINED) for name in names]


def cut_short(certificate: Certificate, cause: str, reason: str) -> Certificate:
    """As far as it got: the rest cannot be told for this cause; a finished one stays as it is."""
    if not certificate.unfinished:
        return certificate
    findings = tuple(
        replace(one, detail=cause) if one.detail == UNEXAMINED else one
        for one in certificate.findings
    )
    return replace(certificate, findings=findings, unfinished=reason)
