"""How close an additive score wᵀ tanh(W[k; q]) comes to the angle θ of key and query, and to cos θ.

Axes: k keys, q queries; vectors have two coordinates, and a third that is constant.
"""

from dataclasses import dataclass

import numpy as np
import torch

from attnlab.attention.scores import Additive
from attnlab.kernels import Request
from attnlab.theory.draw import Array, cached, frozen_module, largest, normal, softmax

TINY = 1e-9  # the length of a vector that is as good as 0
STEP = np.pi / 12  # between the directions of queries that a score is fitted to: 24 in a turn
Where = tuple[float, float, float]  # spread of the keys, shortest query, constant in the keys


@dataclass(frozen=True)
class Fit:
    """The best w for cos θ and the best for θ, with a given number of units."""

    outer: tuple[float, ...]  # the w for cos θ
    error: float  # the worst of cos θ, between the points that it was fitted to
    angle_error: float  # the worst of θ, in radians
    slack: float  # by which the error may fall below its lower bound
    angle_slack: float


def cosines(keys: Array, queries: Array) -> Array:
    lengths = np.linalg.norm(keys, axis=1)[:, None] * np.linalg.norm(queries, axis=1)
    return keys @ queries.T / lengths


def angles(keys: Array, queries: Array) -> Array:
    """Angles between vectors of two coordinates; near 0 and π arccos would lose digits."""
    across = np.abs(
        np.multiply.outer(keys[:, 0], queries[:, 1]) - np.outer(keys[:, 1], queries[:, 0])
    )
    return np.arctan2(across, keys @ queries.T)


@cached
def angle_fits(seed: int, shortest: float, steps: tuple[int, ...], where: Where) -> tuple[Fit, ...]:
    """A fit for each number of units; a larger score contains the units of the smaller ones."""
    for_key, for_query = units_of(seed, max(steps))
    keys, queries, targets = pairs(shortest, where, points=3)
    by_key, by_query = growth(keys @ for_key), growth(queries @ for_query)
    inner = tanh(by_key[:, None] * by_query).reshape(-1, max(steps))
    # a little more on the diagonal keeps w small where units nearly coincide
    gram = inner.T @ inner + 1e-10 * len(inner) * np.eye(max(steps))
    wanted = inner.T @ targets.reshape(-1, 2)
    outers = [np.linalg.solve(gram[:n, :n], wanted[:n]) for n in steps]

    keys, queries, targets = pairs(shortest, where, points=4)
    side_by_side = np.hstack([np.pad(w, ((0, max(steps) - len(w)), (0, 0))) for w in outers])
    by_key, by_query = growth(keys @ for_key), growth(queries @ for_query)
    # Σ w tanh = Σ w − 2 Σ w/(1 + e^(2x)), the first sum once; a key at a time stays in the caches
    rows = [1 / (1 + one * by_query) @ side_by_side for one in by_key]
    scored = side_by_side.sum(axis=0) - 2 * np.stack(rows)
    off = np.abs(scored - np.tile(targets, len(steps)))
    errors = off.max(axis=(0, 1)).reshape(-1, 2).tolist()
    # what a query of this length can change; rounding, d_s · 2e-16 of Σ |w|, is less
    lengths = np.linalg.norm(for_query, axis=0)
    slack = [(TINY * lengths[: len(w)] @ np.abs(w)).tolist() for w in outers]
    found = zip(outers, errors, slack, strict=True)
    return tuple(Fit(tuple(w[:, 0].tolist()), *both, *less) for w, both, less in found)


def log_weights_off(seed: int, shortest: float, where: Where, outer: tuple[float, ...]) -> float:
    """Largest difference of log-weights: our module with this w, and a softmax of cos θ."""
    for_key, for_query = units_of(seed, len(outer))
    keys, queries, targets = pairs(shortest, where, points=4)
    module = frozen_module(lambda: Additive(width=len(outer)).build(1, 3))
    for name, value in (("for_key", for_key), ("for_query", for_query), ("outer", np.array(outer))):
        module.get_parameter(name).copy_(torch.from_numpy(value))
    q, k = torch.from_numpy(queries)[None, None], torch.from_numpy(keys)[None, None]
    weights = module.weights(Request(q=q, k=k, v=k, causal=False))[0, 0].numpy()
    return largest(np.log(weights) - np.log(softmax(targets[:, :, 0].T)))


def growth(x: Array) -> Array:
    """e^(2x): for a sum of x it is a product, which is faster than a tanh of every sum."""
    return np.exp(2 * x)


def tanh(growth: Array) -> Array:
    """tanh x from e^(2x), with an error of one rounding of 1."""
    return 1 - 2 / (1 + growth)


def units_of(seed: int, count: int) -> tuple[Array, Array]:
    """W for keys and for queries, each [3, unit]."""
    return normal(seed, "key", count, 3).T, normal(seed, "query", count, 3).T


def pairs(nearest: float, where: Where, points: int) -> tuple[Array, Array, Array]:
    """Keys [k, 3], queries [q, 3] and cos θ and θ [k, q, 2] of the first two coordinates."""
    spread, shortest, constant = where
    directions = 6 * points - 5  # odd, so that the axis is one of them; queries: see STEP
    keys = fan(spread, directions, nearest, points)
    queries = fan(180.0, 2 * directions - 1, shortest, points)
    targets = np.stack([cosines(keys, queries), angles(keys, queries)], axis=2)
    return np.insert(keys, 2, constant, axis=1), np.insert(queries, 2, 0, axis=1), targets


def fan(spread: float, directions: int, shortest: float, points: int) -> Array:
    angles = np.radians(np.linspace(-spread, spread, directions))
    unit = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (np.linspace(shortest, 1, points)[:, None, None] * unit).reshape(-1, 2)
