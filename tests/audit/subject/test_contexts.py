"""What code attends to besides its text, and what makes it causal, is found by trying it out."""

import pytest
import torch
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.bugs.contexts import DeafToItsMask, MaskedWeights, SeenMask, Translator
from attnlab.audit.bugs.controls import SelfOrCross
from attnlab.audit.subject.adapters import arrange, subject_for


def convention(code):
    return subject_for(code, {}, "code").convention


@pytest.mark.parametrize(
    ("code", "names", "mask", "form"),
    [
        (DeafToItsMask(32, 4, False), ("context",), "context_mask", "~padding"),
        (MaskedWeights(32, 4, False), ("memory",), "memory_key_padding_mask", "padding"),
        (SeenMask(32, 4, False), ("memory",), "src_mask", "~padding[:, None]"),
        (SelfOrCross(32, 4), ("context",), "mask", "~padding"),
        (nn.MultiheadAttention(32, 4), ("key", "value"), "key_padding_mask", "padding"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else "",
)
def test_a_context_is_found_with_the_form_of_its_mask(code, names, mask, form):
    context = convention(code).context
    assert context.names == names
    assert (context.mask.name, context.mask.form.text) == (mask, form)


def test_a_mask_over_the_context_is_not_one_over_the_text():
    assert convention(DeafToItsMask(32, 4, False)).mask is None
    assert convention(SelfOrCross(32, 4)).mask.hides


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_context_may_be_longer_and_shorter_than_the_text(batch_first):
    layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=batch_first)
    subject = subject_for(nn.TransformerDecoder(layer, 2), {}, "code")
    assert subject.layout == (None if batch_first else "tbc")
    for length, positions in ((3, 11), (11, 3)):
        out = subject.run_on(subject.draw(2, length, 0), subject.draw_context(2, positions, 1))
        assert out.shape == (2, length, 32)


def test_of_two_texts_the_one_that_is_written_is_audited():
    subject = subject_for(nn.Transformer(32, 4, 1, 1, 64), {}, "code")
    found = subject.convention
    assert (found.lead, found.contexts, found.layout) == ("tgt", ("src",), "tbc")
    assert {found.context.mask.name, *found.context.also} == {
        "src_key_padding_mask",
        "memory_key_padding_mask",
    }
    assert found.mask.name == "tgt_key_padding_mask"
    out = subject.run_on(subject.draw(2, 3, 0), subject.draw_context(2, 11, 1))
    assert out.shape == (2, 3, 32)


def test_what_is_read_may_be_tokens():
    subject = subject_for(Translator(37, 32, False), {}, "code")
    assert subject.convention.context_tokens
    assert subject.draw_context(2, 5, 0).dtype is torch.int64


def test_the_context_has_the_precision_of_the_text():
    subject = subject_for(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), {}, "code")
    subject.module.float()
    assert subject.run(subject.draw(2, 5, 0).float()).dtype is torch.float32


@pytest.mark.parametrize(
    ("code", "name", "drawn"),
    [
        (nn.TransformerDecoderLayer(32, 4, 64), "tgt_mask", "triu(1)"),
        (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), "src_mask", "triu(1)"),
        (nn.MultiheadAttention(32, 4), "attn_mask", "triu(1)"),
        (SeenMask(32, 4, False), "tgt_mask", "tril()[None]"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else "",
)
def test_a_caller_that_makes_it_causal_does_so_where_that_is_declared(code, name, drawn):
    subject = subject_for(code, {}, "code")
    assert arrange(subject, Contract()).convention.given == {}
    given = arrange(subject, Contract(causal=True)).convention.given
    assert list(given) == [name]
    assert given[name].endswith(drawn)


def test_a_mask_that_code_may_be_called_without_is_not_given():
    """Code that is causal by itself must be so without a mask."""

    class Own(SelfOrCross):
        def forward(self, x, attn_mask=None):
            return super().forward(x, mask=attn_mask)

    subject = arrange(subject_for(Own(32, 4), {}, "code"), Contract(causal=True))
    assert subject.convention.given == {}
    assert subject.causal_by == ""
