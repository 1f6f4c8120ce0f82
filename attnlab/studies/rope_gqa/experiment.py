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
from typing import Any, TypedDict

import torch

from attnlab import config, registry
from attnlab.config import refusal, setting, settings
from attnlab.data.corpora import Corpus
from attnlab.experiments import samples
from attnlab.experiments.costs import expected_seconds
from attnlab.experiments.experiment import Findings
from attnlab.experiments.samples import Samples
from attnlab.experiments.workspace import Job, Workspace
from attnlab.studies.language import LanguageStudy, ScaleName, Text
from attnlab.studies.rope_gqa import flawed, sweep
from attnlab.studies.rope_gqa.sweep import Sweep
from attnlab.training import checkpoint
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import Saved, open_saved

# positions and key/value heads of the presets rope-gqa-…
MODELS = {
    "absolute": ("learned", 6),
    "rotary": ("rotary", 6),
    "grouped": ("learned", 2),
    "both": ("rotary", 2),
}
VARIANTS = tuple(MODELS)
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


@settings
class RopeGqaStudy(LanguageStudy):
    """Full scale is the course's, and needs a text."""

    scale: ScaleName = setting(
        "auto", about="size of the models and of the study; auto: full with data and a GPU"
    )

    def check(self) -> None:
        if self.scale == "full" and not self.data:
            raise refusal(
                self,
                "scale",
                "it needs a text, so write data=FILE, such as Shakespeare's, or scale=small",
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
    def corpus(self) -> Text:
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

    def jobs(self, workspace: Workspace) -> list[Job]:
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
        return [
            *self._trainings(workspace, corpus),
            Job("samples", lambda: self._samples(workspace, corpus.load()), lambda: 3.0),
            *(Job(name, work, lambda: size.patience) for name, work in measured.items()),
        ]

    def findings(self, results: dict[str, Any]) -> Findings:
        from attnlab.studies.rope_gqa.report import findings  # which knows this class

        return findings(self, results)

    def recipe(self, variant: str, seed: int, block: int, corpus: Text) -> Recipe:
        """The course's, at this scale; what it starts from is not in it."""
        size = self.size
        overrides = [
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
        return dataclasses.replace(config.override(preset, overrides), corpus=corpus)

    def _trainings(self, workspace: Workspace, corpus: Text) -> Iterator[Job]:
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
                    partial(_train, workspace, name, recipe),
                    partial(expected_seconds, alike, held),
                    trainings=partial(list, [(name, recipe)]),
                )
                # the course continues from the last weights; a run stands for its best ones
                before = self._last(workspace.run_of(name))

    def _samples(self, workspace: Workspace, corpus: Corpus) -> Samples:
        block, seed = self.size.blocks[-1], self.seed_numbers[0]

        def models() -> Iterator[tuple[str, Saved]]:
            for variant in VARIANTS:
                last = self._last(workspace.run_of(training_name(variant, seed, block)))
                yield variant, open_saved(str(last), last.parent)

        prompt = samples.prompt_of(corpus, min(PROMPT, block // 2))
        return samples.write_all(models(), prompt, seed, SAMPLE)

    def _last(self, run: Run) -> Path:
        return run.checkpoints / checkpoint.name_of(self.size.steps)


class TrainingResult(TypedDict):
    """Losses of a stage, and the curves to draw."""

    parameters: int
    precision: str
    training: float  # the mean of the last steps
    last: float
    held_out: float
    curve: list[list[float]]  # step and training loss
    evaluations: list[list[float]]  # step and held-out loss


def training_name(variant: str, seed: int, block: int) -> str:
    return f"train {variant}, seed {seed}, block {block}"


def _train(workspace: Workspace, name: str, recipe: Recipe) -> TrainingResult:
    run = workspace.train(name, recipe)
    rows = [(row["step"], row["loss"]) for row in run.read("metrics")]
    held_out = [[row["step"], row["loss"]] for row in run.read("eval")]
    for log, steps in (("metrics", rows), ("eval", held_out)):
        if not steps or steps[-1][0] != recipe.steps:
            raise ValueError(
                f"{run.log(log)} has lost its last step; remove {run.folder}, and the same command "
                "trains it again"
            )
    losses, wide = [loss for _, loss in rows], max(recipe.steps // POINTS, 1)
    return {
        "parameters": run.manifest()["parameters"],
        "precision": f"{recipe.dtype}, {_tf32()}",
        "training": fmean(losses[-LAST_STEPS:]),
        "last": losses[-1],
        "held_out": held_out[-1][1],
        "curve": [
            [min(first + wide, recipe.steps), fmean(there)]
            for first in range(0, recipe.steps, wide)
            if (there := [loss for step, loss in rows if first < step <= first + wide])
        ],
        "evaluations": held_out,
    }


def _tf32() -> str:
    """Whether a GPU may round what it multiplies."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return "without TF32" if exact else "TF32 allowed"
