"""Causality: leaks are found wherever they are."""

import pytest
import torch
import torch.nn.functional as F
from audit.properties.masks import masked
from torch import nn

from attnlab.audit import Contract, audit
from attnlab.audit.bugs.cases import cases
from attnlab.audit.bugs.lengths import CONTROLS
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.causality import Causality, cuts
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject, normal


def found(code, **declared):
    return Causality().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def test_full_causal_attention_passes_and_sees_all_that_came_before():
    code = masked(lambda i, j: j <= i)
    assert found(code, causal=True).verdict == "pass"
    assert found(code).measured is True


@pytest.mark.parametrize("ahead", [1, 3, 64])
def test_a_leak_is_found_however_far_ahead_it_begins(ahead):
    """From a certain place on every query sees one key of the future."""
    code = masked(lambda i, j: (j <= i) | (j == i + ahead))
    finding = found(code, causal=True)
    assert finding.verdict == "fail" and finding.example.sizes["length"] >= ahead + 1


def test_the_end_of_a_block_is_seen_by_all_of_it():
    code = masked(lambda i, j: j < (i // 64 + 1) * 64)
    finding = found(code, causal=True)
    assert finding.verdict == "fail" and finding.example.sizes["length"] == 2


def test_two_way_code_fails_only_where_it_is_declared_causal():
    code = masked(lambda i, j: torch.ones_like(i + j, dtype=torch.bool))
    assert found(code).verdict == "pass"
    assert found(code).measured is False
    assert found(code, causal=False).verdict == "not applicable"
    assert found(code, causal=True).verdict == "fail"


def test_a_mask_that_large_scores_beat_is_no_mask():
    def attend(q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:]).triu(1)
        return (scores - 1e5 * later).softmax(-1) @ v

    assert found(attend, causal=True).verdict == "fail"


def test_a_gate_at_zero_hides_nothing():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(8, 8)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gate * self.mix(x).mean(1, keepdim=True)

    finding = audit(Gated(), causal=True).findings
    assert {one.name: one.verdict for one in finding}["causality"] == "fail"


def test_dropout_in_evaluation_is_not_a_leak():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.5)

    found = {one.name: one for one in audit(attend, causal=True).findings}
    assert found["causality"].verdict == "pass"
    assert found["causality"].detail.endswith("with one random seed")
    assert found["evaluation"].verdict == "fail"


def test_cuts_are_all_of_them_or_near_the_ends_in_the_middle_and_at_a_last_block():
    assert cuts(5, all_of_them=True) == [1, 2, 3, 4]
    assert {1, 35, 64, 69} <= set(cuts(70)) and len(cuts(70)) < 7


@pytest.mark.parametrize("place", [24, 47, 61, 89, 101, 127])
def test_a_leak_at_one_place_of_a_long_text_is_found_wherever_it_is(place):
    finding = found(masked(lambda i, j: (j <= i) | ((i == place) & (j == i + 1))), causal=True)
    assert finding.verdict == "fail" and f"output {place} moves" in finding.detail


@pytest.mark.parametrize("case", cases("lengths")["lengths"], ids=lambda case: case.name)
def test_leaks_that_few_lengths_show_are_found_and_their_twins_pass(case):
    verdict = "fail" if "causality" in case.reasons else "pass"
    for wrong, wanted in ((True, verdict), (False, "pass")):
        finding = Causality().examine(Probe(case.subject(wrong), case.contract))
        assert finding.verdict == wanted, finding.detail


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_what_code_refuses_is_said_where_nothing_is_wrong(control):
    finding = Causality().examine(Probe(control.subject(), control.contract))
    assert finding.verdict == "pass"
    assert "raised ValueError in `forward` at length" in finding.detail


def test_rows_that_are_mixed_make_no_leak():
    """Each row sees those before it, which many changed rows in one call would show as leaks."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).cumsum(0)

    assert found(attend, causal=True).verdict == "pass"


def test_code_for_two_rows_only_is_examined_in_calls_of_two():
    for later, verdict in ((0, "pass"), (1, "fail")):

        def attend(q, k, v, later=later):
            assert len(q) == 2
            seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(later)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

        assert found(attend, causal=True).verdict == verdict


class OfLength(Subject):
    """Causal, for texts of one length only."""

    name, width = "of one length", 8

    def __init__(self, length):
        self.length = length

    def draw(self, batch, length, seed):
        return normal(seed, batch, length, self.width)

    def run(self, x, *, padding=None, positions=None):
        assert x.shape[1] == self.length
        return x.cumsum(1)


def test_code_for_one_length_is_examined_at_it_and_one_position_has_no_future():
    verdicts = {5: "pass", 1: "cannot tell"}
    for length, verdict in verdicts.items():
        finding = Causality().examine(Probe(OfLength(length), Contract(causal=True)))
        assert finding.verdict == verdict, finding.detail
    assert "no future" in finding.detail


def strongest(wrong):
    """The two strongest keys of each query; `wrong` lets those to come take their places."""

    def attend(q, k, v):
        scores = q @ k.mT
        past = torch.ones_like(scores, dtype=torch.bool).tril()
        shown = scores if wrong else scores.masked_fill(~past, -torch.inf)
        least = shown.topk(min(2, scores.shape[-1])).values[..., -1:]
        kept = past & ((scores >= least) | torch.eye(len(scores[0, 0]), dtype=torch.bool))
        return scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v

    return attend


def test_choices_that_jump_do_not_hide_a_leak():
    assert found(strongest(True), causal=True).verdict == "fail"
    assert found(strongest(False), causal=True).verdict == "pass"


def test_a_tolerance_as_large_as_the_outputs_is_no_pass():
    def coarse(q, k, v):
        """Rounded to steps of a quarter of what comes out."""
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (y * 40).round() / 40 + 0.02 * (q * 1e15).sin()

    verdicts = {one.name: one.verdict for one in audit(coarse, causal=True).findings}
    assert verdicts["window"] != "pass" and verdicts["batch"] != "pass"
