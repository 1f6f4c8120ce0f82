"""The smallest counter-example of a failure, and a script that shows it without this package.

    case {batch, length, …} --made smaller while it still fails--> case --as text--> script

The case that failed in the audit is run again on a stage (`audit/repro/stage.py`): the code made
afresh, with the same weights and inputs, called as the audit called it. From there it is made
smaller, by the same check that the audit ran and the script prints.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnlab.audit.contract import Certificate, Finding
from attnlab.audit.errors import LONGEST, InputError, ScriptError, SubjectError
from attnlab.audit.probe.probe import SAFETY
from attnlab.audit.probe.tools import tool_names
from attnlab.audit.properties.property import Case
from attnlab.audit.repro import stage as staging
from attnlab.audit.repro.prelude import CannotTell
from attnlab.audit.repro.script import script, script_name
from attnlab.audit.repro.stage import Stage
from attnlab.audit.subject.adapters import (
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCABULARIES,
    WIDTHS,
    arrange,
)
from attnlab.audit.subject.base import Subject
from attnlab.printable import one_line

SECONDS = 1.0  # of computing to make one failure smaller
CLEAR = (1e6, 1e2)  # times the tolerance; float32 does not leave room for the first
Sizes = dict[str, Any]
COUNTS = (  # each may be less
    *("length", "batch", "real", "short", "longer", "steps", "parts", "context", "kept"),
)
PLACES = ("length", "longer", "real")  # all may be less by the same, and cuts
SHOWN = (*COUNTS, "pieces", "factor", "warm")  # of a case; the rest decides what it is
UNREPEATED = (
    "newly made, the code did not fail again: what it does depends on chance, or on what it ran "
    "before"
)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A failure at its smallest; `script` is empty where none can be written, for a `reason`."""

    name: str
    aspect: str = ""
    sentence: str = ""
    sizes: Sizes = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""  # to be called so
    script: str = ""
    reason: str = ""


def examples_of(
    certificate: Certificate, subject: Subject, target: str, options: Mapping[str, Any]
) -> list[Example]:
    """One for each failure; the code is called as the contract has it called."""
    subject = arrange(subject, certificate.contract)
    return [example_of(one, subject, target, options) for one in certificate.failed]


def example_of(
    finding: Finding, subject: Subject, target: str, options: Mapping[str, Any]
) -> Example:
    """A failure at its smallest, or why there is no script of it; an error of ours is raised."""
    part_for = getattr(subject, "part_for", None)  # of a model with several sides
    subject = subject if part_for is None else part_for(finding.name)
    try:
        return _example(finding, subject, target, options)
    except (SubjectError, InputError, ScriptError, CannotTell) as error:
        return unrepeated(finding, str(error))


def unrepeated(finding: Finding, reason: str) -> Example:
    line = one_line(reason, LONGEST)
    return Example(
        name=finding.name, aspect=finding.aspect, reason=f"it could not be repeated: {line}"
    )


def _example(
    finding: Finding, subject: Subject, target: str, options: Mapping[str, Any]
) -> Example:
    case = finding.example
    if not isinstance(case, Case):  # a property of another package need not name one
        raise ScriptError(f"the finding of {finding.name} names no case that failed")
    if not math.isfinite(case.tolerance):  # outputs that are no numbers have none
        case = replace(case, tolerance=SAFETY * torch.finfo(subject.dtype).eps)
    known = Example(name=finding.name, aspect=finding.aspect)
    stage = staging.for_subject(subject, target, options).for_case(case)
    missing = stage.lacks(case)
    if missing:
        reason = f"how it is given {missing} is known to an adapter, which a script would need"
        return replace(known, reason=reason)
    if not run(stage.again(), case)[0]:
        return replace(known, reason=UNREPEATED)
    for simpler, wider in stage.simpler(case):
        if _fails(simpler, wider):
            stage, case = simpler, wider
            break
    stage, case = smallest(stage, case)
    return replace(
        known,
        sentence=run(stage.again(), case)[1],
        sizes={
            **{name: value for name, value in case.sizes.items() if name in SHOWN},
            **stage.head_counts(),
        },
        options=dict(stage.options),
        file=script_name(target, finding),
        script=script(stage, finding, case),
    )


def run(stage: Stage, case: Case) -> tuple[bool, str]:
    wrong, sentence, _ = case.run(stage.tools(tool_names(case.fails)))
    return wrong, sentence


def _fails(stage: Stage, case: Case) -> bool:
    """Whether a case fails that may be too small, for the code or for the check.

    Sizes are tried without knowing which of them make sense, so a check of too few rows raises
    whatever torch does. A mistake of ours hides nothing here: the case has failed before, outside,
    and is only left larger.
    """
    try:
        return run(stage, case)[0]
    except (Exception, SystemExit):
        return False


def smallest(stage: Stage, case: Case) -> tuple[Stage, Case]:
    """A lighter case on lighter code that fails when the code is newly made.

    State may be what is wrong: then the code has to be made anew for every comparison.
    """
    for anew in (False, True):
        found = Shrinking(anew).smallest(stage, case)
        if _fails(found[0].again(), found[1]):
            return found
    return stage, case


class Shrinking:
    """Makes a failing case smaller for as long as it stays one, within a budget of computing."""

    def __init__(self, anew: bool) -> None:
        self._anew = anew
        self._until = time.thread_time() + SECONDS  # waiting for others does not count

    def smallest(self, stage: Stage, case: Case) -> tuple[Stage, Case]:
        # what is far beyond rounding stays so: the script runs on other machines too
        margin = next((one for one in CLEAR if self._wrong(stage, case, one)), 1.0)
        while True:
            lighter = (
                replace(case, sizes=sizes)
                for sizes in smaller(dict(case.sizes))
                if legal(sizes) and weight(sizes) < weight(case.sizes)
            )
            found = next((one for one in lighter if self._wrong(stage, one, margin)), None)
            if found is None:
                return self._fewer(stage, case, margin), case
            case = found

    def _fewer(self, stage: Stage, case: Case, margin: float) -> Stage:
        """With fewer heads, layers and a smaller width, where the code can be made so."""
        every = (LAYERS, HEADS, KV_HEADS, WIDTHS, VOCABULARIES)
        for names in (one for one in every if one not in case.fixed):
            for less in (1, 2, 4, 8, 16):
                candidate = None
                with suppress(SubjectError, InputError, SystemExit):  # the code refuses such sizes
                    candidate = stage.with_less(names, less, names in (WIDTHS, VOCABULARIES))
                if candidate is not None and self._wrong(candidate, case, margin):
                    stage = candidate
                    break
        return stage

    def _wrong(self, stage: Stage, case: Case, margin: float) -> bool:
        padded = [case.sizes["length"]] if "real" in case.sizes else []
        if padded and case.sizes.get("change") == "added":
            padded += [case.sizes["real"]]
        whole = not any(size % stage.block for size in padded)  # else more would be filled in
        if not whole or time.thread_time() > self._until:
            return False
        limits = dict.fromkeys([case.tolerance, margin * case.tolerance])
        return all(
            _fails(stage.again() if self._anew else stage, replace(case, tolerance=limit))
            for limit in limits
        )


def legal(sizes: Mapping[str, Any]) -> bool:
    """Whether sizes make sense together, whatever they are of."""
    if any(sizes.get(name, 1) < 1 for name in (*COUNTS, *PLACES)):
        return False
    if "cuts" in sizes and not 1 <= min(sizes["cuts"]) <= max(sizes["cuts"]) < sizes["length"]:
        return False
    if "real" in sizes and not sizes["real"] < sizes["length"]:
        return False
    return "pieces" not in sizes or (len(sizes["pieces"]) > 0 and min(sizes["pieces"]) > 0)


def smaller(sizes: Sizes) -> Iterator[Sizes]:
    """What to try next: shorter by the end, by the beginning, fewer rows, fewer changes."""
    for name in (name for name in COUNTS if name in sizes):
        value = sizes[name]
        yield from ({**sizes, name: less} for less in dict.fromkeys([1, value // 2, value - 1]))
    cuts = sizes.get("cuts", [])
    if len(cuts) > 1:
        yield from ({**sizes, "cuts": [cut]} for cut in cuts)
    elif cuts:
        changed = min(sizes["changed"], sizes["length"] - cuts[0])
        yield from ({**sizes, "changed": less} for less in range(1, changed + 1))
        for late in range(1, changed):
            yield {**sizes, "cuts": [cuts[0] + late], "changed": changed - late}
    places = [name for name in PLACES if name in sizes]
    if len(places) > 1 or cuts:
        for less in dict.fromkeys([sizes["length"] // 2, 1]):
            moved = {name: sizes[name] - less for name in places}
            yield {**sizes, **moved, **({"cuts": [cut - less for cut in cuts]} if cuts else {})}
    if sizes.get("rows", 1) > 1:
        yield {**sizes, "rows": 1}
    if sizes.get("factor", 1.0) > 1:
        yield {**sizes, "factor": 1.0}
    if sizes.get("warm"):
        yield {**sizes, "warm": False}
    pieces = sizes.get("pieces", [])
    yield from ({**sizes, "pieces": pieces[:end]} for end in (1, len(pieces) // 2, len(pieces) - 1))
    for place in range(len(pieces) - 1):  # two as one
        merged = pieces[place] + pieces[place + 1]
        yield {**sizes, "pieces": [*pieces[:place], merged, *pieces[place + 2 :]]}
    for place, size in enumerate(pieces):
        yield {**sizes, "pieces": pieces[:place] + pieces[place + 1 :]}
        for less in dict.fromkeys([1, size // 2, size - 1]):
            yield {**sizes, "pieces": [*pieces[:place], less, *pieces[place + 1 :]]}


def weight(sizes: Mapping[str, Any]) -> tuple[float, ...]:
    """What has to become less."""
    pieces = sizes.get("pieces", [])
    length = sum(sizes.get(name, 0) for name in ("length", "longer", "context")) + sum(pieces)
    changed = len(sizes.get("cuts", [])) * sizes.get("changed", 0)
    few = [sizes.get(name, 0) for name in ("real", "short", "steps", "parts", "kept")]
    warm, factor = float(sizes.get("warm", False)), sizes.get("factor", 1.0)
    rows = sizes.get("rows", 1)
    return (length, sizes.get("batch", 1), len(pieces), changed, *few, rows, warm, factor)
