"""Own attention from the command line: trained, compared, resumed, and refused where it leaks."""

import json

import pytest

from attnlab.code import consent

CODE = """
import torch
from torch import nn

class Mine(nn.Module):
    ahead = 0

    def __init__(self, d_model, n_heads, slope=1.0):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1 + self.ahead)
        scores = self.slope * q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

class Leaky(Mine):
    ahead = 1
"""
TRAIN = ["train", "tiny", "steps=2", "evaluate_every=none", "device=cpu", "model.positions=learned"]
SMALL = ["model.width=16", "model.depth=2", "model.context=32", "batch=2", "context=32"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_it_is_trained_generates_and_is_not_resumed_with_other_code(attnlab, mine, tmp_path):
    words = [*TRAIN, *SMALL, "model.attention=mine.py:Mine", "model.attention.slope=0.5"]
    assert "finished at step 2" in attnlab(*words)[1]
    (run,) = (tmp_path / "runs").iterdir()
    kept = json.loads((run / "config.json").read_text())["model"]["attention"]
    assert kept["name"] == "mine.py:Mine" and kept["slope"] == 0.5 and len(kept["source"]) == 64
    assert attnlab("generate", run, "--prompt", "The", "--tokens", "3")[0] == 0
    mine.write_text(CODE + "# changed\n")
    for again in (["train", "tiny"], words):
        code, _, err = attnlab(*again, "--resume", run, "steps=4")
        assert code == 2 and "mine.py:Mine has changed since" in err
    code, _, err = attnlab("evaluate", run)
    assert code == 2 and "restore it (the run has a copy" in err
    code, out, _ = attnlab("runs", "--json")
    assert code == 0 and json.loads(out)[0]["step"] == 2
    mine.write_text(CODE)
    assert "finished at step 4" in attnlab("train", "tiny", "--resume", run, "steps=4")[1]


@pytest.mark.parametrize(
    "words",
    [
        [*TRAIN, *SMALL, "model.attention=mine.py:Leaky"],
        [
            "compare",
            "tiny:model.positions=learned",
            "tiny:model.positions=learned,model.attention=mine.py:Leaky",
            *("steps=2", "seeds=2", "device=cpu", *SMALL),
        ],
    ],
)
def test_a_leak_is_said_before_the_first_step(attnlab, mine, tmp_path, words):
    code, _, err = attnlab(*words)
    assert code == 2 and "mine.py:Leaky" in err
    assert "sees the future" in err and "moves" in err
    assert not (tmp_path / "runs").exists()


def test_it_is_compared_at_equal_parameters(attnlab, mine, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 200)
    words = ["tiny:model.positions=learned"]
    words.append("tiny:model.positions=learned,model.attention=mine.py:Mine")
    code, out, err = attnlab(
        *("compare", *words, "steps=2", "seeds=1", "tune=none", "device=cpu", "--json", *SMALL),
        *("data=text.txt", "turns=1", "evaluations=1", "sample=3"),
    )
    assert code == 0, err
    counts = [one["parameters"] for one in json.loads(out)["variants"].values()]
    assert abs(counts[0] - counts[1]) / counts[0] < 0.02


def test_a_run_from_elsewhere_runs_its_code_only_when_it_is_trusted(
    attnlab, mine, tmp_path, monkeypatch
):
    words = [*TRAIN, *SMALL, "model.attention=mine.py:Mine"]
    assert attnlab(*words)[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "code/mine.py").read_text() == CODE
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "of another machine"))
    monkeypatch.setattr(consent, "_allowed", set())
    for words in (
        ["generate", run, "--prompt", "The", "--tokens", "3"],
        ["evaluate", run],
        ["train", "tiny", "--resume", run, "steps=4"],
        ["train", "tiny", "--config", run / "config.json", "steps=4"],
    ):
        code, _, err = attnlab(*words)
        assert code == 2 and "if you want it to be run: attnlab trust mine.py:Mine" in err
    for wrong, said in (("mine.py", "names no code"), ("gone.py:Mine", "is no file")):
        code, _, err = attnlab("trust", wrong)
        assert code == 2 and said in err
    code, out, _ = attnlab("trust", "mine.py:Mine")
    assert code == 0 and "runs may use mine.py:Mine as it is now, 1 file" in out
    assert attnlab("generate", run, "--prompt", "The", "--tokens", "3")[0] == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mne", "mine.py has no Mne; did you mean 'Mine'?"),
        (
            "Breaks",
            "mine.py:Breaks cannot be made: ZeroDivisionError: division by zero (mine.py, line 25)",
        ),
        ("Exits", "mine.py:Exits cannot be made: SystemExit: 0 (mine.py, line 28)"),
        ("Short", "mine.py:Short gives [2, 31, 16], and must give [2, 32, 16] (mine.py, line 30)"),
    ],
)
def test_a_fault_of_the_code_is_one_line(attnlab, mine, tmp_path, name, said):
    mine.write_text(
        CODE
        + """
class Breaks(Mine):
    ahead = 1
    def __init__(self):
        1 / 0
class Exits(Breaks):
    def __init__(self):
        exit(0)
class Short(Mine):
    def forward(self, x):
        return x[:, 1:]
"""
    )
    code, out, err = attnlab(*TRAIN, *SMALL, f"model.attention=mine.py:{name}")
    assert code == 2 and said in err and len(err.splitlines()) == 1 and not out
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_imported_is_one_line(attnlab, mine):
    for text, said in (
        ("import nothing_of_this_name", "nothing_of_this_name' (mine.py, line 1)"),
        ("x = (", "mine.py, line 1: '(' was never closed"),
        ("\nraise SystemExit(0)", "mine.py cannot be imported: SystemExit: 0 (mine.py, line 2)"),
    ):
        mine.write_text(text)
        code, _, err = attnlab(*TRAIN, "model.attention=mine.py:Mine")
        assert code == 2 and said in err and len(err.splitlines()) == 1
    code, _, err = attnlab(*TRAIN, "model.attention=mine.py")
    assert code == 2 and "name a class or function in it: mine.py:Name" in err


@pytest.mark.parametrize("name", ["Nope", "", "Mine; rm"])
def test_only_what_a_file_defines_can_be_trusted(attnlab, mine, name):
    code, _, said = attnlab("trust", f"mine.py:{name}")
    assert code == 2 and f"mine.py has no {name}" in said
    assert not consent.is_allowed(f"mine.py:{name}")
    assert attnlab("trust", "mine.py:Mine")[0] == 0


def test_a_dry_run_shows_the_settings_of_the_code(attnlab, mine):
    words = [*TRAIN, *SMALL, "model.attention=mine.py:Mine", "model.attention.slope=0.5"]
    code, out, err = attnlab(*words, "--dry-run")
    assert code == 0, err
    assert ["model.attention.slope", "0.5"] in [line.split() for line in out.splitlines()]


def test_a_size_that_a_model_does_not_ask_for_is_refused(attnlab, mine):
    mine.write_text(
        "from torch import nn\n"
        "class Bigram(nn.Module):\n"
        "    def __init__(self, vocabulary, width):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(\n"
        "            nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary))\n"
        "    def forward(self, tokens):\n"
        "        return self.layers(tokens)\n"
    )
    words = ["train", "tiny", "steps=1", "evaluate_every=none", "model=mine.py:Bigram"]
    code, _, err = attnlab(*words, "model.width=12", "model.depth=7")
    assert code == 2 and "model.depth=7 would not reach mine.py:Bigram, which takes no" in err
    assert attnlab(*words, "model.width=12")[0] == 0


def test_list_shows_what_the_code_takes_and_nothing_that_is_given_to_it(attnlab, mine):
    code, shown, _ = attnlab("list", f"attention.{mine}:Mine")
    assert code == 0
    assert shown.splitlines()[-1].endswith("as its source has them: model.attention.slope=1.0")
