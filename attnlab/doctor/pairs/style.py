"""A style: the conventions of a small language model, one by one, as two code bases read them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Style:
    vocabulary: int = 61
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    depth: int = 2
    hidden: int = 48
    context: int = 128
    positions: Literal["rotary", "learned", "alibi", "none"] = "rotary"
    layout: Literal["half-split", "interleaved"] = "half-split"
    base: float = 10_000.0
    backward: bool = False  # pairs turn the other way
    fraction: float = 1.0
    tail: bool = False  # the last coordinates turn, not the first
    factor: float = 1.0  # rates are divided by it
    rounded: bool = False  # rates are those of float32
    shift: int = 0  # of all positions
    query_shift: int = 0  # of queries alone
    first_row: int = 0  # of learned positions: that of position 0
    scale: float | None = None  # of scores; None: 1/√(head width)
    fused: Literal["kind", "group"] = "kind"
    tiled: bool = False  # query head i reads key/value head i mod kv_heads
    lit: bool = False  # names as in LitGPT, with gates by themselves; of the compact code only
    turned: bool = False  # matrices are [in, out]
    window: int | None = None
    upside_down: bool = False  # the padding mask
    epsilon: float = 1e-5
    one_plus: bool = False
    norm_place: Literal["before", "sum", "output"] = "before"
    head_norm: Literal["", "before", "after"] = ""  # of queries and keys, and the rotation
    norm: Literal["rms", "layer"] = "rms"
    activation: Literal["silu", "gelu", "gelu-tanh", "relu-squared"] = "silu"
    gated: bool = True
    gate_last: bool = False
    embedding_scale: float = 1.0
    tied: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    dropout: float = 0.0  # in evaluation mode too
    bias: bool = False
    residual: float = 1.0
    one_more: bool = False  # the softmax has a 1 in its sum
    first_layer_scale: float = 1.0  # of scores, in the first layer only

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def rotated(self) -> int:
        return int(self.head_width * self.fraction)
