"""Every registered benchmark keeps to what the command line asks of one."""

import inspect
import json

import pytest

from attnlab import config, registry
from attnlab.bench.bench import Bench


@pytest.mark.parametrize("name", [option.name for option in registry.options("bench")])
def test_a_benchmark_runs_shows_and_judges(name):
    settings = registry.load("bench", name)()
    assert isinstance(settings, Bench)
    assert settings == config.from_dict(type(settings), config.to_dict(settings))
    json.dumps(config.to_dict(settings))
    run = inspect.signature(settings.run).parameters
    assert list(run) == ["tick"] and run["tick"].default is not inspect.Parameter.empty
    assert list(inspect.signature(settings.show).parameters) == ["report", "screen"]
    assert list(inspect.signature(settings.passed).parameters) == ["report"]
