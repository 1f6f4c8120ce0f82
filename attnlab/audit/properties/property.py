"""What a property is: a check that is printed into scripts, and the cases it is run on.

Each file of this folder states one property, to be read from top to bottom:

    def fails(run, draw, *, batch, length, seed, tolerance) -> (fails, sentence, measured)
    class Name(Property):  cases(probe) -> Case, Case, …

`fails` takes tools first (`audit/probe/tools.py`) and then, by name, the sizes of a case. It knows
torch, constants, and functions that follow the same rule, since scripts print it with all that it
names. Cases are tried in their order. The first that fails is the finding, the start from which
the counter-example is made smaller, and what the script runs: on the same weights and inputs.

A property may be lacking in more than one way, so a case has an `aspect`: single steps, chunks on a
warm cache. The first case that fails of each aspect is a finding of its own, unless `distinct` says
that the failures before explain it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from attnlab.audit.contract import Finding, Verdict
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools, tool_names
from attnlab.audit.repro.prelude import CannotTell, Result, seeded

DRAWS = "but it draws random numbers, and may draw others in calls of another shape"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of a check. What is declared, and decides, is among the sizes."""

    fails: Callable[..., Result]
    sizes: Mapping[str, Any]
    tolerance: float  # above which outputs differ
    fixed: tuple[Sequence[str], ...] = ()  # settings of the code on which the right answer depends
    shape: tuple[int, int] | None = None  # query and key/value heads that a function is given
    aspect: str = ""  # which of the things that the property asks for
    alike: bool = False  # it compares calls of one shape, which draw the same random numbers

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.sizes.items())

    def run(self, tools: object) -> Result:
        """With the same random numbers every time, for code that draws some."""
        given = [getattr(tools, name) for name in tool_names(self.fails)]
        with seeded(0):
            result = self.fails(*given, **self.sizes, tolerance=self.tolerance)
        if result[0] and self.sizes.get("rows", 1) > 1:  # rows might be mixed: each alone decides
            return replace(self, sizes={**self.sizes, "rows": 1}).run(tools)
        return result


@dataclass(frozen=True)
class Property(ABC):
    name: ClassVar[str]
    field: ClassVar[str | None] = None  # of the contract
    fixed: ClassVar[tuple[Sequence[str], ...]] = ()  # see Case
    alike: ClassVar[bool] = False  # see Case

    @abstractmethod
    def cases(self, probe: Probe) -> Iterator[Case]:
        """In the order in which they are tried."""

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        """The finding when no case fails; by default, what the last one showed."""
        _, sentence, measured = tried[-1][1]
        return self.finding("pass", sentence, measured=measured)

    def examine(self, probe: Probe) -> Finding:
        """What it came to; further failures, of other aspects, are `besides`."""
        first = self.find(probe)
        declared = self.declared(probe)
        every = [
            replace(doubt_chance(probe, one), declared=declared, besides=())
            for one in (first, *first.besides)
        ]
        kept = [one for one in every if one.verdict == "fail"] or every[:1]
        return replace(kept[0], besides=tuple(kept[1:]))

    def find(self, probe: Probe) -> Finding:
        excuse = self.excuse(probe)
        if excuse is not None:
            return excuse
        tried: list[tuple[Case, Result]] = []
        failed: dict[str, Finding] = {}  # by aspect
        doubts: list[Finding] = []
        for case in self._cases(probe, doubts):
            if case.aspect in failed:
                continue
            try:
                result = self.run(probe, case)
                found = self.on_failure(probe, case, result) if result[0] else None
            except (CannotTell, SubjectError) as error:  # other cases may show a failure
                doubts.append(self.unclear(error))
                continue
            if found is None:
                tried.append((case, result))
                continue
            found = replace(found, aspect=found.aspect or case.aspect)
            judged = doubt_chance(probe, found)
            if judged.verdict != "fail":
                doubts.append(judged)
                if found.verdict != "fail":  # a choice, or a doubt, that settles all of it
                    break
            elif found.aspect not in failed and self.distinct(probe, found, [*failed.values()]):
                failed[found.aspect] = found
        if failed:
            first, *others = failed.values()
            return replace(first, besides=tuple(others))
        return doubts[0] if doubts else self.on_pass(probe, tried)

    def _cases(self, probe: Probe, doubts: list[Finding]) -> Iterator[Case]:
        """Those that can be had; why there are no more of them does not hide what they show."""
        try:
            yield from self.cases(probe)
        except (CannotTell, SubjectError) as error:
            doubts.append(self.unclear(error))

    def unclear(self, error: CannotTell | SubjectError) -> Finding:
        """What a case that cannot be judged comes to."""
        if isinstance(error, SubjectError):
            return self.finding("cannot tell", error.sentence(during=self.name))
        return self.finding("cannot tell", str(error))

    def distinct(self, probe: Probe, found: Finding, before: Sequence[Finding]) -> bool:
        """Whether a failure of another aspect is one of its own, and not explained by others."""
        return True

    def excuse(self, probe: Probe) -> Finding | None:
        """Why it is not examined, if it is not."""
        reason = unsteady(probe)
        return self.finding("cannot tell", reason) if reason else None

    def run(self, probe: Probe, case: Case) -> Result:
        return case.run(Tools(probe))

    def on_failure(self, probe: Probe, case: Case, result: Result) -> Finding | None:
        """The finding of a case that fails; None where it is somebody's choice, to go on."""
        _, sentence, measured = result
        return self.finding("fail", sentence, measured=measured, example=case)

    def case(
        self,
        probe: Probe,
        fails: Callable[..., Result],
        aspect: str = "",
        alike: bool | None = None,
        /,
        **sizes: Any,
    ) -> Case:
        """Of this property, at lengths that the code takes; with a seed of 0 if none is given."""
        tolerance = sizes.pop("tolerance", None)
        sizes = fit_sizes(probe, fails, sizes)
        return Case(
            fails=fails,
            sizes={"seed": 0, **sizes},
            tolerance=self.tolerance(probe) if tolerance is None else tolerance,
            fixed=self.fixed,
            aspect=aspect,
            alike=self.alike if alike is None else alike,
        )

    def tolerance(self, probe: Probe) -> float:
        """What it calls equal; too coarse a one is no reason to pass."""
        return probe.tolerance

    def finding(self, verdict: Verdict, detail: str, **facts: Any) -> Finding:
        return Finding(name=self.name, verdict=verdict, detail=detail, **facts)

    def declared(self, probe: Probe) -> Any:
        return getattr(probe.contract, self.field) if self.field else None


def fit_sizes(
    probe: Probe, fails: Callable[..., Result], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Sizes within the lengths that the code takes.

    Where a module is watched they stay: other lengths could be taken for those of heads.
    """
    tools = tool_names(fails)
    watched = "watch" in tools and Tools(probe).watch is not None
    return dict(sizes) if watched or "draw" not in tools else probe.taken.fit_sizes(sizes)


def unsteady(probe: Probe) -> str | None:
    """Why nothing can be said of code that answers differently every time."""
    if probe.steady:
        return None
    return f"two identical calls differ by {probe.noise:.1e}: the code is not deterministic"


def doubt_chance(probe: Probe, found: Finding) -> Finding:
    """The finding, or that it cannot be told from chance.

    Every call draws from the same seed. Calls of one shape draw the same numbers then, so a
    difference between them is the code's; calls of other shapes may draw others.
    """
    case = found.example
    if found.verdict != "fail" or not isinstance(case, Case) or case.alike or not probe.random:
        return found
    return replace(found, verdict="cannot tell", detail=f"{found.detail}; {DRAWS}", example=None)
