"""Attention patterns: what a head does in words where that is clear, as a score with a threshold.

Axes: b sequences, h heads, t tokens: query i, key j.

A pattern names keys for a query: the token before it, the first one, … Its score is the mean
attention weight on these keys, over the queries that attend to one of them and to LEAST_KEYS keys
in all. `even` is what evenly spread attention would put there. A pattern is clear when

    there are LEAST_QUERIES such queries,
    the score is CLEAR or more,
    the score is at least twice `even`, and
    for the patterns by content, no fixed distance i - j holds half of the score.

Which tokens repeat in a text, and how far apart, is chance; so induction is scored on random
sequences that repeat, each with a period of its own (Elhage et al. 2021, Olsson et al. 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab import counter_rng

CLEAR = 0.5
LEAST_KEYS = 3  # so that the token itself, the one before it and the first one are three keys
LEAST_QUERIES = 8
PERIODS = 4  # random sequences, each with its own period
LONGEST_PERIOD, SHORTEST_PERIOD = 24, LEAST_QUERIES
LEAST_TOKENS = SHORTEST_PERIOD + PERIODS - 1  # distinct ones, for the longest of the periods

PATTERNS = {  # the mean attention weight on …
    "previous token": "the token before the query",
    "first token": "the first token of the text",
    "own token": "the query's own token",
    "same token": "earlier occurrences of the query's token",
    "induction": "the token after an earlier occurrence of the query's token, in random sequences "
    "that repeat",
}
BY_CONTENT = ("same token", "induction")
RULE = (
    "The score of a pattern is the mean attention weight on the keys that it names, over the "
    f"queries that attend to one of them and to {LEAST_KEYS} keys or more. It is clear with "
    f"{LEAST_QUERIES} such queries or more, a score of {CLEAR:.0%} or more, and at least twice "
    "what evenly spread attention puts there; for the same token and for induction, no fixed "
    "distance may hold half of the score. Induction is scored on random sequences that repeat, "
    f"made of the tokens of the text if it has {LEAST_TOKENS} different ones, else of all tokens "
    "of the model."
)


@dataclass(frozen=True)
class Score:
    """Of one head and one pattern; without a query to count there is no number."""

    pattern: str
    weight: float | None  # the mean attention weight on the keys of the pattern
    even: float | None  # of evenly spread attention
    queries: int
    clear: bool
    reason: str  # why it is not clear; empty if it is


@dataclass(frozen=True)
class Repeats:
    """Random sequences that repeat: row b has a period of its own."""

    ids: Int[Tensor, "b t"]
    targets: Bool[Tensor, "b t t"]  # the keys that induction attends to


def text_scores(
    weights: Float[Tensor, "h t t"], ids: Sequence[int], visible: Bool[Tensor, "t t"]
) -> list[list[Score]]:
    """The scores of every head over a text, pattern by pattern; induction has its own function."""
    tokens = torch.tensor(ids)
    place = torch.arange(len(tokens))
    distance = place[:, None] - place[None, :]
    targets = {
        "previous token": distance == 1,
        "first token": (place[None, :] == 0) & (distance != 0),
        "own token": distance == 0,
        "same token": (tokens[:, None] == tokens[None, :]) & (distance > 0),
    }
    found = [_scores(name, weights[None], keys[None], visible) for name, keys in targets.items()]
    return [list(scores) for scores in zip(*found, strict=True)]


def repeats(
    tokens: Sequence[int], longest: int | None, window: int | None, seed: int = 0
) -> Repeats | None:
    """Sequences drawn from distinct tokens; None where there is no room for a period.

    `longest` is how many tokens the model reads, `window` how many keys a query attends to. No
    token is drawn twice within a period, so each has one earlier occurrence a period before it.
    """
    room = min(LONGEST_PERIOD, len(set(tokens)))
    if longest is not None:
        room = min(room, longest // 2)
    if window is not None:
        room = min(room, window)
    periods = list(range(room, room - PERIODS, -1))
    if periods[-1] < SHORTEST_PERIOD:
        return None
    distinct = sorted(set(tokens))
    place = torch.arange(2 * room)
    distance = place[:, None] - place[None, :]
    ids, targets = [], []
    for row, period in enumerate(periods):
        order = counter_rng.permutation(len(distinct), seed, "a sequence that repeats", row)
        drawn = torch.tensor([distinct[at] for at in order[:period]])
        ids.append(drawn[place % period])
        second = (place >= period) & (place < 2 * period)
        targets.append(second[:, None] & (distance == period - 1))
    return Repeats(torch.stack(ids), torch.stack(targets))


def induction_scores(
    weights: Float[Tensor, "b h t t"], sequences: Repeats, visible: Bool[Tensor, "t t"]
) -> list[Score]:
    """One for every head of a layer that has read the sequences."""
    return _scores("induction", weights, sequences.targets, visible)


def unmeasured(pattern: str, reason: str) -> Score:
    return Score(pattern, None, None, 0, False, reason)


def in_words(scores: Sequence[Score]) -> str:
    """What a head does: the clear patterns, the highest score first, or that none is clear."""
    clear = sorted((one for one in scores if one.clear), key=lambda one: -(one.weight or 0))
    return " and ".join(one.pattern for one in clear) or "not clear"


def _scores(
    pattern: str,
    weights: Float[Tensor, "b h t t"],
    targets: Bool[Tensor, "b t t"],
    visible: Bool[Tensor, "t t"],
) -> list[Score]:
    keys = targets & visible
    counted = keys.any(-1) & (visible.sum(-1) >= LEAST_KEYS)  # [b, t]
    queries, heads = int(counted.sum()), weights.shape[1]
    if not queries:
        return [unmeasured(pattern, "no query here attends to such a key")] * heads
    weights = weights.double()
    on_keys = (weights * keys[:, None]).sum(-1)  # [b, h, t]
    means = (on_keys * counted[:, None]).sum((0, 2)) / queries
    shares = keys.sum(-1).double() / visible.sum(-1).clamp(min=1)
    even = float(shares[counted].mean())
    fixed = _best_distance(weights, counted) if pattern in BY_CONTENT else torch.zeros(heads)
    found = []
    for weight, one_distance in zip(means.tolist(), fixed.tolist(), strict=True):
        reason = ""
        if queries < LEAST_QUERIES:
            reason = f"only {queries} queries attend to such a key; it takes {LEAST_QUERIES}"
        elif weight < CLEAR:
            reason = f"less than {CLEAR:.0%}"
        elif weight < 2 * even:
            reason = "less than twice what evenly spread attention puts there"
        elif one_distance >= weight / 2:
            reason = "a fixed distance between query and key explains it as well"
        found.append(Score(pattern, weight, even, queries, not reason, reason))
    return found


def _best_distance(
    weights: Float[Tensor, "b h t t"], counted: Bool[Tensor, "b t"]
) -> Float[Tensor, " h"]:
    """The most that one distance between query and key holds of the attention, by head."""
    time, queries = weights.shape[-1], counted.sum()
    held = [
        (weights.diagonal(-distance, dim1=-2, dim2=-1) * counted[:, None, distance:]).sum((0, 2))
        for distance in range(1, time)
    ]
    if not held:
        return torch.zeros(weights.shape[1])
    return torch.stack(held).amax(0) / queries
