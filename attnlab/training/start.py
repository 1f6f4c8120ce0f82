"""The weights that a run starts from, if its settings name another run: `start=RUN`.

A run folder may come from a stranger, and its settings could name any run of this machine. Before
its first checkpoint, resuming it would train on from those weights and leave them in its folder. So
a run records the fingerprint of the checkpoint it started from, and without it the person names
the run. From the first checkpoint on, nothing but the run's own weights is read.
"""

from collections.abc import Sequence
from pathlib import Path

from attnlab.config import split_override
from attnlab.training import runs
from attnlab.training.opened import fingerprint_of
from attnlab.training.recipe import Recipe


def refuse_other_start(run: runs.Run, recipe: Recipe, root: Path, overrides: Sequence[str]) -> None:
    """Of a run without a checkpoint: a ValueError if it names a run that it did not start from."""
    if recipe.start is None or any(split_override(word)[0] == ["start"] for word in overrides):
        return
    known = str(run.manifest().get("start", ""))
    if not known:
        raise ValueError(
            f"{run.folder} names {recipe.start} to start from and has no record of it, so it may "
            "be any run of yours; if you want its weights to be used, say so: start=RUN"
        )
    if known != fingerprint_of(recipe.start, root):
        raise ValueError(
            f"{run.folder} did not start from {recipe.start} as it is now; name the run to start "
            "from: start=RUN"
        )
