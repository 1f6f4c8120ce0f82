"""Import: a folder of `transformers` becomes a run, with the proof that it computes the same.

The run is at step 0 and has a checkpoint, so that all that takes a run takes an imported model.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from attnlab import __version__, command, config, files, json_files
from attnlab.data.tokens import tokenizer_from_json
from attnlab.interop import folder as folders
from attnlab.interop import reading
from attnlab.interop.exporting import MODELLING
from attnlab.interop.families.own import OWN
from attnlab.interop.parity import NotProved, Parity, compare
from attnlab.memory import machine_memory
from attnlab.models.model import LanguageModel
from attnlab.training import checkpoint, opened, runs
from attnlab.training.recipe import Recipe
from attnlab.training.weights import build_model, load_weights

WIDE = 8  # bytes of a number in float64
COPIES = 3  # of the weights in float64: ours, theirs, and what either makes on the way


@dataclass(frozen=True)
class Imported:
    run: runs.Run
    parity: Parity | None  # None: not compared
    why: str  # why not
    parameters: int


def import_folder(place: Path, root: Path, *, prove: bool = True) -> Imported:
    if not place.is_dir():
        raise ValueError(f"{place} is no folder; give one that save_pretrained has written")
    if not folders.is_one(place):
        folders.read_object(place / folders.CONFIG)  # says what is wrong, if anything is
        raise ValueError(f"{place} is no folder of transformers: its config has no model_type")
    kept = opened.imported(place)
    count = sum(one.numel() for one in kept.model.values())
    parity, why = None, "" if prove else "it was not asked for"
    needed, there = COPIES * WIDE * count, machine_memory()
    if prove and needed > there:
        why = f"it needs {needed / 1e9:,.0f} GB and this machine has {there / 1e9:,.0f}"
    elif prove:
        tokenizer = tokenizer_from_json(kept.tokenizer)
        own = reading.settings_of(place)[0] is OWN
        code = MODELLING if own else None
        parity = compare(place, _model(kept), tokenizer, code=code)
        if not parity.holds:
            raise NotProved(f"{place} was not imported: {parity.complaint()}")
    run = runs.create(root, _name_of(place))
    try:
        _write(run, kept, place, parity, why, count)
    except OSError as error:  # which speaks of a training that could be resumed
        files.remove_folder(run.folder)
        why = os.strerror(error.errno) if error.errno else str(error)
        said = f"{place} was not imported: {run.folder} could not be written: {why}"
        raise OSError(error.errno, said) from None
    except BaseException:
        files.remove_folder(run.folder)
        raise
    return Imported(run, parity, why, count)


def _name_of(place: Path) -> str:
    """As the run is called: the folder's name, in letters that need no quoting."""
    plain = re.sub(r"[^a-z0-9]+", "-", place.absolute().name.lower()).strip("-")
    return plain[:40].strip("-") or "imported"


def _model(kept: checkpoint.Checkpoint) -> LanguageModel:
    recipe = config.from_dict(Recipe, kept.config)
    model = build_model(recipe).double()
    load_weights(model, kept.model)
    return model


def _write(
    run: runs.Run,
    kept: checkpoint.Checkpoint,
    place: Path,
    parity: Parity | None,
    why: str,
    count: int,
) -> None:
    def put(name: str, value: object) -> None:
        files.write_whole(run.folder / name, json_files.as_json(value))

    put("config.json", kept.config)
    put("tokenizer.json", kept.tokenizer)
    put(
        "manifest.json",
        {
            "attnlab": __version__,
            "command": command.line(),
            "parameters": count,
            "imported": place.absolute().name,
            "start": opened.fingerprint(place),
        },
    )
    put("parity.json", {"holds": None, "why": why} if parity is None else parity.to_json())
    checkpoint.save(run.checkpoints, 0, kept)
    # it is no training that could be resumed
    ended = {"step": 0, "loss": None, "best_loss": None, "seconds": 0.0, "step_seconds": 0.0}
    put("result.json", ended)
