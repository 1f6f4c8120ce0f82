"""Every path equals the definition: outputs and gradients, over shapes nobody would choose."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import (
    FAST_PATHS,
    SHAPES,
    Problem,
    assert_as_good_as_plain,
    errors,
    limit_in_float64,
    refusal,
    solve,
)

from attnlab.kernels import DistanceBias, LinearBias, attention, hardware
from attnlab.kernels.dispatch import request_of


@cache
def defined(name, dtype=torch.float64):
    """By the definition, which no path has to compute again."""
    return solve(SHAPES[name], "reference", dtype)


@pytest.mark.parametrize("path", ["native", "tiled"])  # the others are plain PyTorch
@pytest.mark.parametrize("name", SHAPES)
def test_is_as_exact_as_plain_pytorch_in_float32(name, path):
    problem = SHAPES[name]
    true, plain = defined(name), defined(name, torch.float32)
    assert_as_good_as_plain(solve(problem, path, torch.float32), plain, true, torch.float32)


@pytest.mark.parametrize("path", FAST_PATHS)
@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_definition_in_float64(name, path):
    if refusal(SHAPES[name], path):
        with pytest.raises(ValueError, match=r"PyTorch's SDPA (caps no scores|has no sinks)"):
            solve(SHAPES[name], path)
        return
    true = defined(name)
    assert max(errors(solve(SHAPES[name], path), true)) < limit_in_float64(true)


@pytest.mark.parametrize("path", ["native", "tiled"])
@pytest.mark.parametrize("name", ["odd", "padding and alibi", "wide heads", "last queries, longer"])
def test_is_as_exact_as_plain_pytorch_in_bfloat16(name, path):
    if path != "native" and not hardware.cpu_multiplies("bfloat16"):
        with pytest.raises(ValueError, match="bfloat16 products do not run on this CPU"):
            solve(SHAPES[name], path, torch.bfloat16)
        return
    problem = SHAPES[name]
    # what plain PyTorch makes of bfloat16 inputs, in float32 where its own would end the process
    true = defined(name)
    bf16 = hardware.cpu_multiplies("bfloat16")
    plain = solve(problem, "reference", torch.bfloat16) if bf16 else rounded(problem)
    assert_as_good_as_plain(solve(problem, path, torch.bfloat16), plain, true, torch.bfloat16)


def rounded(problem):
    return [x.bfloat16() for x in solve(problem, "reference")]


@pytest.mark.parametrize("path", ["native", "tiled"])
@pytest.mark.parametrize("name", ["odd", "padding and alibi", "more queries than keys", "long"])
def test_reads_nothing_it_has_not_written(name, path, poisoned_memory):
    true = defined(name)
    assert max(errors(solve(SHAPES[name], path), true)) < 1e-12


problems = st.builds(
    Problem,
    queries=st.integers(1, 150),
    keys=st.none() | st.integers(1, 200),
    batch=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    ratio=st.integers(1, 4),
    width=st.integers(1, 40),
    value_width=st.none() | st.integers(1, 40),
    window=st.none() | st.integers(1, 220),
    causal=st.booleans(),
    alibi=st.booleans(),
    padding=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
# what PyTorch's own attention does not have, in any combination that is not refused
modern = st.builds(
    replace,
    problems,
    reach=st.none() | st.tuples(st.none() | st.integers(0, 60), st.just(0)),
    align=st.sampled_from(["end", "start"]),
    chunk=st.none() | st.integers(1, 90),
    documents=st.none() | st.integers(1, 6),
    soft_cap=st.none() | st.floats(0.5, 60),
    sinks=st.booleans(),
    table=st.booleans(),
) | st.builds(
    replace,
    problems,
    window=st.none(),
    align=st.sampled_from(["end", "start"]),
    prefix=st.booleans(),
    lengths=st.booleans(),
    sinks=st.booleans(),
)


@pytest.mark.parametrize("path", FAST_PATHS)
@settings(max_examples=60, deadline=None)
@given(problem=problems)
def test_equals_the_definition_on_any_shape(path, problem):
    assert refusal(problem, path) is None
    true = solve(problem, "reference")
    assert max(errors(solve(problem, path), true)) < 1e-11  # float64, sums of at most 200 terms


@pytest.mark.parametrize("path", ["native", "tiled"])
@settings(max_examples=100, deadline=None)
@given(problem=modern)
def test_equals_the_definition_whatever_is_asked_for(path, problem):
    true = solve(problem, "reference")
    # sums over all pairs of a table's distance are larger than the rest
    scale = max(1.0, *(float(one.abs().max()) for one in true))
    assert max(errors(solve(problem, path), true)) < 1e-11 * scale


@settings(max_examples=300, deadline=None)
@given(problem=modern)
def test_ranges_are_what_the_mask_says_and_never_go_back(problem):
    (q, k, v), _, options = problem.tensors()
    mask = request_of(q, k, v, **options).mask
    first, end, _ = mask.ranges().unbind(-1)
    keys = torch.arange(mask.keys)
    seen = (keys >= first[..., None]) & (keys < end[..., None])
    assert torch.equal(*torch.broadcast_tensors(seen, mask.visible()))
    assert (first.diff() >= 0).all() and (end.diff() >= 0).all()
    assert ((first >= 0) & (end <= mask.keys)).all()
    for queries in (slice(0, 3), slice(1, mask.queries)):
        within = mask.keys_of(queries)
        anyone = mask.visible(queries).any(0).any(0).nonzero()
        assert not len(anyone) or within.start <= anyone.min() <= anyone.max() < within.stop


@pytest.mark.parametrize("path", ["reference", "native", "tiled"])
@pytest.mark.parametrize("table", [False, True])
def test_gradients_of_caps_sinks_and_tables_are_the_derivatives(path, table):
    problem = Problem(
        queries=5, keys=7, batch=1, width=3, soft_cap=1.5, sinks=True, alibi=not table, table=table
    )
    inputs, _, options = problem.tensors()
    bias, sinks = options.pop("bias"), options.pop("sinks")
    leaves = [x.requires_grad_() for x in (*inputs, bias.learned, sinks)]

    def function(q, k, v, learned, sinks):
        made = DistanceBias(learned, bias.zero) if table else LinearBias(learned)
        return attention(q, k, v, path=path, bias=made, sinks=sinks, **options)

    assert torch.autograd.gradcheck(function, leaves, atol=1e-7)


@pytest.mark.parametrize("path", ["reference", "native", "tiled"])
def test_gradients_are_the_derivatives(path):
    problem = Problem(
        queries=5, keys=7, batch=1, width=3, window=4, alibi=True, padding=True, kv_heads=1
    )
    inputs, _, options = problem.tensors()
    leaves = [x.requires_grad_() for x in inputs]

    def function(q, k, v):
        return attention(q, k, v, path=path, **options)

    assert torch.autograd.gradcheck(function, leaves, atol=1e-7)


@pytest.mark.parametrize("path", ["reference", *FAST_PATHS])
def test_a_query_that_sees_nothing_gives_zero_and_finite_gradients(path):
    q, k, v = (torch.randn(2, 2, 20, 16, requires_grad=True) for _ in range(3))
    padding = torch.zeros(2, 20, dtype=torch.bool)
    padding[0, :10] = True  # the first queries of row 0 see padding only
    padding[1] = True  # row 1 sees nothing at all
    out = attention(q, k, v, window=4, key_padding=padding, path=path)
    assert (out[0, :, :10] == 0).all() and (out[1] == 0).all()
    assert (out[0, :, 10:] != 0).any()
    for grad in torch.autograd.grad(out.sum(), (q, k, v)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("path", ["reference", *FAST_PATHS])
def test_padding_is_never_read(path):
    q, k, v = (torch.randn(1, 2, 30, 16) for _ in range(3))
    padding = torch.arange(30)[None] % 3 == 0
    clean = attention(q, k, v, window=9, key_padding=padding, path=path)
    hidden = padding[:, None, :, None]
    k, v = k.masked_fill(hidden, torch.nan), v.masked_fill(hidden, torch.inf)
    assert torch.equal(attention(q, k, v, window=9, key_padding=padding, path=path), clean)


@pytest.mark.parametrize("path", ["reference", *FAST_PATHS])
@pytest.mark.parametrize("size", [1e3, 1e10, 3e19])
def test_finite_numbers_never_give_nan(path, size):
    """Scores of 3e19² do not fit into float32: they count as its largest number."""
    sizes = (size, size, 1)
    leaves = [(torch.randn(1, 2, 40, 16) * n).requires_grad_() for n in sizes]
    out = attention(*leaves, window=9, path=path)
    assert out.isfinite().all()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


@pytest.mark.parametrize("path", ["reference", *FAST_PATHS])
@pytest.mark.parametrize("where", ["k", "v"])
def test_nan_shows_wherever_it_is_seen(path, where):
    q, k, v = (torch.randn(1, 1, 20, 16) for _ in range(3))
    (k if where == "k" else v)[0, 0, 5] = torch.nan
    out = attention(q, k, v, window=3, path=path)
    assert out[0, 0, 5:8].isnan().all()


@pytest.mark.parametrize("path", ["sdpa", "reference"])
def test_minus_infinity_in_a_dense_bias_is_a_mask(path):
    q, k, v = (torch.randn(1, 2, 12, 16, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(2, 12, 12, dtype=torch.float64)
    bias[:, :, 3] = -torch.inf
    bias[:, 0] = -torch.inf  # the first query sees nothing
    padding = torch.arange(12)[None] == 3
    open_bias = bias.masked_fill(bias == -torch.inf, 0)
    want = attention(q, k, v, bias=open_bias, key_padding=padding, path="reference")
    got = attention(q, k, v, bias=bias, path=path)
    torch.testing.assert_close(got[:, :, 1:], want[:, :, 1:], atol=1e-14, rtol=0)
    assert (got[:, :, 0] == 0).all()


@pytest.mark.parametrize("path", ["native", "tiled"])
def test_any_memory_layout_is_read_right(path):
    problem = Problem(queries=60, window=17, width=16)
    inputs, grad, options = problem.tensors()
    true = solve(problem, "reference")
    layouts = [
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: torch.stack((x, x))[1],
        lambda x: torch.cat((x, x), dim=3)[..., : x.shape[3]],
    ]
    for one, other in itertools.product(layouts, repeat=2):
        leaves = [
            make(x).requires_grad_() for make, x in zip((one, other, one), inputs, strict=True)
        ]
        out = attention(*leaves, path=path, **options)
        grads = torch.autograd.grad(out, leaves, other(grad))
        assert max(errors([out.detach(), *grads], true)) < 1e-12


@pytest.mark.parametrize("path", ["native", "tiled"])
def test_expanded_gradients_are_read_right(path):
    q, k, v = (torch.randn(1, 2, 50, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    grads = torch.autograd.grad(attention(q, k, v, window=8, path=path).sum(), (q, k, v))
    plain = torch.autograd.grad(attention(q, k, v, window=8, path="reference").sum(), (q, k, v))
    for mine, theirs in zip(grads, plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-13, rtol=0)


def test_learned_slopes_get_their_gradient():
    q, k, v = (torch.randn(1, 2, 30, 16, dtype=torch.float64) for _ in range(3))
    slopes = torch.tensor([0.5, 0.1], dtype=torch.float64, requires_grad=True)

    def function(slopes):
        return attention(q, k, v, window=8, bias=LinearBias(slopes))

    assert torch.autograd.gradcheck(function, [slopes])
