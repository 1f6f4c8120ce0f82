"""One query, as decoding has it: the definition's output, with no copy of the keys."""

import math

import pytest
import torch
from problems import Problem, errors, limit_in_float64, limits_of_plain

from attnlab.compat import TorchDispatchMode, tree_leaves
from attnlab.kernels import LinearBias, Request, attention, choose, dispatch
from attnlab.kernels.dispatch import DECODING

ONE = {
    "all keys": Problem(queries=1, keys=77),
    "one key": Problem(queries=1, keys=1),
    "a window": Problem(queries=1, keys=77, window=9),
    "a window of one key": Problem(queries=1, keys=77, window=1),
    "a window of everything": Problem(queries=1, keys=77, window=77),
    "padding": Problem(queries=1, keys=77, padding=True),
    "padding and a window": Problem(queries=1, keys=77, window=9, padding=True),
    "alibi": Problem(queries=1, keys=77, alibi=True),
    "alibi and padding": Problem(queries=1, keys=77, alibi=True, padding=True),
    "all of it": Problem(queries=1, keys=77, window=33, alibi=True, padding=True, ratio=3),
    "both ways": Problem(queries=1, keys=77, window=9, causal=False),
    "odd widths": Problem(queries=1, keys=77, width=5, value_width=19, ratio=1),
}


def solve(problem, path, dtype=torch.float64):
    (q, k, v), _, options = problem.tensors()
    if problem.alibi:
        options["bias"] = LinearBias(options["bias"].slopes.to(dtype))
    return attention(q.to(dtype), k.to(dtype), v.to(dtype), path=path, **options)


@pytest.mark.parametrize("name", ONE)
def test_one_query_is_the_definition(name):
    problem = ONE[name]
    (q, k, v), _, options = problem.tensors()
    assert choose(Request(q=q, k=k, v=v, **options)) is DECODING
    true = [solve(problem, "reference")]
    assert max(errors([solve(problem, "auto")], true)) <= limit_in_float64(true)
    narrow = torch.float32
    plain, found = [solve(problem, "reference", narrow)], [solve(problem, "auto", narrow)]
    assert errors(found, true) <= limits_of_plain(plain, true, narrow)


@pytest.mark.parametrize("name", [name for name in ONE if ONE[name].padding])
def test_a_padding_mask_at_hand_gives_the_same(name):
    (q, k, v), _, options = ONE[name].tensors()
    padding = options["key_padding"]
    added = torch.zeros(2, 1, 1, 77, dtype=torch.float64).masked_fill(
        padding[:, None, None], -math.inf
    )
    with_mask = Request(q=q, k=k, v=v, padding_mask=added, **options)
    torch.testing.assert_close(dispatch.attend(with_mask), attention(q, k, v, **options))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("name", [name for name in ONE if ONE[name].padding])
def test_what_stands_in_padding_is_never_read(name, bad):
    (q, k, v), _, options = ONE[name].tensors()
    want = attention(q, k, v, **options)
    hidden = options["key_padding"][:, None, :, None]
    got = attention(q, k.masked_fill(hidden, bad), v.masked_fill(hidden, bad), **options)
    torch.testing.assert_close(got, want)


def test_a_query_without_keys_gives_zero():
    (q, k, v), _, options = Problem(queries=1, keys=13, padding=True).tensors()
    options["key_padding"][1] = True
    for bias in (None, LinearBias(torch.rand(4, dtype=torch.float64))):
        out = attention(q, k, v, bias=bias, **options)
        assert (out[1] == 0).all() and (out[0] != 0).all()


def test_scores_too_large_for_the_dtype_are_finite():
    q, k, v = torch.full((1, 1, 1, 4), 3e38), torch.ones(1, 1, 5, 4), torch.randn(1, 1, 5, 4)
    k[:, :, 2] = -1
    got = attention(q, k, v, scale=1.0)
    torch.testing.assert_close(got, attention(q, k, v, scale=1.0, path="reference"))
    assert got.isfinite().all()


def test_a_gradient_goes_another_way():
    (q, k, v), _, options = ONE["padding"].tensors()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert choose(Request(q=q, k=k, v=v, **options)) is not DECODING
    found, true = (
        torch.autograd.grad(attention(*leaves, path=path, **options).sum(), leaves)
        for path in ("auto", "reference")
    )
    assert max(errors(found, true)) <= limit_in_float64(true)


class Sizes(TorchDispatchMode):
    """Numbers in the tensors that operations make; a view makes none."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.made += [one.numel() for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        return out


@pytest.mark.parametrize("name", [name for name in ONE if name not in ("one key", "odd widths")])
def test_one_query_makes_nothing_as_large_as_the_keys(name):
    """Keys are not copied: neither to be cut to a window, nor to be cleared of padding.

    Where values are of another width than keys, PyTorch itself scales the keys first.
    """
    (q, k, v), _, options = ONE[name].tensors()
    with torch.no_grad(), Sizes() as sizes:
        attention(q, k, v, **options)
    assert sizes.made and max(sizes.made) < k.numel() / 2


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("keys", [9, 15, 16, 40])
def test_nan_in_a_query_or_key_is_not_lost(queries, where, keys):
    if queries > 1:
        queries = keys
    made = [torch.randn(1, 2, n, 16) for n in (queries, keys, keys)]
    made[where][0, 0, -1] = math.nan
    got, true = (attention(*made, path=path) for path in ("auto", "reference"))
    assert torch.equal(got.isnan(), true.isnan()) and true[0, 0, -1].isnan().all()
