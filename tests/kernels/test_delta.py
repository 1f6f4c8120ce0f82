"""The gated delta rule: the recurrence by hand, and its chunked form equal to it."""

import math

import pytest
import torch
import torch.nn.functional as F

from attnlab.kernels import delta

NAMES = ["out", "state", "q", "k", "v", "log decay", "strength", "first state"]
CHUNKS = [1, 2, 7, 16, 32, 64]
LENGTHS = [1, 3, 31, 33, 77, 130]


def problem(time, *, decay=0.1, alike=0.0, seed=0):
    """q, k, v, log decays, strengths and a state; keys can point almost the same way."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(2, 3, *shape, generator=rng, dtype=torch.float64)

    q, k, common = draw(time, 7), draw(time, 7), draw(1, 7)
    q, k = F.normalize(q, dim=-1), F.normalize(k + alike * common, dim=-1)
    log_decay = -decay * F.softplus(draw(time))
    inputs = [q, k, draw(time, 5), log_decay, draw(time).sigmoid(), draw(7, 5)]
    return inputs, [draw(time, 5), draw(7, 5)]


def solve(path, inputs, grads, dtype=torch.float64, **options):
    """The output, the last state, and the gradients of all inputs."""
    leaves = [one.to(dtype).requires_grad_() for one in inputs]
    found = path(*leaves, **options)
    return [
        *(one.detach() for one in found),
        *torch.autograd.grad(found, leaves, [one.to(dtype) for one in grads]),
    ]


def differences(found, true):
    """The largest of each tensor, relative to its largest number; NaN is kept."""
    return [
        float((mine.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-300))
        for mine, exact in zip(found, true, strict=True)
    ]


def test_the_definition_is_the_published_recurrence():
    """S = α S (I − β k kᵀ) + β v kᵀ, a state of [values, keys], with products of whole matrices."""
    (q, k, v, log_decay, strength, state), _ = problem(9, decay=0.7)
    out, last = delta.recurrent(q, k, v, log_decay, strength, state)
    for row in range(2):
        for head in range(3):
            at = (row, head)
            memory = state[at].T
            for t in range(9):
                key, alpha, beta = k[at][t], log_decay[at][t].exp(), strength[at][t]
                erase = torch.eye(7, dtype=torch.float64) - beta * torch.outer(key, key)
                memory = alpha * memory @ erase + beta * torch.outer(v[at][t], key)
                torch.testing.assert_close(out[at][t], memory @ q[at][t])
            torch.testing.assert_close(last[at], memory.T)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("time", LENGTHS)
def test_chunks_equal_the_definition_in_outputs_and_gradients(time, chunk):
    for decay, alike in ((0.1, 0.0), (0.0, 0.0), (0.0, 100.0), (1e-9, 3.0), (50.0, 0.0)):
        inputs, grads = problem(time, decay=decay, alike=alike)
        true = solve(delta.recurrent, inputs, grads)
        # float64: sums of at most 130 terms; the largest found was 6e-15
        assert max(differences(solve(delta.chunked, inputs, grads, chunk=chunk), true)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_token_that_forgets_almost_all_leaves_later_decays_exact(chunk, dtype):
    """A cumulative sum of logarithms would have rounded the small ones away."""
    inputs, grads = problem(33, decay=0.01)
    inputs[3][:, :, 4] = -1e6
    inputs[3][:, :, 20] = -torch.inf
    true = solve(delta.recurrent, inputs, grads)
    found = solve(delta.chunked, inputs, grads, dtype, chunk=chunk)
    assert max(differences(found, true)) < 50 * torch.finfo(dtype).eps  # sums of 33 terms


@pytest.mark.parametrize("decay", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("alike", [0.0, 3.0, 100.0])
def test_chunks_are_as_exact_as_the_definition_in_float32(decay, alike):
    """Root mean square errors at most twice as large: of these few numbers the largest is luck."""
    for time in (64, 130):
        inputs, grads = problem(time, decay=decay, alike=alike)
        inputs, grads = ([x.float().double() for x in part] for part in (inputs, grads))
        true = solve(delta.recurrent, inputs, grads)
        plain = solve(delta.recurrent, inputs, grads, torch.float32)
        found = solve(delta.chunked, inputs, grads, torch.float32)
        for name, mine, theirs, exact in zip(NAMES, found, plain, true, strict=True):
            errors = [float((one.double() - exact).norm()) for one in (mine, theirs)]
            assert errors[0] <= 2 * errors[1], f"{name}: {errors[0]:.1e}, plain {errors[1]:.1e}"


@pytest.mark.parametrize("path", [delta.recurrent, delta.chunked], ids=["recurrent", "chunked"])
def test_gradients_are_the_derivatives(path):
    inputs, _ = problem(4, decay=0.3)
    leaves = [one[:1, :1].requires_grad_() for one in inputs]
    assert torch.autograd.gradcheck(path, leaves)
    assert torch.autograd.gradcheck(lambda *given: delta.chunked(*given, chunk=3), leaves)


@pytest.mark.parametrize("sizes", [[1] * 41, [3, 1, 17, 20], [40, 1], [0, 41]], ids=str)
def test_reading_on_from_a_state_is_reading_the_whole(sizes):
    (*inputs, state), _ = problem(41)
    out, last = delta.recurrent(*inputs, state)
    parts = []
    for piece in zip(*(one.split(sizes, 2) for one in inputs), strict=True):
        part, state = delta.delta(*piece, state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), out)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("path", [delta.recurrent, delta.chunked], ids=["recurrent", "chunked"])
def test_a_strength_of_0_and_no_decay_leave_the_state_as_it_is(path):
    (q, k, v, log_decay, strength, state), _ = problem(40)
    _, same = path(q, k, v, 0 * log_decay, 0 * strength, state)
    assert torch.equal(same, state)


@pytest.mark.parametrize("chunk", [5, 32])
def test_minus_infinity_begins_a_text_anew(chunk):
    inputs, _ = problem(29)
    *given, _ = inputs
    given[3][:, :, 12] = -torch.inf
    out, last = delta.chunked(*inputs, chunk=chunk)
    alone, ended = delta.recurrent(*(one[:, :, 12:] for one in given))
    torch.testing.assert_close(out[:, :, 12:], alone)
    torch.testing.assert_close(last, ended)


def test_no_output_depends_on_a_later_token():
    inputs, _ = problem(70)
    changed = [one.clone() for one in inputs]
    for one in changed[:5]:
        one[:, :, 41:] *= 0.5
    before, after = (delta.chunked(*given)[0] for given in (inputs, changed))
    assert torch.equal(before[:, :, :41], after[:, :, :41])
    assert not torch.equal(before[:, :, 41], after[:, :, 41])


def test_weights_times_values_are_the_outputs():
    (*inputs, _), _ = problem(37)
    q, k, v, log_decay, strength = inputs
    weights = delta.weights(q, k, log_decay, strength)
    torch.testing.assert_close(weights @ v, delta.chunked(*inputs)[0])
    assert (weights.triu(1) == 0).all() and (weights < 0).any()


def test_decays_are_products_of_what_is_kept():
    log_decay = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    e = math.exp
    wanted = [[1, 0, 0], [e(-2), 1, 0], [e(-2.5), e(-0.5), 1]]
    torch.testing.assert_close(delta.decays(log_decay), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("time", [0, 1, 15, 16, 17, 32, 33, 1000])
def test_chunks_are_few_and_of_one_length(time):
    count, size = delta.chunks(time)
    assert count == math.ceil(time / delta.CHUNK) and size <= delta.CHUNK
    assert 0 <= count * size - time < max(count, 1)


@pytest.mark.parametrize("time", [1, 40])
def test_half_precisions_are_computed_in_float32(time):
    """Under autocast too, which would round every product. bfloat16 has 8 bits."""
    (*inputs, _), _ = problem(time)
    rounded = [one.bfloat16() for one in inputs]
    true = delta.recurrent(*(one.double() for one in rounded))
    with torch.autocast("cpu", torch.bfloat16):
        out, state = delta.delta(*rounded)
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    torch.testing.assert_close(out, true[0].bfloat16(), atol=1e-5, rtol=2**-7)
    torch.testing.assert_close(state, true[1].float())


def test_memory_that_was_not_written_is_not_read(poisoned_memory):
    inputs, grads = problem(45)
    true = solve(delta.recurrent, inputs, grads)
    assert max(differences(solve(delta.chunked, inputs, grads), true)) < 1e-12
