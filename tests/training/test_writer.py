"""Checkpoints in the background: training goes on, and every promise of a save stays."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from training.recipes import begin, final_bits, go_on, small

from attnlab import files
from attnlab.training import checkpoint, runs, writer
from attnlab.training.checkpoint import Checkpoint, NotFinite
from attnlab.training.lock import FolderGone
from attnlab.training.report import Report
from attnlab.training.writer import Save, Writer

LONG = 60.0  # seconds, which no test takes: a wait that ends there has failed
DUE = ["evaluate_every=none", "save_every=4", "keep=9"]
# (step, best step, whether it is due) of a save that waits and of a newer one: what is written
RULES = [
    ((2, 2, False), (3, 3, False), [1, 3]),  # a better best
    ((2, 2, False), (3, 3, True), [1, 3]),  # which is due besides
    ((2, 2, False), (3, 2, True), [1, 2, 3]),  # it names the best that waits
    ((2, 2, True), (3, 3, False), [1, 2, 3]),  # what is due is never skipped
    ((2, 1, True), (3, 1, True), [1, 2, 3]),
    ((2, 1, True), (3, 1, "stop"), [1, 3]),  # which goes on from 3
    ((2, 2, True), (3, 2, "stop"), [1, 2, 3]),  # but it names the best that waits
]


class Reached(Report):
    """Whether a step was reached, to be waited for in the thread that writes."""

    def __init__(self, step, act=lambda: None):
        self.step, self.act, self.done = step, act, threading.Event()

    def stepped(self, step, loss, rate):
        if step == self.step:
            self.act()
            self.done.set()


def around_save(monkeypatch, before=lambda step: None, after=lambda step: None):
    """Do something in the thread that writes a checkpoint."""
    plain = checkpoint.save

    def save(parent, step, *more):
        before(step)
        found = plain(parent, step, *more)
        after(step)
        return found

    monkeypatch.setattr(checkpoint, "save", save)


def steps_in(run):
    return sorted(map(checkpoint.step_of, checkpoint.all_in(run.checkpoints)))


def threads():
    return [one.name for one in threading.enumerate() if one.name == "checkpoints"]


def test_training_goes_on_while_a_checkpoint_is_written_and_it_holds_its_own_step(
    tmp_path, monkeypatch
):
    plain, _ = begin(tmp_path, small(*DUE))
    later, waited = Reached(7), []

    def wait(step):
        if step == 4:
            waited.append(later.done.wait(LONG))

    around_save(monkeypatch, wait)
    run, _ = begin(tmp_path, small(*DUE), report=later)
    assert waited == [True] and steps_in(run) == [4, 8, 12]
    for step in (4, 8, 12):
        for name in ("model.safetensors", "optimiser.safetensors"):
            one, other = (r.checkpoints / f"step_{step:06d}" / name for r in (plain, run))
            assert one.read_bytes() == other.read_bytes(), (step, name)
    assert final_bits(run) == final_bits(plain) and not threads()


def test_lines_up_to_its_step_are_on_the_disk_before_a_checkpoint_and_the_result_comes_last(
    tmp_path, monkeypatch
):
    synced, found, sync = [], [], files.sync

    def noted(path):
        synced.append((path.name, len(path.read_bytes()) if path.exists() else 0))
        sync(path)

    run = runs.create(tmp_path, "test")

    def look(step):
        whole = sum(map(len, run.log("metrics").read_bytes().splitlines(keepends=True)[:step]))
        on_disk = max(size for name, size in synced if name == "metrics.jsonl")
        found.append((step, on_disk >= whole, run.finished))

    monkeypatch.setattr(files, "sync", noted)
    around_save(monkeypatch, look, look)
    go_on(run, small(*DUE), None)
    assert found == [(step, True, False) for step in (4, 4, 8, 8, 12, 12)]
    assert run.finished


def a_save(step, best, *, due, run=None):
    ones = {"weight": torch.full((3,), float(step))}
    kept = Checkpoint(ones, ones, {}, {}, {"step": step, "best_step": best})
    place = run or runs.Run(Path("nowhere"))
    return Save(run=place, kept=kept, keep=2, due=bool(due), stops=due == "stop")


@pytest.mark.parametrize(("waiting", "newer", "written"), RULES)
def test_only_a_best_that_is_outdated_before_it_is_written_is_skipped(
    monkeypatch, waiting, newer, written
):
    gate, done = threading.Event(), []

    def write(self, heed):
        assert gate.wait(LONG)
        done.append((self.step, float(self.kept.model["weight"][0])))

    monkeypatch.setattr(Save, "write", write)
    with Writer() as one:
        one.put(a_save(1, 1, due=False))
        one.put(a_save(*waiting[:2], due=waiting[2]))
        if len(written) == 3:
            opens = threading.Timer(0.05, gate.set)  # there is no room before
            opens.start()
        one.put(a_save(*newer[:2], due=newer[2]))
        assert gate.is_set() == (len(written) == 3), "at most one waits"
        gate.set()
        one.wait()
    assert done == [(step, float(step)) for step in written]


def test_what_was_put_first_is_written_even_if_a_better_one_comes_at_once(monkeypatch):
    done = []
    monkeypatch.setattr(Save, "write", lambda self, heed: done.append(self.step))
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)  # it has not come to it
    one = Writer()
    one.put(a_save(1, 1, due=False))
    one.put(a_save(2, 2, due=False))
    assert [save.step for save in one._saves] == [1, 2]


def test_an_error_of_writing_ends_the_training_at_the_next_step_and_nothing_later_is_written(
    tmp_path, monkeypatch
):
    reached, failed = [], threading.Event()

    def full(step):
        if step == 16:
            failed.set()
            raise OSError(28, "no checkpoint could be written")

    class Steps(Report):
        def stepped(self, step, loss, rate):
            reached.append(step)
            if step == 17:
                assert failed.wait(LONG)
                time.sleep(0.2)  # until the thread has told

    around_save(monkeypatch, full)
    run = runs.create(tmp_path, "test")
    with pytest.raises(OSError, match="no checkpoint could be written"):
        go_on(run, small("evaluate_every=none", "save_every=8", "steps=40"), None, report=Steps())
    assert reached[-1] == 17, "not at the next save, which is at 24"
    assert steps_in(run) == [8] and checkpoint.is_good(run_at(run, 8))
    assert not run.finished and not threads() and not run.busy


@pytest.mark.parametrize("last", [4, 12])
def test_a_full_disk_ends_the_training_and_says_path_and_bytes(tmp_path, request, last):
    """In the middle, and in the save that the end waits for."""
    run, _ = begin(tmp_path, small(*DUE, "steps=4"))
    before = {one.name: one.read_bytes() for one in (run.checkpoints / "step_000004").iterdir()}
    request.getfixturevalue("full_disk")
    with pytest.raises(OSError, match=r"step_0000\d\d \([\d,]+ bytes\).*free some space"):
        go_on(run, small("evaluate_every=none", f"save_every={last}"), run_at(run, 4))
    now = {one.name: one.read_bytes() for one in (run.checkpoints / "step_000004").iterdir()}
    assert now == before and [one.name for one in run.checkpoints.iterdir()] == ["step_000004"]
    assert not threads()


def run_at(run, step):
    return run.checkpoints / checkpoint.name_of(step)


def test_a_nan_is_found_in_the_copy_and_never_saved(tmp_path, monkeypatch):
    """The weights themselves have none."""
    copied = Save.copied

    def poisoned(self):
        copy = copied(self)
        if self.step == 8:
            next(iter(copy.kept.model.values())).view(-1)[0] = torch.nan
        return copy

    monkeypatch.setattr(Save, "copied", poisoned)
    run = runs.create(tmp_path, "test")
    with pytest.raises(NotFinite, match=r"step 8: .* holds NaN or Inf; not saved"):
        go_on(run, small(*DUE), None)
    assert steps_in(run) == [4]


def test_an_error_of_the_training_waits_for_what_it_had_saved(tmp_path, monkeypatch):
    later = Reached(6)

    def fail():
        later.done.set()
        raise ValueError("the text ends here")

    later.act = fail
    around_save(monkeypatch, lambda step: later.done.wait(LONG))
    run = runs.create(tmp_path, "test")
    with pytest.raises(ValueError, match="the text ends here"):
        go_on(run, small(*DUE), None, report=later)
    assert steps_in(run) == [4] and checkpoint.is_good(run_at(run, 4)) and not threads()


def test_two_errors_are_both_said(tmp_path, monkeypatch):
    later = Reached(5)

    def fail():
        later.done.set()
        raise ValueError("the text ends here")

    def full(step):
        later.done.wait(LONG)
        raise OSError(28, "no space for it")

    later.act = fail
    around_save(monkeypatch, full)
    with pytest.raises(ValueError, match="the text ends here") as caught:
        begin(tmp_path, small(*DUE), report=later)
    assert "no space for it" in caught.value.__notes__[0]


def test_a_stop_while_a_checkpoint_is_written_waits_for_it_and_saves_its_own_step(
    tmp_path, monkeypatch
):
    whole = final_bits(begin(tmp_path, small(*DUE))[0])
    later = Reached(6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with monkeypatch.context() as patch:
        around_save(patch, lambda step: step == 4 and later.done.wait(LONG))
        run, result = begin(tmp_path, small(*DUE), report=later)
    assert (result.ending, result.step) == ("SIGTERM", 6) and steps_in(run) == [4, 6]
    assert all(map(checkpoint.is_good, checkpoint.all_in(run.checkpoints))) and not threads()
    go_on(run, small(*DUE), run_at(run, 6))
    assert final_bits(run) == whole


def test_a_second_signal_gives_up_what_is_being_written(tmp_path, monkeypatch):
    begun, heard = threading.Event(), threading.Event()

    def twice():
        assert begun.wait(LONG)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    class Slow(checkpoint.TensorFile):
        def __iter__(self):
            for piece in super().__iter__():
                if step_at[0] == 8:
                    begun.set()
                    heard.wait(LONG)
                yield piece

    step_at = [0]
    around_save(monkeypatch, lambda step: step_at.__setitem__(0, step))
    monkeypatch.setattr(checkpoint, "TensorFile", Slow)
    plain = Writer._end

    def end(self):
        heard.set()
        plain(self)

    monkeypatch.setattr(Writer, "_end", end)
    run = runs.create(tmp_path, "test")
    with pytest.raises(KeyboardInterrupt) as caught:
        go_on(run, small(*DUE), None, report=Reached(9, twice))
    assert "to go on from step_000004" in caught.value.__notes__[0]
    assert [one.name for one in run.checkpoints.iterdir()] == ["step_000004"], "no half one"
    assert not threads()


@pytest.mark.parametrize("memory", ["for a copy", "for none"])
@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_folder_that_goes_while_a_checkpoint_is_written_costs_nothing(
    tmp_path, monkeypatch, how, memory
):
    """Of the last save too, after which no step comes that could notice."""
    if memory == "for none":
        monkeypatch.setattr(writer, "free_memory", lambda: 1000)
    run, there = runs.create(tmp_path, "tiny"), tmp_path / "elsewhere"
    plain, gone = files.write_new, []

    def write_new(path, content):
        if path.name == "optimiser.safetensors" and "000012" in str(path) and not gone:
            gone.append(path)
            run.folder.rename(there) if how == "moved" else shutil.rmtree(run.folder)
        plain(path, content)

    monkeypatch.setattr(files, "write_new", write_new)
    with pytest.raises(FolderGone, match=rf"was {how} .*step 12 is saved there"):
        go_on(run, small(*DUE), None)
    assert gone and not run.folder.exists()
    place = there if how == "moved" else run.folder.with_name(f"{run.folder.name}-rescued")
    newest, broken = checkpoint.newest_good(runs.Run(place).checkpoints)
    assert newest.name == "step_000012" and not broken and not threads()


def test_waiting_for_the_writer_is_no_steps_time(tmp_path, monkeypatch):
    around_save(monkeypatch, lambda step: threading.Event().wait(0.3))
    _, result = begin(tmp_path, small("steps=5", "save_every=1", "evaluate_every=none"))
    assert result.seconds - result.step_seconds >= 4 * 0.3 - 0.5, "one beside the steps at most"
    assert result.seconds >= 5 * 0.3


@pytest.mark.parametrize("short", ["free", "refused"])
def test_without_memory_for_a_copy_it_is_written_from_the_weights(tmp_path, monkeypatch, short):
    whole = final_bits(begin(tmp_path, small(*DUE))[0])
    here = []
    around_save(monkeypatch, lambda step: here.append(threading.current_thread().name))
    if short == "free":
        monkeypatch.setattr(writer, "free_memory", lambda: 1000)
    else:

        def refuse(self):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")

        monkeypatch.setattr(Save, "copied", refuse)
    run, _ = begin(tmp_path, small(*DUE))
    assert set(here) == {"MainThread"} and steps_in(run) == [4, 8, 12]
    assert final_bits(run) == whole


def test_where_other_processes_wait_for_the_first_one_it_writes_at_once(monkeypatch):
    """A barrier has a timeout, and nobody waits there for a save that was put long ago."""
    here = []
    write = lambda self, heed: here.append(threading.current_thread().name)  # noqa: E731
    monkeypatch.setattr(Save, "write", write)
    with Writer(background=False) as one:
        one.put(a_save(1, 1, due=True))
        assert here == ["MainThread"] and not threads()


def test_without_a_thread_it_is_written_at_once(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    done = []
    monkeypatch.setattr(Save, "write", lambda self, heed: done.append(self.step))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Writer() as one:
        one.put(a_save(1, 1, due=True))
    assert done == [1]


def test_an_error_of_copying_that_is_not_about_memory_is_raised(tmp_path, monkeypatch):
    def wrong(self):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Save, "copied", wrong)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        begin(tmp_path, small(*DUE))


KILLED = """
import os, signal, sys
from pathlib import Path
from training.recipes import go_on, small
from attnlab.training import checkpoint, runs
plain = getattr(checkpoint, sys.argv[2])

def killed(*given):
    if "000008" in str(given[0]) or "000008" in str(given[-1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*given)

setattr(checkpoint, sys.argv[2], killed)
go_on(runs.Run(Path(sys.argv[1])), small("save_every=4"), None)
"""


@pytest.mark.parametrize("where", ["begin", "put_in_place"])
def test_a_kill_inside_a_save_beside_the_steps_resumes_to_the_same_bits(tmp_path, where):
    whole = final_bits(begin(tmp_path, small("save_every=4"))[0])
    run = runs.create(tmp_path, "killed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(run.folder), where],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    newest, broken = checkpoint.newest_good(run.checkpoints)
    assert checkpoint.step_of(newest) in (4, 5) and not broken
    go_on(run, small("save_every=4"), newest)
    assert final_bits(run) == whole
    assert not [one for one in run.checkpoints.iterdir() if one.name.startswith(".")]
