"""The families of models in `transformers`, and what `hf:NAME` picks.

| family | what it is | x | outputs |
|---|---|---|---|
| causal | a language model that goes on with a text | tokens | logits |
| seq2seq | a decoder that attends to an encoder's text | tokens of the decoder | logits |
| encoder | bidirectional: of texts, or of images cut into patches | tokens, or patches | states |

`hf:NAME` is sequence-to-sequence if the library lists it there, an encoder if it fills in masked
words or is no language model, and causal otherwise. `hf:causal/bert` names the family.
"""

import json
import os
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from attnlab import files, json_files, registry
from attnlab.audit.errors import InputError
from attnlab.extras import missing

Family = Literal["causal", "seq2seq", "encoder"]
FAMILIES: tuple[Family, ...] = get_args(Family)
# the class of the library that reads a folder of this family
AUTO: dict[Family, str] = {
    "causal": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModel",
}
_MAPPINGS: dict[Family, str] = {
    "causal": "MODEL_FOR_CAUSAL_LM",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "encoder": "MODEL",
}
# whoever is listed here is a language model; its towers are listed by names of their own
_SPEAKERS = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT",
    "MODEL_FOR_MULTIMODAL_LM",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ",
    "MODEL_FOR_TEXT_TO_WAVEFORM",
    "MODEL_FOR_TEXT_TO_SPECTROGRAM",
)
_MASKED = "MODEL_FOR_MASKED_LM"


@cache
def classes(family: Family) -> dict[str, str]:
    """By the name of an architecture, its class in this family."""
    known = _mapping(_MAPPINGS[family])
    if family != "encoder":
        return known
    speakers = {name for one in _SPEAKERS for name in _mapping(one)}
    masked, pairs = _mapping(_MASKED), classes("seq2seq").keys() - speakers
    speakers |= classes("causal").keys()
    return {
        name: found
        for name, found in known.items()
        if name in masked or name in pairs or name not in speakers
    }


def family_of(name: str) -> Family:
    """The one that an architecture is of if nobody names another."""
    if name in classes("seq2seq"):
        return "seq2seq"
    if name in classes("encoder"):
        return "encoder"
    return "causal"


def with_folder(target: str) -> str:
    """A folder of a saved model as a target; a folder called llama is none of the architecture."""
    folder = Path(target)
    saved = files.is_file(folder / "config.json") and not (folder / "checkpoints").is_dir()
    if ":" in target or not saved:
        return target
    return f"hf:{folder}" if folder.is_absolute() else f"hf:./{folder}"


def pick(target: str) -> tuple[Family, str]:
    """What follows `hf:`: the family, and the name of an architecture or a folder."""
    if not target:
        raise InputError(
            "hf: names no model; use hf:ARCH as hf:llama, hf:FOLDER of a saved model, or hf:all"
        )
    first, slash, rest = target.partition("/")
    named: Family | None = next((one for one in FAMILIES if slash and one == first), None)
    name = rest if named else target
    if name.startswith("~/"):  # no shell expands it behind a colon
        name = str(Path.home() / name[2:])
    if named and name in _names(named):
        return named, name
    if not named and name in _every():
        return family_of(name), name
    if Path(name).is_dir():
        return named or _family_in(Path(name)), name
    if named and name in _every():
        others = " or ".join(f"hf:{one}/{name}" for one in FAMILIES if name in classes(one))
        raise InputError(f"{name} is not of the family {named!r}; write {others}")
    if slash and not named and rest in _every():
        families = " or ".join(f"hf:{one}/{rest}" for one in FAMILIES if rest in _names(one))
        raise InputError(f"{first!r} is no family of models and no folder; write {families}")
    hint = registry.suggest(name, sorted(_names(named) if named else _every()))
    more = "; nothing is downloaded: a folder that save_pretrained made is as good"
    raise InputError(
        f"transformers has no {name!r}, and there is no such folder; "
        f"{hint}{more if '/' in name else ''}"
    )


def matching(pattern: str) -> list[str]:
    """Targets `family/name` that `all` or a glob stands for; empty if it is neither."""
    if pattern == "all":
        pattern = "*"
    elif not any(letter in pattern for letter in "*?["):
        return []
    first, slash, rest = pattern.partition("/")
    found = [
        f"{family}/{name}"
        for family in FAMILIES
        if not slash or fnmatchcase(family, first)
        for name in classes(family)
        if fnmatchcase(name, rest if slash else pattern)
    ]
    if not found:
        raise InputError(f"hf:{pattern} matches no model; as hf:llama*, hf:causal/* or hf:all")
    return found


def _names(family: Family) -> dict[str, str]:
    """Those that can be named: any base model can be looked at as an encoder."""
    return _mapping("MODEL") if family == "encoder" else classes(family)


def _every() -> set[str]:
    return {name for family in FAMILIES for name in classes(family)}


def class_name(family: Family, name: str) -> str:
    return _names(family)[name]


def _family_in(folder: Path) -> Family:
    """By the class that was saved; by the architecture if the folder does not say."""
    try:
        path = folder / "config.json"
        config: dict[str, Any] = json.loads(files.read_named(path))  # may hold Infinity
        json_files.in_shape(config, {"architectures?": ([str], None)}, path)
    except (OSError, ValueError, RecursionError):
        return "causal"  # reading it says what is wrong
    if config.get("is_encoder_decoder"):
        return "seq2seq"
    saved = config.get("architectures") or []
    if any(one in classes("causal").values() for one in saved):
        return "causal"
    listed = {*_mapping(_MASKED).values(), *classes("encoder").values()}
    if any(one in listed for one in saved):
        return "encoder"
    return family_of(str(config.get("model_type", "")))


@cache
def _mapping(name: str) -> dict[str, str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the library is imported
    try:
        from transformers.models.auto import modeling_auto
    except ImportError:
        raise InputError(missing("transformers", "hf:")) from None
    found: dict[str, Any] = dict(getattr(modeling_auto, f"{name}_MAPPING_NAMES", {}))
    # one architecture has two classes: the first is that of the whole model
    return {one: made if isinstance(made, str) else made[0] for one, made in found.items()}
