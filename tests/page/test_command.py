"""What a page may start: settings in their ranges, no path, nothing that does not fit in memory."""

import shlex
from pathlib import Path

import pytest

from attnlab import registry
from attnlab.compare.parse import parse
from attnlab.page.command import Choices, Commands, key_of
from attnlab.training.launch import recipe_for

COMMANDS = Commands(Path("runs"), [Path("my text.txt")])
TWO = [{"label": ""}, {"label": "other", "settings": {"model.positions": "alibi"}}]


def plan(commands=COMMANDS, starts=(), **body):
    return commands.plan({"preset": "tiny", **body}, starts)


def test_the_form_has_the_settings_of_the_preset_with_their_ranges_and_defaults():
    fields = {one["key"]: one for one in plan()["fields"]}
    recipe = registry.load("preset", "tiny")()
    assert fields["steps"]["value"] == fields["steps"]["usual"] == str(recipe.steps)
    assert fields["steps"]["values"] == "whole number, 1 or more" and fields["steps"]["main"]
    assert fields["compile"]["choices"] == ["true", "false"]
    assert fields["model.norm"]["choices"] == ["layer", "rms", "unit"]
    options = [option.name for option in registry.options("positions")]
    assert fields["model.positions"]["choices"] == options
    texts = {"start", "corpus.path", "model.vocabulary"}
    assert not texts & {*fields} and "text" not in fields["corpus"]["choices"]


def test_an_option_brings_its_own_fields():
    fields = {one["key"]: one for one in plan(settings={"model.attention": "grouped"})["fields"]}
    assert fields["model.attention"]["usual"] == "multi-head"
    assert fields["model.attention.kv_heads"]["usual"] is None


@pytest.mark.parametrize("preset", [option.name for option in registry.options("preset")])
def test_every_preset_is_planned(preset):
    found = plan(preset=preset, text="my text.txt")
    if found["problem"]:  # one that wants a folder, or more memory than is here
        assert found["problem"]["line"] and not found["command"]
    else:
        assert shlex.split(found["command"])[:3] == ["attnlab", "train", preset]


def test_the_command_line_means_what_was_chosen():
    settings = {"model.window": "16,none", "steps": " 7 ", "model.attention": "multi-query"}
    words = shlex.split(plan(settings=settings)["command"])
    assert words[:3] == ["attnlab", "train", "tiny"]
    recipe = recipe_for("tiny", words[3:])
    assert recipe.steps == 7 and recipe.model.window == (16, None)
    elsewhere = Commands(Path("other runs"))
    assert plan(elsewhere)["command"] == "attnlab train tiny --runs 'other runs'"


def test_a_comparison_is_what_its_command_line_says():
    found = plan(kind="compare", variants=TWO, settings={"steps": "9"}, comparison={"seeds": "2"})
    words = shlex.split(found["command"])
    assert words[:2] == ["attnlab", "compare"] and len(found["variants"]) == 2
    planned = parse(words[2:])
    assert [one.label for one in planned.variants] == ["tiny", "other"]
    assert planned.settings.seeds == 2 and planned.variants[1].recipe.steps == 9
    assert "seed" not in {one["key"] for one in found["fields"]}


WRONG = {
    "steps": ("0", "use 1 or more"),
    "batch": ("many", "whole number"),
    "model.width": ("101", "does not divide into 4 heads"),
    "model.attention": ("os.path", "choose from"),
    "model.positions": ("rotery", "did you mean"),
    "model.window": ("16,corpus.path=x", "a number or a word"),
    "corpus": ("text", "choose from python-docs"),
    "corpus.path": ("/etc/passwd", "cannot be set"),
    "start": ("runs/x", "cannot be set"),
    "model.vocabulary": ("3", "cannot be set"),
    "nothing.like.it": ("1", "cannot be set"),
    "optimiser.rate": ("nan", "must be a number"),
    "compile": ("maybe", "choose from"),
    "device": ("cpu --resume=x", "did you mean"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_setting_is_one_line_at_its_field(key):
    value, said = WRONG[key]
    found = plan(settings={key: value})
    assert found["problem"]["key"] == key and said in found["problem"]["line"]
    assert "\n" not in found["problem"]["line"] and found["command"] == ""
    assert found["fields"]
    with pytest.raises(ValueError, match=r"\w"):
        COMMANDS.words(Choices.read({"preset": "tiny", "settings": {key: value}}, []))


def test_a_name_that_is_not_in_the_list_is_not_even_looked_up(monkeypatch):
    loaded = []
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda *given: loaded.append(given) or load(*given))
    for name in ("os.path", "mine.py:Mine", "json.JSONDecoder"):
        plan(settings={"model.attention": name})
        plan(kind="compare", variants=[{}, {"settings": {"model.attention": name}}])
        assert not any(name in given for given in loaded)


@pytest.mark.parametrize(
    "settings",
    [
        {"model.width": "1048576"},
        {"model.depth": "4096", "model.width": "4096"},
        {"batch": "1048576", "model.context": "4096"},
        {"model.context": "1048576"},
        {"tokenizer": "bpe", "tokenizer.vocabulary": "1000000000"},
        {"corpus": "biographies", "corpus.wordings": "1000000000000"},
    ],
)
def test_what_does_not_fit_in_memory_is_refused(settings, monkeypatch):
    monkeypatch.setattr("attnlab.training.setup.machine_memory", lambda: 16 << 30)
    found = plan(settings={"device": "cpu", **settings})["problem"]
    assert "GB" in found["line"] or "vocabulary" in found["line"]


def test_trainings_that_run_at_the_same_time_need_their_memory_together(monkeypatch):
    one = {"device": "cpu", "model.width": "1024", "model.depth": "8"}
    monkeypatch.setattr("attnlab.experiments.local.LocalPool.concurrency", lambda *given: 16)
    monkeypatch.setattr("attnlab.training.setup.machine_memory", lambda: 8 << 30)
    assert plan(settings=one)["problem"] is None
    both = plan(kind="compare", settings=one, variants=TWO)["problem"]
    assert "16 trainings at a time" in both["line"]


VARIANTS = [
    ([{}], None, "two variants or more"),
    ([{}, {}], None, "two variants are called"),
    ([{}, {"label": "steps", "settings": {"steps": "3"}}], 1, "is no label"),
    ([{}, {"label": "a b", "settings": {"model.window": "3"}}], 1, "is no label"),
    ([{}, {"settings": {"model.window": "0"}}], 1, "model.window"),
    ([{}, {"settings": {"model.window": "16,steps=3"}}], 1, "model.window"),
    ([{}, {"settings": {"batch": "3"}}], None, "the same batches"),
    ([{}, {"settings": {"seed": "3"}}], 1, "set by the comparison"),
]


@pytest.mark.parametrize(("variants", "number", "said"), VARIANTS)
def test_a_wrong_variant_is_named(variants, number, said):
    found = plan(kind="compare", variants=variants)["problem"]
    assert said in found["line"] and found["variant"] == number


@pytest.mark.parametrize(
    "body",
    [
        {"preset": "tinny"},
        {"preset": 3},
        {"preset": "../tiny"},
        {"kind": "study"},
        {"text": "/etc/passwd"},
        {"text": ["my text.txt"]},
        {"settings": []},
        {"settings": {"steps": 3}},
        {"settings": {str(n): "1" for n in range(100)}},
        {"variants": [{}] * 7},
        {"variants": [3]},
        {"variants": {"label": "a"}},
        {"start": 3},
    ],
)
def test_a_body_of_another_shape_is_refused(body):
    with pytest.raises(ValueError, match=r"\w"):
        plan(**body)


def test_a_text_is_one_that_the_page_was_started_with():
    wanted = plan(preset="shakespeare-cpu")["problem"]
    assert wanted["key"] == "text" and "--text PATH" in wanted["line"]
    chosen = plan(preset="shakespeare-cpu", text="my text.txt")
    assert shlex.split(chosen["command"])[3] == "data=my text.txt"


def test_weights_to_start_from_are_those_of_a_run_in_the_list():
    assert plan(start="x")["problem"]["key"] == "start"
    assert plan(start="x", starts=["x"])["command"] == "attnlab train tiny start=runs/x"


def test_an_error_is_of_the_setting_that_it_begins_with():
    keys = ["model.attention.heads", "model.width", "width"]
    assert key_of("attention.heads 5 is not", keys) == "model.attention.heads"
    assert key_of("width 3 does not", ["steps", "model.width"]) == "model.width"
    assert key_of("model.width: no such setting", keys) == "model.width"
    assert key_of("something else", keys) == ""
