"""The scale: measured wherever it is applied, and only that of the model fails."""

import pytest
from audit.properties.attentions import Module, dense

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.scale import Scale
from attnlab.audit.subject.adapters import subject_for


def found(code, options=None, **declared):
    return Scale().examine(Probe(subject_for(code, options or {}, "code"), Contract(**declared)))


@pytest.mark.parametrize(
    ("scale", "verdict", "name"),
    [
        (lambda q: q.shape[3] ** -0.5, "pass", "1/√(head width)"),
        (lambda q: 1.0, "pass", ": 1 ("),
        (lambda q: 1 / q.shape[3], "pass", "1/(head width)"),
        (lambda q: 0.77, "pass", "of its own"),
        (lambda q: (q.shape[1] * q.shape[3]) ** -0.5, "fail", "1/√(heads · head width)"),
    ],
)
def test_the_scale_is_measured_and_only_that_of_the_model_fails(scale, verdict, name):
    finding = found(dense(scale=scale))
    assert finding.verdict == verdict and name in finding.detail


def test_the_scale_of_a_module_is_measured_wherever_it_is_applied():
    assert found(Module()).measured == pytest.approx(8**-0.5)
    assert found(Module(scale=32**-0.5)).verdict == "fail"


def test_a_model_width_that_a_setting_asks_for_is_a_choice():
    module = Module(scale=32**-0.5)
    module.config = type("Config", (), {})()
    module.config.query_scaling = 32
    assert found(module).verdict == "pass"
