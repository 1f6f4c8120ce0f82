"""Batches made ahead: the same ones, in any order asked for, and an error where it is asked for."""

import threading

import numpy as np
import pytest
import torch

from attnlab.data.batches import as_batch
from attnlab.training.ahead import AHEAD, Ahead


def maker(made):
    def make(step):
        made.append((step, threading.current_thread() is threading.main_thread()))
        rows = np.full((1, 2), step)
        return [as_batch(rows, rows)]

    return make


def test_steps_are_made_ahead_once_each_and_not_past_the_last():
    made = []
    ahead = Ahead(maker(made), 6, torch.device("cpu"))
    found = [int(ahead.batch(step)[0].tokens[0, 0]) for step in range(6)]
    ahead.close()
    assert found == list(range(6))
    assert made == [(step, False) for step in range(6)]


def test_it_begins_where_a_run_resumes_and_goes_back_if_asked():
    made = []
    ahead = Ahead(maker(made), 100, torch.device("cpu"))
    for step in (40, 41, 0, 41, 99):
        assert int(ahead.batch(step)[0].tokens[0, 0]) == step
    ahead.close()
    assert max(step for step, _ in made) == 99 and len(made) <= 5 * (AHEAD + 1)


def test_an_error_is_raised_at_its_step():
    def make(step):
        if step == 2:
            raise ValueError("the file has become shorter")
        return maker([])(step)

    ahead = Ahead(make, 9, torch.device("cpu"))
    assert ahead.batch(0) and ahead.batch(1)
    with pytest.raises(ValueError, match="shorter"):
        ahead.batch(2)
    ahead.close()
    assert threading.active_count() < 10
