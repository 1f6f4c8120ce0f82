"""How code of a person is called: by its signature, tried out on small inputs.

A module may take vectors [b, t, c], tokens [b, t], or q, k and v; a function q, k and v. How it is
told of padding (`audit/subject/masks.py`) and how it decodes (`audit/subject/caches.py`) is tried
out too. Code that wants something else gets a `Subject` of its own (`audit/subject/base.py`),
which is a few lines.
"""

import copy
import inspect
import itertools
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.repro import prelude
from attnlab.audit.subject import caches, masks
from attnlab.audit.subject.base import Attention, Subject, Tokens, Vectors, first_tensor
from attnlab.audit.subject.caches import NEW_CACHE as NEW_CACHE
from attnlab.audit.subject.load import WIDTHS as WIDTHS
from attnlab.audit.subject.load import is_attention, made_here

HEADS = ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")
KV_HEADS = ("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads")
HEAD_WIDTHS = ("head_width", "head_dim", "d_head")
VOCABULARIES = ("vocabulary", "vocab_size", "vocab", "n_vocab", "num_tokens")
TOKENS = ("input_ids", "tokens", "token_ids", "ids", "idx", "indices")
POSITIONS = ("position_ids", "positions")
LAYERS = ("depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers")
# what a decoder looks at besides its own text: one thing, the same for all that is asked
BESIDE = re.compile(r"(\w+_)?(memory|context|cond)|(enc|encoder)_(\w+_)?(states?|outputs?|out)")
TARGETS = ("targets", "target", "labels")  # with these some code gives all its logits, else one
# whether weights are wanted too: another path through the code, which must give the same outputs
ASKED = re.compile(r"(needs?|return|output|with)_(\w+_)?(attn|attentions?|weights?|scores|probs)")
LONGEST = ("max_seq_len", "max_seq_length", "max_len", "max_length", "block_size", "n_ctx")
BLOCKS = (8, 16, 32, 64, 128)  # that a length may have to be a multiple of
_prepared: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
MEMORY = 6  # positions of what a decoder looks at


def subject_for(code: Any, options: Mapping[str, Any], name: str) -> Subject:
    """What can be audited, in the precision it can be: float64 if the code goes along."""
    if isinstance(code, Subject):
        return code
    if isinstance(code, nn.Module):
        return _module_subject(code, options, name)
    if not callable(code):
        raise ValueError(
            f"{name} gives a {type(code).__name__}; it must give a module, a function of q, k and "
            "v, or a Subject"
        )
    return _function_subject(code, options, name)


def prepared(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """As a script prepares it, once: in another precision the weights are the same ones."""
    if module in _prepared:
        return module.eval().to(dtype)
    _prepared.add(module)
    prelude.prepared(module, dtype)
    return module


def _function_subject(code: Any, options: Mapping[str, Any], name: str) -> Subject:
    names = list(inspect.signature(code).parameters)
    if not is_attention(names):
        raise ValueError(f"{name} takes {', '.join(names) or 'nothing'}; a function takes q, k, v")
    heads, kv_heads = 4, int(options.get("kv_heads", 4))
    extra = {key: value for key, value in options.items() if key in names}
    on = _by_name(code, names)
    subject = Attention(name, partial(on, **extra), heads=heads, kv_heads=kv_heads, head_width=8)
    _tell_by_name(subject, names, lambda x, **given: on(*x, **extra, **given))
    _try_out(subject, [subject.dtype, torch.float32], name)
    return subject


def _by_name(code: Any, names: Sequence[str]) -> Any:
    """Queries, keys and values by name, where code takes them in no other way."""
    first = inspect.signature(getattr(code, "forward", code)).parameters[names[0]]
    if first.kind is not first.KEYWORD_ONLY:
        return code
    return lambda *qkv, **given: code(**dict(zip(names, qkv, strict=False)), **given)


def _copied(module: nn.Module, name: str) -> nn.Module:
    """A copy: precision and weights are changed, and a person's module stays as it was."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        if made_here(module):  # nobody else has it
            return module
        raise ValueError(
            f"{name} cannot be copied ({error}); give a newly made one as file.py:Name, or a "
            "Subject that makes its own"
        ) from None


def _module_subject(module: nn.Module, options: Mapping[str, Any], name: str) -> Subject:
    module = _copied(module, name)
    takes = list(inspect.signature(module.forward).parameters)
    known = _Facts(module, options)
    candidates: list[Subject] = []
    if is_attention([one.lower() for one in takes]):
        heads = known.first(HEADS) or 4
        head_width = known.first(HEAD_WIDTHS) or 8
        kv_heads = known.first(KV_HEADS) or heads
        on = _by_name(module, takes)
        compared = Attention(name, on, heads=heads, kv_heads=kv_heads, head_width=head_width)
        _tell_by_name(compared, takes, lambda x, **given: on(*x, **given))
        candidates.append(compared)
        width = known.width()
        if width:
            candidates.append(_vectors(name, module, known, width, joined=True))
    else:
        vocabulary = known.vocabulary()
        width = known.width()
        if vocabulary and (takes[0] in TOKENS or not width):
            candidates.append(_vectors(name, module, known, vocabulary, kind=Tokens))
        if width:
            candidates.append(_vectors(name, module, known, width))
        if vocabulary:
            candidates.append(_vectors(name, module, known, vocabulary, kind=Tokens))
    if not candidates:
        raise ValueError(
            f"{name}: no width found; name it, such as width=32, or give a Subject of your own"
        )
    reasons = []
    for subject in candidates:
        subject.module, subject.heads = module, subject.heads or known.first(HEADS)
        subject.kv_heads = subject.kv_heads or known.first(KV_HEADS)
        subject.layers = known.first(LAYERS) or 1
        # PyTorch's own name for it; of a module inside, nobody knows what is around it
        subject.layout = "tbc" if getattr(module, "batch_first", None) is False else None
        if isinstance(subject, Attention):
            subject.layout = None
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
        settings = [
            vars(one)
            for one in vars(self.module).values()
            if hasattr(one, "__dict__") and not isinstance(one, nn.Module | Tensor | type)
        ]
        for name in names:
            for holder in (self.options, vars(self.module), *settings):
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

    def of_caches(self) -> dict[str, int | None]:
        """What a maker of caches may ask for."""
        heads, width = self.first(HEADS), self.width()
        each = width // heads if heads and width else None
        return {
            "layers": self.first(LAYERS),
            "heads": heads,
            "kv_heads": self.first(KV_HEADS) or heads,
            "head_width": self.first(HEAD_WIDTHS) or each,
            "room": self.first(LONGEST),
        }


def _vectors(
    name: str,
    module: nn.Module,
    known: _Facts,
    width: int,
    kind: type[Vectors] = Vectors,
    joined: bool = False,
) -> Subject:
    """A module of x; with `joined`, of x three times."""
    parameters = inspect.signature(module.forward).parameters
    takes = list(parameters)
    padding = masks.word_of(takes[1:])
    places = next((one for one in takes if one in POSITIONS), None)
    needed = [one for one in takes[1:] if parameters[one].default is inspect.Parameter.empty]
    beside = [one for one in needed if BESIDE.fullmatch(one)]
    begins = [one for one in needed if caches.STARTS.fullmatch(one)]
    nothing = [one for one in needed if one == padding or caches.CACHES.fullmatch(one)]
    targets = next((one for one in takes[1:] if one in TARGETS), None) if kind is Tokens else None
    told = [masks.forms(padding)[0]] if padding is not None else []

    def ask(own: nn.Module, x: Tensor, given: Mapping[str, Any], decodes: bool = False) -> Any:
        """With what must be given besides x, and the same whatever is asked."""
        time = 0 if subject.layout == "tbc" else 1
        more: dict[str, Any] = dict.fromkeys(begins, 0) | dict.fromkeys(nothing) | dict(given)
        for number, one in enumerate(beside):
            shape = (1, MEMORY, known.width() or width)
            memory = prelude.drawn(shape, None, 900 + number, subject.dtype)
            memory = memory.expand(x.shape[1 - time], -1, -1)
            more.setdefault(one, memory if time else memory.transpose(0, 1))
        found = own(*([x] * 3 if joined else [x]), **more)
        if targets is None or targets in more or x.shape[time] == 1 or decodes:
            return found
        last_only = first_tensor(found).shape[time : time + 1] == (1,)
        return own(x, **{**more, targets: torch.zeros_like(x)}) if last_only else found

    def call(x: Tensor, pad: Tensor | None, positions: Tensor | None, **more: Any) -> Any:
        given: dict[str, Any] = dict(more)
        if pad is not None and padding is not None:
            given[padding] = told[0].make(pad, x)
        if positions is not None and places is not None:
            given[places] = positions
        return ask(module, x, given)

    def wording(padded: bool) -> dict[str, str]:
        turned = "" if subject.layout != "tbc" else ".transpose(0, 1)"
        memory = f"(1, {MEMORY}, {known.width() or width}), None"
        words = {
            one: f"drawn({memory}, {900 + n}, {subject.dtype}).expand(len(x), -1, -1){turned}"
            for n, one in enumerate(beside)
        }
        return {**words, **({padding: told[0].text} if padded and padding is not None else {})}

    facts: dict[str, Any] = {"pads": padding is not None, "placed": places is not None}
    subject = kind(name, call, width, **facts)
    subject.wording = wording  # type: ignore[method-assign]
    _tell_by_name(subject, takes, lambda x, **given: call(x, None, None, **given))

    def settle() -> None:
        """How it is told of padding, and how it decodes."""
        if padding is not None:
            subject.pads = masks.settle(subject, padding, lambda form: told.__setitem__(0, form))
        for twin in twins:
            twin.pads, twin.sides, twin.layout = subject.pads, subject.sides, subject.layout
            twin.dtype, twin.block = subject.dtype, subject.block
        if joined or subject.block > 1:
            return
        caches.settle(
            subject,
            caches.ways(
                module,
                lambda own, x, given: ask(own, subject.arranged(x), given, decodes=True),
                known.of_caches(),
                lambda: subject.dtype,
            ),
            lambda found: caches.stepped(found, subject.layout == "tbc"),
        )

    twins: list[Vectors] = []
    ways: dict[str, Subject] = {"as it is": subject}
    for word in (one for one in takes if ASKED.fullmatch(one)):
        other = not parameters[word].default
        asked: dict[str, Any] = {word: other}
        twins.append(kind(name, partial(call, **asked), width, **facts))
        ways[f"{word}={other}"] = twins[-1]
    if twins:
        subject.backends = ways
    subject.settle = settle  # type: ignore[attr-defined]
    return subject


def _tell_by_name(subject: Vectors, takes: Sequence[str], call: Callable[..., Any]) -> None:
    """What else the code may be told: `named(x, **given)` gives the outputs [b, t, e]."""

    def named(x: Tensor, **given: Any) -> Tensor:
        return subject.outputs(call(subject.arranged(x), **given), x)

    subject.takes, subject.named = tuple(takes), named  # type: ignore[attr-defined]


def arrange(subject: Subject, layout: str | None) -> None:
    """Has a subject called with its axes in the order that is declared."""
    if layout is None:
        return
    known = ("bhtd", "bthd") if isinstance(subject, Attention) else ("btc", "tbc")
    if layout not in known:
        raise ValueError(
            f"layout is declared as {layout!r}; {subject.name} takes {' or '.join(known)}"
        )
    if layout == subject.layout or (subject.layout is None and layout in ("btc", "bhtd")):
        subject.layout = layout
        return
    if not isinstance(subject, Vectors):
        raise ValueError(f"layout {layout!r} is not for a Subject of one's own: it is called as is")
    subject.layout = layout
    _settled(subject)


def _settled(subject: Subject) -> None:
    settle = getattr(subject, "settle", None)
    if settle is not None:
        settle()


def _try_out(subject: Subject, dtypes: Sequence[torch.dtype], name: str) -> None:
    """Settles the precision; what goes wrong in all of them is the reason to refuse."""
    reason = ""
    longer = itertools.product(dtypes, BLOCKS)
    for dtype, block in [*((dtype, 1) for dtype in dtypes), *longer]:
        subject.block, subject.dtype = block, dtype
        if subject.module is not None:
            subject.module = prepared(subject.module, dtype)
        try:
            with torch.no_grad():
                subject.run(subject.draw(2, 5, 0))
                if block > 1:  # any number of blocks, or one length only?
                    subject.run(subject.draw(2, block + 5, 0))
        except (Exception, SystemExit) as error:  # a person's code may raise anything
            reason = reason or f"{type(error).__name__}: {error}"
            if isinstance(error, TypeError) and block == 1 and dtype is dtypes[-1]:
                break  # no length would help
            continue
        _settled(subject)
        return
    subject.block = 1
    hint = "; wrap it in a module or a Subject that calls it" if "missing" in reason else ""
    raise ValueError(f"{name} cannot be called with {_described(subject)}: {reason}{hint}")


def _described(subject: Subject) -> str:
    if isinstance(subject, Attention):
        return f"q [2, {subject.heads}, 5, {subject.head_width}], k and v alike"
    if isinstance(subject, Tokens):
        return f"tokens [2, 5] of {subject.width}"
    assert isinstance(subject, Vectors)
    return f"x [2, 5, {subject.width}]"
