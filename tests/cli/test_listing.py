"""`attnlab list`: kinds, options of a kind, settings of an option."""

import importlib
import json

import pytest

from attnlab import config, registry


def test_every_kind_is_listed_with_what_it_is(attnlab):
    code, shown, _ = attnlab("list")
    assert code == 0
    rows = {line.split()[0] for line in shown.splitlines() if line.strip()}
    assert set(registry.kinds()) <= rows
    for kind in registry.KINDS.values():
        assert kind.about.split()[0] in shown and kind.example in shown


def test_a_kind_shows_its_options(attnlab):
    shown = attnlab("list", "attention")[1]
    for name in ("multi-head", "grouped", "multi-query", "scaled-dot", "multiplicative"):
        assert name in shown
    for name in ("concatenated", "additive", "full", "ring", "[k; q]"):
        assert name in shown
    shown = attnlab("list", "positions")[1]
    for name in ("none", "learned", "sinusoidal", "rotary", "half-split", "interleaved", "alibi"):
        assert name in shown
    for kind in registry.kinds():
        shown = attnlab("list", kind)[1]
        assert all(option.name in shown for option in registry.options(kind))


@pytest.mark.parametrize(("group", "kind"), [("presets", "preset."), ("corpora", "tokenizer=")])
def test_a_group_shows_the_options_of_its_kinds(attnlab, group, kind):
    shown = attnlab("list", group)[1]
    assert all(f"{kind}{option.name}" in shown for option in registry.options(kind[:-1]))


@pytest.mark.parametrize("option", [o for k in registry.kinds() for o in registry.options(k)])
def test_every_option_shows_every_field(attnlab, option):
    code, shown, _ = attnlab("list", f"{option.kind}.{option.name}", "--json")
    listed = json.loads(shown)
    assert code == 0 and (listed["kind"], listed["name"]) == (option.kind, option.name)
    made = registry.load(option.kind, option.name)()
    keys = {one["key"] for one in listed["settings"]}
    assert {key.split(".")[0] for key in keys} == set(config.to_dict(made))
    assert all(one["type"] for one in listed["settings"])


def test_settings_are_shown_with_default_type_range_and_meaning(attnlab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = attnlab("list", "model.transformer")[1].splitlines()
    rows = {line.split()[0]: " ".join(line.split()) for line in lines if line.strip()}
    assert rows["depth"].startswith("depth 4 whole number, 1 to 4096 layers: ")
    assert "none list: whole number, 1 or more; none: all keys keys a query" in rows["window"]
    assert rows["positions"].startswith("positions rotary one of none, learned, sinusoidal")
    assert rows["norm"].startswith("norm rms one of layer, rms, unit")


def test_a_preset_shows_its_own_values_and_those_of_its_options(attnlab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(attnlab("list", "preset.tiny")[1].split())
    assert "steps 800 whole number" in shown and "schedule.warmup 10 whole number" in shown
    assert "model.positions.layout interleaved one of" in shown


def test_an_option_is_shown_as_it_is_written(attnlab):
    assert "positions=alibi" in attnlab("list", "positions")[1]
    assert "protocol.returned" in attnlab("list", "caches")[1]
    assert attnlab("list", "caches.held")[1].startswith("protocol.held: ")
    assert attnlab("list", "positions.alibi")[1].startswith("positions=alibi: ")


def test_the_settings_of_comparisons_are_shown(attnlab, monkeypatch):
    from attnlab.compare.parse import ComparisonSettings

    monkeypatch.setenv("COLUMNS", "200")
    code, shown, _ = attnlab("list", "compare")
    assert code == 0 and "parameters  one of parameters, flops, seconds, steps" in shown
    listed = json.loads(attnlab("list", "compare", "--json")[1])["settings"]
    assert [one["key"] for one in listed] == list(config.to_dict(ComparisonSettings()))


def every_setting():
    """With where it belongs: of each option, and of each verb that has settings itself."""
    from attnlab.cli.listing import VERBS

    options = [one for kind in registry.kinds() for one in registry.options(kind)]
    made = [(f"{one.kind}.{one.name}", registry.load(one.kind, one.name)()) for one in options]
    for verb, option in VERBS.items():
        module, _, name = option.target.partition(":")
        made.append((verb, getattr(importlib.import_module(module), name)()))
    return [(where, field) for where, one in made for field in config.describe(one)]


def test_every_setting_has_a_type_and_a_meaning_in_words():
    found = every_setting()
    assert len(found) > 700
    for where, field in found:
        assert field.type, (where, field)
        assert len(field.about.split()) > 1 and field.about[-1] != ".", (where, field)


def test_all_settings_are_listed_with_default_type_range_and_meaning(attnlab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    listed = json.loads(attnlab("list", "settings", "--json")[1])
    found = {
        (one["kind"], one["name"], field["key"]) for one in listed for field in one["settings"]
    }
    for where, field in every_setting():
        kind, _, name = where.partition(".")
        assert kind == "preset" or (kind, name, field.key) in found
    rows = [line.split() for line in attnlab("list", "settings")[1].splitlines()]
    titles = {row[0] for row in rows if row and row[0].endswith(":")}
    assert {
        "train:",
        "compare:",
        "optimiser=muon:",
        "model=transformer:",
        "bench.window:",
    } <= titles
    fields = sum(len(one["settings"]) for one in listed)
    assert rows[-1] == [str(fields), "settings"]


def test_the_settings_of_a_kind_are_those_of_its_options(attnlab):
    listed = json.loads(attnlab("list", "settings", "optimiser", "--json")[1])
    assert [one["name"] for one in listed] == ["adamw", "muon"]
    assert listed[1] == json.loads(attnlab("list", "optimiser.muon", "--json")[1])
    assert listed[1] == json.loads(attnlab("list", "optimiser=muon", "--json")[1])
    trained = json.loads(attnlab("list", "train", "--json")[1])["settings"]
    assert {one["key"]: one["default"] for one in trained}["steps"] == "1000"


def test_options_without_settings_say_so(attnlab):
    assert "It has no settings." in attnlab("list", "positions.alibi")[1]


def test_list_as_json(attnlab):
    kinds = json.loads(attnlab("list", "--json")[1])
    found = {(one["kind"], option["name"]) for one in kinds for option in one["options"]}
    assert {("positions", "alibi"), ("score", "additive"), ("model", "elman")} <= found
    listed = json.loads(attnlab("list", "optimisers", "--json")[1])
    assert [one["name"] for one in listed] == ["adamw", "muon"]
    assert {one["origin"] for one in listed} == {"attnlab"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("position", "unknown kind 'position'; did you mean 'positions'?"),
        ("preset.tyni", "unknown preset 'tyni'; did you mean 'tiny'?"),
        ("presets.tyni", "unknown preset 'tyni'; did you mean 'tiny'?"),
        ("modle.transformer", "unknown kind 'modle'; did you mean 'model'?"),
        ("attention.", "unknown attention ''; choose from multi-head"),
        ("setings", "unknown kind 'setings'; did you mean 'settings'?"),
    ],
)
def test_an_unknown_name_prints_the_closest_valid_one(attnlab, what, message):
    code, _, said = attnlab("list", what)
    assert code == 2 and message in said and len(said.strip().splitlines()) == 1


def test_one_setting_is_found_by_its_name(attnlab):
    code, shown, _ = attnlab("list", "settings", "steps")
    assert code == 0 and "steps of the training" in shown and "temperature" not in shown
    code, shown, _ = attnlab("list", "model.attention")
    assert code == 0 and "grouped" in shown
    code, _, said = attnlab("list", "settings", "stpes")
    assert code == 2 and "'stpes' is no kind and no setting; did you mean 'steps'?" in said
    code, _, said = attnlab("list", "mine.py:Mine")
    assert code == 2 and "write what it is: attnlab list attention.mine.py:Mine" in said
