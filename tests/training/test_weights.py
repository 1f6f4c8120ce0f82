"""Weights: a function of the recipe, refused by name where they do not fit, counted first."""

import pytest
import torch
from training.recipes import HERE, begin, small

from attnlab import config
from attnlab.models import loss
from attnlab.training import setup, weights
from attnlab.training.parallel import World
from attnlab.training.weights import build_model, bytes_wanted, load_weights, refuse_other_model


def state(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others():
    torch.manual_seed(1)
    first = state(build_model(small()))
    torch.manual_seed(2)
    again, other = state(build_model(small())), state(build_model(small(seed=1)))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])


def test_building_leaves_the_global_randomness_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    build_model(small())
    assert torch.equal(torch.rand(2), expected)


def test_loaded_weights_are_those_given():
    given = state(build_model(small(seed=1)))
    model = build_model(small())
    load_weights(model, given)
    assert all(torch.equal(given[n], w) for n, w in state(model).items())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda w: w.pop("embed.weight"), "weight embed.weight is missing in the checkpoint"),
        (lambda w: w.update(foreign=torch.ones(1)), "weight foreign has no place in this model"),
        (
            lambda w: w.update({"embed.weight": torch.ones(2, 3)}),
            r"embed.weight has shape \(2, 3\) in the checkpoint and \(256, 16\) here",
        ),
        (
            lambda w: w.update({"embed.weight": w["embed.weight"].to(torch.complex64)}),
            "embed.weight has dtype torch.complex64",
        ),
        (lambda w: w.update({"embed.weight": w["embed.weight"].long()}), "torch.int64"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name_and_none_is_used(harm, message):
    given = state(build_model(small(seed=1)))
    harm(given)
    model = build_model(small())
    before = state(model)
    with pytest.raises(ValueError, match=message):
        load_weights(model, given)
    assert all(torch.equal(before[n], w) for n, w in state(model).items())


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("model.width=32", "set model.width=16 to load it"),
        ("model.positions=alibi", "set model.positions=rotary to load it"),
        ("model.window=8", r"set model.window=\[None\] to load it"),
        ("model.norm=layer", "set model.norm=rms to load it"),
    ],
)
def test_another_architecture_is_refused_with_the_word_that_mends_it(word, advice):
    saved = config.to_dict(small())
    with pytest.raises(ValueError, match=advice):
        refuse_other_model(small(word), saved)


@pytest.mark.parametrize("words", [["model.dropout=0.5"], ["model.context=9"], ["steps=3"]])
def test_dropout_and_context_may_differ(words):
    refuse_other_model(small(*words), config.to_dict(small()))


def test_the_context_may_not_differ_where_positions_are_learned():
    learned = small("model.positions=learned")
    refuse_other_model(learned, config.to_dict(learned))
    with pytest.raises(ValueError, match=r"model\.context is 64 in the checkpoint and 9 here"):
        refuse_other_model(config.override(learned, ["model.context=9"]), config.to_dict(learned))


@pytest.mark.parametrize("words", [(), ("model.attention=gated-delta", "model.positions=none")])
def test_a_setting_that_an_older_checkpoint_knows_nothing_of_has_its_default(words):
    """Sections of rotary positions and hybrids came later than either."""
    recipe, older = small(*words), config.to_dict(small(*words))
    for part, names in (("positions", ("sections", "alternate")), ("attention", ("full_every",))):
        for name in names:
            older["model"][part].pop(name, None)
    older["model"]["attention"].pop("full", None)
    assert older != config.to_dict(recipe)
    refuse_other_model(recipe, older)
    other = "model.attention.full_every=2" if words else "model.positions.sections=1,1"
    with pytest.raises(ValueError, match=rf"{other.split('=')[0]} is \S+ in the checkpoint"):
        refuse_other_model(config.override(recipe, [other]), older)


@pytest.mark.parametrize("model", [None, "x", [1], {}, 5])
def test_a_hostile_config_is_refused(model):
    with pytest.raises(ValueError, match=r"model\.name is not set in the checkpoint"):
        refuse_other_model(small(), {"model": model})


def test_bytes_are_counted_without_making_the_model():
    for depth in (1, 2, 5):
        recipe = small(f"model.depth={depth}")
        made = sum(4 * p.numel() for p in build_model(recipe).parameters())
        objects = weights.LAYER * (depth - 1) if depth > 2 else 0
        assert bytes_wanted(recipe.model) == made + objects


@pytest.mark.parametrize(
    "words",
    [
        ["model.width=1048576"],
        ["model.depth=4096", "model.width=4096"],
        [f"model.attention.head_width={10**12}"],
        [f"model.attention.head_width={10**30}"],
        ["model=elman", "model.width=1048576"],
    ],
    ids=str,
)
def test_a_model_larger_than_the_machine_is_refused_before_it_is_made(words):
    with pytest.raises(ValueError, match=r"the weights alone need .* GB and this machine has"):
        build_model(small(*words))


def test_absurd_widths_are_refused_by_the_settings():
    with pytest.raises(ValueError, match="width is 1000000000000; use 1 to 1048576"):
        small("model.width=1000000000000")


def test_a_step_larger_than_the_machine_is_refused(monkeypatch):
    """256 tokens of vocabulary 256 and width 16 in two layers: 4 · 256 · (768 + 256) bytes."""
    wanted = 4 * 256 * (3 * 256 + 8 * 16 * 2)
    monkeypatch.setattr(setup, "machine_memory", lambda: wanted)
    setup.refuse_large_step(small(), HERE)
    monkeypatch.setattr(setup, "machine_memory", lambda: wanted - 1)
    with pytest.raises(ValueError, match="a smaller batch or context, or a larger accumulate"):
        setup.refuse_large_step(small(), HERE)
    setup.refuse_large_step(small("accumulate=2"), HERE)
    setup.refuse_large_step(small(), World(0, 2, torch.device("cpu")))


def test_of_logits_in_chunks_only_a_chunk_is_counted(monkeypatch):
    """Of 256 tokens, as above; a chunk of 1,000 bytes."""
    monkeypatch.setitem(loss.LARGE, "cpu", 0)
    monkeypatch.setitem(loss.CHUNK, "cpu", 1000)
    wanted = 3 * 1000 + 4 * 256 * 8 * 16 * 2
    assert setup.step_bytes(small()) == wanted
    monkeypatch.setattr(setup, "machine_memory", lambda: wanted)
    setup.refuse_large_step(small(), HERE)
    monkeypatch.setattr(setup, "machine_memory", lambda: wanted - 1)
    with pytest.raises(ValueError, match="a step needs"):
        setup.refuse_large_step(small(), HERE)
    elman = small("model=elman", "model.width=16")  # which only gives logits
    assert setup.step_bytes(elman) > 3 * 4 * 256 * 256


@pytest.mark.parametrize(
    ("vocabulary", "context", "samples"), [(256, 64, 64), (50_304, 512, 1), (50_304, 64, 10)]
)
def test_samples_are_evaluated_together_while_their_logits_are_few(vocabulary, context, samples):
    recipe = small(f"model.vocabulary={vocabulary}", f"model.context={context}")
    assert recipe.length == context
    assert setup.evaluated_together(recipe, HERE.device) == samples


def test_what_a_run_starts_from_decides_tokenizer_and_vocabulary(tmp_path):
    first, _ = begin(tmp_path, small("steps=1"))
    made = setup.prepare(small("corpus.people=10", f"start={first.folder}"), tmp_path)
    alone = setup.prepare(small(), tmp_path)
    assert made.tokenizer.to_json() == alone.tokenizer.to_json()
    assert made.recipe.model.vocabulary == alone.tokenizer.size
