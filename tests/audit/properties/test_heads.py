"""Heads: which key/value head each reads, of functions and of modules."""

import pytest
import torch
from audit.properties.attentions import Module, dense, spread

from attnlab.attention.heads import Grouped, HeadedAttention, Layer, MultiHead, MultiQuery
from attnlab.attention.scores import ScaledDot
from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.heads import Heads
from attnlab.audit.subject.adapters import subject_for
from attnlab.kernels import attention


def found(code, options=None, **declared):
    return Heads().examine(Probe(subject_for(code, options or {}, "code"), Contract(**declared)))


def test_grouped_heads_of_a_function_are_tried_in_all_ratios():
    finding = found(lambda q, k, v: attention(q, k, v))
    assert finding.verdict == "pass"
    assert all(shape in finding.detail for shape in ("4:2", "6:3", "8:2", "14:2", "7:1"))


def test_code_that_takes_no_grouped_heads_is_not_blamed_for_it():
    assert found(dense()).verdict == "pass"


@pytest.mark.parametrize(
    "index",
    [
        lambda head, heads, kv_heads: head % kv_heads,
        lambda head, heads, kv_heads: min(head // kv_heads, kv_heads - 1),
        lambda head, heads, kv_heads: 0,
    ],
    ids=["tiled", "divided by key/value heads", "the first only"],
)
def test_a_map_that_is_not_by_neighbours_fails(index):
    finding = found(dense(spread(index)))
    assert finding.verdict == "fail" and "key/value heads [" in finding.detail


def test_keys_and_values_of_different_heads_fail():
    finding = found(dense(lambda q, k, v: (q, k, v.flip(1))))
    assert finding.verdict == "fail"


def test_heads_that_are_averaged_fail_in_code_without_weights():
    finding = found(dense(lambda q, k, v: (q, k.mean(1, keepdim=True).expand_as(k), v)))
    assert finding.verdict == "fail" and "not of one" in finding.detail


def test_queries_that_end_up_in_another_head_and_time_fail():
    def scramble(q, k, v):
        b, h, t, d = q.shape
        return q.reshape(b, t, h, d).transpose(1, 2), k, v

    finding = found(dense(scramble))
    assert finding.verdict == "fail" and "moves the output of head" in finding.detail


@pytest.mark.parametrize("settings", [MultiHead(heads=4), Grouped(heads=4), MultiQuery(heads=4)])
def test_our_own_heads_pass_and_their_map_is_seen(settings):
    module = HeadedAttention(settings, ScaledDot().build(4, 8), Layer(width=32))
    options = {"width": 32}
    finding = found(module, options, causal=True, heads=4, kv_heads=settings.kv_heads)
    assert finding.verdict == "pass"
    copies = 4 // settings.kv_heads
    assert finding.measured == [head // copies for head in range(4)]


def test_heads_of_a_module_are_held_to_what_is_declared():
    assert found(Module(), heads=4, kv_heads=2).verdict == "pass"
    assert found(Module(), kv_heads=4).verdict == "fail"
    assert found(Module(), heads=8).verdict == "fail"


def test_a_tiled_module_fails_if_key_value_heads_are_declared():
    finding = found(Module(spread="tile"), kv_heads=2)
    assert finding.verdict == "fail" and finding.measured == [0, 1, 0, 1]


def test_a_tiled_module_of_which_nothing_is_declared_is_reported():
    finding = found(Module(spread="tile"))
    assert finding.verdict == "pass" and "tiled" in finding.detail


@pytest.mark.parametrize(
    ("wrong", "said"), [({"cut": False}, "mixed"), ({"merge": False}, "depends on the length")]
)
def test_heads_cut_across_time_fail_on_either_side(wrong, said):
    finding = found(Module(kv_heads=4, **wrong))
    assert finding.verdict == "fail" and said in finding.detail


@pytest.mark.parametrize("tiled", [False, True])
def test_heads_that_share_keys_inside_an_einsum_are_seen(tiled):
    class Grouped(torch.nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.dim, self.n_kv_heads = dim, 2
            self.q, self.kv = torch.nn.Linear(dim, dim), torch.nn.Linear(dim, 16)

        def forward(self, x):
            q = self.q(x).unflatten(-1, (2, 2, 8))
            k, v = self.kv(x).unflatten(-1, (2, 2, 4)).unbind(2)
            k, v = (torch.cat((one, one), -1) for one in (k, v))
            words = ("bigkd", "bigkd") if tiled else ("bikgd", "bikgd")
            scores = torch.einsum(f"{words[0]},bjkd->bkgij", q, k) * 8**-0.5
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            return torch.einsum(f"bkgij,bjkd->{words[1]}", weights, v).flatten(2)

    torch.manual_seed(0)
    finding = found(Grouped(), kv_heads=2)
    assert finding.measured == ([0, 1, 0, 1] if tiled else [0, 0, 1, 1])
    assert finding.verdict == ("fail" if tiled else "pass")
