"""Run folders: found by any of their names, locked by one process, logs cut at whole lines."""

import errno
import os
import subprocess
import sys

import pytest
from training.recipes import begin, go_on, small

from attnlab import files
from attnlab.checks.corruption import example
from attnlab.training import checkpoint, runs
from attnlab.training.runs import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return begin(root, small("steps=5", "save_every=2", "evaluate_every=3"), name="tiny")[0]


def empty_run(root, name):
    folder = root / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    return Run(folder)


def test_logs_are_cut_after_a_step_and_a_torn_last_line_goes(tmp_path):
    run = empty_run(tmp_path, "a")
    rows = [{"step": step, "loss": 0.5 * step} for step in range(1, 6)]
    content = b"".join(map(runs.line, rows))
    for name in runs.LOGS:
        run.log(name).write_bytes(content + b'{"step": 6, "lo')
    run.cut_logs({"metrics": 4, "eval": 3})
    assert run.read("metrics") == rows[:4] and run.read("eval") == rows[:3]
    assert run.read("speed") == rows[:4], "what has no step of its own goes with the metrics"
    assert run.log("metrics").read_bytes() == b"".join(map(runs.line, rows[:4]))


@pytest.mark.parametrize("wrong", [b"[1]", b"{}", b'{"step": "x"}', b"\xff", b"null", b"[" * 9999])
def test_lines_that_are_not_ours_are_passed_over(tmp_path, wrong):
    run = empty_run(tmp_path, "a")
    run.log("metrics").write_bytes(wrong + b"\n" + runs.line({"step": 1, "loss": 2.0}))
    assert run.read("metrics") == [{"step": 1, "loss": 2.0}]


def test_a_number_that_is_none_is_never_logged():
    with pytest.raises(ValueError):
        runs.line({"step": 1, "loss": float("nan")})


def test_a_lock_is_held_by_one_and_goes_with_its_process(tmp_path):
    run = empty_run(tmp_path, "a")
    assert not run.busy and not (run.folder / "lock").exists(), "looking writes nothing"
    code = (
        "import sys, time; from pathlib import Path; from attnlab.training.runs import Run\n"
        "with Run(Path(sys.argv[1])).locked(): print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.folder)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"in\n"
        assert run.busy
        with pytest.raises(ValueError, match="another process"), run.locked():
            pass
        other.kill()
        other.wait()
    assert not run.busy
    with run.locked():
        assert run.busy


def test_many_may_look_at_once_and_a_look_keeps_nobody_out(tmp_path):
    import fcntl

    run = empty_run(tmp_path, "a")
    (run.folder / "lock").touch()
    with (run.folder / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not run.busy


@pytest.mark.parametrize("how", ["path", "name", "end", "slash"])
def test_a_run_is_found_by_path_name_and_end_of_name(trained, how):
    folder = trained.folder
    word = {
        "path": str(folder),
        "name": folder.name,
        "end": folder.name[-6:],
        "slash": f"{folder}/",
    }[how]
    assert runs.find(word, folder.parent) == (trained, None)


def test_a_checkpoint_is_found_by_its_path_from_anywhere(trained, monkeypatch):
    folder = trained.checkpoints / "step_000004"
    assert runs.find(str(folder), trained.folder)[1] == folder
    inside = f"{trained.folder.name}/checkpoints/step_000004"
    assert runs.find(inside, trained.folder.parent) == (trained, folder)
    monkeypatch.chdir(trained.checkpoints)
    run, found = runs.find("step_000004", trained.folder)
    assert run == trained and found.resolve() == folder


def test_what_is_not_there_is_told_the_nearest(trained, tmp_path):
    near = trained.folder.name[:-1] + "x"
    with pytest.raises(ValueError, match=f"did you mean {trained.folder.name!r}"):
        runs.find(near, trained.folder.parent)
    with pytest.raises(ValueError, match="there are no runs in"):
        runs.find("x", tmp_path)
    with pytest.raises(
        ValueError, match=r"no run of elman in .* yet; begin one: attnlab train elm"
    ):
        runs.find("ellman", trained.folder.parent)


def test_a_slip_in_a_preset_is_told_the_preset_whose_newest_run_is_meant(tmp_path):
    with pytest.raises(ValueError, match=r"no run of tiny in .* yet; begin one: attnlab train tin"):
        runs.find("tinny", tmp_path)
    empty_run(tmp_path, "20260101-120000-tiny-aaa111")
    with pytest.raises(ValueError, match="no run and no checkpoint; did you mean 'tiny'"):
        runs.find("tinny", tmp_path)


@pytest.mark.parametrize("word", ["", "/", "..", "checkpoints", "../../etc", "x" * 300])
def test_a_word_that_names_nothing_names_no_run(trained, word):
    with pytest.raises((ValueError, OSError)):
        runs.find(word, trained.folder.parent)


def test_an_end_that_several_runs_have_is_refused(tmp_path):
    for name in ("20260101-tiny-aaa111", "20260102-tiny-bbb111"):
        empty_run(tmp_path, name)
    with pytest.raises(ValueError, match="end of several runs"):
        runs.find("111", tmp_path)
    assert runs.find("a111", tmp_path)[0].folder.name == "20260101-tiny-aaa111"


def test_runs_come_newest_first_and_special_files_are_none(tmp_path):
    for name in ("20260102-b", "20260101-a"):
        empty_run(tmp_path, name)
    (tmp_path / "20260103-c").mkdir()
    os.mkfifo(tmp_path / "20260103-c" / "config.json")
    (tmp_path / "notes").mkdir()
    assert [run.folder.name for run in runs.all_in(tmp_path)] == ["20260102-b", "20260101-a"]
    assert runs.all_in(tmp_path / "nothing") == []


def test_a_place_where_no_run_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"no run can be made in .*Not a directory"):
        runs.create(tmp_path / "file", "tiny")


def test_a_read_only_place_is_named(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(type(tmp_path), "mkdir", refuse)
    with pytest.raises(ValueError, match=f"no run can be made in {tmp_path}: Read-only"):
        runs.create(tmp_path, "tiny")


def test_the_best_checkpoint_is_opened_and_else_the_newest_good_one(trained):
    state = checkpoint.load(trained.checkpoints / "step_000005").state
    best, broken = runs.open_checkpoint(str(trained.folder), trained.folder, best=True)
    assert best.name == checkpoint.name_of(state["best_step"]) and broken == []
    newest, _ = runs.open_checkpoint(str(trained.folder), trained.folder)
    assert newest.name == "step_000005"


def evaluated_five_times(root):
    """Best at its third evaluation, by the state of its newest checkpoint and by its log."""
    run = empty_run(root, "a")
    for step, loss in zip((2, 4, 6, 8, 10), (3.0, 2.0, 1.0, 1.5, 1.2), strict=True):
        kept, best = example(step), min(step, 6)
        kept.state.clear()
        kept.state.update(step=step, evaluated=step, best_step=best, best_loss=min(loss, 3.0))
        checkpoint.save(run.checkpoints, step, kept)
        files.append(run.log("eval"), runs.line({"step": step, "loss": loss}))
    return run


def test_the_newest_checkpoint_is_read_once_if_it_is_the_best(tmp_path):
    run = evaluated_five_times(tmp_path)
    checkpoint.discard(run.checkpoints / "step_000006")
    kept = example(12)
    kept.state.update(step=12, evaluated=12, best_step=12, best_loss=0.5)
    newest, seen = checkpoint.save(run.checkpoints, 12, kept), []
    found, said = runs.open_checkpoint(str(run.folder), tmp_path, best=True, verify=seen.append)
    assert (found, said, seen) == (newest, [], [newest])


@pytest.mark.parametrize("harm", ["damaged", "gone", "no log"])
def test_the_best_checkpoint_is_the_one_of_the_state_whatever_the_log_has_lost(tmp_path, harm):
    run = evaluated_five_times(tmp_path)
    lines = run.log("eval").read_bytes().splitlines(keepends=True)
    lines[2:3] = [b"\0\0\n"] if harm == "damaged" else []
    run.log("eval").write_bytes(b"".join(lines))
    if harm == "no log":
        run.log("eval").unlink()
    best, said = runs.open_checkpoint(str(run.folder), tmp_path, best=True)
    assert best.name == "step_000006"
    damaged = f"{run.log('eval')}: 1 line is damaged and left out"
    assert said == ([damaged] if harm == "damaged" else [])


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_another_checkpoint_than_the_best_is_never_taken_without_a_word(tmp_path, harm):
    run = evaluated_five_times(tmp_path)
    best = run.checkpoints / "step_000006"
    if harm == "damaged":
        (best / "model.safetensors").write_bytes(b"torn")
    else:
        checkpoint.discard(best)
    found, said = runs.open_checkpoint(str(run.folder), tmp_path, best=True)
    assert found.name == "step_000010", "the next by its loss"
    assert len(said) == 1 and "step_000006" in said[0] and said[0].endswith("its best step")


def test_a_rescued_run_is_found_by_its_preset_and_the_end_of_its_name(tmp_path):
    for end in ("", "-2"):
        run = empty_run(tmp_path, f"20261116-221009-shakespeare-cpu-47ae59-rescued{end}")
        assert run.preset == "shakespeare-cpu"
    other = empty_run(tmp_path, "20261116-221009-rescued-aaaaaa")
    assert other.preset == "rescued", "a preset of that name is none that was rescued"
    assert runs.find("shakespeare-cpu", tmp_path)[0] == run
    assert runs.find("47ae59-rescued", tmp_path)[0].folder.name.endswith("-rescued")
    checkpoint.files.remove_folder(run.folder)
    assert runs.find("47ae59", tmp_path)[0].folder.name.endswith("-rescued")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"step": 1}', b"{"])
def test_a_result_that_is_damaged_is_none(tmp_path, content):
    run = empty_run(tmp_path, "a")
    assert not run.finished
    (run.folder / "result.json").write_bytes(content)
    assert not run.finished and run.state == "stopped"


def test_a_run_without_a_good_checkpoint_says_why(tmp_path):
    run = empty_run(tmp_path, "a")
    with pytest.raises(ValueError, match="has no checkpoint that can be used"):
        runs.open_checkpoint(str(run.folder), tmp_path)
    (run.checkpoints / "step_000003").mkdir()
    with pytest.raises(ValueError, match=r"can be used: .*step_000003/manifest\.json is missing"):
        runs.open_checkpoint(str(run.folder), tmp_path)


@pytest.mark.parametrize("best", ["../../../x", 10**30, -1, None, True, 2.5])
def test_a_best_step_that_leads_nowhere_is_not_followed(tmp_path, best):
    run = empty_run(tmp_path, "a")
    kept = example(0)
    kept.state["best_step"] = best
    folder = checkpoint.save(run.checkpoints, 5, kept)
    files.sync_folder(run.folder)
    assert runs.open_checkpoint(str(run.folder), tmp_path, best=True) == (folder, [])


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "checkpoints"])
def test_a_link_in_a_run_folder_is_refused_and_its_target_left(tmp_path, name):
    """As in a folder that a stranger made: resuming it must not write anywhere else."""
    run, _ = begin(tmp_path, small("steps=3", "evaluate_every=none", "save_every=2"))
    newest, _ = checkpoint.newest_good(run.checkpoints)
    target = tmp_path / "target"
    if name == "checkpoints":
        run.checkpoints.rename(target)
    else:
        target.write_bytes(b"precious")
        (run.folder / name).unlink()
    before = sorted(path.name for path in target.iterdir()) if target.is_dir() else b"precious"
    (run.folder / name).symlink_to(target)
    with pytest.raises(OSError, match="is a link"):
        go_on(run, small("steps=9", "keep=1", "save_every=2"), newest)
    after = sorted(path.name for path in target.iterdir()) if target.is_dir() else b""
    assert (after or target.read_bytes()) == before
