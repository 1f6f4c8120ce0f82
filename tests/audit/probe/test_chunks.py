"""Attention computed in chunks is seen as one, or not at all."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from attnlab.audit.bugs.heads import ChunkedQueries
from attnlab.audit.contract import Contract
from attnlab.audit.probe.identify import UNSEEN, observe
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.heads import Heads
from attnlab.audit.properties.precision import Precision
from attnlab.audit.properties.scale import Scale
from attnlab.audit.properties.weights import Weights
from attnlab.audit.repro.prelude import CannotTell
from attnlab.audit.subject.adapters import subject_for


class Online(nn.Module):
    """Keys in chunks, with a running softmax; `divides` by its sum at the end."""

    def __init__(self, chunk, divides=True, width=32):
        super().__init__()
        self.width, self.chunk, self.divides = width, chunk, divides
        self.inner = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.inner(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        top, total, mixed = torch.full(q.shape[:3], -1e30).to(q), torch.zeros(q.shape[:3]).to(q), 0
        for start in range(0, len(places), self.chunk):
            at = places[start : start + self.chunk]
            scores = (q @ k[:, :, at].mT * q.shape[-1] ** -0.5).masked_fill(
                at > places[:, None], -1e30
            )
            new = torch.maximum(top, scores.amax(-1))
            weights, shrink = (scores - new[..., None]).exp(), (top - new).exp()
            total = total * shrink + weights.sum(-1)
            mixed = mixed * shrink[..., None] + weights @ v[:, :, at]
            top = new
        return (mixed / total[..., None] if self.divides else mixed).transpose(1, 2).flatten(2)


class Backwards(ChunkedQueries):
    """The last chunk first: in the order of the products nothing would be at its place."""

    def forward(self, x):
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places, chunks = torch.arange(x.shape[1]), []
        for some, at in zip(q.split(3, 2)[::-1], places.split(3)[::-1], strict=True):
            scores = (some @ k.mT * q.shape[-1] ** -0.5).masked_fill(
                places > at[:, None], float("-inf")
            )
            chunks.insert(0, scores.softmax(-1) @ v)
        return self.outer(torch.cat(chunks, 2).transpose(1, 2).flatten(2))


def probe(code):
    return Probe(subject_for(code, {}, "code"), Contract(causal=True))


def observed(code):
    given = probe(code)
    tools = Tools(given)
    return observe(tools.run, given.draw(2, 7), tools.heads, tools.watch)


def test_chunks_of_queries_are_put_together():
    (one,) = observed(ChunkedQueries(32, 4))
    assert one.q.shape == one.k.shape == (2, 4, 7, 8)
    assert one.weights.shape == (2, 4, 7, 7)
    assert torch.allclose(one.weights.sum(-1), torch.ones(()).to(one.weights))
    assert not one.weights.triu(1).any()


@pytest.mark.parametrize(("wrong", "verdict"), [(True, "fail"), (False, "pass")])
def test_a_scale_by_the_models_width_is_seen_in_chunks(wrong, verdict):
    assert Scale().examine(probe(ChunkedQueries(32, 4, wrong))).verdict == verdict


def test_chunks_in_another_order_are_not_seen():
    with pytest.raises(CannotTell, match=UNSEEN):
        observed(Backwards(32, 4))


def test_chunks_of_keys_are_not_seen_and_that_is_said_in_the_same_words():
    given = probe(Online(3))
    details = {Scale().examine(given).detail, Weights().examine(given).detail}
    assert details == {UNSEEN}


@pytest.mark.parametrize("divides", [True, False])
def test_a_division_after_the_product_is_not_seen_so_nothing_is_said_of_sums(divides):
    finding = Weights().examine(probe(Online(64, divides)))
    assert finding.verdict == "cannot tell"
    assert "their division is not seen" in finding.detail


class Flexible(nn.Module):
    """By flex_attention, which is compiled in a way that nothing sees into."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.width, self.heads = width, heads
        self.inner = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = flex_attention(q, k, v, score_mod=later_hidden)
        return found.transpose(1, 2).flatten(2)


def later_hidden(score, b, h, i, j):
    return torch.where(j <= i, score, -float("inf"))


def test_flex_attention_is_not_seen_and_that_is_said_in_the_same_words_and_breaks_nothing():
    given = probe(Flexible())
    details = {Scale().examine(given).detail, Weights().examine(given).detail}
    assert details == {UNSEEN}
    assert Heads().examine(given).verdict == "pass"  # it still runs after it was watched
    assert Precision().examine(given).verdict == "pass"
