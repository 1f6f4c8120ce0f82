"""Looking at attention: weights that are the model's own, and influence measured from outside."""

import pytest
import torch
from page.pages import client, name_of, post, serving

from attnlab import registry
from attnlab.attention import scores
from attnlab.kernels.mask import visible
from attnlab.page import inspection

TEXT = "who sees whom?"


def inspected(text=TEXT, **choices):
    model, ids = inspection.random_model(inspection.mechanism(choices), text)
    for found in inspection.read(model, ids, list(text)):
        if found is not None:
            return found
    raise AssertionError


@pytest.mark.parametrize("score", [one.name for one in registry.options("score")])
@pytest.mark.parametrize("positions", [one.name for one in registry.options("positions")])
def test_weights_are_shares_of_what_may_be_seen(score, positions):
    found = inspected(score=score, positions=positions, window=4, heads=4, kv_heads=2)
    at = torch.arange(len(TEXT))
    hidden = ~visible(at, at, True, 4)
    for layer in range(2):
        weights = inspection.weights(found, layer)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)  # float32
        assert (weights[:, hidden] == 0).all()


@pytest.mark.parametrize("choices", [{}, {"window": 3}, {"heads": 4, "kv_heads": 1}])
def test_weights_times_values_is_what_the_layer_gave_in_the_model(choices):
    found = inspected(**choices)
    given = []
    hooks = [
        block.attention.register_forward_hook(lambda module, x, out: given.append(out))
        for block in found.model.blocks
    ]
    with torch.inference_mode():
        found.model(torch.tensor([[sorted(set(TEXT)).index(letter) for letter in TEXT]]))
    for hook in hooks:
        hook.remove()
    for layer, out in enumerate(given):
        weights = inspection.weights(found, layer)
        attention = found.model.blocks[layer].attention
        with torch.inference_mode():
            v = attention._split(attention.project(found.inside[layer][0]))[2]
            v = v.repeat_interleave(attention.heads // attention.kv_heads, dim=1)[0]
            merged = attention.merge((weights @ v).transpose(0, 1).flatten(1))
        assert torch.allclose(merged, out[0], atol=1e-5)


def test_influence_is_what_replacing_each_token_alone_does():
    found = inspected(window=3, depth=2)
    model = found.model.double()
    ids = torch.tensor([sorted(set(TEXT)).index(letter) for letter in TEXT])
    with torch.inference_mode():
        before = model(ids[None])[0]
        for j in range(len(ids)):
            changed = ids.clone()
            changed[j] = (changed[j] + 1) % model.settings.vocabulary
            moved = (model(changed[None])[0] - before).abs().amax(-1)
            column = torch.tensor([row[j] for row in found.influence], dtype=torch.float64)
            assert torch.allclose(column, moved, rtol=1e-3, atol=1e-9)


def test_two_layers_of_a_window_of_3_reach_5_tokens_and_no_further():
    influence = torch.tensor(inspected(window=3, depth=2).influence)
    at = torch.arange(len(TEXT))
    reach = visible(at, at, True, 5)
    assert (influence[~reach] == 0).all() and (influence[reach] > 0).all()


def test_the_same_choices_give_the_same_model_and_another_seed_another():
    one, again, other = (inspection.weights(inspected(seed=seed), 1) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_random_attention_is_uneven_enough_to_look_at():
    last = inspection.weights(inspected(), 0)[:, -1]
    assert (last.amax(-1) > 2 / len(TEXT)).all()


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"heads": 0}, "heads is 0"),
        ({"heads": 3, "width": 64}, "does not divide"),
        ({"heads": 4, "kv_heads": 3}, "not a multiple"),
        ({"width": 10**9}, "width is"),
        ({"depth": 2.0}, "depth is 2.0"),
        ({"window": 0}, "window is 0"),
        ({"window": True}, "window is True"),
        ({"positions": "rotery"}, "did you mean 'rotary'"),
        ({"score": ["x"]}, "score is"),
        ({"head": 1}, "did you mean 'heads'"),
        ({"heads": 16, "width": 16}, "pair"),
    ],
)
def test_a_mechanism_that_cannot_be_is_one_line(choices, reason):
    with pytest.raises(ValueError, match=reason):
        inspected(**choices)


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def opened(server):
    with client(server) as one:
        yield one


def test_a_run_is_looked_at_layer_by_layer(opened):
    name = name_of("text-")
    asked = {"source": {"run": name}, "text": "The list", "layer": 1, "head": 1}
    status, found = post(opened, "/api/look", **asked)
    assert status == 200 and found["tokens"] == list("The list")
    assert (found["layers"], found["heads"]) == (2, 2)
    for row, (weights, seen) in enumerate(zip(found["weights"], found["mask"], strict=True)):
        assert sum(weights) == pytest.approx(1, abs=1e-4)
        assert seen == [1] * (row + 1) + [0] * (7 - row)
        assert not any(weights[row + 1 :])
    assert len(found["next"]) == 12 and found["next"][0]["probability"] > 0
    assert found["paths"] and found["influence"][3][4] == 0 < found["influence"][4][3]
    other = post(opened, "/api/look", **{**asked, "layer": 0})[1]
    assert other["weights"] != found["weights"] and other["influence"] == found["influence"]


def test_a_long_text_is_cut_with_a_sentence_and_the_maps_fit_each_other(opened):
    asked = {"source": {"run": name_of("text-")}, "text": "The list holds " * 40}
    status, found = post(opened, "/api/look", **asked)
    assert status == 200 and len(found["tokens"]) == len(found["weights"]) == 256
    assert found["cut"] == "The text has 600 tokens; shown are the first 256."
    assert len(found["influence"] or found["tokens"]) == 256


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"layer": 2}, 400),
        ({"head": -1}, 400),
        ({"text": ""}, 400),
        ({"text": "e" * 20_001}, 400),
        ({"text": "The ☃"}, 400),
        ({"source": {"run": "../x"}}, 404),
        ({"source": {"run": ""}}, 400),
        ({"source": {}}, 400),
        ({"source": {"run": "x", "mechanism": {}}}, 400),
        ({"source": {"mechanism": []}}, 400),
    ],
)
def test_a_wrong_question_is_one_line(opened, change, status):
    asked = {"source": {"run": name_of("text-")}, "text": "The", "layer": 0, "head": 0}
    for path in ("/api/look", "/api/look/heads")[: 1 if {*change} & {"layer", "head"} else 2]:
        found = post(opened, path, **{**asked, **change})
        assert found[0] == status and found[1]["error"]


def test_a_text_too_long_for_an_influence_map_has_the_rest(monkeypatch):
    monkeypatch.setattr(inspection, "EFFORT", 1e6)
    found = inspected()
    assert found.influence is None and "tokens or fewer" in found.note and found.next


@pytest.mark.parametrize("name", ["elman", "birnn", "prefix-birnn"])
def test_a_model_without_attention_says_so_and_has_its_influence_measured(name):
    model = registry.load("model", name)(vocabulary=7, width=8).build()
    *_, found = inspection.read(model, [1, 2, 3, 1, 5], list("abcad"))
    assert "no attention" in found.absent and found.layers == [] and len(found.next) == 7
    influence = torch.tensor(found.influence)
    assert bool((influence.triu(1) > 0).any()) == (name == "birnn")  # it reads ahead


def test_a_score_that_gives_no_weights_says_so(monkeypatch):
    def refuse(self, request):
        raise ValueError("mine.py:Score does not show its weights")

    monkeypatch.setattr(scores.ScaledDotScore, "weights", refuse)
    found = inspected()
    assert "mine.py:Score does not show" in found.absent and found.layers == []
    assert found.influence is not None


def test_a_text_is_cut_to_what_is_shown_and_to_what_the_model_reads():
    assert inspection.cut([1] * 256, None) == ([1] * 256, "")
    kept, note = inspection.cut([1] * 1_257, None)
    assert len(kept) == 256 and note == "The text has 1,257 tokens; shown are the first 256."
    kept, note = inspection.cut([1] * 65, 64)
    assert len(kept) == 64 and "all that this model reads" in note
