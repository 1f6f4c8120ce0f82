"""Who is missing: by counts that stand still, by what was left in the store, by steps behind."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from attnlab.training import heartbeat
from attnlab.training.heartbeat import Heartbeat, Lost, meet


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


def test_a_process_whose_torchrun_is_gone_saves_and_ends(monkeypatch):
    """Nobody would stop it any more: it is as if it had been told to."""
    told = threading.Event()
    monkeypatch.setattr(heartbeat, "PAUSE", 0.01)
    monkeypatch.setattr(heartbeat.os, "kill", lambda pid, number: told.set())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    alone = Heartbeat(store, 0, 2, 100.0)
    del store  # with the process that held it
    alone.start()
    assert told.wait(60)
    assert alone.diagnose() == "process 0 of 2 cannot be reached any more"
    alone.stop(ValueError("said to nobody"))


def test_a_mistake_of_ours_in_a_beat_is_shown_and_ends_the_process(store, monkeypatch):
    told, shown = threading.Event(), []
    monkeypatch.setattr(heartbeat.os, "kill", lambda pid, number: told.set())
    monkeypatch.setattr(threading, "excepthook", lambda hook: shown.append(hook.exc_type))
    alone = Heartbeat(store, 0, 2, 100.0)
    alone._store = None
    alone.start()
    assert told.wait(60)
    alone.stop()
    assert shown == [AttributeError]


class Speechless(Exception):
    def __str__(self):
        raise KeyError("no word")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Speechless(), "Speechless: it does not say what happened"),
        (OSError("no file \udcff"), r"OSError: no file \xff"),
    ],
)
def test_an_error_of_a_stranger_that_is_no_text_is_said_too(hearts, error, said):
    beating(hearts, 0, 1, 2)
    hearts[1].stop(error)
    assert hearts[0].diagnose() == f"process 1 of 3 has stopped: {said}"


def met(store, ranks, size, timeout):
    """What each of these processes has after they have met, or its error."""
    found = {}

    def come(rank):
        try:
            found[rank] = meet(store.clone(), rank, size, timeout)
        except Lost as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_who_has_not_come_is_named(store):
    said = "processes 1, 3 of 4 are missing: not there within 0.5 s of the start"
    assert met(store, (0, 2), 4, 0.5) == {0: said, 2: said}
    assert met(store, [1], 4, 0.1)[1].startswith("process 0 of 4 is missing")


def test_processes_that_are_started_again_read_nothing_of_those_before(store):
    """Whatever each agent has counted: the store is that of all their starts."""
    before = met(store, range(3), 3, 60.0)
    before[1].set("address", "of a process that is gone")
    after = met(store, range(3), 3, 60.0)
    after[0].set("address", "new")
    assert {one.get("address") for one in after.values()} == {b"new"}
    assert before[2].get("address") == b"of a process that is gone"
