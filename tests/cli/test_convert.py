"""convert as a person meets it; the work itself is tested in tests/interop."""

import json
from types import SimpleNamespace

import pytest
import states


@pytest.fixture
def place(attnlab, tmp_path):
    """A Llama that is read here, tokenizer and all."""
    states.readable(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return SimpleNamespace(attnlab=attnlab, folder=tmp_path)


def test_what_was_done_is_said(place):
    code, out, err = place.attnlab("convert", "llama", "out", "rotary=interleaved", "--qkv=by-kind")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("out: rotary=interleaved, qkv=by-kind; 2 tensors changed, the same")
    assert "were taken as half-split before, which weights do not show" in lines[1]
    assert "q, k and v separate" in lines[2] and "turns half-split pairs" in lines[3]
    code, _, err = place.attnlab("generate", "out", "--prompt", "the")
    assert code == 2 and "attnlab convert brings it back" in " ".join(err.split())


def test_means_of_heads_are_measured_before_and_after(place):
    """As evaluate measures them; and the result is a model to use."""
    words = ("convert", "llama", "out", "kv_heads=2", "--text", "text.txt", "--json")
    code, out, err = place.attnlab(*words)
    assert code == 0, err
    loss = json.loads(out)["loss"]
    for name, key in (("llama", "before"), ("out", "after")):
        found = place.attnlab("evaluate", name, "data=text.txt", "--json")[1]
        assert json.loads(found)["loss"] == pytest.approx(loss[key])
    assert abs(loss["before"] - loss["after"]) > 1e-3 and loss["tokens"] > 100
    report = json.loads((place.folder / "out" / "conversion.json").read_text())
    assert report["loss"] == loss and report["source"] == "llama" and not report["exact"]
    card = (place.folder / "out" / "README.md").read_text()
    assert f"{loss['before']:.4f} nats a token before, {loss['after']:.4f} after" in card
    assert place.attnlab("generate", "out", "--prompt", "the", "--tokens", "3")[0] == 0
    code, out, _ = place.attnlab("convert", "llama", "other", "kv_heads=2", "text=text.txt")
    assert code == 0 and f"{loss['after']:.4f} after" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing is asked for; say what to convert: rotary=, qkv="),
        (("rotary=halfsplit",), "rotary is 'halfsplit'; did you mean 'half-split'?"),
        (("head=loose",), "head is 'loose'"),
        (("kv_head=2",), "kv_head=2: no such option; did you mean '--kv-heads'?"),
        (("kv_heads=0",), "kv_heads is 0; use 1 or more"),
        (("kv_heads=3",), "kv_heads=3: 4 key/value heads of 4 query heads become 1, 2"),
        (("kv_heads=2", "text=nothing.txt"), "nothing.txt"),
        (("rotary=interleaved", "text=text.txt"), "converted to a layout that its model type"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(place, words, said):
    code, _, err = place.attnlab("convert", "llama", "out", *words)
    assert code == 2 and err.startswith("error: ") and len(err.splitlines()) == 1, err
    assert said in err
    assert sorted(path.name for path in place.folder.iterdir()) == ["llama", "text.txt"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def pickled(path):
    path.rename(path.with_name("pytorch_model.bin"))


@pytest.mark.parametrize(
    ("source", "spoil", "said"),
    [
        ("nothing", None, "nothing is no folder; give one with safetensors"),
        ("llama", cut, "no safetensors file, or cut off"),
        ("llama", pickled, "has its weights as a pickle (pytorch_model.bin)"),
        ("llama", lambda path: (path.parent / "checkpoints").mkdir(), "is a run; make a folder of"),
        ("llama", lambda path: (path.parent / "config.json").unlink(), "give it: heads=8"),
        ("llama", lambda path: (path.parent / "config.json").write_text("["), "is not JSON"),
        ("llama", lambda path: (path.parents[1] / "out").write_text(""), "out is there already"),
        ("llama", lambda path: (path.parents[1] / "out/a").mkdir(parents=True), "there already"),
    ],
)
def test_a_folder_that_is_none_is_one_line_too(place, source, spoil, said):
    if spoil is not None:
        spoil(place.folder / "llama" / "model.safetensors")
    before = sorted(place.folder.rglob("*"))
    code, _, err = place.attnlab("convert", source, "out", "rotary=interleaved")
    assert code == 2 and err.startswith("error: ") and len(err.splitlines()) == 1, err
    assert said in err
    assert sorted(place.folder.rglob("*")) == before


def test_a_place_that_is_empty_is_filled(place):
    (place.folder / "out").mkdir()
    assert place.attnlab("convert", "llama", "out", "head=untied")[0] == 0
    assert (place.folder / "out" / "model.safetensors").is_file()
