"""What a person writes becomes variants and settings, or one line that says what to write."""

import pytest

from attnlab import registry
from attnlab.compare.parse import LAB, RATES, parse
from attnlab.experiments.match import count, match
from attnlab.presets import TUNED


def labels(*words):
    return [variant.label for variant in parse(words).variants]


def test_a_variant_is_a_label_a_preset_and_words():
    learned, rotary = parse(["learned=tiny:model.positions=learned", "rotary=tiny"]).variants
    assert (learned.label, learned.preset, learned.words) == (
        "learned",
        "tiny",
        ("model.positions=learned",),
    )
    assert type(learned.recipe.model.positions).__name__ == "Learned"
    assert rotary.spec == "tiny" and learned.spec == "tiny:model.positions=learned"


def test_a_comma_begins_a_word_only_before_a_key():
    variant = parse(["tiny", "tiny:model.window=16,none,model.depth=3"]).variants[1]
    assert variant.words == ("model.window=16,none", "model.depth=3")
    assert variant.recipe.model.window == (16, None) and variant.recipe.model.depth == 3


def test_labels_come_from_what_differs():
    assert labels("tiny", "tiny:model.positions=learned") == ["tiny", "learned"]
    assert labels("tiny:model.window=16,none", "tiny:model.depth=1") == [
        "window=16,none",
        "depth=1",
    ]
    grouped = "tiny:model.attention=grouped,model.attention.kv_heads=1"
    assert labels("tiny", grouped) == ["tiny", "grouped kv_heads=1"]
    several = labels("tiny:batch=32,model.depth=1", "elman")
    assert several == ["tiny batch=32 depth=1", "elman"]


def test_labels_that_would_be_the_same_say_more():
    found = labels("tiny:context=32", "tiny:model.context=32")
    assert found == ["tiny context=32", "tiny model.context=32"]


def test_words_without_a_variant_count_for_all_and_a_variants_own_come_after():
    plan = parse(["tiny", "deep=tiny:model.depth=3", "model.depth=1", "steps=7", "seeds=5"])
    assert [v.recipe.model.depth for v in plan.variants] == [1, 3]
    assert {v.recipe.steps for v in plan.variants} == {7} and plan.settings.seeds == 5
    assert list(plan.common) == ["model.depth=1", "steps=7"]


def test_data_is_a_path_for_all(tmp_path):
    plan = parse(["tiny", "tiny:model.depth=1", f"data={tmp_path}"])
    assert {v.recipe.corpus.path for v in plan.variants} == {str(tmp_path)}


@pytest.mark.parametrize("name", ["mechanisms", "mechanisms-gpu"])
def test_the_mechanisms_are_eleven_models_of_one_size(name):
    plan = parse([name])
    assert len(plan.variants) == 11 and plan.variants[0].label == "rotary"
    matched = match("parameters", {one.label: one.recipe for one in plan.variants})
    counts = [count(one.recipe.model) for one in matched.values()]
    assert max(counts) / min(counts) < 1.02
    assert parse([name, "tune=none"]).search.rates == ()


def test_on_a_gpu_the_mechanisms_read_thirty_million_tokens():
    for one in parse(["mechanisms-gpu"]).variants:
        tokens = one.recipe.steps * one.recipe.batch * one.recipe.length
        assert 30e6 <= tokens < 30.1e6 and one.recipe.compile


def test_the_lab_is_four_variants_and_can_be_changed():
    plan = parse(["lab"])
    assert [v.label for v in plan.variants] == [
        "learned",
        "rotary",
        "rotary+gqa",
        "rotary+window",
    ]
    assert parse(["lab", "seeds=2"]).settings.seeds == 2
    assert len(parse(["lab", "alibi=tiny:model.positions=alibi"]).variants) == 5
    assert "seeds=4" in LAB and plan.search.rates == (1.0, 2.0, 4.0, 8.0)


@pytest.mark.parametrize(
    ("words", "rates", "why"),
    [
        (["tiny", "tiny:model.positions=learned"], RATES, "preset tiny was tuned for rotary"),
        (["tiny", "elman", "batch=16", "context=64"], RATES, "preset tiny was tuned"),
        (["tiny", "tiny:model.positions=learned", "tune=none"], (), "tune=none was asked for"),
        (["tiny", "tiny:model.positions=learned", "rates=1,3"], (1.0, 3.0), "asked for"),
        (["tiny", "tiny:clip=2", "tune=rate"], RATES, "asked for"),
        (["tiny", "tiny:clip=2"], (), "the same model"),
        (["tiny", "fast=tiny:optimiser.rate=0.02,model.depth=1"], (), "optimiser of its own"),
        (["rope-gqa-rotary", "rope-gqa-absolute"], (), "no preset here"),
    ],
)
def test_rates_are_searched_where_a_preset_was_tuned_for_one_of_the_variants(words, rates, why):
    found = parse(words).search
    assert found.rates == rates and why in found.why


@pytest.mark.parametrize("words", [["lab", "tune=none"], ["--tune=none", "lab", "seeds=2"]])
def test_tune_none_overrides_the_rates_of_the_lab(words):
    found = parse(words)
    assert found.settings.rates == () and found.search.rates == ()
    assert found.search.why == "tune=none was asked for" and found.search.single == 1.0


def test_of_several_words_for_tune_the_last_counts():
    assert parse(["lab", "tune=none", "tune=rate"]).search.rates == parse(["lab"]).search.rates


@pytest.mark.parametrize("more", [[], ["tune=rate"]])
def test_a_single_rate_is_no_search(more):
    found = parse(["lab", "rates=2", *more]).search
    assert found.rates == () and found.single == 2.0
    assert found.why == "one multiple of the rate was given, × 2, and all take it"


def test_presets_that_were_tuned_exist():
    assert set(TUNED) <= {option.name for option in registry.options("preset")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tny", "tiny"], "no preset called 'tny'; did you mean 'tiny'?"),
        (["a=tny:model.depth=1", "tiny"], "did you mean 'tiny'?"),
        (["laab", "tiny"], "did you mean 'lab'?"),
        (["tiny", "tiny:model.depht=1"], "did you mean 'model.depth'?"),
        (["tiny", "tiny:model.positions=rotry"], "did you mean 'rotary'?"),
        (["lab", "sedes=3"], "did you mean 'seeds'?"),
        (["lab", "match=flop"], "did you mean 'flops'?"),
        (["lab", "colour=red"], "neither a setting nor a variant"),
        (["lab", "score=additive"], "did you mean 'model.score'?"),
        (["lab", "--heads=2"], "did you mean 'model.attention.heads'"),
        (["lab", "--seads=3"], "did you mean 'seeds'?"),
        (["tiny"], "1 variant: a comparison needs 2 or more"),
        (["seeds=3"], "no variants: a comparison needs 2"),
        (["tiny:", "tiny"], "ends at its colon"),
        (["tiny", "again=tiny"], "tiny and again are the same"),
        (["tiny", "tiny:model.depth=2"], "are the same"),
        (["tiny", "tiny:seed=3,keep=5"], "are the same"),
        (["a=tiny", "a=tiny:model.depth=1"], "two variants are called 'a'"),
        (["1a=tiny", "tiny"], "no label"),
        (["tiny", "elman"], "batch=16"),
        (["tiny", "short=tiny:context=32"], "context=64"),
        (["tiny", "long=tiny:steps=900"], "steps=800"),
        (["tiny", "other=tiny:corpus=biographies"], "another corpus"),
        (["tiny", "x=tiny:start=RUN"], "train from the beginning"),
        (["lab", "seeds=0"], "seeds is 0; use 1 or more"),
        (["lab", "level=1"], "level is 1.0; use 0.5 to less than 1, such as 0.95"),
        (["lab", "seconds=3"], "seconds is 3.0; it needs match=seconds"),
        (["lab", "match=seconds", "seconds=-1"], "seconds is -1.0; use more than 0, or none"),
        (["lab", "rates=1,-2"], "rates has -2.0; use more than 0"),
        (["lab", "rates=1,1"], "each multiple once"),
        (
            ["tiny", "tiny:clip=2", "tune=none", "rates=1,2"],
            "no rates, so use tune=rate",
        ),
        (["lab", "tune=none", "rates=1,2"], "no rates, so use tune=rate"),
        (["lab", "tune=rates"], "did you mean 'rate'?"),
        (["lab", "seed=-1"], "seed is -1"),
    ],
)
def test_a_slip_is_named_with_what_to_write(words, message):
    with pytest.raises(ValueError) as error:
        parse(words)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_label_that_is_taken_gets_advice_that_works():
    with pytest.raises(ValueError, match="two variants are called 'a'") as error:
        parse(["a=tiny", "a=tiny:model.depth=1"])
    advice = str(error.value).rpartition(" ")[2]
    assert [one.label for one in parse(["a=tiny", advice]).variants] == ["a", "second"]
