"""A model out of a folder of `transformers`: our settings, our weights, its tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from attnlab.interop import tokens
from attnlab.interop.anatomy import RECORD
from attnlab.interop.families.catalogue import family_of
from attnlab.interop.families.family import Family
from attnlab.interop.folder import CONFIG, TOKENIZER, FolderError, Tensors, read_object
from attnlab.interop.weights import to_ours
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


def read(folder: Path) -> Read:
    """All of it; a FolderError names what is missing, left over, or cannot be expressed."""
    family, settings = settings_of(folder)
    tensors = Tensors(folder)
    try:
        weights = dict(to_ours(family, settings, tensors))
        tokenizer = _tokenizer(folder, settings.vocabulary)
    except FolderError:
        raise
    except ValueError as error:
        raise FolderError(f"{folder}: {error}") from None
    return Read(family, settings, weights, tokenizer)


def _tokenizer(folder: Path, size: int) -> dict[str, Any]:
    if not (folder / TOKENIZER).is_file():
        raise FolderError(
            f"{folder / TOKENIZER} is missing; save it there: "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    return tokens.from_json(read_object(folder / TOKENIZER), size).to_json()
