"""Rows keep to themselves."""

import pytest
from audit.properties.means import Mean

from attnlab import config
from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.batch import Batch
from attnlab.audit.subject.adapters import subject_for
from attnlab.models.transformer import TransformerSettings


def found(code, **declared):
    return Batch().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def test_honest_code_passes():
    assert found(Mean()).verdict == "pass"


def test_a_neighbour_that_is_read_is_found():
    finding = found(Mean("batch"))
    assert finding.verdict == "fail" and finding.example.sizes["length"] == 2


@pytest.mark.parametrize("positions", ["none", "rotary", "learned"])
def test_our_transformer_passes(positions):
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=64)
    code = config.override(settings, [f"positions={positions}"]).build()
    assert found(code).verdict == "pass"
