"""How code of a person is called: by its signature, tried out on small inputs.

A module may take vectors [b, t, c], tokens [b, t], or q, k and v; a function q, k and v. What it
calls its padding and its cache is recognised by name. Code that wants something else gets a
`Subject` of its own (`attnlab/audit/subject.py`), which is a few lines.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.load import is_attention
from attnlab.audit.subject import Attention, Subject, Tokens, Vectors, first_tensor, normal

WIDTHS = ("width", "dim", "d_model", "embed_dim", "hidden_size", "n_embd", "model_dim", "channels")
HEADS = ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")
KV_HEADS = ("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads")
VOCABULARIES = ("vocabulary", "vocab_size", "vocab", "n_vocab", "num_tokens")
TOKENS = ("input_ids", "tokens", "token_ids", "ids", "idx", "indices")
# a mask over positions [b, t]; True or 1 means padding in the first, to be seen in the others
PADDING = ("key_padding_mask", "key_padding", "padding_mask", "pad_mask")
SEEN = ("attention_mask",)
CACHES = ("cache", "kv_cache", "layer_cache", "past_key_value", "past_key_values", "past", "state")
POSITIONS = ("position_ids", "positions")
LAYERS = ("depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers")
# whether weights are wanted too: another path through the code, which must give the same outputs
ASKED = ("need_weights", "return_weights", "output_attentions", "return_attention", "return_attn")
NEW_CACHE = ("new_cache", "make_cache", "init_cache", "empty_cache")


def subject_for(code: Any, options: Mapping[str, Any], name: str) -> Subject:
    """What can be audited, in the precision it can be: float64 if the code goes along."""
    if isinstance(code, Subject):
        return code
    if isinstance(code, nn.Module):
        return _module_subject(code, options, name)
    return _function_subject(code, options, name)


def prepared(module: nn.Module, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """In evaluation mode, and with parameters that hide nothing: a gate at 0 would."""
    if next(iter(module.parameters()), torch.zeros(0)).dtype is dtype and not module.training:
        return module
    module = module.eval().to(dtype)
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            fixed = not parameter.requires_grad  # such as a table of sines
            if fixed or not parameter.is_floating_point() or not parameter.numel():
                continue
            size = float(parameter.std()) if parameter.numel() > 1 else 0.0
            fan = parameter.shape[-1] if parameter.dim() > 1 else 16
            noise = normal(1000 + seed + number, *parameter.shape).to(parameter)
            parameter.add_(noise, alpha=0.2 * size if size > 1e-4 else 0.5 / fan**0.5)
    return module


def _function_subject(code: Any, options: Mapping[str, Any], name: str) -> Subject:
    names = list(inspect.signature(code).parameters)
    if not is_attention(names):
        raise ValueError(f"{name} takes {', '.join(names) or 'nothing'}; a function takes q, k, v")
    heads, kv_heads = 4, int(options.get("kv_heads", 4))
    extra = {key: value for key, value in options.items() if key in names}
    subject = Attention(name, partial(code, **extra), heads=heads, kv_heads=kv_heads, head_width=8)
    _try_out(subject, [subject.dtype, torch.float32], name)
    return subject


def _module_subject(module: nn.Module, options: Mapping[str, Any], name: str) -> Subject:
    """Of a copy: precision and weights are changed, and a person's module stays as it was."""
    try:
        module = copy.deepcopy(module)
    except RuntimeError as error:
        raise ValueError(f"{name} cannot be copied ({error}); give a newly made one") from None
    takes = list(inspect.signature(module.forward).parameters)
    known = _Facts(module, options)
    candidates: list[Subject] = []
    if is_attention([one.lower() for one in takes]):
        heads = known.first(HEADS) or 4
        head_width = known.first(("head_width", "head_dim", "d_head")) or 8
        kv_heads = known.first(KV_HEADS) or heads
        candidates.append(
            Attention(name, module, heads=heads, kv_heads=kv_heads, head_width=head_width)
        )
        width = known.width()
        if width:
            candidates.append(_vectors(name, module, takes, width, joined=True))
    else:
        vocabulary = known.vocabulary()
        width = known.width()
        if vocabulary and (takes[0] in TOKENS or not width):
            candidates.append(_vectors(name, module, takes, vocabulary, kind=Tokens))
        if width:
            candidates.append(_vectors(name, module, takes, width))
        if vocabulary:
            candidates.append(_vectors(name, module, takes, vocabulary, kind=Tokens))
    if not candidates:
        raise ValueError(
            f"{name}: no width found; name it, such as width=32, or give a Subject of your own"
        )
    reasons = []
    for subject in candidates:
        subject.module, subject.heads = module, subject.heads or known.first(HEADS)
        subject.kv_heads = subject.kv_heads or known.first(KV_HEADS)
        subject.layers = known.first(LAYERS) or 1
        try:
            _try_out(subject, [torch.float64, torch.float32], name)
        except ValueError as error:
            reasons.append(str(error))
            continue
        return subject
    raise ValueError(reasons[0])


class _Facts:
    """Numbers that a module or its options tell by name."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        self.module, self.options = module, options

    def first(self, names: Sequence[str]) -> int | None:
        settings = getattr(self.module, "settings", None) or getattr(self.module, "config", None)
        for name in names:
            for holder in (self.options, vars(self.module), getattr(settings, "__dict__", {})):
                value = holder.get(name)
                if type(value) is int and value > 0:
                    return value
        return None

    def width(self) -> int | None:
        named = self.first(WIDTHS)
        if named:
            return named
        layers = (one for one in self.module.modules() if isinstance(one, nn.Linear))
        return next((layer.in_features for layer in layers), None)

    def vocabulary(self) -> int | None:
        tables = [one for one in self.module.modules() if isinstance(one, nn.Embedding)]
        return self.first(VOCABULARIES) or (tables[0].num_embeddings if tables else None)


def _vectors(
    name: str,
    module: nn.Module,
    takes: Sequence[str],
    width: int,
    kind: type[Vectors] = Vectors,
    joined: bool = False,
) -> Subject:
    """A module of x; with `joined`, of x three times."""
    padding = next((one for one in takes if one in (*PADDING, *SEEN)), None)
    places = next((one for one in takes if one in POSITIONS), None)

    def call(x: Tensor, pad: Tensor | None, positions: Tensor | None, **more: Any) -> Any:
        given: dict[str, Any] = dict(more)
        if pad is not None and padding is not None:
            given[padding] = pad if padding in PADDING else (~pad).long()
        if positions is not None and places is not None:
            given[places] = positions
        return module(*([x] * 3 if joined else [x]), **given)

    facts = {"pads": padding is not None, "placed": places is not None}
    subject = kind(name, call, width, **facts)
    _add_cache(subject, module, takes)
    parameters = inspect.signature(module.forward).parameters
    for word in (one for one in takes if one in ASKED):
        other = not parameters[word].default
        asked: dict[str, Any] = {word: other}
        twin = kind(name, partial(call, **asked), width, **facts)
        subject.backends = {"as it is": subject, f"{word}={other}": twin}
    return subject


def _add_cache(subject: Subject, module: nn.Module, takes: Sequence[str]) -> None:
    """Code that decodes has a parameter for its cache, and a method that makes one."""
    word = next((one for one in takes if one in CACHES), None)
    maker: Callable[..., Any] | None = next(
        (getattr(module, one) for one in NEW_CACHE if callable(getattr(module, one, None))), None
    )
    if word is None or maker is None:
        return

    def step(x: Tensor, cache: Any) -> Tensor:
        found = module(x, **{word: cache[0]})
        if isinstance(found, tuple) and len(found) > 1 and not isinstance(found[1], Tensor):
            cache[0] = found[1]  # code that gives its cache back instead of changing it
        return first_tensor(found).flatten(2)

    subject.caches = True
    subject.new_cache = lambda: [maker()]  # type: ignore[method-assign]
    subject.step = step  # type: ignore[method-assign]


def _try_out(subject: Subject, dtypes: Sequence[torch.dtype], name: str) -> None:
    """Settles the precision; what goes wrong in all of them is the reason to refuse."""
    reason = ""
    for dtype in dtypes:
        subject.dtype = dtype
        if subject.module is not None:
            subject.module = prepared(subject.module, dtype)
        try:
            with torch.no_grad():
                subject.run(subject.draw(2, 5, 0))
            return
        except (Exception, SystemExit) as error:  # a person's code may raise anything
            reason = reason or f"{type(error).__name__}: {error}"
    raise ValueError(f"{name} cannot be called with {_described(subject)}: {reason}")


def _described(subject: Subject) -> str:
    if isinstance(subject, Attention):
        return f"q [2, {subject.heads}, 5, {subject.head_width}], k and v alike"
    if isinstance(subject, Tokens):
        return f"tokens [2, 5] of {subject.width}"
    assert isinstance(subject, Vectors)
    return f"x [2, 5, {subject.width}]"
