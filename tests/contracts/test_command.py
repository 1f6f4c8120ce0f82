"""Every registered check, bench, study and preset as a command: a wrong setting is one line."""

import dataclasses
import sys

import pytest

from attnlab import cli, registry

VERBS = {"check": "check", "bench": "bench", "study": "study", "preset": "train"}
OPTIONS = [
    *registry.options("check"),
    *registry.options("bench"),
    *registry.options("study"),
    *registry.options("preset"),
]


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Runs a command that must be refused; gives the one line that says why."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["attnlab", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        lines = capsys.readouterr().err.strip().splitlines()
        assert stop.value.code == 2 and len(lines) == 1, lines
        return lines[0]

    return run


def out_of_range(limits):
    """A value beyond each end, and one that is no choice."""
    if limits.low is not None:
        yield limits.low - 1
    if limits.above is not None:
        yield limits.above
    if limits.high is not None:
        yield limits.high + 1
    if limits.below is not None:
        yield limits.below
    if limits.choices:
        yield "no-such-name"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.kind}.{option.name}")
def test_a_value_out_of_range_is_one_line(option, refused, monkeypatch):
    target = registry.load(option.kind, option.name)
    settings = target()
    if hasattr(target, "run"):
        monkeypatch.setattr(target, "run", lambda self, tick: pytest.fail("it was not refused"))
    for field in dataclasses.fields(settings):
        limits = field.metadata.get("limits")
        for value in out_of_range(limits) if limits else ():
            word = f"{field.name}={value}"
            said = refused(VERBS[option.kind], option.name, word)
            assert f"error: {field.name} " in said and str(value) in said, said


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.kind}.{option.name}")
def test_an_unknown_setting_and_an_unknown_name_are_one_line(option, refused):
    verb = VERBS[option.kind]
    assert "xyz: no such setting" in refused(verb, option.name, "xyz=3")
    said = refused(verb, f"{option.name}x")
    assert f"unknown {option.kind} '{option.name}x'; did you mean '{option.name}" in said
