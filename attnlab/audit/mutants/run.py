"""Mutants are drawn evenly, audited in workers, and counted.

| came to | means |
|---|---|
| found | the certificate's verdict is "fail" |
| missed | it is "pass", and nobody has shown that the mutant is no bug |
| incomplete | it is "incomplete": nobody was deceived, and nothing was found |
| error | attnlab itself failed |
| equivalent | it is in the table of those that are no bugs |
| broken | it raises in calls that its original stands: nobody needs an audit to see that |
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context, resource_tracker
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import stop
from attnlab.audit.errors import AuditError, InputError, SubjectError
from attnlab.audit.examine import all_properties, examine
from attnlab.audit.mutants.equivalent import EQUIVALENT
from attnlab.audit.mutants.mutate import Mutant, Operator, Original, mutants
from attnlab.audit.mutants.operators import OPERATORS
from attnlab.audit.mutants.subjects import originals
from attnlab.audit.own import seed_rng
from attnlab.audit.subject.adapters import prepare
from attnlab.audit.subject.base import Subject, Vectors
from attnlab.stop import stoppable

PATIENCE = 300  # seconds for one audit
LENGTHS = (1, 9, 23)  # of texts that an original stands
WANTED = 0.98  # of the mutants must be found
ENDS = ("found", "missed", "incomplete", "error", "equivalent", "broken")
COUNTED = ENDS[:4]  # in the recall


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    end: str  # one of ENDS
    failed: Mapping[str, str]  # property: detail
    reason: str  # why there is no pass, or why it is broken
    seconds: float
    same: bool = False  # outputs of the calls that its original stands are the same to the bit

    def plain(self) -> dict[str, Any]:
        return {
            "operator": self.mutant.operator,
            "original": self.mutant.original.name,
            "before": self.mutant.before,
            "after": self.mutant.after,
            "came_to": self.end,
            "failed": dict(self.failed),
            "reason": self.reason,
            "same_outputs": self.same,
        }


def check_mutants(
    count: int, seed: int, workers: int, tick: Callable[[str], None]
) -> dict[str, Any]:
    """So many mutants that are bugs, and every original, audited and counted."""
    every = originals()
    order = draw_order(every, OPERATORS, seed)
    correct: list[Outcome] = []
    outcomes: list[Outcome] = []

    def done() -> str:
        counted = sum(one.end in COUNTED for one in outcomes)
        return f"{len(correct)} of {len(every)} originals and {counted} of {count} mutants"

    with stoppable(done, lambda: score(correct, outcomes)):
        for number, outcome in enumerate(_outcomes([one.correct for one in every], workers), 1):
            tick(f"{number}/{len(every)} originals: {outcome.mutant.original.name}")
            correct.append(outcome)
        for outcome in audit_all(order, count, workers, tick):
            outcomes.append(outcome)  # noqa: PERF402  (what came before an interrupt is there)
        return score(correct, outcomes)


def draw_order(
    every: Sequence[Original], operators: tuple[Operator, ...], seed: int
) -> list[Mutant]:
    """All mutants: in turn one of each operator, and of an operator one of each original."""
    dice = random.Random(seed)
    by_operator: dict[str, list[list[Mutant]]] = {one.name: [] for one in operators}
    for original in every:
        groups: dict[str, list[Mutant]] = {}
        for one in mutants(original, operators):
            groups.setdefault(one.operator, []).append(one)
        for name, group in groups.items():
            dice.shuffle(group)
            by_operator[name].append(group)
    for several in by_operator.values():
        dice.shuffle(several)
    return list(_in_turn([list(_in_turn(several)) for several in by_operator.values()]))


def _in_turn(groups: Sequence[Sequence[Mutant]]) -> Iterator[Mutant]:
    for some in zip_longest(*groups):
        yield from (one for one in some if one is not None)


def audit_mutant(mutant: Mutant, blind: tuple[str, ...] = ()) -> Outcome:
    """What the audit says of it; properties that are `blind` are not looked at."""
    begin = time.perf_counter()
    seconds = partial(_since, begin)
    properties = [one for one in all_properties() if one.name not in blind]
    with seed_rng():
        same = mutant == mutant.original.correct
        if not same:
            known = _known(mutant.original)  # what the original raises is no fault of its mutant
            try:
                same = _stands(mutant, *known)
            except Exception as error:  # whatever a rewritten line may raise
                reason = f"{type(error).__name__}: {error}"
                return Outcome(mutant, "broken", {}, reason, seconds())
        try:
            with _patience():
                subject = mutant.subject()
                certificate = examine(subject, mutant.original.contract, properties=properties)
        except (InputError, SubjectError, TimeoutError) as error:
            return Outcome(mutant, "incomplete", {}, str(error), seconds(), same)
        except AuditError as error:
            return Outcome(mutant, "error", {}, str(error), seconds(), same)
    failed = {one.name: one.detail for one in certificate.failed}
    ends = {"fail": "found", "pass": "missed", "incomplete": "incomplete"}
    reason = certificate.reason
    return Outcome(mutant, ends[certificate.verdict], failed, reason, seconds(), same)


def _since(begin: float) -> float:
    return time.perf_counter() - begin


@contextmanager
def _patience() -> Iterator[None]:
    """A rewritten loop may have no end."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the audit took more than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_answers: dict[str, tuple[Subject, list[Tensor]]] = {}


def _known(original: Original) -> tuple[Subject, list[Tensor]]:
    """The original, and what it gives."""
    if original.name not in _answers:
        subject = original.subject(original.sources)
        _answers[original.name] = subject, list(answers(subject, original.calls, subject))
    return _answers[original.name]


def _stands(mutant: Mutant, subject: Subject, wanted: Sequence[Tensor]) -> bool:
    """Whether it gives the same to the bit in its original's calls; it raises if it raises."""
    found = list(answers(subject, mutant.original.calls, _in_its_place(mutant, subject)))
    return len(found) == len(wanted) and all(map(_equal, found, wanted))


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _in_its_place(mutant: Mutant, subject: Subject) -> Subject:
    """The mutant, called as its original is."""
    assert isinstance(subject, Vectors)
    code = mutant.original.code(mutant.sources)
    convention = replace(subject.convention, code=code)
    if isinstance(code, nn.Module):
        convention = replace(convention, module=prepare(code, subject.dtype))
    return subject.with_convention(convention)


def answers(known: Subject, calls: Iterable[str], subject: Subject) -> Iterator[Tensor]:
    """Of whole texts, padded ones, steps, and an original's own calls."""
    for length in LENGTHS:
        x = known.draw(2, length, 0)
        with torch.no_grad():
            yield subject.run(x)
            if known.pads:
                padding = torch.zeros(2, length, dtype=torch.bool)
                padding[0, length // 2 + 1 :] = True
                yield subject.run(x, padding=padding)
            if known.caches:
                cache = subject.new_cache()
                for piece in x.split([length // 2 or 1] + [1] * (length - (length // 2 or 1)), 1):
                    yield subject.step(piece, cache)
    assert isinstance(subject, Vectors)
    code = subject.convention.code
    for text in calls:
        found = eval(text, {"code": code, "draw": known.draw, "torch": torch})
        yield from (
            one.detach()
            for one in (found if isinstance(found, tuple) else (found,))
            if one is not None
        )
    if subject.module is not None:
        for one in subject.module.parameters():
            if one.grad is not None:
                yield one.grad


def audit_all(
    order: Sequence[Mutant], count: int, workers: int, tick: Callable[[str], None]
) -> Iterator[Outcome]:
    """Outcomes in order, until so many count."""
    ends: Counter[str] = Counter()
    left = count
    for outcome in _outcomes(order, workers):
        if outcome.mutant.key in EQUIVALENT and outcome.end != "broken":
            outcome = replace(outcome, end="equivalent")
        yield outcome
        left -= outcome.end in COUNTED
        ends[outcome.end] += 1
        said = ", ".join(f"{ends[end]} {end}" for end in ENDS)
        tick(f"{count - left}/{count} mutants: {said}; {outcome.mutant.original.name}")
        if not left:
            return


def _outcomes(order: Sequence[Mutant], workers: int) -> Iterator[Outcome]:
    if workers == 1:
        yield from map(audit_mutant, order)
        return
    resource_tracker.ensure_running()  # it would unblock what is blocked next
    with stop.sparing_children():
        pool = get_context("spawn").Pool(workers, _begin)
    with pool:
        yield from pool.imap(audit_mutant, order)


def _begin() -> None:
    torch.set_num_threads(1)


def score(correct: Sequence[Outcome], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A report for JSON; `passed` if enough were found and nothing correct was flagged."""
    counted = [one for one in outcomes if one.end in COUNTED]
    found = [one for one in counted if one.end == "found"]
    blind = [one for one in found if set(one.failed) != {"causality"}]
    no_bugs = [one for one in outcomes if one.end == "equivalent"]
    alarms = [one for one in correct if one.end != "missed"]  # "missed": it passes, as it should
    alarms += [one for one in no_bugs if one.failed]
    recall = len(found) / len(counted) if counted else 0.0
    return {
        "mutants": len(counted),
        **{end: sum(one.end == end for one in outcomes) for end in ENDS},
        "recall": recall,
        "control_recall_without_causality": len(blind) / len(counted) if counted else 0.0,
        "originals": len(correct),
        "operators": [*_by_operator(outcomes)],
        "survivors": [one.plain() for one in counted if one.end != "found"],
        "false_alarms": [one.plain() for one in alarms],
        "equivalents": [{**one.plain(), "reason": EQUIVALENT[one.mutant.key]} for one in no_bugs],
        "seconds": round(sum(one.seconds for one in (*correct, *outcomes)), 1),
        "passed": recall >= WANTED
        and not alarms
        and not any(one.end == "error" for one in outcomes),
    }


def _by_operator(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(one.mutant.operator for one in outcomes):
        own = [one for one in outcomes if one.mutant.operator == name]
        by = Counter(reason for one in own for reason in one.failed)
        ends = {end: sum(one.end == end for one in own) for end in ENDS}
        counted = sum(ends[end] for end in COUNTED)
        yield {
            "operator": name,
            "mutants": counted,
            **ends,
            "found_by": [reason for reason, _ in by.most_common(3)],
        }
