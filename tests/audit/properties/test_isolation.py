"""Rows keep to themselves, and padding is never read."""

import pytest
import torch
from torch import nn

from attnlab import config
from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.isolation import Batch, Padding
from attnlab.audit.subject.adapters import subject_for
from attnlab.models.transformer import TransformerSettings


def found(kind, code, **declared):
    return kind().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


class Mean(nn.Module):
    """Adds the mean of what it sees; `fault` says what it gets wrong."""

    def __init__(self, fault=""):
        super().__init__()
        self.layer, self.fault = nn.Linear(6, 6), fault

    def forward(self, x, key_padding_mask=None):
        y = self.layer(x)
        if self.fault == "batch":
            return y + y.mean(0, keepdim=True)
        pad = key_padding_mask
        if pad is None or self.fault == "ignored":
            pad = torch.zeros(x.shape[:2], dtype=torch.bool)
        if self.fault == "first row for all":
            pad = pad[:1].expand_as(pad)
        hidden = y.masked_fill(pad[..., None], 0)
        counts = torch.arange(1, x.shape[1] + 1) if self.fault == "counted" else (~pad).cumsum(1)
        return y + hidden.cumsum(1) / torch.as_tensor(counts).clamp(min=1).reshape(
            -1, x.shape[1], 1
        )


def test_honest_code_passes():
    assert found(Batch, Mean()).verdict == "pass"
    assert found(Padding, Mean()).verdict == "pass"


def test_a_neighbour_that_is_read_is_found():
    finding = found(Batch, Mean("batch"))
    assert finding.verdict == "fail" and finding.example["length"] == 2


@pytest.mark.parametrize("fault", ["ignored", "first row for all"])
def test_padding_that_is_read_is_found(fault):
    assert found(Padding, Mean(fault)).verdict == "fail"


@pytest.mark.parametrize("positions", ["none", "rotary", "learned"])
def test_our_transformer_passes(positions):
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=64)
    code = config.override(settings, [f"positions={positions}"]).build()
    assert found(Batch, code).verdict == "pass"
    assert found(Padding, code, causal=True).verdict == "pass"


def test_code_without_a_mask_cannot_be_asked():
    class Plain(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    assert found(Padding, Plain(4, 4)).verdict == "not applicable"
    assert found(Padding, Plain(4, 4), padding=True).verdict == "cannot tell"
