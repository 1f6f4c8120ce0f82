"""attnlab prepare: what it prints, what it refuses with exit code 2, stopped and resumed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

TEXTS = [f"Document {number}: " + "words " * (number % 9) for number in range(200)]
WORDS = ["tokenizer=bytes", "validation=0.2", "part=5KB", "workers=1"]


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_it_says_what_it_has_made_and_a_training_takes_it(attnlab, source):
    code, out, err = attnlab("prepare", source, "out", *WORDS)
    assert (code, err) == (0, "")
    assert "tokens of 1" in out and "train on it: attnlab train tiny data=out" in out
    assert "nothing had to be done" in attnlab("prepare", source, "out", *WORDS)[1]
    small = ["steps=2", "model.depth=1", "model.width=16", "model.attention.heads=2", "batch=2"]
    code, out, _ = attnlab("train", "tiny", "data=out", *small)
    assert code == 0 and "finished at step 2" in out
    assert attnlab("evaluate", "tiny")[0] == 0
    code, out, _ = attnlab("evaluate", "tiny", f"data={source}", "--json")
    assert code == 0 and json.loads(out)["tokens"] > 0


def test_as_json_it_tells_rate_and_memory(attnlab, source):
    code, out, _ = attnlab("prepare", source, "out", *WORDS, "--json")
    found = json.loads(out)
    assert code == 0 and found["encoded_bytes"] == sum(map(len, TEXTS))
    assert found["peak_bytes"] > 10**6 and found["processor_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "out"], "nowhere cannot be read"),
        (["a.jsonl", "out", "field=body"], "bad=skip"),
        (["a.jsonl", "out", "sample=much"], "such as 64MB"),
        (["a.jsonl", "out", "vocabulary=300"], "vocabulary: no such setting"),
        (["a.jsonl", "out", "tokenizer=huggingface"], "tokenizer_from=FOLDER"),
        (["a.jsonl", "a.jsonl"], "is the source itself"),
        (["a.jsonl", "."], "source lies in"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(attnlab, words, said):
    code, out, err = attnlab("prepare", *words, *WORDS[1:])
    assert code == 2 and out == "" and len(err.strip().splitlines()) == 1
    assert said in err


def test_control_characters_of_a_name_do_not_reach_the_terminal(attnlab, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a\x1b[2J.bin").write_text("x")
    (tmp_path / "in" / "b.txt").write_text("text")
    code, _, err = attnlab("prepare", "in", "out", *WORDS)
    assert code == 2 and "\x1b" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_by_a_signal_it_says_how_to_go_on_and_workers_end_too(tmp_path, number):
    """With workers, each of which hears of the end by a pipe."""
    path = tmp_path / "b.jsonl"
    with path.open("w") as file:
        for _ in range(600):
            file.write("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = [*WORDS[:2], "part=200KB", "workers=2", "tokenizer=bpe"]
    command = [sys.executable, "-m", "attnlab", "prepare", str(path), str(tmp_path / "out"), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        while process.poll() is None and len(list(tmp_path.glob("out/part-*"))) < 2:
            time.sleep(0.01)
        os.kill(process.pid, number)
        said = process.communicate()[1].decode()
    if number == signal.SIGINT:
        assert process.returncode == 130 and said.count("\n") == 1
        assert said.startswith("stopped by Ctrl-C; the same command goes on")
    for _ in range(500):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    else:
        pytest.fail("a worker is left")
    assert subprocess.run(command, check=False, stdout=subprocess.PIPE).returncode == 0
    assert not list(tmp_path.glob("out/part-*"))
