"""Own code is counted without its weights where it can be, and with them where it cannot."""

import pytest

from attnlab.code import consent
from attnlab.experiments import match
from attnlab.models.meta import MetaWarning
from attnlab.training.launch import recipe_for
from attnlab.training.weights import bytes_wanted

CODE = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Linear(width, width)
    def forward(self, x):
        return self.out(x)

class Numbers(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.scale = float(self.out.weight.detach().std())

class Reads(Plain):
    def forward(self, x):
        return self.out(x) if float(x.sum()) >= 0 else x

class Breaks(Plain):
    def __init__(self, width):
        raise KeyError("no")
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)


def recipe(name):
    words = ["model.width=16", "model.context=33", "model.positions=none"]
    return recipe_for("tiny", [*words, f"model.attention=mine.py:{name}"])


def test_code_that_needs_numbers_is_counted_with_them_and_says_so():
    plain, numbers = recipe("Plain"), recipe("Numbers")
    with pytest.warns(MetaWarning, match=r"mine.py:Numbers is made with its weights .*line 15"):
        assert match.count(numbers.model) == match.count(plain.model)
    with pytest.warns(MetaWarning, match="made with its weights"):
        assert bytes_wanted(numbers.model) == bytes_wanted(plain.model)


def test_operations_are_measured_where_meta_will_not_do():
    with pytest.warns(MetaWarning, match=r"mine.py:Reads .*line 19"):
        assert match.operations(recipe("Reads")) == match.operations(recipe("Plain"))


def test_what_cannot_be_made_at_all_is_an_error():
    with pytest.raises(ValueError, match=r"mine.py:Breaks cannot be made: KeyError"):
        bytes_wanted(recipe("Breaks").model)
