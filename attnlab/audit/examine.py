"""The audit itself: every registered property of a subject, held to a contract."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attnlab import config, registry
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.errors import AuditError, InputError, OutOfMemory, SubjectError
from attnlab.audit.partial import UNDER_WAY, Keep, unexamined
from attnlab.audit.probe.layouts import unclear
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.device import Device
from attnlab.audit.properties.property import Property
from attnlab.audit.repro.prelude import CannotTell
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject

PICTURED = 23  # positions of the influence matrix that a certificate shows


def audit(
    code: object,
    *,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    tick: Callable[[str], None] = lambda text: None,
    **declared: Any,
) -> Certificate:
    """Find out what a module or a function of q, k and v does; `declared` is its contract.

    audit(module, causal=True, window=8)
    """
    contract = config.from_dict(Contract, declared)
    if inspect.isclass(code):
        made = f"audit({code.__name__}(…))"
        raise InputError(f"{code.__name__} is a class; audit takes what it makes, as {made}")
    if isinstance(code, str):
        raise InputError(f"{code!r} is a text; audit takes a module or a function of q, k and v")
    named = name or str(getattr(code, "__name__", type(code).__name__))
    subject = subject_for(code, options or {}, named, device)
    return examine(subject, contract, tick, more=[Device()] if subject.device else [])


def examine(
    subject: Subject,
    contract: Contract,
    tick: Callable[[str], None] = lambda text: None,
    *,
    properties: Sequence[Property] | None = None,
    more: Sequence[Property] = (),
    keep: Keep = lambda certificate: None,
) -> Certificate:
    """All registered properties unless some are given, and `more` that only some subjects have.

    An error that is not the subject's raises AuditError. After each property `keep` is given what
    is known by then.
    """
    probe = Probe(subject, contract)
    known = Certificate(target=subject.name, contract=contract, findings=(), layers=subject.layers)
    findings: list[Finding] = []
    doubt: str | None = None
    every = [*(all_properties() if properties is None else properties), *more]
    for number, examined in enumerate(every, 1):
        tick(examined.name)
        with _during(examined.name):
            if doubt is None:
                doubt = unclear(probe)  # after a tick: it runs the code
            if doubt:  # which axis is time decides everything else
                findings.append(Finding(name=examined.name, verdict="cannot tell", detail=doubt))
            else:
                found = _finding(examined, probe)
                findings += [replace(found, besides=()), *found.besides]
        rest = unexamined(one.name for one in every[number:])
        keep(replace(known, findings=(*findings, *rest), unfinished=UNDER_WAY))
    with _during("the influence matrix"):
        influence = _influence(probe)
    return replace(known, findings=tuple(findings), influence=influence)


def all_properties() -> list[Property]:
    return [registry.load("property", option.name)() for option in registry.options("property")]


def _finding(examined: Property, probe: Probe) -> Finding:
    """What a property came to; an error of the code under audit is a finding too."""
    try:
        found = examined.examine(probe)
        if found.verdict != "pass":
            return found
        blind = probe.blind(examined.tolerance(probe))
        once = "; with one random seed" if probe.random else ""
    except CannotTell as reason:
        return Finding(name=examined.name, verdict="cannot tell", detail=str(reason))
    except SubjectError as error:
        detail = error.sentence(during=examined.name)
        return Finding(name=examined.name, verdict="cannot tell", detail=detail)
    if blind:
        return replace(found, verdict="cannot tell", detail=blind)
    return replace(found, detail=found.detail + once)


def _influence(probe: Probe) -> tuple[tuple[float, ...], ...]:
    try:
        matrix = probe.influence(PICTURED)
    except (SubjectError, CannotTell):  # the findings say what happened
        return ()
    return tuple(map(tuple, matrix.clamp(max=1e100).tolist()))


@contextmanager
def _during(name: str) -> Iterator[None]:
    """Whatever is not caught inside is a mistake of ours."""
    try:
        yield
    except OutOfMemory:  # nothing that could not be examined may pass
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise AuditError(f"attnlab itself failed during {name}: {reason}") from error


def assert_contract(code: object, **declared: Any) -> Certificate:
    """For tests: an AssertionError, unless the certificate is a pass.

    It names every property that fails, or every declared field that was not established.
    """
    certificate = audit(code, **declared)
    if certificate.verdict == "fail":
        lines = [f"  {one.title}: {one.detail}" for one in certificate.failed]
        lines += [f"  {certificate.shortfall}"] if certificate.shortfall else []
        text = "\n".join(lines)
        raise AssertionError(f"{certificate.target} does not keep its contract:\n{text}")
    if certificate.verdict != "pass":
        raise AssertionError(
            f"the audit of {certificate.target} is {certificate.verdict}: {certificate.reason}"
        )
    return certificate
