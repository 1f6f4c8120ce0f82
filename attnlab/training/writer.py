"""Checkpoints written in the background: a save takes a copy, a thread writes it, training goes on.

The thread hashes, writes, forces to the disk, renames and deletes what is outdated, one save after
the other. One is being written and at most one waits, so there are two copies at most. The rule for
another save, while one waits:

- the one that waits was saved only as the best so far, and the other is better: it is skipped;
- the other is that of a stop, which goes on from there: the one that waits is skipped;
- else training waits until there is room. What is due by `save_every` or the end is never skipped,
  nor is the best that a later checkpoint names: what was skipped was never named by one.

Lines of the logs are appended before a save is put here, and forced to the disk before it is
written. An error is raised in the training, at its next step or save; what waits is then not
written. The end of a training waits for all. After a second signal what is being written is given
up, as a kill would. A copy that would take more than a third of the free memory is not made, since
to read a checkpoint back takes twice its size: training waits, and writes from its own weights. So
it does where other processes would wait for the first one, which alone writes.
"""

import dataclasses
import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from attnlab import files
from attnlab.memory import free_memory, ran_out
from attnlab.training import checkpoint
from attnlab.training.checkpoint import Checkpoint
from attnlab.training.lock import Lock
from attnlab.training.runs import Run

if TYPE_CHECKING:
    from torch import Tensor

LOGS = ("metrics", "eval", "samples")  # a resume expects every line up to its step
PART = 1 / 3  # of the free memory that a copy may take


@dataclass(frozen=True, kw_only=True)
class Save:
    """A checkpoint to be written."""

    run: Run
    kept: Checkpoint
    keep: int
    due: bool = True  # else it is saved only as the best so far
    stops: bool = False  # the training ends here, before its last step
    later: bool = True  # than the result of the run, if it has one
    lock: Lock | None = None  # None: whatever became of the folder is known

    @property
    def step(self) -> int:
        step: int = self.kept.state["step"]
        return step

    @property
    def best(self) -> int | None:
        step: int | None = self.kept.state["best_step"]
        return step

    @property
    def size(self) -> int:
        every = [*self.kept.model.values(), *self.kept.optimiser.values()]
        return sum(one.numel() * one.element_size() for one in every)

    def outdates(self, other: "Save") -> bool:
        if self.stops:
            return self.best != other.step
        return not other.due and self.best == self.step

    def copied(self) -> "Save":
        """With tensors of its own in the memory of the CPU."""
        kept = self.kept
        copy = dataclasses.replace(
            kept, model=_copied(kept.model), optimiser=_copied(kept.optimiser)
        )
        return dataclasses.replace(self, kept=copy)

    def write(self, heed: Callable[[], None]) -> None:
        """All that belongs to it, in the order in which a kill at any moment does no harm."""
        self.ready()
        checkpoint.save(self.run.checkpoints, self.step, self.kept, heed)
        if self.later:  # now, and not before: the run goes on from where it had ended
            self.run.forget_result()
        heed()
        checkpoint.retain(self.run.checkpoints, self.keep, self._protected())

    def ready(self) -> None:
        """Every line of the logs is on the disk, and the folder is where it was."""
        for name in LOGS:
            files.sync(self.run.log(name))
        if self.lock is not None and not self.lock.in_place():
            raise FileNotFoundError(errno.ENOENT, f"{self.run.folder} is not where it was")

    def outdated(self) -> list[Path]:
        """Checkpoints that may go once this one is there."""
        return checkpoint.outdated(self.run.checkpoints, self.keep, self._protected())

    def _protected(self) -> set[int]:
        return set() if self.best is None else {self.best}


def copy_of(save: Save, processes: int = 1) -> Save | None:
    """None: there is no memory for it, where so many processes of this machine take one each."""
    if processes * save.size > PART * free_memory():
        return None
    try:
        return save.copied()
    except Exception as error:
        if not ran_out(error):
            raise
        return None


def _copied(tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    return {name: one.detach().to("cpu", copy=True) for name, one in tensors.items()}


class Writer:
    """The thread that writes, and what it has to write. Use it with `with`."""

    def __init__(self, *, background: bool = True) -> None:
        self._background = background
        self._ended = threading.Event()  # of the thread: a `join` that is interrupted forgets it
        self._changed = threading.Condition()
        self._saves: list[Save] = []  # the first is being written, the second waits
        self._error: BaseException | None = None
        self._closed = self._given_up = False
        self._thread: threading.Thread | None = None

    def put(self, save: Save) -> None:
        """Its tensors may change once this returns."""
        if not self._background:
            save.write(self._heed)
            return
        self._make_room(save)
        copy = copy_of(save)
        if copy is None:
            self.wait()  # and the other copies go
            copy = copy_of(save)
        if copy is None:
            save.write(self._heed)
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # of Python's own, where there are too many
                copy.write(self._heed)
                return
            self._thread = thread
        with self._changed:
            self._saves.append(copy)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error of a save that could not be written."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Until all is on the disk."""
        self._wait_for(lambda: not self._saves)

    def again(self, run: Run) -> bool:
        """Write to another folder what could not be written; False if it was tried there."""
        with self._changed:
            if not self._saves or self._saves[0].run == run:
                return False
            moved = [dataclasses.replace(one, run=run, lock=None) for one in self._saves]
            self._saves, self._error = moved, None
            self._changed.notify_all()
        return True

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """No thread is left; whatever ended the training, what it had saved is on the disk."""
        self._given_up = isinstance(error, KeyboardInterrupt)
        try:
            self._end()
        except KeyboardInterrupt:
            if self._given_up:  # a third signal: as a kill would
                raise
            self._given_up = True
            self._end()
            raise
        if self._error is not None and not self._given_up:
            if error is None:
                raise self._error
            if error is not self._error and str(self._error) not in str(error):
                error.add_note(str(self._error))

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._ended.wait()
            self._thread.join()

    def _make_room(self, save: Save) -> None:
        with self._changed:
            if len(self._saves) == 2 and self._error is None and save.outdates(self._saves[1]):
                self._saves.pop()
        self._wait_for(lambda: len(self._saves) < 2)

    def _wait_for(self, done: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or self._error is not None)
        self.check()

    def _run(self) -> None:
        try:
            self._write_all()
        finally:
            self._ended.set()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._saves and not self._error))
                if not self._saves or self._error is not None or self._given_up:
                    return
                save = self._saves[0]
            error: BaseException | None = None
            try:
                save.write(self._heed)
            except BaseException as caught:  # raised in the training
                error = caught
            del save  # its copy may be large
            with self._changed:
                self._error = error
                if error is None:
                    self._saves.pop(0)
                self._changed.notify_all()

    def _heed(self) -> None:
        if self._given_up:
            raise InterruptedError(errno.EINTR, "the training was stopped at once")
