"""One step: forward, backward, clip, update; on CUDA, if compiled, a single captured graph.

Axes: b batch, t time. A step's gradient is that of the mean loss over all targets of the whole
batch, however many parts and processes share it out.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab import counter_rng
from attnlab.code.own import own_parts
from attnlab.data.batches import IGNORE, Batch, Source, batch_of, rows_of
from attnlab.kernels import hardware
from attnlab.models.loss import is_large
from attnlab.models.transformer import TransformerSettings
from attnlab.training import blocks, parallel
from attnlab.training.optim import Optimiser
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.shards import whole

WARM = 3  # steps before a graph is captured: libraries choose their kernels in the first ones


@dataclass(frozen=True)
class Outcome:
    """Loss of the whole batch and norm of its gradient, before the update."""

    loss: float
    norm: float
    finite: bool


def all_parts(source: Source, recipe: Recipe, world: World, step: int) -> list[Batch]:
    """The batch of a step as this process takes it: in `accumulate` parts."""
    return [
        batch_of(
            source,
            seed=recipe.seed,
            step=step,
            size=recipe.batch,
            rank=world.rank,
            world=world.size,
            part=part,
            parts=recipe.accumulate,
        )
        for part in range(recipe.accumulate)
    ]


class Stepper:
    """Takes steps; outcomes are read in bunches, so that a GPU never waits to be asked."""

    def __init__(
        self, model: nn.Module, optimiser: Optimiser, recipe: Recipe, world: World
    ) -> None:
        self.model, self.optimiser, self.recipe, self.world = model, optimiser, recipe, world
        self.spread = model
        self.asynchronous = world.device.type == "cuda"
        dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
        self._random = dropout or bool(own_parts(recipe.model))  # whose code may draw as it likes
        self._loss = None
        if recipe.compile:
            hardware.tag_compiled_code()
            torch.compiler.reset()  # it gives up on a function it has compiled for eight models
            sharded = parallel.cut_for(recipe, world) is not None  # FSDP's hooks break a graph
            if not sharded or not blocks.compile_blocks(model):
                self._loss = torch.compile(self._plain_loss, dynamic=False)
        if recipe.recompute:
            blocks.recompute_blocks(model, random=self._random)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Batch] = []
        self._scale = torch.zeros((), device=world.device)
        self._halted = torch.zeros((), device=world.device)
        self._result: Tensor | None = None
        self._pending: list[Tensor] = []
        self.running: frozenset[str] = frozenset()  # buffers that a step changes, by name
        if self.asynchronous:
            optimiser.skip_when(self._halted)

    def take(self, step: int, parts: list[Batch]) -> None:
        """One step; with a NaN or Inf in loss or gradient nothing is updated, then or later."""
        recipe = self.recipe
        self.optimiser.set_rates(recipe.schedule.factor(step, recipe.steps))
        if self._random:
            torch.manual_seed(counter_rng.number(recipe.seed, "dropout", step, self.world.rank))
        targets = sum(int((part.targets != IGNORE).sum()) for part in parts)
        self._scale.fill_(self.world.size / max(self.world.total(targets), 1))
        if self._graph is None:
            result = self._whole_step([self._to_device(part) for part in parts])
        else:
            for held, part in zip(self._inputs, parts, strict=True):
                held.tokens.copy_(part.tokens, non_blocking=True)
                held.targets.copy_(part.targets, non_blocking=True)
            self._graph.replay()
            assert self._result is not None
            result = self._result.clone()
        self._pending.append(result)

    def outcomes(self) -> list[Outcome]:
        """What the steps since the last call gave."""
        rows = torch.stack(self._pending).tolist() if self._pending else []
        self._pending = []
        return [Outcome(loss, norm, halted == 0) for loss, norm, halted in rows]

    def rehearse(self, parts: list[Batch]) -> tuple[float, float]:
        """Seconds to get ready (compile, capture) and seconds a step takes; no weight changes."""
        begin = time.perf_counter()
        kept = [(tensor, tensor.detach().clone()) for tensor in self._tensors()]
        buffers = {name: one.detach().clone() for name, one in self.model.named_buffers()}
        for _ in range(WARM):
            self.take(0, parts)
        known = {id(tensor) for tensor, _ in kept}
        if self.recipe.compile and self.asynchronous and self.world.size == 1:
            self._capture(parts)
        self._wait()
        ready = time.perf_counter()
        turns = 3 if self.asynchronous else 1
        for _ in range(turns):
            self.take(0, parts)
        self._wait()
        taken = (time.perf_counter() - ready) / turns
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
            for tensor in self._tensors():
                if id(tensor) not in known:
                    tensor.zero_()  # the optimiser's state as it is before the first step
            self._halted.zero_()
            self._put_back(buffers)
        self._pending = []
        return ready - begin, taken

    def running_buffers(self) -> dict[str, Tensor]:
        """Averages, counters and the like, which a resumed run needs beside the weights."""
        found = dict(self.model.named_buffers())
        return {name: found[name].detach() for name in sorted(self.running)}

    def _put_back(self, before: dict[str, Tensor]) -> None:
        """Buffers as they were; those that the steps have changed are remembered by name."""
        now = {name: one for name, one in self.model.named_buffers() if name in before}
        changed = {name for name, one in now.items() if not same(one, before[name])}
        self.running = frozenset(changed)
        if changed and self.recipe.recompute:
            raise ValueError(
                f"recompute is true, and a forward pass changes the buffer {sorted(changed)[0]}, "
                "which would change twice; use recompute=false"
            )
        for name in changed:
            now[name].resize_as_(before[name]).copy_(before[name])

    def _whole_step(self, parts: list[Batch]) -> Tensor:
        self.optimiser.zero_grad()
        total = torch.zeros((), device=self.world.device)
        for number, part in enumerate(parts):
            with parallel.sync_after(self.spread, number == len(parts) - 1):
                sum_of = self._loss or self._plain_loss
                loss = sum_of(part.tokens, part.targets, **part.options) * self._scale
                loss.backward()
            total += loss.detach()
        total = self.world.all_reduce_sum(total) / self.world.size
        norm = self._clip_gradients()
        bad = ~(torch.isfinite(total) & torch.isfinite(norm))
        self._halted.copy_(torch.maximum(self._halted, bad.to(self._halted.dtype)))
        if self.asynchronous or not bool(self._halted):
            self.optimiser.step()
        return torch.stack([total, norm, self._halted])

    def _plain_loss(self, tokens: Tensor, targets: Tensor, **options: Tensor) -> Tensor:
        """Sum of the nats over all targets."""
        half = self.recipe.dtype == "bfloat16"
        kind = self.world.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            if in_chunks(self.recipe, tokens.numel(), kind):  # within the call: FSDP gathers there
                loss: Tensor = self.spread(tokens, targets=targets, **options)
                return loss
            logits = self.spread(tokens, **options)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
        )

    def _clip_gradients(self) -> Tensor:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = whole(torch.nn.utils.get_total_norm(grads))
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.recipe.clip, norm)
        return norm

    def _capture(self, parts: list[Batch]) -> None:
        self._inputs = [self._to_device(part) for part in parts]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = self._whole_step(self._inputs)

    def _to_device(self, part: Batch) -> Batch:
        device = self.world.device
        if device.type == "cpu":
            return part if self.recipe.compile else trim(part)
        return part.changed(lambda tensor: tensor.to(device, non_blocking=True))

    def _tensors(self) -> list[Tensor]:
        """Everything a step changes: weights and the optimiser's state."""
        state = (
            slot
            for part in self.optimiser.parts
            for slots in part.state.values()
            for slot in slots.values()
        )
        return [*self.model.parameters(), *state]

    def _wait(self) -> None:
        if self.asynchronous:
            torch.cuda.synchronize()


def in_chunks(recipe: Recipe, tokens: int, device: str) -> bool:
    """Whether the loss of so many tokens is computed without ever having all their logits.

    A transformer can; another model only gives logits.
    """
    settings = recipe.model
    able = isinstance(settings, TransformerSettings)
    return able and is_large(tokens, settings.vocabulary, device)


def what_broke(source: Source, recipe: Recipe, step: int, outcome: Outcome) -> str:
    """Of a loss or a norm that is not finite: in which step, and on which samples."""
    epochs, samples = rows_of(source, seed=recipe.seed, step=step - 1, size=recipe.batch)
    named = ", ".join(map(str, samples[:8])) + (" …" if len(samples) > 8 else "")
    return (
        f"step {step}: loss {outcome.loss}, gradient norm {outcome.norm}: not finite; stopped "
        f"before the update. Its batch: samples {named} of epoch {epochs[0]}. "
        "A lower optimiser.rate, clip=1 or dtype=float32 may help"
    )


@contextmanager
def no_garbage_walks() -> Iterator[None]:
    """Freeze existing objects: garbage collection costs 5 % of a step.

    Whoever has frozen what was there before, such as the page, keeps it frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, a NaN too."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def trim(part: Batch) -> Batch:
    """Without the columns at the end that have no target.

    No language model looks at them from an earlier one. A bidirectional network does: it then reads
    less padding.
    """
    wanted = (part.targets != IGNORE).any(0).nonzero()
    length = int(wanted[-1]) + 1 if len(wanted) else 1
    return part.changed(lambda tensor: tensor[:, :length])
