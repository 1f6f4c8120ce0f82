"""Recomputation: the same gradients, less memory, and a refusal where blocks leave something."""

import pytest
import torch
from training.recipes import HERE, begin, final_bits, small

from attnlab.training import blocks
from attnlab.training.setup import prepare
from attnlab.training.step import Stepper, all_parts


def gradients(tmp_path, *words):
    setup = prepare(small(*words), tmp_path)
    model = setup.model
    stepper = Stepper(model, setup.recipe.optimiser.build(model), setup.recipe, HERE)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: kept.append(one.numel()) or one, lambda one: one
    ):
        stepper.take(3, all_parts(setup.source, setup.recipe, HERE, 3))
    return {name: p.grad for name, p in model.named_parameters()}, sum(kept)


@pytest.mark.parametrize("words", [(), ("model.norm_heads=false", "model.attention=latent")])
def test_gradients_are_equal_and_less_is_kept(tmp_path, words):
    """Bit for bit: the same operations on the same numbers, and dropout draws them again."""
    plain, kept = gradients(tmp_path, *words)
    again, kept_again = gradients(tmp_path, "recompute=true", *words)
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert 0 < kept_again < 0.7 * kept


def test_a_run_with_recomputation_is_the_same_run(tmp_path):
    bits = [
        final_bits(begin(tmp_path, small("steps=4", *words))[0])
        for words in ((), ("recompute=true",))
    ]
    assert bits[0] == bits[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.value_residual=first",), "recompute and model.value_residual exclude"),
        (("model.shared_kv=false,true",), "recompute and model.shared_kv exclude"),
        (("model=elman",), "no list of blocks"),
    ],
)
def test_blocks_that_leave_something_for_others_are_refused(tmp_path, words, message):
    prepare(small(*words), tmp_path)
    with pytest.raises(ValueError, match=message):
        prepare(small("recompute=true", *words), tmp_path)


def test_a_buffer_that_a_forward_pass_changes_is_refused(tmp_path, monkeypatch):
    setup = prepare(small("recompute=true"), tmp_path)
    block = setup.model.blocks[0]
    block.register_buffer("seen", torch.zeros(()))
    block.register_forward_pre_hook(lambda module, args: module.seen.add_(1) and None)
    stepper = Stepper(setup.model, setup.recipe.optimiser.build(setup.model), setup.recipe, HERE)
    with pytest.raises(ValueError, match=r"changes the buffer blocks\.0\.seen"):
        stepper.rehearse(all_parts(setup.source, setup.recipe, HERE, 0))


def test_each_block_is_compiled_by_itself(tmp_path, monkeypatch):
    compiled = []

    def noted(function, **options):
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", noted)
    model = prepare(small(), tmp_path).model
    assert blocks.compile_blocks(model) and compiled == [{"dynamic": False}] * 2
    assert not blocks.compile_blocks(prepare(small("model=elman"), tmp_path).model)
