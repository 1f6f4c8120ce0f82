"""Attention, scores and positions of a person's own: `model.attention=mine.py:Mine`.

Axes: b batch, t time, c model width, h heads, d head width.

What their code is follows from its signature:

    forward(x, *, options, cache)       the interface of HeadedAttention, which keeps a KV cache
    forward(x)                          x [b, t, c] → y [b, t, c]
    forward(q, k, v), f(q, k, v)        each [b, h, t, d] → [b, h, t, d], between our projections

The last two may name `causal`, `key_padding`, `rotary`, `bias` or `window` as well, and are given
them. Code that takes no `key_padding` reads each row without its padding. Code without a cache of
ours reads the whole text again for every token: slow, and right for whatever is causal.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.cache import LayerCache
from attnlab.attention.heads import (
    AttentionOptions,
    HeadedAttention,
    Layer,
    MultiHead,
    head_width,
)
from attnlab.attention.positions import Positions, Shape
from attnlab.attention.scores import Operations, Score
from attnlab.attention.text_cache import TextCache
from attnlab.code.own import CONFIG, NAMES, OwnCode
from attnlab.code.running import defined_at, running
from attnlab.config import setting, settings
from attnlab.kernels import LinearBias, Request, Rotation

# what code may take by name when it is called
GIVEN = frozenset({"causal", "is_causal", "key_padding", "rotary", "bias", "window", "dropout"})
# settings that only our own modules have: code may use these names for something else
OURS = ("gate", "value_residual", "value_embedding", "shared_kv", "positions", "vocabulary")
NEW = ("chunk", "soft_cap", "sink")  # given only where the model has them: a default may be theirs
# how people call queries, keys and values
QKV = tuple(re.compile(name) for name in ("q|quer(y|ies)", "k|keys?", "v|vals?|values?"))


@settings
class OwnAttention(OwnCode):
    """A class or a function in place of an attention of ours."""

    key: ClassVar[str] = "model.attention"

    heads: int = setting(4, low=1, about="query heads, given to the code if it asks for them")
    head_width: int | None = setting(None, low=1, none="width / heads", about="of each head")

    @property
    def kv_heads(self) -> int:
        return self.heads

    def build(self, layer: Layer) -> nn.Module:
        width = head_width(self, layer.width)
        known = {name: one for name, one in vars(layer).items() if name not in OURS}
        known = {name: one for name, one in known.items() if name not in NEW or one is not None}
        known |= {"heads": self.heads, "kv_heads": self.heads, "head_width": width}
        known |= {"bias": layer.linear_bias, "causal": True, "is_causal": True}
        found = self.load()
        if _takes_qkv(found):
            return headed(self, OwnScoreModule(self.call(), self), layer)
        is_made = not _takes_tensor(found, known)
        made: Any = self.make(known) if is_made else self.call()
        if not callable(made):
            raise ValueError(f"{self.option} makes a {type(made).__name__}; it must be a module")
        asked = self.asked(known) if is_made else frozenset()
        if _takes_qkv(made):
            return headed(self, OwnScoreModule(made, self, asked), layer)
        takes = _parameters(made)
        # norm_heads and qkv_bias are of our projections, which it replaces
        for name in ("window", "chunk", "soft_cap", "sink", "dropout"):
            _refuse_lost(self.option, name, getattr(layer, name), asked | takes.keys())
        layer.refuse(
            ("gate", "value_residual", "value_embedding", "shared_kv"),
            f"{self.option} stands in place of our projections",
        )
        if {"options", "cache"} <= takes.keys():
            return made if isinstance(made, nn.Module) else _Function(made)
        return OwnLayer(PlainModule(made, self, layer), self.option)


@settings
class OwnScore(OwnCode):
    """A function of queries, keys and values, or a class of such, between our projections."""

    key: ClassVar[str] = "model.score"

    def build(self, heads: int, head_width: int) -> Score:
        found = self.load()
        known = {"heads": heads, "head_width": head_width}
        made = self.call() if _takes_qkv(found) else self.make(known)
        if not _takes_qkv(made):
            raise ValueError(
                f"{self.option} is no function of q, k and v; name its parameters so"
                f"{defined_at(made)}"
            )
        return OwnScoreModule(made, self)


@settings
class OwnPositions(OwnCode):
    """A class with add_to, rotation or bias, as ours have; or a module x → x with positions."""

    key: ClassVar[str] = "model.positions"

    def build(self, shape: Shape) -> Positions:
        found = self.load()
        known = vars(shape)
        made = self.call() if _takes_tensor(found, known) else self.make(known)
        return OwnPositionsModule(made, self)


def headed(settings: Any, score: Score, layer: Layer) -> nn.Module:
    """Our projections around a score of a person's own."""
    layer.refuse(
        ("value_residual", "value_embedding", "shared_kv"),
        "code of q, k and v reads a text again for every token, and row by row beside padding, "
        "with nothing of the tokens or of other layers",
    )
    if isinstance(settings, OwnAttention):
        settings = MultiHead(heads=settings.heads, head_width=settings.head_width)
    attention = HeadedAttention(settings, score, layer)
    return OwnLayer(attention, score.name if isinstance(score, OwnScoreModule) else "")


class OwnLayer(nn.Module):
    """An attention without a KV cache: `inner` reads x and options, the whole text at once."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.inner, self.name = inner, name

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        *,
        options: AttentionOptions,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        new = x.shape[1]
        self._refuse_lost_options(options, cache)
        if isinstance(cache, TextCache):
            x, options = cache.extend(x, options)
        out = self._read(x, options)
        return out[:, out.shape[1] - new :]

    def new_cache(self) -> TextCache:
        return TextCache()

    def weights(self, x: Tensor, options: AttentionOptions) -> Float[Tensor, "b h t t"]:
        """How much each token takes of each other token, where the code can be asked for it."""
        if isinstance(self.inner, HeadedAttention):
            return self.inner.weights(x, options)
        raise ValueError(
            f"{self.name} turns vectors into vectors and shows no weights; a function of q, k and "
            "v does"
        )

    def operations(self, context: int) -> float:
        """Measured: products of matrices in one reading, without those of its linear layers."""
        weight = next(self.parameters(), torch.zeros(()))
        linear = [one for one in self.modules() if isinstance(one, nn.Linear)]
        x = torch.zeros(1, context, _width(self.inner), dtype=weight.dtype, device=weight.device)
        turned = Rotation(x.new_ones(1, 1, context, 1), x.new_zeros(1, 1, context, 1))
        asked = "rotary" in getattr(self.inner, "takes", ())
        options = AttentionOptions(rotary=turned if asked else None)
        found = count_operations(lambda: self._read(x, options)) / context
        rest = found - 2.0 * sum(one.weight.numel() for one in linear)
        return 3.0 * max(rest, 0.0)

    def _refuse_lost_options(self, options: AttentionOptions, cache: LayerCache | None) -> None:
        """What would not reach the code, or not be that of a text that is put together again."""
        for name in ("segments", "prefix"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"{self.name} is not given {name}, so every row is one text that is read from "
                    "left to right; leave it out, or use an attention of ours"
                )
        if options.temperature is not None:
            raise ValueError(
                f"{self.name} is not given model.positions.temperature; leave it out, or use an "
                "attention of ours"
            )
        whole = cache is None and options.key_padding is None
        if isinstance(options.bias, Tensor) and not whole:
            raise ValueError(
                f"{self.name} reads each text from its beginning, and the model's positions bias "
                "scores by the position of a query, for the tokens of one call without padding; "
                "use positions=kerple or t5, which depend on the distance alone"
            )

    def _read(self, x: Tensor, options: AttentionOptions) -> Tensor:
        padding = options.key_padding
        if padding is None or "key_padding" in getattr(self.inner, "takes", ()):
            return self.inner(x, options=options)
        out = torch.zeros_like(x)
        for row in range(len(x)):
            there = ~padding[row]
            if there.any():
                rotary = _row(options.rotary, row, there)
                alone = replace(options, key_padding=None, rotary=rotary, tokens=None)
                out[row, there] = self.inner(x[row : row + 1, there], options=alone)[0]
        return out


class PlainModule(nn.Module):
    """x → y of a person's own, given what its signature names."""

    def __init__(self, inner: Callable[..., Any], settings: OwnCode, layer: Layer) -> None:
        super().__init__()
        self.inner, self.name, self.layer = inner, settings.option, layer
        self.takes, self.files = _parameters(inner), settings.files()
        _refuse_unknown(self.name, inner, 1, GIVEN)

    def forward(self, x: Tensor, *, options: AttentionOptions) -> Tensor:
        given = {
            "causal": options.causal,
            "is_causal": options.causal,
            "key_padding": options.key_padding,
            "rotary": options.rotary,
            "bias": options.bias,
            "window": self.layer.window,
            "dropout": self.layer.dropout if self.training else 0.0,
        }
        for name in ("rotary", "bias"):
            if given[name] is not None and name not in self.takes:
                raise ValueError(
                    f"{self.name} takes no {name!r}, so the model's positions would not reach it; "
                    "write model.positions=none if it has positions of its own, or learned or "
                    "sinusoidal, which are added before"
                )
        named = {name: one for name, one in given.items() if name in self.takes}
        with running(f"{self.name} failed", self.files):
            out = self.inner(x, **named)
        return tensor_like(x, out, self.inner, self.name)


class OwnScoreModule(Score):
    """Queries, keys and values of equal heads, to a person's own function."""

    def __init__(
        self, inner: Callable[..., Any], settings: OwnCode, asked: Set[str] = frozenset()
    ) -> None:
        super().__init__()
        self.inner, self.name = inner, settings.option
        self.takes, self.files = _parameters(inner), settings.files()
        self.asked = frozenset(asked)  # when it was made
        _refuse_unknown(self.name, inner, 3, GIVEN - {"key_padding", "rotary"})

    def attend(self, request: Request) -> Float[Tensor, "b h q e"]:
        return self._of_values(request, self._per_head(request, request.v))

    def weights(self, request: Request) -> Float[Tensor, "b h q k"]:
        """Values that are the rows of an identity come out as weights, of a weighted sum."""
        values = self._per_head(request, request.v)
        ones = torch.eye(values.shape[2], dtype=values.dtype, device=values.device)
        try:
            found = self._of_values(request, ones.expand(*values.shape[:2], *ones.shape))
        except ValueError as error:
            raise ValueError(f"{self.name} shows no weights: {error}") from None
        out = self._of_values(request, values)
        if not torch.allclose(found @ values, out, rtol=1e-3, atol=1e-4 * float(out.abs().max())):
            raise ValueError(
                f"{self.name} shows no weights: what it gives is no weighted sum of the values"
            )
        return found

    def _per_head(self, request: Request, one: Tensor) -> Tensor:
        """Keys or values for each query head."""
        return one.repeat_interleave(request.q.shape[1] // one.shape[1], 1)

    def _of_values(self, request: Request, values: Tensor) -> Tensor:
        changes = {name: getattr(request, name) for name in ("window", "chunk", "soft_cap")}
        changes |= {"sink": request.sinks is not None, "dropout": request.dropout}
        for name, value in changes.items():
            _refuse_lost(self.name, name, value, self.asked | self.takes.keys())
        bias = request.dense_bias()
        if bias is not None and "bias" not in self.takes:
            raise ValueError(
                f"{self.name} takes no 'bias', so positions that bias scores would not reach it; "
                "use rotary ones, or learned or sinusoidal ones"
            )
        given = {
            "causal": request.causal,
            "is_causal": request.causal,
            "window": request.window,
            "dropout": request.dropout,
            "bias": bias,
        }
        named = {name: one for name, one in given.items() if name in self.takes}
        with running(f"{self.name} failed", self.files):
            out = self.inner(request.q, self._per_head(request, request.k), values, **named)
        wanted = values.new_empty(*request.q.shape[:3], values.shape[3])
        return tensor_like(wanted, out, self.inner, self.name)

    def operations(self, head_width: int, keys: float) -> Operations:
        return Operations(forward=4.0 * head_width * keys)


class OwnPositionsModule(Positions):
    """Whichever of the three answers the code gives; the others are "nothing"."""

    def __init__(self, inner: Any, settings: OwnCode) -> None:
        super().__init__()
        self.inner, self.name = inner, settings.option
        self.files = settings.files()
        self.longest = getattr(inner, "longest", None)
        self._plain = not any(hasattr(inner, one) for one in ("add_to", "rotation", "bias"))
        if self._plain and not callable(inner):
            raise ValueError(
                f"{self.name} has none of add_to, rotation and bias, and cannot be called"
            )

    def add_to(
        self, x: Float[Tensor, "b t c"], positions: Int[Tensor, "#b t"]
    ) -> Float[Tensor, "b t c"]:
        if not self._plain:
            return x if not hasattr(self.inner, "add_to") else self._call("add_to", x, positions)
        if "positions" in _parameters(self.inner):
            return tensor_like(x, self._call("", x, positions=positions), self.inner, self.name)
        out = torch.empty_like(x)  # it counts from 0 itself: each row stands at its place
        for row in range(len(x)):
            at = positions[row if len(positions) > 1 else 0].clamp(min=0)
            text = x.new_zeros(1, int(at.max()) + 1, x.shape[2]).index_copy(1, at, x[row : row + 1])
            out[row] = tensor_like(text, self._call("", text), self.inner, self.name)[0, at]
        return out

    def rotation(self, positions: Int[Tensor, "#b t"], dtype: torch.dtype) -> Rotation | None:
        found: Rotation | None = None
        if hasattr(self.inner, "rotation"):
            found = self._call("rotation", positions, dtype)
        return found

    def bias(self, positions: Int[Tensor, "#b t"], keys: int) -> LinearBias | None:
        found: LinearBias | None = self._call("bias") if hasattr(self.inner, "bias") else None
        return found

    def _call(self, method: str, *given: Any, **named: Any) -> Any:
        with running(f"{self.name} failed", self.files):
            call = getattr(self.inner, method) if method else self.inner
            return call(*given, **named)


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any, **named: Any) -> Tensor:
        return self.function(*given, **named)


def count_operations(call: Callable[[], object]) -> float:
    """In products of matrices; those of PyTorch's own attention are not counted on a CPU."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        call()
    return float(counter.get_total_flops())


def tensor_like(wanted: Tensor, out: Any, code: Any, name: str) -> Tensor:
    """What their code has made, if it can stand for this; of several outputs the first counts."""
    out = out[0] if isinstance(out, tuple | list) and out else out
    if not isinstance(out, Tensor) or out.shape != wanted.shape:
        shown = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"{name} gives {shown}, and must give {list(wanted.shape)}{defined_at(code)}"
        )
    if out.device != wanted.device or not (out.dtype == wanted.dtype or _casts(wanted, out)):
        raise ValueError(
            f"{name} gives {numbers(out)}, and must give {numbers(wanted)}{defined_at(code)}"
        )
    return out


def _casts(wanted: Tensor, out: Tensor) -> bool:
    """Whether autocast, which the meta device has not, takes the one type for the other."""
    narrow = {wanted.dtype, out.dtype} <= {torch.float32, torch.bfloat16, torch.float16}
    kind = wanted.device.type
    return narrow and kind != "meta" and torch.is_autocast_enabled(kind)


def numbers(one: Tensor) -> str:
    """Such as "float32 on cpu"."""
    return f"{str(one.dtype).removeprefix('torch.')} on {one.device}"


def _parameters(code: Any) -> dict[str, inspect.Parameter]:
    forward = code.forward if isinstance(code, nn.Module) else code
    try:
        takes = dict(inspect.signature(forward).parameters)  # models are copied, and this with them
    except (TypeError, ValueError):
        return {}
    fixed = forward.keywords if isinstance(forward, functools.partial) else ()  # by a setting
    return {name: one for name, one in takes.items() if name not in fixed}


def _takes_tensor(code: Any, known: Mapping[str, Any]) -> bool:
    """Whether a function takes vectors, and not settings of which it makes a module."""
    if inspect.isclass(code):
        return False
    first = next(iter(_parameters(code).values()), None)
    if first is None or first.default is not first.empty or CONFIG.fullmatch(first.name):
        return False
    return NAMES.get(first.name, first.name) not in known


def _refuse_unknown(name: str, code: Any, tensors: int, known: Set[str]) -> None:
    """What is called needs nothing but tensors and what the laboratory has for it."""
    for one in list(_parameters(code).values())[tensors:]:
        named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if named and one.default is one.empty and one.name not in known:
            raise ValueError(
                f"{name} is called with {one.name!r}, which is not known here; it can take "
                f"{', '.join(sorted(known))}, or give it a default{defined_at(code)}"
            )


def _takes_qkv(code: Any) -> bool:
    """Whether a function, or the module that something is, takes queries, keys and values."""
    if inspect.isclass(code):
        return False
    names = list(_parameters(code))[:3]
    return len(names) == 3 and all(
        one.fullmatch(name.lower()) for one, name in zip(QKV, names, strict=True)
    )


def _refuse_lost(name: str, setting: str, value: Any, takes: Set[str]) -> None:
    """A setting of the model that the code does not take would be ignored."""
    if value and setting not in takes:
        word = "attention_dropout" if setting == "dropout" else setting
        raise ValueError(
            f"{name} takes no {setting!r}, so model.{word}={value} would not reach it; "
            f"leave out model.{word}, or have it take one"
        )


def _width(inner: nn.Module) -> int:
    if isinstance(inner, HeadedAttention):
        return inner.project.in_features
    assert isinstance(inner, PlainModule)
    return inner.layer.width


def _row(rotary: Rotation | None, row: int, there: Tensor) -> Rotation | None:
    if rotary is None:
        return None
    at = row if rotary.cos.shape[0] > 1 else 0
    cos, sin = (one[at : at + 1, :, there] for one in (rotary.cos, rotary.sin))
    return Rotation(cos, sin, rotary.layout)
