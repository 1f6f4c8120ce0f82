"""Position schemes."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from attnlab.attention import positions as schemes
from attnlab.attention.mistakes import HeadRotary
from attnlab.attention.positions import Shape, alibi_slopes, sinusoids
from attnlab.kernels import rotate
from attnlab.models.token_positions import TokenPositions

SHAPE = Shape(width=12, heads=4, head_width=8, context=16)
T = torch.arange(5)[None]


def test_sinusoids_are_the_formula():
    table = sinusoids(torch.tensor([[0, 1, 7]]), 6)[0]
    for row, t in zip(table, (0, 1, 7), strict=True):
        want = [f(t / 10_000 ** (2 * n / 6)) for n in range(3) for f in (math.sin, math.cos)]
        torch.testing.assert_close(row, torch.tensor(want, dtype=torch.float64))


def test_sinusoids_of_an_odd_width_end_with_a_sine():
    assert sinusoids(T, 5).shape == (1, 5, 5)


def test_added_schemes_add_the_same_wherever_the_text_is_cut():
    for settings in (schemes.Learned(), schemes.Sinusoidal(base=100.0)):
        scheme = settings.build(SHAPE)
        x = torch.randn(2, 5, 12)
        whole = scheme.add_to(x, T)
        parts = [scheme.add_to(x[:, :2], T[:, :2]), scheme.add_to(x[:, 2:], T[:, 2:])]
        assert torch.equal(whole, torch.cat(parts, dim=1))
        assert not torch.equal(whole, x)
        assert scheme.rotation(T, torch.float32) is None and scheme.bias(T, 5) is None


def test_rotary_turns_a_fraction_of_the_width():
    by = schemes.Rotary(fraction=0.5).build(SHAPE).rotation(T, torch.bfloat16)
    assert by.cos.shape == (1, 1, 5, 2)
    assert by.cos.dtype == torch.float32  # bfloat16 angles would be wrong by whole turns


@pytest.mark.parametrize("heads", [1, 2, 8, 6, 12])
def test_alibi_slopes_fall_from_head_to_head(heads):
    slopes = alibi_slopes(heads)
    assert len(slopes) == heads and len(set(slopes.tolist())) == heads
    assert ((slopes > 0) & (slopes < 1)).all()


def test_alibi_slopes_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    twelve = [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(twelve))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schemes.Rotary(base=0), r"positions\.base is 0"),
        (lambda: schemes.Sinusoidal(base=-1), r"positions\.base is -1"),
        (lambda: schemes.Rotary(fraction=1.5), r"positions\.fraction is 1.5"),
        (
            lambda: schemes.Rotary(layout="halves"),
            "positions.layout is 'halves'; did you mean 'half-split'",
        ),
        (lambda: schemes.Rotary(fraction=0.1).build(SHAPE), "less than one pair"),
    ],
)
def test_nonsense_is_refused(make, message, unchecked_shapes):
    with pytest.raises(ValueError, match=message):
        make()


AXES = torch.randint(0, 90, (2, 3, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("module", "alternate", "sections"),
    [
        ("qwen2_vl", False, (16, 24, 24)),
        ("qwen2_vl", False, (1, 40, 23)),
        ("qwen3_vl", True, (24, 20, 20)),
        ("qwen3_vl", True, (30, 17, 17)),
    ],
)
def test_sections_turn_by_the_axes_of_transformers(module, alternate, sections):
    """Theirs has angles in float32: errors of 1e-7 of a position below 90."""
    library = f"transformers.models.{module}"
    code = pytest.importorskip(f"{library}.modeling_{module}", reason="pip install 'attnlab[hf]'")
    settings = pytest.importorskip(f"{library}.configuration_{module}")
    name = "Qwen2VL" if module == "qwen2_vl" else "Qwen3VLText"
    made = getattr(settings, "Qwen2VLTextConfig" if module == "qwen2_vl" else "Qwen3VLTextConfig")
    rope = {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": list(sections)}
    theirs = getattr(code, f"{name}RotaryEmbedding")(
        made(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=rope)
    )
    q, k = torch.randn(2, 2, 2, 7, 128)
    cos, sin = theirs(q, AXES.transpose(0, 1))
    wanted = code.apply_rotary_pos_emb(q, k, cos, sin)
    scheme = schemes.Rotary(base=5000.0, sections=sections, alternate=alternate)
    shape = Shape(width=256, heads=2, head_width=128, context=99)
    by = scheme.build(shape).rotation_by_axes(AXES, torch.float32)
    for ours, one in zip((rotate(q, by), rotate(k, by)), wanted, strict=True):
        torch.testing.assert_close(ours, one, atol=1e-4, rtol=0)


def test_text_after_a_picture_goes_on_where_that_of_qwen2_vl_does():
    """A grid of 1 · 4 · 10 patches is 2 · 5 tokens."""
    code = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    model = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    )
    model.get_vision_position_ids = partial(code.Qwen2VLModel.get_vision_position_ids, model)
    kinds = torch.tensor([[0] * 4 + [1] * 10])
    grid = torch.tensor([[1, 4, 10]])
    axes, further = code.Qwen2VLModel.get_rope_index(model, kinds, kinds, grid)
    axes = axes.transpose(0, 1)
    found = TokenPositions(positions=axes[:, 0], start=0, stop=14, axes=axes)
    assert found.next(None, None).tolist() == [14 + int(further)] == [9]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sections": (4,)}, r"sections is \(4,\); one axis is usual rotary; give two or more"),
        ({"sections": (2, 0, 2)}, "sections has 0; it counts pairs, so use 1 or more"),
        ({"sections": (1, 1, 1)}, "1,1,1 add up to 3, and 4 pairs of coordinates turn; use 1,1,2"),
        ({"sections": (16, 24, 24)}, "add up to 64, and 4 pairs .* use 1,1,2"),
        ({"sections": (2, 2), "fraction": 0.5}, "add up to 4, and 2 pairs .* use 1,1"),
        ({"sections": (1, 1, 1), "fraction": 0.5}, "and 2 pairs .* use wider heads"),
        ({"alternate": True}, "alternate is True; there are no positions.sections to take turns"),
        (
            {"sections": (1, 1, 2), "alternate": True},
            "2 pairs of axis 2 that take turns do not fit into 4; make the first section the larg",
        ),
    ],
)
def test_sections_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        schemes.Rotary(**settings).build(SHAPE)


def test_turns_by_head_have_no_sections():
    with pytest.raises(ValueError, match="no angle counts positions here; leave it out"):
        HeadRotary(sections=(2, 2))
