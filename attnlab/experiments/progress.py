"""What a person sees of an experiment: the running job, how far it is, how long it takes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from attnlab.training.report import Opening, Report, duration


class Progress:
    """Silence; the terminal's overrides what it shows."""

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def working(self, waiting: Mapping[str, float]) -> Iterator[None]:
        """`waiting`: the jobs to run, and about how many seconds each takes."""
        yield

    def started(self, job: str) -> None:
        pass

    def finished(self, job: str, seconds: float) -> None:
        pass

    def training(self) -> Report:
        """The report of a training inside of a job."""
        return Report()

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        """For a job of many parts: yields a function to call with the parts done and a line."""
        yield lambda done, detail: None


class Terminal(Progress):
    """A bar for the experiment and one for the running training; a line for each finished job."""

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self.bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TextColumn("{task.fields[detail]}"),
            console=screen,
            disable=not screen.is_terminal,
            transient=True,
        )

    def note(self, text: str) -> None:
        self.screen.print(escape(text), highlight=False, soft_wrap=True)

    @contextmanager
    def working(self, waiting: Mapping[str, float]) -> Iterator[None]:
        self.waiting = dict(waiting)
        self.count = len(waiting)
        with self.bar:
            self.whole = self.bar.add_task(
                "jobs", total=max(sum(waiting.values()), 1e-9), detail=""
            )
            yield
            self.bar.remove_task(self.whole)

    def started(self, job: str) -> None:
        number = self.count - len(self.waiting) + 1
        left = duration(sum(self.waiting.values()))
        detail = f"{number} of {self.count}: {job} · about {left} left"
        self.bar.update(self.whole, detail=escape(detail))

    def finished(self, job: str, seconds: float) -> None:
        self.bar.advance(self.whole, self.waiting.pop(job))
        self.note(f"{job}: {duration(seconds)}")

    def training(self) -> Report:
        return _TrainingBar(self.bar)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        task = self.bar.add_task(what, total=total, detail="")
        try:
            yield lambda done, detail: self.bar.update(task, completed=done, detail=escape(detail))
        finally:
            self.bar.remove_task(task)


class _TrainingBar(Report):
    def __init__(self, bar: bars.Progress) -> None:
        self.bar = bar

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        self.task = self.bar.add_task("training", total=opening.steps, completed=step, detail="")
        try:
            yield
        finally:
            self.bar.remove_task(self.task)

    def stepped(self, step: int, loss: float, rate: float) -> None:
        self.bar.update(self.task, completed=step, detail=f"loss {loss:.3f}")
