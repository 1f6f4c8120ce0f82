"""Weights to use or to start from: those of a run, of a checkpoint, or of a folder of transformers.

A folder of transformers is read as if it were a checkpoint: our settings, our names of weights, its
tokenizer, and no step made yet.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attnlab import config, files
from attnlab.config import split_override
from attnlab.data.huggingface import HuggingFace
from attnlab.interop import folder as folders
from attnlab.interop import reading
from attnlab.training import checkpoint, runs
from attnlab.training.average import SLOT
from attnlab.training.checkpoint import Checkpoint
from attnlab.training.recipe import Recipe
from attnlab.training.state import State


@dataclass(frozen=True)
class Opened:
    folder: Path  # the checkpoint, or the folder of transformers
    kept: Checkpoint
    skipped: list[str]  # checkpoints that were passed over, and why


def open_weights(word: str, root: Path, *, best: bool = True) -> Opened:
    """A run's best or newest checkpoint, or what a path names."""
    if word and folders.is_one(Path(word)):
        return Opened(Path(word), imported(Path(word)), [])
    found, skipped = runs.open_checkpoint(word, root, best=best)
    return Opened(found, checkpoint.load(found, SLOT), skipped)  # the optimiser stays behind


def find(word: str, root: Path) -> tuple[Path, list[str]]:
    """A checkpoint all of which is right, looked at a block at a time; and what was passed over."""
    return runs.open_checkpoint(word, root, best=True, verify=_verify)


def _verify(folder: Path) -> None:
    checkpoint.open_tensors(folder).verify()
    for name in checkpoint.PLAIN:
        checkpoint.read_plain(folder, name)


def imported(place: Path) -> Checkpoint:
    return _as_checkpoint(reading.read(place))


def described(place: Path) -> Checkpoint:
    """Without the weights: only their names and shapes are there, on "meta"."""
    return _as_checkpoint(reading.described(place))


def _as_checkpoint(read: reading.Read) -> Checkpoint:
    recipe = Recipe(model=read.settings, tokenizer=HuggingFace())
    return Checkpoint(
        model=read.weights,
        optimiser={},
        config=config.to_dict(recipe),
        tokenizer=read.tokenizer,
        state=asdict(State()),
    )


def fingerprint(folder: Path) -> str:
    """Of a checkpoint: its manifest has the hashes of all else. Of a folder: of what was read."""
    if not folders.is_one(folder):
        return files.sha256(folder / "manifest.json")
    tensors = folders.Tensors(folder)
    paths = sorted({one.path for one in tensors.values()})
    paths += [folder / name for name in (folders.CONFIG, folders.TOKENIZER)]
    every = [f"{path.name} {folders.sha256(path)}" for path in paths]
    return hashlib.sha256("\n".join(every).encode()).hexdigest()


def fingerprint_of(word: str, root: Path) -> str:
    if folders.is_one(Path(word)):
        return fingerprint(Path(word))
    return fingerprint(find(word, root)[0])


def with_model_of_start(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """start=FOLDER brings the model of the folder along: nobody need spell out its settings.

    Samples stay as long as the preset's, if the model reads that many tokens.
    """
    named = [text for path, text in map(split_override, overrides) if path == ["start"]]
    if not named or not folders.is_one(Path(named[-1])):
        return recipe
    settings = reading.settings_of(Path(named[-1]))[1]
    longest = min(recipe.length, settings.context)
    return dataclasses.replace(recipe, model=settings, context=longest)
