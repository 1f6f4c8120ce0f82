"""Errors that say that memory ran out, by type or in words."""

import pytest
import torch

from attnlab.memory import ran_out


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("of a GPU"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA out of memory. Tried to allocate 7 GiB"),
    ],
    ids=repr,
)
def test_memory_that_ran_out_is_known_by_type_or_words(error):
    assert ran_out(error)


def test_other_errors_are_not_about_memory():
    assert not ran_out(RuntimeError("shapes do not fit")) and not ran_out(KeyError("memory"))
