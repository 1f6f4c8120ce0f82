"""In evaluation mode the same inputs give the same outputs."""

import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.evaluation import Evaluation
from attnlab.audit.subject.adapters import subject_for


def found(code):
    return Evaluation().examine(Probe(subject_for(code, {}, "code"), Contract()))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_steady_code_passes():
    assert found(causal).verdict == "pass"


def test_dropout_that_stays_on():
    class Dropping(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.1)

    assert found(Dropping(4, 4)).verdict == "fail"


def test_a_state_that_stays():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    assert found(Counting(4, 4)).verdict == "fail"
