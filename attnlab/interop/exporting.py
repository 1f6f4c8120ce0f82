"""Export: a trained model as a folder that `transformers` loads, and the proof of parity.

The folder is made beside its place, proved there, and renamed: it is there whole or not at all.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnlab import __version__, files, json_files
from attnlab.data.huggingface import HuggingFaceTokenizer
from attnlab.interop import folder as folders
from attnlab.interop import streaming, tokens, weights
from attnlab.interop.card import card
from attnlab.interop.families.catalogue import FAMILIES, choose
from attnlab.interop.families.family import Family
from attnlab.interop.families.own import CODE, OWN
from attnlab.interop.fields import Unsupported
from attnlab.interop.parity import NotProved, Parity, compare
from attnlab.models.transformer import TransformerSettings
from attnlab.registry import suggest
from attnlab.training.saved import Saved

MODELLING = Path(__file__).with_name(f"{CODE}.py")


@dataclass(frozen=True)
class Exported:
    folder: Path
    model_type: str
    parity: Parity
    bytes: int


def export(
    saved: Saved, place: Path, *, family: str = "auto", shard: int = streaming.SHARD
) -> Exported:
    """`family` names a model type of transformers; auto: the plainest that can hold the model."""
    folders.refuse_taken(place)
    settings = saved.model.settings
    if not isinstance(settings, TransformerSettings):
        raise Unsupported(
            f"{saved.folder} holds a {type(settings).__name__.removesuffix('Settings')} model; "
            "transformers are exported"
        )
    ours = not isinstance(saved.tokenizer, HuggingFaceTokenizer)
    chosen, plain = _family(settings, family, ours)
    with folders.new_folder(place) as temporary:
        _write(temporary, saved, settings, chosen, plain, shard)
        own = chosen is OWN
        if own:
            _put(temporary / MODELLING.name, MODELLING.read_bytes())
        parity = compare(temporary, saved.model, saved.tokenizer, trust=own)
        if not parity.holds:
            raise NotProved(f"nothing was exported: as {chosen.model_type}, {parity.complaint()}")
        _put(temporary / "parity.json", json_files.as_json(parity.to_json()))
        text = card(saved, chosen.model_type, parity, place.name, own_code=own)
        _put(temporary / "README.md", text.encode())
        size = sum(path.stat().st_size for path in temporary.iterdir())
    return Exported(place, chosen.model_type, parity, size)


def _family(settings: TransformerSettings, name: str, ours: bool) -> tuple[Family, dict[str, Any]]:
    """`ours`: the tokenizer is of a kind that attnlab trains."""
    if name == "auto":
        return choose(settings, our_tokenizer=ours)
    if name not in FAMILIES:
        raise ValueError(f"{name!r} is no model type; {suggest(name, list(FAMILIES))}")
    if ours and FAMILIES[name].only_its_tokenizer:
        raise Unsupported(
            f"AutoTokenizer takes {name}'s own tokenizer whatever stands in the folder, and this "
            "model has another; leave out --as"
        )
    try:
        return FAMILIES[name], FAMILIES[name].config(settings)
    except Unsupported as error:
        raise Unsupported(f"this model is no {name}: {error}") from None


def _write(
    place: Path,
    saved: Saved,
    settings: TransformerSettings,
    family: Family,
    plain: dict[str, Any],
    shard: int,
) -> None:
    own = {name: one.detach().cpu() for name, one in saved.model.named_parameters()}
    dtype = str(folders.dtype_of(own.values())).removeprefix("torch.")
    pad = saved.tokenizer.pad
    marks = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": pad}
    config = {**plain, **marks, "dtype": dtype, "attnlab_version": __version__}
    _put(place / folders.CONFIG, json_files.as_json(config))
    generation = {"do_sample": True, **marks}
    _put(place / "generation_config.json", json_files.as_json(generation))
    found = tokens.tokenizer_json(saved.tokenizer)
    _put(place / folders.TOKENIZER, json_files.as_json(found, indent=None))
    context = saved.model.longest or settings.context
    beside = tokens.tokenizer_config(saved.tokenizer, context)
    _put(place / "tokenizer_config.json", json_files.as_json(beside))
    with torch.no_grad():
        streaming.write_tensors(place, weights.to_theirs(family, settings, own), shard)


def _put(path: Path, content: bytes) -> None:
    files.write_new(path, content)
