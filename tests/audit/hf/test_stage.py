"""The stage for models of `transformers`: their weights are those that the audit had."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from attnlab.audit.contract import Contract
from attnlab.audit.hf import models as hf
from attnlab.audit.hf.stage import for_model
from attnlab.audit.hf.subject import OURS, Model
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.backends import Backends
from attnlab.audit.properties.cache import Cache
from attnlab.audit.repro.smallest import example_of

NAMES = ["draw", "run", "run_by", "step", "step_by", "new_cache", "loss", "loop", "model"]


@pytest.mark.parametrize("arch", ["llama", "gpt2", "mamba", "t5", "bart"])
def test_a_model_is_made_and_called_as_the_audit_did(arch: str) -> None:
    subject = hf.subject_of(arch)
    here = Tools(Probe(subject, Contract()))
    there = for_model(subject, f"hf:{arch}", {}).tools(NAMES)
    ours, theirs = here.model.state_dict(), there.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    x = here.draw(2, 7, 3)
    assert torch.equal(x, there.draw(2, 7, 3))
    assert torch.equal(here.run(x), there.run(x))
    assert torch.equal(here.loss(x), there.loss(x))
    caches = here.new_cache(), there.new_cache()
    for piece in x.split([4, 1, 2], dim=1):
        assert torch.equal(here.step(piece, caches[0]), there.step(piece, caches[1]))
    if subject.pads:
        padding = torch.tensor([[True] * 2 + [False] * 5, [False] * 7])
        places = (~padding).cumsum(1).sub(1).clamp(min=0)
        given = (padding, places if subject.placed else None)
        assert torch.equal(here.run(x, *given), there.run(x, *given))
    if subject.placed:
        assert torch.equal(here.loop(x, 4), there.loop(x, 4))
    for backend in list(subject.backends)[1:]:
        assert torch.equal(here.run_by(backend, x), there.run_by(backend, x))


@pytest.mark.parametrize("arch", ["bert", "encoder/bart", "vit", "dinov2"])
def test_an_encoder_is_made_and_called_as_the_audit_did(arch: str) -> None:
    subject = hf.subject_of(arch)
    assert_alike(subject, arch)


def test_the_text_of_an_encoder_is_given_as_the_audit_did() -> None:
    assert_alike(hf.subject_of("bart").part_for("encoder padding"), "bart")


def assert_alike(subject: Model, arch: str) -> None:
    here = Tools(Probe(subject, Contract()))
    there = for_model(subject, f"hf:{arch}", {}).tools(["draw", "run", "run_by", "model"])
    ours, theirs = here.model.state_dict(), there.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    x = here.draw(2, 7, 3)
    assert torch.equal(x, there.draw(2, 7, 3))
    assert torch.equal(here.run(x), there.run(x))
    if subject.pads:
        padding = torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
        assert torch.equal(here.run(x, padding), there.run(x, padding))
    assert len(subject.backends) == 3
    for backend in list(subject.backends)[1:]:
        assert torch.equal(here.run_by(backend, x), there.run_by(backend, x))


def test_a_script_of_a_folder_leaves_its_weights_as_they_are(tmp_path: Path) -> None:
    model = hf.model_of("gpt2")
    model.save_pretrained(tmp_path)
    there = for_model(hf.subject_of(str(tmp_path)), f"hf:{tmp_path}", {}).tools(["model"])
    for name, one in model.state_dict().items():
        assert torch.equal(there.model.state_dict()[name].to(one), one), name


def test_a_script_shows_what_is_wrong_with_a_decoder_and_not_with_another(tmp_path: Path) -> None:
    """In this library, fsmt leaves its causal mask out wherever a cache is used."""
    subject = hf.subject_of("fsmt")
    finding = Cache().examine(Probe(subject, Contract(causal=True, cache=True)))
    one = example_of(finding, subject, "hf:fsmt", {})
    assert "attnlab" not in one.script.replace("attnlab audit", "")
    (tmp_path / one.file).write_text(one.script)
    hf.model_of("bart").save_pretrained(tmp_path / "bart")
    for folder, code, word in (([], 1, "wrong: "), (["bart"], 0, "mended: ")):
        command = [sys.executable, "-I", one.file, *folder]
        run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert (run.returncode, run.stdout[: len(word)]) == (code, word), run.stderr


def test_a_script_about_our_backend_imports_it() -> None:
    """Any other needs torch and transformers alone."""
    subject = hf.subject_of("llama")
    case = next(
        one for one in Backends().cases(Probe(subject, Contract())) if one.sizes["backend"] == OURS
    )
    stage = for_model(subject, "hf:llama", {}).for_case(case)
    (defined,) = [line for line in stage._other(["run_by"]) if "import attnlab" in line]
    assert defined.startswith("    ")
    assert "attnlab" in stage.heading(["run_by"]).needs
    other = for_model(subject, "hf:llama", {})
    assert not any("import attnlab" in line for line in other._other(["run_by"]))
