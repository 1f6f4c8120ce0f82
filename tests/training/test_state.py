"""What a run remembers: it comes back as it was, and nonsense is refused by name."""

import dataclasses
import time

import pytest

from attnlab.training.state import Clock, State

GOOD = State(step=9, evaluated=8, best_loss=1.5, best_step=7, worse=1, seconds=3.0)


def test_a_state_comes_back_as_it_was():
    assert State.from_json(dataclasses.asdict(GOOD)) == GOOD
    older = {name: value for name, value in vars(GOOD).items() if name != "corpus"}
    assert State.from_json(older) == GOOD


WRONG = [None, True, "x", [], {}, -1, -1e300, 1e300, 10**40, [[1]], float("nan"), float("inf")]
MAY_BE = {"evaluated": (-1,), "best_loss": (None, 1e300, 10**40), "best_step": (None,)}
MAY_BE["corpus"] = ("x",)


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(State)])
def test_nonsense_is_refused_by_name(name, value):
    if value in MAY_BE.get(name, ()):
        return
    with pytest.raises(ValueError, match=f"{name} is"):
        State.from_json(dataclasses.asdict(GOOD) | {name: value})


def test_the_clock_never_runs_backwards_whatever_is_rounded(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.1)  # no time goes by
    tenths = [number / 10 for number in range(1, 100)]
    assert any(1000.1 - (1000.1 - seconds) < seconds for seconds in tenths), "rounded down"
    assert all(Clock(seconds, 0.0).step_seconds >= 0 for seconds in tenths)
    assert Clock(3.0, 5.0).step_seconds >= 0
