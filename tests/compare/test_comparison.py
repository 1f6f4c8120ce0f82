"""A whole comparison, from its words to its report, also when it is killed on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compare.comparisons import (
    FOUR,
    comparison,
    small_words,
    timeless,
    timeless_page,
    timeless_text,
)
from experiments.small import InProcess

from attnlab import json_files
from attnlab.compare.comparison import Comparison
from attnlab.compare.parse import parse
from attnlab.experiments.experiment import carry_out
from attnlab.experiments.progress import Progress
from attnlab.training import launch, runs
from attnlab.training.report import Report

WILD = "wild=tiny:optimiser=adamw,optimiser.rate=49,optimiser.weight_decay=99,model.norm=layer"
SEARCHED = (*FOUR[:2], WILD, "seeds=2", "rates=1,2", "match=flops")
LONG = ("steps=12", "evaluations=3", "seeds=2")


def run(root, *words, **options):
    made = Comparison(parse(words), options.get("pool") or InProcess())
    return carry_out("", made, root=root, progress=Progress())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two variants and one that diverges, with a search of the rate, matched by operations."""
    folder = tmp_path_factory.mktemp("two")
    return run(folder, *small_words(folder, *SEARCHED))


def command(folder, *words):
    return [sys.executable, "-m", "attnlab", "compare", *small_words(folder, *words)]


def finished(folder):
    return len(list(folder.glob("runs/compare-*/runs/*/result.json")))


def test_killed_half_way_and_continued_the_report_is_the_same(tmp_path, monkeypatch):
    """kill -9 of the real thing: four variants, two seeds."""
    words, env = command(tmp_path, *FOUR, *LONG), {**os.environ, "OMP_NUM_THREADS": "1"}
    monkeypatch.setattr(sys, "argv", ["attnlab", *words[3:]])
    straight = run(tmp_path / "straight", *words[4:]).folder
    started = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 100
    while finished(tmp_path) < 3 and time.monotonic() < until:
        time.sleep(0.005)
    started.kill()
    started.wait()
    assert 3 <= finished(tmp_path) < 8
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    continued = tmp_path / "runs" / straight.name

    read = [json.loads((folder / "results.json").read_text()) for folder in (straight, continued)]
    assert timeless(read[0]) == timeless(read[1])
    assert read[0]["versions"] == read[1]["versions"]
    texts = [timeless_text((folder / "report.md").read_text()) for folder in (straight, continued)]
    assert texts[0] == texts[1]
    pages = [
        timeless_page((folder / "report.html").read_text()) for folder in (straight, continued)
    ]
    assert pages[0] == pages[1]
    pictures = sorted(path.name for path in straight.glob("pictures/*.svg"))
    assert len(pictures) == 4
    for name in pictures:
        if "time" not in name:
            one, other = (folder / "pictures" / name for folder in (straight, continued))
            assert one.read_bytes() == other.read_bytes()


def test_a_signal_stops_all_processes_and_the_same_command_goes_on(tmp_path):
    words = command(tmp_path, *FOUR[:2], "steps=3000", "evaluations=1", "seeds=2")
    words += ["--processes", "1"]
    started = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE)
    until = time.monotonic() + 100
    while not list(tmp_path.glob("runs/compare-*/runs/*/metrics.jsonl")):
        assert time.monotonic() < until and started.poll() is None
        time.sleep(0.01)
    workers = children(started.pid)
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate(timeout=100)
    assert started.returncode == 128 + 15 and b"the same command resumes" in err
    assert workers and not any(alive(pid) for pid in workers)
    saved = list(tmp_path.glob("runs/compare-*/runs/*/checkpoints/step_*"))
    assert saved and not finished(tmp_path)  # in the middle, although nothing else saves there


def children(pid):
    found = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(path.name) for path in found if status(path.name)[1:2] == [str(pid)]]


def alive(pid):
    return status(pid)[:1] not in ([], ["Z"])


def status(pid):
    """State, parent and more of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def test_one_that_diverges_is_reported_and_the_rest_goes_on(two):
    found = two.results["variants"]
    assert found["wild"]["loss"] is None and len(found["wild"]["stranded"]) == 2
    why = found["wild"]["stranded"]["0"]
    assert why["ending"] == "diverged" and "nan" in why["why"]
    assert len(found["learned"]["by_seed"]) == len(found["rotary"]["by_seed"]) == 2
    assert "Wild diverged in 2 of 2 trainings." in two.results["answer"]
    assert "wild" not in two.results["samples"]["texts"]
    page = (two.folder / "report.html").read_text()
    assert "Trainings that did not finish" in page


def test_rates_are_searched_with_a_seed_that_counts_for_nothing_else(two):
    searched = two.results["variants"]["rotary"]["rates"]
    losses = dict(searched["losses"])
    assert searched["chosen"] == min(losses, key=losses.get) and set(losses) == {1.0, 2.0}
    assert "searched for each over × 1 and 2" in two.results["answer"]
    assert dict(two.results["variants"]["wild"]["rates"]["losses"]) == {1.0: None, 2.0: None}
    names = {path.name for path in (two.folder / "runs").iterdir()}
    assert {"rotary-rate-2-seed-2", "rotary-seed-0", "rotary-seed-1"} <= names
    trained = json.loads((two.folder / "runs/rotary-seed-0/config.json").read_text())
    assert trained["optimiser"]["rate"] == 0.01 * searched["chosen"]
    assert trained["optimiser"]["rest_rate"] == 3e-3 * searched["chosen"]


def test_all_of_one_seed_read_the_same_text_with_equal_operations(two):
    settings = [
        json.loads((two.folder / "runs" / f"{label}-seed-1" / "config.json").read_text())
        for label in ("learned", "rotary")
    ]
    for key in ("corpus", "tokenizer", "batch", "context", "seed"):
        assert settings[0][key] == settings[1][key]
    found = two.results["variants"]
    spent = [one["steps"] * one["operations_per_token"] for one in found.values()]
    assert max(spent) <= min(spent) * (1 + 1 / 6)


def test_every_training_ends_with_an_evaluation_of_the_whole_split(two):
    rows = (two.folder / "runs/rotary-seed-0/eval.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])
    found = two.results["variants"]["rotary"]
    assert last["step"] == found["steps"] == found["curve"][-1][0]
    assert last["tokens"] == 500  # of 501 characters the first is only read
    kept = json.loads((two.folder / "runs/rotary-seed-0/held.json").read_text())
    assert sum(kept["counts"]) == 500
    assert sum(kept["sums"]) / 500 == pytest.approx(last["loss"], rel=1e-9)


def test_what_chose_the_rates_is_in_no_loss_that_is_reported(two):
    """32 samples of 16 tokens: the first 8 choose, the other 24 are reported."""

    def mean(name, part):
        kept = json.loads((two.folder / "runs" / name / "held.json").read_text())
        return sum(kept["sums"][part]) / sum(kept["counts"][part])

    found = two.results["variants"]["rotary"]
    assert found["by_seed"]["1"] == pytest.approx(mean("rotary-seed-1", slice(8, None)))
    assert dict(found["rates"]["losses"])[2.0] == pytest.approx(
        mean("rotary-rate-2-seed-2", slice(0, 8))
    )
    assert "over 372 held-out tokens" in (two.folder / "report.md").read_text()
    assert all(pair["text_error"] > 0 for pair in two.results["pairs"] if pair["difference"])


def test_steps_to_a_loss_are_counted_on_the_text_that_losses_are_reported_on(two):
    """The curve ends at the reported loss, so a variant reaches its own loss at its last step."""
    for label in ("learned", "rotary"):
        found = two.results["variants"][label]
        step, loss = found["curve"][-1]
        # float32 logits of the same weights, in other batches
        assert step == found["steps"] and loss == pytest.approx(found["loss"]["mean"], rel=1e-6)
    report = (two.folder / "report.md").read_text()
    assert "leave that quarter out. Another search" in report


def test_a_folder_of_an_older_version_has_curves_of_all_text_and_says_so(two, tmp_path):
    folder = tmp_path / two.folder.name
    shutil.copytree(two.folder, folder)
    part = json.loads((folder / "parts" / "trainings.json").read_text())
    for result in part["result"].values():
        del result["by_stretch"]
    del part["sha256"]
    (folder / "parts" / "trainings.json").write_bytes(json_files.sealed_json(part))
    made = comparison(two.folder.parent, *SEARCHED)
    old = carry_out("", made, root=tmp_path, progress=Progress())
    rows = (folder / "runs/rotary-seed-0/eval.jsonl").read_text().splitlines()
    also = (folder / "runs/rotary-seed-1/eval.jsonl").read_text().splitlines()
    last = [json.loads(lines[-1])["loss"] for lines in (rows, also)]
    assert old.results["variants"]["rotary"]["curve"][-1][1] == pytest.approx(sum(last) / 2)
    report = (folder / "report.md").read_text()
    assert "leave that quarter out, the learning curves aside" in report
    assert "unless one was asked for; on all held-out text" in report
    kept = ("by_seed", "loss", "above_best")
    for label, found in old.results["variants"].items():
        assert {k: found[k] for k in kept} == {k: two.results["variants"][label][k] for k in kept}


def test_a_search_needs_text_of_its_own(tmp_path):
    few = "corpus.validation=0.02"  # 7 samples
    with pytest.raises(ValueError, match="a search of rates needs 8"):
        comparison(tmp_path, *FOUR[:2], "tune=rate", few).text()
    found = comparison(tmp_path, *FOUR[:2], "tune=auto", few)
    assert found.search.rates == () and "fewer than 8" in found.search.why
    assert found.settings()["rates"] == []


def test_a_single_rate_is_taken_by_all_and_costs_no_search_and_no_text(tmp_path):
    once = run(tmp_path, *small_words(tmp_path, *FOUR[:2], "seeds=2", "rates=3"))
    assert once.results["tuning"]["rates"] == []
    assert "Learning rates were not searched: one multiple" in once.results["answer"]
    runs = {folder.name for folder in (once.folder / "runs").iterdir()}
    assert runs == {f"{label}-seed-{seed}" for label in ("learned", "rotary") for seed in (0, 1)}
    report = (once.folder / "report.md").read_text()
    assert "over 500 held-out tokens" in report and "## Learning rates" not in report
    kept = json.loads((once.folder / "runs/rotary-seed-0/config.json").read_text())
    assert kept["optimiser"]["rate"] == pytest.approx(0.03)
    plain = comparison(tmp_path, *FOUR[:2], "seeds=2", "tune=none")
    other = comparison(tmp_path, *FOUR[:2], "seeds=2", "rates=3")
    assert plain.settings()["rates"] == [] and other.settings()["rates"] == [3.0]


def test_what_is_done_is_not_done_again(two, monkeypatch):
    again = comparison(two.folder.parent, *SEARCHED)
    monkeypatch.setattr(again.pool, "train", lambda *a: pytest.fail("trained again"))
    done = carry_out("", again, root=two.folder.parent, progress=Progress())
    assert done.folder == two.folder and done.results == two.results


def test_another_text_or_another_recipe_has_another_folder(tmp_path):
    first = comparison(tmp_path, *FOUR[:2])
    other = comparison(tmp_path, *FOUR[:2], "model.width=32")
    assert first.settings() != other.settings() and first.text() != other.text()
    (tmp_path / "text.txt").write_text("another " * 500)
    assert comparison(tmp_path, *FOUR[:2]).text() != first.text()


class Notes(Progress):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


class Stop(Exception):
    pass


class StopsAfter(InProcess):
    """A pool that ends like a power cut, after so many trainings."""

    def __init__(self, count):
        self.count = count

    def train(self, tasks, log, watch):
        super().train(tasks[: self.count], log, watch)
        raise Stop


@pytest.fixture
def paces(monkeypatch):
    """Step times, each as often as it is asked for; the last one for ever."""
    from attnlab.experiments import costs

    given = [{"learned": 5.0, "rotary": 10.0}, {"learned": 4.0, "rotary": 6.0}]

    def step_times(recipes, turns):
        pace = given.pop(0) if len(given) > 1 else given[0]
        ends = {"fastest_ms": 1.0, "slowest_ms": 9.0, "tokens_per_second": 1.0, "paths": []}
        return {label: {"step_ms": pace[label], **ends} for label in recipes}

    monkeypatch.setattr(costs, "step_costs", step_times)
    return given


def steps_of(results):
    return [results["variants"][label]["steps"] for label in ("learned", "rotary")]


def trained_steps(folder):
    kept = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/config.json")}
    return {name: settings["steps"] for name, settings in kept.items()}


def test_steps_that_fit_into_equal_seconds_are_kept(tmp_path, paces):
    words = small_words(tmp_path, *FOUR[:2], "match=seconds", "seeds=1")
    with pytest.raises(Stop):
        run(tmp_path, *words, pool=StopsAfter(0))
    done = run(tmp_path, *words)
    assert steps_of(done.results) == [6, 3]
    assert done.results["pairs"][0]["verdict"] == "cannot tell"


def test_step_times_that_are_lost_never_mix_with_trainings_that_were_matched_by_them(
    tmp_path, paces
):
    words = small_words(tmp_path, *FOUR[:2], "match=seconds", "seeds=2")
    before = run(tmp_path, *words)
    assert steps_of(before.results) == [6, 3]
    part = before.folder / "parts" / "step-times-before.json"
    for harm in ("lost", "damaged", "lost with its trainings"):
        part.write_bytes(b"{}") if harm == "damaged" else part.unlink()
        if harm == "lost with its trainings":
            shutil.rmtree(before.folder / "runs")
        notes = Notes()
        after = carry_out("", Comparison(parse(words), InProcess()), root=tmp_path, progress=notes)
        assert timeless(after.results) == timeless(before.results)
        assert "step times before is lost: the trainings keep the steps they have" in notes.lines


def test_step_times_are_measured_anew_where_no_training_tells_the_steps(tmp_path, paces):
    """Lost after the first of two variants: that one is trained again with its new steps."""
    words = small_words(tmp_path, *FOUR[:2], "match=seconds", "seconds=0.03", "seeds=1")
    with pytest.raises(Stop):
        run(tmp_path, *words, pool=StopsAfter(1))
    folder = next(tmp_path.glob("compare-*"))
    assert trained_steps(folder / "runs") == {"learned-seed-0": 6}
    (folder / "parts" / "step-times-before.json").unlink()
    found = run(tmp_path, *words)
    assert steps_of(found.results) == [7, 5]
    assert trained_steps(folder / "runs") == {"learned-seed-0": 7, "rotary-seed-0": 5}
    assert trained_steps(folder / "runs" / "aside") == {"learned-seed-0-1": 6}


def test_trainings_whose_steps_do_not_agree_are_done_anew_with_one_measure(tmp_path, paces):
    words = small_words(tmp_path, *FOUR[:2], "match=seconds", "seeds=2")
    before = run(tmp_path, *words)
    other = before.folder / "runs" / "rotary-seed-1"
    shutil.rmtree(other)
    task = Comparison(parse(words), InProcess())
    recipe = task.recipes["rotary"]
    launch.train_in(runs.Run(other), recipe, report=Report())  # of six steps, as once was left
    for name in ("step-times-before", "trainings"):
        (before.folder / "parts" / f"{name}.json").unlink()
    notes = Notes()
    after = carry_out("", task, root=tmp_path, progress=notes)
    assert steps_of(after.results) == [6, 4]
    kept = trained_steps(before.folder / "runs")
    assert {kept[f"rotary-seed-{seed}"] for seed in (0, 1)} == {4}
    aside = {path.name for path in (before.folder / "runs" / "aside").iterdir()}
    assert aside == {"rotary-seed-0-1", "rotary-seed-1-1"}
    assert any("was trained with" in line and "set aside" in line for line in notes.lines)
    assert any("step times was made of it: done again" in line for line in notes.lines)


@pytest.fixture(scope="module")
def plain_two(tmp_path_factory):
    """Two variants, two seeds, three evaluations."""
    folder = tmp_path_factory.mktemp("plain")
    return run(folder, *small_words(folder, *FOUR[:2], "seeds=2", "evaluations=3"))


def again(whole, root, *lost):
    """The same comparison, with some parts lost and others harmed; what it says on the way."""
    folder = shutil.copytree(whole.folder, root / whole.folder.name)
    for part in lost:
        (folder / "parts" / f"{part}.json").unlink()
    made = comparison(whole.folder.parent, *FOUR[:2], "seeds=2", "evaluations=3")
    notes = Notes()
    return folder, lambda: carry_out("", made, root=root, progress=notes), notes


@pytest.mark.parametrize("lost", [0, 1])
def test_an_evaluation_that_a_log_has_lost_is_said_and_in_no_curve(plain_two, tmp_path, lost):
    folder, go, notes = again(plain_two, tmp_path, "trainings")
    log = folder / "runs" / "rotary-seed-1" / "eval.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    del lines[lost]
    log.write_bytes(b"".join(lines))
    found = go().results
    said = "runs/rotary-seed-1/eval.jsonl: 1 of 3 evaluations are missing"
    assert said in notes.lines and found["damaged"] == [said]
    whole = plain_two.results["variants"]["rotary"]
    rest = [point for number, point in enumerate(whole["curve"]) if number != lost]
    assert found["variants"]["rotary"]["curve"] == rest
    assert found["variants"]["rotary"]["loss"] == whole["loss"]
    assert found["variants"]["learned"] == plain_two.results["variants"]["learned"]


def test_a_log_without_any_evaluation_costs_the_curve_and_nothing_else(plain_two, tmp_path):
    folder, go, _ = again(plain_two, tmp_path, "trainings")
    (folder / "runs" / "rotary-seed-0" / "eval.jsonl").write_bytes(b"")
    found = go().results["variants"]["rotary"]
    assert found["curve"] == [] and found["steps_to_target"] is None
    assert found["loss"] == plain_two.results["variants"]["rotary"]["loss"]


def test_curves_stand_at_the_steps_of_the_log(plain_two, tmp_path):
    folder, go, notes = again(plain_two, tmp_path, "trainings")
    for seed in (0, 1):
        log = folder / "runs" / f"rotary-seed-{seed}" / "metrics.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:1] + lines[2:]))
    go()
    kept = json.loads((folder / "parts" / "trainings.json").read_text())["result"]
    for seed in (0, 1):
        assert [step for step, _ in kept[f"rotary seed {seed}"]["curve"]] == [1, 3, 4, 5, 6]
    assert any("1 of 6 steps are missing" in line for line in notes.lines)


@pytest.mark.parametrize("lost", [("samples",), ("trainings", "samples")])
def test_a_damaged_last_checkpoint_is_repaired_by_the_same_command(plain_two, tmp_path, lost):
    folder, go, notes = again(plain_two, tmp_path, *lost)
    last = folder / "runs" / "rotary-seed-0" / "checkpoints" / "step_000006"
    good = (last / "model.safetensors").read_bytes()
    (last / "model.safetensors").write_bytes(b"torn")
    found = go()
    assert not found.lacking and timeless(found.results) == timeless(plain_two.results)
    assert (last / "model.safetensors").read_bytes() == good
    said = [line for line in notes.lines if line.startswith("rotary seed 0 finished: ")]
    assert len(said) == 1 and "step_000006" in said[0] and "training it again" in said[0]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"step": 6}'])
def test_a_result_that_is_damaged_counts_as_none_and_is_made_again(plain_two, tmp_path, content):
    folder, go, notes = again(plain_two, tmp_path, "trainings")
    result = folder / "runs" / "rotary-seed-0" / "result.json"
    result.write_bytes(content)
    assert timeless(go().results) == timeless(plain_two.results)
    assert json.loads(result.read_text())["step"] == 6
    assert any("result.json" in line and "training it again" in line for line in notes.lines)


def test_a_text_that_is_exchanged_while_it_trains_fails_that_part_and_no_other(tmp_path):
    words = small_words(tmp_path, *FOUR[:2], "seeds=1")
    text = tmp_path / "text.txt"
    before, stamp = text.read_bytes(), text.stat()

    class Exchanging(InProcess):
        def train(self, tasks, log, watch):
            first = super().train(tasks[:1], log, watch)
            text.write_bytes(before.replace(b"cat", b"dog"))
            rest = super().train(tasks[1:], log, watch)
            text.write_bytes(before)
            os.utime(text, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            return first | rest

    notes = Notes()
    made = Comparison(parse(words), Exchanging())
    found = carry_out("", made, root=tmp_path, progress=notes)
    said = [line for line in notes.lines if "the text has changed" in line]
    assert len(said) == 1 and said[0].startswith("rotary seed 0 failed: ") and "restore" in said[0]
    assert "1 of 2 trainings failed" in found.lacking
    assert found.results["variants"]["rotary"]["loss"] is None
    repaired = run(tmp_path, *words)
    assert not repaired.lacking and repaired.results["variants"]["rotary"]["loss"] is not None


def test_a_text_without_validation_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keeps no text for validation"):
        comparison(tmp_path, *FOUR[:2], "corpus.validation=0").text()
