"""Watching attention at work: a mistake of the watch is its own, not the code's."""

import pytest
import torch

from attnlab.audit.contract import Contract
from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.identify import observe
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.probe.watch import Watch, _Watch
from attnlab.audit.repro.prelude import CannotTell
from attnlab.audit.subject.adapters import subject_for


class Code(torch.nn.Module):
    """Attention of one head; refuses lengths of 9."""

    def __init__(self, width=8):
        super().__init__()
        self.width, self.project = width, torch.nn.Linear(width, 3 * width)

    def forward(self, x):
        if x.shape[1] == 9:
            raise LookupError("nine")
        q, k, v = self.project(x).chunk(3, -1)
        return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


def probe():
    return Probe(subject_for(Code(), {}, "code"), Contract())


def observed(given, length):
    tools = Tools(given)
    return observe(tools.run, given.draw(2, length), tools.heads, tools.watch)


def test_products_are_noted_and_code_that_raises_shows_nothing():
    assert len(observed(probe(), 7)) == 1
    with pytest.raises(CannotTell, match="cannot be seen"):
        observed(probe(), 9)


@pytest.mark.parametrize("watch", [_Watch, Watch])
def test_a_mistake_of_the_watch_is_raised_after_the_code_has_run(monkeypatch, watch):
    def mistaken(self, left, right, out):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(watch, "_note", mistaken)
    given, results = probe(), []
    with pytest.raises(ZeroDivisionError, match="ours"), watch(7):
        results.append(given.run(given.draw(2, 7)))
    assert len(results) == 1
    if watch is Watch:
        with pytest.raises(ZeroDivisionError):
            observed(given, 7)
    with pytest.raises(SubjectError, match="raised LookupError in `forward` at length 9"), watch(9):
        given.run(given.draw(2, 9))


def test_a_mistake_in_reading_an_einsum_is_ours_too(monkeypatch):
    def mistaken(self, letters, left, right):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Watch, "einsum", mistaken)
    x = torch.ones(2, 3, 4)
    with pytest.raises(ZeroDivisionError, match="ours"), Watch(3):
        assert torch.einsum("bid,bjd->bij", x, x).shape == (2, 3, 3)


class Written(torch.nn.Module):
    """Scores of four heads that share two keys, written in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.width, self.way, self.project = 32, way, torch.nn.Linear(32, 64)

    def forward(self, x):
        # of the size and form of a product that compares, and none
        places = torch.bmm(torch.ones(1, 4, 1).to(x), torch.arange(x.shape[1]).to(x).view(1, 1, -1))
        q, k, v = self.project(x + places.mean((0, 1))[:, None]).split([32, 16, 16], -1)
        q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in (q, k, v))
        if self.way == "einsum":
            grouped = q.unflatten(1, (2, 2))
            weights = torch.einsum("bgnid,bgjd->bgnij", grouped, k).softmax(-1)
            y = torch.einsum("bgnij,bgjd->bgnid", weights, v).flatten(1, 2)
            return y.transpose(1, 2).flatten(2)
        k, v = (one.repeat_interleave(2, 1) for one in (k, v))
        if self.way == "chunks":
            parts = [(one @ k.mT).softmax(-1) @ v for one in q.split(3, 2)]
            y = torch.cat(parts, 2)
        elif self.way == "baddbmm":
            bias = torch.arange(x.shape[1]).to(x).expand(4 * len(x), x.shape[1], -1)
            scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT, beta=2, alpha=0.5)
            y = torch.bmm(scores.softmax(-1), v.flatten(0, 1)).unflatten(0, (len(x), 4))
        else:
            y = (q @ k.mT).softmax(-1) @ v
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", ["matmul", "einsum", "baddbmm", "chunks"])
def test_products_of_queries_and_keys_are_made_larger_and_nothing_else_is(way):
    given = Probe(subject_for(Written(way), {}, "code"), Contract())
    tools, x = Tools(given), given.draw(1, 7)
    (plain,) = observe(tools.run, x, None, tools.watch)
    (larger,) = observe(tools.run, x, None, tools.watch, gain=3.0, at=plain.numbers)
    torch.testing.assert_close(larger.q, plain.q)
    products = plain.q @ plain.k.mT
    wanted = {
        "baddbmm": 2 * torch.arange(7) + 1.5 * products,
        "chunks": 3 * products,
        "einsum": 3 * products,
        "matmul": 3 * products,
    }[way].softmax(-1)
    torch.testing.assert_close(larger.weights, wanted)
    assert not torch.allclose(plain.weights, wanted)
