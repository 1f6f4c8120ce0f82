"""`attnlab bench train`: seconds until a model is as good as a well-known recipe makes it.

The peer is that recipe, a plain GPT in nothing but PyTorch's own layers; its steps and ours are
timed in turns in the same run. How good the peer becomes, and in how many steps, is published with
the recipe; `full=yes` trains it here too.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from attnlab import stop
from attnlab.bench.measure import Timing, take_turns
from attnlab.config import setting, settings
from attnlab.data.batches import batch_of
from attnlab.evaluate import validation_loss
from attnlab.training import launch, runs
from attnlab.training.optim import Schedule
from attnlab.training.parallel import World
from attnlab.training.report import Report
from attnlab.training.setup import Setup, prepare
from attnlab.training.step import Stepper


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A recipe for character Shakespeare, and the validation loss it is known to reach."""

    width: int
    depth: int
    heads: int
    context: int
    batch: int
    steps: int
    rate: float
    dropout: float
    loss: float


# nanoGPT's recipes for a CPU and for a GPU; the losses are those of the whole validation split
PEERS = {
    "cpu": Peer(
        width=128,
        depth=4,
        heads=4,
        context=64,
        batch=12,
        steps=2000,
        rate=1e-3,
        dropout=0.0,
        loss=1.886,
    ),
    "cuda": Peer(
        width=384,
        depth=6,
        heads=6,
        context=256,
        batch=64,
        steps=1750,
        rate=1e-3,
        dropout=0.2,
        loss=1.467,
    ),
}


@settings
class TrainBench:
    data: str = setting("", about="file with the text of Shakespeare")
    losses: tuple[float, ...] = setting(
        (), about="validation losses to time besides the peer's; empty: no others"
    )
    turns: int = setting(30, low=1, about="timings of a step of each")
    seed: int = setting(0, about="random seed of our training")
    full: bool = setting(False, about="train the peer to its end as well")

    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        if not self.data:
            raise ValueError("no text is named; write data=PATH with the text of Shakespeare")
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        peer, preset = PEERS[kind], f"shakespeare-{'gpu' if kind == 'cuda' else 'cpu'}"
        overrides = [f"data={self.data}", f"seed={self.seed}", f"device={kind}"]
        with tempfile.TemporaryDirectory(prefix="attnlab-bench-") as place:
            root = Path(place)
            setup = prepare(launch.recipe_for(preset, overrides), root)
            tick("steps of both, in turns")
            times = self._steps(peer, setup, torch.device(kind))
            tick(f"training {preset}")
            run, result = launch.launch(
                preset, overrides, root=root, make_report=lambda world: Report()
            )
            stop.pass_on(result.ending)
            reached = [first_below(run, loss) for loss in (peer.loss, *self.losses)]
            trained = self._whole_peer(peer, setup, torch.device(kind), tick) if self.full else None
        peer_seconds = peer.steps * times["peer"].median / 1e3
        return {
            "device": kind,
            "peer": {
                **dataclasses.asdict(peer),
                "step_ms": dataclasses.asdict(times["peer"]),
                "seconds": peer_seconds,
                "trained_here": trained,
            },
            "ours": {"preset": preset, "step_ms": dataclasses.asdict(times["ours"])},
            "rows": [
                {**row, "ratio": row["seconds"] / peer_seconds if row["seconds"] else None}
                for row in reached
            ],
        }

    def show(self, report: dict[str, Any], screen: Console) -> None:
        peer, ours = report["peer"], report["ours"]
        its, own = peer["step_ms"]["median"], ours["step_ms"]["median"]
        screen.print(
            f"peer on {report['device']}: {peer['steps']:,} steps of {its:.1f} ms = "
            f"{peer['seconds']:.1f} s to {peer['loss']}; {ours['preset']}: steps of {own:.1f} ms",
            highlight=False,
        )
        table = Table("loss", "step", "seconds", "in steps", "of the peer's time", box=None)
        for row in report["rows"]:
            if row["step"] is None:
                table.add_row(f"{row['loss']}", "never", f"best {row['best']:.4f}")
                continue
            times = [f"{row[name]:.1f}" for name in ("seconds", "step_seconds")]
            table.add_row(f"{row['loss']}", f"{row['step']:,}", *times, f"{row['ratio']:.2f}")
        screen.print(table)
        if peer["trained_here"]:
            here = peer["trained_here"]
            screen.print(f"the peer here: {here['loss']:.4f} after {here['seconds']:.1f} s")

    def passed(self, report: dict[str, Any]) -> bool:
        return all(row["step"] is not None for row in report["rows"])

    def _steps(self, peer: Peer, setup: Setup, device: torch.device) -> dict[str, Timing]:
        recipe = setup.recipe
        world = World(0, 1, device)
        model = setup.model.to(device)
        stepper = Stepper(model, recipe.optimiser.build(model), recipe, world)
        batch = [batch_of(setup.source, seed=self.seed, step=0, size=recipe.batch)]
        stepper.rehearse(batch)
        plain = PlainTraining(peer, setup, device)
        return take_turns(
            {"ours": lambda: stepper.take(0, batch), "peer": lambda: plain.step(0)},
            device,
            self.turns,
            patience=60,
        )

    def _whole_peer(
        self, peer: Peer, setup: Setup, device: torch.device, tick: Callable[[str], None]
    ) -> dict[str, Any]:
        plain = PlainTraining(peer, setup, device)
        begin = time.perf_counter()
        for step in range(peer.steps):
            plain.step(step)
            if step % 100 == 99:
                tick(f"the peer's step {step + 1:,} of {peer.steps:,}")
        seconds = time.perf_counter() - begin
        loss = validation_loss(plain.model, plain.source.validation(64), device=device).loss
        return {"loss": loss, "seconds": seconds}


class PlainTraining:
    """The peer: AdamW, cosine schedule, clipping, batches of random windows."""

    def __init__(self, peer: Peer, setup: Setup, device: torch.device) -> None:
        self.peer, self.device = peer, device
        self.source = setup.recipe.objective.source(
            setup.corpus, setup.tokenizer, context=peer.context, seed=0
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = PlainGpt(peer, setup.tokenizer.size).to(device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=peer.rate, betas=(0.9, 0.99), weight_decay=0.1, fused=True
        )
        self.schedule = Schedule(warmup=100, final=0.1)

    def step(self, number: int) -> None:
        batch = batch_of(self.source, seed=0, step=number, size=self.peer.batch)
        for group in self.optimiser.param_groups:
            group["lr"] = self.peer.rate * self.schedule.factor(number, self.peer.steps)
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            logits = self.model(batch.tokens.to(self.device))
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), batch.targets.to(self.device).flatten()
            )
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()


class PlainGpt(nn.Module):
    def __init__(self, peer: Peer, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, peer.width)
        self.positions = nn.Embedding(peer.context, peer.width)
        layer = nn.TransformerEncoderLayer(
            peer.width,
            peer.heads,
            4 * peer.width,
            dropout=peer.dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            bias=False,
        )
        self.layers = nn.TransformerEncoder(layer, peer.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(peer.width, bias=False)
        self.head = nn.Linear(peer.width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embed(tokens) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


def first_below(run: runs.Run, loss: float) -> dict[str, Any]:
    """When an evaluation first found such a loss: seconds of all, and of steps alone."""
    speed = {row["step"]: row for row in run.read("speed")}
    best = min(row["loss"] for row in run.read("eval"))
    for row in run.read("eval"):
        if row["loss"] <= loss:
            at = speed[row["step"]]
            return {
                "loss": loss,
                "step": row["step"],
                "reached": row["loss"],
                "seconds": at["seconds"],
                "step_seconds": at["step_seconds"],
                "best": best,
            }
    return {"loss": loss, "step": None, "reached": None, "seconds": None, "best": best}
