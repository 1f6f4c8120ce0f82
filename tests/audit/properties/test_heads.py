"""Heads, scale and weights: what is read, by what it is divided, and what it adds up to."""

import math

import pytest
import torch
from torch import nn

from attnlab.attention.heads import Grouped, HeadedAttention, MultiHead, MultiQuery
from attnlab.attention.scores import ScaledDot
from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.heads import Heads, Scale, Weights
from attnlab.audit.subject.adapters import subject_for
from attnlab.kernels import attention


def found(kind, code, options=None, **declared):
    return kind().examine(Probe(subject_for(code, options or {}, "code"), Contract(**declared)))


def dense(change=None, scale=None, axis=-1, after=1.0, mask=-math.inf, sink=None):
    """Causal attention from single operations, each of which can be made wrong."""

    def attend(q, k, v):
        if change:
            q, k, v = change(q, k, v)
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale(q))
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, mask)
        if sink is not None:
            more = torch.full_like(scores[..., :1], sink)
            weights = torch.cat((scores, more), dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(axis)
        return weights * after @ v

    return attend


def spread(index):
    """Key/value heads picked by index(query head, heads, key/value heads)."""

    def change(q, k, v):
        heads, kv_heads = q.shape[1], k.shape[1]
        picked = [index(head, heads, kv_heads) for head in range(heads)]
        return q, k[:, picked], v[:, picked]

    return change


class Module(nn.Module):
    """Causal attention of vectors, with what a mutant changes as parameters."""

    def __init__(self, *, heads=4, kv_heads=2, spread="repeat", scale=None, cut=True, merge=True):
        super().__init__()
        self.width, self.heads, self.kv_heads = 32, heads, kv_heads
        self.spread, self.cut, self.merge = spread, cut, merge
        self.scale = scale or (32 // heads) ** -0.5
        each = 32 // heads
        self.q, self.k, self.v = (nn.Linear(32, n * each) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(32, 32)

    def _heads(self, x, count):
        b, t, _ = x.shape
        return x.view(b, t, count, -1).transpose(1, 2) if self.cut else x.view(b, count, t, -1)

    def forward(self, x):
        q = self._heads(self.q(x), self.heads)
        k, v = (self._heads(one(x), self.kv_heads) for one in (self.k, self.v))
        copies = self.heads // self.kv_heads
        if self.spread == "tile":
            k, v = k.repeat(1, copies, 1, 1), v.repeat(1, copies, 1, 1)
        else:
            k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q * self.scale, k)
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        out = out.transpose(1, 2) if self.merge else out
        return self.out(out.reshape(x.shape))


def test_grouped_heads_of_a_function_are_tried_in_all_ratios():
    finding = found(Heads, lambda q, k, v: attention(q, k, v))
    assert finding.verdict == "pass"
    assert all(shape in finding.detail for shape in ("4:2", "6:3", "8:2", "14:2", "7:1"))


def test_code_that_takes_no_grouped_heads_is_not_blamed_for_it():
    assert found(Heads, dense()).verdict == "pass"


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
    finding = found(Heads, dense(spread(index)))
    assert finding.verdict == "fail" and "key/value heads [" in finding.detail


def test_keys_and_values_of_different_heads_fail():
    finding = found(Heads, dense(lambda q, k, v: (q, k, v.flip(1))))
    assert finding.verdict == "fail"


def test_heads_that_are_averaged_fail_in_code_without_weights():
    finding = found(Heads, dense(lambda q, k, v: (q, k.mean(1, keepdim=True).expand_as(k), v)))
    assert finding.verdict == "fail" and "not of one" in finding.detail


def test_queries_that_end_up_in_another_head_and_time_fail():
    def scramble(q, k, v):
        b, h, t, d = q.shape
        return q.reshape(b, t, h, d).transpose(1, 2), k, v

    finding = found(Heads, dense(scramble))
    assert finding.verdict == "fail" and "moves the output of head" in finding.detail


@pytest.mark.parametrize("settings", [MultiHead(heads=4), Grouped(heads=4), MultiQuery(heads=4)])
def test_our_own_heads_pass_and_their_map_is_seen(settings):
    module = HeadedAttention(settings, ScaledDot().build(4, 8), width=32)
    options = {"width": 32}
    finding = found(Heads, module, options, causal=True, heads=4, kv_heads=settings.kv_heads)
    assert finding.verdict == "pass"
    copies = 4 // settings.kv_heads
    assert finding.measured == [head // copies for head in range(4)]
    assert found(Scale, module, options).measured == pytest.approx(8**-0.5)
    assert found(Weights, module, options, causal=True).verdict == "pass"


def test_heads_of_a_module_are_held_to_what_is_declared():
    assert found(Heads, Module(), heads=4, kv_heads=2).verdict == "pass"
    assert found(Heads, Module(), kv_heads=4).verdict == "fail"
    assert found(Heads, Module(), heads=8).verdict == "fail"


def test_a_tiled_module_fails_if_key_value_heads_are_declared():
    finding = found(Heads, Module(spread="tile"), kv_heads=2)
    assert finding.verdict == "fail" and finding.measured == [0, 1, 0, 1]


def test_a_tiled_module_of_which_nothing_is_declared_is_reported():
    finding = found(Heads, Module(spread="tile"))
    assert finding.verdict == "pass" and "tiled" in finding.detail


@pytest.mark.parametrize(
    ("wrong", "said"), [({"cut": False}, "mixed"), ({"merge": False}, "depends on the length")]
)
def test_heads_cut_across_time_fail_on_either_side(wrong, said):
    finding = found(Heads, Module(kv_heads=4, **wrong))
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
    finding = found(Heads, Grouped(), kv_heads=2)
    assert finding.measured == ([0, 1, 0, 1] if tiled else [0, 0, 1, 1])
    assert finding.verdict == ("fail" if tiled else "pass")


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
    finding = found(Scale, dense(scale=scale))
    assert finding.verdict == verdict and name in finding.detail


def test_the_scale_of_a_module_is_measured_wherever_it_is_applied():
    assert found(Scale, Module()).measured == pytest.approx(8**-0.5)
    assert found(Scale, Module(scale=32**-0.5)).verdict == "fail"


def test_a_model_width_that_a_setting_asks_for_is_a_choice():
    module = Module(scale=32**-0.5)
    module.config = type("Config", (), {})()
    module.config.query_scaling = 32
    assert found(Scale, module).verdict == "pass"


@pytest.mark.parametrize("axis", [-2, 1])
def test_a_softmax_over_the_wrong_axis_fails(axis):
    finding = found(Weights, dense(axis=axis, mask=-1e4))
    assert finding.verdict == "fail"
    assert ("queries" if axis == -2 else "heads") in finding.detail


def test_a_factor_after_softmax_fails():
    finding = found(Weights, dense(after=8**-0.5))
    assert finding.verdict == "fail" and "after softmax" in finding.detail


def test_a_sink_is_reported_and_passes():
    finding = found(Weights, dense(sink=0.5))
    assert finding.verdict == "pass" and "sink" in finding.detail


def test_a_difference_of_two_softmaxes_is_no_mistake():
    def attend(q, k, v):
        one, two = (
            (q[..., :4] @ k[..., :4].mT).softmax(-1),
            (q[..., 4:] @ k[..., 4:].mT).softmax(-1),
        )
        return (one - 0.8 * two) @ v

    assert found(Weights, attend).verdict == "pass"


def test_exponentials_that_are_not_normalised_fail():
    def attend(q, k, v):
        weights = (q @ k.mT * q.shape[-1] ** -0.5).exp().tril()
        return weights / weights.sum(-1, keepdim=True).square() @ v

    finding = found(Weights, attend)
    assert finding.verdict == "fail" and "exponentials" in finding.detail


def test_attention_without_a_softmax_is_only_reported():
    finding = found(Weights, lambda q, k, v: (q @ k.mT).tril() @ v)
    assert finding.verdict == "pass" and "without a softmax" in finding.detail


def test_a_mask_that_leaves_a_little_fails_where_causality_cannot_see_it():
    code = dense(mask=-33.0)
    assert found(Weights, code).verdict == "pass"
    finding = found(Weights, code, causal=True)
    assert finding.verdict == "fail" and "exactly 0" in finding.detail


def test_weights_in_float32_are_exact_enough():
    def attend(q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -math.inf).softmax(-1, dtype=torch.float32).to(v) @ v

    assert found(Weights, attend, causal=True).verdict == "pass"
    assert found(Scale, attend).measured == pytest.approx(8**-0.5, rel=1e-5)
