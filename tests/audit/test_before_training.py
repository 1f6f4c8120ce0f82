"""Own code that sees the future is refused before a training, wherever it hides; no other is."""

import signal
import warnings

import pytest

from attnlab import registry, stop
from attnlab.audit.before_training import refuse_leak
from attnlab.code import consent
from attnlab.training.launch import recipe_for

CODE = """
import torch
from torch import nn

class Right(nn.Module):
    def __init__(self, width, layer=0):
        super().__init__()
        self.out, self.layer = nn.Linear(width, width), layer
    def forward(self, x):
        return self.out(x.cumsum(1))

class Ahead(Right):
    def forward(self, x):
        return self.out(torch.cat([x[:, 1:], x[:, :1]], 1))

class Gated(Ahead):
    def __init__(self, width):
        super().__init__(width)
        nn.init.zeros_(self.out.weight)

class Trained(Ahead):
    def forward(self, x):
        return super().forward(x) if self.training else self.out(x)

class Deep(Ahead):
    def forward(self, x):
        return super().forward(x) if self.layer == 2 else self.out(x)

class Long(Ahead):
    def forward(self, x):
        return super().forward(x) if x.shape[1] > 40 else self.out(x)

class Float(Ahead):
    def forward(self, x):
        return super().forward(x) @ torch.eye(x.shape[2])

class Checkpointed(Ahead):
    def forward(self, x):
        learns = self.training and torch.is_grad_enabled()
        return super().forward(x) if learns else self.out(x)

class Single(Ahead):
    def forward(self, x):
        return super().forward(x) if x.dtype == torch.float32 else self.out(x)

class Chunks(Right):
    def forward(self, x):
        return self.out(x.unflatten(1, (-1, 16)).cumsum(2).flatten(1, 2))

class Dropping(Right):
    def forward(self, x):
        return nn.functional.dropout(self.out(x), 0.3, self.training)

class Random(Right):
    def forward(self, x):
        return self.out(x) + torch.rand_like(x)

class Nothing(Right):
    def forward(self, x):
        return self.out(x) / 0 * 0
"""
SMALL = ["model.width=16", "model.depth=3", "model.context=48", "model.positions=none"]


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)


def recipe(name, *words):
    given = [*SMALL, f"model.attention=mine.py:{name}", "model.dropout=0.1", *words]
    return recipe_for("tiny", given)


LEAKS = ["Ahead", "Gated", "Trained", "Deep", "Long", "Float", "Checkpointed", "Single"]


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_refused_with_its_example(name):
    said = rf"mine.py:{name} sees the future, .* output \d+ moves by \S+ when input \d+ changes, of"
    with pytest.raises(ValueError, match=said):
        refuse_leak(recipe(name))


@pytest.mark.parametrize("name", ["Right", "Chunks", "Dropping"])
def test_what_is_causal_is_not_refused(name):
    refuse_leak(recipe(name))


def test_where_outputs_are_random_it_cannot_be_told():
    with pytest.warns(registry.OptionWarning, match="cannot be told: its outputs are random"):
        refuse_leak(recipe("Random"))


def test_numbers_that_are_not_finite_are_said():
    with pytest.raises(ValueError, match=r"mine.py:Nothing gives nan among its outputs for a text"):
        refuse_leak(recipe("Nothing"))


def test_models_of_ours_are_not_examined():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_leak(recipe_for("tiny", ["model.width=16"]))


def test_a_signal_that_the_code_swallows_stops_the_training_all_the_same(tmp_path):
    text = (
        "\nimport os, signal\nclass Deaf(Right):\n    def forward(self, x):\n        try:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n        except BaseException:\n"
        "            pass\n        return super().forward(x)\n"
    )
    (tmp_path / "mine.py").write_text(CODE + text)
    with pytest.raises(SystemExit) as end, stop.ending():
        refuse_leak(recipe("Deaf"))
    assert end.value.code == 128 + signal.SIGTERM
