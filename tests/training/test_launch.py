"""From words to a run: what wins over what, which run resumes, and nothing left by a refusal."""

import errno
import json
import os
import shutil
import signal

import pytest
import torch

from attnlab import config, files
from attnlab.code import consent
from attnlab.training import checkpoint, runs
from attnlab.training.launch import launch, recipe_for, with_data
from attnlab.training.report import Report
from attnlab.training.saved import open_saved
from attnlab.training.step import Stepper

TEXT = "the quick brown fox jumps over the lazy dog. " * 30
SMALL = {
    "model": {"width": 16, "depth": 1, "context": 16, "attention": {"heads": 2}},
    "batch": 4,
    "steps": 6,
    "evaluate_every": 3,
    "save_every": 2,
    "device": "cpu",
}


class Notes(Report):
    def __init__(self):
        self.lines, self.began_at = [], None

    def training(self, opening, step, tokens_per_step):
        self.began_at = step
        return super().training(opening, step, tokens_per_step)

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    return tmp_path


def go(place, *words, resume=None, preset="shakespeare-cpu", report=None, file="small.json"):
    return launch(
        preset,
        [f"data={place / 'text.txt'}", *words],
        root=place / "runs",
        make_report=lambda world: report or Report(),
        resume=resume,
        file=place / file if file else None,
    )


def folders(place):
    return sorted(path.name for path in (place / "runs").glob("*"))


def unfinished(run, *broken):
    """As if it had been killed: no result, and the named checkpoints damaged."""
    (run.folder / "result.json").unlink(missing_ok=True)
    for name in broken:
        (run.checkpoints / name / "model.safetensors").write_bytes(b"torn")
    return run


def test_words_win_over_the_file_and_the_file_over_the_preset(place):
    default = recipe_for("tiny", [])
    filed = recipe_for("tiny", [], place / "small.json")
    worded = recipe_for("tiny", ["steps=9"], place / "small.json")
    assert (filed.steps, worded.steps) == (6, 9) and default.steps > 9
    assert filed.optimiser == default.optimiser, "a partial file leaves the rest"
    assert (filed.model.width, filed.model.norm) == (16, default.model.norm)


def test_a_saved_config_is_a_file_and_a_new_choice_brings_nothing_of_it_along(place):
    run, _ = go(place)
    saved = run.folder / "config.json"
    assert recipe_for("tiny", [], saved) == run.recipe()
    changed = recipe_for("tiny", ["model.positions=learned", "corpus=python-docs"], saved)
    assert config.to_dict(changed)["model"]["positions"]["name"] == "learned"
    assert config.to_dict(changed)["corpus"]["name"] == "python-docs"


@pytest.mark.parametrize(
    ("preset", "words", "spelled"),
    [
        ("shakespeare-cpu", ["data=x"], ["corpus.path=x"]),
        ("birthplaces-none", ["data=x"], ["corpus.path=x"]),
        ("tiny", ["data=x"], ["corpus=text", "corpus.path=x"]),
        ("tiny", ["corpus=birthplaces", "data=x"], ["corpus=birthplaces", "corpus.path=x"]),
        ("tiny", ["data=x", "corpus=text"], ["corpus.path=x", "corpus=text"]),
    ],
)
def test_data_is_the_path_of_the_corpus_or_of_a_text_instead(preset, words, spelled):
    recipe = recipe_for(preset, [])
    assert with_data(recipe, words) == spelled
    assert config.override(recipe, spelled).corpus.path == "x"


def test_data_for_a_corpus_without_a_path_is_refused():
    with pytest.raises(ValueError, match="corpus=biographies is not read from a path"):
        recipe_for("tiny", ["corpus=biographies", "data=x"])


def test_resume_takes_the_newest_unfinished_run_of_just_this_preset(place):
    wanted = unfinished(go(place)[0])
    finished, _ = go(place)
    other = wanted.folder.with_name(wanted.folder.name.replace("cpu-", "cpu-two-"))
    shutil.copytree(wanted.folder, other)  # "shakespeare-cpu-two" is another preset
    run, result = go(place, resume="newest", file=None)
    assert run.folder == wanted.folder and result.ending == "finished"
    with pytest.raises(ValueError, match="no unfinished shakespeare-cpu run"):
        go(place, resume="newest", file=None)
    assert finished.finished


def test_underscores_in_a_preset_name_are_the_same_preset(place):
    run = unfinished(go(place, preset="shakespeare_cpu")[0])
    assert "-shakespeare-cpu-" in run.folder.name
    assert go(place, resume="newest")[0].folder == run.folder


def test_auto_goes_on_with_the_same_settings_only(place):
    first, _ = go(place, resume="auto")
    assert go(place, resume="auto")[0].folder != first.folder, "finished: a new one"
    unfinished(first, "step_000006")
    assert go(place, "steps=7", resume="auto")[0].folder != first.folder, "other settings"
    assert go(place, resume="auto")[0].folder == first.folder
    assert len(folders(place)) == 3


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"model": 5}', b"{}", b'{"a":' * 99_999])
def test_auto_passes_over_a_run_that_cannot_be_read(place, content):
    broken = place / "runs" / "20200101-000000-shakespeare-cpu-aaaaaa"
    (broken / "checkpoints").mkdir(parents=True)
    (broken / "config.json").write_bytes(content)
    assert go(place, resume="auto")[0].folder != broken


def test_resume_by_the_path_of_a_run_and_of_a_checkpoint(place):
    whole, _ = go(place, "keep=9")
    assert go(place, "steps=8", resume=str(whole.folder))[1].step == 8
    notes = Notes()
    named = f"{whole.folder.name}/checkpoints/step_000002"  # found in the folder of runs too
    run, result = go(place, "steps=8", resume=named, report=notes)
    assert (run.folder, notes.began_at, result.step) == (whole.folder, 2, 8)
    rows = run.read("metrics")
    assert [row["step"] for row in rows] == list(range(1, 9)), "the log was cut at step 2"


def test_a_broken_checkpoint_is_named_and_the_one_before_it_used(place):
    whole, _ = go(place, "keep=9")
    expected = (whole.checkpoints / "step_000006" / "model.safetensors").read_bytes()
    notes = Notes()
    run, _ = go(place, resume=str(unfinished(whole, "step_000006").folder), report=notes)
    assert any(n.startswith("skipped: ") and "step_000006" in n for n in notes.lines)
    assert f"resuming from {run.checkpoints / 'step_000004'}" in notes.lines
    assert (run.checkpoints / "step_000006" / "model.safetensors").read_bytes() == expected


def test_a_run_killed_before_its_first_checkpoint_goes_on_from_the_beginning(place):
    whole, _ = go(place)
    expected = whole.log("metrics").read_bytes()
    unfinished(whole)
    shutil.rmtree(whole.checkpoints)
    whole.log("metrics").write_bytes(expected[:50])
    notes = Notes()
    run, _ = go(place, resume="newest", report=notes)
    assert run.folder == whole.folder and "resuming from the beginning" in notes.lines
    assert run.log("metrics").read_bytes() == expected


OWN = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)
    def forward(self, x):
        return self.out(x.cumsum(1))

class Dropping(Plain):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.3, self.training)

class Counting(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("hidden", torch.full((2, 2), -torch.inf).triu(1))
    def forward(self, x):
        if self.training:
            self.seen += 1
        return super().forward(x) / (1 + self.seen)

class Replacing(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("mean", torch.zeros(width))
    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return super().forward(x) - self.mean.detach()
"""


@pytest.mark.parametrize("name", ["Dropping", "Counting", "Replacing"])
def test_own_code_that_draws_or_counts_resumes_to_the_same_bits(place, monkeypatch, name):
    monkeypatch.chdir(place)
    monkeypatch.setattr(consent, "FOLDER", str(place / "named"))
    (place / "mine.py").write_text(OWN)
    words = [f"model.attention=mine.py:{name}", "model.positions=none", "average=none"]
    whole, _ = go(place, *words)
    expected = whole.log("metrics").read_bytes(), whole.log("eval").read_bytes()
    again, _ = go(place, *words)
    assert (again.log("metrics").read_bytes(), again.log("eval").read_bytes()) == expected
    unfinished(whole, "step_000006", "step_000004")
    resumed, _ = go(place, resume=str(whole.folder))
    assert (resumed.log("metrics").read_bytes(), resumed.log("eval").read_bytes()) == expected
    saved = checkpoint.newest_good(whole.checkpoints)[0]
    there = dict(open_saved(str(saved), place / "runs").model.named_buffers())
    kept = checkpoint.load(saved).model
    moved = {"Dropping": set(), "Counting": {"seen"}, "Replacing": {"mean"}}[name]
    assert {one.rpartition(".")[2] for one in kept if "attention." in one} == {
        *("weight", "bias"),
        *moved,
    }
    assert all(torch.equal(there[one], kept[one]) for one in there if one in kept)


def test_a_training_that_is_stopped_before_its_first_step_leaves_nothing(place, monkeypatch):
    def stopped(self, parts):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was not heard")

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "rehearse", stopped)
        _, result = go(place)
    assert result.ending == "SIGTERM" and not result.begun and not folders(place)
    run, _ = go(place)
    unfinished(run)
    killed = runs.create(place / "runs", "shakespeare-cpu")  # while it compiled, say
    (killed.folder / "config.json").write_bytes((run.folder / "config.json").read_bytes())
    assert go(place, resume="newest", file=None)[0].folder == run.folder


def test_changed_settings_are_named(place):
    run, _ = go(place)
    notes = Notes()
    go(place, "steps=7", "clip=0.5", resume=str(run.folder), report=notes)
    assert "resuming with steps=7 instead of 6" in notes.lines
    assert "resuming with clip=0.5 instead of 1.0" in notes.lines
    assert run.recipe().steps == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.width=32"], "model.width is 16 in the checkpoint and 32 here"),
        (["optimiser=adamw"], "the optimiser's state does not fit"),
        (["corpus.validation=0.2"], "the text has changed"),
        (["steps=5"], "steps is 5, and the run is at step 6 already"),
        (["model=elman"], "model.name is transformer in the checkpoint and elman here"),
    ],
)
def test_a_run_that_cannot_go_on_like_that_is_left_as_it_was(place, words, message):
    run, _ = go(place)
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=message):
        go(place, *words, resume=str(run.folder), file=None)
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before


def test_a_run_at_work_is_left_as_it_was(place):
    run, _ = go(place)
    before = (run.folder / "config.json").stat()
    with run.locked(), pytest.raises(ValueError, match="another process"):
        go(place, "steps=9", resume=str(run.folder))
    now = (run.folder / "config.json").stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "not for a moment"


@pytest.mark.parametrize(
    "words",
    [
        ["stpes=3"],
        ["context=100000"],
        ["start=nothing"],
        ["batch=1048576", "model.width=1048576"],
        ["dtype=bfloat16"],
        ["tensorboard=true"],
    ],
    ids=str,
)
def test_bad_input_creates_no_run(place, monkeypatch, words):
    from attnlab.kernels import hardware

    monkeypatch.setattr(hardware, "cpu_multiplies", lambda dtype: False)
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError):
        go(place, *words)
    assert folders(place) == []


def test_what_is_no_file_is_no_config(place):
    os.mkfifo(place / "fifo")
    with pytest.raises(ValueError, match="is no file"):
        go(place, file="fifo")
    with pytest.raises(ValueError, match=r"missing\.json cannot be read"):
        go(place, file="missing.json")


def test_the_checkpoint_that_is_named_must_be_whole(place):
    run = unfinished(go(place)[0], "step_000006")
    with pytest.raises(checkpoint.BrokenCheckpoint):
        go(place, resume=str(run.checkpoints / "step_000006"))
    with pytest.raises(ValueError, match="is no run and no checkpoint"):
        go(place, resume=str(run.checkpoints / "step_000099"))
    assert runs.all_in(place / "runs") == [run]


def test_the_checkpoint_decides_and_what_differs_in_the_config_is_said(place):
    run = unfinished(go(place, "steps=6")[0])
    path = run.folder / "config.json"
    before = json.loads(path.read_text())
    edited = json.loads(path.read_text())
    edited["optimiser"]["rate"] = 0.5
    path.write_text(json.dumps(edited))
    notes, kept = Notes(), before["optimiser"]["rate"]
    go(place, "steps=7", resume=str(run.folder), report=notes, file=None)
    said = f"{path} has optimiser.rate=0.5, its step_000006 {kept}: the checkpoint decides"
    assert said in notes.lines
    assert run.recipe().optimiser.rate == kept
    assert json.loads(path.read_text()) == before | {"steps": 7}


@pytest.mark.parametrize("content", [None, b"{", b"[]", "terabytes"])
def test_a_config_that_is_missing_or_damaged_is_made_again(place, content):
    run = unfinished(go(place)[0])
    path = run.folder / "config.json"
    before = path.read_bytes()
    path.unlink()
    if content == "terabytes":
        path.touch()
        os.truncate(path, 2**40)
    elif content is not None:
        path.write_bytes(content)
    notes = Notes()
    assert go(place, resume="newest", report=notes, file=None)[0].folder == run.folder
    why = "is missing" if content is None else "cannot be used"
    assert f"{path} {why}; made again from step_000006" in notes.lines
    assert path.read_bytes() == before


def test_later_steps_of_another_training_are_set_aside_and_not_gone_on_from(place):
    run, _ = go(place)
    before = (run.checkpoints / "step_000006" / "model.safetensors").read_bytes()
    notes = Notes()
    earlier = str(run.checkpoints / "step_000004")
    go(place, "optimiser.rate=0.02", "steps=5", resume=earlier, report=notes)
    aside = run.checkpoints / "aside-1" / "step_000006"
    assert f"a later step of another training is set aside: {aside}" in notes.lines
    assert (aside / "model.safetensors").read_bytes() == before
    assert checkpoint.newest_good(run.checkpoints)[0].name == "step_000005"
    go(place, "steps=7", resume=str(run.folder))
    assert [row["step"] for row in run.read("metrics")] == list(range(1, 8))
    assert run.recipe().optimiser.rate == 0.02


def contents(run):
    return {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "tokenizer.json"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_resume_that_fails_on_a_full_disk_leaves_a_finished_run_finished(
    place, monkeypatch, name, earlier
):
    run, _ = go(place, "keep=9")
    before, write = contents(run), files.write_whole

    def full(path, content):
        if path.name == name:
            raise OSError(errno.ENOSPC, f"{path} could not be written: No space left on device")
        write(path, content)

    monkeypatch.setattr(files, "write_whole", full)
    word = str(run.checkpoints / "step_000004" if earlier else run.folder)
    with pytest.raises(OSError, match="No space left"):
        go(place, "steps=9", resume=word)
    assert run.finished and run.state == "finished"
    changed = {path.name for path, content in contents(run).items() if before.get(path) != content}
    assert changed <= {"config.json", "manifest.json"}, "copies for people"


def test_a_result_stays_until_a_later_step_is_saved(place, monkeypatch):
    run, _ = go(place)
    save = checkpoint.save

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(checkpoint, "save", full)
        go(place, "steps=9", resume=str(run.folder))
    assert run.result()["step"] == 6 and run.finished
    finished = []

    def noted(*given):
        finished.append(run.finished)
        return save(*given)

    monkeypatch.setattr(checkpoint, "save", noted)
    go(place, "steps=9", resume=str(run.folder))
    assert finished[0] is True and not any(finished[1:]), "and no longer"
    assert run.result()["step"] == 9


def test_a_result_of_steps_that_are_set_aside_goes_with_them(place, monkeypatch):
    run, _ = go(place, "keep=9")
    begun = []

    class Begins(Notes):
        def training(self, opening, step, tokens_per_step):
            begun.append(run.finished)
            return super().training(opening, step, tokens_per_step)

    go(place, resume=str(run.checkpoints / "step_000004"), report=Begins())
    assert begun == [False] and run.finished


def test_a_resume_reads_the_checkpoint_twice_and_no_more(place, monkeypatch):
    run = unfinished(go(place)[0])
    read, seen = files.read, []

    def noted(path, *more):
        seen.append(path)
        return read(path, *more)

    monkeypatch.setattr(files, "read", noted)
    notes = Notes()

    class Begins(Notes):
        def training(self, opening, step, tokens_per_step):
            notes.lines += [path for path in seen if path.name == "model.safetensors"]
            return super().training(opening, step, tokens_per_step)

    go(place, "steps=7", resume=str(run.folder), report=Begins(), file=None)
    assert len(notes.lines) == 2, "to choose it, and to use it"


def test_one_rule_for_a_text_that_has_changed(place):
    """A run goes on with its own text alone, wherever that is; with another, one begins anew."""
    run = unfinished(go(place)[0])
    (place / "moved.txt").write_text(TEXT)
    (place / "text.txt").write_text(TEXT.replace("dog", "god"))
    said = []
    for words in ([], [f"data={place / 'text.txt'}"]):
        with pytest.raises(ValueError, match="the text has changed") as caught:
            launch(
                "shakespeare-cpu",
                words,
                root=place / "runs",
                make_report=lambda world: Report(),
                resume=str(run.folder),
            )
        said.append(str(caught.value))
    assert said[0] == said[1] and "data=PATH" in said[0] and "start=RUN" in said[0]
    moved = [f"data={place / 'moved.txt'}", "steps=7"]
    assert go(place, *moved, resume=str(run.folder), file=None)[1].step == 7, "as it is told"
    start = [f"start={run.folder}", "steps=2"]
    assert go(place, *start)[1].ending == "finished", "as it is told"


def test_logs_are_on_the_disk_before_the_checkpoint_that_relies_on_them(place, monkeypatch):
    order = []
    monkeypatch.setattr("attnlab.files.sync", lambda path: order.append(path.name))
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *given: order.append("saved") or save(*given))
    go(place)
    first = order.index("saved")
    assert {"metrics.jsonl", "eval.jsonl"} <= set(order[:first])
