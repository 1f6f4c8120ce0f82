"""Pairs of models and the causes for which they differ: every cause alone, some in pairs, and none.

A pair that is equal in spite of its looks must be found equal; one that differs by something that
no cause is about must be left unexplained.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from attnlab import counter_rng
from attnlab.doctor.case import Case
from attnlab.doctor.pairs.compact import Compact
from attnlab.doctor.pairs.separate import Separate
from attnlab.doctor.pairs.style import Style
from attnlab.doctor.patient import Patient, made

Verdict = Literal["equal", "explained", "unexplained"]
PLAIN = Style()
GPT2 = Style(
    positions="learned",
    norm="layer",
    gated=False,
    activation="gelu",
    bias=True,
    kv_heads=4,
    tied=True,
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    name: str
    a: Callable[[], nn.Module]
    b: Callable[[], nn.Module]
    causes: frozenset[str] = frozenset()
    verdict: Verdict = "explained"

    def case(self) -> Case:
        """With the same weights every time."""
        return Case(self._made(self.a, "a"), self._made(self.b, "b"))

    def _made(self, make: Callable[[], nn.Module], side: str) -> Patient:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(counter_rng.number(0, f"{self.name} {side}"))
            return made(make(), side)


def _pair(
    name: str,
    causes: str,
    *,
    style: Style = PLAIN,
    code: type[nn.Module] = Separate,
    other: type[nn.Module] | None = None,
    verdict: Verdict = "explained",
    **changes: object,
) -> Pair:
    """A in a style, and B in the same but for some changes."""
    changed = replace(style, **changes)  # type: ignore[arg-type]
    return Pair(
        name=name,
        a=lambda: code(style),
        b=lambda: (other or code)(changed),
        causes=frozenset(causes.split()),
        verdict=verdict,
    )


ALONE = (
    _pair("interleaved", "rotary-layout", layout="interleaved"),
    _pair("half-split", "rotary-layout", style=Style(layout="interleaved"), layout="half-split"),
    _pair(
        "interleaved, half of the head",
        "rotary-layout",
        style=Style(fraction=0.5),
        layout="interleaved",
    ),
    _pair("interleaved, other code", "rotary-layout", other=Compact, layout="interleaved"),
    _pair("backward", "rotary-direction", backward=True),
    _pair(
        "backward, neighbours", "rotary-direction", style=Style(layout="interleaved"), backward=True
    ),
    _pair("another base", "rotary-base", base=500_000.0),
    _pair("another base, PyTorch's attention", "rotary-base", code=Compact, base=500_000.0),
    _pair("half of the head", "rotary-fraction", fraction=0.5),
    _pair("the last half turns", "rotary-start", style=Style(fraction=0.5), tail=True),
    _pair(
        "the last half turns in A, normalised",
        "rotary-start",
        style=Style(fraction=0.5, tail=True, head_norm="before"),
        tail=False,
    ),
    _pair(
        "interleaved, the last half",
        "rotary-layout",
        style=Style(fraction=0.5, tail=True),
        layout="interleaved",
    ),
    _pair(
        "backward, the last half",
        "rotary-direction",
        style=Style(fraction=0.5, tail=True),
        backward=True,
    ),
    _pair("the last half alone", "rotary-fraction", fraction=0.5, tail=True),
    _pair("rates divided by 4", "rotary-scaling", factor=4.0),
    _pair("queries one later", "position-offset", query_shift=1),
    _pair("queries 17 later", "position-offset", query_shift=17),
    _pair("queries 3 earlier, other code", "position-offset", other=Compact, query_shift=-3),
    _pair("learned positions from row 2 on", "position-offset", style=GPT2, first_row=2),
    _pair("scores of 1/d", "score-scale", scale=1 / 8),
    _pair("scores of 1, PyTorch's attention", "score-scale", code=Compact, scale=1.0),
    _pair("scores of 1/d, normalised", "score-scale", style=Style(head_norm="before"), scale=1 / 8),
    _pair(
        "interleaved, normalised",
        "rotary-layout",
        style=Style(head_norm="before"),
        layout="interleaved",
    ),
    _pair("fused by group", "fused-order", code=Compact, fused="group"),
    _pair("separate, and fused by group", "fused-order", other=Compact, fused="group"),
    _pair("LitGPT, fused by group", "fused-order", other=Compact, lit=True, fused="group"),
    _pair("tiled heads", "head-sharing", tiled=True),
    _pair("matrices turned", "transposed", turned=True),
    _pair("a key less", "window", style=Style(window=9), window=8),
    _pair(
        "a key more, PyTorch's attention", "window", code=Compact, style=Style(window=9), window=10
    ),
    _pair("a window", "window", window=6),
    _pair("mask upside down", "padding-mask", upside_down=True),
    _pair("epsilon", "norm-epsilon", epsilon=1e-6),
    _pair("epsilon, PyTorch's norm", "norm-epsilon", other=Compact, epsilon=1e-6),
    _pair("1 + weight", "norm-one-plus", one_plus=True),
    _pair("norms after the sum", "norm-place", norm_place="sum"),
    _pair(
        "norms of the output in A",
        "norm-place",
        style=Style(norm_place="output"),
        norm_place="before",
    ),
    _pair(
        "normalised after the rotation",
        "qk-norm-place",
        style=Style(head_norm="before"),
        head_norm="after",
    ),
    _pair(
        "normalised before the rotation",
        "qk-norm-place",
        style=Style(head_norm="after"),
        head_norm="before",
    ),
    _pair("gelu by tanh", "gelu", style=GPT2, activation="gelu-tanh"),
    _pair("gelu by tanh, other code", "gelu", style=GPT2, other=Compact, activation="gelu-tanh"),
    _pair("gate last", "gate-order", gate_last=True),
    _pair("gate last, fused", "gate-order", code=Compact, gate_last=True),
    _pair("embeddings times √width", "embedding-scale", embedding_scale=32**0.5),
    _pair("head tied in A", "tied-head", style=Style(tied=True), tied=False),
    _pair("head tied in B", "tied-head", tied=True),
    _pair("scores capped", "soft-cap", score_cap=2.0),
    _pair("logits capped in A", "soft-cap", style=Style(logit_cap=1.0), logit_cap=None),
    _pair("another cap", "soft-cap", style=Style(score_cap=2.0), score_cap=3.0),
    _pair("drops", "training-mode", dropout=0.3),
)
SEVERAL = (
    _pair("layout and base", "rotary-layout rotary-base", layout="interleaved", base=1e6),
    _pair("layout and epsilon", "rotary-layout norm-epsilon", layout="interleaved", epsilon=1e-3),
    _pair("by group, and 1/d", "fused-order score-scale", code=Compact, fused="group", scale=1 / 8),
    _pair("tiled, and gate last", "head-sharing gate-order", tiled=True, gate_last=True),
    _pair("base and part", "rotary-base rotary-fraction", base=1e6, fraction=0.5),
    _pair(
        "layout and direction",
        "rotary-layout rotary-direction",
        layout="interleaved",
        backward=True,
    ),
    _pair(
        "turned, and by tanh", "transposed gelu", style=GPT2, turned=True, activation="gelu-tanh"
    ),
    _pair(
        "layout, window, cap",
        "rotary-layout window soft-cap",
        layout="interleaved",
        window=7,
        score_cap=3.0,
    ),
    _pair(
        "layout, and queries 5 later",
        "rotary-layout position-offset",
        layout="interleaved",
        query_shift=5,
    ),
    _pair(
        "layout, and the last half",
        "rotary-start rotary-layout",
        style=Style(fraction=0.5),
        layout="interleaved",
        tail=True,
    ),
    _pair("layout, and rates in float32", "rotary-layout", layout="interleaved", rounded=True),
    _pair("base, and rates in float32", "rotary-base", base=5e5, rounded=True),
    _pair("part, and rates in float32", "rotary-fraction", fraction=0.5, rounded=True),
    _pair(
        "Gemma's norms, embeddings and tied head",
        "norm-one-plus embedding-scale tied-head",
        one_plus=True,
        embedding_scale=32**0.5,
        tied=True,
    ),
    _pair(
        "other code: layout, by group, epsilon",
        "rotary-layout fused-order norm-epsilon",
        other=Compact,
        layout="interleaved",
        fused="group",
        epsilon=1e-4,
    ),
)
SAME = (
    _pair("all positions shifted", "", shift=3, verdict="equal"),
    _pair("other code", "", other=Compact, verdict="equal"),
    _pair("names of LitGPT", "", other=Compact, lit=True, verdict="equal"),
    _pair("other code, GPT-2", "", style=GPT2, other=Compact, verdict="equal"),
    _pair("other code, a window", "", style=Style(window=5), other=Compact, verdict="equal"),
    _pair(
        "backward and mirrored", "", style=Style(positions="none"), backward=True, verdict="equal"
    ),
    _pair("a window of the whole text", "", window=200, verdict="equal"),
    _pair("rates in float32", "", style=Style(base=50.0), rounded=True, verdict="equal"),
    _pair(
        "rates in float32 in A, scaled",
        "",
        style=Style(factor=3.0, rounded=True),
        rounded=False,
        verdict="equal",
    ),
    _pair("the factor on scores in float32", "", scale=0.3535533845424652, verdict="equal"),
)
OTHERS = (
    _pair("ALiBi", "", positions="alibi", verdict="unexplained"),
    _pair("residuals by half", "", residual=0.5, verdict="unexplained"),
    _pair("another sum in the softmax", "", one_more=True, verdict="unexplained"),
    _pair("scores of one layer", "", first_layer_scale=0.5, verdict="unexplained"),
    _pair("squared ReLU", "", activation="relu-squared", verdict="unexplained"),
    _pair("layer norm", "", norm="layer", verdict="unexplained"),
    _pair(
        "four causes and more",
        "",
        residual=0.9,
        base=1e6,
        tiled=True,
        epsilon=1e-3,
        verdict="unexplained",
    ),
    _pair("no positions", "", positions="none", verdict="unexplained"),
)
PAIRS = (*ALONE, *SEVERAL, *SAME, *OTHERS)
