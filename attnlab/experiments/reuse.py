"""Run folders that are there already: what may be reused, and what has to be trained again.

A folder counts as the training that is asked for if it has the same settings and the same text, is
finished, and its last checkpoint is whole. What was trained in another way is set aside: never
resumed, never reported. What is damaged is trained again from the newest good checkpoint.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab import config, files, json_files
from attnlab.training import checkpoint
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run, busy_message
from attnlab.training.state import State
from attnlab.training.text import recorded

# the text is told by its fingerprint, and its vocabulary follows from it; a folder may be moved
FREE = ("model.vocabulary", "corpus.path", "start")


def set_aside_other(
    run: Run, recipe: Recipe, text: str = "", note: Callable[[str], None] = lambda line: None
) -> None:
    """Move a folder out of the way if it was trained with other settings or on another text.

    `text` is the fingerprint of the text that is asked for; empty: not known.
    """
    why = _difference(run, recipe, text)
    if not why:
        return
    if run.busy:
        raise ValueError(busy_message(run.folder))
    place = _free(run.folder)
    files.make_folder(place.parent)
    run.folder.rename(place)
    note(f"{run.folder.name} {why}: set aside in {place}, and trained anew")


def is_done(run: Run, note: Callable[[str], None] = lambda line: None) -> bool:
    """Whether a training is finished and its last checkpoint is whole; `note` hears what is not."""
    if not (run.folder / "result.json").exists():
        return False
    try:
        result = run.result()
        if result.get("ending") != "stopped early":  # which need not be saved at its last step
            checkpoint.read_verified(run.checkpoints / checkpoint.name_of(result["step"]))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        note(f"{reason}; training it again from its newest good checkpoint")
        return False
    return True


def _difference(run: Run, recipe: Recipe, text: str) -> str:
    """In which way a folder holds another training; empty if it does not, or holds none."""
    there = settings_of(run)
    if there is None:
        return ""
    known = _text_of(run)
    if text and known and known != text:
        return "was trained on another text"
    here = config.flat(json.loads(json.dumps(config.to_dict(recipe))))
    saved = config.flat(there)
    keys = [key for key in {**here, **saved} if key not in FREE and here.get(key) != saved.get(key)]
    if not keys:
        return ""
    key, more = keys[0], f", and {len(keys) - 1} more differ" if len(keys) > 1 else ""
    return f"was trained with {key}={saved.get(key)}, not {here.get(key)}{more}"


def settings_of(run: Run) -> dict[str, Any] | None:
    """The settings that a folder was trained with, as plain JSON; None if it has none."""
    try:
        found, path = run.settings()
        plain: dict[str, Any] = json_files.in_shape(found, {}, path)
    except (OSError, ValueError):  # then nothing in it is resumed either
        return None
    return plain


def _text_of(run: Run) -> str:
    """The fingerprint of the text that a folder was trained on; empty if it is not known."""
    for folder in checkpoint.all_in(run.checkpoints):
        try:
            return recorded(run, State.from_json(checkpoint.read_plain(folder, "state.json")))
        except (OSError, ValueError):
            continue
    try:
        return recorded(run, State())
    except (OSError, ValueError):
        return ""


def _free(folder: Path) -> Path:
    places = (folder.parent / "aside" / f"{folder.name}-{n}" for n in itertools.count(1))
    return next(place for place in places if not place.exists())
