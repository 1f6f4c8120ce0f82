"""`attnlab.claim`: a sentence of the theory with its verdict, its evidence and its picture."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnlab.api.calling import calling, ticking, words_of
from attnlab.api.results import Shown
from attnlab.reports.report import Section

if TYPE_CHECKING:
    from attnlab.reports.report import Picture, Plot
    from attnlab.theory.result import ClaimResult, PlainResult


@dataclass(frozen=True, repr=False)
class Claim(Shown):
    """A claim that was run, with its settings and again with its knob turned."""

    result: "ClaimResult"

    @property
    def name(self) -> str:
        return self.result.name

    @property
    def verdict(self) -> str:
        """holds, refuted, holds with a condition, or cannot tell."""
        return self.result.verdict

    @property
    def statement(self) -> str:
        return self.result.claim.about.statement

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one on record."""
        return self.result.as_expected

    @property
    def picture(self) -> "Plot | Picture":
        """What is drawn, as plain data."""
        return self.result.evidence.picture

    def with_knob(self) -> "Claim":
        """The same with its knob turned, which breaks the claim."""
        return Claim(self.result.with_knob())

    def plain(self) -> "PlainResult":
        """What `attnlab claims NAME --json` prints."""
        return self.result.plain()

    def section(self) -> Section:
        from attnlab.theory.document import section
        from attnlab.theory.record import outcome_of

        found, changes = section(outcome_of(self.result)), self.result.claim.changes
        recorded = self.result.claim.about.expected
        note = "" if self.as_expected else f" (recorded: {recorded})"
        changed = f"Run with {changes}.\n\n" if changes else ""
        return Section(
            heading=f"{self.name}: {self.verdict}{note}",
            text=f"{changed}{found.text}",
            blocks=found.blocks,
        )


def claim(name: str, *words: str, knob: bool = False, **settings: object) -> Claim:
    """Run a claim of the theory, as `attnlab claims NAME` does; `attnlab list claims` has all.

    attnlab.claim("copy", lead=3)

    `knob` turns the knob that breaks the claim. `.verdict` is computed from the experiment.
    """
    given = words_of(words, settings)
    with calling(["claims", name, *(part for word in given for part in ("--set", word))]):
        from attnlab.api.progress import experiment_progress
        from attnlab.theory import catalogue
        from attnlab.theory.result import run_claim

        chosen = catalogue.choose(name, given, knob)
        if chosen.trained:
            result = run_claim(name, chosen, experiment_progress())
        else:
            with ticking() as tick:
                tick(f"claim {name}")
                result = run_claim(name, chosen)
    return Claim(result.with_knob() if knob else result)
