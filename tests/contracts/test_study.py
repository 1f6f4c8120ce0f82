"""Every registered study: its settings are saved, and the same settings find the same folder."""

import dataclasses
import json
from typing import get_type_hints

import pytest

from attnlab import config, registry
from attnlab.experiments.experiment import Findings, carry_out
from attnlab.experiments.progress import Progress

pytest.importorskip("matplotlib")
NAMES = [option.name for option in registry.options("study")]


def empty(name, *words):
    """The study with nothing to do."""
    cls = registry.load("study", name)
    nothing = Findings("title", "question", "answer", (), {})
    bare = type(
        cls.__name__,
        (cls,),
        {"jobs": lambda self, workspace: [], "findings": lambda self, results: nothing},
    )
    return config.override(bare(), words)


@pytest.mark.parametrize("name", NAMES)
def test_its_settings_survive_json(name):
    cls = registry.load("study", name)
    study = config.override(cls(), ["scale=tiny", "seeds=3"])
    assert config.from_dict(cls, json.loads(json.dumps(config.to_dict(study)))) == study
    json.dumps(study.settings())


@pytest.mark.parametrize("name", NAMES)
def test_a_number_below_its_range_is_a_line_with_field_value_and_rule(name):
    cls = registry.load("study", name)
    hints = get_type_hints(cls)
    numbers = [one for one in dataclasses.fields(cls) if "int" in str(hints[one.name])]
    assert "seeds" in {one.name for one in numbers}
    for one in numbers:
        limits = one.metadata["limits"]
        assert limits.low is not None, one.name
        with pytest.raises(config.ConfigError) as error:
            config.override(cls(), [f"{one.name}={limits.low - 1}"])
        verb = "has" if one.default == () else "is"
        assert str(error.value).startswith(f"{one.name} {verb} {limits.low - 1}; ")
        assert f"use {limits.range}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_settings_find_the_same_folder(name, tmp_path):
    def folder(*words):
        study = empty(name, "scale=tiny", *words)
        return carry_out(name, study, root=tmp_path, progress=Progress()).folder

    assert folder() == folder() != folder("seeds=3")
    assert folder("seeds=3") == folder("seeds=3")
