"""Saves in shards beside the steps: all processes go on with one at the same step, or none does.

With real processes: test_sharded.py.
"""

import threading

import pytest
from training.recipes import HERE
from training.test_writer import LONG, RULES, a_save

from attnlab.training import runs, shard_writer, sharded
from attnlab.training.parallel import World
from attnlab.training.shard_writer import ShardWriter
from attnlab.training.sharded import Shard
from attnlab.training.shards import Cut


@pytest.fixture
def written(monkeypatch):
    """What was written instead of shards: (step, where), and by which thread."""
    done, threads = [], []

    def saving(world, shard, heed=lambda: None):
        def write():
            assert gate.wait(LONG)
            threads.append(threading.current_thread() is threading.main_thread())
            heed()
            if shard.save.run.folder.name == "full":
                raise OSError(28, "no space for it")
            return str(shard.save.step)

        (yield write)
        (said, *_) = yield lambda: str(shard.save.step)
        done.append((int(said), shard.save.run.folder.name))

    gate = threading.Event()
    monkeypatch.setattr(Shard, "of", lambda save: Shard(save, Cut(1, 0), {}))
    monkeypatch.setattr(sharded, "saving", saving)
    saving.gate, saving.done, saving.in_main = gate, done, threads
    return saving


@pytest.mark.parametrize(("waiting", "newer", "steps"), RULES)
def test_the_rule_is_that_of_plain_checkpoints(written, waiting, newer, steps):
    with ShardWriter(HERE) as one:
        one.put(a_save(1, 1, due=False))
        one.put(a_save(*waiting[:2], due=waiting[2]))
        if len(steps) == 3:
            threading.Timer(0.05, written.gate.set).start()  # there is no room before
        one.put(a_save(*newer[:2], due=newer[2]))
        assert written.gate.is_set() == (len(steps) == 3), "at most one waits"
        written.gate.set()
        one.wait()
    assert [step for step, _ in written.done] == steps and not any(written.in_main)


class Two(World):
    """This process and another, which says what it is told to say."""

    def __init__(self, *others):
        super().__init__(0, 2, HERE.device)
        object.__setattr__(self, "others", list(others))

    def gather(self, text):
        other = self.others.pop(0) if self.others else None
        return [text, text if other is None else other]


def test_no_process_goes_on_before_all_have_done_their_part(written):
    written.gate.set()
    world = Two("copied", "", "")  # then it says what this one says
    with ShardWriter(world) as one:
        one.put(a_save(1, 1, due=True))
        first = one._part
        first.result(LONG)
        for _ in range(2):
            one.check()
            assert one._part is first, "the other has not done its part"
        one.check()
        assert one._part is not first
        one.wait()
    assert len(written.done) == 1


def test_where_one_process_has_no_memory_all_write_at_once(written):
    written.gate.set()
    with ShardWriter(Two("", "")) as one:
        one.put(a_save(1, 1, due=True))
        assert written.done and written.in_main == [True] and one._work is None


def test_a_process_without_memory_says_so(written, monkeypatch):
    said = []

    class Noting(Two):
        def gather(self, text):
            said.append(text)
            return super().gather(text)

    written.gate.set()
    monkeypatch.setattr(shard_writer, "copy_of", lambda save, processes: None)
    with ShardWriter(Noting("copied", "copied")) as one:
        one.put(a_save(1, 1, due=True))
    assert said[:2] == ["", ""] and written.in_main == [True]


def test_an_error_of_any_process_is_raised_by_all_at_the_next_step(written):
    written.gate.set()
    error = '{"kind": "", "error": "no space there", "code": "28"}'
    with pytest.raises(OSError, match="no space there"), ShardWriter(Two("copied", error)) as one:
        one.put(a_save(1, 1, due=True))
        one._part.result(LONG)
        one.check()
    assert not written.done


def test_what_could_not_be_written_is_written_to_another_folder_once(written, tmp_path):
    written.gate.set()
    full, there = runs.Run(tmp_path / "full"), runs.Run(tmp_path / "there")
    with ShardWriter(HERE) as one:
        one.put(a_save(1, 1, due=True, run=full))
        one.put(a_save(2, 1, due=True, run=full))
        with pytest.raises(OSError, match="no space for it"):
            one.wait()
        assert not one.again(full), "it was tried there"
        assert one.again(there)
        one.wait()
    assert written.done == [(1, "there"), (2, "there")]


def test_after_an_error_elsewhere_what_is_written_is_given_up_and_no_thread_is_left(written):
    before = threading.active_count()
    with pytest.raises(ValueError, match="of the training"), ShardWriter(HERE) as one:
        one.put(a_save(1, 1, due=True))
        threading.Timer(0.05, written.gate.set).start()
        raise ValueError("of the training")
    assert not written.done and threading.active_count() == before
    assert "stopped at once" in one._part.result()
