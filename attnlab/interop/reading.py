"""A model out of a folder of `transformers`: our settings, our weights, its tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnlab.interop import tokens
from attnlab.interop.anatomy import RECORD
from attnlab.interop.families.catalogue import family_of
from attnlab.interop.families.family import Family
from attnlab.interop.folder import CONFIG, TOKENIZER, FolderError, Tensors, read_object
from attnlab.interop.weights import expected_shapes, to_ours
from attnlab.models.transformer import TransformerSettings


@dataclass(frozen=True)
class Read:
    family: Family
    settings: TransformerSettings
    weights: dict[str, Tensor]  # in the dtype of the folder, if they are read
    tokenizer: dict[str, Any]  # as checkpoints have it


def settings_of(folder: Path) -> tuple[Family, TransformerSettings]:
    """Of its config.json alone."""
    plain = read_object(folder / CONFIG)
    if plain.get(RECORD):
        raise FolderError(
            f"{folder} was converted to a layout that its model type does not have ({RECORD} in "
            "its config.json); attnlab convert brings it back"
        )
    try:
        family = family_of(plain)
        return family, family.settings(plain)
    except ValueError as error:
        raise FolderError(f"{folder}: {error}") from None


def read(folder: Path) -> Read:
    """All of it; a FolderError names what is missing, left over, or cannot be expressed."""
    family, settings = settings_of(folder)
    found = dict(weights(folder))
    with _named(folder):
        return Read(family, settings, found, _tokenizer(folder, settings.vocabulary))


def described(folder: Path) -> Read:
    """What its config and its tokenizer say.

    The weights are those that our model has, on "meta", in float32. Whether they are in the folder
    is seen when they are read.
    """
    family, settings = settings_of(folder)
    with _named(folder):
        shapes = expected_shapes(settings)
        names = [name for rule in family.rules(settings) for name in rule.ours]
        empty = {name: torch.empty(shapes[name], device="meta") for name in names}
        return Read(family, settings, empty, _tokenizer(folder, settings.vocabulary))


def weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Its tensors under our names, those of one rule at a time."""
    family, settings = settings_of(folder)
    with _named(folder):
        yield from to_ours(family, settings, Tensors(folder))


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Errors name the folder."""
    try:
        yield
    except FolderError:
        raise
    except ValueError as error:
        raise FolderError(f"{folder}: {error}") from None


def _tokenizer(folder: Path, size: int) -> dict[str, Any]:
    if not (folder / TOKENIZER).is_file():
        raise FolderError(
            f"{folder / TOKENIZER} is missing; save it there: "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    return tokens.from_json(read_object(folder / TOKENIZER), size).to_json()
