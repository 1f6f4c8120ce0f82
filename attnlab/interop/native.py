"""What `transformers` expects of the weights of a model type: the layout that its code reads.

Noted from the modelling files of transformers 5.22. Of a type that is not here nothing is claimed.
"""

from dataclasses import dataclass, replace
from typing import Literal

Rotary = Literal["interleaved", "half-split"]
Form = Literal["separate", "by-kind", "by-group"]  # of queries, keys and values
Matrices = Literal["out-in", "in-out"]


@dataclass(frozen=True, kw_only=True)
class Native:
    rotary: Rotary | None = "half-split"  # None: nothing is rotated
    qkv: Form = "separate"
    fused: str = ""  # what queries, keys and values in one are called
    matrices: Matrices = "out-in"
    shares: bool = True  # whether num_key_value_heads is read
    part: float | None = 1.0  # of a head that turns, where the config does not say; None: unknown
    whole: bool = True  # whole heads turn, whatever the config says


HALF_SPLIT = Native()
INTERLEAVED = Native(rotary="interleaved")
GPT2 = Native(rotary=None, qkv="by-kind", fused="c_attn", matrices="in-out", shares=False)
NEOX = Native(qkv="by-group", fused="query_key_value", shares=False, part=None, whole=False)

NATIVE: dict[str, Native] = {
    **dict.fromkeys(
        (
            *("llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3"),
            *("qwen3_moe", "smollm3", "gemma", "gemma2", "gemma3_text", "starcoder2", "olmo"),
            *("olmo2", "granite", "arcee", "seed_oss", "gpt_oss"),
        ),
        HALF_SPLIT,
    ),
    **dict.fromkeys(("phi", "stablelm", "nemotron"), replace(HALF_SPLIT, part=None, whole=False)),
    **dict.fromkeys(("cohere", "cohere2", "helium", "ernie4_5"), INTERLEAVED),
    **dict.fromkeys(("glm", "glm4"), replace(INTERLEAVED, part=None, whole=False)),
    "gptj": replace(INTERLEAVED, shares=False, part=None, whole=False),
    "phi3": Native(qkv="by-kind", fused="qkv_proj", whole=False),
    "gpt2": GPT2,
    "openai-gpt": GPT2,
    "mpt": Native(rotary=None, qkv="by-kind", fused="Wqkv", shares=False),
    "gpt_neox": NEOX,
    "persimmon": NEOX,
    "bloom": replace(NEOX, rotary=None),
    "opt": Native(rotary=None, shares=False),
    # our own has its layout of rotary positions in its config
    "attnlab": Native(rotary=None, qkv="by-kind", fused="project", whole=False),
}
