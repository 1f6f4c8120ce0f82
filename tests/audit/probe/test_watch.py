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
