"""All families, in the order in which an export tries them: the plainest that can hold a model."""

from collections.abc import Mapping
from typing import Any

from attnlab.interop.families import gemma, gpt, llama, own
from attnlab.interop.families.family import Family
from attnlab.interop.fields import Unsupported
from attnlab.models.transformer import TransformerSettings

FAMILIES: dict[str, Family] = {
    one.model_type: one
    for one in (
        llama.LLAMA,
        llama.MISTRAL,
        llama.QWEN2,
        llama.QWEN3,
        llama.MINISTRAL,
        llama.SMOLLM3,
        gemma.GEMMA,
        gemma.GEMMA2,
        gemma.GEMMA3,
        gpt.GPT2,
        gpt.NEOX,
        gpt.STARCODER2,
        llama.PHI3,
        own.OWN,
    )
}


def family_of(plain: Mapping[str, Any]) -> Family:
    """Of a config.json."""
    kind = plain.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    code = ", and code in the folder is not run" if "auto_map" in plain else ""
    raise Unsupported(
        f"config.json: model_type is {kind!r}; attnlab reads {', '.join(FAMILIES)}{code}"
    )


def choose(
    settings: TransformerSettings, *, our_tokenizer: bool = True
) -> tuple[Family, dict[str, Any]]:
    """The first family that holds this model, and its config; Unsupported: not even ours does."""
    reason = ""
    for family in FAMILIES.values():
        if our_tokenizer and family.only_its_tokenizer:
            continue
        try:
            return family, family.config(settings)
        except Unsupported as error:
            reason = str(error)
    raise Unsupported(f"this model has no place in transformers: {reason}")
