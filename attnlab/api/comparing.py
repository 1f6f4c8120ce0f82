"""`attnlab.compare`: variants of a model trained on the same text within one budget, and judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.api.calling import calling, interrupt, words_of
from attnlab.api.results import Shown
from attnlab.api.training import refuse_leak
from attnlab.cluster import at
from attnlab.reports.report import Block, Report, Section, Table

if TYPE_CHECKING:
    from attnlab.compare.comparison import Comparison as Experiment

RESUMES = "everything is saved; the same call resumes it"


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """A finished comparison; `path / "report.html"` is the whole report."""

    path: Path
    report: Report
    results: dict[str, Any]  # what `attnlab compare --json` prints
    lacking: str = ""  # why it is not whole; the same call tries again

    @property
    def answer(self) -> str:
        return self.report.answer

    @property
    def best(self) -> str | None:
        """The label of the variant with the lowest loss, whether or not it is told to be better."""
        means = {
            label: found["loss"]["mean"]
            for label, found in self.results["variants"].items()
            if found["loss"] is not None
        }
        return min(means, key=lambda label: means[label]) if means else None

    @property
    def tables(self) -> list[Table]:
        """All of the report."""
        return [block for block in self.report.blocks if isinstance(block, Table)]

    @property
    def colours_of(self) -> Sequence[Block]:
        return self.report.blocks

    def section(self) -> Section:
        """The answer, how good the variants are, and their learning curves."""
        from attnlab.experiments.presentation import LEARNING_CURVES

        first, *others = self.report.sections
        curves = [one for one in others if one.heading == LEARNING_CURVES]
        lacking = f"\n\nfailed: {self.lacking}; the same call tries again" if self.lacking else ""
        return Section(
            heading=self.report.question,
            text=f"{self.report.answer}{lacking}\n\nThe whole report: {self.path / 'report.html'}",
            blocks=[*first.blocks, *(block for one in curves for block in one.blocks)],
        )


def prepare(
    words: Sequence[str], *, on: str, address: str | None, processes: int | None
) -> "tuple[Experiment, list[str]]":
    """The comparison that these words ask for, and the words of its command."""
    cluster = at(on, address)
    from attnlab.compare.comparison import Comparison
    from attnlab.compare.parse import parse
    from attnlab.experiments.places import pool_of

    plan = parse(list(words))
    for variant in plan.variants:
        refuse_leak(variant.recipe)
    experiment = Comparison(plan, pool_of(cluster, processes))
    return experiment, ["compare", *words, *(cluster.words if cluster else [])]


def compare(
    *words: str,
    on: str = "local",
    address: str | None = None,
    processes: int | None = None,
    again: bool = False,
    runs: str | Path = "runs",
    **settings: object,
) -> Comparison:
    """Compare variants fairly, as `attnlab compare` does: same text, batches and budget, and seeds.

    attnlab.compare("tiny", "learned=tiny:model.positions=learned", match="flops", seeds=5)

    Settings of a preset, such as steps=200, apply to all variants. Ctrl-C stops it with everything
    saved; the same call resumes it. `on`, `address` and `processes` say where trainings run.
    """
    given = words_of(words, settings)
    with calling():
        from attnlab.api.progress import experiment_progress
        from attnlab.experiments.experiment import carry_out
        from attnlab.experiments.pool import Interrupted

        experiment, command = prepare(given, on=on, address=address, processes=processes)
        try:
            record = carry_out(
                "",
                experiment,
                root=Path(runs),
                progress=experiment_progress(),
                again=again,
                command=command,
            )
        except Interrupted as error:
            raise interrupt(error.signal, RESUMES) from None
        except KeyboardInterrupt as error:
            error.add_note(RESUMES)
            raise
    return Comparison(record.folder, record.report, record.results, record.lacking)
