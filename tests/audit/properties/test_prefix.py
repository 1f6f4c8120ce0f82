"""Prefixes: outputs that know the length of the text are found, and choices are left alone."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract
from attnlab.audit.bugs.cases import cases
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.prefix import Prefix, pairs
from attnlab.audit.subject.adapters import subject_for


@pytest.fixture(autouse=True)
def seeded():
    """The weights of the code under audit are the same in any order of the tests."""
    torch.manual_seed(0)


def found(code, **declared):
    return Prefix().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


KNOWN = [case for case in cases("lengths")["lengths"] if "prefix" in case.reasons]


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case.name)
def test_bugs_of_lengths_fail_and_their_twins_pass(case):
    for wrong, verdict in ((True, "fail"), (False, "pass")):
        finding = Prefix().examine(Probe(case.subject(wrong), case.contract))
        assert finding.verdict == verdict, finding.detail


@pytest.mark.parametrize("edge", [16, 32, 64, 128])
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_code_that_is_wrong_at_one_length_is_found_around_every_usual_block(edge, past):
    def attend(q, k, v):
        y = causal(q, k, v)
        return y * 2 if q.shape[2] == edge + past else y

    finding = found(attend, causal=True)
    assert finding.verdict == "fail" and f" {edge + past}" in finding.detail


def test_causality_need_not_be_declared():
    assert found(lambda q, k, v: causal(q, k, v) / q.shape[2] ** 0.5).verdict == "fail"


def test_two_way_code_is_not_asked():
    def both(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    assert found(both).verdict == found(both, causal=False).verdict == "not applicable"
    assert found(both, causal=True).verdict == "not applicable"  # causality says what is wrong


class Placed(nn.Module):
    """Positions are added to the inputs, by a number for each that `count` gives."""

    def __init__(self, count):
        super().__init__()
        self.width, self.count = 16, count
        self.project, self.table = nn.Linear(16, 48), nn.Embedding(256, 16)

    def forward(self, x):
        q, k, v = self.project(x + self.table(self.count(x.shape[1]))).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_positions_that_are_counted_from_the_end_are_no_failure():
    assert found(Placed(torch.arange), causal=True).verdict == "pass"
    finding = found(Placed(lambda t: torch.arange(t).flip(0)), causal=True)
    assert finding.verdict == "cannot tell" and "counted from the end" in finding.detail
    # every second one from the beginning, and so many between: not from the end either
    wrong = found(Placed(lambda t: torch.arange(t) * (2 if t > 30 else 1)), causal=True)
    assert wrong.verdict == "fail"


def test_positions_that_can_be_told_are_told_before_anything_fails():
    class Told(Placed):
        def forward(self, x, positions=None):
            places = self.count(x.shape[1]) if positions is None else positions
            q, k, v = self.project(x + self.table(places)).chunk(3, -1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y / x.shape[1] if self.wrong else y

    for wrong, verdict in ((False, "cannot tell"), (True, "fail")):
        code = Told(lambda t: torch.arange(t).flip(0))
        code.wrong = wrong
        assert found(code, causal=True).verdict == verdict


def test_where_nothing_can_be_seen_only_what_no_positions_would_do_fails():
    class Hidden(nn.Module):
        def __init__(self, change):
            super().__init__()
            self.width, self.change, self.project = 16, change, nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.project(x).chunk(3, -1)
            scores = (q[:, :, None] * k[:, None]).sum(-1)
            past = torch.ones(x.shape[1], x.shape[1]).tril() > 0
            weights = scores.masked_fill(~past, -math.inf).softmax(-1)
            return self.change((weights[..., None] * v[:, None]).sum(2))

    verdicts = {
        "pass": lambda y: y,
        "fail": lambda y: y / y.shape[1],
        "cannot tell": lambda y: y + torch.arange(y.shape[1]).flip(0)[:, None].to(y).sin(),
    }
    for verdict, change in verdicts.items():
        assert found(Hidden(change), causal=True).verdict == verdict


def test_code_for_short_texts_is_not_asked_for_long_ones():
    class Short(Placed):
        def forward(self, x):
            assert x.shape[1] <= 90
            return super().forward(x)

    code = Short(torch.arange)
    assert found(code, causal=True).verdict == "pass"
    probe = Probe(subject_for(code, {}, "code"), Contract())
    assert max(max(pair) for pair in pairs(probe)) == 90


@pytest.mark.parametrize("length", [11, 47, 53, 96, 107])
def test_code_that_is_wrong_at_one_length_far_from_blocks_is_found(length):
    def attend(q, k, v):
        return causal(q, k, v) * (2 if q.shape[2] == length else 1)

    assert found(attend, causal=True).verdict == "fail"


def test_what_is_said_of_later_inputs_is_what_was_seen():
    """Texts of 47 leak, and longer ones do not: the inputs behind it are told, not all later."""

    def attend(q, k, v):
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(int(q.shape[2] == 47))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    finding = found(attend, causal=True)
    assert finding.verdict == "fail" and "inputs from 47 on do not move it" in finding.detail


def test_one_length_has_no_beginnings():
    class Eight(Placed):
        def forward(self, x):
            assert x.shape[1] == 8
            return super().forward(x)

    finding = found(Eight(torch.arange), causal=True)
    assert finding.verdict == "cannot tell" and "two lengths" in finding.detail


def test_code_in_blocks_is_compared_at_whole_blocks_and_never_failed():
    class Blocks(nn.Module):
        def __init__(self, wrong):
            super().__init__()
            self.width, self.wrong, self.project = 16, wrong, nn.Linear(16, 48)

        def forward(self, x):
            assert x.shape[1] % 8 == 0
            q, k, v = self.project(x).chunk(3, -1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y / x.shape[1] if self.wrong else y

    assert found(Blocks(False), causal=True).verdict == "pass"
    finding = found(Blocks(True), causal=True)
    assert finding.verdict == "cannot tell" and "whole blocks" in finding.detail


def test_what_later_inputs_choose_is_told_once_as_a_leak():
    """Top-k over all keys: a random future need not change what an early query is left with."""

    def attend(q, k, v):
        t = q.shape[2]
        scores = q @ k.mT * q.shape[-1] ** -0.5
        least = scores.topk(min(4, t), -1).values[..., -1:]
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(scores < least, -1e9).masked_fill(future, -math.inf)
        return scores.softmax(-1) @ v

    finding = found(attend, causal=True)
    assert finding.verdict == "not applicable" and "see causality" in finding.detail
