"""`attnlab bench train`: seconds until a model is as good as a well-known recipe makes it.

The peer is that recipe, a plain GPT in nothing but PyTorch's own layers; its steps and ours are
timed in turns in the same run. How good the peer becomes, and in how many steps, is published with
the recipe; `full=yes` trains it here too. With `sizes=` steps of models of real sizes are timed
(bench/train_sizes.py), and nothing is trained.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from attnlab import stop
from attnlab.bench import train_sizes
from attnlab.bench.measure import Timing, take_turns
from attnlab.bench.plain_gpt import Peer, PlainTraining
from attnlab.config import refusal, setting, settings
from attnlab.data.batches import Source, batch_of
from attnlab.evaluate import validation_loss
from attnlab.training import launch, runs
from attnlab.training.parallel import World
from attnlab.training.report import Report
from attnlab.training.setup import Setup, prepare
from attnlab.training.step import Stepper


@dataclass(frozen=True, kw_only=True)
class Published(Peer):
    """A recipe for character Shakespeare, and the validation loss it is known to reach."""

    loss: float


# nanoGPT's recipes for a CPU and for a GPU; the losses are those of the whole validation split
PEERS = {
    "cpu": Published(
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
    "cuda": Published(
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

# of the steps of `sizes`: on a GPU, and elsewhere
USUAL = {"context": (1024, 32), "batch": (16, 2), "vocabulary": (50_304, 65)}


@settings
class TrainBench:
    data: str = setting("", about="file with the text of Shakespeare")
    losses: tuple[float, ...] = setting(
        (), about="validation losses to time besides the peer's; empty: no others"
    )
    turns: int = setting(30, low=1, about="timings of a step of each")
    seed: int = setting(0, about="random seed of our training")
    full: bool = setting(False, about="train the peer to its end as well")
    sizes: tuple[str, ...] = setting(
        (),
        choices=tuple(train_sizes.SIZES),
        about="models whose steps are timed, of about so many parameters besides the table; empty: "
        "the time to a loss is measured",
    )
    context: int | None = setting(
        None, low=1, none="1,024 on a GPU, else 32", about="with sizes: tokens of a sample"
    )
    batch: int | None = setting(
        None, low=1, none="16 on a GPU, else 2", about="with sizes: samples of a step"
    )
    vocabulary: int | None = setting(
        None, low=1, none="50,304 on a GPU, else 65", about="with sizes: distinct tokens"
    )

    def check(self) -> None:
        for name in USUAL:
            if not self.sizes and getattr(self, name) is not None:
                raise refusal(self, name, "it is of the steps that sizes= names; name some")
        for name, usual in (("data", ""), ("losses", ()), ("full", False), ("seed", 0)):
            if self.sizes and getattr(self, name) != usual:
                raise refusal(self, name, "with sizes= nothing is trained; leave it out")

    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        if self.sizes:
            return self._sizes(tick)
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
        if "sizes" in report:
            train_sizes.show(report, screen)
            return
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
        return "sizes" in report or all(row["step"] is not None for row in report["rows"])

    def _sizes(self, tick: Callable[[str], None]) -> dict[str, Any]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        given = {
            name: getattr(self, name) or values[device.type == "cpu"]
            for name, values in USUAL.items()
        }
        problems = [train_sizes.Problem(size=size, device=device, **given) for size in self.sizes]
        found = [train_sizes.measure(problem, self.turns, tick) for problem in problems]
        return {"device": device.type, **given, "sizes": found}

    def _steps(self, peer: Published, setup: Setup, device: torch.device) -> dict[str, Timing]:
        recipe = setup.recipe
        world = World(0, 1, device)
        model = setup.model.to(device)
        stepper = Stepper(model, recipe.optimiser.build(model), recipe, world)
        batch = [batch_of(setup.source, seed=self.seed, step=0, size=recipe.batch)]
        stepper.rehearse(batch)
        plain, source = PlainTraining(peer, setup.tokenizer.size, device), source_of(peer, setup)
        return take_turns(
            {
                "ours": lambda: stepper.take(0, batch),
                "peer": lambda: plain.step(0, batch_of(source, seed=0, step=0, size=peer.batch)),
            },
            device,
            self.turns,
            patience=60,
        )

    def _whole_peer(
        self, peer: Published, setup: Setup, device: torch.device, tick: Callable[[str], None]
    ) -> dict[str, Any]:
        plain, source = PlainTraining(peer, setup.tokenizer.size, device), source_of(peer, setup)
        begin = time.perf_counter()
        for step in range(peer.steps):
            plain.step(step, batch_of(source, seed=0, step=step, size=peer.batch))
            if step % 100 == 99:
                tick(f"the peer's step {step + 1:,} of {peer.steps:,}")
        seconds = time.perf_counter() - begin
        loss = validation_loss(plain.model, source.validation(64), device=device).loss
        return {"loss": loss, "seconds": seconds}


def source_of(peer: Published, setup: Setup) -> Source:
    return setup.recipe.objective.source(
        setup.corpus, setup.tokenizer, context=peer.context, seed=0
    )


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
