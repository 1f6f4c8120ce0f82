"""The usual forms of padding masks, tried out; padding is [b, t], True where it is.

What a parameter is called may say which sign a mask has, but seldom its shape: [b, t], [b, 1, t],
[b, 1, 1, t] or [b, 1, t, t], of truth values or to be added to scores. Of the forms that a name
allows the first is taken with which a mask that hides nothing is as good as none, and one that
hides something does hide it; else the first that changes anything at all, that hides, or that the
code takes at all: its fault is for others to find.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnlab.audit.errors import SubjectError
from attnlab.audit.subject.base import Subject, build_subject
from attnlab.audit.subject.convention import Convention, Form, Mask

# names of masks over positions; True or 1 means padding in the first, to attend to in the second
PADDING = ("key_padding_mask", "key_padding", "padding_mask", "pad_mask")
SEEN = ("attention_mask", "valid_mask", "seq_mask")
EITHER = ("mask", "attn_mask", "input_mask", "src_mask", "pad", "x_mask", "token_mask")
LENGTHS = ("lengths", "seq_lens", "seq_lengths", "seqlens", "lens", "valid_lens", "input_lengths")
LOOSE = 1e-4  # a first look: what is equal to the last bits, the probe finds out
AXES = {2: "", 3: "[:, None]", 4: "[:, None, None]"}  # of 1 between rows and positions
NUMBERS = Form("(~padding).long()")
KEPT = tuple(Form(f"~padding{AXES[n]}") for n in (2, 4, 3))
HIDDEN = tuple(Form(f"padding{AXES[n]}") for n in (2, 4, 3))
ADDED = tuple(Form(f"additive_mask(padding, x){AXES[n]}") for n in (4, 3, 2))
COUNTS = Form("(~padding).sum(1)", sides=("right",))
SIGNS = ("~{}", "{}", "additive_mask({}, x)")  # of the pairs that are hidden
_SQUARE = "padding[:, None, None].expand(-1, -1, x.shape[1], -1)"
KEPT_PAIRS, HIDDEN_PAIRS, ADDED_PAIRS = (Form(sign.format(_SQUARE)) for sign in SIGNS)
# no padding mask, but one that stands in the place of the causal mask: of all pairs, or of all rows
_LATER = "torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)"
_LATER_ROWS = f"{_LATER}.expand(len(x), 1, -1, -1)"
CAUSAL = tuple(Form(sign.format(pairs)) for pairs in (_LATER, _LATER_ROWS) for sign in SIGNS)


def name_of(takes: Sequence[str]) -> str | None:
    """The parameter that takes padding: one whose name says so before one that may be it."""
    named = [one for one in takes if one in SEEN or one.endswith(PADDING)]
    return next(iter([*named, *(one for one in takes if one in (*EITHER, *LENGTHS))]), None)


def forms(name: str) -> tuple[Form, ...]:
    if name.endswith(PADDING):
        return (*HIDDEN, *ADDED)
    if name in SEEN:
        return (NUMBERS, *KEPT, *ADDED, KEPT_PAIRS, ADDED_PAIRS)
    if name in LENGTHS:
        return (COUNTS,)
    return (*KEPT, *HIDDEN, *ADDED, KEPT_PAIRS, HIDDEN_PAIRS, ADDED_PAIRS)


def certain(name: str) -> bool:
    """Whether the name alone says that it is about padding."""
    return name in (*SEEN, *LENGTHS) or name.endswith(PADDING)


def mask_of(name: str) -> Mask:
    """A parameter of this name, before anything was tried."""
    return Mask(name=name, form=forms(name)[0], taken=False, hides=certain(name))


def find_mask(convention: Convention, name: str) -> Mask:
    """The mask in the form that fits best.

    Where no form hides padding and the name leaves a doubt, `taken` says that some form runs. Then
    it is a padding mask only for who declares it so.
    """
    plain = build_subject(convention)
    length = 5 if convention.block == 1 else _whole_blocks(plain)
    x, other = plain.draw(2, length, 0), plain.draw(2, length, 1)
    nothing = torch.zeros(2, length, dtype=torch.bool)
    some = nothing.clone()
    # rows are padded differently: a mask may reach the wrong ones; on the left, where a causal
    # mask hides nothing, unless the form is for the other side
    right = forms(name)[0].sides == ("right",)
    padded_at, kept = (slice(3, None), slice(0, 3)) if right else (slice(0, 2), slice(2, None))
    some[0, padded_at] = True
    changed = x.clone()
    changed[0, padded_at] = other[0, padded_at]
    moving: Form | None = None
    hiding: Form | None = None
    taken: Form | None = None
    equal = False  # of some form a mask that hides nothing is as good as none
    with torch.no_grad():
        free = plain.run(x)
        for form in forms(name):
            subject = build_subject(replace(convention, mask=Mask(name=name, form=form)))
            try:
                none, padded = (subject.run(x, padding=mask) for mask in (nothing, some))
                behind = subject.run(changed, padding=some)
            except (SubjectError, SystemExit):  # it takes another form, or something else
                continue
            taken = taken or form
            same = _close_by_scale(free, none)
            equal = equal or same
            if _close_by_scale(none, padded):
                continue
            without = _close_by_scale(padded[1], none[1])  # the row without padding
            unread = without and _close_by_scale(behind[0, kept], padded[0, kept])
            if same and unread:
                return Mask(name=name, form=form)
            hiding = hiding or (form if unread else None)
            moving = moving or (form if same else None)
    hides = moving is not None or certain(name)
    form = moving or hiding or taken or forms(name)[0]
    if certain(name) and form in ADDED and taken == forms(name)[0]:
        form = taken  # numbers to add do anything to scores; a mask as it is named does nothing
    unequal = taken is not None and not equal and not _is_causal(convention, name, x, free)
    return Mask(name=name, form=form, taken=taken is not None, hides=hides, unequal=unequal)


def _is_causal(convention: Convention, name: str, x: Tensor, free: Tensor) -> bool:
    """Whether a mask that hides later keys is as good as none: it replaces the causal one."""
    nothing = torch.zeros(x.shape[:2], dtype=torch.bool)
    for form in CAUSAL:
        subject = build_subject(replace(convention, mask=Mask(name=name, form=form)))
        try:
            with torch.no_grad():
                if _close_by_scale(subject.run(x, padding=nothing), free):
                    return True
        except (SubjectError, SystemExit):
            continue
    return False


def _whole_blocks(subject: Subject) -> int:
    """A length of some blocks, or of one for code that takes no more."""
    try:
        with torch.no_grad():
            subject.run(subject.draw(2, 8 * subject.block, 0))
    except (SubjectError, SystemExit):
        return subject.block
    return 8 * subject.block


def _close_by_scale(one: Tensor, other: Tensor) -> bool:
    """Within a part of the largest output."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    size = float(other.abs().nan_to_num(posinf=0).max())
    return bool(torch.allclose(one, other, rtol=0, atol=LOOSE * size, equal_nan=True))
