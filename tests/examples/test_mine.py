"""The example of own attention: trained by the words in its docstring, causal, and shown."""

from pathlib import Path

import pytest
import torch

from attnlab.audit.before_training import refuse_leak
from attnlab.code import consent
from attnlab.page import inspection
from attnlab.training.launch import recipe_for

EXAMPLE = Path(__file__).parents[2] / "examples/mine.py"
TEXT = "who sees whom?"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(consent, "FOLDER", str(tmp_path / "named"))
    monkeypatch.chdir(EXAMPLE.parents[1])
    line = next(one for one in EXAMPLE.read_text().splitlines() if "attnlab train" in one)
    _, _, preset, *words = line.split()
    return recipe_for(preset, [*words, "model.width=16", "model.vocabulary=13"])


def test_its_words_make_a_causal_model_with_its_setting(recipe):
    refuse_leak(recipe)
    model = recipe.model.build()
    slopes = [weight for name, weight in model.named_parameters() if name.endswith("slope")]
    assert len(slopes) == recipe.model.depth
    assert all((slope == 0.2).all() and len(slope) == 4 for slope in slopes)


def test_its_weights_can_be_looked_at(recipe):
    model = recipe.model.build().eval()
    ids = [sorted(set(TEXT)).index(letter) for letter in TEXT]
    found = next(one for one in inspection.read(model, ids, list(TEXT)) if one is not None)
    weights = inspection.weights(found, 0)
    assert weights.shape == (4, len(ids), len(ids))
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)  # float32
    assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def own(x):\n    return x\n", "does not give its weights"),
        ("def own(q, k, v):\n    return v.relu()\n", "is no weighted sum of the values"),
        ("def own(x, *, options, cache):\n    return x\n", "does not give its weights"),
    ],
)
def test_code_without_weights_is_answered_in_one_line(tmp_path, monkeypatch, recipe, code, said):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(code)
    words = ["model.attention=mine.py:own", "model.positions=none", "model.vocabulary=13"]
    model = recipe_for("tiny", ["model.width=16", *words]).model.build().eval()
    ids = [sorted(set(TEXT)).index(letter) for letter in TEXT]
    found = next(one for one in inspection.read(model, ids, list(TEXT)) if one is not None)
    assert said in found.absent and "\n" not in found.absent and not found.layers
