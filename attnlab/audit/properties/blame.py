"""Which of two backends is wrong, as far as it can be measured.

What is right cannot be known in general. But a backend that attends to the future beside one that
does not, that mixes rows, that reads padding, that gives no numbers, or whose steps differ from its
own whole text is wrong; and so is one that is alone against others that agree.

Axes: b batch, t time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe, apart
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.property import Case
from attnlab.audit.repro.prelude import CannotTell

UNKNOWN = "cannot tell which of them is wrong"
Run = Callable[..., Tensor]


def blame(probe: Probe, case: Case, others: list[str]) -> str:
    """In words, for a case in which a backend differs from the usual one; `others` are all of them
    but the usual one."""
    usual, backend = case.sizes["usual"], case.sizes["backend"]
    tools = Tools(probe)
    runs: dict[str, Run] = {usual: tools.run}
    for name in others:
        runs[name] = _by(tools, name)
    pair = {name: runs[name] for name in (usual, backend)}
    for symptom, shows in SYMPTOMS.items():
        guilty = [name for name, run in pair.items() if _shows(shows, probe, case, run)]
        if len(guilty) == 1:
            known = f"{symptom}, and {_rest(pair, guilty[0])} does not"
            if shows is _leaks and not probe.contract.causal:
                return f"{guilty[0]} {known}: declare causal to say which of them is wrong"
            return f"{guilty[0]} is wrong: it {known}"
    if "pieces" in case.sizes:
        guilty = [name for name in pair if _differs_from_whole(probe, tools, case, name, pair)]
        if len(guilty) == 1:
            rest = _rest(pair, guilty[0])
            steps = "its steps differ from its own whole text"
            return f"{guilty[0]} is wrong: {steps}, and those of {rest} do not"
    return _outvoted(probe, case, runs, backend) or UNKNOWN


def _by(tools: Tools, name: str) -> Run:
    def run(x: Tensor, padding: Tensor | None = None, positions: Any = None) -> Tensor:
        return tools.run_by(name, x, padding, positions)

    return run


def _rest(pair: dict[str, Run], guilty: str) -> str:
    return next(name for name in pair if name != guilty)


def _shows(shows: Callable[..., bool], probe: Probe, case: Case, run: Run) -> bool:
    try:
        return shows(probe, case, run)
    except (SubjectError, CannotTell):  # then this symptom tells nothing
        return False


def _length(case: Case) -> int:
    return int(case.sizes.get("length") or sum(case.sizes["pieces"]))


def _no_numbers(probe: Probe, case: Case, run: Run) -> bool:
    return not bool(run(probe.draw(2, _length(case))).isfinite().all())


def _leaks(probe: Probe, case: Case, run: Run) -> bool:
    """Whether the first half moves with the second."""
    length = _length(case)
    if length < 2:
        return False
    x, first = probe.draw(2, length), (length + 1) // 2
    changed = torch.cat((x[:, :first], probe.draw(2, length, 100)[:, first:]), dim=1)
    return apart(run(changed)[:, :first], run(x)[:, :first]) > case.tolerance


def _mixes(probe: Probe, case: Case, run: Run) -> bool:
    x = probe.draw(2, _length(case))
    return apart(run(x[:1]), run(x)[:1]) > case.tolerance


def _reads_padding(probe: Probe, case: Case, run: Run) -> bool:
    side, real, length = case.sizes.get("side"), case.sizes.get("real", 0), _length(case)
    if not side:
        return False
    x, other = probe.draw(1, length), probe.draw(1, length, 100)
    kept = torch.arange(length) < real if side == "right" else torch.arange(length) >= length - real
    changed = torch.where(kept if x.dim() == 2 else kept[:, None], x, other)
    padding = ~kept[None]
    return apart(run(changed, padding)[:, kept], run(x, padding)[:, kept]) > case.tolerance


SYMPTOMS: dict[str, Callable[[Probe, Case, Run], bool]] = {
    "gives outputs that are no numbers": _no_numbers,
    "attends to later inputs": _leaks,
    "mixes the rows of a batch": _mixes,
    "reads padding": _reads_padding,
}


def _differs_from_whole(
    probe: Probe, tools: Tools, case: Case, name: str, pair: dict[str, Run]
) -> bool:
    pieces = case.sizes["pieces"]
    x, cache = probe.draw(2, sum(pieces)), tools.new_cache()
    usual = name == case.sizes["usual"]
    try:
        steps = [
            tools.step(one, cache) if usual else tools.step_by(name, one, cache)
            for one in x.split(pieces, dim=1)
        ]
        return apart(torch.cat(steps, dim=1), pair[name](x)) > case.tolerance
    except (SubjectError, CannotTell):
        return False


def _outvoted(probe: Probe, case: Case, runs: dict[str, Run], backend: str) -> str:
    """The one that is alone, where all the others agree."""
    if len(runs) < 3 or "pieces" in case.sizes or case.sizes.get("side"):
        return ""
    x = probe.draw(2, _length(case))
    try:
        outs = {name: run(x) for name, run in runs.items()}
    except (SubjectError, CannotTell):
        return ""
    for alone in (backend, case.sizes["usual"]):
        rest = [out for name, out in outs.items() if name != alone]
        if all(apart(one, rest[0]) <= case.tolerance for one in rest):
            return f"{alone} is alone: the {len(rest)} others agree"
    return ""
