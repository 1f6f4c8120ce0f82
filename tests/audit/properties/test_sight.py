"""Causality and windows: leaks are found wherever they are, and windows counted."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract, audit
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.sight import Causality, Window, cuts, keys_seen
from attnlab.audit.subject.adapters import subject_for
from attnlab.kernels import attention


def found(kind, code, **declared):
    return kind().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def masked(seen):
    """Attention with a mask of its own making."""

    def attend(q, k, v):
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen(i, j))

    return attend


def test_full_causal_attention_passes_and_sees_all_that_came_before():
    code = masked(lambda i, j: j <= i)
    assert found(Causality, code, causal=True).verdict == "pass"
    assert found(Causality, code).measured is True
    assert found(Window, code).measured is None


@pytest.mark.parametrize("ahead", [1, 3, 64])
def test_a_leak_is_found_however_far_ahead_it_begins(ahead):
    """From a certain place on every query sees one key of the future."""
    code = masked(lambda i, j: (j <= i) | (j == i + ahead))
    finding = found(Causality, code, causal=True)
    assert finding.verdict == "fail" and finding.example["length"] >= ahead + 1
    assert finding.example["inputs"][0] > finding.example["output"]


def test_the_end_of_a_block_is_seen_by_all_of_it():
    code = masked(lambda i, j: j < (i // 64 + 1) * 64)
    finding = found(Causality, code, causal=True)
    assert finding.verdict == "fail" and finding.example["length"] == 2


def test_two_way_code_fails_only_where_it_is_declared_causal():
    code = masked(lambda i, j: torch.ones_like(i + j, dtype=torch.bool))
    assert found(Causality, code).verdict == "pass"
    assert found(Causality, code).measured is False
    assert found(Causality, code, causal=False).verdict == "not applicable"
    assert found(Causality, code, causal=True).verdict == "fail"


def test_a_mask_that_large_scores_beat_is_no_mask():
    def attend(q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:]).triu(1)
        return (scores - 1e5 * later).softmax(-1) @ v

    assert found(Causality, attend, causal=True).verdict == "fail"


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

    finding = found(Causality, attend, causal=True)
    assert finding.verdict == "cannot tell" and "not deterministic" in finding.detail


@pytest.mark.parametrize("window", [1, 2, 7, 20])
def test_a_window_is_counted_and_one_more_or_less_is_found(window):
    def attend(q, k, v):
        return attention(q, k, v, window=window)

    assert found(Window, attend).measured == window or window == 20
    assert found(Window, attend, window=window).verdict == "pass"
    for wrong in {window - 1, window + 1} - {0}:
        finding = found(Window, attend, window=wrong)
        assert finding.verdict == "fail" and finding.measured == window


def test_a_window_that_is_wrong_far_in_only():
    """Right up to position 18, then a key too many: as where a ring has wrapped."""
    code = masked(lambda i, j: (j <= i) & (i - j < torch.where(i > 18, 10, 9)))
    finding = found(Window, code, window=9)
    assert finding.verdict == "fail" and finding.example["output"] == 19
    assert found(Window, masked(lambda i, j: (j <= i) & (i - j < 9)), window=9).verdict == "pass"


def test_keys_are_counted_from_the_earliest_that_is_seen():
    seen = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
    assert keys_seen(seen).tolist() == [1, 1, 3]


def test_cuts_cover_short_texts_and_the_edges_of_blocks_in_long_ones():
    assert cuts(5) == [1, 2, 3, 4]
    assert {1, 15, 16, 17, 63, 64, 65, 69} <= set(cuts(70)) and max(cuts(70)) == 69


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("dilated", lambda i, j: (j <= i) & (i - j < 7) & ((i - j) % 2 == 0)),
        ("sinks", lambda i, j: (j <= i) & ((i - j < 7) | (j < 2))),
        ("blind to its own", lambda i, j: (j == i) & (i == 0) | (j < i) & (i - j < 7)),
    ],
)
def test_what_is_no_band_is_no_window(name, seen):
    assert found(Window, masked(seen), window=7).verdict == "fail"
    undeclared = found(Window, masked(seen))
    assert undeclared.verdict == "pass" and undeclared.measured is None
    assert "no window" in undeclared.detail


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
    assert found(Causality, strongest(True), causal=True).verdict == "fail"
    assert found(Causality, strongest(False), causal=True).verdict == "pass"


def test_a_tolerance_as_large_as_the_outputs_is_no_pass():
    def coarse(q, k, v):
        """Rounded to steps of a quarter of what comes out."""
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (y * 40).round() / 40 + 0.02 * (q * 1e15).sin()

    verdicts = {one.name: one.verdict for one in audit(coarse, causal=True).findings}
    assert verdicts["window"] != "pass" and verdicts["batch"] != "pass"
