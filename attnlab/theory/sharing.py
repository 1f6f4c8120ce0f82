"""Shared key/value heads: what grouped-query attention computes, and what it saves.

Axes: b batch, t time, c model width, h query heads, g key/value heads, d head width; in the
formulas h_kv is the number of key/value heads.

Savings are counted on our modules and caches, never timed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.attention.cache import Full, LayerCache, Ring
from attnlab.attention.heads import (
    Grouped,
    HeadedAttention,
    HeadSettings,
    Layer,
    MultiHead,
    MultiQuery,
)
from attnlab.attention.scores import ScaledDotScore
from attnlab.config import refusal, setting, settings
from attnlab.kernels import Rotation, attention, rotation
from attnlab.kernels.mask import visible
from attnlab.kernels.reference import masked_softmax
from attnlab.reports.report import Picture, Plot, Series, Table
from attnlab.theory.claim import EQUAL, About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import largest, normal
from attnlab.theory.ledger import Ledger

WIDTH, HEAD_WIDTH, PAIRS = 11, 5, 2  # odd ones: nothing divides evenly, and a coordinate stays put
PATHS = ("reference", "sdpa", "tiled", "auto")  # auto: also the compiled one, where there is one
BATCH, WINDOW = 2, 5  # of the caches that are filled
Order = Literal["repeat", "tile"]


@dataclass(frozen=True)
class Shape:
    batch: int
    length: int
    causal: bool
    window: int | None
    layout: Literal["half-split", "interleaved"] | None  # of rotary positions

    @property
    def rotary(self) -> Rotation | None:
        if self.layout is None:
            return None
        positions = torch.arange(self.length)[None]
        return rotation(positions, PAIRS, layout=self.layout, dtype=torch.float64)


SHAPES = (  # odd lengths; those with a window run on a banded path, the others on PyTorch's
    Shape(1, 1, True, None, None),
    Shape(2, 7, True, None, "half-split"),
    Shape(1, 13, False, None, "interleaved"),
    Shape(3, 17, True, 4, "half-split"),
    Shape(2, 19, False, 3, None),
    Shape(1, 65, True, 9, "interleaved"),
)


def divisors(heads: int) -> list[int]:
    return [count for count in range(1, heads + 1) if heads % count == 0]


def reads(heads: int, kv_heads: int, order: Order) -> Tensor:
    """Which key/value head each query head reads."""
    head = torch.arange(heads)
    return head // (heads // kv_heads) if order == "repeat" else head % kv_heads


def empty(settings: HeadSettings, window: int | None = None) -> HeadedAttention:
    """Our attention in float64, whose weights the caller fills in."""
    with torch.device("meta"):  # draws no start values: the global generator stays as it was
        made = HeadedAttention(settings, ScaledDotScore(), Layer(width=WIDTH, window=window))
    return made.double().to_empty(device="cpu")


def module(seed: int, settings: HeadSettings, window: int | None = None) -> HeadedAttention:
    """Our attention with random weights that depend on the seed and the settings only."""
    made = empty(settings, window)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            drawn = normal(seed, name, *parameter.shape) / math.sqrt(parameter.shape[1])
            parameter.copy_(torch.from_numpy(drawn))
    return made


def parts(grouped: HeadedAttention, of: Tensor) -> list[Tensor]:
    """Rows of the projection, or of its gradient, as [heads, d, c]: for q, for k and for v."""
    heads = of.unflatten(0, (-1, grouped.head_width))
    return list(heads.split([grouped.heads, grouped.kv_heads, grouped.kv_heads]))


def tie(grouped: HeadedAttention, order: Order) -> HeadedAttention:
    """Multi-head attention in which query heads that shared a key/value head have copies of it."""
    settings = MultiHead(heads=grouped.heads, head_width=grouped.head_width)
    made = empty(settings, grouped.window)
    to = reads(grouped.heads, grouped.kv_heads, order)
    with torch.no_grad():
        q, k, v = parts(grouped, grouped.project.weight)
        made.project.weight.copy_(torch.cat((q, k[to], v[to])).flatten(0, 1))
        made.merge.weight.copy_(grouped.merge.weight)
    return made


def untie(gradient: Tensor, grouped: HeadedAttention, order: Order) -> Tensor:
    """The gradient of the multi-head projection, summed over the copies of each head."""
    q, k, v = gradient.unflatten(0, (3, grouped.heads, grouped.head_width))
    to = reads(grouped.heads, grouped.kv_heads, order)
    shared = [x[to == n].sum(0) for x in (k, v) for n in range(grouped.kv_heads)]
    return torch.cat((q, torch.stack(shared))).flatten(0, 1)


@settings
class GqaIsTiedMha(Claim):
    heads: int = setting(
        6, low=1, high=16, about="query heads; all their divisors are tried", metadata={"live": 8}
    )
    order: Order = setting("repeat", about="which key/value head a query head reads")

    about = About(
        statement="Grouped-query attention is multi-head attention in which the key/value heads "
        "of a group are equal: query head i reads key/value head ⌊i / (h/h_kv)⌋.",
        formula="GQA(W_q; W_k, W_v)  =  MHA(W_q; repeat(W_k), repeat(W_v))\n"
        "repeat: each of the h_kv heads h/h_kv times in a row\n"
        "h_kv = h: multi-head,   h_kv = 1: multi-query\n"
        "∂L/∂W_k  =  Σ over its copies of ∂L/∂(copy)",
        derivation="""A head's output depends on its own queries and on the keys and values it
            reads, and on nothing else. If two heads read the same keys and values, nothing changes
            when each gets a copy of its own: the keys are X W_k, so copies of W_k make copies of
            the keys. Rotary positions, masks and windows act on each head alike.

            So every grouped module is a multi-head module with the constraint that some blocks of
            its weights are equal. By the chain rule the gradient of a shared block is the sum of
            the gradients of its copies; that is why training keeps them equal, and why a grouped
            model is no multi-head model trained as usual.

            With one head a group nothing is repeated, and with one group all heads read the same.
            In between the order matters: heads of a group stand side by side. Copies laid out as
            1 2 … 1 2 … in place of 1 1 … 2 2 … give the same shapes and another function, for
            which a trained model's weights were not made.""",
        expected="holds",
        questions=("CMU programming",),
        knob=Knob("tile in place of repeat: i mod h_kv", {"order": "tile", "heads": 6}),
        remark="""With h_kv = 1 and h_kv = h the two orders are one, so a test that tries only
            these cannot tell them apart.""",
    )

    def run(self) -> Evidence:
        counts = divisors(self.heads)
        given = [self._inputs(shape) for shape in SHAPES]
        found = {g: self._differences(g, given) for g in counts}
        outputs = {g: max(apart for apart, _ in found[g]) for g in counts}
        gradients = {g: max(apart for _, apart in found[g]) for g in counts}
        wrong = {g: self._read_elsewhere(g) for g in counts}
        return Evidence(
            kind="construction",
            trials=len(found) * len(SHAPES),
            measures=[
                Measure("|grouped − multi-head with copies|", max(outputs.values()), "≤", EQUAL),
                Measure("… of the gradients, of the largest", max(gradients.values()), "≤", EQUAL),
                Measure("query heads that read another head", sum(wrong.values()), "=", 0),
                Measure(
                    "|h_kv = h − multi-head|, |h_kv = 1 − multi-query|", self._ends(), "≤", EQUAL
                ),
            ],
            picture=self._picture(counts[len(counts) // 2]),
            details=[
                Table(
                    title=f"{self.heads} query heads, key/value heads laid out by {self.order}",
                    columns=["h_kv", "outputs differ by", "gradients by", "read another head"],
                    rows=[[g, outputs[g], gradients[g], wrong[g]] for g in counts],
                )
            ],
        )

    def _inputs(self, shape: Shape) -> list[Tensor]:
        """Tokens, and the gradient of the loss with respect to the output."""
        size = (shape.batch, shape.length, WIDTH)
        return [torch.from_numpy(normal(self.seed, name, *size)) for name in ("x", "loss")]

    def _differences(self, kv_heads: int, given: list[list[Tensor]]) -> list[tuple[float, float]]:
        """Differences of outputs and of gradients, for every shape."""
        settings = Grouped(heads=self.heads, kv_heads=kv_heads, head_width=HEAD_WIDTH)
        grouped = module(self.seed, settings)
        copied = tie(grouped, self.order)
        weights, found = [one.project.weight for one in (grouped, copied)], []
        for shape, (x, towards) in zip(SHAPES, given, strict=True):
            grouped.window = copied.window = shape.window
            seeing = {"causal": shape.causal, "rotary": shape.rotary}
            outs = [one(x, **seeing) for one in (grouped, copied)]
            ours, theirs = torch.autograd.grad(outs, weights, [towards, towards])
            off = ours - untie(theirs, grouped, self.order)
            apart = (outs[0] - outs[1]).detach().numpy()
            found.append((largest(apart), largest(off.numpy()) / largest(ours.numpy())))
        return found

    def _read(self, kv_heads: int, path: str = "auto") -> Tensor:
        """Which key/value head each query head reads: the values of head n are all n, and weights
        add up to 1, so the output is n."""
        q = torch.from_numpy(normal(self.seed, "q", 1, self.heads, 9, HEAD_WIDTH))
        k = torch.from_numpy(normal(self.seed, "k", 1, kv_heads, 9, HEAD_WIDTH))
        numbers = torch.arange(kv_heads, dtype=q.dtype)[None, :, None, None].expand_as(k)
        return attention(q, k, numbers, window=4, path=path)[0, :, -1, 0].round().long()

    def _read_elsewhere(self, kv_heads: int) -> int:
        """How many query heads read another head than `order` says, over all paths."""
        said = reads(self.heads, kv_heads, self.order)
        return sum(int((self._read(kv_heads, path) != said).sum()) for path in PATHS)

    def _ends(self) -> float:
        """Differences for h_kv = h and h_kv = 1; equal seeds and shapes give equal weights."""
        x = torch.from_numpy(normal(self.seed, "x", 2, 17, WIDTH))
        heads, width = self.heads, HEAD_WIDTH
        pairs: list[tuple[HeadSettings, HeadSettings]] = [
            (
                Grouped(heads=heads, kv_heads=heads, head_width=width),
                MultiHead(heads=heads, head_width=width),
            ),
            (
                Grouped(heads=heads, kv_heads=1, head_width=width),
                MultiQuery(heads=heads, head_width=width),
            ),
        ]
        with torch.no_grad():
            outs = [[module(self.seed, one)(x) for one in pair] for pair in pairs]
        return max(largest((one - other).numpy()) for one, other in outs)

    def _picture(self, kv_heads: int) -> Picture:
        read = self._read(kv_heads)
        return Picture(
            title=f"Which key/value head a query head reads, h = {self.heads}, h_kv = {kv_heads}",
            rows=[[float(n == one) for n in range(kv_heads)] for one in read],
            x="key/value head",
            y="query head",
            note="Read off the kernel's output: the values of key/value head n were all n.",
        )


def summed_scores(
    q: Float[Tensor, "b h t d"], k: Float[Tensor, "b g t d"], v: Float[Tensor, "b g t d"]
) -> tuple[Float[Tensor, "b g t d"], Float[Tensor, "b g t t"]]:
    """A mistake: the scores of a group are added up before the softmax."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bgntd,bgsd->bgts", grouped, k) / math.sqrt(q.shape[3])
    at = torch.arange(q.shape[2])
    weights = masked_softmax(scores, visible(at, at, causal=True, window=None))
    return weights @ v, weights


@dataclass(frozen=True)
class Counted:
    """What a layer with a given number of key/value heads stores and computes."""

    full: int  # bytes of a full cache
    ring: int  # bytes of a ring cache
    parameters: int  # of the projections to keys and values
    maps: int  # matrices of weights that a softmax made, for a sequence
    different: int  # of these
    multiply_adds: int  # of scores and weighted sums
    error: float  # from multi-head attention with copied key/value heads


@settings
class GqaSavesTheCache(Claim):
    heads: int = setting(8, low=1, high=16, about="query heads; all their divisors are tried")
    kv_heads: int = setting(2, low=1, high=16, about="key/value heads; they divide heads")
    length: int = setting(
        19, low=16, high=256, about="positions of the text", metadata={"live": 128}
    )
    mechanism: Literal["grouped", "summed"] = setting(
        "grouped", about="share the keys of a group, or add its scores"
    )

    about = About(
        statement="Sharing key/value heads shrinks the cache and the key/value parameters to "
        "h_kv/h; the attention maps stay h a layer.",
        formula="cache:  2·b·h_kv·t·d numbers       key/value parameters:  2·c·h_kv·d\n"
        "maps:  h, of t² weights each       multiply-adds:  2·b·h·t²·d, whatever h_kv",
        derivation="""The cache keeps the keys and values of all positions, so its size is
            proportional to the number of heads that have any, and so are the two projections that
            make them. Everything else is counted by query heads: each has its own queries, so its
            own scores against the keys of its group, its own softmax and its own sum over the
            values. That makes h maps of t² weights, and 2t²d multiply-adds for each, however the
            keys are shared.

            So sharing shrinks what is read again for every new token, and leaves the work on the
            maps, which training does for all positions at once, as it is.

            A mistake that one can make is to add up the scores within a group before the softmax,
            as by an einsum that leaves the axis of the group out of its result. Since
            Σ qᵢ·k = (Σ qᵢ)·k, this is multi-head attention with h_kv heads, the queries of a
            group added up: h_kv maps, but the query heads of a group no longer look at different
            places, and their projections could as well be one.""",
        expected="holds",
        questions=("CMU programming",),
        knob=Knob("add up a group's scores", {"mechanism": "summed", "heads": 8, "kv_heads": 2}),
        remark="""With added scores the cache is as small and the maps are fewer, but the output is
            not that of grouped-query attention. There is public code that adds them, such as
            attention.py of github.com/fkodom/grouped-query-attention-pytorch at commit 0a04278.""",
    )

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise refusal(
                self,
                "kv_heads",
                f"every key/value head must serve the same number of the {self.heads} query "
                f"heads, so use one of {divisors(self.heads)}",
            )

    def run(self) -> Evidence:
        layers = {g: self._layer(g) for g in divisors(self.heads)}
        here, full, part = layers[self.kv_heads], layers[self.heads], self.kv_heads / self.heads
        cache, ring = here.full / full.full, here.ring / full.ring
        parameters, work = (
            here.parameters / full.parameters,
            here.multiply_adds / full.multiply_adds,
        )
        return Evidence(
            kind="counted",
            trials=len(layers),
            measures=[
                Measure("attention maps of a layer", here.maps, "=", self.heads),
                Measure("… that differ from one another", here.different, "=", self.heads),
                Measure("multiply-adds on them, of multi-head's", work, "=", 1),
                Measure("bytes of a full cache, of multi-head's", cache, "=", part),
                Measure("bytes of a ring cache, of multi-head's", ring, "=", part),
                Measure("key/value parameters, of multi-head's", parameters, "=", part),
                Measure("bytes and parameters unlike the formula", self._unlike(layers), "=", 0),
                Measure("|output − multi-head with copies|", here.error, "≤", EQUAL),
            ],
            picture=self._picture(layers),
            details=[
                Table(
                    title=f"A layer of {self.heads} query heads after {self.length} positions",
                    columns=[
                        "h_kv",
                        "cache bytes",
                        "K/V parameters",
                        "maps",
                        "multiply-adds",
                        "error",
                    ],
                    rows=[
                        [g, one.full, one.parameters, one.maps, one.multiply_adds, one.error]
                        for g, one in layers.items()
                    ],
                )
            ],
        )

    def _layer(self, kv_heads: int) -> Counted:
        settings = Grouped(heads=self.heads, kv_heads=kv_heads, head_width=HEAD_WIDTH)
        made = module(self.seed, settings)
        names, counts = ("q", "k", "v"), (self.heads, kv_heads, kv_heads)
        q, k, v = (
            torch.from_numpy(normal(self.seed, name, BATCH, count, self.length, HEAD_WIDTH))
            for name, count in zip(names, counts, strict=True)
        )
        with Ledger(q, k, v) as ledger:
            if self.mechanism == "grouped":
                out, weights = attention(q, k, v, return_weights=True)
            else:
                out, weights = summed_scores(q, k, v)
        softmaxes = [shape for name, shape in ledger.operations if name == "_softmax"]
        to = reads(self.heads, kv_heads, "repeat")
        true = attention(q, k[:, to], v[:, to], path="sdpa")
        shared = out.repeat_interleave(self.heads // out.shape[1], dim=1)
        return Counted(
            full=self._bytes(settings, Full().build(None), None),
            ring=self._bytes(settings, Ring().build(WINDOW), WINDOW),
            parameters=made.project.weight.numel() - made.heads * made.head_width * WIDTH,
            maps=sum(math.prod(shape[:-2]) for shape in softmaxes) // BATCH,
            different=_different(weights[0]),
            multiply_adds=ledger.multiply_adds,
            error=largest((shared - true).numpy()),
        )

    def _bytes(self, settings: HeadSettings, cache: LayerCache, window: int | None) -> int:
        """Bytes of the cache after our module has read a text."""
        x = torch.from_numpy(normal(self.seed, "x", BATCH, self.length, WIDTH))
        with torch.no_grad():
            module(self.seed, settings, window)(x, cache=cache)
        return cache.bytes

    def _unlike(self, layers: Mapping[int, Counted]) -> int:
        """Bytes and parameters that differ from the formula; a ring holds twice its window."""
        unlike = 0
        for kv_heads, one in layers.items():
            position = 2 * BATCH * kv_heads * HEAD_WIDTH * 8  # bytes, in float64
            unlike += abs(one.full - self.length * position)
            unlike += abs(one.ring - 2 * WINDOW * position)
            unlike += abs(one.parameters - 2 * WIDTH * kv_heads * HEAD_WIDTH)
        return unlike

    def _picture(self, layers: Mapping[int, Counted]) -> Plot:
        full, names = layers[self.heads], [f"h_kv = {g}" for g in layers]
        parts = {
            "cache bytes": [one.full / full.full for one in layers.values()],
            "key/value parameters": [one.parameters / full.parameters for one in layers.values()],
            "attention maps": [one.maps / full.maps for one in layers.values()],
        }
        return Plot(
            title=f"What sharing saves, {self.heads} query heads, {self.mechanism}",
            x="key/value heads",
            y="part of multi-head's",
            kind="bars",
            series=[Series(name=name, x=names, y=y) for name, y in parts.items()],
        )


def _different(maps: Float[Tensor, "h t t"]) -> int:
    """The number of distinct maps."""
    kept: list[Tensor] = []
    for one in maps:
        if all(largest((one - other).numpy()) > EQUAL for other in kept):
            kept.append(one)
    return len(kept)
