"""Checkpoints in shards, written beside the steps: each process writes a copy of its own rows.

A collective operation belongs to the thread that trains: two threads of a process could begin
theirs in another order than those of another process. So a thread does only what needs no other
process. At the end of each step all tell whether their part is done; when all have, each goes on
with the next part (sharded.py), at that same step. A checkpoint takes three steps at least.

The rule for another save is that of writer.py, and all processes follow it at the same step. Where
one has no memory for its copy, all write from the weights, while training waits. After an error of
one process no other can be waited for: what is being written is given up, and the checkpoint before
it counts.
"""

import dataclasses
import errno
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from attnlab.training import parallel, sharded
from attnlab.training.parallel import World
from attnlab.training.runs import Run
from attnlab.training.sharded import Act, Shard, Work, advance, answer, at_once
from attnlab.training.writer import Save, copy_of


class ShardWriter:
    """As Writer; every process calls the same at the same step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._saves: list[Shard] = []  # the first is being written, the second waits
        self._work: Work[None] | None = None
        self._part: Future[str] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._given_up = False

    def put(self, save: Save) -> None:
        if len(self._saves) == 2 and save.outdates(self._saves[1].save):
            self._saves.pop()
        while len(self._saves) == 2:
            self._advance(wait=True)
        shard = Shard.of(save)
        copy = self._copy(shard)
        if copy is None:
            self.wait()  # and the other copies go
            copy = self._copy(shard)
        if copy is None:
            at_once(self._world, sharded.saving(self._world, shard))
            return
        self._saves.append(copy)
        if self._work is None:
            self._begin()

    def check(self) -> None:
        """If all processes have done their part, on with the next; their errors are raised."""
        if self._work is not None:
            self._advance()

    def wait(self) -> None:
        while self._work is not None:
            self._advance(wait=True)

    def again(self, run: Run) -> bool:
        """Write to another folder what could not be written; False if it was tried there."""
        if not self._saves or self._saves[0].save.run == run:
            return False
        self._saves = [
            dataclasses.replace(one, save=dataclasses.replace(one.save, run=run, lock=None))
            for one in self._saves
        ]
        self._begin()
        return True

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._given_up = error is not None
        self._thread.shutdown(cancel_futures=True)

    def _copy(self, shard: Shard) -> Shard | None:
        """None: one of the processes has no memory for it."""
        copy = copy_of(shard.save, parallel.local_processes())
        every = all(self._world.gather("" if copy is None else "copied"))
        return dataclasses.replace(shard, save=copy) if every and copy is not None else None

    def _begin(self) -> None:
        self._work = None
        if self._saves:
            self._work = sharded.saving(self._world, self._saves[0], self._heed)
            self._do(next(self._work))

    def _do(self, act: Act) -> None:
        self._part = self._thread.submit(answer, act)

    def _advance(self, *, wait: bool = False) -> None:
        assert self._work is not None and self._part is not None
        said = self._world.gather(self._part.result() if wait or self._part.done() else "")
        if not all(said):
            return
        try:
            self._do(advance(self._work, said))
        except StopIteration:
            self._saves.pop(0)
            self._begin()
        except Exception:
            self._work = None
            raise

    def _heed(self) -> None:
        if self._given_up:
            raise InterruptedError(errno.EINTR, "the training was stopped at once")
