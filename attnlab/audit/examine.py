"""The audit itself: every registered property of a subject, held to a contract."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnlab import config, registry
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.probe.layouts import unclear
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.property import Property
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject

PICTURED = 23  # positions of the influence matrix that a certificate shows


def audit(
    code: Any,
    *,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    tick: Callable[[str], None] = lambda text: None,
    **declared: Any,
) -> Certificate:
    """Find out what a module or a function of q, k and v does; `declared` is its contract.

    audit(module, causal=True, window=8)
    """
    contract = config.from_dict(Contract, declared)
    named = name or str(getattr(code, "__name__", type(code).__name__))
    subject = subject_for(code, options or {}, named)
    return examine(subject, contract, tick)


def examine(
    subject: Subject,
    contract: Contract,
    tick: Callable[[str], None] = lambda text: None,
    more: Sequence[Property] = (),
) -> Certificate:
    """All registered properties, and `more` that only some subjects have."""
    probe = Probe(subject, contract)
    every = [registry.load("property", option.name)() for option in registry.options("property")]
    findings = []
    reason: str | None = None
    for examined in (*every, *more):
        tick(examined.name)
        reason = unclear(probe) if reason is None else reason  # after a tick: it runs the code
        if reason:  # of which axis is time, everything else depends
            findings.append(Finding(name=examined.name, verdict="cannot tell", detail=reason))
        else:
            findings.append(_examined(examined, probe))
    try:
        matrix = probe.influence(PICTURED).clamp(max=1e100).tolist()
    except Exception:  # the findings say what happened
        matrix = []
    return Certificate(
        target=subject.name,
        contract=contract,
        findings=tuple(findings),
        influence=tuple(map(tuple, matrix)),
        layers=subject.layers,
    )


def _examined(examined: Property, probe: Probe) -> Finding:
    """Code that breaks down under a probe has a finding too."""
    try:
        found = examined.examine(probe)
        blind = probe.blind(examined.tolerance(probe)) if found.verdict == "pass" else ""
        return replace(found, verdict="cannot tell", detail=blind) if blind else found
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        detail = f"the code broke down while it was examined: {reason}"
        return Finding(name=examined.name, verdict="cannot tell", detail=detail)


def assert_contract(code: Any, **declared: Any) -> Certificate:
    """For tests: an AssertionError, unless the certificate is a pass.

    It names every property that fails, or every declared field that was not established.
    """
    certificate = audit(code, **declared)
    if certificate.verdict == "fail":
        lines = [f"  {one.name}: {one.detail}" for one in certificate.failed]
        lines += [f"  {certificate.shortfall}"] if certificate.shortfall else []
        text = "\n".join(lines)
        raise AssertionError(f"{certificate.target} does not keep its contract:\n{text}")
    if certificate.verdict != "pass":
        raise AssertionError(
            f"the audit of {certificate.target} is {certificate.verdict}: {certificate.reason}"
        )
    return certificate
