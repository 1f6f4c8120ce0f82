"""Transformers of attnlab for `transformers`, in plain PyTorch: this file needs no attnlab.

Axes: b batch, h query heads, g key/value heads, t new tokens, k all tokens so far, d head width,
c width, v vocabulary.

    x = embed(tokens) + positions
    for each block:  x = x + attention(norm(x));  x = x + feedforward(norm(x))
    logits = head(norm(x))

Attention is the dense definition, O(t · k) in time and memory. What differs from model to model
stands in config.json: `settings` as attnlab has them, `layers` with what differs between layers,
and the rates of rotations as numbers.
"""

# mypy: disable-error-code="attr-defined,call-arg,misc,assignment,arg-type"
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast


class AttnlabConfig(PretrainedConfig):
    model_type = "attnlab"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        layers: list[dict[str, Any]] | None = None,
        rotations: list[dict[str, Any]] | None = None,
        slopes: list[float] | None = None,
        vocab_size: int = 256,
        hidden_size: int = 128,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 4,
        head_dim: int = 32,
        intermediate_size: int = 512,
        max_position_embeddings: int = 256,
        norm_epsilon: float = 1e-6,
        score_scale: float = 1.0,
        qkv_bias: bool = False,
        tie_word_embeddings: bool = True,
        use_cache: bool = True,
        **others: Any,
    ) -> None:
        self.settings, self.layers = settings or {}, layers or []
        self.rotations, self.slopes = rotations or [], slopes
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads, self.num_key_value_heads = (
            num_attention_heads,
            num_key_value_heads,
        )
        self.head_dim, self.intermediate_size = head_dim, intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.norm_epsilon, self.score_scale, self.qkv_bias = norm_epsilon, score_scale, qkv_bias
        self.use_cache = use_cache
        super().__init__(tie_word_embeddings=tie_word_embeddings, **others)


class Norm(nn.Module):
    """LayerNorm, or RMS-norm with gains, with gains 1 + weight, or without gains."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.kind, self.epsilon = config.settings["norm"], config.norm_epsilon
        self.offset = float(config.settings["norm_offset"])
        width = config.hidden_size
        self.weight = nn.Parameter(torch.ones(width)) if self.kind != "unit" else None
        has_bias = self.kind == "layer" and config.settings["bias"]
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)
        gains = None if self.weight is None else self.weight + self.offset
        return F.rms_norm(x, x.shape[-1:], gains, self.epsilon)


class FeedForward(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.kind, bias = config.settings["feedforward"], config.settings["bias"]
        width, inner = config.hidden_size, config.intermediate_size
        if self.kind in ("swiglu", "geglu"):
            self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        if self.kind == "swiglu":
            up = F.silu(self.gate(x)) * up
        elif self.kind == "geglu":
            up = F.gelu(self.gate(x), approximate="tanh") * up
        elif self.kind == "squared-relu":
            up = F.relu(up).square()
        else:
            up = F.gelu(up, approximate="tanh" if self.kind == "gelu-tanh" else "none")
        return self.down(up)


class Score(nn.Module):
    """Of each query with each key, before caps, biases and masks."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        score, heads, width = config.settings["score"], config.num_attention_heads, config.head_dim
        self.kind = score["name"]
        self.factor = config.score_scale
        if self.kind == "multiplicative":
            self.matrix = nn.Parameter(torch.empty(heads, width, width))
        elif self.kind == "concatenated":
            self.for_key = nn.Parameter(torch.empty(heads, width))
            self.for_query = nn.Parameter(torch.empty(heads, width))
        elif self.kind == "additive":
            inner = score["width"] or width
            self.for_key = nn.Parameter(torch.empty(heads, width, inner))
            self.for_query = nn.Parameter(torch.empty(heads, width, inner))
            self.outer = nn.Parameter(torch.empty(heads, inner))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if self.kind == "concatenated":
            of_keys = (k * self.for_key[:, None]).sum(-1)[:, :, None]
            return of_keys + (q * self.for_query[:, None]).sum(-1, keepdim=True)
        if self.kind == "additive":
            inner = (q @ self.for_query)[:, :, :, None] + (k @ self.for_key)[:, :, None]
            return torch.einsum("bhqks,hs->bhqk", inner.tanh(), self.outer)
        if self.kind == "multiplicative":
            q = q @ self.matrix.transpose(-1, -2)
        return q @ k.transpose(-1, -2) * self.factor


class Gate(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        each = config.head_dim if config.settings["gate"] == "elementwise" else 1
        bias = config.settings["bias"]
        self.project = nn.Linear(config.hidden_size, self.heads * each, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2).sigmoid()


class TokenValues(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.num_key_value_heads * config.head_dim
        self.table = nn.Embedding(config.vocab_size, width)
        self.parts = nn.Parameter(torch.empty(2))

    def forward(self, v: Tensor, tokens: Tensor) -> Tensor:
        own = self.table(tokens).unflatten(-1, (v.shape[1], -1)).transpose(1, 2)
        return self.parts[0] * v + self.parts[1] * own


class FirstValues(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.empty(1)) if layer else None

    def forward(self, v: Tensor, first: list[Tensor]) -> Tensor:
        if self.part is None:
            first.append(v)
            return v
        return v + self.part * (first[0] - v)


class Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.config, self.layer, self.facts = config, layer, config.layers[layer]
        settings, heads = config.settings, config.num_attention_heads
        shares = self.facts["shared_kv"] is not None
        own = 0 if shares else config.num_key_value_heads
        self.counts = [heads, own, own]
        inner = sum(self.counts) * config.head_dim
        self.project = nn.Linear(config.hidden_size, inner, bias=config.qkv_bias)
        self.merge = nn.Linear(heads * config.head_dim, config.hidden_size, bias=settings["bias"])
        self.score = Score(config)
        self.gains = None
        if settings["head_gains"]:
            made = [torch.empty(config.head_dim) for _ in range(1 if shares else 2)]
            self.gains = nn.ParameterList([nn.Parameter(one) for one in made])
        learned = settings["sink"] == "learned"
        self.sinks = nn.Parameter(torch.empty(heads)) if learned else None
        self.gate = Gate(config) if settings["gate"] is not None else None
        self.embedding = self.residual = None
        if not shares and self.facts["value_embedding"]:
            self.embedding = TokenValues(config)
        if not shares and settings["value_residual"] is not None:
            self.residual = FirstValues(layer)

    def forward(self, x: Tensor, around: "Around") -> Tensor:
        q, k, v = self.split(x)
        q = turn(q, around.rotations[self.facts["rotation"]], around.layout)
        if around.temperature is not None and self.facts["tempered"]:
            q = q * around.temperature.to(q.dtype)
        if self.facts["shared_kv"] is not None:
            k, v = around.kept[self.facts["shared_kv"]]
        else:
            if self.embedding is not None:
                v = self.embedding(v, around.tokens)
            if self.residual is not None:
                v = self.residual(v, around.first)
            k = turn(k, around.rotations[self.facts["rotation"]], around.layout)
            if around.cache is not None:
                k, v = around.cache.update(k, v, self.layer)
            around.kept[self.layer] = k, v
        out = self.attended(q, k, v, around)
        if self.gate is not None:
            out = out * self.gate(x)
        return self.merge(out.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> list[Tensor]:
        settings = self.config.settings
        heads = self.project(x).unflatten(-1, (-1, self.config.head_dim))
        q, k, v = heads.split(self.counts, dim=2)
        if settings["norm_heads"]:
            epsilon, offset = self.config.norm_epsilon_of_heads, float(settings["norm_offset"])
            q, k = (F.rms_norm(one, one.shape[-1:], None, epsilon) for one in (q, k))
            if self.gains is not None:
                q = q * (self.gains[0] + offset)
                k = k * (self.gains[1] + offset) if len(self.gains) > 1 else k
        return [one.transpose(1, 2) for one in (q, k, v)]

    def attended(self, q: Tensor, k: Tensor, v: Tensor, around: "Around") -> Tensor:
        settings, group = self.config.settings, q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = self.score(q, k)
        cap = settings["soft_cap"]
        if cap is not None:
            scores = cap * (scores / cap).tanh()
        distance = around.queries[:, None] - around.keys
        if self.config.slopes is not None:
            slopes = torch.tensor(self.config.slopes, device=q.device, dtype=scores.dtype)
            scores = scores - slopes[:, None, None] * distance.to(scores.dtype)
        seen = (distance >= 0)[None] & around.present[:, None]
        if self.facts["window"] is not None:
            seen = seen & (distance < self.facts["window"])
        if self.facts["chunk"] is not None:
            at, of = around.positions, around.positions[:, -q.shape[2] :]
            chunk = self.facts["chunk"]
            seen = seen & (at[:, None] // chunk == of[:, :, None] // chunk)
        seen = seen[:, None]
        blind = ~seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~seen, -torch.inf).masked_fill(blind, 0)
        if settings["sink"] is not None:
            sinks = torch.zeros_like(scores[:1, :, :1, 0]) if self.sinks is None else self.sinks
            sink = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1).to(scores.dtype)
            weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return weights.masked_fill(blind, 0) @ v


def turn(x: Tensor, rotation: tuple[Tensor, Tensor] | None, layout: str | None) -> Tensor:
    """The first 2p coordinates turned by angles [b, 1, t, p]; None: as it is."""
    if rotation is None:
        return x
    cos, sin = rotation
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs].to(cos.dtype), x[..., 2 * pairs :]
    if layout == "interleaved":
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :pairs], turned[..., pairs:]
    parts = first * cos - second * sin, second * cos + first * sin
    out = torch.stack(parts, -1).flatten(-2) if layout == "interleaved" else torch.cat(parts, -1)
    return torch.cat((out.to(x.dtype), rest), -1)


class Block(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        place = config.settings["norm_place"]
        before, after = place != "after", place != "before"
        self.attention = Attention(config, layer)
        self.feedforward = FeedForward(config)
        self.attention_norm = Norm(config) if before else nn.Identity()
        self.attended_norm = Norm(config) if after else nn.Identity()
        self.feedforward_norm = Norm(config) if before else nn.Identity()
        self.forwarded_norm = Norm(config) if after else nn.Identity()
        self.parallel = config.settings["parallel"]

    def forward(self, x: Tensor, around: "Around") -> Tensor:
        between = x + self.attended_norm(self.attention(self.attention_norm(x), around))
        inner = self.feedforward(self.feedforward_norm(x if self.parallel else between))
        return between + self.forwarded_norm(inner)


class Around:
    """What all layers of one call share."""

    def __init__(
        self, config: Any, tokens: Tensor, mask: Tensor | None, cache: Any, dtype: torch.dtype
    ) -> None:
        self.tokens, self.cache = tokens, cache
        self.first: list[Tensor] = []
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        read = 0 if cache is None else cache.get_seq_length()
        time, device = tokens.shape[1], tokens.device
        if mask is None:
            mask = torch.ones(tokens.shape[0], read + time, device=device)
        if mask.ndim != 2 or mask.shape[1] != read + time:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}; it is [batch, {read + time}], "
                "with 0 for padding"
            )
        self.present = mask.bool()
        # of all tokens so far, counted from the first that is no padding
        self.positions = (self.present.long().cumsum(-1) - 1).clamp(min=0)
        self.keys = torch.arange(read + time, device=device)
        self.queries = self.keys[read:]
        new = self.positions[:, read:]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.layout = config.settings["positions"].get("layout")
        self.rotations: dict[int | None, tuple[Tensor, Tensor] | None] = {None: None}
        for number, one in enumerate(config.rotations):
            rates = torch.tensor(one["rates"], device=device, dtype=torch.float64)
            angles = (new[..., None].to(torch.float64) * rates)[:, None]
            cos, sin = angles.cos() * one["length"], angles.sin() * one["length"]
            self.rotations[number] = cos.to(wide), sin.to(wide)
        growth, self.temperature = config.settings["positions"].get("temperature"), None
        if growth is not None:
            steps = (new + 1) // config.settings["positions"]["temperature_step"]
            self.temperature = (1 + growth * steps.to(torch.float64).log1p())[:, None, :, None]
        self.new = new


class Table(nn.Module):
    """Learned positions."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(config.max_position_embeddings, config.hidden_size)


class AttnlabForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = AttnlabConfig
    base_model_prefix = ""
    _tied_weights_keys: ClassVar[dict[str, str]] = {"head.weight": "embed.weight"}
    _no_split_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for one in config.layers:
            one.setdefault("tempered", False)
        config.norm_epsilon_of_heads = config.settings["norm_epsilon"] or 2.0**-23
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        kind = config.settings["positions"]["name"]
        self.positions = Table(config) if kind == "learned" else None
        self.blocks = nn.ModuleList(Block(config, n) for n in range(config.num_hidden_layers))
        self.norm = Norm(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.head = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        config = self.config
        dtype = self.embed.weight.dtype
        around = Around(config, input_ids, attention_mask, past_key_values, dtype)
        x = self.embed(input_ids)
        if config.settings["embedding_scale"] is not None:
            x = x * config.settings["embedding_scale"]
        x = x + self.added(around, x)
        for block in self.blocks:
            x = block(x, around)
        if logits_to_keep:
            x = x[:, -logits_to_keep:]
        logits, cap = self.head(self.norm(x)), config.settings["logit_cap"]
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            wanted = F.pad(labels, (0, 1), value=-100)[:, 1:].flatten()
            loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=-100)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def added(self, around: "Around", x: Tensor) -> Tensor | float:
        """What is added to token vectors for their positions."""
        positions = self.config.settings["positions"]
        if self.positions is not None:
            last, there = int(around.new.max()), self.config.max_position_embeddings
            if last >= there:
                raise ValueError(f"{last + 1} tokens are more than the {there} learned positions")
            return self.positions.table(around.new)
        if positions["name"] != "sinusoidal":
            return 0.0
        width = self.config.hidden_size
        powers = torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width
        angles = around.new[..., None].to(torch.float64) * positions["base"] ** -powers
        found = torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]
        return found.to(x.dtype)
