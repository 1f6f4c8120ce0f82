"""The held-out loss of a trained model by stretches of the text, kept in its run folder.

A stretch is some held-out samples that follow each other. Neighbouring stretches are alike: the
differences of the lab's variants over stretches of 640 characters correlate by 0.6 with the next.
So verdicts take a few long batches of stretches for independent, not the stretches (verdicts.py).
Where learning rates are searched, the first quarter of the stretches chooses them and is left out
of every reported loss; the rest chooses nothing.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from attnlab import files
from attnlab.compare.verdicts import Stretches
from attnlab.studies import language
from attnlab.training.runs import Run
from attnlab.training.saved import open_saved

FILE = "held.json"
STRETCHES = 40  # fine enough to set a quarter apart and to see how neighbours correlate
TUNING = 4  # one stretch of so many, from the beginning, chooses the rates
LEAST = 8  # samples, for a part that chooses rates


def measured(run: Run) -> dict[str, Any]:
    """Sums of the losses and counts of the targets, of all stretches; measured once."""
    path = run.folder / FILE
    if not path.exists():
        saved = open_saved(str(run.folder), run.folder.parent, best=False)
        _, batches = language.held_out(saved)
        losses = language.position_losses(saved.model, batches, saved.recipe.dtype)
        found = stretches_of(losses)
        plain = {"sums": list(found.sums), "counts": list(found.counts)}
        files.write_whole(path, files.as_json(plain))
    return dict(files.read_json(path))


def stretches_of(losses: Float[np.ndarray, "n t"]) -> Stretches:
    """Of a loss for every target, NaN where there is none."""
    sums = np.nansum(losses, axis=1)
    counts = (~np.isnan(losses)).sum(axis=1)
    parts = np.array_split(np.arange(len(losses)), min(STRETCHES, len(losses)))
    return Stretches(
        sums=[float(sums[part].sum()) for part in parts],
        counts=[float(counts[part].sum()) for part in parts],
    )


def tuning_part(plain: dict[str, Any]) -> Stretches:
    """What chooses the rates."""
    border = _border(plain)
    return Stretches(plain["sums"][:border], plain["counts"][:border])


def reporting_part(plain: dict[str, Any], searched: bool) -> Stretches:
    """What losses are reported of: all of it unless rates were chosen by a part."""
    border = _border(plain) if searched else 0
    return Stretches(plain["sums"][border:], plain["counts"][border:])


def _border(plain: dict[str, Any]) -> int:
    return len(plain["sums"]) // TUNING
