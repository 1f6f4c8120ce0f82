"""`attnlab study rope-gqa`: rotary positions and shared key/value heads, in quality and in cost.

Four models (learned or rotary positions, six or two key/value heads) are trained on short blocks,
then on long ones, with several seeds. Then time, memory and cache are measured for 1, 2, 3 and 6
key/value heads, fairly and as it is often done.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from attnlab import config, files, registry
from attnlab.data.corpora import Corpus
from attnlab.studies.desk import Desk, Job
from attnlab.studies.language import LanguageStudy, beginning, expected_seconds, written
from attnlab.studies.rope_gqa import findings as conclusions
from attnlab.studies.rope_gqa import flawed, sweep
from attnlab.studies.rope_gqa.sweep import Sweep
from attnlab.studies.study import Findings
from attnlab.training import checkpoint
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import open_saved

VARIANTS = ("absolute", "rotary", "grouped", "both")  # the presets rope-gqa-…
FIRST_SEED = 3407
LAST_STEPS = 50  # of these the training loss is the mean: a single step's is one batch's
POINTS = 20  # of a learning curve in each stage
EVALUATIONS = 4  # in each stage
SAMPLE, PROMPT = 200, 32  # characters


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the models and the measurements are."""

    width: int = 192
    depth: int = 6
    blocks: tuple[int, int] = (16, 256)  # of the two stages
    steps: int = 600  # in each stage
    batch: int = 64
    rate: float = 5e-4
    held_out: int | None = None  # characters kept from training; a tenth of the text if none
    sweep: Sweep = dataclasses.field(default_factory=Sweep)


SCALES = {
    "full": Scale(),  # the course's
    # a minute on two cores: fewer steps need a higher rate
    "small": Scale(
        width=96,
        depth=2,
        blocks=(16, 64),
        steps=100,
        batch=16,
        rate=2e-3,
        held_out=20_000,
        sweep=Sweep(depth=2, batch=8, rows=16, turns=11, patience=3.0),
    ),
    "tiny": Scale(
        width=24,
        depth=1,
        blocks=(8, 32),
        steps=4,
        batch=2,
        rate=2e-3,
        held_out=200,
        sweep=Sweep(width=48, depth=1, block=32, batch=2, rows=2, turns=2, patience=1.0, peaks=1),
    ),
}


@dataclass(frozen=True, kw_only=True)
class RopeGqaStudy(LanguageStudy):
    """Full scale is the course's, and needs a text; `auto` takes it with a text and a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale == "full" and not self.data:
            raise ValueError(
                "scale=full needs a text: write data=FILE, such as Shakespeare's, or scale=small"
            )

    @property
    def chosen_scale(self) -> str:
        """The full size is that of the course, whose text the project does not have."""
        if self.scale == "auto" and not self.data:
            return "small"
        return super().chosen_scale

    @property
    def size(self) -> Scale:
        return SCALES[self.chosen_scale]

    @property
    def seed_numbers(self) -> list[int]:
        return [FIRST_SEED + number for number in self.repeats]

    @property
    def corpus(self) -> Any:
        """Of a long text a small study holds out no more than it has time to look at."""
        whole = super().corpus
        if self.size.held_out is None:
            return whole
        loaded = whole.load()
        count = loaded.characters("train") + loaded.characters("validation")
        return dataclasses.replace(
            whole, validation=min(whole.validation, self.size.held_out / count)
        )

    def text(self) -> str:
        return self.fingerprint(self.size.blocks[-1])

    def jobs(self, desk: Desk) -> list[Job]:
        """Trainings first, then times, then memory: reading its peak slows a CPU's allocator."""
        corpus, size = self.corpus, self.size.sweep
        measured = {
            "attention forward": lambda: sweep.attention_times(size, passes="forward"),
            "attention forward and backward": lambda: sweep.attention_times(size, passes="both"),
            "training step": lambda: sweep.step_times(size),
            "cache and decoding": lambda: sweep.decoding(size),
            "flawed times": lambda: flawed.flawed_times(size),
            "training memory": lambda: sweep.training_memory(size),
            "flawed memory": lambda: flawed.flawed_memory(size),
        }
        samples = Job("samples", lambda: self._samples(desk, corpus.load()), lambda: 3.0)
        return [
            *self._trainings(desk, corpus),
            samples,
            *(Job(name, work, lambda: size.patience) for name, work in measured.items()),
        ]

    def findings(self, results: dict[str, Any]) -> Findings:
        trained = {
            variant: {
                block: [results[training_name(variant, seed, block)] for seed in self.seed_numbers]
                for block in self.size.blocks
            }
            for variant in VARIANTS
        }
        about = conclusions.About(
            scale=self.chosen_scale,
            text=self.data or "the documentation that comes with Python",
            seeds=self.seed_numbers,
            blocks=self.size.blocks,
            steps=self.size.steps,
            width=self.size.width,
            depth=self.size.depth,
            batch=self.size.batch,
            sweep=self.size.sweep,
        )
        return conclusions.findings(about, trained, results)

    def recipe(self, variant: str, seed: int, block: int, corpus: Any) -> Recipe:
        """The course's, at this scale; what it starts from is not in it."""
        size = self.size
        words = [
            f"model.width={size.width}",
            f"model.depth={size.depth}",
            f"model.context={size.blocks[-1]}",
            f"optimiser.rate={size.rate}",
            f"context={block}",
            f"batch={size.batch}",
            f"steps={size.steps}",
            f"seed={seed}",
            f"evaluate_every={max(size.steps // EVALUATIONS, 1)}",
            "save_every=none",
            "keep=1",
            f"compile={self.chosen_scale == 'full' and torch.cuda.is_available()}",
        ]
        preset = registry.load("preset", f"rope-gqa-{variant}")()
        return dataclasses.replace(config.override(preset, words), corpus=corpus)

    def _trainings(self, desk: Desk, corpus: Any) -> Iterator[Job]:
        held = EVALUATIONS * corpus.load().characters("validation")
        for seed, variant in itertools.product(self.seed_numbers, VARIANTS):
            before: Path | None = None
            for block in self.size.blocks:
                name = training_name(variant, seed, block)
                recipe = self.recipe(variant, seed, block, corpus)
                if before is not None:
                    recipe = dataclasses.replace(recipe, start=str(before))
                # all four take about as long, and trying each would take time too
                alike = self.recipe(VARIANTS[0], seed, block, corpus)
                yield Job(
                    name,
                    partial(_trained, desk, name, recipe),
                    partial(expected_seconds, alike, held),
                )
                # the last weights, as the course goes on from; a run stands for its best ones
                before = self._last(desk.run(name))

    def _samples(self, desk: Desk, corpus: Corpus) -> dict[str, Any]:
        block, seed = self.size.blocks[-1], self.seed_numbers[0]
        prompt = beginning(corpus, min(PROMPT, block // 2))
        texts = {}
        for variant in VARIANTS:
            last = self._last(desk.run(training_name(variant, seed, block)))
            saved = open_saved(str(last), last.parent)
            texts[variant] = written(saved, saved.tokenizer.encode(prompt).tolist(), SAMPLE)
        return {"prompt": prompt, "seed": seed, "texts": texts}

    def _last(self, run: Run) -> Path:
        return run.checkpoints / checkpoint.name_of(self.size.steps)


def training_name(variant: str, seed: int, block: int) -> str:
    return f"train {variant}, seed {seed}, block {block}"


def _trained(desk: Desk, name: str, recipe: Recipe) -> dict[str, Any]:
    """Train, and take what it gave: its losses, and the curves to draw."""
    run = desk.train(name, recipe)
    losses = [row["loss"] for row in run.read("metrics")]
    held_out = [[row["step"], row["loss"]] for row in run.read("eval")]
    wide = max(len(losses) // POINTS, 1)
    return {
        "parameters": files.read_json(run.folder / "manifest.json")["parameters"],
        "precision": f"{recipe.dtype}, {_tf32()}",
        "training": fmean(losses[-LAST_STEPS:]),
        "last": losses[-1],
        "held_out": held_out[-1][1],
        "curve": [
            [min(first + wide, len(losses)), fmean(losses[first : first + wide])]
            for first in range(0, len(losses), wide)
        ],
        "evaluations": held_out,
    }


def _tf32() -> str:
    """Whether a GPU may round what it multiplies."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return "without TF32" if exact else "TF32 allowed"
