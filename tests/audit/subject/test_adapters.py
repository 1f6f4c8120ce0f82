"""Probing gives a frozen convention, and an audit leaves the subject built from it as it was."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit.contract import Contract
from attnlab.audit.errors import InputError
from attnlab.audit.examine import examine
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.packing import Packing
from attnlab.audit.subject.adapters import arrange, subject_for
from attnlab.audit.subject.convention import Convention


class Vague(nn.Module):
    """Takes a `mask` and ignores it: it is for padding only if somebody says so."""

    def __init__(self, dim=8):
        super().__init__()
        self.dim, self.inner = dim, nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        return self.inner(x.cumsum(1))


def facts(subject):
    return {name: value for name, value in vars(subject).items() if name != "backends"}


def test_an_audit_leaves_its_subject_as_it_was():
    subject = subject_for(Vague(), {}, "vague")
    before = facts(subject)
    examine(subject, Contract(causal=True, padding=True, layout="btc"))
    assert facts(subject) == before and not subject.pads and subject.layout is None


def test_a_mask_of_a_vague_name_is_for_padding_where_that_is_declared():
    subject = subject_for(Vague(), {}, "vague")
    assert not subject.pads and not Probe(subject, Contract()).subject.pads
    assert Probe(subject, Contract(padding=True)).subject.pads
    assert arrange(subject, Contract(causal=True)) is subject  # nothing to change


def test_a_convention_is_frozen_and_says_how_the_code_is_called():
    class Decoding(nn.Module):
        def __init__(self, dim=8, num_heads=2):
            super().__init__()
            self.dim, self.num_heads, self.inner = dim, num_heads, nn.Linear(dim, 3 * dim)

        def forward(self, x, start_pos, context, key_padding_mask=None, past=None):
            q, k, v = self.inner(x).chunk(3, -1)
            if past is not None:
                k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
            seen = seen.tril(k.shape[1] - q.shape[1])
            if key_padding_mask is not None:
                seen = seen & ~key_padding_mask[:, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).nan_to_num()
            return y + context.sum() + 0 * start_pos, (k, v)

    found = subject_for(Decoding(), {}, "mine").convention
    assert isinstance(found, Convention) and (found.heads, found.width) == (2, 8)
    assert found.constants == {"start_pos": 0} and found.contexts == ("context",)
    assert found.mask.name == "key_padding_mask" and found.mask.form.text == "padding"
    assert found.mask.hides and found.decoder.words == ("past",)
    for part in (found, found.mask, found.mask.form, found.decoder):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, None)


def test_positions_may_be_given_by_any_name_beside_segments():
    class Packed(nn.Module):
        def __init__(self, dim=8):
            super().__init__()
            self.dim, self.inner, self.table = dim, nn.Linear(dim, 3 * dim), nn.Embedding(99, dim)

        def forward(self, x, positions=None, document_ids=None):
            places = torch.arange(x.shape[1])[None] if positions is None else positions
            q, k, v = self.inner(x + self.table(places)).chunk(3, -1)
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            if document_ids is not None:
                seen = seen & (document_ids[..., None] == document_ids[:, None])
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    found = Packing().examine(Probe(subject_for(Packed(), {}, "mine"), Contract(causal=True)))
    assert found.verdict == "pass", found.detail


@pytest.mark.parametrize(
    ("last", "said"), [(False, "UnboundLocalError"), (True, r"gave \[2, 71\]")]
)
def test_what_is_wrong_with_tokens_is_not_hidden_by_a_second_guess(last, said):
    class Wrong(nn.Module):
        """Its tokens have a name that says nothing."""

        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(71, 36), nn.Linear(36, 71)

        def forward(self, t):
            x = self.table(t)
            if last:
                return self.head(x[:, -1])
            if len(t) > 99:
                y = x
            return self.head(y)

    with pytest.raises(InputError, match=rf"with tokens \[2, 5\] of 71: .*{said}"):
        subject_for(Wrong(), {}, "wrong")
