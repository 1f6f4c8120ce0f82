"""A model out of a folder of `transformers`: our settings, our weights, its tokenizer."""

from collections.abc import Iterator
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
    weights: dict[str, Tensor]  # in the dtype of the folder
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


def read(folder: Path, device: str = "cpu") -> Read:
    """All of it; a FolderError names what is missing, left over, or cannot be expressed.

    On "meta" no number of a weight is read: they have their shapes in the model.
    """
    family, settings = settings_of(folder)
    try:
        if device == "meta":
            shapes = expected_shapes(settings)
            named = [name for rule in family.rules(settings) for name in rule.ours]
            found = {name: torch.empty(shapes[name], device=device) for name in named}
        else:
            found = dict(weights(folder))
        tokenizer = _tokenizer(folder, settings.vocabulary)
    except FolderError:
        raise
    except ValueError as error:
        raise FolderError(f"{folder}: {error}") from None
    return Read(family, settings, found, tokenizer)


def weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Its tensors under our names, those of one rule at a time."""
    family, settings = settings_of(folder)
    try:
        yield from to_ours(family, settings, Tensors(folder))
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
