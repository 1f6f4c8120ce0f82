"""A step: what is left out of a batch changes nothing, nor does having the logits in chunks."""

import pytest
import torch
from training.recipes import HERE, begin, small

from attnlab.data.batches import IGNORE, Batch, batch_of
from attnlab.models import loss
from attnlab.models.transformer import Transformer
from attnlab.training.setup import prepare
from attnlab.training.step import Stepper, trim


def test_columns_without_a_target_at_the_end_are_left_out():
    tokens = torch.arange(12).reshape(2, 6)
    targets = torch.full((2, 6), IGNORE)
    targets[0, 1], targets[1, 3] = 5, 7
    got = trim(Batch(tokens, targets))
    assert got.tokens.tolist() == tokens[:, :4].tolist()
    assert got.targets.tolist() == targets[:, :4].tolist()


def test_a_whole_batch_stays_whole_and_an_empty_one_keeps_a_column():
    tokens = torch.arange(12).reshape(2, 6)
    assert trim(Batch(tokens, tokens)).tokens.shape == (2, 6)
    assert trim(Batch(tokens, torch.full_like(tokens, IGNORE))).tokens.shape == (2, 1)


def test_loss_and_gradient_are_those_of_the_whole_rows(tmp_path):
    """In float64, on questions, half of whose rows are padding."""
    setup = prepare(small("model.dropout=0"), tmp_path)
    model = setup.model.double()
    stepper = Stepper(model, setup.recipe.optimiser.build(model), setup.recipe, HERE)
    part = batch_of(setup.source, seed=0, step=0, size=4)
    found = []
    for batch in (part, trim(part)):
        model.zero_grad()
        loss = stepper._plain_loss(batch.tokens, batch.targets)
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
    assert trim(part).tokens.shape[1] < part.tokens.shape[1]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def losses(run):
    return [row["loss"] for row in run.read("metrics")]


@pytest.mark.parametrize(
    "words", [[], ["model.tied=false", "accumulate=2"], ["model.logit_cap=3", "recompute=true"]]
)
def test_a_training_with_logits_in_chunks_is_the_same(tmp_path, monkeypatch, words):
    recipe = small("optimiser=adamw", "steps=6", "evaluate_every=3", *words)
    plain = begin(tmp_path, recipe, "plain")[0]
    given, forward = [], Transformer.forward

    def noted(self, *args, **options):
        given.append("targets" in options)
        return forward(self, *args, **options)

    monkeypatch.setattr(Transformer, "forward", noted)
    monkeypatch.setitem(loss.LARGE, "cpu", 0)
    monkeypatch.setitem(loss.CHUNK, "cpu", 4 * 50 * 7)
    chunked = begin(tmp_path, recipe, "chunked")[0]
    assert any(given), "no loss was computed in chunks"
    torch.testing.assert_close(losses(chunked), losses(plain), rtol=1e-6, atol=0)


def test_a_small_vocabulary_and_other_models_take_the_plain_way(tmp_path, monkeypatch):
    monkeypatch.setattr(loss, "head_loss", None)
    monkeypatch.setattr("attnlab.models.transformer.head_loss", None)
    assert len(losses(begin(tmp_path, small("steps=2", "evaluate_every=none"))[0])) == 2
    monkeypatch.setitem(loss.LARGE, "cpu", 0)
    elman = small("model=elman", "model.width=8", "steps=2", "evaluate_every=none")
    assert len(losses(begin(tmp_path, elman, "elman")[0])) == 2
