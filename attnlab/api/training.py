"""`attnlab.train` and `attnlab.runs`: a training with its curve, and a list of all runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.api.calling import calling, interrupt, words_of
from attnlab.api.results import Shown
from attnlab.errors import Error
from attnlab.printable import one_line
from attnlab.reports.report import Cell, Plot, Section, Series, Table

if TYPE_CHECKING:
    from attnlab.training.recipe import Recipe

POINTS = 100  # of the curve that is drawn; `.losses` has all


@dataclass(frozen=True, repr=False)
class Training(Shown):
    """A training that has ended. Other functions take it where they take a run."""

    path: Path  # of its run folder
    ending: str  # "finished" or "stopped early"
    step: int
    loss: float | None  # on the text it was trained on, at the last step
    best_loss: float | None  # on the text that was kept apart
    best_step: int | None
    seconds: float

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, training loss) of every step."""
        return [(row["step"], row["loss"]) for row in self._log("metrics")]

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """(step, validation loss) of every evaluation."""
        return [(row["step"], row["loss"]) for row in self._log("eval")]

    def _log(self, name: str) -> list[dict[str, Any]]:
        from attnlab.training.runs import Run

        with calling():
            return Run(self.path).read(name)

    def section(self) -> Section:
        from attnlab.training.report import duration

        best = ""
        if self.best_loss is not None:
            best = f" Best validation loss: {self.best_loss:.4f}, at step {self.best_step:,}."
        return Section(
            heading=f"Training {self.path.name}",
            text=f"{self.ending} at step {self.step:,} after {duration(self.seconds)}.{best}\n\n"
            f"Folder: {self.path}",
            blocks=[*self._curve(), _evaluation_table(self.evaluations)],
        )

    def _curve(self) -> list[Plot]:
        from attnlab.experiments.presentation import condense

        losses, evaluations = self.losses, self.evaluations
        curve = condense(losses, POINTS, self.step)
        series = [("training", curve), ("validation", evaluations)]
        drawn = [
            Series(name=name, x=[step for step, _ in points], y=[loss for _, loss in points])
            for name, points in series
            if points
        ]
        return [Plot(title="Loss by step", x="step", y="loss", series=drawn)] if drawn else []


def _evaluation_table(evaluations: Sequence[tuple[int, float]]) -> Table:
    return Table(title="Evaluations", columns=["step", "validation loss"], rows=evaluations)


def refuse_leak(recipe: "Recipe") -> None:
    """Code of a person's own is looked at before it is trained."""
    from attnlab.code.own import own_parts

    if own_parts(recipe.model):
        from attnlab.audit.before_training import refuse_leak

        refuse_leak(recipe)


def train(
    preset: str,
    *words: str,
    resume: bool | str | Path | None = None,
    config: str | Path | None = None,
    runs: str | Path = "runs",
    **settings: object,
) -> Training:
    """Pretrain or finetune a model, as `attnlab train` does.

    attnlab.train("tiny", steps=200, model={"width": 64})
    attnlab.train("shakespeare-cpu", "data=input.txt", "model.window=16")

    Ctrl-C, or the stop button of a notebook, stops it with a checkpoint and raises `Interrupt`.
    `resume`: True continues the newest unfinished run of the preset, "auto" does if there is one
    with these settings, a path names the run or checkpoint. `config` is a file of settings, `runs`
    the folder of run folders.
    """
    given = words_of(words, settings)
    wanted = {None: None, False: None, True: "newest"}.get(resume, resume)  # type: ignore[arg-type]
    resumed = None if wanted is None else str(wanted)
    options = ["--runs", str(runs)] if Path(runs) != Path("runs") else []
    options += [] if resumed is None else ["--resume", resumed]
    options += [] if config is None else ["--config", str(config)]
    with calling(["train", preset, *given, *options]):
        from attnlab.api.progress import training_report
        from attnlab.training import launch
        from attnlab.training.checkpoint import NotFinite

        try:
            run, result = launch.launch(
                preset,
                given,
                root=Path(runs),
                make_report=training_report,
                resume=resumed,
                file=None if config is None else Path(config),
                inspect=refuse_leak,
            )
        except NotFinite as error:
            raise Error(f"stopped: {one_line(error)}") from None
        if result.ending.startswith("SIG"):
            again = f"attnlab.train({preset!r}, resume={str(run.folder)!r})"
            saved = f"step {result.step:,} is saved; resume with {again}"
            nothing = "nothing was trained yet, so nothing is kept"
            raise interrupt(result.ending, saved if result.begun else nothing)
    return Training(
        path=run.folder,
        ending=result.ending,
        step=result.step,
        loss=result.loss,
        best_loss=result.best_loss,
        best_step=result.best_step,
        seconds=result.seconds,
    )


@dataclass(frozen=True, repr=False)
class Runs(Shown):
    """The runs in a folder, newest first: how far each is, its losses, whether it is at work."""

    path: Path
    summaries: list[dict[str, Any]]  # what `attnlab runs --json` prints

    def __len__(self) -> int:
        return len(self.summaries)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.summaries[number]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.summaries)

    def section(self) -> Section:
        columns = ["run", "state", "step", "steps", "loss", "best_loss"]
        rows: list[list[Cell]] = [[row[name] for name in columns] for row in self.summaries]
        shown = [name.replace("_", " ") for name in columns]
        damaged = [line for row in self.summaries for line in row["damaged"]]
        return Section(
            heading=f"Runs in {self.path}",
            text="\n\n".join(damaged if rows else ["none; begin one: attnlab.train('tiny')"]),
            blocks=[Table(title="", columns=shown, rows=rows)] if rows else [],
        )


def runs(folder: str | Path = "runs") -> Runs:
    """What was trained in a folder, as `attnlab runs` lists it."""
    with calling(["runs"]):
        from attnlab.training.listing import summaries

        return Runs(Path(folder), summaries(Path(folder)))
