"""Random requests to jax.nn.dot_product_attention: the same output and gradients on every path.

A request is a function of its number. JAX answers 44 of a kind at once, since it compiles for each
kind; ours are one call each. JAX counts positions from the first key (`align="start"`), and has two
conventions of its own, held to here: the output past a row's last query is 0, and a query without
keys gets the mean of all values, padding included, where ours gets 0.

Axes: n requests, b batch, h query heads, g key/value heads, q queries, k keys, d head width.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from attnlab.kernels import Reach, attention
from attnlab.kernels.dispatch import PATHS, request_of
from attnlab.kernels.mask import keys_of_left_reach

EACH, BATCH = 44, 2
SHAPES = [  # queries, keys, key/value heads, query heads to each, width
    (9, 9, 3, 1, 4),
    (7, 9, 2, 2, 5),
    (1, 12, 1, 4, 8),
    (11, 6, 1, 3, 3),
    (5, 5, 2, 1, 1),
    (70, 67, 1, 2, 8),
]
KINDS = [(shape, causal) for shape in SHAPES for causal in (False, True)]

# JAX computes in float32, and ours here in float64: sums of up to 70 terms, and as many products
LIMIT = 128 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Asked:
    """One request; a part that it does not have is one that does nothing for JAX."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    causal: bool
    bias: Tensor | None
    padding: Tensor | None  # [b, k]
    scale: float
    before: int | None
    after: int | None
    key_lengths: Tensor | None
    query_lengths: Tensor | None

    @property
    def window(self) -> int | Reach | None:
        if self.before is None and self.after is None:
            return None
        if self.before == self.after:
            return keys_of_left_reach(self.before)
        return Reach(before=self.before, after=None if self.causal else self.after)

    @property
    def options(self) -> dict:
        return {
            "causal": self.causal,
            "window": self.window,
            "align": "start",
            "key_lengths": self.key_lengths,
            "scale": self.scale,
            "bias": self.bias,
            "key_padding": self.padding,
        }

    @property
    def unseeing(self) -> Tensor:
        """Queries without keys, [b, 1, q, 1]."""
        return ~request_of(self.q, self.k, self.v, **self.options).visible().any(-1, keepdim=True)

    @property
    def past(self) -> Tensor:
        """Queries after their row's last, [b, 1, q, 1]."""
        at = torch.arange(self.q.shape[2])[:, None]
        if self.query_lengths is None:
            return at < 0
        return at >= self.query_lengths[:, None, None, None]

    def for_jax(self) -> list[np.ndarray]:
        batch, heads, queries, _ = self.q.shape
        keys = self.k.shape[2]
        bias = torch.zeros(1, heads, queries, keys) if self.bias is None else self.bias
        mask = torch.zeros(batch, keys, dtype=bool) if self.padding is None else self.padding
        ends = [
            torch.full((batch,), count) if lengths is None else lengths
            for lengths, count in ((self.query_lengths, queries), (self.key_lengths, keys))
        ]
        sides = [queries + keys if side is None else side for side in (self.before, self.after)]
        tensors = [x.transpose(1, 2) for x in (self.q, self.k, self.v)]
        return [
            *(x.numpy() for x in (*tensors, bias, ~mask[:, None, None])),
            np.float32(self.scale),
            *(x.int().numpy() for x in ends),
            *(np.int32(side) for side in sides),
            self.grad.transpose(1, 2).numpy(),
        ]


def asked(kind: int, number: int) -> Asked:
    (queries, keys, kv_heads, ratio, width), causal = KINDS[kind]
    rng = torch.Generator().manual_seed(1000 * kind + number)

    def maybe(made, share=0.5):
        return made if torch.rand((), generator=rng) < share else None

    def up_to(count, *shape):
        return torch.randint(count + 1, shape, generator=rng)

    def normal(*shape):
        return torch.randn(shape, generator=rng)

    heads = kv_heads * ratio
    before, after = (maybe(int(up_to(side))) for side in (keys, keys))
    if maybe(True, 0.2):
        after = before  # which libraries give as one number
    one = Asked(
        q=normal(BATCH, heads, queries, width),
        k=normal(BATCH, kv_heads, keys, width),
        v=normal(BATCH, kv_heads, keys, width),
        grad=normal(BATCH, heads, queries, width),
        causal=causal,
        bias=maybe(normal(1, heads, queries, keys), 0.3),
        padding=maybe(torch.rand(BATCH, keys, generator=rng) < 0.3, 0.3),
        scale=float(normal()),
        before=before,
        after=after,
        key_lengths=maybe(up_to(keys, BATCH)),
        query_lengths=maybe(up_to(queries, BATCH)),
    )
    # nothing comes back to queries of which JAX makes something else
    return replace(one, grad=one.grad.masked_fill(one.unseeing | one.past, 0))


@pytest.fixture(scope="module")
def answered() -> list[tuple[Asked, list[Tensor]]]:
    """Requests, and what JAX gives: the output, and gradients of q, k, v and the bias if any."""
    jax = pytest.importorskip("jax", reason="its attention is a peer: pip install 'attnlab[dev]'")

    def one(q, k, v, bias, mask, scale, queries, keys, before, after, grad, causal):
        def attend(q, k, v, bias):
            return jax.nn.dot_product_attention(
                *(q, k, v, bias, mask),
                scale=scale,
                is_causal=causal,
                query_seq_lengths=queries,
                key_value_seq_lengths=keys,
                local_window_size=(before, after),
            )

        out, pull = jax.vjp(attend, q, k, v, bias)
        return out, *pull(grad)

    many = jax.jit(jax.vmap(one, in_axes=(0,) * 11 + (None,)), static_argnums=11)
    found = []
    for kind, (_, causal) in enumerate(KINDS):
        requests = [asked(kind, number) for number in range(EACH)]
        told = (np.stack(part) for part in zip(*(r.for_jax() for r in requests), strict=True))
        out, *grads, of_bias = (torch.from_numpy(np.array(x)) for x in many(*told, causal))
        heads_first = [x.transpose(2, 3) for x in (out, *grads)]
        for number, request in enumerate(requests):
            theirs = [x[number] for x in heads_first]
            found.append((request, theirs if request.bias is None else [*theirs, of_bias[number]]))
    return found


def ours(one: Asked, path: str) -> list[Tensor]:
    leaves = [x.double().requires_grad_() for x in (one.q, one.k, one.v)]
    options = one.options
    if one.bias is not None:
        leaves.append(one.bias.double().requires_grad_())
        options["bias"] = leaves[-1]
    out = attention(*leaves[:3], path=path, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, one.grad.double())]


def taken_by(path: str, one: Asked) -> bool:
    q = one.q.double().requires_grad_()
    return PATHS[path].refusal(request_of(q, one.k.double(), one.v.double(), **one.options)) is None


@pytest.mark.parametrize("path", PATHS)
def test_output_and_gradients_are_those_of_jax(path, answered):
    taken = [(request, theirs) for request, theirs in answered if taken_by(path, request)]
    for request, theirs in taken:
        out, *grads = ours(request, path)
        group = request.q.shape[1] // request.k.shape[1]
        mean = request.v.double().mean(2, keepdim=True).repeat_interleave(group, 1)
        out = out.where(~request.unseeing, mean).masked_fill(request.past, 0)
        for mine, other in zip([out, *grads], theirs, strict=True):
            error, size = (mine - other).abs().max(), other.abs().max()
            assert error <= LIMIT * max(1, size), f"off by {error:.1e}: {request}"
    # native and tiled refuse a bias that is a tensor, flex gradients on the CPU, triton float64
    some = sum(request.bias is None for request, _ in answered)
    assert len(answered) == 528
    counts = {"native": some, "tiled": some, "flex": 0, "triton": 0}
    assert len(taken) == counts.get(path, len(answered))


def test_requests_are_of_all_kinds():
    requests = [asked(kind, number) for kind in range(len(KINDS)) for number in range(EACH)]
    for part in ("bias", "padding", "before", "after", "key_lengths", "query_lengths"):
        given = sum(getattr(one, part) is not None for one in requests)
        assert len(requests) / 5 < given < len(requests) * 4 / 5, part
    assert sum(bool(one.unseeing.any()) for one in requests) > len(requests) / 5
