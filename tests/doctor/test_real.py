"""Real pairs: models of transformers against plain ones, and against ours."""

import pytest
import states
import torch

pytest.importorskip("transformers")

from attnlab import config
from attnlab.audit.hf.models import model_of, subject_of
from attnlab.audit.hf.running import quiet
from attnlab.doctor.case import Case
from attnlab.doctor.diagnosis import diagnose
from attnlab.doctor.pairs.separate import Separate
from attnlab.doctor.pairs.style import Style
from attnlab.doctor.patient import Patient, made, open_patient
from attnlab.models.transformer import TransformerSettings

LLAMA = {"vocabulary": 104, "context": 512, "epsilon": 1e-6}


@pytest.fixture(scope="module")
def llama():
    return subject_of("llama")


def test_a_folder_is_itself_and_no_architecture_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    states.readable(tmp_path / "llama")
    assert open_patient("llama", [], tmp_path).trained


def plain(**style):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return made(Separate(Style(**{**LLAMA, **style})), "plain")


def test_a_llama_and_a_plain_model_with_neighbours_differ_by_the_layout(llama):
    found = diagnose(Case(Patient("hf:llama", llama), plain(layout="interleaved")))
    assert [one.cause for one in found.causes] == ["rotary-layout"] and len(found.sets) == 1
    assert found.error_after < 1e-12 and found.padded
    assert not found.alone_a + found.alone_b
    assert "half_split_to_interleaved(a[f" in found.conversion


def test_a_llama_and_a_plain_model_of_its_conventions_are_equal(llama):
    assert diagnose(Case(Patient("hf:llama", llama), plain())).equal


def test_a_gpt2_and_a_plain_model_with_separate_projections_differ_by_square_matrices():
    style = {"positions": "learned", "norm": "layer", "gated": False, "bias": True, "tied": True}
    style |= {"activation": "gelu-tanh", "kv_heads": 4, "hidden": 128, "epsilon": 1e-5}
    found = diagnose(Case(Patient("hf:gpt2", subject_of("gpt2")), plain(**style)))
    assert [one.cause for one in found.causes] == ["transposed"] and len(found.sets) == 1
    assert "split_by_kind(" in found.conversion and found.error_after < 1e-12


def test_our_transformer_and_a_llama_differ_by_the_layout(llama):
    words = ["attention=grouped", "attention.heads=4", "attention.kv_heads=2", "norm=rms"]
    words += ["positions.layout=interleaved", "feedforward=swiglu", "expansion=2.25"]
    words += ["norm_epsilon=1e-6", "tied=false", "width=32", "depth=2", "context=512"]
    settings = config.override(TransformerSettings(vocabulary=104), words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        ours = made(settings.build(), "ours")
    found = diagnose(Case(ours, Patient("hf:llama", llama)))
    assert [one.cause for one in found.causes] == ["rotary-layout"]


def test_a_folder_keeps_its_weights_and_is_equal_to_itself(tmp_path):
    with quiet():
        model_of("llama").save_pretrained(tmp_path / "model")
    one, other = (open_patient(str(tmp_path / "model"), [], tmp_path) for _ in range(2))
    before = {name: p.detach().clone() for name, p in other.module.named_parameters()}
    assert one.trained and diagnose(Case(one, other)).equal
    assert all(torch.equal(p, before[name]) for name, p in other.module.named_parameters())


@pytest.fixture
def folder(tmp_path):
    """A Llama in float32, as folders are, with rates of rotation that float32 cannot hold."""
    with quiet():
        model_of("llama").save_pretrained(tmp_path / "model")
    return open_patient(str(tmp_path / "model"), [], tmp_path)


@pytest.mark.parametrize("turned", [False, True])
def test_a_folder_and_other_code_of_its_conventions_are_equal(folder, turned):
    pair = [folder, plain()]
    found = diagnose(Case(*(pair[::-1] if turned else pair)))
    assert found.equal and found.error_before < 1e-12 and not found.causes


def test_a_folder_and_other_code_differ_by_what_they_differ_by_and_nothing_else(folder):
    found = diagnose(Case(folder, plain(layout="interleaved")))
    assert [one.cause for one in found.causes] == ["rotary-layout"] and len(found.sets) == 1


def test_pickled_weights_are_refused(tmp_path):
    from transformers import LlamaConfig

    LlamaConfig().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(
        ValueError, match=r"as a pickle \(pytorch_model.bin\), which could run code"
    ):
        open_patient(str(tmp_path), [], tmp_path)
    with pytest.raises(ValueError, match="may run code"):
        open_patient(f"hf:{tmp_path}", [], tmp_path)
