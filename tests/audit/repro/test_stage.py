"""A stage calls newly made code as the audit did: with the same weights, inputs and arguments."""

from dataclasses import replace

import pytest
import torch

from attnlab.audit.contract import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.repro.stage import for_subject
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.load import from_file

CODE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.project, self.table = nn.Linear(width, 3 * width), nn.Embedding(64, width)

    def forward(self, x, attention_mask=None, position_ids=None, labels=None, need_weights=False,
                return_scores=False):
        places = torch.arange(x.shape[1]) if position_ids is None else position_ids
        q, k, v = self.project(x + self.table(places)).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -1e9)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None] == 0, -1e9)
        y = scores.softmax(-1) @ v
        y = 2 * y if need_weights else 3 * y if return_scores else y
        return (y, scores) if need_weights or return_scores else y


def attention(q, k, v):
    return (q @ k.mT).tril().softmax(-1) @ v
"""
NAMES = ["draw", "run", "run_by", "run_with", "model", "heads"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def both(target, backend="", options=None):
    torch.manual_seed(0)  # as every audit does
    subject = subject_for(from_file(target, options or {}), options or {}, "code")
    tools = Tools(Probe(subject, Contract()))
    stage = replace(for_subject(subject, target, options or {}), backend=backend).again()
    return tools, stage.tools(NAMES if backend else [one for one in NAMES if one != "run_by"])


def test_weights_inputs_and_outputs_are_those_of_the_audit(file):
    here, there = both(f"{file}:Model")
    x = here.draw(3, 7, 5)
    assert torch.equal(x, there.draw(3, 7, 5))
    assert all(map(torch.equal, here.model.parameters(), there.model.parameters()))
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 4:] = True
    places = torch.arange(7).expand(3, -1) + 2
    for given in ((), (padding,), (padding, places), (None, places)):
        assert torch.equal(here.run(x, *given), there.run(x, *given)), given
    plain, moved = here.run(x), here.run(x, None, places)
    assert not torch.equal(plain, moved) and not torch.equal(plain, here.run(x, padding))


@pytest.mark.parametrize("backend", ["need_weights=True", "return_scores=True"])
def test_other_ways_to_compute_are_told_apart(file, backend):
    here, there = both(f"{file}:Model", backend)
    x = here.draw(3, 7, 5)
    assert torch.equal(here.run_by(backend, x), there.run_by(backend, x))
    assert not torch.equal(here.run(x), there.run_by(backend, x))


def test_arguments_by_name_take_the_place_of_the_usual_ones(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(CODE.replace("attention_mask=None", "attention_mask"))  # None must be given
    here, there = both(f"{path}:Model")
    x, mask = here.draw(1, 5, 0), torch.tensor([[1, 1, 0, 1, 1]])
    assert torch.equal(
        here.run_with(x, attention_mask=mask), there.run_with(x, attention_mask=mask)
    )


def test_functions_of_q_k_and_v_too(file):
    here, there = both(f"{file}:attention")
    assert here.heads == there.heads == (4, 4, 8)
    assert torch.equal(here.run(here.draw(2, 5, 1)), there.run(there.draw(2, 5, 1)))
