"""Who is missing: by counts that stand still, by what was left in the store, by steps behind."""

import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from attnlab.training import heartbeat
from attnlab.training.heartbeat import Heartbeat, Lost, await_all


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(heartbeat, "PAUSE", 0.01)
    monkeypatch.setattr(heartbeat, "SILENT", 1.0)
    return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))


@pytest.fixture
def hearts(store):
    made = [Heartbeat(store, rank, 3, 100.0) for rank in range(3)]
    yield made
    for one in made:
        if one._thread.ident:
            one.stop()


def beating(hearts, *ranks):
    for rank in ranks:
        hearts[rank].start()
    while not all(hearts[0]._beats()[rank] for rank in ranks):
        time.sleep(0.01)


def test_nobody_is_missing_while_all_beat_at_the_same_step(hearts):
    beating(hearts, 0, 1, 2)
    assert hearts[0].diagnose() == ""


def test_a_count_that_stands_still_is_a_process_that_is_gone(hearts):
    hearts[2].step = 7
    beating(hearts, 0, 1, 2)
    hearts[2].stop()
    assert hearts[0].diagnose() == "process 2 of 3 is gone: last heard of at step 7"


def test_processes_that_never_beat_are_gone(hearts):
    beating(hearts, 1)
    said = hearts[1].diagnose()
    assert said == "processes 0, 2 of 3 are gone: last heard of at step 0"


def test_what_ended_a_process_is_said_to_the_others(hearts):
    beating(hearts, 0, 1, 2)
    hearts[1].stop(ValueError("no such text\nat all"))
    assert hearts[0].diagnose().startswith("process 1 of 3 has stopped: ValueError: no such text")


def test_a_process_that_lives_and_waits_elsewhere_is_behind(hearts):
    for rank, step in enumerate((9, 8, 9)):
        hearts[rank].step = step
    beating(hearts, 0, 1, 2)
    assert hearts[0].diagnose() == "process 1 of 3 is behind: last heard of at step 8"


def test_a_process_that_waits_in_a_library_is_ended_by_its_own_thread(store, monkeypatch, capsys):
    """`os._exit`, which no thread that waits can hold up."""
    ended = []
    monkeypatch.setattr(heartbeat.os, "_exit", ended.append)
    alone = Heartbeat(store, 0, 2, 0.5)
    alone.start()
    while not ended:
        time.sleep(0.01)
    alone.stop()
    assert ended[0] == 1
    assert "process 1 of 2 is gone" in capsys.readouterr().err


def test_who_has_not_come_is_named(store):
    store.set("here/1", "")
    with pytest.raises(Lost, match=r"processes 0, 3 of 4 are missing: not there within 0\.2 s"):
        await_all(store, 2, 4, 0.2)
