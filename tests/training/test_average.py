"""The moving average of the weights: what it is, that it is restored, saved, and used."""

import shutil

import pytest
import torch
from torch import nn
from training.recipes import begin, final_bits, go_on, small

from attnlab.training import checkpoint
from attnlab.training.average import Average, split, weights_to_use
from attnlab.training.saved import open_saved
from attnlab.training.setup import prepare


def test_following_is_the_plain_recursion():
    """Two roundings of float32 a step, forty steps: 1e-6 is above them and below any mistake."""
    torch.manual_seed(0)
    model, memory = nn.Linear(3, 2), 0.8
    average = Average(model, memory)
    expected = model.weight.detach().double().clone()
    for step in range(1, 41):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        average.follow(step)
        kept = min(memory, step / (step + 9))
        expected = kept * expected + (1 - kept) * model.weight.detach().double()
    found = average.state()["weight/average"].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(found, model.weight.double(), atol=1e-2)


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_the_weights_are_back_bit_by_bit_afterwards(error):
    model = nn.Linear(3, 2)
    average, first = Average(model, 0.5), model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    before = model.weight.detach().clone()
    try:
        with average.in_place():
            assert torch.equal(model.weight, first)
            if error:
                raise error
    except RuntimeError:
        pass
    assert torch.equal(model.weight, before)


def test_it_is_no_view_of_the_weights():
    model = nn.Linear(3, 2)
    average = Average(model, 0.5)
    kept = average.state()["weight/average"].clone()
    with torch.no_grad():
        model.weight.zero_()
    assert torch.equal(average.state()["weight/average"], kept)


def test_a_run_that_goes_on_has_the_same_average(tmp_path):
    recipe = small("average=0.9", "keep=9")
    whole, _ = begin(tmp_path, recipe)
    expected = final_bits(whole)
    for step in (10, 12, 8):
        shutil.rmtree(whole.checkpoints / checkpoint.name_of(step), ignore_errors=True)
    go_on(whole, recipe, checkpoint.newest_good(whole.checkpoints)[0])
    assert final_bits(whole) == expected


def test_control_an_average_that_begins_anew_is_noticed(tmp_path, monkeypatch):
    recipe = small("average=0.9", "keep=9")
    whole, _ = begin(tmp_path, recipe)
    expected = final_bits(whole)
    for step in (10, 12, 8):
        shutil.rmtree(whole.checkpoints / checkpoint.name_of(step), ignore_errors=True)
    monkeypatch.setattr(Average, "load", lambda self, saved: None)
    go_on(whole, recipe, checkpoint.newest_good(whole.checkpoints)[0])
    assert final_bits(whole) != expected


def test_what_is_used_of_a_run_is_the_average(tmp_path):
    run, _ = begin(tmp_path, small("average=0.9"))
    folder = checkpoint.all_in(run.checkpoints)[0]
    kept = checkpoint.load(folder)
    averages = split(kept.optimiser)[1]
    assert averages.keys() == kept.model.keys()
    assert not torch.equal(averages["embed.weight"], kept.model["embed.weight"])
    used = dict(open_saved(str(folder), tmp_path, "cpu").model.named_parameters())
    begun = prepare(small(f"start={folder}"), tmp_path).model
    for weights in (used, dict(begun.named_parameters()), weights_to_use(kept)):
        assert all(torch.equal(weights[name], averages[name]) for name in averages)


def test_without_an_average_the_weights_are_used(tmp_path):
    run, _ = begin(tmp_path, small("steps=2"))
    kept = checkpoint.load(checkpoint.all_in(run.checkpoints)[0])
    assert weights_to_use(kept) is kept.model


def test_an_average_that_does_not_fit_is_refused_by_name():
    average = Average(nn.Linear(3, 2), 0.5)
    weight, bias = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(ValueError, match="the average of bias is missing"):
        average.load({"weight": weight})
    with pytest.raises(ValueError, match="the average of weight has another shape"):
        average.load({"weight": weight.T, "bias": bias})
    average.load({"weight": weight, "bias": bias})
    assert not average.state()["weight/average"].any()
