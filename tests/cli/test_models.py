"""train, runs, evaluate and generate as a person meets them, and as a clumsy one does."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

TEXT = "the quick brown fox jumps over the lazy dog. " * 30
SMALL = ["model.width=16", "model.depth=1", "model.context=16", "model.attention.heads=2"]
SMALL += ["batch=4", "steps=4", "evaluate_every=2", "save_every=2", "device=cpu"]


@pytest.fixture(autouse=True)
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)


def train(attnlab, *words):
    code, out, err = attnlab("train", "shakespeare-cpu", "data=text.txt", *SMALL, *words)
    assert code == 0, err
    return out


def as_json(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def test_from_text_to_answers(attnlab):
    out = train(attnlab)
    assert "parameters" in out and "step 4: validation loss" in out and "finished at step 4" in out
    (row,) = as_json(attnlab("runs", "--json"))
    assert (row["state"], row["step"], row["steps"]) == ("finished", 4, 4)
    assert row["run"] in attnlab("runs")[1]
    found = as_json(attnlab("evaluate", row["run"], "--json"))
    assert found["loss"] == pytest.approx(row["best_loss"], rel=1e-6)
    assert "perplexity" in attnlab("evaluate", row["run"])[1]
    code, out, err = attnlab("generate", row["run"][-6:], "--prompt", "the ", "--tokens", "5")
    assert code == 0 and out.startswith("the ") and len(out) == 4 + 5 + 1 and row["run"] in err


def test_temperature_0_gives_one_answer_alone_and_in_a_batch(attnlab):
    train(attnlab)
    (row,) = as_json(attnlab("runs", "--json"))
    common = ["generate", row["run"], "--temperature", "0", "--tokens", "6"]
    alone = [as_json(attnlab(*common, "--json", "--prompt", p))[0] for p in ("the", "lazy dog.")]
    both = as_json(attnlab(*common, "--json", "--prompt", "the", "--prompt", "lazy dog."))
    assert both == alone
    code, out, err = attnlab(*common, "--prompt", "the")
    assert out == "the" + alone[0]["text"] + "\n", "streamed"
    assert "rounding" not in err
    code, out, err = attnlab(*common, "--prompt", "the", "--no-exact")
    assert code == 0 and "computed in float32 (" in err and "rounding may decide" in err
    shown = attnlab(*common, "--prompt", "the", "--prompt", "lazy dog.")[1]
    assert all(each["prompt"] + each["text"] in shown for each in alone)


def test_texts_of_several_prompts_are_exact(attnlab):
    """Neither wrapped nor without the spaces at the ends of lines."""
    train(attnlab)
    (row,) = as_json(attnlab("runs", "--json"))
    prompts = ["the  ", "lazy dog. " * 20]
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    common = ["generate", row["run"], "--tokens", "7", *words]
    both = as_json(attnlab(*common, "--json"))
    shown = attnlab(*common)[1]
    assert all(each["prompt"] + each["text"] + "\n" in shown for each in both)


def test_a_prompt_of_bytes_is_streamed_to_its_end(attnlab):
    train(attnlab, "tokenizer=bytes")
    (row,) = as_json(attnlab("runs", "--json"))
    common = ["generate", row["run"], "--prompt", "thé ", "--tokens", "40"]
    (whole,) = as_json(attnlab(*common, "--json"))
    assert len(attnlab(*common)[1]) >= len("thé " + whole["text"])


def test_resume_and_finetuning_from_the_command_line(attnlab):
    train(attnlab)
    (row,) = as_json(attnlab("runs", "--json"))
    path = f"runs/{row['run']}"
    assert "resuming with steps=6 instead of 4" in train(attnlab, "--resume", path, "steps=6")
    assert "finished at step 7" in train(attnlab, f"--resume={path}", "steps=7")
    code, _, err = attnlab("train", "shakespeare-cpu", "--resume")
    assert code == 2 and "no unfinished shakespeare-cpu run" in err
    train(attnlab, f"start={row['run']}")
    assert len(as_json(attnlab("runs", "--json"))) == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["tiny", "--resume"], ["tiny", "--resume", "newest"]),
        (["tiny", "--resume="], ["tiny", "--resume", "newest"]),
        (["tiny", "--resume", "steps=3"], ["tiny", "--resume", "newest", "steps=3"]),
        (["tiny", "--resume", "--runs", "x"], ["tiny", "--resume", "newest", "--runs", "x"]),
        (["tiny", "--resume", "auto", "steps=3"], ["tiny", "--resume", "auto", "steps=3"]),
        (["tiny", "--resume=a=b"], ["tiny", "--resume=a=b"]),
    ],
)
def test_resume_without_a_value_is_the_newest_run(words, named):
    from attnlab.cli.models import _name_newest

    assert _name_newest(words) == named


def test_the_help_of_train_has_resume_among_the_options(attnlab):
    options = attnlab("train", "--help")[1].partition("Options")[2]
    assert "--resume" in options.partition("Example")[0]


def test_training_that_diverges_is_exit_code_1(attnlab, monkeypatch):
    from attnlab.training.step import Stepper

    plain = Stepper._plain_loss
    monkeypatch.setattr(Stepper, "_plain_loss", lambda *args: plain(*args) * float("nan"))
    code, _, err = attnlab("train", "shakespeare-cpu", "data=text.txt", *SMALL)
    assert code == 1 and err.startswith("stopped: step 1:") and err.count("\n") == 1


def test_resume_without_a_preset_is_told_the_order(attnlab):
    assert "the preset comes first" in attnlab("train", "--resume")[2]


def test_memory_that_runs_out_is_one_line(attnlab, monkeypatch):
    from attnlab.training import launch

    def full(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")

    monkeypatch.setattr(launch, "train", full)
    code, _, err = attnlab("train", "shakespeare-cpu", "data=text.txt", *SMALL)
    assert code == 2 and "memory ran out" in err and err.count("\n") == 1
    monkeypatch.setattr(launch, "train", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attnlab("train", "shakespeare-cpu", "data=text.txt", *SMALL)


def prepared(tmp_path):
    """All that a clumsy or hostile person could have lying around."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "two.txt").write_text("ab")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 50)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "wiki.txt").write_text("Ann was born in Rome.\n")
    (tmp_path / "people" / "birth_places_train.tsv").write_text("Where was Ann born?\n")
    (tmp_path / "people" / "birth_dev.tsv").write_text("Where was Ann born?\tRome\n")
    for name, content in {
        "list": "[1]",
        "torn": "{",
        "deep": '{"a":' * 99_999,
        "types": '{"steps": "many"}',
        "unknown": '{"modle": {"width": 3}}',
        "traversal": '{"model": {"name": "../../x"}}',
        "import": '{"model": {"name": "os:system"}}',
        "huge": '{"clip": 1' + "0" * 400 + "}",
        "nan": '{"clip": NaN}',
    }.items():
        (tmp_path / f"{name}.json").write_text(content)


CPU = ["train", "shakespeare-cpu", *SMALL]  # small: what is not refused is soon over
TEXTS = ["empty.txt", "two.txt", "latin.txt", "folder", "fifo", "/dev/zero", "missing.txt", ""]
WORDS = ["stpes=3", "model.width=1000000000000", "model.width=1048576", "steps=-1", "batch=0"]
WORDS += ["optimiser.rate=nan", "model.dropout=2", "context=100000", "accumulate=3", "device=tpu"]
WORDS += ["steps", "--steps", "start=nothing", "model.depth=1048576", "seed=1" + "0" * 5000]
CONFIGS = ["list", "torn", "deep", "types", "unknown", "traversal", "import", "huge", "nan"]


@pytest.mark.parametrize(
    "words",
    [
        *([*CPU, f"data={text}"] for text in TEXTS),
        *([*CPU, "data=text.txt", word] for word in WORDS),
        *([*CPU, "data=text.txt", "--config", f"{name}.json"] for name in CONFIGS),
        [*CPU, "data=text.txt", "--config", "fifo"],
        [*CPU, "data=text.txt", "--config", "missing.json"],
        [*CPU, "data=text.txt", "--runs", "text.txt"],
        [*CPU, "--resume", "nothing"],
        ["train", "birthplaces-finetune", "data=people"],
        ["train", "shakespere-cpu"],
        ["train", "--resume"],
        ["evaluate", "nothing"],
        ["evaluate", "folder"],
        ["generate", "", "--prompt", "x"],
        ["generate", "folder", "--prompt", "x"],
        ["generate", "x", "--prompt", "x", "--top-p", "2"],
        ["generate", "x", "--prompt", "x", "--temperature", "nan"],
        ["check", "kil"],
        ["check", "corruption", "trials=0"],
    ],
    ids=lambda words: " ".join(word for word in words if word not in SMALL)[:60],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(attnlab, tmp_path, words):
    prepared(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    code, out, err = attnlab(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and 20 < len(err) < 700
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "É"], "character 'É' at position 0 is unknown"),
        (["--prompt", ""], "prompt 0 is empty"),
        (["--prompt", "the", "--tokens", "-3"], "tokens is -3"),
        (["--prompt", "the", "--top-k", "0"], "top_k is 0"),
        (["--prompt", "the", "--device", "banana"], "device is 'banana'"),
    ],
)
def test_a_prompt_that_cannot_be_gone_on_from_is_one_line(attnlab, words, message):
    train(attnlab)
    (row,) = as_json(attnlab("runs", "--json"))
    code, out, err = attnlab("generate", row["run"], *words)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def _has_stepped(folder):
    return any(path.stat().st_size for path in folder.glob("runs/*/metrics.jsonl"))


def test_sigterm_in_the_middle_leaves_a_checkpoint_and_resume_finishes(attnlab, tmp_path):
    words = [*CPU, "data=text.txt", "steps=100000", "evaluate_every=none"]
    words += ["save_every=none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "attnlab", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline().startswith("run "), "it has begun"
        until = time.monotonic() + 100
        while time.monotonic() < until and not _has_stepped(tmp_path):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=150)[0]  # all its steps would take much longer
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM at step" in out and "resume with: attnlab train shakespeare-cpu" in out
    (row,) = as_json(attnlab("runs", "--json"))
    assert row["state"] == "stopped" and row["checkpoints"] and row["step"] > 0
    steps = row["step"] + 2
    assert "finished" in train(attnlab, "--resume", f"runs/{row['run']}", f"steps={steps}")


@pytest.mark.parametrize("verb", ["train", "evaluate", "generate", "runs", "check"])
def test_help_needs_no_torch_and_has_an_example(verb):
    code = (
        "import sys; from attnlab import cli\n"
        f"sys.argv = ['attnlab', {verb!r}, '--help']\n"
        "try: cli.main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Example: attnlab {verb}" in done.stdout
