"""Audits to look at: of our own attentions, of the examples, of known bugs; and certificates.

What can be audited is this list. A person's own file is a matter of the command line, where it gets
a process of its own; through the page no code comes in. A certificate that is dropped in is plain
data, checked in every part before anything is shown of it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from attnlab import config, registry
from attnlab.audit import table
from attnlab.audit.contract import Certificate, Contract, Finding, Verdict
from attnlab.json_files import Json
from attnlab.page.guard import Refused, log
from attnlab.page.validation import shorten, text, whole

if TYPE_CHECKING:
    from attnlab.audit.subject.base import Subject

WINDOW = 5
EXAMPLES = Path(__file__).parents[2] / "examples"  # beside the package in a checkout
BUGS = {  # one of each family; the audit finds all that `attnlab check audit` has
    "causality": 0,
    "caching": 0,
    "windows": 0,
    "positions": 0,
    "heads": 0,
    "padding": 0,
}
MOST_CHECKS, MOST_SIDE, MOST_LAYERS = 64, 128, 1_000
LONGEST_NAME, LONGEST_DETAIL, LONGEST_SCRIPT = 200, 4_000, 40_000
LARGEST = 1e100
DEEPEST, MOST_INSIDE = 6, 512  # of what was measured: a number, a list, an object of them
VERDICTS = get_args(Verdict)


@dataclass(frozen=True)
class Target:
    name: str
    about: str
    make: Callable[[], Any]  # gives a Subject
    declared: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""  # file.py:Name, for scripts that repeat a failure
    options: Mapping[str, Any] = field(default_factory=dict)


def targets() -> dict[str, Target]:
    """All that can be audited here, by name."""
    every = [*_attentions(), *_models(), *_examples(), *_bugs()]
    return {one.name: one for one in every}


def target_list() -> dict[str, Any]:
    return {
        "targets": [
            {"name": one.name, "about": one.about, "declared": dict(one.declared)}
            for one in targets().values()
        ],
        "properties": [
            {"name": one.name, "about": one.summary} for one in registry.options("property")
        ],
    }


def _attentions() -> list[Target]:
    from attnlab.audit.own import own_attention

    kinds: list[tuple[str, str, int | None]]
    kinds = [(option.name, "scaled-dot", None) for option in registry.options("attention")]
    kinds += [("multi-head", option.name, None) for option in registry.options("score")[1:]]
    kinds += [("grouped", "scaled-dot", WINDOW)]
    found = []
    for heads, score, window in kinds:
        about = f"{heads} attention, {score} score" + (f", a window of {window}" if window else "")
        declared = {"causal": True, **({"window": window} if window else {})}
        name = "-".join([heads, score, *(["window"] if window else [])])
        make = partial(own_attention, heads, score, window)
        found.append(Target(name, about, make, declared))
    return found


def _models() -> list[Target]:
    from attnlab.audit.own import own_model

    small = partial(own_model, window=(6, None), vocabulary=31, width=16, context=128)
    return [
        Target(
            f"transformer-{one.name}",
            f"a transformer of two layers with a cache; positions: {one.summary}",
            partial(small, one.name),
            {"causal": True, "cache": True},
        )
        for one in registry.options("positions")
    ]


def _examples() -> list[Target]:
    """The files in examples/, if this is a checkout: our own code, so it is run here."""

    from attnlab.audit.own import seed_rng
    from attnlab.audit.subject.adapters import subject_for
    from attnlab.audit.subject.load import from_file

    options = {"width": 32}

    def make(target: str, name: str) -> "Subject":
        with seed_rng():
            return subject_for(from_file(target, options), options, name)

    names = {"leaky": "LeakyAttention", "causal": "CausalAttention"}
    return [
        Target(
            f"example-{stem}",
            f"examples/{stem}.py",
            partial(make, f"{EXAMPLES / stem}.py:{name}", f"example-{stem}"),
            {"causal": True},
            target=f"{EXAMPLES / stem}.py:{name}",
            options=options,
        )
        for stem, name in names.items()
        if (EXAMPLES / f"{stem}.py").is_file()
    ]


def _bugs() -> list[Target]:
    from attnlab.audit.bugs.cases import cases

    found = []
    for family, number in BUGS.items():
        case = cases(family)[family][number]
        declared = dict(case.declared)
        about = f"a known bug: {case.bug}"
        found.append(Target(f"bug-{case.name}", about, partial(case.subject, True), declared))
    return found


def parse_request(body: Mapping[str, Any]) -> tuple[Target, Contract]:
    name = text(body, "target", LONGEST_NAME)
    known = targets()
    if name not in known:
        hint = registry.suggest(name, list(known))
        raise Refused(404, f"{name[:80]!r} cannot be audited here; {hint}")
    declared = body.get("declare", known[name].declared)
    return known[name], _contract(declared)


def _contract(declared: Any) -> Contract:
    if not isinstance(declared, Mapping):
        raise ValueError('declare is an object, such as {"causal": true, "window": 8}')
    for key, value in declared.items():
        if isinstance(value, int | float) and not abs(value) <= 1e9:
            raise ValueError(f"{key[:80]} is {shorten(value)}; use numbers up to 1e9")
    return config.from_dict(Contract, dict(declared))


def run_audit(target: Target, contract: Contract) -> dict[str, Any]:
    """The certificate with its influence matrix and counter-examples, as JSON."""
    from attnlab.audit.examine import examine
    from attnlab.audit.own import seed_rng
    from attnlab.audit.sandbox import with_examples
    from attnlab.audit.subject.adapters import arrange

    with seed_rng():
        subject = arrange(target.make(), contract)
        certificate = examine(subject, contract)
        examples: list[dict[str, Any]] = []
        detail = ""
        if target.target and certificate.verdict == "fail":
            answer = with_examples(target.target, certificate, subject, dict(target.options))
            examples, detail = list(answer.examples), answer.detail
            if answer.traceback:
                log.error(answer.traceback)
    known = {"target": target.name, "about": target.about, "detail": detail}
    return {**plain(certificate), **known, "examples": examples}


def plain(certificate: Certificate) -> dict[str, Any]:
    """As `attnlab audit --json` has it, with the influence as measured and as the contract has it.

    `allowed` is 1 where an output may move with an input, None where nothing is declared of that.
    `rows` are the checks as a table shows them, by their numbers: those that one sentence tells
    stand together.
    """
    allowed = certificate.allowed()
    numbers = {id(one): number for number, one in enumerate(certificate.findings)}
    return {
        **certificate.plain(),
        "rows": [
            {"checks": [numbers[id(one)] for one in row.findings], "detail": row.detail}
            for row in table.rows(certificate.findings)
        ],
        "influence": [[_size(size) for size in row] for row in certificate.influence],
        "allowed": None if allowed is None else [[int(may) for may in row] for row in allowed],
    }


def _size(size: float) -> float:
    return min(float(f"{size:.4g}"), LARGEST) if math.isfinite(size) else LARGEST


def read_certificate(body: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate from elsewhere, normalised; a ValueError for anything that is none."""
    given = body.get("certificate")
    if not isinstance(given, Mapping):
        raise ValueError("certificate is the JSON that attnlab audit --json prints")
    checks = given.get("checks")
    if not isinstance(checks, list) or len(checks) > MOST_CHECKS:
        raise ValueError(f"a certificate has a list of up to {MOST_CHECKS} checks")
    certificate = Certificate(  # the verdict follows from these, whatever is written
        target=text(given, "target", LONGEST_NAME),
        contract=_contract(given.get("contract") or {}),
        findings=tuple(Finding(**_check(one)) for one in checks),
        influence=tuple(map(tuple, _matrix(given.get("influence") or []))),
        layers=whole(given, "layers", 1, MOST_LAYERS, default=1),
        unfinished=text({"unfinished": "", **given}, "unfinished", LONGEST_DETAIL, least=0),
    )
    detail = given.get("detail")
    return {
        **plain(certificate),
        "examples": [_example(one) for one in _list(given.get("examples"), MOST_CHECKS)],
        "detail": detail[:LONGEST_DETAIL] if isinstance(detail, str) else "",
    }


def _check(one: object) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        raise ValueError(f"a check is {shorten(one)}; it must be an object")
    name = text(one, "name", LONGEST_NAME)
    if not isinstance(one.get("verdict"), str) or one["verdict"] not in VERDICTS:
        raise ValueError(
            f"{name} has the verdict {shorten(one.get('verdict'))}; it is one of "
            f"{', '.join(VERDICTS)}"
        )
    return {
        "name": name,
        "aspect": str(one.get("aspect") or "")[:LONGEST_NAME],
        "verdict": one["verdict"],
        "measured": _value(one.get("measured")),
        "declared": _value(one.get("declared")),
        "detail": text(one, "detail", LONGEST_DETAIL, least=0),
    }


def _value(value: Any, depth: int = 0) -> Json:
    """Numbers, words, and lists and objects of them, no deeper and no longer than ours are."""
    if depth > DEEPEST:
        raise ValueError("what was measured is nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, str):
        return value[:LONGEST_DETAIL]
    inside = list(value.values()) if isinstance(value, dict) else value
    if len(inside) > MOST_INSIDE:
        raise ValueError(f"what was measured has {len(inside)} parts; use {MOST_INSIDE} or fewer")
    if isinstance(value, dict):
        return {key[:LONGEST_NAME]: _value(it, depth + 1) for key, it in value.items()}
    return [_value(it, depth + 1) for it in value]


def _matrix(rows: Any) -> list[list[float]]:
    square = isinstance(rows, list) and len(rows) <= MOST_SIDE
    if not square or any(not isinstance(row, list) or len(row) != len(rows) for row in rows):
        raise ValueError(f"influence is a square matrix of up to {MOST_SIDE} rows")
    for row in rows:
        for size in row:
            if type(size) not in (int, float) or not 0 <= size <= LARGEST:
                raise ValueError(f"influence holds {shorten(size)}; use numbers of 0 to 1e100")
    return [[float(size) for size in row] for row in rows]


def _list(given: Any, most: int) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > most:
        raise ValueError(f"examples is a list of up to {most}")
    return given


def _example(one: object) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        raise ValueError(f"an example is {shorten(one)}; it must be an object")
    limits = {"name": LONGEST_NAME, "sentence": LONGEST_DETAIL, "reason": LONGEST_DETAIL}
    limits |= {"aspect": LONGEST_NAME, "file": LONGEST_NAME, "script": LONGEST_SCRIPT}
    found = {key: text({key: one.get(key, "")}, key, most, least=0) for key, most in limits.items()}
    return {**found, "sizes": _value(one.get("sizes")), "options": _value(one.get("options"))}
