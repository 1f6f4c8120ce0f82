"""The usual forms in which code is told of padding [b, t], True where it is.

What a parameter is called may say which sign a mask has, but seldom its shape: [b, t], [b, 1, t]
or [b, 1, 1, t], of truth values or to be added to scores. Of the forms that a name allows the first
is taken with which a mask that hides nothing is as good as none, and one that hides something
does hide it; else the first that changes anything at all, or that the code takes at all: its fault
is for others to find.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.audit.subject.base import Subject
from attnlab.audit.subject.calls import evaluated

# a mask over positions; True or 1 means padding in the first, to be seen in the second
PADDING = ("key_padding_mask", "key_padding", "padding_mask", "pad_mask")
SEEN = ("attention_mask", "valid_mask", "seq_mask")
EITHER = ("mask", "attn_mask", "input_mask", "src_mask", "pad", "x_mask", "token_mask")
LENGTHS = ("lengths", "seq_lens", "seq_lengths", "seqlens", "lens", "valid_lens", "input_lengths")
LOOSE = 1e-4  # a first look: what is equal to the last bits, the probe finds out


@dataclass(frozen=True)
class Form:
    """How padding is told: `text` is what the parameter takes, of `padding` and `x`."""

    text: str
    sides: tuple[str, ...] = ("right", "left")

    def make(self, padding: Tensor, x: Tensor) -> Tensor:
        made: Tensor = evaluated(self.text, padding=padding, x=x)
        return made


AXES = {2: "", 3: "[:, None]", 4: "[:, None, None]"}  # of 1 between rows and positions
NUMBERS = Form("(~padding).long()")
KEPT = tuple(Form(f"~padding{AXES[n]}") for n in (2, 4, 3))
HIDDEN = tuple(Form(f"padding{AXES[n]}") for n in (2, 4, 3))
ADDED = tuple(Form(f"added(padding, x){AXES[n]}") for n in (4, 3, 2))
COUNTS = Form("(~padding).sum(1)", sides=("right",))


def word_of(takes: Sequence[str]) -> str | None:
    """The parameter that tells of padding: one whose name says so before one that may be it."""
    named = [one for one in takes if one in SEEN or one.endswith(PADDING)]
    return next(iter([*named, *(one for one in takes if one in (*EITHER, *LENGTHS))]), None)


def forms(word: str) -> tuple[Form, ...]:
    if word.endswith(PADDING):
        return (*HIDDEN, *ADDED)
    if word in SEEN:
        return (NUMBERS, *KEPT, *ADDED)
    return (COUNTS,) if word in LENGTHS else (*KEPT, *HIDDEN, *ADDED)


def certain(word: str) -> bool:
    """Whether the name alone says that it is about padding."""
    return word in (*SEEN, *LENGTHS) or word.endswith(PADDING)


def settle(subject: Subject, word: str, use: Callable[[Form], None]) -> bool:
    """Uses the form that fits best; whether there is one, or the name leaves no doubt.

    Where neither is so, `masked` says that some form is taken: what it does is a matter of who
    declares that padding is hidden by it.
    """
    length = 8 * subject.block if subject.block > 1 else 5
    x, other = subject.draw(2, length, 0), subject.draw(2, length, 1)
    nothing = torch.zeros(2, length, dtype=torch.bool)
    some = nothing.clone()
    # rows are padded differently: a mask may reach the wrong ones; on the left, where a mask
    # against the future hides nothing, unless the form is for the other side
    right = forms(word)[0].sides == ("right",)
    padded_at, kept = (slice(3, None), slice(0, 3)) if right else (slice(0, 2), slice(2, None))
    some[0, padded_at] = True
    changed = x.clone()
    changed[0, padded_at] = other[0, padded_at]
    moving: Form | None = None
    taken: Form | None = None
    with torch.no_grad():
        free = subject.run(x)
        for form in forms(word):
            use(form)
            try:
                none, padded = (subject.run(x, padding=mask) for mask in (nothing, some))
                behind = subject.run(changed, padding=some)
            except (Exception, SystemExit):  # it takes another form, or something else
                continue
            taken = taken or form
            if not _near(free, none) or _near(none, padded):
                continue
            if _near(behind[0, kept], padded[0, kept]) and _near(padded[1], none[1]):
                subject.sides = form.sides
                return True
            moving = moving or form
    subject.masked = taken is not None
    chosen = moving or taken or forms(word)[0]
    use(chosen)
    subject.sides = chosen.sides
    return moving is not None or certain(word)


def _near(one: Tensor, other: Tensor) -> bool:
    size = float(other.abs().nan_to_num(posinf=0).max())
    return bool(torch.allclose(one, other, rtol=0, atol=LOOSE * size, equal_nan=True))
