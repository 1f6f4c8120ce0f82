"""The paths that serve on CUDA, against the definition on the CPU."""

from dataclasses import replace

import pytest
import torch
from problems import Problem, assert_as_good_as_plain, errors, refusal, solve

from attnlab.kernels import (
    DistanceBias,
    LinearBias,
    Request,
    Segments,
    attention,
    choose,
    problems,
)
from attnlab.kernels.dispatch import PATHS, request_of

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

# every kind of request, as on the CPU, with texts and widths that the paths of CUDA take
LONGER = {
    name: replace(
        problem,
        queries=problem.queries + 140,
        keys=None if problem.keys is None else problem.keys + 140,
        width=32,
        value_width=None,
    )
    for name, problem in problems.SHAPES.items()
}
SHAPES = {
    **LONGER,
    "window": Problem(queries=300, window=70, width=64),
    "odd width": Problem(queries=100, window=13, width=24, value_width=40),
    "grouped": Problem(queries=200, window=33, ratio=4, width=32),
    "ratio 7": Problem(queries=130, window=9, ratio=7, width=16),
    "last queries": Problem(queries=200, keys=333, window=50, width=32),
    "last queries, few": Problem(queries=100, keys=333, window=50, width=32),
    "more queries than keys": Problem(queries=140, keys=125, window=6, width=32),
    "alibi": Problem(queries=150, window=20, alibi=True, width=64),
    "padding": Problem(queries=150, window=20, padding=True, width=64),
    "both ways": Problem(queries=190, window=20, causal=False, padding=True, alibi=True, width=32),
    "full": Problem(queries=200, width=64),
    "one query": Problem(queries=1, keys=300, window=90, width=64),
    "long": Problem(queries=4099, window=130, batch=1, kv_heads=1, ratio=2, width=64),
}


@pytest.fixture(autouse=True)
def full_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("path", ["auto", "sdpa", "tiled", "reference"])
@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_definition_in_float64(name, path):
    if path != "auto" and (reason := refusal(SHAPES[name], path)):
        pytest.skip(reason)
    true = solve(SHAPES[name], "reference")
    assert max(errors(solve(SHAPES[name], path, device="cuda"), true)) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_is_as_exact_as_plain_pytorch(name, dtype):
    true = solve(SHAPES[name], "reference")
    plain = solve(SHAPES[name], "reference", dtype, "cuda")
    assert_as_good_as_plain(solve(SHAPES[name], "auto", dtype, "cuda"), plain, true, dtype)


@pytest.mark.parametrize("name", LONGER)
def test_flex_going_forward_is_as_exact_as_plain_pytorch(name):
    """With a gradient for a learned bias the dense path serves, so this asks without."""
    problem = LONGER[name]
    (q, k, v), _, options = moved(problem.tensors(), torch.float32)
    reason = refusal_of_flex(q, k, v, options)
    if reason:
        pytest.skip(reason)
    plain = attention(q, k, v, **options, path="reference")
    true = solve(problem, "reference")[0]
    wide = plain.cpu().double()
    limit = 2 * float((wide - true).abs().max()) + torch.finfo(torch.float32).eps * 8
    found = attention(q, k, v, **options, path="flex").cpu().double()
    assert float((found - true).abs().max()) <= limit


def moved(given, dtype):
    """A problem on the GPU."""
    tensors, grad, options = given

    def there(value):
        if isinstance(value, torch.Tensor):
            return value.to("cuda", dtype) if value.is_floating_point() else value.cuda()
        if isinstance(value, LinearBias):
            return LinearBias(there(value.slopes))
        if isinstance(value, DistanceBias):
            return DistanceBias(there(value.values), value.zero)
        if isinstance(value, Segments):
            return Segments(value.queries.cuda(), value.keys.cuda())
        return value

    return [there(x) for x in tensors], grad, {name: there(x) for name, x in options.items()}


def refusal_of_flex(q, k, v, options):
    return PATHS["flex"].refusal(request_of(q, k, v, **options))


def test_windows_go_to_flex_and_the_rest_says_why():
    q = torch.randn(1, 2, 150, 64, device="cuda", dtype=torch.bfloat16)
    assert choose(Request(q=q, k=q, v=q, window=9)).path == "flex"
    assert choose(Request(q=q, k=q, v=q)).path == "sdpa"
    odd = q[..., :24]
    choice = choose(Request(q=odd, k=odd, v=odd, window=9))
    assert choice.path == "sdpa" and "not flex: head widths (24, 24)" in choice.reason
    with pytest.raises(ValueError, match="compiled C runs on the CPU, not on cuda"):
        attention(q, q, q, window=9, path="native")


def test_mixed_devices_are_refused(unchecked_shapes):
    q = torch.randn(1, 2, 10, 16)
    with pytest.raises(ValueError, match="q is on cpu, k on cuda:0"):
        attention(q, q.cuda(), q.cuda())


def test_a_query_that_sees_nothing_gives_zero_and_finite_gradients():
    leaves = [torch.randn(2, 2, 200, 64, device="cuda", requires_grad=True) for _ in range(3)]
    padding = torch.zeros(2, 200, dtype=torch.bool, device="cuda")
    padding[0, :90], padding[1] = True, True
    out = attention(*leaves, window=40, key_padding=padding)
    assert (out[0, :, :90] == 0).all() and (out[1] == 0).all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))


def test_gradients_may_come_in_any_layout():
    """cuDNN plans for the layout of the first gradient and misreads those of any other."""
    q, k, v = (
        torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    upstream = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)
    orders = [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)]
    found = []
    for order in orders:
        back = [order.index(axis) for axis in range(4)]
        laid_out = upstream.permute(order).contiguous().permute(back)
        out = attention(q, k, v, path="sdpa")
        found.append(torch.autograd.grad(out, (q, k, v), laid_out))
    for grads in found[1:]:
        torch.testing.assert_close(grads, found[0])
