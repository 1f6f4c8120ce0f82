"""`attnlab check audit`: known bugs are found, each for the right reason, and correct code is not.

Every case of the development set is audited twice, with its bug and without; the laboratory's own
attentions must come through as well. The control is an audit that does not look at causality: it
has to find fewer, or the score would not depend on what is examined.

`--mutate 300` asks the same of bugs that a program makes in correct code (`audit/mutants/`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape

from attnlab import registry
from attnlab.attention.heads import combinations, is_recurrent
from attnlab.audit.bugs.cases import FAMILIES, Case, cases
from attnlab.audit.bugs.controls import CONTROLS
from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError, SubjectError
from attnlab.audit.examine import all_properties, examine
from attnlab.audit.mutants.run import check_mutants
from attnlab.audit.mutants.table import show_mutants
from attnlab.audit.own import own_attention, own_model, seed_rng
from attnlab.audit.properties.property import Property
from attnlab.audit.subject.base import Subject
from attnlab.checks import Tick, lines
from attnlab.config import setting, settings
from attnlab.stop import stoppable

MISTAKES = ("rotary-growing", "rotary-by-head")  # registered as mistakes, so no controls
# what is declared of our position schemes; of one that is new, nothing
KINDS = {
    "none": "none",
    "learned": "absolute",
    "sinusoidal": "absolute",
    "rotary": "rotary",
    "alibi": "alibi",
}
WINDOW = 5
# what our transformer may have besides, in its settings and in a contract
WIDE = "attention.heads=1"  # pairs enough to see a ramp
MECHANISMS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "soft cap": (("soft_cap=20",), {"soft_cap": 20.0, "segments": "alone"}),
    "learned sink": (("sink=learned",), {"sink": "learned", "segments": "alone"}),
    "fixed sink, soft cap": (("sink=fixed", "soft_cap=5"), {"sink": "fixed", "soft_cap": 5.0}),
    "linear scaling": (
        ("positions.scaling=linear",),
        {"rope_scaling": "linear", "rope_factor": 4.0, "rope_base": 1e4},
    ),
    "YaRN": (
        (WIDE, "positions.scaling=yarn", "positions.scaling.original=4096"),
        {"rope_scaling": "yarn", "rope_factor": 4.0},
    ),
    "chunks": (("chunk=8",), {"segments": "alone"}),
    "hybrid": (
        ("attention=gated-delta", "attention.full_every=2"),
        {"segments": "alone", "positions": None},  # layers with a state hide them
    ),
}


@dataclass(frozen=True)
class Trial:
    """Code to be audited: with a bug it has reasons to fail, without it has none."""

    name: str
    make: Callable[[], Subject]
    contract: Contract
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What an audit came to; `reason` says why it is no pass, and is empty for a pass."""

    trial: Trial
    failed: dict[str, str]  # property: detail
    others: dict[str, str]  # what did not fail, by verdict and detail
    seconds: float
    reason: str = ""

    @property
    def caught_by(self) -> list[str]:
        return [name for name in self.failed if name in self.trial.reasons]

    def plain(self) -> dict[str, Any]:
        wanted = {name: self.others.get(name, "no such property") for name in self.trial.reasons}
        return {"case": self.trial.name, "failed": self.failed, "should have failed": wanted}


@settings
class AuditCheck:
    family: str | None = setting(
        None, choices=FAMILIES, none="all", about="known bugs to audit: those of one family"
    )
    ours: bool = setting(True, about="audit our own attention modules as well")
    mutate: int | None = setting(
        None, low=1, none="known bugs instead", about="bugs to make by program, and to audit"
    )
    seed: int = setting(0, low=0, about="which mutants are drawn")
    workers: int = setting(2, low=1, about="processes that audit mutants")

    def run(self, tick: Tick) -> dict[str, Any]:
        if self.mutate is not None:
            return check_mutants(self.mutate, self.seed, self.workers, tick)
        return self._audit_known(tick)

    def show(self, report: Mapping[str, Any], screen: Console) -> None:
        if self.mutate is not None:
            show_mutants(report, screen)
            return
        for line in lines(report):
            screen.print(escape(line), highlight=False, soft_wrap=True)

    def _audit_known(self, tick: Tick) -> dict[str, Any]:
        known = [case for some in cases(self.family).values() for case in some]
        correct = [trial_of(case, False) for case in known]
        if self.family is None:
            correct += [Trial(one.name, one.subject, one.contract) for one in CONTROLS]
        correct += own_trials() if self.ours else []
        mutants: list[Outcome] = []
        controls: list[Outcome] = []

        def done() -> str:
            bugs = f"{len(mutants)} of {len(known)} bugs"
            return f"{bugs} and {len(controls)} of {len(correct)} correct ones"

        with stoppable(done, lambda: _complaints(mutants, controls)):
            for number, case in enumerate(known, 1):
                where = f"{number}/{len(known)}"
                mutants.append(audit_trial(trial_of(case, True), where, tick))
            for number, trial in enumerate(correct, 1):
                controls.append(audit_trial(trial, f"{number}/{len(correct)}", tick))
            report = score(mutants, controls)
            blind = self._without_causality(mutants, tick)
        sharp = blind is None or blind < report["recall"]
        report["control_recall_without_causality"] = blind
        report["passed"] = report["recall"] == report["precision"] == 1.0 and sharp
        return report

    def _without_causality(self, mutants: list[Outcome], tick: Tick) -> float | None:
        """The recall of an audit without causality; other findings stay."""
        affected = [one for one in mutants if set(one.caught_by) == {"causality"}]  # by no other
        if not affected:
            return None
        others = [one for one in all_properties() if one.name != "causality"]
        again = [audit_trial(one.trial, "control", tick, others) for one in affected]
        lost = sum(not one.caught_by for one in again)
        return (sum(bool(one.caught_by) for one in mutants) - lost) / len(mutants)


def trial_of(case: Case, wrong: bool) -> Trial:
    name = case.name if wrong else f"{case.name}, correct"
    return Trial(name, partial(case.subject, wrong), case.contract, case.reasons if wrong else ())


def audit_trial(
    trial: Trial,
    where: str,
    tick: Tick,
    properties: Sequence[Property] | None = None,
) -> Outcome:
    """The audit of a trial; `properties` are all that are registered unless some are given."""
    begin = time.perf_counter()
    tick(f"{where} {trial.name}")
    with seed_rng():  # code that drops at random must not touch anybody else's randomness
        try:
            subject = trial.make()
        except (InputError, SubjectError) as error:  # not even called: neither found nor clean
            seconds = time.perf_counter() - begin
            return Outcome(trial, {}, {"call": str(error)}, seconds, reason=str(error))
        certificate = examine(subject, trial.contract, properties=properties)
    failed = {one.name: one.detail for one in certificate.failed}
    others = {
        one.name: f"{one.verdict}: {one.detail}"
        for one in certificate.findings
        if one.name not in failed
    }
    seconds = time.perf_counter() - begin
    return Outcome(trial, failed, others, seconds, reason=certificate.reason)


def score(mutants: list[Outcome], controls: list[Outcome]) -> dict[str, Any]:
    caught = [one for one in mutants if one.caught_by]
    clean = [one for one in controls if not one.reason]
    everything = [*mutants, *controls]
    slowest = max(everything, key=lambda one: one.seconds)
    return {
        "mutants": len(mutants),
        "caught": len(caught),
        "recall": len(caught) / len(mutants),
        "controls": len(controls),
        "clean": len(clean),
        "precision": len(clean) / len(controls),
        **_complaints(mutants, controls),
        "caught_by": {one.trial.name: one.caught_by for one in caught},
        "seconds": round(sum(one.seconds for one in everything), 1),
        "slowest": {"case": slowest.trial.name, "seconds": round(slowest.seconds, 2)},
    }


def _complaints(mutants: Sequence[Outcome], controls: Sequence[Outcome]) -> dict[str, Any]:
    """Bugs that were not found, or for another reason; correct code that was no pass."""
    missed = [one for one in mutants if not one.failed]
    elsewhere = [one for one in mutants if one.failed and not one.caught_by]
    flagged = [one for one in controls if one.failed]
    incomplete = [one for one in controls if one.reason and not one.failed]
    return {
        "missed": [one.plain() for one in missed],
        "for_another_reason": [one.plain() for one in elsewhere],
        "wrongly_flagged": [{"case": one.trial.name, "failed": one.failed} for one in flagged],
        "incomplete": [{"case": one.trial.name, "reason": one.reason} for one in incomplete],
    }


def own_trials() -> list[Trial]:
    """Attention of every kind with every score, and models with all positions, and a window."""
    found = [
        Trial(
            f"our {attention}, {score}",
            partial(own_attention, attention, score),
            # of an additive score no products show the heads
            Contract(
                causal=True,
                padding=True,
                heads=None if score == "additive" else 4,
                positions="none",
            ),
        )
        for attention, score in combinations()
    ]
    found += [
        Trial(
            f"our {attention.name}",
            partial(own_attention, attention.name, "scaled-dot"),
            Contract(causal=True, padding=True),
        )
        for attention in registry.options("attention")
        if is_recurrent(attention.name)
    ]
    for positions in registry.options("positions"):
        if positions.name in MISTAKES:
            continue
        declared: Any = KINDS.get(positions.name)
        for window in (None, WINDOW):
            contract = Contract(
                causal=True, cache=True, padding=True, positions=declared, window=window
            )
            found.append(
                Trial(
                    f"our transformer, {positions.name}" + (", window" if window else ""),
                    partial(own_model, positions.name, (window,)),
                    contract,
                )
            )
    for name, (words, declared) in MECHANISMS.items():
        contract = Contract(
            **{"causal": True, "cache": True, "padding": True, "positions": "rotary", **declared}
        )
        make = partial(own_model, "rotary", (None,), words=words)
        found.append(Trial(f"our transformer, {name}", make, contract))
    return found
