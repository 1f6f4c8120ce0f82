"""THE transformer: a decoder-only language model, read from top to bottom.

Axes: b batch, t time, c width, v vocabulary.

    x = embed(tokens) + positions
    for each block:  x = x + attention(norm(x));  x = x + feedforward(norm(x))
    logits = head(norm(x))
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab import registry
from attnlab.attention.cache import Cache, CacheSettings, LayerCache
from attnlab.attention.heads import (
    NORM_EPSILON,
    AttentionOptions,
    HeadedAttention,
    HeadSettings,
    head_width,
)
from attnlab.attention.own import (
    Layer,
    OwnAttention,
    OwnLayer,
    OwnPositionsModule,
    OwnScore,
    OwnScoreModule,
    PlainModule,
    headed,
)
from attnlab.attention.positions import Positions, PositionsSettings, Shape
from attnlab.attention.scores import ScaledDot, ScoreSettings
from attnlab.config import choice, setting, settings
from attnlab.kernels import hardware
from attnlab.models.model import Decoder

LARGEST, DEEPEST = 1 << 20, 1 << 12  # beyond these a width or depth is a slip of the finger
PROBABILITY = "it is a probability"


@settings
class TransformerSettings:
    vocabulary: int = setting(
        256, low=1, high=LARGEST, about="distinct tokens; in a training, those of the tokenizer"
    )
    context: int = setting(
        256, low=1, high=LARGEST, about="tokens of a training text; learned positions end there"
    )
    width: int = setting(
        128, low=1, high=LARGEST, about="d_model: numbers in the vector of a token"
    )
    depth: int = setting(4, low=1, high=DEEPEST, about="layers: an attention and a feed-forward")
    attention: HeadSettings = choice(
        "attention", "multi-head", about="how query heads share key/value heads"
    )
    score: ScoreSettings = choice("score", "scaled-dot", about="how a key is compared with a query")
    positions: PositionsSettings = choice(
        "positions", "rotary", about="how the model knows the order of tokens"
    )
    window: tuple[int | None, ...] = setting(
        (None,),
        low=1,
        because="it counts the keys that a query attends to, its own included",
        none="all keys",
        about="keys a query attends to, its own included; a list repeats over the layers",
    )
    norm: Literal["layer", "rms", "unit"] = setting(
        "rms", about="before each part of a layer: LayerNorm, RMS-norm, or RMS-norm without gains"
    )
    norm_heads: bool = setting(
        False, about="RMS-norm on every query and key, so that scores stay bounded"
    )
    feedforward: Literal["gelu", "swiglu", "squared-relu"] = setting(
        "gelu", about="activation of the feed-forward part"
    )
    expansion: float = setting(
        4.0, above=0, high=64, about="inner width of the feed-forward part, in widths"
    )
    bias: bool = setting(False, about="biases in the linear layers and in LayerNorm")
    tied: bool = setting(True, about="the output layer is the embedding table")
    initial: Literal["deep", "flat"] = setting(
        "deep",
        about="initialisation of what adds to the residual stream: smaller with depth, or not",
    )
    dropout: float = setting(
        0.0,
        low=0,
        below=1,
        because=PROBABILITY,
        about="dropout probability of what is added to the residual stream",
    )
    attention_dropout: float = setting(
        0.0,
        low=0,
        below=1,
        because=PROBABILITY,
        about="dropout probability of the attention weights; slow together with a window",
    )

    def check(self) -> None:
        head_width(self.attention, self.width)  # refuses heads that do not divide

    def build(self) -> "Transformer":
        return Transformer(self)

    def window_of(self, layer: int) -> int | None:
        return self.window[layer % len(self.window)]


class Transformer(Decoder[Cache]):
    settings: TransformerSettings

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Embedding(settings.vocabulary, settings.width)
        self.positions: Positions = settings.positions.build(_shape(settings))
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings, layer) for layer in range(settings.depth))
        self.norm = make_norm(settings)
        self.head = nn.Linear(settings.width, settings.vocabulary, bias=False)
        if settings.tied:
            self.head.weight = self.embed.weight
        self._initialise()

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        positions: Int[Tensor, "#b t"] | None = None,
        key_padding: Bool[Tensor, "b t"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Logits for the token after each one."""
        hardware.require(self.embed.weight.dtype, tokens.device)
        start = 0 if cache is None else cache.length
        stop = start + tokens.shape[1]
        counted = positions is None
        if positions is None:
            self._refuse_past_the_end(stop)
            positions = torch.arange(start, stop, device=tokens.device)[None]
        x = self.drop(self.positions.add_to(self.embed(tokens), positions))
        options = AttentionOptions(
            rotary=self.positions.rotation_of_span(start, stop, tokens.device, x.dtype)
            if counted
            else self.positions.rotation(positions, x.dtype),
            bias=self.positions.bias(),
            key_padding=key_padding,
        )
        self._check(options, tokens, cache)
        for layer, block in enumerate(self.blocks):
            x = block(x, options, None if cache is None else cache.layers[layer])
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.head(self.norm(x))

    @property
    def longest(self) -> int | None:
        return self.positions.longest

    def operations(self, context: int) -> float:
        found = super().operations(context)
        for block in self.blocks:
            assert isinstance(block, Block)
            count = getattr(block.attention, "operations", None)  # a person's own may have none
            found += count(context) if count is not None else 0.0
        return found

    def new_cache(self, kind: str = "auto") -> Cache:
        """Empty caches for decoding: a ring where a layer has a window, else a full one."""
        layers: list[LayerCache] = []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            if own := getattr(block.attention, "new_cache", None):  # of code of a person's own
                layers.append(own())
                continue
            window = self.settings.window_of(layer)
            name = kind if kind != "auto" else "full" if window is None else "ring"
            settings: CacheSettings = registry.load("cache", name)()
            layers.append(settings.build(window))
        return Cache(layers)

    def _check(self, options: AttentionOptions, tokens: Tensor, cache: Cache | None) -> None:
        """Once for all layers, which make whatever else goes into attention themselves."""
        shape = _shape(self.settings)
        batch, time = tokens.shape
        options.check(batch, time, shape.heads, shape.head_width, tokens.device)
        if cache is not None:
            cache.check(batch)

    def _refuse_past_the_end(self, stop: int) -> None:
        longest = self.longest
        if longest is not None and stop > longest:
            raise ValueError(
                f"{stop} tokens are more than the {longest} learned positions; give fewer tokens, "
                "raise context, or use positions that are not learned"
            )

    def _initialise(self) -> None:
        """Normal weights of 0.02; what adds to the residual stream is smaller the deeper it is.

        With `flat`, as in the first minGPT, that is no smaller than the rest.
        """
        flat = self.settings.initial == "flat"
        deep = 0.02 if flat else 0.02 / math.sqrt(2 * self.settings.depth)
        own = isinstance(self.settings.attention, OwnAttention)
        attentions = {block.attention for block in self.blocks}
        theirs = [
            inside
            for module in self.modules()
            if isinstance(module, PlainModule | OwnScoreModule | OwnPositionsModule)
            or (own and module in attentions and not isinstance(module, HeadedAttention | OwnLayer))
            for inside in module.modules()
        ]
        for name, module in self.named_modules():
            if any(module is one for one in theirs):  # their code begins as it wants to
                continue
            if isinstance(module, nn.Linear | nn.Embedding):
                into_stream = name.endswith(("merge", "down"))
                nn.init.normal_(module.weight, std=deep if into_stream else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


class Block(nn.Module):
    def __init__(self, settings: TransformerSettings, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(settings)
        self.attention = make_attention(settings, layer)
        self.feedforward_norm = make_norm(settings)
        self.feedforward = _FEEDFORWARDS[settings.feedforward](settings)
        self.drop = nn.Dropout(settings.dropout)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        options: AttentionOptions,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        attended = self.attention(self.attention_norm(x), options=options, cache=cache)
        x = x + self.drop(attended)
        return x + self.drop(self.feedforward(self.feedforward_norm(x)))


def make_attention(settings: TransformerSettings, layer: int) -> nn.Module:
    """Of one layer: ours, or code of a person's own."""
    facts = Layer(
        width=settings.width,
        context=settings.context,
        layer=layer,
        window=settings.window_of(layer),
        linear_bias=settings.bias,
        norm_heads=settings.norm_heads,
        dropout=settings.attention_dropout,
    )
    if isinstance(settings.attention, OwnAttention):
        if not isinstance(settings.score, ScaledDot):
            name = registry.name_of("score", settings.score)
            raise ValueError(
                f"{settings.attention.option} stands for the score too, so model.score={name} "
                "would not reach it; leave out model.score"
            )
        return settings.attention.build(facts)
    score = settings.score.build(settings.attention.heads, _shape(settings).head_width)
    if isinstance(settings.score, OwnScore):
        return headed(settings.attention, score, facts)
    return HeadedAttention(
        settings.attention,
        score,
        width=facts.width,
        window=facts.window,
        linear_bias=facts.linear_bias,
        norm_heads=facts.norm_heads,
        dropout=facts.dropout,
    )


class FeedForward(nn.Module):
    """down(activation(up(x)))"""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        inner = max(round(settings.expansion * settings.width), 1)
        self.up = nn.Linear(settings.width, inner, bias=settings.bias)
        self.down = nn.Linear(inner, settings.width, bias=settings.bias)


class Gelu(FeedForward):
    """down(gelu(up(x)))"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.gelu(self.up(x)))


class SquaredRelu(FeedForward):
    """down(relu(up(x))²)"""

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.relu(self.up(x)).square())


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x)); 2/3 of the inner width, so that it has Gelu's parameters."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        inner = max(round(settings.expansion * settings.width * 2 / 3), 1)
        self.gate = nn.Linear(settings.width, inner, bias=settings.bias)
        self.up = nn.Linear(settings.width, inner, bias=settings.bias)
        self.down = nn.Linear(inner, settings.width, bias=settings.bias)

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))


_FEEDFORWARDS = {"gelu": Gelu, "swiglu": SwiGlu, "squared-relu": SquaredRelu}


def make_norm(settings: TransformerSettings) -> nn.Module:
    if settings.norm != "layer":
        affine = settings.norm == "rms"
        return nn.RMSNorm(settings.width, eps=NORM_EPSILON, elementwise_affine=affine)
    return nn.LayerNorm(settings.width, bias=settings.bias)


def _shape(settings: TransformerSettings) -> Shape:
    return Shape(
        width=settings.width,
        heads=settings.attention.heads,
        head_width=head_width(settings.attention, settings.width),
        context=settings.context,
    )
