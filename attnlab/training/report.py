"""What a person sees of a training run: on the terminal, in TensorBoard, or nothing."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attnlab.data.batches import Source
from attnlab.evaluate import Evaluation
from attnlab.extras import missing
from attnlab.models.meta import measure
from attnlab.models.model import LanguageModel, parameters
from attnlab.stop import Stopping
from attnlab.training.recipe import Recipe
from attnlab.training.shards import is_sharded


@dataclass(frozen=True)
class Opening:
    """What is known before the first step."""

    run: str
    parameters: int
    tokens: int
    epochs: float
    flops: float
    steps: int
    ready_seconds: float
    expected_seconds: float
    step_seconds: float
    matrix_rate: float  # operations a second of all processes in products of large matrices

    @staticmethod
    def of(
        model: LanguageModel,
        source: Source,
        recipe: Recipe,
        *,
        ready: float,
        step_seconds: float,
        matrix_rate: float,
        step: int = 0,
        run: str = "",
    ) -> "Opening":
        """An evaluation is forward only: a third of a step for as many tokens."""
        left, tokens = recipe.steps - step, recipe.steps * recipe.batch * recipe.length
        times = left // recipe.evaluate_every + 1 if recipe.evaluate_every else 1
        rows = min(recipe.evaluated_rows or source.validation_count, source.validation_count)
        evaluating = times * rows * step_seconds / (3 * recipe.batch)
        return Opening(
            run=run,
            parameters=parameters(model),
            tokens=tokens,
            epochs=recipe.steps * recipe.batch / source.count,
            flops=_operations(model, recipe) * tokens,
            steps=recipe.steps,
            ready_seconds=ready,
            expected_seconds=left * step_seconds + evaluating,
            step_seconds=step_seconds,
            matrix_rate=matrix_rate,
        )

    def utilisation(self, tokens_per_second: float) -> float:
        """Model FLOPs utilisation (MFU): 1 if steps took as long as their products would alone."""
        return self.flops / self.tokens * tokens_per_second / self.matrix_rate

    def speed(self, step: int, seconds: float, step_seconds: float) -> dict[str, float]:
        """A line of speed.jsonl: how fast it was up to a step, and how long in steps alone."""
        rate = self.tokens / self.steps * step / max(step_seconds, 1e-9)
        return {
            "step": step,
            "seconds": seconds,
            "step_seconds": step_seconds,
            "tokens_per_second": rate,
            "utilisation": self.utilisation(rate),
        }

    @property
    def reached(self) -> float:
        """The utilisation of the steps that were timed before the first one."""
        return self.utilisation(self.tokens / self.steps / max(self.step_seconds, 1e-9))

    def sentence(self) -> str:
        return (
            f"{self.parameters:,} parameters · {self.tokens:,} tokens ({self.epochs:.1f} epochs) · "
            f"{scaled(self.flops)}FLOP · about {duration(self.expected_seconds)} · "
            f"MFU {100 * self.reached:.2g} %"
        )


class Report:
    """Silence; the others override what they show."""

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        yield

    def stepped(self, step: int, loss: float, rate: float) -> None:
        """Losses have come in; `rate` is the factor of the schedule."""

    @contextmanager
    def waiting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda done: None

    def evaluated(
        self, step: int, loss: float, better: bool, seconds: float, accuracy: float | None
    ) -> None:
        """`accuracy` is the part of the answers that is exactly right, where there are answers."""

    def measured(self, step: int, evaluation: Evaluation) -> None:
        """The same evaluation, row by row."""

    def sampled(self, step: int, prompt: str, text: str) -> None:
        pass


class Attended(Report):
    """Another report, for as long as anybody reads it: `| head` is a wish to stop, not an error.

    Nor is a full disk, where the output goes, a reason to lose a training: it stops as after a
    signal, and then the error is raised.
    """

    def __init__(self, then: Report, stop: Stopping) -> None:
        self.then, self.stop = then, stop
        self.lost: OSError | None = None

    def note(self, text: str) -> None:
        with self._reader():
            self.then.note(text)

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        with ExitStack() as stack:
            with self._reader():
                stack.enter_context(self.then.training(opening, step, tokens_per_step))
            yield

    def stepped(self, step: int, loss: float, rate: float) -> None:
        with self._reader():
            self.then.stepped(step, loss, rate)

    @contextmanager
    def waiting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        with self.then.waiting(what, total) as advance:
            yield advance

    def evaluated(
        self, step: int, loss: float, better: bool, seconds: float, accuracy: float | None
    ) -> None:
        with self._reader():
            self.then.evaluated(step, loss, better, seconds, accuracy)

    def measured(self, step: int, evaluation: Evaluation) -> None:
        self.then.measured(step, evaluation)

    def sampled(self, step: int, prompt: str, text: str) -> None:
        with self._reader():
            self.then.sampled(step, prompt, text)

    @contextmanager
    def _reader(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SystemExit) as error:  # rich makes the second of a broken pipe
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                self.lost = self.lost or error
            self.stop.signal = self.stop.signal or signal.SIGPIPE
            self.then = Report()


class Terminal(Report):
    """A bar with loss, tokens a second and time left; a line for every evaluation."""

    def __init__(self, screen: Console) -> None:
        self.screen = screen
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=screen,
            disable=not screen.is_terminal,
            transient=True,
        )

    def note(self, text: str) -> None:
        self.screen.print(escape(text), highlight=False, soft_wrap=True)

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        self.note(f"run {opening.run}")
        self.note(opening.sentence())
        self.tokens_per_step = tokens_per_step
        with self.bar:
            self.steps = self.bar.add_task(
                "training", total=opening.steps, completed=step, detail=""
            )
            yield

    def stepped(self, step: int, loss: float, rate: float) -> None:
        task = self.bar.tasks[self.steps]
        speed = f"{scaled((task.speed or 0) * self.tokens_per_step)}tokens/s"
        self.bar.update(self.steps, completed=step, detail=f"loss {loss:.3f} · {speed}")

    @contextmanager
    def waiting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        task = self.bar.add_task(what, total=total, detail="")
        try:
            yield lambda done: self.bar.update(task, completed=done)
        finally:
            self.bar.remove_task(task)

    def evaluated(
        self, step: int, loss: float, better: bool, seconds: float, accuracy: float | None
    ) -> None:
        right = "" if accuracy is None else f", {100 * accuracy:.1f} % of the answers right"
        mark = " (best so far)" if better else ""
        spent = duration(seconds)
        self.note(f"step {step:,}: validation loss {loss:.4f}{right} after {spent}{mark}")

    def sampled(self, step: int, prompt: str, text: str) -> None:
        self.screen.rule(f"step {step:,}", align="left", style="dim")
        self.screen.print(f"[dim]{escape(prompt)}[/]{escape(text)}", highlight=False)
        self.screen.rule(style="dim")


class TensorBoard(Report):
    """Scalars and samples for `tensorboard --logdir runs`."""

    def __init__(self, folder: Path, then: Report) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(missing("tensorboard", "tensorboard=true")) from None
        self.open = lambda step: SummaryWriter(str(folder), purge_step=step)
        self.then = then
        self.note, self.waiting = then.note, then.waiting  # type: ignore[method-assign]
        self.measured = then.measured  # type: ignore[method-assign]

    @contextmanager
    def training(self, opening: Opening, step: int, tokens_per_step: int) -> Iterator[None]:
        """Nothing is written before; what was written after `step` will come again."""
        self.writer: Any = self.open(step + 1)
        with self.then.training(opening, step, tokens_per_step):
            try:
                yield
            finally:
                self.writer.close()

    def stepped(self, step: int, loss: float, rate: float) -> None:
        self.writer.add_scalar("loss/train", loss, step)
        self.writer.add_scalar("schedule", rate, step)
        self.then.stepped(step, loss, rate)

    def evaluated(
        self, step: int, loss: float, better: bool, seconds: float, accuracy: float | None
    ) -> None:
        self.writer.add_scalar("loss/validation", loss, step)
        if accuracy is not None:
            self.writer.add_scalar("accuracy/validation", accuracy, step)
        self.then.evaluated(step, loss, better, seconds, accuracy)

    def sampled(self, step: int, prompt: str, text: str) -> None:
        self.writer.add_text("sample", prompt + text, step)
        self.then.sampled(step, prompt, text)


def _operations(model: LanguageModel, recipe: Recipe) -> float:
    """Of a step, for each token.

    Code of a person's own is counted as it runs. Parts of a model that is cut (FSDP) run only
    within its forward pass, so there another one is counted, without memory.
    """
    if any(map(is_sharded, model.parameters())):
        return measure(recipe.model, lambda other: other.operations(recipe.length))
    return model.operations(recipe.length)


def scaled(number: float) -> str:
    """1234567 -> "1.23 M", to be followed by a unit."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g} "


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
