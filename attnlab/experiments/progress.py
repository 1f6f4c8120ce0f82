"""What a person sees of an experiment: the running job, how far it is, how long it takes."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from attnlab.training.report import Opening, Report, duration

SILENCE = 30.0  # seconds that pass without a word where no bar is shown


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
    """A bar for the experiment and one for the running training; a line for each finished job.

    In a file or a pipe, where a bar cannot move, a line says now and then how far it is.
    """

    def __init__(self, screen: Console, silence: float = SILENCE) -> None:
        self.screen = screen
        self.silence, self.said = silence, time.monotonic()
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
        self.said = time.monotonic()

    def now_and_then(self, text: str) -> None:
        """A line, if there is no bar and the last one is long ago."""
        if self.bar.disable and time.monotonic() - self.said >= self.silence:
            self.note(text)

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
        self.now_and_then(detail)

    def finished(self, job: str, seconds: float) -> None:
        self.bar.advance(self.whole, self.waiting.pop(job))
        self.note(f"{job}: {duration(seconds)}")

    def training(self) -> Report:
        return _TrainingBar(self)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        task = self.bar.add_task(what, total=total, detail="")

        def count(done: int, detail: str) -> None:
            self.bar.update(task, completed=done, detail=escape(detail))
            self.now_and_then(f"{what}: {done / max(total, 1):.0%} · {detail}")

        try:
            yield count
        finally:
            self.bar.remove_task(task)


class _TrainingBar(Report):
    def __init__(self, terminal: Terminal) -> None:
        self.terminal, self.bar = terminal, terminal.bar

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        self.steps = opening.steps
        self.task = self.bar.add_task("training", total=opening.steps, completed=step, detail="")
        try:
            yield
        finally:
            self.bar.remove_task(self.task)

    def stepped(self, step: int, loss: float, rate: float) -> None:
        self.bar.update(self.task, completed=step, detail=f"loss {loss:.3f}")
        self.terminal.now_and_then(f"training: step {step:,} of {self.steps:,} · loss {loss:.3f}")
