"""A step: what is left out of a batch changes nothing."""

import torch
from training.recipes import HERE, small

from attnlab.data.batches import IGNORE, Batch, batch_of
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
