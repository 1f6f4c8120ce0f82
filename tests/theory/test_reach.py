"""Stacked windows: paths by hand, and stacks that reach another number of tokens."""

import pytest

from attnlab.models.transformer import TransformerSettings
from attnlab.theory import reach
from attnlab.theory.reach import StackedWindowsReach, leads_to, windows_of


def met(**changes):
    return [one.met for one in StackedWindowsReach(**changes).run().measures]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_verdict_does_not_hang_on_the_seed(seed):
    claim = StackedWindowsReach(seed=seed)
    assert claim.run().verdict == "holds" and claim.with_knob().run().verdict == "refuted"


@pytest.mark.parametrize(("layers", "window"), [(1, 1), (6, 1), (1, 12), (6, 3)])
def test_it_holds_at_the_ends_of_the_settings(layers, window):
    claim = StackedWindowsReach(layers=layers, window=window)
    assert claim.run().verdict == "holds" and claim.with_knob().run().verdict == "refuted"


def test_paths_by_hand():
    """Two layers with two keys each reach back over one token more than one layer does."""
    assert leads_to((2,), 4)[3].tolist() == [False, False, True, True]
    assert leads_to((2, 2), 4)[3].tolist() == [False, True, True, True]
    assert leads_to((2, 3), 5)[4].tolist() == [False, True, True, True, True]
    assert leads_to((1, 1, 1), 3).tolist() == [[n == m for n in range(3)] for m in range(3)]
    assert windows_of(3, 4, True) == (4, None, 4) and windows_of(1, 4, True) == (None,)
    assert reach.reach(32, 4096) == 131_041


def test_a_window_that_counts_its_own_key_apart_is_refuted(monkeypatch):
    visible = reach.visible

    def wider(queries, keys, causal, window):
        return visible(queries, keys, causal, None if window is None else window + 1)

    monkeypatch.setattr(reach, "visible", wider)
    assert met() == [True, True, True, False, True]  # the model's own windows are what they were


@pytest.mark.parametrize("keys", [-1, 1])
def test_a_model_with_another_window_is_refuted(monkeypatch, keys):
    def other(window, **rest):
        return TransformerSettings(window=tuple(one and one + keys for one in window), **rest)

    monkeypatch.setattr(reach, "TransformerSettings", other)
    counted, beyond, within, *_ = met()
    assert not counted and beyond == (keys < 0) and within == (keys > 0)
