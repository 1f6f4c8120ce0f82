"""Gated DeltaNet: a layer that keeps a state of constant size in place of keys and values.

    q, k, v = silu(mix(W x)), q and k then of length 1;  mix: over the last few tokens
    β = sigmoid(w_β x),  α = exp(−e^A · softplus(w_α x + bias))
    y = W_out (norm(delta(q, k, v, α, β)) · silu(W_gate x))

What comes from where: the delta rule from Schlag et al. 2021, its chunked form and q and k of
length 1 from Yang et al. 2024 (DeltaNet), the decay α and its parameters from Mamba-2 (Dao and Gu
2024), and all of them together, with the gate, from Gated DeltaNet (Yang, Kautz and Hatamizadeh
2024). Qwen3-Next has such layers in three of four, and attention in the fourth: a hybrid.

Axes: b batch, t time, c model width, h heads, d head width, m coordinates of all q, k and v.
Cost: O(t) time. The cache holds h · d² numbers for the state, and a few projected tokens.
"""

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab import registry
from attnlab.attention.cache import LayerCache
from attnlab.attention.distance import T5, Fire, Kerple
from attnlab.attention.heads import (
    HEAD_WIDTH,
    AttentionOptions,
    HeadSettings,
    Layer,
    MultiHead,
    head_width,
)
from attnlab.attention.norms import NORM_EPSILON
from attnlab.attention.positions import Alibi, Rotary
from attnlab.code.own import OwnCode
from attnlab.config import choice, refusal, setting, settings
from attnlab.kernels import Segments, delta

SMALLEST_STEP, LARGEST_STEP, LARGEST_RATE = 1e-3, 1e-1, 16.0  # where decays begin, as in Mamba-2
LENGTH_EPSILON = 1e-6  # of q and k, under the root
# what the layer has nothing for
LOST = (
    *("window", "chunk", "soft_cap", "sink", "gate", "value_residual", "value_embedding"),
    *("shared_kv", "norm_heads", "qkv_bias", "dropout"),
)
Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # q, k, v, log decays and strengths


@settings
class GatedDelta:
    """The gated delta rule, with what the published layer has around it."""

    recurrent: ClassVar[bool] = True

    heads: int = setting(4, low=1, about="heads, each with a state of head_width²")
    head_width: int | None = setting(None, low=1, none="width / heads", about=HEAD_WIDTH)
    mixed: int | None = setting(
        4,
        low=2,
        because="it counts the token itself",
        none="no convolution",
        about="convolution of q, k and v: tokens that are mixed, the token itself and before it",
    )
    gate: bool = setting(True, about="multiply outputs by silu of a projection of the input")
    full_every: int | None = setting(
        None,
        low=2,
        because="with 1 no layer would have a state",
        none="a state in every layer",
        about="a hybrid: the last of so many layers has keys and values (Qwen3-Next: 4)",
    )
    full: HeadSettings = choice("attention", "multi-head", about="attention of that layer")

    def check(self) -> None:
        if isinstance(self.full, GatedDelta | OwnCode):
            raise ValueError(
                f"attention.full is {registry.name_of('attention', self.full)}; it is an attention "
                "of ours with keys, such as grouped"
            )
        if self.full_every is None and self.full != MultiHead():
            raise refusal(self, "full_every", "no layer would have attention.full; use 4")

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def keyed(self) -> HeadSettings:
        """The attention of a hybrid's layers with keys."""
        return self if self.full_every is None else self.full

    def of_layer(self, layer: int) -> HeadSettings:
        has_keys = self.full_every is not None and (layer + 1) % self.full_every == 0
        return self.full if has_keys else self

    def build(self, layer: Layer) -> nn.Module:
        layer.refuse(LOST, f"{registry.name_of('attention', self)} compares no queries with keys")
        if isinstance(layer.positions, Rotary | Alibi | T5 | Kerple | Fire):
            raise refuse_positions(registry.name_of("positions", layer.positions))
        return DeltaAttention(self, layer)


def refuse_positions(name: str) -> ValueError:
    return ValueError(
        f"gated-delta knows the order of tokens from its decay and takes no {name} positions; "
        "use model.positions=none, or learned or sinusoidal ones, which are added before, or a "
        "hybrid: model.attention.full_every=4"
    )


class StateCache(LayerCache):
    """The states of all heads after what was read, and the last tokens that later ones mix in."""

    def reset(self) -> None:
        super().reset()
        self.state: Tensor | None = None  # [b, h, d, d]
        self.recent: Tensor | None = None  # [b, tokens, m]

    @property
    def bytes(self) -> int:
        kept = (self.state, self.recent)
        return sum(one.numel() * one.element_size() for one in kept if one is not None)

    def check(self, batch: int) -> None:
        if self.state is not None and self.state.shape[0] != batch:
            raise ValueError(
                f"the cache holds {self.state.shape[0]} texts, and these are tokens of {batch}; "
                "reset the cache before other texts"
            )


class DeltaAttention(nn.Module):
    no_weights = (
        "The delta rule has no attention weights to show: an output is a sum of values whose "
        "factors can be negative and do not add up to 1. In Python, `weights` of the layer has "
        "them."
    )

    def __init__(self, settings: GatedDelta, layer: Layer) -> None:
        super().__init__()
        self.heads = self.kv_heads = settings.heads
        self.head_width = head_width(settings, layer.width)
        inner = self.heads * self.head_width
        # q, k, v, β and α of each head, and the gate, in one product
        self.sizes = [3 * inner, self.heads, self.heads, inner if settings.gate else 0]
        self.project = nn.Linear(layer.width, sum(self.sizes), bias=layer.linear_bias)
        self.taps: nn.Parameter | None = None
        if settings.mixed is not None:
            limit = settings.mixed**-0.5
            # three axes, since it is no matrix: Muon turns matrices
            taps = torch.empty(settings.mixed, 1, 3 * inner).uniform_(-limit, limit)
            self.taps = nn.Parameter(taps)
        rate = torch.empty(self.heads).uniform_(1, LARGEST_RATE)
        self.log_rate = nn.Parameter(rate.log())  # A
        ratio = LARGEST_STEP / SMALLEST_STEP
        step = SMALLEST_STEP * ratio ** torch.empty(self.heads).uniform_()
        self.step_bias = nn.Parameter(step.expm1().log())  # softplus of it is the step
        self.norm = nn.RMSNorm(self.head_width, eps=NORM_EPSILON)
        self.merge = nn.Linear(inner, layer.width, bias=layer.linear_bias)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        *,
        key_padding: Bool[Tensor, "b t"] | None = None,
        cache: LayerCache | None = None,
        options: AttentionOptions | None = None,
    ) -> Float[Tensor, "b t c"]:
        """With a cache, x are the next tokens of the same texts.

        `options` stand for `key_padding`, and are checked already.
        """
        if options is None:
            options = AttentionOptions(key_padding=key_padding)
            options.check(x.shape[0], x.shape[1], self.heads, self.head_width, x.device)
            if cache is not None:
                cache.check(x.shape[0])
        assert cache is None or isinstance(cache, StateCache)
        x, options, order = _tokens_first(x, options)
        given, gate = self._read(x, options, cache)
        out, state = delta.delta(*given, None if cache is None else cache.state)
        if cache is not None:
            cache.state = state.detach()
        out = self.norm(out.transpose(1, 2)).flatten(2)
        out = self.merge(out * F.silu(gate) if self.sizes[-1] else out)
        return out if order is None else _take(out, order.argsort(1))

    def weights(
        self, x: Float[Tensor, "b t c"], options: AttentionOptions
    ) -> Float[Tensor, "b h t t"]:
        """How much of each value is in each output, before norm and gate: no shares of 1."""
        x, options, order = _tokens_first(x, options)
        q, k, _, log_decay, strength = self._read(x, options)[0]
        found = delta.weights(q, k, log_decay, strength)
        if order is None:
            return found
        back = order.argsort(1)
        rows = _take(found.transpose(1, 2), back)
        return _take(rows.permute(0, 3, 2, 1), back).permute(0, 2, 3, 1)

    def new_cache(self) -> StateCache:
        return StateCache()

    def operations(self, context: int) -> float:
        """Of the chunked form in training, for one token of a sample of `context` tokens.

        A triangular system counts half a product: c² / 2 multiplications a column.
        """
        count, size = delta.chunks(context)
        width = self.head_width
        pairs = 2.0 * size**2 * width  # all of one chunk; k·k, q·k and D · u
        system = pairs / 2  # solved again on the way back, and a product for its own gradient
        states = 2.0 * size * width**2  # no gradient for the first state, nor from the last
        each = count * (3 * 3 * pairs + 2 * system + pairs) + (3 * 3 * count - 4) * states
        return self.heads * each / context

    def _read(
        self, x: Tensor, options: AttentionOptions, cache: StateCache | None = None
    ) -> tuple[Given, Tensor]:
        """What the delta rule is given: q, k, v, log decays and strengths; and the gate."""
        _refuse(options)
        qkv, strength, step, gate = self.project(x).split(self.sizes, -1)
        qkv = F.silu(self._mix(qkv, options, cache))
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        wide = torch.promote_types(x.dtype, torch.float32)  # in half, decays near 1 would be 1
        strength = strength.to(wide).sigmoid().transpose(1, 2)
        step = F.softplus(step.to(wide) + self.step_bias)
        log_decay = -(self.log_rate.exp() * step).transpose(1, 2)
        if options.segments is not None:
            documents = options.segments.queries
            first = F.pad(documents.diff() != 0, (1, 0))
            log_decay = log_decay.masked_fill(first[:, None], -torch.inf)
        if options.key_padding is not None:
            padding = options.key_padding[:, None]
            log_decay, strength = (one.masked_fill(padding, 0) for one in (log_decay, strength))
        return (_of_length_1(q), _of_length_1(k), v, log_decay, strength), gate

    def _mix(
        self, x: Float[Tensor, "b t m"], options: AttentionOptions, cache: StateCache | None
    ) -> Float[Tensor, "b t m"]:
        """Each coordinate's weighted sum over the last tokens, those of the cache among them."""
        if self.taps is None:
            return x
        batch, time, coordinates = x.shape
        before = len(self.taps) - 1
        recent = None if cache is None else cache.recent
        if recent is None:
            recent = x.new_zeros(batch, before, coordinates)
        text = torch.cat((recent, x), 1)
        if cache is not None:
            padding = options.key_padding
            places = torch.arange(before, device=x.device).expand(batch, -1)
            last = places + (time if padding is None else (~padding).sum(1, keepdim=True))
            cache.recent = _take(text, last).detach()
        out = torch.zeros_like(x)
        for age, tap in enumerate(self.taps):
            part = text[:, before - age : text.shape[1] - age]
            if options.segments is not None:
                documents = options.segments.queries
                same = F.pad(documents, (age, 0))[:, :time] == documents
                part = part.masked_fill(~same[..., None], 0)
            out = out + tap * part
        return out


def _refuse(options: AttentionOptions) -> None:
    """What a call asks for and this layer does not have."""
    if not options.causal:
        raise ValueError("gated-delta reads a text from its beginning; use causal=True")
    if options.prefix is not None:
        raise ValueError(
            "gated-delta reads a text from its beginning, so no token attends to a later one of a "
            "prefix; leave out prefix"
        )
    for name, given in (
        ("rotary", options.rotary),
        ("biased", options.bias),
        ("tempered", options.temperature),
    ):
        if given is not None:
            raise refuse_positions(name)


def _tokens_first(
    x: Float[Tensor, "b t c"], options: AttentionOptions
) -> tuple[Tensor, AttentionOptions, Int[Tensor, "b t"] | None]:
    """Rows without padding between their tokens: it goes to the end, and what stands there is 0."""
    padding, segments = options.key_padding, options.segments
    if padding is None:
        return x, options, None
    order = padding.int().argsort(dim=1, stable=True)
    if segments is not None:
        documents = segments.queries.expand(len(x), -1).gather(1, order)
        segments = Segments(documents, documents)
    x = _take(x.masked_fill(padding[..., None], 0), order)
    options = replace(options, key_padding=padding.gather(1, order), segments=segments)
    return x, options, order


def _take(x: Float[Tensor, "b t ..."], order: Int[Tensor, "b n"]) -> Float[Tensor, "b n ..."]:
    """For each row the tokens at these places."""
    return x[torch.arange(len(x), device=x.device)[:, None], order]


def _of_length_1(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPSILON)
