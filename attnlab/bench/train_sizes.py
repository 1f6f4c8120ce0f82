"""`attnlab bench train sizes=10M,85M,300M`: what a training step costs, beside a plain GPT's.

The peer is a GPT in nothing but PyTorch's own layers, with the step that is usual for it: on CUDA
compiled, with fused AdamW and bfloat16 autocast. Ours has the same shape, with AdamW and with Muon,
and runs as a training does. They take the same random tokens, in turns.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from attnlab import config
from attnlab.bench.measure import peak_memory, take_turns
from attnlab.bench.plain_gpt import Peer, PlainTraining
from attnlab.data.batches import Batch
from attnlab.kernels import hardware
from attnlab.models.model import parameters
from attnlab.models.transformer import TransformerSettings
from attnlab.training.optim import AdamW, Muon, OptimiserSettings
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.step import Stepper

SIZES = {"tiny": (2, 32, 2), "10M": (6, 384, 6), "85M": (12, 768, 12), "300M": (24, 1024, 16)}
SHAPE = ["positions=learned", "norm=layer"]  # as the peer's, whose head is tied to the table too
RATE = 3e-4  # low enough for the largest; the same for both AdamW
APART = 0.05  # by which the counts of parameters may differ
PATIENCE = 120.0  # seconds of steps of each
STEPS = 2  # in a peak of memory: from the second on the optimiser has its state


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A step to time: sizes of the model and of the batch, and where it runs."""

    size: str
    context: int
    batch: int
    vocabulary: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def settings(self) -> TransformerSettings:
        depth, width, heads = SIZES[self.size]
        words = [f"depth={depth}", f"width={width}", f"attention.heads={heads}", *SHAPE]
        words += [f"context={self.context}", f"vocabulary={self.vocabulary}"]
        return config.override(TransformerSettings(), words)

    def tokens(self) -> Batch:
        random = torch.Generator().manual_seed(0)
        row = (self.batch, self.context + 1)
        text = torch.randint(self.vocabulary, row, generator=random)
        return Batch(text[:, :-1].contiguous(), text[:, 1:].contiguous())


class Ours:
    def __init__(self, problem: Problem, optimiser: OptimiserSettings) -> None:
        settings, on_gpu = problem.settings, problem.on_gpu
        recipe = Recipe(
            model=settings,
            optimiser=optimiser,
            batch=problem.batch,
            dtype="bfloat16" if on_gpu else "float32",
            compile=on_gpu,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = settings.build().to(problem.device)
        world = World(0, 1, problem.device)
        self.stepper = Stepper(self.model, recipe.optimiser.build(self.model), recipe, world)
        self.batch, self.number = [problem.tokens()], 0
        self.stepper.rehearse(self.batch)

    def step(self) -> None:
        self.stepper.take(self.number, self.batch)
        self.number += 1

    def losses(self) -> list[float]:
        return [one.loss if one.finite else math.nan for one in self.stepper.outcomes()]


class Theirs:
    def __init__(self, problem: Problem) -> None:
        depth, width, heads = SIZES[problem.size]
        peer = Peer(
            width=width,
            depth=depth,
            heads=heads,
            context=problem.context,
            batch=problem.batch,
            steps=1000,
            rate=RATE,
            dropout=0.0,
        )
        self.training = PlainTraining(
            peer, problem.vocabulary, problem.device, compiled=problem.on_gpu
        )
        self.model, self.batch = self.training.model, problem.tokens()
        self._losses: list[torch.Tensor] = []

    def step(self) -> None:
        self._losses.append(self.training.step(len(self._losses), self.batch))

    def losses(self) -> list[float]:
        return torch.stack(self._losses).tolist()


CANDIDATES: dict[str, Callable[[Problem], Ours | Theirs]] = {
    "peer": Theirs,
    "ours, AdamW": lambda problem: Ours(problem, AdamW(rate=RATE)),
    "ours, Muon": lambda problem: Ours(problem, Muon()),
}


def measure(problem: Problem, turns: int, tick: Callable[[str], None]) -> dict[str, Any]:
    """A row for each candidate; a ValueError where their numbers could not be compared."""
    tick(f"{problem.size}: making three models")
    with fresh():
        made = {name: make(problem) for name, make in CANDIDATES.items()}
        counts = {name: parameters(one.model) for name, one in made.items()}
        refuse_apart(problem.size, counts)
        times = take_turns(
            {name: one.step for name, one in made.items()},
            problem.device,
            turns,
            PATIENCE,
            lambda name: tick(f"{problem.size}: {name}"),
        )
        losses = {name: one.losses() for name, one in made.items()}
        refuse_not_finite(problem.size, losses)
        operations = problem.settings.build().operations(problem.context)
        del made
    dtype = torch.bfloat16 if problem.on_gpu else torch.float32
    rate = hardware.matrix_rate(problem.device, dtype)
    rows = []
    for name, make in CANDIDATES.items():
        tick(f"{problem.size}: memory of {name}")
        seconds = times[name].median / 1e3
        rows.append(
            {
                "name": name,
                "parameters": counts[name],
                "step_ms": asdict(times[name]),
                "ratio": times[name].median / times["peer"].median,
                "utilisation": operations * problem.batch * problem.context / seconds / rate,
                "peak": peak_of(problem, make),
                "losses": [losses[name][0], losses[name][-1]],
            }
        )
    return {"size": problem.size, "matrix_rate": rate, "rows": rows}


def peak_of(problem: Problem, make: Callable[[Problem], Ours | Theirs]) -> int | None:
    """Bytes of weights, gradients, the optimiser's state and a step; each candidate alone."""

    def run() -> None:
        one = make(problem)
        for _ in range(STEPS):
            one.step()

    with fresh():
        return peak_memory(run, problem.device)


@contextmanager
def fresh() -> Iterator[None]:
    """What was made inside is given back afterwards: the next candidate needs the room."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def refuse_apart(size: str, counts: dict[str, int]) -> None:
    peer = counts["peer"]
    for name, count in counts.items():
        if abs(count - peer) > APART * peer:
            raise ValueError(
                f"{size}: {name} has {count:,} parameters and the peer {peer:,}; times of models "
                f"that differ by more than {APART:.0%} are not compared"
            )


def refuse_not_finite(size: str, losses: dict[str, list[float]]) -> None:
    for name, found in losses.items():
        if not found or not all(map(math.isfinite, found)):
            raise ValueError(f"{size}: a loss of {name} is not finite; its times are not reported")


def show(report: dict[str, Any], screen: Console) -> None:
    screen.print(
        f"steps on {report['device']}: batch {report['batch']}, context {report['context']:,}, "
        f"vocabulary {report['vocabulary']:,}",
        highlight=False,
    )
    names = ("size", "model", "parameters", "ms a step", "of the peer's", "utilisation", "peak")
    table = Table(*names, box=None)
    for one in report["sizes"]:
        for row in one["rows"]:
            peak = "unknown" if row["peak"] is None else f"{row['peak'] / 1e6:,.0f} MB"
            table.add_row(
                *(one["size"], row["name"], f"{row['parameters']:,}"),
                *(f"{row['step_ms']['median']:.1f}", f"{row['ratio']:.2f}"),
                *(f"{row['utilisation']:.1%}", peak),
            )
    screen.print(table)
    if report["device"] != "cuda":
        screen.print("there is no GPU here: 10M, 85M and 300M are meant for one", highlight=False)
