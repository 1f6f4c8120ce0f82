"""Texts that share a row are told apart, or it is found; nothing is claimed of other code."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit.contract import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.packing import FORMS, Packing, arguments
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject
from attnlab.models.transformer import TransformerSettings


class Code(nn.Module):
    def __init__(self, places=False):
        super().__init__()
        self.width, self.project = 8, nn.Linear(8, 24)
        self.table = nn.Embedding(64, 8) if places else None

    def attend(self, x, seen=None, bias=None, places=None):
        if self.table is not None:
            x = x + self.table(torch.arange(x.shape[1]) if places is None else places)
        q, k, v = self.project(x).chunk(3, -1)
        scores = q @ k.mT
        if bias is not None:
            scores = scores + bias
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        hidden = ~past if seen is None else ~(past & seen)
        return x + scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


class Plain(Code):
    def forward(self, x):
        return self.attend(x)


class Placed(Code):
    def forward(self, x, position_ids=None):
        return self.attend(x, places=position_ids)


class Padded(Code):
    def forward(self, x, attention_mask=None):
        return self.attend(x, None if attention_mask is None else attention_mask[:, None].bool())


class Documents(Code):
    fault = None

    def forward(self, x, document_ids=None, position_ids=None):
        if document_ids is None:
            return self.attend(x, places=position_ids)
        same = document_ids[:, None] == document_ids[..., None]
        if self.fault == "ignored":
            same = torch.ones_like(same)
        places = None if self.fault == "positions" else position_ids
        return self.attend(x, same, places=places)


class Running(Code):
    """Absolute positions that run on, and nobody could tell it otherwise."""

    def forward(self, x, document_ids=None):
        same = None if document_ids is None else document_ids[:, None] == document_ids[..., None]
        return self.attend(x, same)


class Sentences(Code):
    """First and second sentence: kinds of tokens, which see each other."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(3, 8)

    def forward(self, x, segment_ids=None):
        return self.attend(x if segment_ids is None else x + self.kinds(segment_ids))


class Masked(Code):
    def __init__(self, form, axes):
        super().__init__()
        self.form, self.axes = form, axes

    def forward(self, x, mask=None):
        if mask is None:
            return self.attend(x)
        assert mask.dim() == self.axes
        mask = mask.reshape(mask.shape[-2:])
        if self.form == "added":
            return self.attend(x, bias=mask)
        return self.attend(x, mask if self.form == "seen" else ~mask)


class Restarting(Code):
    """A text begins wherever a position is 0."""

    def __init__(self, fault=None, places=False):
        super().__init__(places)
        self.fault = fault

    def forward(self, x, position_ids=None):
        if position_ids is None:
            return self.attend(x)
        number = (position_ids == 0).cumsum(-1)
        if self.fault == "first border only":
            number = number.clamp(max=2)
        return self.attend(x, number[:, :, None] == number[:, None], places=position_ids)


def found(code, **declared):
    return Packing().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def faulty(fault):
    code = Documents(places=fault == "positions")
    code.fault = fault
    return code


@pytest.mark.parametrize("code", [Documents(), Documents(places=True), Running(places=True)])
def test_texts_that_are_kept_apart_pass(code):
    finding = found(code, causal=True)
    assert finding.verdict == "pass", finding.detail
    assert ("not as alone" in finding.detail) == isinstance(code, Running)


@pytest.mark.parametrize("fault", ["ignored", "positions"])
def test_texts_that_are_not_fail(fault):
    finding = found(faulty(fault), causal=True)
    assert finding.verdict == "fail" and "document_ids" in finding.detail


@pytest.mark.parametrize("code", [Plain(), Placed(places=True), Padded(), Sentences()])
def test_nothing_is_claimed_of_code_that_is_not_told(code):
    assert found(code, causal=True).verdict == "not applicable"


@pytest.mark.parametrize("axes", [2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_is_understood_in_every_form(form, axes):
    finding = found(Masked(form, axes), causal=True)
    assert finding.verdict == "pass" and "separated by mask" in finding.detail


def test_functions_may_take_a_mask_too():
    def attention(q, k, v, attn_mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=attn_mask is None)

    assert found(attention, causal=True).verdict == "pass"


def test_a_subject_of_ones_own_says_how():
    right = subject_for(Documents(), {}, "code")

    def packed(x, lengths):
        return right.named(x, **arguments(("document_ids", "", 0), lengths, [], True, x.dtype))

    class Own(Subject):
        def __init__(self, how):
            self.how = how

        def draw(self, batch, length, seed):
            return right.draw(batch, length, seed)

        def run(self, x, *, padding=None, positions=None):
            return right.run(x)

        def packed(self, x, lengths):
            return self.how(x, lengths)

    for how, verdict in ((packed, "pass"), (lambda x, lengths: right.run(x), "fail")):
        subject = Own(how)
        finding = Packing().examine(Probe(subject, Contract(causal=True)))
        assert finding.verdict == verdict, finding.detail


def test_positions_that_hide_the_texts_before_are_enough():
    for places in (False, True):
        finding = found(Restarting(places=places), causal=True, segments="alone")
        assert finding.verdict == "pass" and "separated by position_ids" in finding.detail


def test_those_that_hide_nothing_are_said_to():
    """Declared it cannot be told; and beside another way it is measured."""
    assert found(Placed(places=True), segments="apart").verdict == "cannot tell"
    finding = found(Documents(places=True), causal=True)
    assert "position_ids alone that begin anew do not separate them" in finding.detail


def test_a_leak_between_restarting_positions_fails_only_where_texts_are_declared_apart():
    code = Restarting("first border only")
    assert found(code, causal=True).verdict == "not applicable"
    finding = found(code, causal=True, segments="apart")
    assert finding.verdict == "fail" and "of text 2 moves" in finding.detail


def test_positions_that_run_on_fail_only_where_texts_are_declared_as_alone():
    code = Running(places=True)
    assert found(code, causal=True, segments="apart").verdict == "pass"
    finding = found(code, causal=True, segments="alone")
    assert finding.verdict == "fail" and "when it stands alone" in finding.detail
    assert found(Running(), causal=True, segments="alone").verdict == "pass"


@pytest.mark.parametrize("declared", ["apart", "alone"])
def test_our_own_models_keep_texts_apart(declared):
    torch.manual_seed(0)
    model = TransformerSettings(vocabulary=31, context=64, width=32, depth=1).build()
    finding = found(model, causal=True, segments=declared)
    assert finding.verdict == "pass" and "separated by segments" in finding.detail


def test_texts_that_are_declared_apart_need_not_be_as_alone():
    """It takes positions, and does not use them."""
    assert found(faulty("positions"), causal=True).verdict == "fail"
    assert found(faulty("positions"), causal=True, segments="apart").verdict == "pass"
