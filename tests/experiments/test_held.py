"""Held-out losses by stretches of the text: all of it, each token once, in order."""

import json
import shutil

import numpy as np
import pytest
from training.recipes import small

from attnlab import json_files
from attnlab.experiments import held
from attnlab.training import launch
from attnlab.training.report import Report
from attnlab.training.runs import Run


def test_stretches_follow_each_other_and_hold_every_target_once():
    losses = np.arange(3.0 * 101).reshape(101, 3)
    losses[100, 1:] = np.nan  # the last sample is a shorter one
    found = held.stretches_of(losses)
    assert len(found.sums) == len(found.counts) == held.STRETCHES
    assert sum(found.counts) == 301 and sum(found.sums) == np.nansum(losses)
    assert found.loss == pytest.approx(np.nanmean(losses))
    assert found.sums[0] == losses[:3].sum() and found.counts[-1] == 3 + 1


def test_few_samples_are_a_stretch_each():
    found = held.stretches_of(np.ones((5, 2)))
    assert found.sums == [2.0] * 5


def test_what_chooses_and_what_is_reported_share_nothing():
    plain = {"sums": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "counts": [1.0] * 8}
    chosen, reported = held.tuning_part(plain), held.reporting_part(plain, searched=True)
    assert [*chosen.sums, *reported.sums] == plain["sums"] and chosen.sums == [1.0, 2.0]
    assert held.reporting_part(plain, searched=False).sums == plain["sums"]


def test_a_run_is_measured_once_as_its_training_evaluated_it(tmp_path, monkeypatch):
    run = Run(tmp_path / "runs" / "one")
    launch.train_in(run, small(), report=Report())
    found = held.measure(run)
    last = json.loads(run.log("eval").read_text().splitlines()[-1])
    assert sum(found["counts"]) == last["tokens"]
    assert sum(found["sums"]) / sum(found["counts"]) == pytest.approx(last["loss"], rel=1e-9)
    monkeypatch.setattr(held, "open_saved", lambda *a, **k: pytest.fail("measured again"))
    assert held.measure(run) == found


@pytest.mark.parametrize(
    "harm",
    [
        lambda good: good.replace(b"1", b"2", 1),  # JSON still, and wrong
        lambda good: good[:-20],
        lambda good: b'{"sums": [1.0], "counts": [1.0]}',
        lambda good: json_files.sealed_json({"sums": [-1.0], "counts": [1.0]}),
    ],
)
def test_losses_that_are_damaged_are_said_and_measured_again(measured, tmp_path, harm):
    run = Run(shutil.copytree(measured.folder, tmp_path / "one"))
    path, notes = run.folder / held.FILE, []
    good = path.read_bytes()
    path.write_bytes(harm(good))
    assert path.read_bytes() != good
    held.measure(run, notes.append)
    assert len(notes) == 1 and str(path) in notes[0] and notes[0].endswith("; measuring it again")
    assert path.read_bytes() == good
    held.measure(run, lambda line: pytest.fail(line))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("runs") / "one")
    launch.train_in(run, small(), report=Report())
    held.measure(run)
    return run


def test_every_evaluation_of_a_training_is_logged_by_stretches(tmp_path):
    run = Run(tmp_path / "runs" / "one")
    launch.train_in(run, small(), report=held.Recorder(run))
    rows, evaluated = run.read("held"), run.read("eval")
    assert [row["step"] for row in rows] == [row["step"] for row in evaluated] == [5, 10, 12]
    for row, wanted in zip(rows, evaluated, strict=True):
        assert sum(row["counts"]) == wanted["tokens"]
        # the same losses, added in another order in float64
        assert sum(row["sums"]) / sum(row["counts"]) == pytest.approx(wanted["loss"], rel=1e-12)
    last = held.measure(run)
    assert rows[-1]["counts"] == last["counts"]
    assert rows[-1]["sums"] == pytest.approx(last["sums"], rel=1e-6)  # float32 logits


def test_a_training_that_resumes_logs_no_evaluation_twice(tmp_path):
    run = Run(tmp_path / "runs" / "one")
    launch.train_in(run, small("steps=10"), report=held.Recorder(run))
    with run.log("held").open("ab") as log:
        log.write(b'{"step": 12, "sums": [1.0], "counts": [1.0]}\n{"st')  # and killed there
    launch.train_in(run, small("steps=10", "save_every=4"), report=held.Recorder(run))
    assert [row["step"] for row in run.read("held")] == [5, 10]
