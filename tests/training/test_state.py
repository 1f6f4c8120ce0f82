"""What a run remembers: it comes back as it was, and nonsense is refused by name."""

import dataclasses

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


def test_the_clock_of_an_absurd_state_never_runs_backwards():
    assert Clock(3.0, 5.0).step_seconds >= 0 and Clock(5.0, 0.0).step_seconds >= 0
