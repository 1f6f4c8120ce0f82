"""Export and import from end to end: whole or not at all, and the same on the way back."""

import errno
import json
import os
import subprocess
import sys

import foreign
import pytest
import torch
from training.recipes import begin, text_recipe

from attnlab.generate import Sampling
from attnlab.interop import exporting, importing, parity
from attnlab.interop.parity import NotProved, Parity
from attnlab.interop.streaming import write_tensors
from attnlab.training import checkpoint
from attnlab.training.opened import fingerprint, open_weights
from attnlab.training.saved import open_saved

pytestmark = foreign.needs_transformers
LLAMA = ["model.norm=rms", "model.feedforward=swiglu", "model.norm_heads=false"]
GOOD = Parity("Llama", 1e-15, 1e-7, True, True, True, True, 96, 64, (), "5", "2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    text = root / "text.txt"
    text.write_text("The sun rises. It's morning again, and the birds sing.\n" * 40)
    return begin(root, text_recipe(text, *LLAMA, "steps=3"))[0].folder


@pytest.fixture
def saved(trained):
    return open_saved(str(trained), trained.parent, "cpu")


@pytest.fixture
def unproved(monkeypatch):
    """The proof is tried once for real; it takes a process with transformers."""
    monkeypatch.setattr(exporting, "compare", lambda *args, **named: GOOD)
    monkeypatch.setattr(importing, "compare", lambda *args, **named: GOOD)


def test_a_run_goes_there_and_back(saved, tmp_path):
    """With the proof, in its process, in both directions."""
    made = exporting.export(saved, tmp_path / "out")
    assert made.model_type == "llama" and made.parity.holds and made.parity.tokenizer is True
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "parity.json"),
        *("tokenizer.json", "tokenizer_config.json", "README.md"),
    }
    assert json.loads((tmp_path / "out/parity.json").read_text())["holds"] is True
    assert "greedy texts of 64 tokens" in (tmp_path / "out/README.md").read_text()
    imported = importing.import_folder(tmp_path / "out", tmp_path / "runs")
    assert imported.parity.holds
    again = open_saved(str(imported.run.folder), tmp_path, "cpu")
    for name, weight in saved.model.named_parameters():
        assert torch.equal(weight, dict(again.model.named_parameters())[name]), name
    greedy = Sampling(temperature=0)
    written = [one.write(["The "], tokens=9, sampling=greedy) for one in (saved, again)]
    assert written[0] == written[1]
    assert imported.run.finished and not list(tmp_path.glob(".*"))


def test_a_folder_is_opened_as_it_is_and_can_be_started_from(saved, tmp_path, unproved):
    exporting.export(saved, tmp_path / "out")
    there = open_saved(str(tmp_path / "out"), tmp_path, "cpu")
    assert there.folder == tmp_path / "out" and there.state.step == 0
    before = fingerprint(tmp_path / "out")
    config = tmp_path / "out/config.json"
    config.write_text(config.read_text() + " ")
    assert fingerprint(tmp_path / "out") != before
    from attnlab.training.launch import recipe_for

    recipe = recipe_for("tiny", [f"start={tmp_path / 'out'}", "model.dropout=0.2"])
    assert recipe.model.width == saved.model.settings.width and recipe.model.dropout == 0.2
    assert recipe.context == min(64, saved.model.settings.context)


def test_what_is_not_proved_leaves_nothing_behind(saved, tmp_path, monkeypatch):
    bad = Parity(**{**GOOD.__dict__, "logits": 1e-3})
    monkeypatch.setattr(exporting, "compare", lambda *args, **named: bad)
    with pytest.raises(NotProved, match="nothing was exported: as llama, logits differ"):
        exporting.export(saved, tmp_path / "out")
    monkeypatch.setattr(importing, "compare", lambda *args, **named: bad)
    foreign.save(foreign.build("gpt2"), tmp_path / "gpt2")
    with pytest.raises(NotProved, match="was not imported: logits differ"):
        importing.import_folder(tmp_path / "gpt2", tmp_path / "runs")
    assert {path.name for path in tmp_path.iterdir()} == {"gpt2"}


def test_a_kill_leaves_no_folder_under_its_name(saved, tmp_path, monkeypatch):
    def ends(*args, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "compare", ends)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(saved, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(saved, tmp_path, unproved):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    with pytest.raises(ValueError, match="is there already; name a folder that is not"):
        exporting.export(saved, tmp_path / "out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        exporting.export(saved, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    exporting.export(saved, tmp_path / "empty")


def test_a_family_can_be_asked_for(saved, tmp_path, unproved):
    assert exporting.export(saved, tmp_path / "own", family="attnlab").model_type == "attnlab"
    assert (tmp_path / "own/modeling_attnlab.py").is_file()
    with pytest.raises(ValueError, match="this model is no gpt2: feedforward is swiglu"):
        exporting.export(saved, tmp_path / "two", family="gpt2")
    with pytest.raises(ValueError, match="AutoTokenizer takes qwen2's own tokenizer"):
        exporting.export(saved, tmp_path / "four", family="qwen2")
    with pytest.raises(ValueError, match=r"'lama' is no model type.*llama"):
        exporting.export(saved, tmp_path / "three", family="lama")


def test_half_precision_stays_half_precision(tmp_path, unproved):
    model = foreign.build("qwen2").to(torch.bfloat16)
    foreign.save(model, tmp_path / "half")
    made = importing.import_folder(tmp_path / "half", tmp_path / "runs")
    kept = checkpoint.load(made.run.checkpoints / "step_000000")
    assert {one.dtype for one in kept.model.values()} == {torch.bfloat16}
    exporting.export(open_saved(str(made.run.folder), tmp_path, "cpu"), tmp_path / "back")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: (p / "config.json").unlink(), r"config.json is missing"),
        (lambda p: (p / "config.json").write_text("{}"), "its config has no model_type"),
        (lambda p: (p / "tokenizer.json").unlink(), r"tokenizer.json is missing; save it there"),
        (lambda p: (p / "tokenizer.json").write_text('{"a": 1}'), "none that can be read"),
        (lambda p: (p / "model.safetensors").write_bytes(b"12"), "cut off"),
        (lambda p: resize(p, "wpe"), r"tensor transformer.wpe.weight has shape \[3, 24\]"),
        (lambda p: rename(p, "wpe", "xpe"), "has no tensor transformer.wpe.weight"),
        (lambda p: rename(p, None, "more"), "has a tensor .*more.*, for which a gpt2 model"),
        (lambda p: untie(p, 1.0), r"lm_head.weight that differs from transformer.wte.weight, and"),
    ],
)
def test_a_damaged_folder_is_one_line_and_no_run(damage, said, tmp_path, unproved):
    foreign.save(foreign.build("gpt2"), tmp_path / "gpt2")
    damage(tmp_path / "gpt2")
    with pytest.raises(ValueError, match=said):
        importing.import_folder(tmp_path / "gpt2", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_import_to_a_full_disk_leaves_no_run_and_speaks_of_none_to_resume(
    tmp_path, unproved, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    foreign.save(foreign.build("gpt2"), tmp_path / "gpt2")
    monkeypatch.setattr(checkpoint.files, "sync_folder", full)
    with pytest.raises(OSError, match=r"gpt2 was not imported: .*: No space left on device$"):
        importing.import_folder(tmp_path / "gpt2", tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def weights(place):
    from safetensors.torch import load_file

    return load_file(place / "model.safetensors")


def rewrite(place, found):
    (place / "model.safetensors").unlink()
    write_tensors(place, found)


def resize(place, part):
    found = {n: (t[:3] if part in n else t) for n, t in weights(place).items()}
    rewrite(place, found.items())


def rename(place, part, other):
    found = weights(place)
    if part is None:
        found[f"transformer.{other}"] = torch.ones(2)
    else:
        found = {n.replace(part, other): t for n, t in found.items()}
    rewrite(place, found.items())


def untie(place, more):
    found = weights(place)
    rewrite(place, (found | {"lm_head.weight": found["transformer.wte.weight"] + more}).items())


def test_a_tied_head_may_stand_in_the_folder_if_it_is_the_table(tmp_path):
    foreign.save(foreign.build("gpt2"), tmp_path)
    untie(tmp_path, 0.0)
    assert "head.weight" not in open_weights(str(tmp_path), tmp_path).kept.model


def test_folders_without_the_prefix_are_read(tmp_path):
    """As the first GPT-2 on the hub, with the buffers that it was saved with."""
    foreign.save(foreign.build("gpt2"), tmp_path)
    whole = open_weights(str(tmp_path), tmp_path).kept.model
    bare = {n.removeprefix("transformer."): t for n, t in weights(tmp_path).items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    rewrite(tmp_path, bare.items())
    again = open_weights(str(tmp_path), tmp_path).kept.model
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_the_proof_imports_nothing_of_ours():
    """Run as it is run, with its imports watched."""
    code = (
        "import runpy, sys; sys.argv = ['proof.py', 'x', 'y']\n"
        f"runpy.run_path({parity.proof.__file__!r}, run_name='other')\n"
        "assert not [n for n in sys.modules if n.partition('.')[0] == 'attnlab'], 'ours'\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120)


def test_a_proof_ends_with_the_process_that_asked_for_it():
    """Its input is a pipe that nobody else holds open."""
    code = (
        "import runpy, time\n"
        f"runpy.run_path({parity.proof.__file__!r}, run_name='other')['end_with_parent']()\n"
        "print('at work', flush=True)\n"
        "time.sleep(100)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"at work\n" and child.poll() is None
    child.stdin.close()
    assert child.wait(timeout=90) == 1
    child.stdout.close()
