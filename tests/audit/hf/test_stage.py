"""The stage for models of `transformers`: their weights are those that the audit had."""

import pytest
import torch

pytest.importorskip("transformers")

from attnlab.audit.contract import Contract
from attnlab.audit.hf import models as hf
from attnlab.audit.hf.stage import for_model
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools

NAMES = ["draw", "run", "run_by", "step", "step_by", "new_cache", "loss", "loop", "model"]


@pytest.mark.parametrize("arch", ["llama", "gpt2", "mamba"])
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
