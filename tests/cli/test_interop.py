"""export and import as a person meets them; the work itself is tested in tests/interop."""

import json
from types import SimpleNamespace

import foreign
import pytest
import states

import attnlab as api
from attnlab.interop import exporting, importing
from attnlab.interop.parity import Parity

GOOD = Parity("LlamaForCausalLM", 1e-15, 1e-7, True, True, True, True, 96, 64, (), "5.0", "2.0")
SMALL = ["model.width=16", "model.depth=1", "model.context=16", "model.attention.heads=2"]
SMALL += ["batch=4", "steps=2", "evaluate_every=2", "save_every=2", "device=cpu"]


@pytest.fixture
def run(attnlab, tmp_path, monkeypatch):
    for room in (exporting, importing):
        monkeypatch.setattr(room, "compare", lambda *args, **named: GOOD)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 30)
    code, _, err = attnlab("train", "shakespeare-cpu", "data=text.txt", *SMALL)
    assert code == 0, err
    return SimpleNamespace(attnlab=attnlab, folder=tmp_path)


def test_a_run_is_exported_imported_and_used(run):
    code, out, err = run.attnlab("export", "shakespeare-cpu", "out")
    assert code == 0, err
    assert "out: LlamaForCausalLM" in out and "logits to 1.0e-15 of the largest" in out
    code, out, err = run.attnlab("import", "out", "--json")
    assert code == 0, err
    made = json.loads(out)
    assert made["parity"]["holds"] and "-out-" in made["run"]
    texts = []
    for name in ("out", made["run"], "shakespeare-cpu"):
        words = ("generate", name, "--prompt", "the ", "--tokens", "9", "--temperature", "0")
        code, out, err = run.attnlab(*words)
        assert code == 0, err
        texts.append(out)
    assert texts[0] == texts[1] == texts[2]
    code, out, err = run.attnlab("evaluate", made["run"], "data=text.txt", "--json")
    assert code == 0, err
    theirs = json.loads(out)["loss"]
    ours = json.loads(run.attnlab("evaluate", "shakespeare-cpu", "--json")[1])["loss"]
    assert theirs == pytest.approx(ours, rel=1e-5)
    code, out, err = run.attnlab(
        "train", "shakespeare-cpu", "data=text.txt", "start=out", *SMALL[4:]
    )
    assert code == 0 and "finished at step 2" in out, err
    assert made["run"] in run.attnlab("runs")[1]


def test_a_folder_is_taken_wherever_a_model_is(attnlab, tmp_path):
    states.readable(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    assert attnlab("generate", "llama", "--prompt", "the", "--tokens", "3")[0] == 0
    code, out, err = attnlab("evaluate", "llama", "data=text.txt", "--json")
    assert code == 0 and json.loads(out)["tokens"] > 100, err
    words = ("start=llama", "data=text.txt", "steps=2", "batch=2", "device=cpu")
    code, out, err = attnlab("train", "tiny", *words)
    assert code == 0 and "finished at step 2" in out, err
    found = api.attention(tmp_path / "llama", "the fox")
    assert "7 tokens" in str(found)
    assert api.generate(tmp_path / "llama", "the", tokens=3)


@pytest.mark.parametrize(
    ("variant", "said"),
    [("llama", "llama is a folder of weights, and"), ("tiny:start=llama", "has start=…, and")],
)
def test_weights_are_no_variants(attnlab, tmp_path, variant, said):
    """Whatever is compared begins at nothing, and is made equal in size."""
    states.readable(tmp_path / "llama")
    code, _, err = attnlab("compare", "tiny", variant)
    assert code == 2 and len(err.splitlines()) == 1
    assert said in err and "train from the beginning" in err and "attnlab evaluate" in err


def test_without_the_proof_that_is_said(run):
    assert run.attnlab("export", "shakespeare-cpu", "out", "--json")[0] == 0
    code, out, err = run.attnlab("import", "out", "--no-proof")
    assert code == 0, err
    assert "not compared with transformers: it was not asked for" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "nothing", "out"], "'nothing' is no run"),
        (["export", "shakespeare-cpu", "text.txt"], "text.txt is there already"),
        (["export", "shakespeare-cpu", "out", "--as", "lama"], "'lama' is no model type"),
        (["export", "shakespeare-cpu", "out", "--as", "gpt2"], "this model is no gpt2"),
        (["import", "nothing"], "nothing is no folder"),
        (["import", "empty"], "config.json is missing"),
        (["import", "other"], "model_type is 'mixtral'; attnlab reads"),
        (["import", "pickle"], "weights as a pickle"),
        (["generate", "pickle", "--prompt", "a"], "weights as a pickle"),
        (["train", "tiny", "start=other"], "model_type is 'mixtral'"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(run, words, said):
    for name in ("empty", "other", "pickle"):
        (run.folder / name).mkdir()
    (run.folder / "other/config.json").write_text('{"model_type": "mixtral"}')
    plain = {"model_type": "gpt2", **foreign.GPT2}
    (run.folder / "pickle/config.json").write_text(json.dumps(plain))
    (run.folder / "pickle/pytorch_model.bin").write_bytes(b"")
    code, _, err = run.attnlab(*words)
    told = " ".join(err.replace("comparing with transformers …", "").split())
    assert code == 2 and told.startswith("error: ") and said in told, err
    assert "Traceback" not in err
