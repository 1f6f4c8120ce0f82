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


class Late(nn.Linear):
    """Right until a text of 23 was run so many times."""

    def __init__(self, right):
        super().__init__(4, 4)
        self.right, self.calls = right, 0

    def forward(self, x):
        self.calls += x.shape[1] == 23
        return super().forward(x) + (self.calls > self.right)


def test_code_that_changes_later_is_found_by_the_calls_that_tolerances_are_made_of():
    # of 23: the length is tried, then the first call, three more, three of other seeds
    steady = Late(10**9)
    subject = subject_for(steady, {}, "code")
    subject.module.calls = 0
    finding = Evaluation().examine(Probe(subject, Contract()))
    assert finding.verdict == "pass" and subject.module.calls == 8

    for right in (2, 4, 7):
        changing = subject_for(Late(10**9), {}, "code")
        changing.module.calls, changing.module.right = 0, right
        assert Evaluation().examine(Probe(changing, Contract())).verdict == "fail"
