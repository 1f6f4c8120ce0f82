"""Masks: the form that code takes is found, and code that hides the wrong thing is told so."""

import pytest
import torch
from torch import nn

from attnlab.audit import Contract, audit
from attnlab.audit.bugs import padding
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.padding import Padding
from attnlab.audit.subject.adapters import subject_for


class Encoder(nn.Module):
    def __init__(self, dim=16, causal=False):
        super().__init__()
        self.dim, self.causal = dim, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def hidden(self, scores, seen):
        return scores if seen is None else scores.masked_fill(~seen, -1e9)

    def attend(self, x, change):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -1e9)
        return self.out((change(scores).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Added(Encoder):
    def forward(self, x, attention_mask=None):
        return self.attend(x, lambda s: s if attention_mask is None else s + attention_mask)


class AddedByRow(Encoder):
    def forward(self, x, attention_mask=None):
        def change(scores):
            return scores if attention_mask is None else scores + attention_mask[:, None, None]

        return self.attend(x, change)


class Shown(Encoder):
    def forward(self, x, mask=None):
        return self.attend(x, lambda s: self.hidden(s, mask))


class Square(Encoder):
    def forward(self, x, mask=None):
        return self.attend(x, lambda s: self.hidden(s, None if mask is None else mask[:, None]))


class Hidden(Encoder):
    def forward(self, x, src_key_padding_mask=None):
        pad = src_key_padding_mask
        return self.attend(
            x, lambda s: self.hidden(s, None if pad is None else ~pad[:, None, None])
        )


class Counted(Encoder):
    off = 0

    def forward(self, x, lengths=None):
        seen = None
        if lengths is not None:
            seen = (torch.arange(x.shape[1]) < lengths[:, None] + self.off)[:, None, None]
        return self.attend(x, lambda s: self.hidden(s, seen))


def found(code, **declared):
    return Padding().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "form", [Added, AddedByRow, Shown, Square, Hidden, Counted], ids=lambda form: form.__name__
)
def test_every_usual_form_is_found_and_right_code_passes(form, causal):
    torch.manual_seed(0)
    finding = found(form(causal=causal))
    assert finding.verdict == "pass", finding.detail


def test_a_mask_on_the_axis_of_the_queries_fails():
    class Turned(Encoder):
        def forward(self, x, attention_mask=None):
            return self.attend(x, lambda s: s if attention_mask is None else s + attention_mask.mT)

    torch.manual_seed(0)
    assert found(Turned()).verdict == "fail"


def test_a_mask_whose_name_says_its_sign_keeps_it():
    class Inverted(Encoder):
        def forward(self, x, key_padding_mask=None):
            pad = key_padding_mask
            seen = None if pad is None else pad[:, None, None]
            return self.attend(x, lambda s: self.hidden(s, seen))

    torch.manual_seed(0)
    assert found(Inverted()).verdict == "fail"


def test_a_mask_that_does_nothing_under_a_vague_name_is_no_mask_for_padding():
    class Ignores(Encoder):
        def forward(self, x, mask=None):
            return self.attend(x, lambda s: s)

    assert found(Ignores()).verdict == "not applicable"
    assert found(Ignores(), padding=True).verdict == "fail"  # but who says so has another reading


def test_a_mask_that_takes_the_place_of_the_causal_one_is_wrong_where_it_is_for_padding():
    class Replaces(Encoder):
        def forward(self, x, attn_mask=None):
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            return self.attend(
                x, lambda s: self.hidden(s, seen if attn_mask is None else attn_mask)
            )

    torch.manual_seed(0)
    assert found(Replaces(), causal=True).verdict == "not applicable"
    finding = found(Replaces(), causal=True, padding=True)
    assert finding.verdict == "fail" and finding.example.sizes["change"] == "empty"


def test_lengths_that_count_one_position_too_many_fail():
    class Longer(Counted):
        off = 1

    torch.manual_seed(0)
    assert found(Longer()).verdict == "fail"


def test_what_sees_both_ways_is_not_asked_to_be_padded_on_the_left():
    class Placed(Hidden):
        def forward(self, x, src_key_padding_mask=None):
            ramp = torch.linspace(0, 1, x.shape[2], dtype=x.dtype)
            places = torch.arange(x.shape[1])[:, None] * ramp
            return super().forward(x + places, src_key_padding_mask)

    torch.manual_seed(0)
    assert found(Placed(), padding=True, causal=False).verdict == "pass"
    assert found(Placed(causal=True), padding=True, causal=True).verdict == "fail"


def test_a_mask_that_is_wrong_in_every_form_is_told_in_one_that_is_taken():
    class Strict(Encoder):
        """Of [b, 1, t] only; and with a mask everything is seen."""

        def forward(self, x, pad_mask=None):
            if pad_mask is None:
                return self.attend(x, lambda s: s.tril())
            assert pad_mask.shape == (len(x), 1, x.shape[1])
            return self.attend(x, lambda s: self.hidden(s, ~pad_mask[:, None]))

    torch.manual_seed(0)
    finding = found(Strict())
    assert finding.verdict == "fail" and finding.example.sizes["change"] == "empty"


@pytest.mark.parametrize("right", [True, False])
def test_what_fills_up_a_block_is_not_taken_for_padding_that_is_read(right):
    class Blocks(Encoder):
        def forward(self, x, attention_mask=None):
            b, t, c = x.shape
            q, k, v = self.qkv(x).view(b, t // 8, 8, 3 * c).chunk(3, -1)
            scores = q @ k.mT / c**0.5
            if attention_mask is not None:
                kept = attention_mask.view(b, t // 8, 1, 8).bool()
                scores = scores.masked_fill(~(kept if right else kept.mT), -1e9)
            return (scores.softmax(-1) @ v).reshape(b, t, c)

    torch.manual_seed(0)
    finding = found(Blocks(), padding=True, causal=False)
    assert finding.verdict == ("pass" if right else "fail"), finding.detail


def attend_with(name, hidden):
    """A function of q, k and v that takes a mask, of which `hidden` makes pairs that are hidden."""
    space = {"torch": torch, "hidden": hidden}
    exec(
        f"def attend(q, k, v, {name}=None):\n"
        "    scores = q @ k.mT / q.shape[-1] ** 0.5\n"
        f"    if {name} is not None:\n"
        f"        scores = scores.masked_fill(hidden({name}), -1e9)\n"
        "    return scores.softmax(-1) @ v\n",
        space,
    )
    return space["attend"]


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("mask", lambda mask: ~mask[:, None, None]),
        ("attn_mask", lambda mask: ~mask[:, :1].expand(-1, -1, mask.shape[-1], -1)),
        ("mask", lambda mask: mask[:, None, None]),
        ("key_padding_mask", lambda mask: mask[:, None, None]),
        ("attn_mask", lambda mask: mask < -1),
    ],
)
def test_functions_of_q_k_and_v_are_given_a_padding_mask(name, hidden):
    finding = found(attend_with(name, hidden), causal=False)
    assert finding.verdict == "pass", finding.detail


def test_a_function_that_masks_its_queries_is_found():
    wrong = attend_with("mask", lambda mask: ~mask[:, None, :, None])
    assert found(wrong, padding=True, causal=False).verdict == "fail"


def test_a_mask_that_hides_nothing_and_changes_outputs_is_a_doubt_or_a_finding():
    wrong = next(one for one in padding.CASES if one.name == "zeros-of-a-block")
    assert found(wrong.make(True), causal=False).verdict == "cannot tell"
    finding = found(wrong.make(True), causal=False, padding=True)
    assert finding.verdict == "fail" and finding.aspect == "a mask without padding"
    assert found(wrong.make(False), causal=False, padding=True).verdict == "pass"


class Needed(nn.Module):
    """As course code has it: no default for its mask, 0 and −inf to be added, or 1 to attend to."""

    def __init__(self, added, wrong=False, width=16):
        super().__init__()
        self.width, self.added, self.wrong = width, added, wrong
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, hidden_states, attention_mask):
        q, k, v = self.qkv(hidden_states).chunk(3, -1)
        scores = q @ k.mT / self.width**0.5
        if self.added:
            weights = (scores + attention_mask[:, 0]).softmax(-1)
        else:
            keep = attention_mask[:, None].bool()
            weights = scores.masked_fill(~keep, float("-inf")).softmax(-1)
            weights = torch.where(keep, scores.softmax(-1), 0) if self.wrong else weights
        return weights @ v


@pytest.mark.parametrize("added", [True, False])
def test_a_mask_that_must_be_given_is_given(added):
    certificate = audit(Needed(added), padding=True)
    assert certificate.verdict == "pass", certificate


def test_a_mask_after_the_softmax_is_found_in_code_that_must_be_given_one():
    certificate = audit(Needed(added=False, wrong=True), padding=True)
    assert "padding" in {one.name for one in certificate.failed}


def test_a_mask_that_does_nothing_is_given_as_its_name_says():
    class ByQuery(Encoder):
        """Added to every key of a query alike, which a softmax does not notice."""

        def forward(self, x, attention_mask=None):
            def change(scores):
                if attention_mask is None:
                    return scores
                return scores + (1 - attention_mask[:, None, :, None].to(scores.dtype)) * -1e4

            return self.attend(x, change)

    subject = subject_for(ByQuery(), {}, "code")
    assert subject.convention.mask.form.text == "(~padding).long()"
    assert Padding().examine(Probe(subject, Contract(padding=True))).verdict == "fail"


@pytest.mark.parametrize("wrong", [True, False])
def test_numbers_to_add_stay_numbers_where_the_named_form_is_not_taken(wrong):
    subject = subject_for(padding.AddedMask(16, 2, wrong), {}, "code")
    assert subject.convention.mask.form.text == "additive_mask(padding, x)[:, None, None]"
