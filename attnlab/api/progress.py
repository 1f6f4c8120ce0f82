"""Progress on the standard error: bars on a terminal, in a notebook a line that changes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from attnlab.api.calling import Line, in_notebook
from attnlab.experiments import progress
from attnlab.experiments.progress import Progress
from attnlab.screen import Screen
from attnlab.training import report
from attnlab.training.parallel import World
from attnlab.training.report import Opening, Report, duration


def training_report(world: World) -> Report:
    if not world.first:
        return Report()
    if in_notebook():
        return _TrainingLog(Screen(stderr=True, terminal=False))
    return report.Terminal(Screen(stderr=True))


def experiment_progress() -> Progress:
    if in_notebook():
        return _ExperimentLog(Screen(stderr=True, terminal=False))
    return progress.Terminal(Screen(stderr=True))


class _TrainingLine(Report):
    """How far a training is, in a line that changes."""

    def __init__(self, line: Line) -> None:
        self.line, self.total = line, 0

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        self.total = opening.steps
        yield

    def stepped(self, step: int, loss: float, rate: float) -> None:
        self.line(f"step {step:,} of {self.total:,} · loss {loss:.3f}")

    @contextmanager
    def waiting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda done: self.line(f"{what}: {done:,} of {total:,}")


class _TrainingLog(report.Terminal):
    """What a log says, and below it the line that changes."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self.line = Line()
        self.below = _TrainingLine(self.line)
        self.stepped, self.waiting = self.below.stepped, self.below.waiting  # type: ignore[method-assign]

    def note(self, text: str) -> None:
        self.line.clear()
        super().note(text)

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        with super().training(opening, step, tokens_per_step):
            with self.below.training(opening, step, tokens_per_step):
                try:
                    yield
                finally:
                    self.line.clear()

    def sampled(self, step: int, prompt: str, text: str) -> None:
        self.line.clear()
        super().sampled(step, prompt, text)


class _ExperimentLog(progress.Terminal):
    """A line for each finished job, and below it one that says how far it is."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self.line = Line()

    def note(self, text: str) -> None:
        self.line.clear()
        super().note(text)

    @contextmanager
    def working(self, waiting: Mapping[str, float]) -> Iterator[None]:
        try:
            with super().working(waiting):
                yield
        finally:
            self.line.clear()

    def started(self, job: str) -> None:
        number, left = self.count - len(self.waiting) + 1, duration(sum(self.waiting.values()))
        self.line(f"{number} of {self.count}: {job} · about {left} left")

    def training(self) -> Report:
        return _TrainingLine(self.line)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        yield lambda done, detail: self.line(f"{what}: {done:,} of {total:,} · {detail}")
