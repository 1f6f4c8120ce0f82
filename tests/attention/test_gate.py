"""Gates: what a token has attended to, times a sigmoid of the token."""

import pytest
import torch

from attnlab.attention.heads import AttentionOptions, Grouped, HeadedAttention, Layer
from attnlab.attention.scores import ScaledDot


def build(**options):
    torch.manual_seed(0)
    settings = Grouped(heads=4, kv_heads=2, head_width=5)
    return HeadedAttention(settings, ScaledDot().build(4, 5), Layer(width=16, **options)).double()


@pytest.mark.parametrize(("kind", "gates"), [("elementwise", 20), ("headwise", 4)])
def test_the_gated_output_is_its_formula(kind, gates):
    module, x = build(gate=kind, linear_bias=True), torch.randn(2, 7, 16, dtype=torch.float64)
    project = module.gate.project
    assert project.weight.shape == (gates, 16) and project.bias.shape == (gates,)
    attended = module.score.attend(module.request(x, AttentionOptions()))
    gate = 1 / (1 + torch.exp(-(x @ project.weight.T + project.bias)))
    for head in range(4):
        of_head = gate[..., head * gates // 4 : (head + 1) * gates // 4]
        attended[:, head] *= of_head
    torch.testing.assert_close(module(x), module.join(attended))


@pytest.mark.parametrize("kind", ["elementwise", "headwise"])
def test_a_gate_adds_its_matrix_and_without_one_nothing_changes(kind):
    """The same seed gives the same weights besides, and gates of 0 half the output."""
    gated, plain = build(gate=kind), build()
    added = {name for name, _ in gated.named_parameters()} ^ set(plain.state_dict())
    assert added == {"gate.project.weight"}
    assert all(
        torch.equal(one, gated.state_dict()[name]) for name, one in plain.state_dict().items()
    )
    torch.nn.init.zeros_(gated.gate.project.weight)
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    torch.testing.assert_close(2 * gated(x), plain(x))
