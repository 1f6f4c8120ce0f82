"""The paths that serve on CUDA, against the definition on the CPU."""

from dataclasses import replace

import pytest
import torch
from problems import Problem, assert_as_good_as_plain, errors, refusal, solve

from attnlab.bench.measure import recorded
from attnlab.kernels import (
    DistanceBias,
    LinearBias,
    Request,
    Segments,
    attention,
    choose,
    dispatch,
    problems,
    rotation,
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


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("path", ["auto", "triton"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_is_as_exact_as_plain_pytorch(name, dtype, path):
    problem = SHAPES[name]
    if path == "triton" and problem.table:
        pytest.skip("it has no gradient of a bias by distance")
    true, plain = solve(problem, "reference"), solve(problem, "reference", dtype, "cuda")
    assert_as_good_as_plain(solve(problem, path, dtype, "cuda"), plain, true, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 48, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("window", [100, 700])
def test_kernels_of_every_width_are_as_exact_as_plain_pytorch(width, window, dtype):
    problem = Problem(queries=900, window=window, width=width, batch=1, kv_heads=1, ratio=4)
    true, plain = solve(problem, "reference"), solve(problem, "reference", dtype, "cuda")
    assert_as_good_as_plain(solve(problem, "triton", dtype, "cuda"), plain, true, dtype)


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


@pytest.fixture
def kernels_first(monkeypatch):
    """As it will be once they have been run here."""
    monkeypatch.setattr(dispatch, "ON_CUDA", ["triton", "flex"])


def test_windows_go_to_our_kernels_and_the_rest_says_why(kernels_first):
    q = torch.randn(1, 2, 150, 64, device="cuda", dtype=torch.bfloat16)
    assert choose(Request(q=q, k=q, v=q, window=9)).path == "triton"
    assert choose(Request(q=q[:, :, :3], k=q, v=q, window=9)).path == "triton"
    assert choose(Request(q=q, k=q, v=q)).path == "sdpa"
    wide = q.double()
    choice = choose(Request(q=wide, k=wide, v=wide, window=9))
    assert choice.path == "sdpa"
    assert "not triton: the kernels do not compute in torch.float64" in choice.reason
    assert "not flex: FlexAttention does not run in torch.float64" in choice.reason
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


def inputs(*lengths, heads=(8, 2, 2), width=64, dtype=torch.bfloat16):
    torch.manual_seed(0)
    lengths = lengths * 3 if len(lengths) == 1 else lengths
    return [
        torch.randn(2, t, h, width, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
        for h, t in zip(heads, lengths, strict=True)
    ]


def gradients(attend, leaves):
    out = attend(*leaves)
    return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out).cumsum(2))]


def windowed(*leaves):
    return attention(*leaves, window=300, path="triton")


def test_kernels_give_the_same_bits_every_time():
    leaves = inputs(2000)
    first = gradients(windowed, leaves)
    for _ in range(3):
        assert all(map(torch.equal, first, gradients(windowed, leaves)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("turned", [False, True])
def test_kernels_compile_without_a_break(mode, turned):
    by = rotation(torch.arange(700, device="cuda")[None], 32) if turned else None

    def attend(q, k, v):
        return attention(q * 2, k, v, window=100, rotary=by) + 1

    leaves = inputs(700)
    compiled = torch.compile(attend, fullgraph=True, mode=mode)
    for _ in range(3):
        found = [x.clone() for x in gradients(compiled, leaves)]
    for mine, true in zip(found, gradients(attend, leaves), strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-2, atol=2e-2)


def test_kernels_are_recorded_as_a_graph():
    leaves = inputs(700)
    results: list = []
    replay = recorded(lambda: results.append(gradients(windowed, leaves)), torch.device("cuda"))
    true = gradients(windowed, leaves)
    with torch.no_grad():
        for one in results[-1]:
            one.zero_()
    replay()
    assert all(map(torch.equal, results[-1], true))


@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
@pytest.mark.parametrize("pairs", [32, 12])
def test_kernels_turn_as_a_pass_of_its_own_does(layout, pairs):
    by = rotation(torch.arange(900, device="cuda")[None], pairs, layout=layout)
    leaves = inputs(600, 900, 900, dtype=torch.float32)
    found, true = (
        gradients(lambda *x, p=path: attention(*x, window=300, rotary=by, path=p), leaves)
        for path in ("triton", "reference")
    )
    for mine, exact in zip(found, true, strict=True):
        error = (mine - exact).abs().max() / exact.abs().max()
        assert error < 1e-5


@pytest.mark.parametrize("queries", [1, 3, 16, 128])
@pytest.mark.parametrize("window", [300, 5000])
def test_few_queries_share_out_their_keys(queries, window, kernels_first):
    q, k, v = (x.detach() for x in inputs(queries, 20_000, 20_000))
    choice = choose(Request(q=q, k=k, v=v, window=window))
    assert choice.path == "triton"
    found = attention(q, k, v, window=window)
    true = attention(q.double(), k.double(), v.double(), window=window, path="reference")
    assert (found - true).abs().max() < 1e-2 * true.abs().max()


def test_numbers_past_two_billion_are_found():
    """Rows lie 4,096 numbers apart: the last of them are past what 32 bits can count."""
    length, tail = 540_000, 300
    leaves = [
        torch.randn(1, length, 64, 64, device="cuda", dtype=torch.bfloat16)
        .transpose(1, 2)
        .requires_grad_()
        for _ in range(3)
    ]
    out = attention(*leaves, window=100, path="triton")
    grad = torch.zeros_like(out)
    grad[:, :, -200:] = 1
    grads = torch.autograd.grad(out, leaves, grad)
    last = [x.detach()[:, :, -tail:].double().requires_grad_() for x in leaves]
    true = attention(*last, window=100, path="reference")
    exact = torch.autograd.grad(true, last, grad[:, :, -tail:].double())
    for mine, wanted in zip([out, *grads], [true, *exact], strict=True):
        error = (mine[:, :, -100:] - wanted[:, :, -100:]).abs().max()
        assert error < 2e-2 * wanted.abs().max()


def test_the_first_call_of_a_shape_compiles_what_is_chosen_and_no_more():
    """A length or a window is a number to a kernel: another one compiles nothing."""
    from attnlab.kernels.triton.forward import forward_kernel

    def compiled():
        return sum(len(found[0]) for found in forward_kernel.device_caches.values())

    for length, window in ((4096, 128), (8192, 256)):
        attention(*(x.detach() for x in inputs(length)), window=window, path="triton")
        if length == 4096:
            before = compiled()
    assert compiled() == before
