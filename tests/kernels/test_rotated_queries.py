"""Queries are turned by the angles of the places where they stand, wherever that is."""

import subprocess
import sys

import pytest
import torch

from attnlab.kernels import Segments, attention, rotate, rotation

ANGLES = rotation(torch.arange(6)[None], 4, dtype=torch.float64)


def tensors(queries):
    torch.manual_seed(0)
    shapes = [(2, 4, queries, 8), (2, 2, 6, 8), (2, 2, 6, 8)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({}, [[3, 4, 5]]),
        ({"align": "start"}, [[0, 1, 2]]),
        ({"key_lengths": torch.tensor([4, 6])}, [[1, 2, 3], [3, 4, 5]]),
        ({"segments": Segments(torch.zeros(2, 3).long(), torch.zeros(2, 6).long())}, [[3, 4, 5]]),
        ({"segments": torch.tensor([[0, 0, 0, 1, 1, 1]]), "align": "start"}, [[0, 1, 2]]),
    ],
)
def test_queries_are_turned_where_they_stand(options, at):
    q, k, v = tensors(3)
    there = rotation(torch.tensor(at), 4, dtype=torch.float64)
    by_hand = attention(rotate(q, there), rotate(k, ANGLES), v, **options)
    torch.testing.assert_close(attention(q, k, v, rotary=ANGLES, **options), by_hand)


def test_a_cache_with_room_gives_what_one_without_gives():
    q, k, v = tensors(1)
    angles = rotation(torch.arange(4)[None], 4, dtype=torch.float64)
    wanted = attention(q, k[:, :, :4], v[:, :, :4], rotary=angles)
    found = attention(q, k, v, rotary=ANGLES, key_lengths=torch.tensor([4, 4]))
    torch.testing.assert_close(found, wanted)


def test_a_query_without_a_place_has_no_angle():
    q, k, v = tensors(3)
    with pytest.raises(ValueError, match="stands at position -1 of 6 keys"):
        attention(q, k, v, rotary=ANGLES, key_lengths=torch.tensor([2, 6]))


def test_segments_of_keys_alone_say_which_queries_are_first():
    q, k, v = tensors(3)
    numbers = torch.tensor([[0, 0, 0, 1, 1, 1]])
    found = attention(q, k, v, segments=numbers, align="start")
    torch.testing.assert_close(found, attention(q, k[:, :, :3], v[:, :, :3]))


FLOATS = """
import torch
from attnlab.kernels import Reach, attention
q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
true = {"window": attention(q, k, v, window=5), "chunk": attention(q, k, v, chunk=5)}
reach = Reach(before=4.0, after=0.0)
for name, value in (("window", 5.0), ("window", reach), ("chunk", 5.0)):
    torch.testing.assert_close(attention(q, k, v, **{name: value}), true[name])
"""


def test_a_whole_number_that_is_a_float_counts_keys():
    """In a process of its own, where nothing checks types."""
    done = subprocess.run([sys.executable, "-c", FLOATS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
