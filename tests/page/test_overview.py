"""All heads at once: pictures of their weights, and names for heads that were built to have one."""

import base64
from itertools import pairwise

import pytest
import torch
from page.pages import client, name_of, post, serving

from attnlab.attention import patterns
from attnlab.attention.heads import HeadedAttention
from attnlab.page import inspection, overview
from attnlab.page.inspection import ModelInput

TEXT = "the cat sat on the mat, and then it ran away"


def seen(text=TEXT, **choices):
    given = ModelInput.random_model(choices, text)
    *_, inspected = inspection.read(given.model, given.ids, given.tokens)
    *_, found = overview.overview(inspected, given)
    return inspected, found


def cells(picture, side):
    return torch.tensor(list(base64.b64decode(picture["cells"]))).view(side, side)


def test_a_short_text_is_pictured_cell_by_cell():
    inspected, found = seen("who sees whom?", heads=4, kv_heads=2, window=4, depth=2)
    assert found["side"] == 14 and (found["layers"], found["heads"]) == (2, 4)
    assert [(one["layer"], one["head"]) for one in found["pictures"]] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    hidden = ~inspection.layer_mask(inspected.layers[0], 14)
    for one in found["pictures"]:
        weights = inspection.weights(inspected, one["layer"])[one["head"]]
        shown = cells(one, 14)
        assert (shown[hidden] == 0).all() and (shown[~hidden] > 0).all()
        assert torch.allclose((shown[~hidden] - 1) / 254, weights[~hidden], atol=0.003)


def test_a_long_text_is_pictured_by_the_largest_weight_of_each_block():
    inspected, found = seen("abcdefgh" * 12, depth=1)
    weights = inspection.weights(inspected, 0)[0].double()
    shown = cells(found["pictures"][0], 32)
    assert found["side"] == 32 and shown[3, 7] == 0
    largest = weights[3 * 20 : 3 * 21, 3 * 5 : 3 * 6].max()
    assert abs((shown[20, 5] - 1) / 254 - largest) < 0.003


def test_heads_of_a_model_are_named_by_what_their_weights_do(monkeypatch):
    """The weights are made: head 0 attends to the token before, head 1 is an induction head."""
    original = HeadedAttention.weights

    def made(self, x, options):
        weights = torch.zeros_like(original(self, x, options))
        length = x.shape[1]
        for row in range(len(weights)):
            weights[row, 0].diagonal(-1).fill_(1.0)
            ids = reads[row % len(reads)] if length == len(reads[0]) else given_ids
            for i in range(length):
                after = [j for j in range(1, i + 1) if ids[j - 1] == ids[i]]
                weights[row, 1, i, after[-1] if after else i] = 1.0
        weights[:, :, 0, 0] = 1.0
        return weights

    given = ModelInput.random_model({"heads": 2, "depth": 1}, TEXT)
    given_ids = given.ids
    reads = patterns.repeats(sorted(set(given.ids)), None, None).ids.tolist()
    monkeypatch.setattr(HeadedAttention, "weights", made)
    *_, inspected = inspection.read(given.model, given.ids, given.tokens)
    *_, found = overview.overview(inspected, given)
    assert [one["does"] for one in found["pictures"]] == ["previous token", "induction"]


@pytest.mark.parametrize(
    ("text", "choices", "reason"),
    [
        ("abcab" * 5, {}, "different tokens"),
        (TEXT, {"window": 5}, "no window reaches"),
    ],
)
def test_where_induction_cannot_be_measured_that_is_said(text, choices, reason):
    _, found = seen(text, depth=1, **choices)
    for one in found["pictures"]:
        score = one["scores"][-1]
        assert score["pattern"] == "induction" and score["weight"] is None
        assert not score["clear"] and reason in score["reason"]


def test_very_many_heads_are_cut_with_a_sentence(monkeypatch):
    monkeypatch.setattr(overview, "MOST", 9)
    monkeypatch.setattr(overview, "MANY", 8)
    _, found = seen("abcdefghijklmnopqrstuv", heads=4, depth=3)
    assert (found["layers"], found["side"], len(found["pictures"])) == (2, 16, 8)
    assert found["note"] == "Shown are the first 2 of 3 layers."


@pytest.fixture(scope="module")
def opened():
    with serving() as server, client(server) as one:
        yield one


def test_the_heads_of_a_run_are_asked_for_once(opened):
    asked = {"source": {"run": name_of("people")}, "text": "Where was Ann Hart born?"}
    answers = [post(opened, "/api/look/heads", **asked) for _ in range(2)]
    assert all(status == 200 for status, _ in answers)
    assert all(one == other for (_, one), (_, other) in pairwise(answers))
    found = answers[0][1]
    assert (found["layers"], found["heads"], found["side"]) == (2, 2, 24)
    assert [score["pattern"] for score in found["pictures"][0]["scores"]] == [*patterns.PATTERNS]
    assert found["definitions"] == patterns.PATTERNS
