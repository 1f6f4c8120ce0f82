"""THE transformer: a decoder-only language model, read from top to bottom.

Axes: b batch, t time, c width, v vocabulary.

    x = embed(tokens) + positions
    for each block:  x = x + attention(norm(x));  x = x + feedforward(norm(x))
    logits = head(norm(x))
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab import registry
from attnlab.attention.cache import Cache, Cached, CacheSettings, LayerCache
from attnlab.attention.delta import GatedDelta
from attnlab.attention.heads import (
    AttentionOptions,
    Gating,
    HeadedAttention,
    HeadSettings,
    Layer,
    LayerSettings,
    Sink,
    ValueResidual,
    head_width,
    rotary_width,
)
from attnlab.attention.norms import Norm, make_norm
from attnlab.attention.own import OwnAttention, OwnScore, headed
from attnlab.attention.positions import Positions, PositionsSettings, Shape
from attnlab.attention.scores import ScaledDot, ScoreSettings
from attnlab.config import choice, refusal, setting, settings
from attnlab.kernels import hardware
from attnlab.models.feedforward import FeedForwardKind, make_feedforward
from attnlab.models.hybrid import check_hybrid
from attnlab.models.initial import initialise
from attnlab.models.loss import head_loss
from attnlab.models.model import Decoder
from attnlab.models.token_positions import check_axes, find_positions

NormPlace = Literal["before", "after", "both"]

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
        because="it counts the keys that a query attends to, including its own",
        none="all keys",
        about="keys a query attends to, including its own; a list repeats over the layers",
    )
    chunk: tuple[int | None, ...] = setting(
        (None,),
        low=1,
        because="it counts positions",
        none="no chunks",
        about="positions of a chunk: a query attends within its own; a list repeats over layers",
    )
    soft_cap: float | None = setting(
        None,
        above=0,
        because="it bounds scores",
        none="no bound",
        about="bound on scores: soft_cap · tanh(score / soft_cap), as in Gemma 2 (50)",
    )
    logit_cap: float | None = setting(
        None,
        above=0,
        because="it bounds logits",
        none="no bound",
        about="the same for the logits of the next token (Gemma 2: 30)",
    )
    sink: Sink | None = setting(
        None,
        none="no sink",
        about="one more score a head, which takes weight and gives nothing: learned, or fixed at 0",
    )
    gate: Gating | None = setting(
        None,
        none="no gate",
        about="sigmoid(W x) times what x attends to, before heads are merged; one a coordinate "
        "(elementwise) or one a head (headwise)",
    )
    value_residual: ValueResidual | None = setting(
        None,
        none="each layer its own",
        about="values mixed with those of the first layer by a learned number: first",
    )
    value_embedding: tuple[bool, ...] = setting(
        (False,),
        about="values mixed with an embedding of the token; a list repeats over the layers",
    )
    shared_kv: tuple[bool, ...] = setting(
        (False,),
        about="keys and values are those of the last layer that makes its own, with the same "
        "window; a list repeats over the layers (false,true: pairs, as in CLA)",
    )
    norm: Norm = setting(
        "rms", about="norm of the parts of a layer: LayerNorm, RMS-norm, or RMS-norm without gains"
    )
    norm_place: NormPlace = setting(
        "before", about="before a part of a layer, after it (OLMo 2), or both (Gemma 2)"
    )
    norm_epsilon: float | None = setting(
        None,
        above=0,
        because="norms divide by its root where a vector is 0",
        none="2^-23, or 1e-5 in LayerNorm",
        about="added to mean squares in norms of layers and heads",
    )
    norm_offset: bool = setting(
        False, about="gains of RMS-norms of layers and heads are 1 + weight (Gemma)"
    )
    norm_heads: bool = setting(
        False, about="RMS-norm on every query and key, so that scores stay bounded"
    )
    head_gains: bool = setting(
        False, about="learned gains of these norms, which all heads share (Qwen3)"
    )
    parallel: bool = setting(
        False, about="attention and feed-forward read the same vectors (GPT-NeoX), not in turn"
    )
    feedforward: FeedForwardKind = setting(
        "gelu",
        about="activation of the feed-forward part; swiglu and geglu have a gate, geglu and "
        "gelu-tanh the approximation with tanh",
    )
    expansion: float = setting(
        4.0, above=0, high=64, about="inner width of the feed-forward part, in widths"
    )
    bias: bool = setting(False, about="biases in the linear layers and in LayerNorm")
    qkv_bias: bool | None = setting(
        None, none="as bias says", about="biases of queries, keys and values (Qwen2)"
    )
    embedding_scale: float | None = setting(
        None,
        above=0,
        because="token vectors are multiplied by it",
        none="no factor",
        about="factor of token vectors before the first layer (Gemma: √width)",
    )
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
        for attention in (self.attention, self.keyed):
            head_width(attention, self.width)  # refuses heads that do not divide
        if self.is_hybrid:
            check_hybrid(self)
        if self.head_gains and not self.norm_heads:
            raise refusal(self, "head_gains", "no query or key is normed; set norm_heads=true")
        if self.norm_offset and self.norm == "layer":
            raise refusal(self, "norm_offset", "it is of RMS-norms; use norm=rms")
        if self.parallel and self.norm_place == "after":
            raise refusal(self, "parallel", "there is no norm before both; use norm_place=before")
        for layer in range(self.depth):
            self.shares_with(layer)  # refuses layers with nothing to share

    def build(self) -> "Transformer":
        return Transformer(self)

    @property
    def keyed(self) -> HeadSettings:
        """The attention of a hybrid's layers with keys; of any other model, of all layers."""
        return self.attention.keyed if isinstance(self.attention, GatedDelta) else self.attention

    @property
    def is_hybrid(self) -> bool:
        return self.keyed is not self.attention

    def attention_of(self, layer: int) -> HeadSettings:
        own = self.attention
        return own.of_layer(layer) if isinstance(own, GatedDelta) else own

    def has_state(self, layer: int) -> bool:
        return isinstance(self.attention_of(layer), GatedDelta)

    def window_of(self, layer: int) -> int | None:
        return self.window[layer % len(self.window)]

    def chunk_of(self, layer: int) -> int | None:
        return self.chunk[layer % len(self.chunk)]

    def shares_with(self, layer: int) -> int | None:
        """The layer whose keys and values this one reads; None: its own."""
        if not self._shares(layer):
            return None
        window, chunk = self.window_of(layer), self.chunk_of(layer)
        for earlier in reversed(range(layer)):
            alike = (self.window_of(earlier), self.chunk_of(earlier)) == (window, chunk)
            if alike and not self._shares(earlier) and self.attention_of(earlier) is self.keyed:
                return earlier
        seen = f"window={window or 'none'} and chunk={chunk or 'none'}"
        raise ValueError(
            f"shared_kv: layer {layer} has no keys and values to share: no layer before it makes "
            f"its own with {seen}; begin the list with false, once for each kind of layer"
        )

    def _shares(self, layer: int) -> bool:
        return self.shared_kv[layer % len(self.shared_kv)]


class Transformer(Decoder[Cache]):
    settings: TransformerSettings

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Embedding(settings.vocabulary, settings.width)
        self.positions: Positions = settings.positions.build(_shape(settings))
        self.scheme = [  # of each layer; None: a state, which knows the order of tokens by itself
            None if settings.has_state(layer) else self.positions.number(layer)
            for layer in range(settings.depth)
        ]
        self.has_axes = any(scheme.axes for scheme in self.positions.of_layers())
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings, layer) for layer in range(settings.depth))
        sources = {layer: settings.shares_with(layer) for layer in range(settings.depth)}
        self.shared = {source for source in sources.values() if source is not None}
        self._refuse_other_rotations(sources)
        self.norm = norm_of(settings)
        self.head = nn.Linear(settings.width, settings.vocabulary, bias=False)
        if settings.tied:
            self.head.weight = self.embed.weight
        own: list[nn.Module] = []
        if isinstance(settings.attention, OwnAttention):
            own = [block.get_submodule("attention") for block in self.blocks]
        initialise(self, settings.depth, flat=settings.initial == "flat", own=own)

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        positions: Int[Tensor, "#b t"] | None = None,
        key_padding: Bool[Tensor, "b t"] | None = None,
        prefix: int | Int[Tensor, " b"] | None = None,
        segments: Int[Tensor, "#b t"] | None = None,
        axes: Int[Tensor, "#b a t"] | None = None,
        cache: Cache | None = None,
        last: bool = False,
        targets: Int[Tensor, "b _t"] | None = None,
    ) -> Float[Tensor, "b _t v"] | Float[Tensor, ""]:
        """Logits for the token after each one, or after the `last` alone.

        With `targets`, the sum of their nats: for a large vocabulary, without all logits at once.

        All tokens attend to the first `prefix` ones of their row. `segments` numbers documents in
        a row: tokens attend to their own, and its positions begin at 0. `axes` are positions by
        which rotations with sections turn (M-RoPE); all else counts tokens.
        """
        hardware.require(self.embed.weight.dtype, tokens.device)
        if axes is not None:
            check_axes(axes, tokens, self.positions.of_layers())
        at = find_positions(tokens, positions=positions, axes=axes, segments=segments, cache=cache)
        if positions is None:
            at.refuse_past(self.longest)
        if isinstance(prefix, int):
            prefix = torch.full((tokens.shape[0],), prefix, device=tokens.device)
        x = self.drop(self.embedded(tokens, at.positions))
        first = list[Tensor]()
        shared: dict[int, Cached | None] = dict.fromkeys(self.shared)
        options = [
            AttentionOptions(
                rotary=at.rotation(scheme, x.dtype),
                bias=scheme.bias(at.positions, at.stop),
                temperature=scheme.temperature(at.positions, x.dtype),
                key_padding=key_padding,
                prefix=prefix,
                segments=at.documents,
                tokens=tokens,
                first_values=first,
                shared=shared,
            )
            for scheme in self.positions.of_layers()
        ]
        of_state = options[0]
        if None in self.scheme:
            of_state = replace(of_state, rotary=None, bias=None, temperature=None)
        self._check(options, tokens, cache)
        for layer, block in enumerate(self.blocks):
            number = self.scheme[layer]
            given = of_state if number is None else options[number]
            x = block(x, given, None if cache is None else cache.layers[layer])
        if cache is not None:
            cache.length = at.stop
            if self.has_axes:
                cache.next = at.next(key_padding, cache.next)
        x = x[:, -1:] if last else x
        if targets is not None:
            return head_loss(self.norm(x), self.head, targets, self.settings.logit_cap)
        return self.logits_of(x)

    def embedded(
        self, tokens: Int[Tensor, "b t"], positions: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "b t c"]:
        """What the first layer reads."""
        x = self.embed(tokens)
        if self.settings.embedding_scale is not None:
            x = x * self.settings.embedding_scale
        return self.positions.add_to(x, positions)

    def logits_of(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t v"]:
        """Of what the last layer leaves."""
        logits = self.head(self.norm(x))
        cap = self.settings.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

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
            if self.settings.chunk_of(layer) is not None:
                window = None  # chunks are counted from the first token
            name = kind if kind != "auto" else "full" if window is None else "ring"
            settings: CacheSettings = registry.load("cache", name)()
            layers.append(settings.build(window))
        return Cache(layers)

    def _check(self, every: list[AttentionOptions], tokens: Tensor, cache: Cache | None) -> None:
        """Once for all layers, which make whatever else goes into attention themselves."""
        shape = _shape(self.settings)
        batch, time = tokens.shape
        read = 0 if cache is None else cache.length
        for options in every:
            options.check(batch, time, shape.heads, shape.head_width, tokens.device, read=read)
        if cache is not None:
            cache.check(batch)
        prefix = every[0].prefix
        if prefix is not None:
            if 0 < read < int(prefix.max()):
                raise ValueError(
                    f"prefix has {int(prefix.max())} and the cache holds {read} tokens: these have "
                    "not attended to the rest of it; give a prefix to the cache in one piece"
                )
            for name in ("window", "chunk"):
                if any(one is not None for one in getattr(self.settings, name)):
                    raise ValueError(
                        f"prefix and model.{name} exclude each other: a query past the {name} "
                        "would attend to keys in two places; leave one out"
                    )

    def _refuse_other_rotations(self, sources: Mapping[int, int | None]) -> None:
        for layer, source in sources.items():
            if source is not None and self.positions.number(layer) != self.positions.number(source):
                raise ValueError(
                    f"shared_kv: layer {layer} would read keys of layer {source}, which are turned "
                    "by other positions; let both lists repeat alike, or leave out one"
                )


class Block(nn.Module):
    def __init__(self, settings: TransformerSettings, layer: int) -> None:
        super().__init__()
        before, after = settings.norm_place != "after", settings.norm_place != "before"
        self.attention_norm = norm_of(settings, before)
        self.attention = make_attention(settings, layer)
        self.attended_norm = norm_of(settings, after)
        self.feedforward_norm = norm_of(settings, before)
        self.feedforward = make_feedforward(
            settings.feedforward, settings.width, settings.expansion, bias=settings.bias
        )
        self.forwarded_norm = norm_of(settings, after)
        self.parallel = settings.parallel
        self.drop = nn.Dropout(settings.dropout)

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        options: AttentionOptions,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        attended = self.attention(self.attention_norm(x), options=options, cache=cache)
        attended = self.drop(self.attended_norm(attended))
        between = x + attended
        inner = self.feedforward(self.feedforward_norm(x if self.parallel else between))
        return between + self.drop(self.forwarded_norm(inner))


def make_attention(settings: TransformerSettings, layer: int) -> nn.Module:
    """Of one layer: ours, or code of a person's own."""
    attention = settings.attention_of(layer)
    if settings.is_hybrid and isinstance(attention, GatedDelta):
        return attention.build(Layer(width=settings.width, linear_bias=settings.bias))
    facts = Layer(
        width=settings.width,
        context=settings.context,
        vocabulary=settings.vocabulary,
        layer=layer,
        positions=settings.positions,
        window=settings.window_of(layer),
        chunk=settings.chunk_of(layer),
        soft_cap=settings.soft_cap,
        sink=settings.sink,
        gate=settings.gate,
        value_residual=settings.value_residual,
        value_embedding=settings.value_embedding[layer % len(settings.value_embedding)],
        shared_kv=settings.shares_with(layer),
        norm_heads=settings.norm_heads,
        head_gains=settings.head_gains,
        norm_epsilon=settings.norm_epsilon,
        norm_offset=settings.norm_offset,
        dropout=settings.attention_dropout,
        linear_bias=settings.bias,
        qkv_bias=settings.qkv_bias,
    )
    if isinstance(attention, LayerSettings):
        if settings.score != ScaledDot():
            name = registry.name_of("score", settings.score)
            raise ValueError(
                f"{registry.name_of('attention', attention)} stands for the score too, so "
                f"model.score={name} would not reach it; leave out model.score"
            )
        return attention.build(facts)
    score = settings.score.build(attention.heads, _shape(settings).head_width)
    if isinstance(settings.score, OwnScore):
        return headed(attention, score, facts)
    return HeadedAttention(attention, score, facts)


def norm_of(settings: TransformerSettings, wanted: bool = True) -> nn.Module:
    """A norm of the model's kind, or none."""
    if not wanted:
        return nn.Identity()
    return make_norm(
        settings.norm,
        settings.width,
        epsilon=settings.norm_epsilon,
        offset=settings.norm_offset,
        bias=settings.bias,
    )


def _shape(settings: TransformerSettings) -> Shape:
    return Shape(
        width=settings.width,
        heads=settings.keyed.heads,
        head_width=rotary_width(settings.keyed, settings.width),
        context=settings.context,
    )
