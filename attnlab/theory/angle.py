"""How close an additive score wᵀ tanh(W[k; q]) comes to cos θ, the angle of key and query.

Axes: k keys, q queries; vectors have two coordinates, and a third that is constant.
"""

import numpy as np
import torch

from attnlab.attention.scores import Additive
from attnlab.theory.draw import Array, built, kept, largest, normal, softmax

TINY = 1e-9  # the length of a vector that is as good as 0
Fit = tuple[float, float, float]
Where = tuple[float, float, float]  # spread of the keys, shortest query, constant in the keys


def cosines(keys: Array, queries: Array) -> Array:
    lengths = np.linalg.norm(keys, axis=1)[:, None] * np.linalg.norm(queries, axis=1)
    return keys @ queries.T / lengths


@kept
def angle_fit(seed: int, shortest: float, units: int, where: Where) -> Fit:
    """The worst error of the best w, that of our module's log-weights, and what excuses it."""
    # a larger score has the units of a smaller one, and more
    for_key, for_query = (normal(seed, side, units, 3).T for side in ("key", "query"))
    keys, queries, cosine = pairs(shortest, where, points=3)
    inner = np.tanh((keys @ for_key)[:, None] + queries @ for_query).reshape(-1, units)
    # a little more on the diagonal keeps w small where units nearly coincide
    gram = inner.T @ inner + 1e-10 * len(inner) * np.eye(units)
    outer = np.linalg.solve(gram, inner.T @ cosine.ravel())

    keys, queries, cosine = pairs(shortest, where, points=4)
    scores = np.tanh((keys @ for_key)[:, None] + queries @ for_query) @ outer
    module = built(lambda: Additive(width=units).build(1, 3), seed, "additive")
    for name, value in (("for_key", for_key), ("for_query", for_query), ("outer", outer)):
        module.get_parameter(name).copy_(torch.from_numpy(value))
    q, k = torch.from_numpy(queries)[None, None], torch.from_numpy(keys)[None, None]
    weights = module(q, k, k, causal=False, return_weights=True)[1][0, 0].numpy()
    off = largest(np.log(weights) - np.log(softmax(cosine.T)))
    # what a query of this length can change; rounding, d_s · 2e-16 of Σ |w|, is less
    excused = TINY * float(np.abs(outer) @ np.linalg.norm(for_query, axis=0))
    return largest(scores - cosine), off, excused


def pairs(nearest: float, where: Where, points: int) -> tuple[Array, Array, Array]:
    """Keys [k, 3], queries [q, 3] and the cos θ [k, q] of the first two coordinates."""
    spread, shortest, constant = where
    directions = 6 * points - 5  # odd, so that the axis is one of them
    keys = fan(spread, directions, nearest, points)
    queries = fan(180.0, 2 * directions - 1, shortest, points)
    cosine = cosines(keys, queries)
    return np.insert(keys, 2, constant, axis=1), np.insert(queries, 2, 0, axis=1), cosine


def fan(spread: float, directions: int, shortest: float, points: int) -> Array:
    angles = np.radians(np.linspace(-spread, spread, directions))
    unit = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (np.linspace(shortest, 1, points)[:, None, None] * unit).reshape(-1, 2)
