"""Attention patterns: a head that was made to do something has its name, and no other head has."""

import pytest
import torch

from attnlab.attention import patterns
from attnlab.kernels.mask import visible

TEXT = [ord(letter) for letter in "the cat sat on the mat, and then it ran away"]


def mask_of(count, window=None):
    at = torch.arange(count)
    return visible(at, at, True, window)


def even(count, window=None):
    mask = mask_of(count, window).double()
    return mask / mask.sum(-1, keepdim=True)


def leaning(targets, window=None, share=0.9):
    """A head that puts `share` on the targets where there are some, the rest spread evenly."""
    spread = even(len(targets), window)
    keys = (targets & mask_of(len(targets), window)).double()
    there = keys.sum(-1, keepdim=True)
    return torch.where(there > 0, (1 - share) * spread + share * keys / there.clamp(min=1), spread)


def distance(count):
    at = torch.arange(count)
    return at[:, None] - at[None, :]


def earlier_same(ids):
    tokens = torch.tensor(ids)
    return (tokens[:, None] == tokens[None, :]) & (distance(len(ids)) > 0)


def scored(weights, ids=TEXT, window=None):
    [found] = patterns.text_scores(weights[None], ids, mask_of(len(ids), window))
    return {one.pattern: one for one in found}


HEADS = {
    "previous token": lambda apart: apart == 1,
    "first token": lambda apart: (torch.arange(len(apart))[None] == 0) & (apart > 0),
    "own token": lambda apart: apart == 0,
    "same token": lambda apart: earlier_same(TEXT),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_does_one_thing_has_its_name_and_no_other(name):
    found = scored(leaning(HEADS[name](distance(len(TEXT)))))
    assert patterns.in_words(list(found.values())) == name
    assert found[name].weight > 0.9 > 4 * found[name].even and found[name].reason == ""


def test_the_score_is_the_mean_weight_over_queries_that_have_such_a_key():
    count = len(TEXT)
    weights = torch.rand(count, count, generator=torch.Generator().manual_seed(3)).double()
    weights = weights * mask_of(count)
    weights = weights / weights.sum(-1, keepdim=True)
    found = scored(weights)["same token"]
    rows = [i for i in range(2, count) if TEXT[i] in TEXT[:i]]
    on_keys = [sum(weights[i, j] for j in range(i) if TEXT[j] == TEXT[i]) for i in rows]
    spread = [TEXT[:i].count(TEXT[i]) / (i + 1) for i in rows]
    assert found.queries == len(rows)
    assert found.weight == pytest.approx(float(sum(on_keys)) / len(rows), rel=1e-12)
    assert found.even == pytest.approx(sum(spread) / len(rows), rel=1e-12)


@pytest.mark.parametrize("window", [None, 1, 2, 7])
def test_evenly_spread_attention_has_no_name(window):
    found = scored(even(len(TEXT), window), window=window)
    assert patterns.in_words(list(found.values())) == "not clear"
    assert all(one.reason for one in found.values())
    for one in found.values():
        assert one.weight is None or one.weight == pytest.approx(one.even, rel=1e-12)


def test_a_head_below_the_threshold_has_no_name_and_says_why():
    found = scored(leaning(distance(len(TEXT)) == 1, share=0.4))["previous token"]
    assert not found.clear and found.reason == "less than 50%"


def test_where_all_tokens_are_the_same_nothing_is_said_of_the_same_token():
    ids = [5] * 21
    found = scored(leaning(earlier_same(ids)), ids)["same token"]
    assert found.weight > 0.9 and not found.clear and "twice" in found.reason


def test_a_fixed_distance_is_not_taken_for_the_same_token():
    ids = [1, 2, 3, 4, 5] * 5  # where the same token is always five back
    found = scored(leaning(distance(len(ids)) == 5), ids)["same token"]
    assert found.weight > 0.9 and not found.clear and "fixed distance" in found.reason


def test_a_short_text_and_a_narrow_window_are_too_little_to_tell():
    found = scored(leaning(distance(6) == 1), TEXT[:6])["previous token"]
    assert found.queries == 4 and not found.clear and "it takes 8" in found.reason
    narrow = scored(even(len(TEXT), 1), window=1)
    assert all(one.queries == 0 and one.weight is None for one in narrow.values())
    first = scored(leaning(HEADS["first token"](distance(len(TEXT))), 5), window=5)["first token"]
    assert first.queries == 3 and not first.clear


def heads_on(sequences):
    """Weights [b, h, t, t]: induction, the same token, the token before, each distance, even."""
    count = sequences.ids.shape[1]
    apart = distance(count)
    rows = []
    for ids, targets in zip(sequences.ids.tolist(), sequences.targets, strict=True):
        fixed = [leaning(apart == back) for back in range(1, 30)]
        rows.append(
            torch.stack([leaning(targets), leaning(earlier_same(ids)), *fixed, even(count)])
        )
    return torch.stack(rows)


@pytest.mark.parametrize("room", [11, 17, 100])
def test_induction_is_told_from_every_fixed_distance(room):
    sequences = patterns.repeats(range(room), None, None)
    mask = mask_of(sequences.ids.shape[1])
    first, *others = patterns.induction_scores(heads_on(sequences), sequences, mask)
    assert first.clear and first.weight > 0.9
    assert not any(one.clear for one in others)


@pytest.mark.parametrize(
    ("room", "longest", "window"), [(50, None, None), (50, 31, None), (13, 40, None), (50, 48, 12)]
)
def test_sequences_repeat_with_distinct_tokens_within_what_the_model_reads(room, longest, window):
    tokens = list(range(100, 100 + room))
    found = patterns.repeats(tokens, longest, window)
    count = found.ids.shape[1]
    assert longest is None or count <= longest
    periods = []
    for ids, targets in zip(found.ids.tolist(), found.targets, strict=True):
        [back] = {i - j for i, j in targets.nonzero().tolist()}
        period = back + 1
        periods.append(period)
        assert len(set(ids[:period])) == period and set(ids) <= set(tokens)
        assert all(ids[i] == ids[i - period] for i in range(period, count))
        for i, j in targets.nonzero().tolist():
            assert ids[j - 1] == ids[i] and (window is None or i - j < window)
    assert len(set(periods)) == patterns.PERIODS
    assert torch.equal(found.ids, patterns.repeats(tokens, longest, window).ids)


@pytest.mark.parametrize(
    ("room", "longest", "window"), [(10, None, None), (50, 21, None), (50, None, 10)]
)
def test_without_room_for_a_period_there_are_no_sequences(room, longest, window):
    assert patterns.repeats(range(room), longest, window) is None


def test_without_causality_the_first_token_is_not_counted_as_attending_to_itself():
    whole = torch.ones(len(TEXT), len(TEXT), dtype=torch.bool)
    [found] = patterns.text_scores(whole[None].double() / len(TEXT), TEXT, whole)
    assert {one.pattern: one.queries for one in found}["first token"] == len(TEXT) - 1
