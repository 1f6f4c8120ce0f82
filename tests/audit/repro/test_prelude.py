"""What audit and script share: weights and inputs that depend on seeds alone."""

import random

import numpy
import pytest
import torch
from torch import nn

from attnlab.audit.repro.prelude import (
    CannotTell,
    amount,
    in_precision,
    influence,
    movement,
    prepare,
    roughness,
    run_nudged,
    run_seeded,
    sample,
    seeded,
)
from attnlab.audit.subject.adapters import prepare as prepare_once
from attnlab.audit.subject.adapters import subject_for


def linear():
    torch.manual_seed(0)
    return nn.Linear(5, 7)


def test_weights_are_the_same_in_every_precision_and_by_every_way_there():
    exact, rough = prepare(linear(), torch.float64), prepare(linear(), torch.float32)
    assert torch.equal(exact.weight.float(), rough.weight)
    other = prepare_once(prepare_once(linear(), torch.float64), torch.float32)  # as audits do
    assert torch.equal(other.weight, rough.weight)


def test_no_weight_stays_at_zero_but_tables_that_are_not_learned():
    module = nn.Linear(3, 3)
    nn.init.zeros_(module.weight)
    module.bias.requires_grad_(False).zero_()
    prepare(module, torch.float64)
    assert bool((module.weight != 0).all()) and not bool(module.bias.any())


def test_the_audit_draws_what_a_script_draws():
    subject = subject_for(linear(), {}, "code")
    assert torch.equal(subject.draw(2, 3, 9), sample((2, 3, 5), None, 9, subject.dtype))


def test_another_precision_leaves_nothing_behind():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.width, self.linear = 8, nn.Linear(8, 8)
            self.register_buffer("speeds", torch.rand(4))
            self.table = None

        def forward(self, x):
            self.table = self.speeds * 2
            if x.dtype is torch.bfloat16:
                self.new = x
            return self.linear(x)

    module = Remembering().double()
    module(torch.ones(1, 2, 8).double())
    weight, speeds, table = module.linear.weight, module.speeds, module.table
    with in_precision(module, torch.bfloat16):
        assert module(torch.ones(1, 2, 8).bfloat16()).dtype is torch.bfloat16
    assert module.linear.weight is weight and module.speeds is speeds and module.table is table
    assert not hasattr(module, "new")


def test_influence_is_a_matrix_of_outputs_by_inputs():
    def shifted(x):
        return torch.cat((x[:, :1] * 0, x[:, :-1]), dim=1)

    moves = influence(
        shifted, lambda b, t, seed: sample((b, t, 3), None, seed, torch.float64), 5, 0
    )
    assert torch.equal(moves > 0, torch.eye(5).roll(1, 0).tril().bool())


def test_a_grid_is_rough_and_a_kink_is_not():
    x = sample((2, 7, 3), None, 0, torch.float64)
    assert roughness(lambda x: x.half().double() * 3, x, None, torch.float64) > 1e-4
    assert roughness(lambda x: x.relu() * 3, x, None, torch.float64) < 1e-14


def test_outputs_of_unlike_shapes_cannot_be_compared():
    with pytest.raises(CannotTell, match=r"unlike shapes, \[2, 5, 3\] and \[2, 5, 4\]"):
        movement(torch.zeros(2, 5, 3), torch.zeros(2, 5, 4))


def test_tokens_without_a_module_have_nothing_to_nudge():
    with pytest.raises(CannotTell, match="needs its `module`"):
        run_nudged(lambda x: x, torch.zeros(1, 5, dtype=torch.long), None, 1e-9, 0)


@pytest.mark.parametrize("rows", [2, 5, 64])
@pytest.mark.parametrize("tokens", [None, 13])
def test_influence_is_the_same_with_many_rows_in_a_call(rows, tokens):
    calls = []

    def run(x):
        calls.append(len(x))
        return (x[..., None] if tokens else x).double().cumsum(1).sin()

    def draw(batch, length, seed):
        return sample((batch, length, 3), tokens, seed, torch.float64)

    one, many = (influence(run, draw, 11, 0, size) for size in (1, rows))
    assert torch.equal(one, many) and bool(one.tril().diagonal().all())
    assert set(calls[: 1 + 3 * 11]) == {1} and max(calls) == 1 + min(rows, 11)


def test_every_call_draws_the_numbers_of_the_seed_and_leaves_the_generator_alone():
    torch.manual_seed(3)
    torch.rand(7)
    before = torch.get_rng_state()

    @seeded()
    def run(x):
        return torch.rand(5)

    x = torch.zeros(5)
    first = run(x)
    assert torch.equal(run(x), first)
    assert not torch.equal(run_seeded(run, x, 4), first)
    assert torch.equal(run_seeded(run, x, 3), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("draw", [random.random, getattr(numpy.random, "rand")])  # noqa: B009
def test_random_numbers_of_python_and_numpy_follow_the_seed_too(draw):
    torch.manual_seed(3)
    random.seed(5)
    wanted = random.random(), random.random()
    random.seed(5)

    @seeded()
    def run(x):
        return x + draw()

    x = torch.zeros(1)
    assert torch.equal(run(x), run(x))
    assert not torch.equal(run_seeded(run, x, 4), run(x))
    assert (random.random(), random.random()) == wanted


def test_a_movement_to_what_is_no_number_is_told_as_such():
    lost = movement(torch.tensor([[[torch.nan]]]), torch.zeros(1, 1, 1))
    assert amount(float(lost)) == "NaN or infinity" and amount(0.125) == "0.12"


def test_another_seed_is_left_in_no_generator(monkeypatch):
    other = torch.Generator()
    other.manual_seed(7)
    monkeypatch.setattr(
        "attnlab.audit.repro.prelude.generators", lambda: [torch.default_generator, other]
    )
    seen = run_seeded(lambda x: torch.tensor(other.initial_seed()), torch.zeros(1), 4)
    assert int(seen) == 4 and other.initial_seed() == 7
