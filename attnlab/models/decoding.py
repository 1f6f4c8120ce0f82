"""Decoding with little overhead: a standard transformer's step over one new token of each row.

Axes: b batch, c width, k keys, p pairs, v vocabulary.

`Transformer.forward` is the definition. `plan` reads a model once and prepares what a step needs:
addresses of its weights where they lie (nothing is copied), tables of rotations, scratch memory.
Each step is then one call into C (kernels/step.py) for all layers, where PyTorch would make
some thirty operations a layer. Its logits are those of the definition but for rounding.

What is not standard has no plan: code of a person's own, hooks, scores that are no scaled dot
product, values from elsewhere, half precisions, other devices, no compiler. `why_not` says which,
and the model's own forward serves. On CUDA a step is another one (static_step.py).
"""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.attention.cache import Cache, FullCache, Place, RingCache
from attnlab.attention.heads import HeadedAttention
from attnlab.attention.norms import OffsetNorm
from attnlab.attention.positions import (
    AlibiPositions,
    LayeredPositions,
    LearnedPositions,
    Positions,
    RotaryPositions,
    SinusoidalPositions,
)
from attnlab.attention.scores import ScaledDotScore
from attnlab.kernels import native, step
from attnlab.models.feedforward import GeGlu, Gelu, SquaredRelu, SwiGlu, TanhGelu
from attnlab.models.model import LanguageModel, ModelCache
from attnlab.models.transformer import Block, Transformer

ACTIVATIONS: dict[type[nn.Module], str] = {
    Gelu: "gelu",
    TanhGelu: "gelu-tanh",
    SquaredRelu: "squared-relu",
    SwiGlu: "silu",
    GeGlu: "gelu-tanh",
}
POSITIONS = (Positions, LearnedPositions, SinusoidalPositions, RotaryPositions, AlibiPositions)
ROOM = 16  # numbers in the widest vector: they are read in whole ones
NORMS = (nn.Identity, nn.RMSNorm, nn.LayerNorm, OffsetNorm)


def plan(model: LanguageModel, cache: ModelCache | None) -> "Plan | None":
    """For a model and a cache that has read at least one token; None: use `forward`."""
    return None if why_not(model, cache) else Plan(model, cache)  # type: ignore[arg-type]


def why_not(model: LanguageModel, cache: ModelCache | None) -> str | None:
    """Why a model has no plan."""
    if type(model) is not Transformer or type(cache) is not Cache:
        return "only transformers with a cache have one"
    if reason := why_not_standard(model, torch.device("cpu"), (torch.float32, torch.float64)):
        return reason
    if not all(type(layer) in (FullCache, RingCache) for layer in cache.layers):
        return "the cache is of another kind"
    if not cache.length:
        return "the cache has read no token"
    if cache.next is not None:
        return "positions on axes were read"
    return native.why_unavailable()


def why_not_standard(
    model: Transformer, device: torch.device, dtypes: Sequence[torch.dtype]
) -> str | None:
    """What of a transformer is none of STANDARD, or lies elsewhere or in another dtype."""
    for name, module in model.named_modules():
        if type(module) not in STANDARD:
            return f"{name} is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return f"{name or 'the model'} has a hook"
        if module.training:
            return "the model is in training mode"
    first = model.embed.weight
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        plain = type(weight.data) is Tensor and weight.is_contiguous()
        if not plain or weight.device != device:
            return f"{name} does not lie in one piece on the {str(device).upper()}"
        if weight.dtype != first.dtype or weight.dtype not in dtypes:
            return f"{name} is {weight.dtype}"
    if torch.is_autocast_enabled(device.type):
        return "autocast is on"
    for block in model.blocks:
        assert isinstance(block, Block) and isinstance(block.attention, HeadedAttention)
        attention = block.attention
        for kind in ("gate", "embedding", "residual", "shared_kv", "chunk"):
            if getattr(attention, kind) is not None:
                return f"attention has {kind}"
    return "layers share keys and values" if model.shared else None


STANDARD = {
    *(Transformer, Block, HeadedAttention, ScaledDotScore, LayeredPositions),
    *(nn.Linear, nn.Embedding, nn.Dropout, nn.ModuleList, nn.ParameterList),
    *(*ACTIVATIONS, *NORMS, *POSITIONS),
}


class Plan:
    """Logits after one new token of each row, read into the cache; good until the next step.

    The model's weights may change in place, but not move; the batch stays as it is.
    """

    def __init__(self, model: Transformer, cache: Cache) -> None:
        self.model, self.cache = model, cache
        weight = model.embed.weight
        self.dtype = weight.dtype
        self.library = step.library(self.dtype)
        _, layer_type, step_type = step.types(self.dtype)
        self.schemes = list(model.positions.of_layers())
        settings = model.settings
        self.layers = (layer_type * settings.depth)()
        for number, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            self._fill(self.layers[number], block, self.schemes[model.positions.number(number)])
        job = self.job = step_type()
        job.layers, job.depth, job.width = self.layers, settings.depth, settings.width
        self._norm(job.norm, model.norm)
        job.head = step.linear(model.head.weight, None)
        job.cap = settings.logit_cap or 0
        job.threads, job.work_per_thread = torch.get_num_threads(), step.WORK_PER_THREAD
        job.region = native.torch_thread_pool()
        self.windows = [settings.window_of(layer) for layer in range(settings.depth)]
        self.buffers: list[Place | None] = [None] * settings.depth
        self.turns = 0  # positions in the tables of rotations
        self.batch = 0

    @torch.no_grad()
    def __call__(
        self, tokens: Int[Tensor, "b 1"], positions: Int[Tensor, "b 1"]
    ) -> Float[Tensor, "b v"]:
        model, job = self.model, self.job
        self.cache.check(tokens.shape[0])
        if positions.shape != tokens.shape or positions.dtype != torch.long:
            raise ValueError(
                f"positions are {positions.dtype} {list(positions.shape)}; each of the tokens "
                f"{list(tokens.shape)} has one"
            )
        if self.batch != tokens.shape[0]:
            self._scratch(tokens.shape[0])
        if self.cache.length >= self.turns:
            self._turn(2 * self.cache.length + 1)
        x = nn.functional.embedding(tokens, model.embed.weight)
        if model.settings.embedding_scale is not None:
            x = x * model.settings.embedding_scale
        x = model.positions.add_to(x, positions).contiguous()
        positions = positions.contiguous()
        self._place()
        job.x, job.at = x.data_ptr(), positions.data_ptr()
        if self.library.attnlab_step(ctypes.byref(job)):
            raise ValueError(
                f"positions {positions.flatten().tolist()} are not all from 0 to {self.turns - 1}"
            )
        self.cache.length += 1
        return self.logits

    def _fill(self, layer: ctypes.Structure, block: Block, scheme: Positions) -> None:
        attention, forward = block.attention, block.feedforward
        assert isinstance(attention, HeadedAttention)
        assert isinstance(attention.score, ScaledDotScore)
        for name in ("attention", "attended", "feedforward", "forwarded"):
            self._norm(getattr(layer, f"{name}_norm"), block.get_submodule(f"{name}_norm"))
        if attention.norm_heads:
            gains = [None, None] if attention.gains is None else list(attention.gains)
            for name, gain in zip(("query", "key"), gains, strict=True):
                found = attention.norm_epsilon, attention.norm_offset, gain
                self._set(getattr(layer, f"{name}_norm"), "rms", *found)
        for part in (attention, forward):
            for name, one in part.named_children():
                if isinstance(one, nn.Linear):  # project and merge; gate, up and down
                    setattr(layer, name, step.linear(one.weight, one.bias))
        layer.heads, layer.kv_heads = attention.heads, attention.kv_heads
        layer.head_width = attention.head_width
        layer.scale = attention.score.scale or attention.head_width**-0.5
        layer.cap = attention.soft_cap or 0
        layer.sinks = step.address(attention.sinks)
        layer.slopes = step.address(getattr(scheme, "slopes", None))
        layer.activation = step.ACTIVATIONS[ACTIVATIONS[type(forward)]]
        layer.parallel = block.parallel

    def _norm(self, norm: ctypes.Structure, module: nn.Module) -> None:
        if isinstance(module, nn.LayerNorm):
            self._set(norm, "layer", module.eps, 0.0, module.weight, module.bias)
        elif isinstance(module, OffsetNorm):
            self._set(norm, "rms", module.epsilon, 1.0, module.weight)
        elif isinstance(module, nn.RMSNorm):
            assert module.eps is not None
            self._set(norm, "rms", module.eps, 0.0, module.weight)

    def _set(
        self,
        norm: ctypes.Structure,
        kind: str,
        epsilon: float,
        offset: float,
        gains: Tensor | None,
        bias: Tensor | None = None,
    ) -> None:
        norm.kind, norm.epsilon, norm.offset = step.NORMS[kind], epsilon, offset
        norm.gains, norm.bias = step.address(gains), step.address(bias)

    def _scratch(self, batch: int) -> None:
        """Memory for what the parts of a layer hand to each other, and for the logits."""
        job, first = self.job, self.layers[0]
        job.batch, self.batch = batch, batch
        self.logits = torch.empty(batch, job.head.outputs, dtype=self.dtype)
        widths = {
            "normed": job.width,
            "projected": first.project.outputs,
            "attended": first.merge.inputs,
            "gated": first.up.outputs,
            "inner": first.up.outputs,
            "added": job.width,
        }
        self.scratch = {
            name: torch.empty(batch, width, dtype=self.dtype) for name, width in widths.items()
        }
        for name, memory in {**self.scratch, "logits": self.logits}.items():
            setattr(job, name, memory.data_ptr())
        widest = max(job.width, first.merge.inputs, first.up.outputs)
        self.turned = torch.empty(-(-batch // ROOM) * ROOM, widest, dtype=self.dtype)
        job.turned = self.turned.data_ptr()
        job.keys = 0

    def _turn(self, length: int) -> None:
        """Tables of rotations for the positions before `length`."""
        self.turns = length
        tables = [
            one.rotation_of_span(0, length, torch.device("cpu"), self.dtype) for one in self.schemes
        ]
        self.tables = [
            None if one is None else (one.cos[0, 0].contiguous(), one.sin[0, 0].contiguous())
            for one in tables
        ]
        for number, layer in enumerate(self.layers):
            which = self.model.positions.number(number)
            table, rotation = self.tables[which], tables[which]
            if table is not None and rotation is not None:
                layer.cos, layer.sin = table[0].data_ptr(), table[1].data_ptr()
                layer.positions, layer.pairs = table[0].shape
                layer.interleaved = rotation.layout == "interleaved"

    def _place(self) -> None:
        """Room for a token in the cache of every layer, and where it is."""
        longest = 0
        for number, cache in enumerate(self.cache.layers):
            layer, place = self.layers[number], cache.take_place()
            before = self.buffers[number]
            if before is None or before.k is not place.k or before.mask is not place.mask:
                self.buffers[number] = place
                self._point_to(layer, place)
            layer.last = place.last
            window = self.windows[number]
            layer.first = place.first
            if window is not None and window <= place.last - place.first:
                layer.first = place.last + 1 - window
            longest = max(longest, place.last + 1 - layer.first)
        if longest > self.job.keys:
            self.job.keys = -(-2 * longest // ROOM) * ROOM
            heads = self.model.settings.attention.heads
            self.scores = torch.empty(self.batch, heads, self.job.keys, dtype=self.dtype)
            self.job.scores = self.scores.data_ptr()

    def _point_to(self, layer: ctypes.Structure, place: Place) -> None:
        k, v, mask = place.k, place.v, place.mask
        for one in (k, v):  # another model's would be read as this one's
            assert one.shape[::2] == (self.batch, k.shape[2]) and one.dtype == self.dtype
            assert one.shape[1::2] == (layer.kv_heads, layer.head_width)
        layer.k, layer.v, layer.mask = k.data_ptr(), v.data_ptr(), step.address(mask)
        layer.k_row, layer.k_head = k.stride()[:2]
        layer.v_row, layer.v_head = v.stride()[:2]
        layer.mask_row = 0 if mask is None else mask.stride(0)
