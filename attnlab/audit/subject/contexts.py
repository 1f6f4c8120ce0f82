"""What code attends to besides its own text, and masks by which its caller makes it causal.

    x [b, t, c], context [b, s, c] --code--> y [b, t, e]

Axes: b batch, t time, s positions of the context, c width.

Which form a mask has is tried out, as for padding (`audit/subject/masks.py`): one that hides
nothing is as good as none, and one that hides something does hide it.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import movement
from attnlab.audit.signature import signature
from attnlab.audit.subject import masks
from attnlab.audit.subject.base import Vectors, build_subject
from attnlab.audit.subject.calls import BAND
from attnlab.audit.subject.convention import Context, Convention, Form, Mask
from attnlab.audit.subject.masks import LOOSE

# one thing, the same in every call unless it is itself examined
CONTEXTS = re.compile(r"(\w+_)?(memory|context|cond)|(enc|encoder)_(\w+_)?(states?|outputs?|out)")
# masks over the context; PyTorch's memory_mask is one of who attends to what
CONTEXT_MASKS = re.compile(
    r"(memory|context|cond|conditioning|enc|encoder|cross|src|source)_(\w+_)?(mask|padding|lengths)"
)
VAGUE = ("mask", "key_padding_mask", "attention_mask", "attn_mask", "padding_mask")
# of models that read one text and write another
SOURCES = (
    "src",
    "source",
    "src_tokens",
    "src_ids",
    "encoder_input",
    "encoder_input_ids",
    "input_ids",
)
WRITTEN = ("tgt", "trg", "target", "tgt_tokens", "tgt_ids", "decoder_input", "decoder_input_ids")
LENGTH, CONTEXT, HIDDEN = 5, 7, 2  # of the trial: positions, those of the context, those hidden
# code whose documentation leaves the causal mask to the caller
OWN_FORWARDS = {
    nn.TransformerDecoder.forward: "tgt_mask",
    nn.TransformerDecoderLayer.forward: "tgt_mask",
    nn.TransformerEncoder.forward: "mask",
    nn.TransformerEncoderLayer.forward: "src_mask",
    nn.MultiheadAttention.forward: "attn_mask",
    nn.Transformer.forward: "tgt_mask",
}
CAUSAL_MASKS = ("tgt_mask", "causal_mask", "look_ahead_mask", "lookahead_mask", "future_mask")
CAUSAL_FLAGS = ("is_causal", "causal", "tgt_is_causal", "use_causal_mask")
ADDED = f"torch.zeros(x.shape[1], x.shape[1]).masked_fill({BAND}.triu(1), float('-inf'))"
AXES = ("", "[None]", "[None, None]")  # before [t, t]


def context_masks(takes: Sequence[str]) -> list[str]:
    """Parameters whose names say that they hide some of the context, the likeliest first."""
    named = [one for one in takes if CONTEXT_MASKS.fullmatch(one)]
    return sorted(named, key=lambda one: not one.endswith(masks.PADDING))


def written_text(takes: Mapping[str, inspect.Parameter]) -> str | None:
    """The parameter of the text that is written, where the first is one that is only read."""
    first = next(iter(takes))
    needed = (
        one for one in takes if one in WRITTEN and takes[one].default in (None, inspect._empty)
    )
    return next(needed, None) if first in SOURCES else None


def find_context(convention: Convention) -> Context | None:
    """The context that code takes, or may take, and the form of a mask over it."""
    module = convention.module
    if module is None:
        return None
    takes = signature(module.forward).parameters
    may = [one for one in takes if CONTEXTS.fullmatch(one) and takes[one].default is None]
    names = convention.contexts[:1] or tuple(may[:1])
    if convention.copies == 3:
        names = convention.parameters[1:3]
    if not names:
        return None
    plain = Context(names=names)
    if not _runs(convention, plain):
        return None
    named = context_masks(list(takes))
    padded = [one for one in named if one.endswith(masks.PADDING)]
    if len(padded) > 1:  # an encoder's, and that of what reads it
        both = replace(plain, also=tuple(padded[1:]))
        mask = _find_mask(convention, both, padded[0])
        if mask is not None and mask.hides:
            return replace(both, mask=mask)
    for name in [*named, *(one for one in VAGUE if one in takes)]:
        mask = _find_mask(convention, plain, name)
        if mask is not None and (mask.hides or name in named):
            return replace(plain, mask=mask)
    return plain


def _runs(convention: Convention, context: Context) -> bool:
    subject = build_subject(replace(convention, context=context))
    try:
        subject.run_on(subject.draw(2, LENGTH, 0), subject.draw_context(2, CONTEXT, 1))
    except (SubjectError, SystemExit):
        return False
    return True


def _find_mask(convention: Convention, context: Context, name: str) -> Mask | None:
    """The first form that hides what it should, or else the first that runs."""
    taken: Mask | None = None
    for form in dict.fromkeys((*masks.forms(name), *masks.KEPT, *masks.HIDDEN, *masks.ADDED)):
        if form is masks.COUNTS and name not in masks.LENGTHS and "lengths" not in name:
            continue
        mask = Mask(name=name, form=form)
        subject = build_subject(replace(convention, context=replace(context, mask=mask), mask=None))
        try:
            hides = _hides(subject, form)
        except (SubjectError, SystemExit):  # it takes another form, or something else
            continue
        if hides:
            return mask
        taken = taken or replace(mask, hides=False)
    return taken


def _hides(subject: Vectors, form: Form) -> bool:
    x = subject.draw(2, LENGTH, 0)
    context, other = (subject.draw_context(2, CONTEXT, seed) for seed in (1, 2))
    nothing = torch.zeros(2, CONTEXT, dtype=torch.bool)
    some = nothing.clone()
    some[0, -HIDDEN:] = True  # rows differ: a mask may reach the wrong ones
    changed = torch.where(some if context.dim() == 2 else some[..., None], other, context)
    free, none = subject.run_on(x, context), subject.run_on(x, context, nothing)
    masked, behind = subject.run_on(x, context, some), subject.run_on(x, changed, some)
    moves = not _near(masked[:1], none[:1])
    return moves and _near(free, none) and _near(masked[1:], none[1:]) and _near(masked, behind)


def _near(one: Tensor, other: Tensor) -> bool:
    size = float(other.abs().nan_to_num(posinf=0).max())
    return float(movement(one, other).max()) <= LOOSE * size


def find_causes(convention: Convention) -> Mapping[str, str]:
    """What a caller gives so that the code is causal, as expressions of x; empty if nothing."""
    module = convention.module
    if module is None:
        return {}
    takes = signature(module.forward).parameters
    own = OWN_FORWARDS.get(type(module).forward)
    names = [own] if own else [one for one in takes if one in CAUSAL_MASKS]
    for name in names:
        first: Mapping[str, str] = {}
        for text in _causal_forms(convention.tokens):
            try:
                causal = _is_causal(convention, {name: text})
            except (SubjectError, SystemExit):
                continue
            if causal:
                return {name: text}
            first = first or {name: text}
        return first
    flags = [one for one in takes if one in CAUSAL_FLAGS and takes[one].default is False]
    return dict.fromkeys(flags[:1], "True")


def _causal_forms(tokens: bool) -> Iterator[str]:
    """True where a key is hidden, as PyTorch has it, or where it is seen; numbers to be added."""
    added = f"{ADDED}.to({'next(code.parameters()).dtype' if tokens else 'x.dtype'})"
    for axes in AXES:
        yield from (f"{BAND}.triu(1){axes}", f"{BAND}.tril(){axes}", f"{added}{axes}")


def _is_causal(convention: Convention, given: Mapping[str, str]) -> bool:
    """A first look: the last input moves nothing before it, and the first moves what follows."""
    subject = build_subject(replace(convention, given=given, decoder=None))
    x = subject.draw(1, LENGTH, 0)
    before = subject.named(x)
    moved = []
    for at in (0, LENGTH - 1):
        changed, other = x.clone(), subject.draw(1, LENGTH, 1)
        changed[:, at] = other[:, at] if x.is_floating_point() else (x[:, at] + 1) % subject.width
        moved.append(
            movement(subject.named(changed), before)[0] > LOOSE * float(before.abs().max())
        )
    return bool(moved[0][-1]) and not bool(moved[1][:-1].any())
