"""Rotary positions: rotations of the complex plane, in both layouts."""

import pytest
import torch

from attnlab.kernels import Rotation, attention, rotate, rotation

LAYOUTS = ["half-split", "interleaved"]


def turned(x, positions, layout="half-split", pairs=None):
    pairs = x.shape[-1] // 2 if pairs is None else pairs
    return rotate(x, rotation(positions[None], pairs, layout=layout, dtype=x.dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_is_multiplication_by_a_complex_number(layout):
    x = torch.randn(2, 3, 20, 16, dtype=torch.float64)
    if layout == "half-split":
        z = torch.complex(x[..., :8], x[..., 8:])
    else:
        z = torch.view_as_complex(x.unflatten(-1, (8, 2)).contiguous())
    angles = torch.arange(20)[:, None] * 10_000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    z = z * torch.polar(torch.ones_like(angles), angles)
    want = (
        torch.cat((z.real, z.imag), -1)
        if layout == "half-split"
        else torch.view_as_real(z).flatten(-2)
    )
    torch.testing.assert_close(turned(x, torch.arange(20), layout), want, atol=1e-14, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 7, 100_000])
def test_products_depend_on_the_distance_only(layout, offset):
    q, k = torch.randn(2, 1, 1, 9, 32, dtype=torch.float64)
    scores = []
    for shift in (0, offset):
        t = torch.arange(9) + shift
        scores.append(turned(q, t, layout) @ turned(k, t, layout).transpose(-1, -2))
    torch.testing.assert_close(scores[0], scores[1], atol=1e-9, rtol=0)


def test_float32_angles_are_exact_at_large_positions():
    """Angles taken in float32 would be off by 0.004 at position 100,000."""
    t = torch.tensor([[100_003]])
    exact = rotation(t, 16, dtype=torch.float64)
    torch.testing.assert_close(rotation(t, 16).cos.double(), exact.cos, atol=6e-8, rtol=0)


def test_the_layouts_are_the_same_after_reordering():
    x, t = torch.randn(1, 1, 10, 12), torch.arange(10)
    order = torch.arange(12).view(2, 6).T.flatten()  # half-split index of each interleaved place
    got = turned(x[..., order], t, "interleaved")
    torch.testing.assert_close(got, turned(x, t)[..., order])


def test_the_rest_of_the_width_stays():
    x = torch.randn(1, 1, 10, 12)
    out = turned(x, torch.arange(10), pairs=2)
    assert torch.equal(out[..., 4:], x[..., 4:]) and not torch.equal(out[..., :4], x[..., :4])


def test_attention_rotates_the_last_queries_by_the_last_angles():
    q, k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    by = rotation(torch.arange(10)[None], 4)
    want = attention(rotate(q, by.last(3)), rotate(k, by), v)
    torch.testing.assert_close(attention(q, k, v, rotary=by), want)


def test_rows_can_have_positions_of_their_own():
    x = torch.randn(2, 1, 5, 8)
    t = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    both = rotate(x, rotation(t, 4))
    for row in range(2):
        alone = rotate(x[row : row + 1], rotation(t[row : row + 1], 4))
        assert torch.equal(both[row : row + 1], alone)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 1, 9, 4), r"\[1 or 2, 1 or heads, 10 keys\]"),
        ((1, 1, 10, 5), "turns 10 coordinates of a width of 8"),
    ],
)
def test_angles_that_do_not_fit_are_refused(shape, message, unchecked_shapes):
    q = torch.randn(2, 2, 10, 8)
    angles = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        attention(q, q, q, rotary=Rotation(angles, angles))


@pytest.mark.parametrize("pairs", [8, 3])
@pytest.mark.parametrize("rows", [1, 2])
def test_complex_products_equal_the_six_passes(pairs, rows, monkeypatch):
    """The short cut of the CPU against the plain formula, outputs and gradients, where q and k lie
    in a model: a slice of a larger tensor, transposed."""
    from attnlab.kernels import rotary

    projected = torch.randn(2, 7, 5, 16, dtype=torch.float64, requires_grad=True)
    by = rotation(torch.arange(7).expand(rows, 7), pairs, layout="interleaved", dtype=torch.float64)
    upstream = torch.randn(2, 3, 7, 16, dtype=torch.float64)
    x = projected[:, :, 1:4].transpose(1, 2)
    assert rotary._as_complex(x, by)
    results = []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(rotary, "_as_complex", lambda x, by: False)
        out = rotate(x, by)
        (grad,) = torch.autograd.grad((out * upstream).sum(), projected, retain_graph=True)
        results.append((out, grad))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-14, rtol=0)


def test_complex_products_are_left_out_where_pairs_do_not_lie_side_by_side():
    from attnlab.kernels import rotary

    by = rotation(torch.arange(7)[None], 4, layout="interleaved")
    x = torch.randn(2, 3, 7, 17)[..., 1:9]  # begins in the middle of a pair
    assert not rotary._as_complex(x, by)
    strided = torch.randn(2, 3, 8, 7).transpose(-1, -2)
    assert not rotary._as_complex(strided, by)
    half = torch.randn(2, 3, 7, 8, dtype=torch.bfloat16)
    assert not rotary._as_complex(half, by)
    rotate(x, by), rotate(strided, by), rotate(half, by)  # and these work the plain way
