"""The gated delta rule: each head keeps a state of constant size in place of keys and values.

    S[t] = α[t] (I − β[t] k[t] k[t]ᵀ) S[t−1] + β[t] k[t] v[t]ᵀ,    o[t] = S[t]ᵀ q[t]

With ‖k‖ = 1 that is: forget a part of everything (the decay α), read what is held at the key, and
replace a part of it (the strength β) by the value. `recurrent` is this definition, one token after
another. `chunked` equals it in products of matrices (Yang et al. 2024, with the decay of Gated
DeltaNet). What token i of a chunk writes, u[i] = β[i] (v[i] − α[i] S[i−1]ᵀ k[i]), depends on what
those before it in the chunk write, and on the state S before the chunk. With D[i, j] = Π α over the
tokens after j, up to i, and γ[i] = Π α from the chunk's first token to i:

    u[i] + β[i] Σ_{j<i} D[i, j] (k[i]·k[j]) u[j] = β[i] (v[i] − γ[i] Sᵀ k[i])
    o[i] = γ[i] Sᵀ q[i] + Σ_{j≤i} D[i, j] (q[i]·k[j]) u[j]

The first line is a triangular system. All products of keys and queries are made for all chunks at
once; the state goes from chunk to chunk.

A token of strength 0 and log decay 0 leaves the state as it is: padding. A log decay of minus
infinity forgets everything: a new document.

Axes: b batch, h heads, t time, d key width, e value width, n chunks, c tokens of a chunk.
Cost: O(t · (c · (d + e) + d · e)) time; O(t · (c + d + e) + n · d · e) memory to train.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# of 32 tokens: a fifth faster in training, but float32 rounds more than twice as badly as the
# definition does, where keys are alike
CHUNK = 16
FEW_TOKENS = 4  # up to so many, the definition is faster than the system of a chunk


def delta(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    v: Float[Tensor, "b h t e"],
    log_decay: Float[Tensor, "b h t"],
    strength: Float[Tensor, "b h t"],
    state: Float[Tensor, "b h d e"] | None = None,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h d e"]]:
    """The outputs and the last state. Half precisions are computed, and states kept, in float32."""
    path = recurrent if q.shape[2] <= FEW_TOKENS else chunked
    dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, log_decay, strength = (one.to(wide) for one in (q, k, v, log_decay, strength))
        out, state = path(q, k, v, log_decay, strength, state)
    return out.to(dtype), state


def recurrent(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    v: Float[Tensor, "b h t e"],
    log_decay: Float[Tensor, "b h t"],
    strength: Float[Tensor, "b h t"],
    state: Float[Tensor, "b h d e"] | None = None,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h d e"]]:
    """The definition, slow and plain: one token after another."""
    state = empty_state(k, v) if state is None else state
    outs = [v[:, :, :0]]
    for at in range(q.shape[2]):
        query, key = q[:, :, at, :, None], k[:, :, at, :, None]
        state = log_decay[:, :, at, None, None].exp() * state
        held = (key * state).sum(2, keepdim=True)
        state = state + key * (strength[:, :, at, None, None] * (v[:, :, at, None] - held))
        outs.append((query * state).sum(2, keepdim=True))
    return torch.cat(outs, 2), state


def chunked(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    v: Float[Tensor, "b h t e"],
    log_decay: Float[Tensor, "b h t"],
    strength: Float[Tensor, "b h t"],
    state: Float[Tensor, "b h d e"] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h d e"]]:
    """The same in chunks of equal length, of at most `chunk` tokens."""
    state = empty_state(k, v) if state is None else state
    time = q.shape[2]
    count, size = chunks(time, chunk)
    if not count:
        return v, state
    rest = count * size - time  # tokens that change nothing
    q, k, v = (F.pad(one, (0, 0, 0, rest)).unflatten(2, (count, size)) for one in (q, k, v))
    log_decay, strength = (
        F.pad(one, (0, rest)).unflatten(2, (count, size)) for one in (log_decay, strength)
    )
    between = decays(log_decay)  # D
    since = log_decay.cumsum(-1).exp()[..., None]  # γ
    system = strength[..., None] * between * (k @ k.mT)
    values, erased = strength[..., None] * v, strength[..., None] * since * k
    seen, queries = between * (q @ k.mT), since * q
    keys, kept = between[..., -1, :, None] * k, since[..., -1:, :]
    outs = []
    # unbound, since the gradient of a slice is as large as what it was taken from
    parts = (one.unbind(2) for one in (system, values, erased, seen, queries, keys, kept))
    for matrix, value, erase, pairs, query, key, keep in zip(*parts, strict=True):
        right = value - erase @ state
        update = torch.linalg.solve_triangular(matrix, right, upper=False, unitriangular=True)
        outs.append(query @ state + pairs @ update)
        state = keep * state + key.mT @ update
    return torch.cat(outs, 2)[:, :, :time], state


def chunks(time: int, chunk: int = CHUNK) -> tuple[int, int]:
    """How many chunks there are, and of how many tokens: the last one is not much shorter."""
    count = -(-time // chunk)
    return count, -(-time // count) if count else 0


def decays(log_decay: Float[Tensor, "*b c"]) -> Float[Tensor, "*b c c"]:
    """What is left at token i of what is written at token j; 0 at tokens before j.

    Each is the exponential of a sum of its own terms. The difference of two sums from the first
    token on would be exact only to the rounding of these, which a single strong decay makes large.
    """
    size = log_decay.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril(-1)
    terms = log_decay[..., None].expand(*log_decay.shape, size).masked_fill(~later, 0)
    return terms.cumsum(-2).masked_fill(later.mT, -torch.inf).exp()


def weights(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    log_decay: Float[Tensor, "b h t"],
    strength: Float[Tensor, "b h t"],
) -> Float[Tensor, "b h t t"]:
    """w with o[t] = Σ_s w[t, s] v[s], by the definition: outputs for the rows of an identity.

    They can be negative, and do not add up to 1.
    """
    ones = torch.eye(q.shape[2], dtype=q.dtype, device=q.device)
    return recurrent(q, k, ones.expand(*q.shape[:2], *ones.shape), log_decay, strength)[0]


def empty_state(k: Tensor, v: Tensor) -> Float[Tensor, "b h d e"]:
    return k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
