"""Errors that say that memory ran out, by type or in words."""

from pathlib import Path

import pytest
import torch

from attnlab import memory
from attnlab.memory import free_memory, machine_memory, ran_out


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


def test_free_memory_is_what_machine_and_container_leave(tmp_path, monkeypatch):
    assert 0 < free_memory() <= machine_memory()
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / Path(name).relative_to("/"))
    assert free_memory() == machine_memory() // 2048 * 1024, "nobody says"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\nHuge: 0\n")
    assert free_memory() == 500 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("250000\n")
    (group / "memory.stat").write_text("anon 100\ninactive_file 70000\n")
    assert free_memory() == 500 * 1024
    (group / "memory.max").write_text("300000\n")
    assert free_memory() == 300000 - 250000 + 70000
    (group / "memory.max").write_text("100000\n")
    assert free_memory() == 0
