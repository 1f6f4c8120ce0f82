"""How code of a person is called: by its signature, tried out on small inputs.

A module may take vectors [b, t, c], tokens [b, t], or q, k and v; a function q, k and v. In which
form it takes a padding mask (`audit/subject/masks.py`) and how it decodes
(`audit/subject/caches.py`) is tried out too. The result is a frozen `Convention`, and a Subject
built from it. Code that wants something else gets a `Subject` of its own
(`audit/subject/base.py`), which is a few lines.
"""

import copy
import inspect
import itertools
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError, SubjectError, calling
from attnlab.audit.repro import prelude
from attnlab.audit.signature import signature
from attnlab.audit.subject import caches, contexts, masks
from attnlab.audit.subject.base import Attention, Subject, Vectors, build_subject
from attnlab.audit.subject.convention import AttentionConvention, Convention, Layout
from attnlab.audit.subject.device import device_for
from attnlab.audit.subject.jax_code import adopt
from attnlab.audit.subject.lengths import LONGEST, named_lengths
from attnlab.audit.subject.load import WIDTHS as WIDTHS
from attnlab.audit.subject.load import is_attention, made_for_audit, parameters_of
from attnlab.audit.subject.settings import advice

HEADS = ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")
KV_HEADS = ("kv_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads")
HEAD_WIDTHS = ("head_width", "head_dim", "d_head")
VOCABULARIES = ("vocabulary", "vocab_size", "vocab", "n_vocab", "num_tokens")
TOKENS = ("input_ids", "tokens", "token_ids", "ids", "idx", "indices")
POSITIONS = ("position_ids", "positions")
LAYERS = ("depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers")
TARGETS = ("targets", "target", "labels")  # with these some code gives all its logits, else one
# whether weights are wanted too: another path through the code, which must give the same outputs
SWITCHES = re.compile(
    r"(needs?|return|output|with)_(\w+_)?(attn|attentions?|weights?|scores|probs)"
)
BLOCKS = (8, 16, 32, 64, 128)  # that a length may have to be a multiple of
MOST = 1024  # of the only length of code that takes no other
WANTS_TOKENS = "Expected tensor for argument #1 'indices'"  # PyTorch, of an embedding
_prepared: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def subject_for(
    code: object, options: Mapping[str, Any], name: str, device: str = "cpu"
) -> Subject:
    """What can be audited, in the precision it can be: float64 if the code goes along."""
    place, code = device_for(device), adopt(code, options)
    if isinstance(code, Subject):
        if place:
            raise InputError(f"{name} is a Subject, which runs where it will: leave --device out")
        return code
    if isinstance(code, nn.Module):
        return _module_subject(code, options, name, place)
    if not callable(code):
        raise InputError(
            f"{name} gives a {type(code).__name__}; it must give a module, a function of q, k and "
            "v, or a Subject"
        )
    return _function_subject(code, options, name, place)


def refuse_untold(code: Any, options: Mapping[str, Any]) -> None:
    """An InputError for an option that tells nothing of code that is there already."""
    told = [*WIDTHS, *VOCABULARIES, *HEADS, *KV_HEADS, *HEAD_WIDTHS, *LAYERS]
    takes = [] if isinstance(code, nn.Module) else list(parameters_of(code))
    what = getattr(code, "__name__", type(code).__name__)
    for name, value in options.items():
        if name not in (*told, *takes):
            raise InputError(f"{what} takes no {name!r}; {advice(name, value, [*takes, 'width'])}")


def prepare(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """As a script prepares it, once: in another precision the weights are the same ones."""
    if module in _prepared:
        with calling("to"):
            return module.eval().to(dtype)
    with calling("to"):
        module.eval().to(torch.float64)
    with calling("parameters"):  # weights without a shape or a place cannot be read
        for one in module.parameters():
            one.detach().flatten()[:1].tolist()
    _prepared.add(module)
    prelude.prepare(module, torch.float64)
    with calling("to"):
        return module.to(dtype)


def _function_subject(code: Any, options: Mapping[str, Any], name: str, device: str) -> Subject:
    names = list(parameters_of(code))
    if not is_attention(names):
        raise InputError(f"{name} takes {', '.join(names) or 'nothing'}; a function takes q, k, v")
    extra = {key: value for key, value in options.items() if key in names}
    kv_heads = options.get("kv_heads", 4)
    if type(kv_heads) is not int or kv_heads < 1:
        raise InputError(f"kv_heads is {kv_heads!r}; use a whole number from 1 on")
    convention = _of_attention(name, code, names, 4, kv_heads, 8)
    return build_subject(_try_out(replace(convention, constants=extra, device=device)))


def _of_attention(
    name: str, code: Any, names: Sequence[str], heads: int, kv_heads: int, head_width: int
) -> AttentionConvention:
    """Of a function or module of q, k and v, before anything was tried."""
    first = signature(getattr(code, "forward", code)).parameters[names[0]]
    mask = masks.name_of(names[3:])
    return AttentionConvention(
        name=name,
        code=code,
        parameters=tuple(names),
        keywords=tuple(names[:3]) if first.kind is first.KEYWORD_ONLY else (),
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        width=(heads + 2 * kv_heads) * head_width,
        mask=None if mask is None else masks.mask_of(mask),
    )


def _copy(module: nn.Module, name: str) -> nn.Module:
    """A copy: precision and weights are changed, and a person's module stays as it was."""
    try:
        with calling("__deepcopy__"):
            return copy.deepcopy(module)
    except SubjectError as error:
        if made_for_audit(module):  # nobody else has it
            return module
        raise InputError(
            f"{name} cannot be copied ({error.message}); give a newly made one as file.py:Name, or "
            "a Subject that makes its own"
        ) from None


def _module_subject(
    module: nn.Module, options: Mapping[str, Any], name: str, device: str
) -> Subject:
    module = _copy(module, name)
    reasons = []
    conventions = list(_candidates(module, _Facts(module, options), name))
    rooms = (one for convention in conventions for one in _with_room(convention))
    for convention in itertools.chain(conventions, rooms):
        try:
            return build_subject(_try_out(replace(convention, device=device)))
        except (InputError, SubjectError) as error:
            reasons.append(str(error))
    if reasons:  # a table that got vectors says no more than that it wants tokens
        raise InputError(next((one for one in reasons if WANTS_TOKENS not in one), reasons[0]))
    raise InputError(
        f"{name}: no width found; name it, such as width=32, or give a Subject of your own"
    )


def _with_room(convention: Convention) -> Iterator[Convention]:
    return caches.with_room(convention) if type(convention) is Convention else iter(())


def _candidates(module: nn.Module, known: "_Facts", name: str) -> Iterator[Convention]:
    """Conventions that the names of parameters and settings allow, the likeliest first."""
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise InputError(f"{name} has no forward, so it cannot be called; name a module that has")
    takes = list(parameters_of(module.forward))
    if not takes:
        raise InputError(f"{name} takes nothing; its forward must take x, tokens, or q, k and v")
    width, vocabulary = known.width(), known.vocabulary()
    if is_attention([one.lower() for one in takes]):
        heads = known.first(HEADS) or 4
        kv_heads, head_width = known.first(KV_HEADS) or heads, known.first(HEAD_WIDTHS) or 8
        convention = _of_attention(name, module, takes, heads, kv_heads, head_width)
        yield replace(convention, module=module, layers=known.first(LAYERS) or 1)
        if width:
            yield replace(_of_module(name, module, known, width), copies=3)
        return
    if vocabulary and (takes[0] in TOKENS or not width):
        yield _of_module(name, module, known, vocabulary, tokens=True)
    if width:
        yield _of_module(name, module, known, width)
    if vocabulary:
        yield _of_module(name, module, known, vocabulary, tokens=True)


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


def _of_module(
    name: str, module: nn.Module, known: _Facts, width: int, tokens: bool = False
) -> Convention:
    """Of a module of x, before anything was tried."""
    parameters = signature(module.forward).parameters
    takes, lead = list(parameters), contexts.written_text(parameters)
    reads = lead is not None or any(map(contexts.CONTEXTS.fullmatch, takes))
    hiding = contexts.context_masks(takes) if reads else []
    mask = masks.name_of([one for one in takes[1:] if one not in hiding])
    needed = [one for one in takes[1:] if parameters[one].default is inspect.Parameter.empty]
    begins = [one for one in needed if caches.STARTS.fullmatch(one)]
    nothing = [one for one in needed if one in (mask, *hiding, *contexts.CAUSAL_MASKS)]
    nothing = [one for one in nothing if one not in (lead, takes[0])]
    nothing += [one for one in needed if caches.CACHES.fullmatch(one)]
    layout: Layout | None = None
    told = getattr(module, "batch_first", None)
    if type(module).forward in contexts.OWN_FORWARDS:  # which are as what is inside
        inside = (one for one in module.modules() if isinstance(one, nn.MultiheadAttention))
        told = next(inside).batch_first
    if told is False:
        layout = "tbc"  # PyTorch's own name for it; of a module inside nobody else's knows
    return Convention(
        name=name,
        code=module,
        module=module,
        width=width,
        tokens=tokens,
        heads=known.first(HEADS),
        kv_heads=known.first(KV_HEADS),
        layers=known.first(LAYERS) or 1,
        layout=layout,
        parameters=tuple(takes),
        constants=dict.fromkeys(begins, 0) | dict.fromkeys(nothing),
        contexts=tuple(one for one in needed if contexts.CONTEXTS.fullmatch(one))
        if lead is None
        else (takes[0],),
        context_width=width if lead is not None else known.width() or width,
        context_tokens=lead is not None and tokens,
        lead=lead,
        targets=next((one for one in takes[1:] if one in TARGETS), None) if tokens else None,
        mask=None if mask is None else masks.mask_of(mask),
        positions=next((one for one in takes if one in POSITIONS), None),
        cache_sizes=known.of_caches(),
        switches={one: not parameters[one].default for one in takes if SWITCHES.fullmatch(one)},
    )


def _try_out(convention: Convention) -> Convention:
    """As it runs; code that cannot do without its padding mask is given one that hides nothing."""
    try:
        return _run_out(convention)
    except InputError:
        for tried in _with_masks(convention):
            with suppress(InputError):
                return _run_out(tried)
        raise


def _with_masks(convention: Convention) -> Iterator[Convention]:
    """With a mask that hides nothing in every form, if the code has no default for it."""
    name = "" if convention.mask is None else convention.mask.name
    code = getattr(convention.code, "forward", convention.code)
    takes = signature(code).parameters
    if name not in takes or takes[name].default is not inspect.Parameter.empty:
        return
    rest = {key: value for key, value in convention.constants.items() if key != name}
    for form in masks.forms(name):
        yield replace(convention, constants=rest, given={name: form.hiding_nothing})


def _run_out(convention: Convention) -> Convention:
    """In the precision, and for blocks, with which the code runs; an InputError if in none."""
    first: SubjectError | SystemExit | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    if convention.device:  # kernels often take nothing finer; float16 overflows the sooner
        dtypes += (torch.bfloat16, torch.float16)
    blocks = itertools.product(dtypes, BLOCKS, (2,))
    # code for one length only has one block of it
    lengths = dict.fromkeys([*named_lengths(convention.module), *BLOCKS])
    single = itertools.product(dtypes, (one for one in lengths if one <= MOST), (1,))
    for dtype, block, count in [*((dtype, 1, 1) for dtype in dtypes), *blocks, *single]:
        tried = replace(convention, dtype=dtype, block=block)
        subject = build_subject(tried)
        try:
            if tried.module is not None:
                prepare(tried.module, dtype)
                with calling("to"):
                    tried.module.to(tried.device or None)
            with torch.no_grad():
                subject.run(subject.draw(2, min(5, block) if block > 1 else 5, 0))
                if count > 1:  # any number of blocks, or one length only?
                    subject.run(subject.draw(2, block + 5, 0))
        except (SubjectError, SystemExit) as error:
            first = first or error
            if isinstance(error.__cause__, TypeError) and block == 1 and dtype is dtypes[-1]:
                break  # no length would help
            continue
        return _find_mask_and_decoder(tried)
    assert first is not None
    reason = first.reason if isinstance(first, SubjectError) else f"SystemExit: {first}"
    hint = "; wrap it in a module or a Subject that calls it" if _unmet(convention) else ""
    raise InputError(
        f"{convention.name} cannot be called with {_description(convention)}: {reason}{hint}"
    )


def _unmet(convention: Convention) -> list[str]:
    """Parameters that the code needs and is not given."""
    code = getattr(convention.code, "forward", convention.code)
    needed = [
        one.name
        for one in signature(code).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    first = 3 if isinstance(convention, AttentionConvention) else convention.copies
    given = {*convention.constants, *convention.contexts}
    return [name for name in needed[first:] if name not in given]


def _find_mask_and_decoder(convention: Convention) -> Convention:
    """With the form of its padding mask, and with the way it decodes."""
    if type(convention) not in (Convention, AttentionConvention):  # others say themselves
        return convention
    if convention.mask is not None:
        mask = masks.find_mask(convention, convention.mask.name)
        convention = replace(convention, mask=mask)
        if mask.name in convention.given and mask.taken:
            given = {**convention.given, mask.name: mask.form.hiding_nothing}
            convention = replace(convention, given=given)
    if convention.block == 1:
        convention = _find_context(convention)
    if isinstance(convention, AttentionConvention):
        return convention
    if convention.module is None or convention.copies > 1 or convention.block > 1:
        return convention
    plain = replace(convention, decoder=None)
    return replace(plain, decoder=caches.find_decoder(plain))


def _find_context(convention: Convention) -> Convention:
    """With what it attends to besides x, and with what makes it causal."""
    context = contexts.find_context(convention)
    over = None if context is None or context.mask is None else context.mask.name
    mask = convention.mask
    if mask is not None and mask.name == over and not mask.taken:
        convention = replace(convention, mask=None)  # it hides of the context, not of x
    convention = replace(convention, context=context)
    return replace(convention, causes=contexts.find_causes(convention))


def arrange(subject: Subject, contract: Contract) -> Subject:
    """The subject as a contract has it called: axes in the declared order, a mask for padding,
    and one that makes it causal if that is the caller's part."""
    subject = _lay_out(subject, contract.layout)
    if contract.causal and isinstance(subject, Vectors) and subject.convention.causes:
        subject = subject.with_convention(_as_causal(subject.convention))
    if not contract.padding or subject.pads or not isinstance(subject, Vectors):
        return subject
    mask = subject.convention.mask
    if mask is None or not mask.taken:
        return subject
    return subject.with_convention(replace(subject.convention, mask=replace(mask, hides=True)))


def _as_causal(convention: Convention) -> Convention:
    """Called so that it is causal; a hint beside the mask that it is one must change nothing."""
    masked = next(iter(convention.causes)) not in contexts.CAUSAL_FLAGS
    hints = [one for one in convention.parameters if one in contexts.CAUSAL_FLAGS]
    return replace(
        convention,
        given={**convention.given, **convention.causes},
        causes={},
        switches={**convention.switches, **(dict.fromkeys(hints, True) if masked else {})},
        decoder=None if masked else convention.decoder,  # a mask [t, t] is not for single steps
    )


def _lay_out(subject: Subject, layout: Layout | None) -> Subject:
    if layout is None or layout == subject.layout:
        return subject
    known = ("bhtd", "bthd") if isinstance(subject, Attention) else ("btc", "tbc")
    if layout not in known:
        raise InputError(
            f"layout is declared as {layout!r}; {subject.name} takes {' or '.join(known)}"
        )
    usual = subject.layout is None and layout in ("btc", "bhtd")
    if isinstance(subject, Vectors):
        convention = replace(subject.convention, layout=layout)
        return subject.with_convention(convention if usual else _find_mask_and_decoder(convention))
    if not usual:
        raise InputError(f"layout {layout!r} is not for a Subject of one's own: it is called as is")
    return subject


def _description(convention: Convention) -> str:
    if isinstance(convention, AttentionConvention):
        return f"q [2, {convention.heads}, 5, {convention.head_width}], k and v alike"
    if convention.tokens:
        return f"tokens [2, 5] of {convention.width}"
    return f"x [2, 5, {convention.width}]"
