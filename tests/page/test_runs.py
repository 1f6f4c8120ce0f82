"""Runs on the page: logs are read on from where they were, whatever happens to them."""

import json
import shutil

import pytest
from page.pages import client, name_of, serving
from page.pages import folder as folder_of_runs

from attnlab import files
from attnlab.page.guard import Refused
from attnlab.page.runs import TAIL, Log, Runs
from attnlab.training import runs

RESULT = json.dumps(
    {"step": 2, "loss": 2.5, "best_loss": None, "seconds": 1.0, "step_seconds": 1.0}
)


def line(step, loss=1.0, **more):
    return runs.line({"step": step, "loss": loss, **more})


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "20260101-000000-some-abc123"
    made.mkdir()
    (made / "config.json").write_text('{"steps": 10, "model": {"name": "x", "context": 7}}')
    return made


def test_a_log_is_read_on_and_a_torn_line_waits_for_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = Log(path)
    log.read_on()
    assert list(log.steps) == []
    path.write_bytes(line(1, 3.0) + line(2, 2.5) + b'{"step": 3, "lo')
    log.read_on()
    assert list(log.steps) == [1, 2] and list(log.values) == [3.0, 2.5]
    with path.open("ab") as file:
        file.write(b'ss": 2.25}\n')
    log.read_on()
    assert list(log.steps) == [1, 2, 3] and log.last == 3


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(line(step) for step in range(1, 1001)))
    log = Log(path)
    log.read_on()
    seen = []
    monkeypatch.setattr("attnlab.page.runs._rows", lambda text: (seen.append(text) or [], 0))
    log.read_on()
    assert seen == []
    with path.open("ab") as file:
        file.write(line(1001))
    log.read_on()
    assert seen == [line(1001)]


def test_a_resumed_run_that_cuts_its_logs_is_read_anew(folder):
    run = runs.Run(folder)
    run.log("metrics").write_bytes(b"".join(line(step, 9.0) for step in range(1, 101)))
    log = Log(run.log("metrics"))
    log.read_on()
    run.cut_logs({"metrics": 40})
    with run.log("metrics").open("ab") as file:
        file.write(b"".join(line(step, 5.0) for step in range(41, 201)))
    log.read_on()
    assert list(log.steps) == list(range(1, 201))
    assert list(log.values) == [9.0] * 40 + [5.0] * 160


def test_a_log_that_was_cut_in_place_or_taken_away_is_forgotten(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + line(2))
    log = Log(path)
    log.read_on()
    with path.open("r+b") as file:
        file.truncate(len(line(1)))
    log.read_on()
    assert list(log.steps) == [1]
    path.unlink()
    log.read_on()
    assert list(log.steps) == []


def test_a_step_that_comes_again_replaces_what_followed_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(map(line, [1, 2, 3, 4])) + line(3, 0.5))
    log = Log(path)
    log.read_on()
    assert list(log.steps) == [1, 2, 3] and log.values[-1] == 0.5


@pytest.mark.parametrize(
    "junk",
    [
        b"no json\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"step": "3", "loss": 1.0}\n',
        b'{"step": 3, "loss": NaN}\n',
        b'{"step": 3, "loss": 1e999}\n',
        b'{"step": 3}\n',
        b'{"step": -1, "loss": 1.0}\n',
        b'{"step": 1' + b"0" * 400 + b', "loss": 1.0}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_lines_that_are_not_ours_are_passed_over(tmp_path, junk):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + junk + line(2))
    log = Log(path)
    log.read_on()
    assert list(log.steps) == [1, 2] and log.damaged == 1
    path.write_bytes(line(1))  # shorter: all is read again
    log.read_on()
    assert list(log.steps) == [1] and log.damaged == 0


def test_two_rows_in_one_line_are_damage_and_an_empty_line_is_none(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b"\n \n" + line(2).strip() + b"," + line(3) + line(4) + b'{"st')
    log = Log(path)
    log.read_on()
    assert list(log.steps) == [1, 4] and log.damaged == 1


def test_damaged_lines_are_counted_where_a_run_is_looked_at(folder):
    run, known = runs.Run(folder), Runs(folder.parent)
    run.log("metrics").write_bytes(line(1) + b"rubbish\n" + line(2) + b"\xff\n")
    run.log("eval").write_bytes(line(2) + b"[]\n")
    run.log("samples").write_bytes(b"x\n" + runs.line({"step": 1, "text": "a"}) + b'{"step"')
    assert known.details(folder.name)["notes"] == [
        "metrics.jsonl: 2 lines are damaged and left out",
        "eval.jsonl: 1 line is damaged and left out",
        "samples.jsonl: 1 line is damaged and left out",
    ]
    with run.log("metrics").open("ab") as file:
        file.write(b"more\n" + line(3))
    assert "3 lines" in known.details(folder.name)["notes"][0]
    assert known.curve(folder.name, -1, 10)["steps"] == [1, 2, 3]


@pytest.fixture
def trained(tmp_path):
    """A copy of a run with a checkpoint."""
    name = name_of("people")
    return shutil.copytree(folder_of_runs() / name, tmp_path / "runs" / name)


def test_a_run_without_its_config_is_shown_by_its_checkpoint(trained):
    known = Runs(trained.parent)
    [before] = known.list_all()
    flat = known.details(trained.name)["flat"]
    (trained / "config.json").unlink()
    [after] = known.list_all()
    keys = ("name", "state", "step", "steps", "kind", "context", "writable")
    assert before["steps"] == 10 and [before[key] for key in keys] == [after[key] for key in keys]
    details = known.details(trained.name)
    assert details["flat"] == flat
    assert details["notes"] == ["config.json is missing; the settings are those of step_000010"]


def test_the_checkpoint_decides_what_the_settings_are_and_a_difference_is_said(trained):
    known = Runs(trained.parent)
    assert known.details(trained.name)["notes"] == []
    assert known.list_all()[0]["steps"] == 10
    changed = json.loads((trained / "config.json").read_text()) | {"steps": 77}
    (trained / "config.json").write_text(json.dumps(changed))
    assert known.list_all()[0]["steps"] == 10
    details = known.details(trained.name)
    assert details["flat"]["steps"] == 10
    assert details["notes"][0].startswith("config.json has steps=77, its step_000010 10")
    for folder in (trained / "checkpoints").iterdir():  # without any, the copy is all there is
        shutil.rmtree(folder)
    assert known.list_all()[0]["steps"] == 77


def test_settings_are_read_again_only_when_their_files_change(trained, monkeypatch):
    known, read = Runs(trained.parent), []
    settings = runs.Run.settings

    def counted(run, *given, **more):
        read.append(run)
        return settings(run, *given, **more)

    monkeypatch.setattr(runs.Run, "settings", counted)
    known.list_all()
    known.list_all()
    assert len(read) == 1
    (trained / "config.json").unlink()
    known.list_all()
    assert len(read) == 2


def test_settings_of_a_size_that_no_settings_have_are_not_read(folder, monkeypatch):
    monkeypatch.setattr("attnlab.page.runs.MOST_FILE", 20)
    assert [row["state"] for row in Runs(folder.parent).list_all()] == ["unreadable"]


def test_a_curve_is_means_with_the_extremes_of_each_bucket(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(line(step, float(step)) for step in range(1, 11)))
    log = Log(path)
    log.read_on()
    assert log.buckets(-1, 2) == {
        "steps": [5, 10], "loss": [3.0, 8.0], "low": [1.0, 6.0], "high": [5.0, 10.0]
    }  # fmt: skip
    assert log.buckets(8, 100)["steps"] == [9, 10]
    assert log.buckets(10, 100)["steps"] == []


def test_numbers_near_the_largest_float_are_sent_as_json(folder):
    (folder / "metrics.jsonl").write_bytes(line(1, 1.5e308) + line(2, 1.5e308) + line(3, 3e307))
    rows = '{"step": 2, "loss": 1.5, "accuracy": Infinity}\n{"step": 4, "loss": 1.5}\n'
    (folder / "eval.jsonl").write_text(rows)
    one, every = (Runs(folder.parent).curve(folder.name, -1, points) for points in (1, 9))
    assert one["loss"] == [1.1e308] and one["high"] == [1.5e308]
    assert every["eval"] == [{"step": 2, "loss": 1.5}, {"step": 4, "loss": 1.5}]
    json.dumps([one, every], allow_nan=False)


@pytest.fixture
def reads(monkeypatch):
    """How many bytes each read of a log gave, by the name of the log."""
    sizes, plain = {}, files.open_plain

    def opened(path):
        file = plain(path)
        read = file.read

        def counted(*most):
            content = read(*most)
            sizes.setdefault(path.stem, []).append(len(content))
            return content

        file.read = counted
        return file

    monkeypatch.setattr(files, "open_plain", opened)
    return sizes


def test_a_log_of_a_hundred_thousand_steps_is_read_once_and_a_poll_reads_what_is_new(
    folder, reads, monkeypatch
):
    run, known = runs.Run(folder), Runs(folder.parent)
    lines = [line(step, 1 / step, rate=0.001, norm=1.25) for step in range(1, 100_001)]
    run.log("metrics").write_bytes(b"".join(lines))
    # in bulk: neither parsed nor taken in line by line, which is many times slower

    def slow(*line):
        pytest.fail("line by line")

    monkeypatch.setattr("attnlab.page.runs._row", slow)
    monkeypatch.setattr(Log, "_forget_from", slow)
    found = known.curve(folder.name, -1, 1000)
    assert len(found["steps"]) == 1000 and found["last"] == 100_000
    assert found["high"][0] == 1.0
    assert reads.pop("metrics") == [sum(map(len, lines))]
    for step in range(100_001, 100_021):
        with run.log("metrics").open("ab") as file:
            file.write(line(step))
        assert known.curve(folder.name, step - 1, 1000)["steps"] == [step]
        assert reads.pop("metrics") == [len(line(step))]
    known.curve(folder.name, 100_020, 1000)
    assert "metrics" not in reads  # nothing is new, so nothing is read


def test_the_list_does_not_read_whole_logs(folder, reads):
    run, known = runs.Run(folder), Runs(folder.parent)
    run.log("metrics").write_bytes(b"".join(line(step) for step in range(1, 50_001)))
    assert known.list_all()[0]["step"] == 50_000
    assert sum(reads["metrics"]) <= TAIL


def test_what_a_run_says_of_itself(folder):
    run = runs.Run(folder)
    run.log("metrics").write_bytes(line(3, 2.5) + line(4, 2.0))
    run.log("eval").write_bytes(line(2, 3.0, accuracy=0.5) + line(4, 2.75))
    run.log("speed").write_bytes(runs.line({"step": 4, "tokens_per_second": 100.0}))
    run.log("samples").write_bytes(runs.line({"step": 4, "prompt": "a", "text": "b"}))
    known = Runs(folder.parent)
    [row] = known.list_all()
    assert (row["name"], row["preset"], row["state"]) == (folder.name, "some", "stopped")
    assert (row["step"], row["steps"], row["loss"], row["best_loss"]) == (4, 10, 2.0, 2.75)
    assert (row["writable"], row["kind"], row["context"]) == (False, "language", 7)
    curve = known.curve(folder.name, -1, 10)
    assert curve["eval"] == [{"step": 2, "loss": 3.0, "accuracy": 0.5}, {"step": 4, "loss": 2.75}]
    assert curve["speed"] == 100.0
    details = known.details(folder.name)
    assert details["flat"] == {"steps": 10, "model": "x", "model.context": 7}
    assert details["samples"] == [{"step": 4, "prompt": "a", "text": "b"}]
    with run.locked():
        assert known.list_all()[0]["state"] == "running"


@pytest.mark.parametrize("content", ["", "[]", "nothing", '{"steps": 1e999}', "[" * 100_000])
def test_a_run_that_cannot_be_read_stops_nothing(folder, content):
    (folder / "config.json").write_text(content)
    (folder / "metrics.jsonl").mkdir()
    [row] = Runs(folder.parent).list_all()
    assert row["state"] in ("unreadable", "stopped") and row["step"] == 0
    json.dumps(Runs(folder.parent).details(folder.name), allow_nan=False)


def test_runs_of_studies_and_comparisons_have_names_of_two_parts(folder):
    for kind in ("study-birthplaces-1a2b3c", "compare-4d5e6f"):
        inside = folder.parent / kind / "runs" / "rotary-0"
        inside.mkdir(parents=True)
        (inside / "config.json").write_text("{}")
    names = {row["name"] for row in Runs(folder.parent).list_all()}
    assert names == {folder.name, "study-birthplaces-1a2b3c/rotary-0", "compare-4d5e6f/rotary-0"}


@pytest.mark.parametrize("name", ["", ".", "..", "/", "x", "../x", "study-x/../..", "\x00"])
def test_a_name_is_looked_up_and_never_a_path(folder, name):
    known = Runs(folder.parent)
    for look in (known.details, lambda one: known.curve(one, -1, 10)):
        with pytest.raises(Refused) as refused:
            look(name)
        assert refused.value.status == 404


def test_names_of_two_parts_go_through_a_url(tmp_path):
    inside = tmp_path / "compare-test" / "runs"
    inside.mkdir(parents=True)
    (inside / "one").symlink_to(folder_of_runs() / name_of("people"), target_is_directory=True)
    with serving(tmp_path) as server, client(server) as opened:
        for name in ("compare-test/one", "compare-test%2Fone"):
            assert opened.get(f"/api/runs/{name}").json()["name"] == "compare-test/one"
            assert opened.get(f"/api/runs/{name}/curve").json()["last"] == 10


def test_a_run_is_read_again_only_when_something_in_it_has_changed(folder, monkeypatch):
    run, known, read = runs.Run(folder), Runs(folder.parent), []
    original = known._read_summary
    monkeypatch.setattr(
        known, "_read_summary", lambda *given: read.append(given) or original(*given)
    )
    run.log("metrics").write_bytes(line(1, 3.0))
    (first,) = known.list_all()
    assert known.list_all() == [first] and len(read) == 1
    with run.locked():
        assert known.list_all()[0]["state"] == "running"
    before = len(read)
    with run.log("metrics").open("ab") as file:
        file.write(line(2, 2.5))
    (now,) = known.list_all()
    assert (now["step"], now["loss"], now["state"]) == (2, 2.5, "stopped")
    assert len(read) == before + 1
    (folder / "result.json").write_text(RESULT)
    assert known.list_all()[0]["state"] == "finished"


def test_weights_to_start_from_are_those_of_runs_with_a_checkpoint():
    known = Runs(folder_of_runs())
    assert set(known.with_weights()) == {name_of("text"), name_of("people")}
