"""Optimisers: equal to their definitions; the schedule a function of the step."""

import math

import pytest
import torch
from torch import nn

from attnlab import registry
from attnlab.models.transformer import TransformerSettings
from attnlab.training.optim import AdamW, Muon, Schedule, StackedMuon, orthogonalise

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of torch.optim.Muon


def model(**changes):
    torch.manual_seed(0)
    return TransformerSettings(width=12, depth=2, vocabulary=7, context=9, **changes).build()


def step_once(net, optimiser, seed=0):
    torch.manual_seed(seed)
    tokens = torch.randint(7, (3, 9))
    optimiser.zero_grad()
    net(tokens).square().mean().backward()
    optimiser.step()


@pytest.mark.parametrize("shape", [(5, 9), (5, 12), (1, 3), (4, 4)])
def test_orthogonalised_is_the_iteration_written_out(shape):
    """Also where it runs on the Gram matrix alone, from 1 : 2 on."""
    torch.manual_seed(0)
    matrices = torch.randn(4, *shape)
    a, b, c = COEFFICIENTS
    for matrix, result in zip(matrices, orthogonalise(matrices, 5, COEFFICIENTS), strict=True):
        x = matrix.double() / matrix.double().norm()
        for _ in range(5):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        torch.testing.assert_close(result.double(), x, atol=1e-4, rtol=1e-4)
        values = torch.linalg.svdvals(result)
        assert values.min() > 0.3 and values.max() < 1.6, "singular values near 1"


def test_orthogonalised_leaves_a_zero_matrix_zero():
    assert torch.equal(orthogonalise(torch.zeros(1, 3, 4), 5, COEFFICIENTS), torch.zeros(1, 3, 4))


def test_stacked_muon_is_torchs_muon(monkeypatch):
    """Against torch's own, one matrix at a time, with its iteration kept in float32."""
    import torch.optim._muon as theirs

    def in_float32(grad, coefficients, steps, eps):
        wide = grad.T if grad.shape[0] > grad.shape[1] else grad
        out = orthogonalise(wide[None], steps, coefficients)[0]
        return out.T if grad.shape[0] > grad.shape[1] else out

    monkeypatch.setattr(theirs, "_zeropower_via_newtonschulz", in_float32)
    torch.manual_seed(0)
    shapes = [(4, 6), (6, 4), (4, 6), (5, 5), (7, 2)]
    mine = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    other = [nn.Parameter(p.detach().clone()) for p in mine]
    settings = Muon(rate=0.03, weight_decay=0.2)
    ours = StackedMuon(mine, settings)
    plain = torch.optim.Muon(other, lr=0.03, weight_decay=0.2, momentum=0.95)
    for _ in range(4):
        for p, q in zip(mine, other, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        ours.step()
        plain.step()
    for p, q in zip(mine, other, strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6)


def test_muon_gets_the_matrices_inside_and_adamw_the_rest():
    net = model(tied=False)
    optimiser = Muon().build(net)
    names = {id(p): name for name, p in net.named_parameters()}
    by_part = [
        {names[id(p)] for group in part.param_groups for p in group["params"]}
        for part in optimiser.parts
    ]
    rest, inside = by_part
    assert all("attention." in name or "feedforward." in name for name in inside)
    assert {"embed.weight", "head.weight"} <= rest
    assert rest | inside == set(names.values()) and not rest & inside


@pytest.mark.parametrize("name", [option.name for option in registry.options("optimiser")])
def test_going_on_with_a_loaded_state_is_going_on(name):
    settings = registry.load("optimiser", name)()
    whole, part = model(), model()
    first, second = settings.build(whole), settings.build(part)
    for seed in range(3):
        step_once(whole, first, seed)
    for seed in range(2):
        step_once(part, second, seed)
    third = settings.build(part)
    third.load(second.state())
    step_once(part, third, 2)
    for p, q in zip(whole.parameters(), part.parameters(), strict=True):
        assert torch.equal(p, q)
    forgetful = settings.build(part)
    step_once(part, forgetful, 2)
    step_once(whole, first, 2)
    assert not all(
        torch.equal(p, q) for p, q in zip(whole.parameters(), part.parameters(), strict=True)
    )


@pytest.mark.parametrize("fault", ["missing", "foreign", "shape"])
def test_a_state_that_does_not_fit_is_refused_by_name(fault):
    net = model()
    optimiser = AdamW().build(net)
    step_once(net, optimiser)
    state = optimiser.state()
    if fault == "missing":
        state.pop("norm.weight/exp_avg")
    elif fault == "foreign":
        state["ghost/exp_avg"] = torch.zeros(2)
    else:
        state["norm.weight/exp_avg"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"norm\.weight/exp_avg|ghost/exp_avg"):
        AdamW().build(net).load(state)


def test_weight_decay_spares_vectors():
    net = model(bias=True, norm="layer")
    parts = AdamW(weight_decay=0.3).build(net).parts[0].param_groups
    assert all(p.ndim == 2 for p in parts[0]["params"]) and parts[0]["weight_decay"] == 0.3
    assert all(p.ndim == 1 for p in parts[1]["params"]) and parts[1]["weight_decay"] == 0


def test_weight_decay_can_take_the_gains_of_norms_along():
    net = model(bias=True, norm="layer")
    decayed, others = AdamW(decay_gains=True).build(net).parts[0].param_groups
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    assert {names[id(p)] for p in others["params"]} == {n for n in names.values() if "bias" in n}
    assert any(p.ndim == 1 for p in decayed["params"]) and decayed["weight_decay"] == 0.1


def test_the_schedule_rises_holds_and_falls():
    schedule = Schedule(warmup=4, hold=0.5, shape="linear", final=0.2)
    factors = [schedule.factor(step, 20) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:10] == [1.0] * 6
    assert factors[10:] == pytest.approx([0.92 - 0.08 * n for n in range(10)])


def test_waves_go_on_whatever_the_length_of_the_run():
    schedule = Schedule(warmup=1, shape="waves", wave=100, final=0.1)
    factors = [schedule.factor(step, 30) for step in range(401)]
    assert factors[0] == 1
    assert factors[50] == pytest.approx(0.5)
    assert factors[100] == factors[90] == 0.1  # cut off
    assert factors[200] == pytest.approx(1)
    assert factors == [schedule.factor(step, 10_000) for step in range(401)]


def test_the_cosine_schedule_is_a_cosine_and_ends_at_its_final_value():
    schedule = Schedule(warmup=0, shape="cosine", final=0.1)
    assert schedule.factor(49, 100) == pytest.approx(0.55)
    assert schedule.factor(99, 100) == pytest.approx(0.1)
    assert schedule.factor(24, 100) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))
    assert schedule.factor(250, 100) == pytest.approx(0.1), "past the end it stays"
    assert Schedule(shape="constant").factor(99, 100) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule(warmup=-1), "warmup"),
        (lambda: Schedule(hold=1.5), "hold"),
        (lambda: Schedule(shape="waves"), "wave"),
        (lambda: Schedule(shape="waves", wave=0), "wave"),
        (lambda: Schedule(wave=5), "wave"),
        (lambda: AdamW(rate=-1.0), "rate"),
        (lambda: AdamW(rate=1e9), "rate"),
        (lambda: AdamW(betas=(0.9,)), "betas"),
        (lambda: Muon(momentum=1.0), "momentum"),
        (lambda: Muon(iterations=0), "iterations"),
    ],
)
def test_nonsense_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
