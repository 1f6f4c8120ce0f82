"""Held-out losses of a trained model: by position, and by stretches of the text.

Axes: n held-out samples, t time.
Cost: one forward pass over the held-out text.

A stretch is some held-out samples that follow each other. Neighbouring stretches are alike: the
differences of the lab's variants over stretches of 640 characters correlate by 0.6 with the next.
So verdicts take a few long batches of stretches as independent, not the stretches (verdicts.py).
Where learning rates are searched, the first quarter of the stretches chooses them and is left out
of every reported loss; the rest chooses nothing.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import nn

from attnlab import files, json_files
from attnlab.data.batches import IGNORE, Batch, Source
from attnlab.evaluate import Evaluation
from attnlab.experiments.verdicts import Stretches
from attnlab.generate import evaluating
from attnlab.training import runs
from attnlab.training.report import Report
from attnlab.training.runs import Run
from attnlab.training.saved import Saved, open_saved
from attnlab.training.setup import evaluated_together

FILE = "held.json"
SUMS = {"sums": [float], "counts": [float]}
STRETCHES = 40  # fine enough to set a quarter apart and to see how neighbours correlate
TUNING = 4  # one stretch of so many, from the beginning, chooses the rates
LEAST = 8  # samples, for a part that chooses rates


class Sums(TypedDict):
    """Losses summed over each stretch, and the targets in it, as JSON holds them."""

    sums: list[float]
    counts: list[float]


class Row(Sums):
    """Of one evaluation of a training."""

    step: int


class Recorder(Report):
    """Logs the sums of every evaluation of a training, so that its curve can leave out a part."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def measured(self, step: int, evaluation: Evaluation) -> None:
        found = _stretches(np.array(evaluation.sums), np.array(evaluation.counts))
        row: Row = {"step": step, "sums": list(found.sums), "counts": list(found.counts)}
        files.append(self.run.log("held"), runs.line({**row}))


def read_log(run: Run) -> list[Row]:
    """What a Recorder has logged."""
    return [
        {"step": row["step"], "sums": row["sums"], "counts": row["counts"]}
        for row in run.read("held")
    ]


def measure(run: Run, note: Callable[[str], None] = lambda line: None) -> Sums:
    """Of a finished training, after its last step; measured once and kept in the run folder.

    `note` hears of a file that is damaged.
    """
    kept = _read(run.folder / FILE, note)
    if kept is not None:
        return kept
    saved = open_saved(str(run.folder), run.folder.parent, best=False)
    if run.finished and saved.state.step != run.result()["step"]:
        raise ValueError(f"{run.folder} has lost its last checkpoint; the same command repairs it")
    _, batches = held_out(saved)
    found = stretches_of(position_losses(saved.model, batches, saved.recipe.dtype))
    sums: Sums = {"sums": list(found.sums), "counts": list(found.counts)}
    files.write_whole(run.folder / FILE, json_files.sealed_json({**sums}))
    return sums


def forget(run: Run) -> None:
    """What was measured of a training that has gone on since."""
    (run.folder / FILE).unlink(missing_ok=True)


def _read(path: Path, note: Callable[[str], None]) -> Sums | None:
    try:
        kept = json_files.in_shape(json_files.read_sealed(path), SUMS, path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        note(f"{getattr(error, 'strerror', None) or error}; measuring it again")
        return None
    return {"sums": kept["sums"], "counts": kept["counts"]}


def stretches_of(losses: Float[np.ndarray, "n t"]) -> Stretches:
    """Of a loss for every target, NaN where there is none."""
    return _stretches(np.nansum(losses, axis=1), (~np.isnan(losses)).sum(axis=1))


def _stretches(sums: Float[np.ndarray, " n"], counts: np.ndarray) -> Stretches:
    """From the sum of the losses and the number of targets of every sample."""
    parts = np.array_split(np.arange(len(sums)), min(STRETCHES, len(sums)))
    return Stretches(
        sums=[float(sums[part].sum()) for part in parts],
        counts=[float(counts[part].sum()) for part in parts],
    )


def tuning_part(sums: Sums) -> Stretches:
    """The part that chooses the rates."""
    border = _border(sums)
    return Stretches(sums["sums"][:border], sums["counts"][:border])


def reporting_part(sums: Sums, searched: bool) -> Stretches:
    """The part that losses are reported on: all of it unless a part has chosen the rates."""
    border = _border(sums) if searched else 0
    return Stretches(sums["sums"][border:], sums["counts"][border:])


def _border(sums: Sums) -> int:
    return len(sums["sums"]) // TUNING


def held_out(saved: Saved) -> tuple[Source, Iterable[Batch]]:
    """The source a model was trained from, and its held-out batches as the training had them."""
    recipe = saved.recipe
    source = recipe.objective.source(
        saved.load_text(), saved.tokenizer, context=recipe.length, seed=recipe.seed
    )
    together = evaluated_together(recipe, next(saved.model.parameters()).device)
    return source, source.validation(together)


def position_losses(
    model: nn.Module, batches: Iterable[Batch], dtype: str = "float32"
) -> Float[np.ndarray, "n t"]:
    """The loss of every held-out target; NaN where a sample has none."""
    device = next(model.parameters()).device
    half = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    rows = []
    with evaluating(model), torch.no_grad():
        for batch in batches:
            here = batch.changed(lambda tensor: tensor.to(device))
            with half:
                logits = model(here.tokens, **here.options)
            targets = here.targets
            losses = F.cross_entropy(
                logits.flatten(0, 1).float(),
                targets.flatten(),
                ignore_index=IGNORE,
                reduction="none",
            ).view_as(targets)
            rows.append(losses.masked_fill(targets == IGNORE, torch.nan).cpu().double().numpy())
    return np.concatenate(rows)
