"""Padding is never read."""

import pytest
from audit.properties.means import Mean
from torch import nn

from attnlab import config
from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.padding import Padding
from attnlab.audit.subject.adapters import subject_for
from attnlab.models.transformer import TransformerSettings


def found(code, **declared):
    return Padding().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def test_honest_code_passes():
    assert found(Mean()).verdict == "pass"


@pytest.mark.parametrize("fault", ["ignored", "first row for all"])
def test_padding_that_is_read_is_found(fault):
    assert found(Mean(fault)).verdict == "fail"


@pytest.mark.parametrize("positions", ["none", "rotary", "learned"])
def test_our_transformer_passes(positions):
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=64)
    code = config.override(settings, [f"positions={positions}"]).build()
    assert found(code, causal=True).verdict == "pass"


def test_code_without_a_mask_cannot_be_asked():
    class Plain(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    assert found(Plain(4, 4)).verdict == "not applicable"
    assert found(Plain(4, 4), padding=True).verdict == "cannot tell"


def test_a_mask_of_an_unknown_name_that_is_declared_is_told_how_to_be_known():
    finding = found(nn.Linear(5, 5), padding=True)
    assert finding.verdict == "cannot tell" and "`key_padding_mask`" in finding.detail
