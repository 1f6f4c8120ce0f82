"""Generation on CUDA: a step is one replay of a graph, and picks the token that the next one reads.

Axes: b rows, v vocabulary, n random numbers of a row that are made at once.
Cost: Python starts a replay and reads the tokens of an earlier one. A graph takes some
milliseconds to make, one for each number of places that a step attends to (static_step.py).

A step of a transformer is some hundreds of kernels of a few microseconds each, and Python needs
longer to start one than the device to run it. So they are recorded once. The device then feeds
itself: tokens, ages, the number of tokens read and the place in the table of random numbers are
tensors that a step reads and moves on. AHEAD steps are started before the tokens of the first are
looked at; where all rows have ended, these were in vain.

On a device without graphs the same steps run one by one: so the tests hold them to the definition.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.models.static_step import StaticStep

AHEAD = 2  # steps that are started before the tokens of one are read
WORTH = 16  # steps; for fewer than so many a graph is not made

Pick = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
Draw = Callable[[int], Float[Tensor, "b n"]]


class Sent(NamedTuple):
    """Tokens on their way, each with the logarithm of its probability."""

    table: Float[Tensor, "b 2"]
    arrived: torch.cuda.Event | None


class Loop:
    """Steps one after another; `pick` takes logits and uniform numbers, and gives tokens and logs.

    Graphs hold addresses of the weights: a loop is for one text of each row, not to be kept.
    """

    def __init__(self, step: StaticStep, pick: Pick) -> None:
        self.step, self.pick = step, pick
        self.captures = step.device.type == "cuda"
        self.batch = 0
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.sent: deque[Sent] = deque()

    def begin(
        self, tokens: Int[Tensor, "b 1"], ages: Int[Tensor, "b 1"], number: int, draw: Draw | None
    ) -> None:
        """After a prompt that the cache has read: `tokens` come next, and have these ages.

        `draw(number)` gives random numbers for the step of that number and those after it.
        """
        assert not self.sent
        self.draw, self.number = draw, number
        first = None if draw is None else draw(number)
        if self.batch != tokens.shape[0]:
            self._make(tokens.shape[0], first)
        self.tokens.copy_(tokens)
        self.ages.copy_(ages)
        self.length.fill_(self.step.cache.length)
        self._upload(first)

    def next(self, ahead: int, left: int) -> list[list[float]]:
        """For each row the token of a step, and its log. `left` steps may come, this one included.

        `ahead` of them may be started before their time has come.
        """
        with self._on_device():
            while len(self.sent) <= min(ahead, AHEAD, left - 1):
                self._start(left - len(self.sent))
        return self._take()

    def close(self) -> None:
        """Wait for the steps that were started: they use memory that is about to be given back."""
        while self.sent:
            self._take()
        self.graphs.clear()

    def _make(self, batch: int, drawn: Tensor | None) -> None:
        """What steps read and move on, for so many rows."""
        device = self.step.device
        self.batch = batch
        self.graphs.clear()
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.ages = torch.zeros_like(self.tokens)
        self.length = torch.zeros(1, dtype=torch.long, device=device)
        self.column = torch.zeros_like(self.length)
        self.uniform = None if drawn is None else torch.empty_like(drawn, device=device)
        self.table = torch.empty(batch, 2, dtype=torch.float64, device=device)
        self.arrivals = [
            Sent(torch.empty(batch, 2, dtype=torch.float64, pin_memory=True), torch.cuda.Event())
            for _ in range(AHEAD + 1)
            if self.captures
        ]

    def _upload(self, drawn: Tensor | None) -> None:
        if self.uniform is not None and drawn is not None:
            # steps that were started read the old numbers first: the device keeps the order
            pinned = drawn.pin_memory() if self.captures else drawn
            self.uniform.copy_(pinned, non_blocking=True)
            self.column.zero_()
            self.numbers_end = self.number + drawn.shape[1]

    def _start(self, left: int) -> None:
        """A step; `left` are to come, this one included."""
        step, length = self.step, self.step.cache.length
        if length == step.room:
            if self.captures:
                torch.cuda.current_stream().synchronize()  # graphs that run have the old buffers
            self.graphs.clear()
            step.grow()
        if self.draw is not None and self.number == self.numbers_end:
            self._upload(self.draw(self.number))
        keys = step.keys_at(length)
        graph = self.graphs.get(keys)
        if graph is not None:
            graph.replay()
        elif self.captures and min(left, keys - length) >= WORTH:
            self._run_and_capture(keys)
        else:
            self._run(keys)
        step.cache.length += 1
        self.number += 1
        self._send()

    def _run(self, keys: int) -> None:
        """The operations of a step: none depends on a number of Python's that changes."""
        logits = self.step(self.tokens, self.ages, self.length, keys)
        drawn = self.uniform
        uniform = None if drawn is None else drawn.index_select(1, self.column)[:, 0]
        chosen, logs = self.pick(logits, uniform)
        self.tokens.copy_(chosen[:, None])
        self.table.copy_(torch.stack((chosen.double(), logs), dim=1))  # float64 holds a token
        for counter in (self.ages, self.length, self.column):
            counter += 1

    def _run_and_capture(self, keys: int) -> None:
        """Run a step, which makes all that a first run makes, and record the next.

        `torch.cuda.graph` would give all unused memory back first, only to ask for it again.
        """
        graph, side = torch.cuda.CUDAGraph(), _side_stream(self.step.device)
        side.wait_stream(torch.cuda.current_stream())
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.stream(side):
            self._run(keys)
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._run(keys)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        self.graphs[keys] = graph

    def _send(self) -> None:
        if not self.captures:
            self.sent.append(Sent(self.table.clone(), None))
            return
        self.arrivals.append(self.arrivals.pop(0))
        table, arrived = self.arrivals[-1]
        assert arrived is not None
        table.copy_(self.table, non_blocking=True)
        arrived.record()
        self.sent.append(self.arrivals[-1])

    def _take(self) -> list[list[float]]:
        """The one time in a step that the device is waited for."""
        table, arrived = self.sent.popleft()
        if arrived is not None:
            arrived.synchronize()
        return table.tolist()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        if not self.captures:
            yield
            return
        with torch.cuda.device(self.step.device):
            yield


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: the libraries keep memory for every stream that they have seen."""
    return torch.cuda.Stream(device)
