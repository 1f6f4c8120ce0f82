"""SARIF 2.1.0: every field that the format asks for, a result for each failure, at its line."""

import json

import pytest

from attnlab import registry
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.sandbox import Answer
from attnlab.audit.sarif import sarif, source_of

BAD = Finding(
    name="causality", verdict="fail", detail="output 0 moves", measured=float("nan"), declared=True
)
WORSE = Finding(name="left padding", verdict="fail", detail="row 1 moves")
GOOD = Finding(name="batch", verdict="pass", detail="rows are the same")
UNCLEAR = Finding(name="window", verdict="cannot tell", detail="too wide")
EXAMPLE = {
    "name": "causality",
    "sentence": "output 0 moves by 1",
    "sizes": {"length": 2},
    "options": {"width": 1},
}
LEVELS = ("none", "note", "warning", "error")


def answer(*findings, examples=(), **declared):
    found = Certificate(target="Code", contract=Contract(**declared), findings=findings)
    return Answer(target="code.py:Code", certificate=found, examples=tuple(examples))


def check(log):
    """The fields that the schema requires, and their kinds."""
    assert json.loads(json.dumps(log, allow_nan=False)) == log
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert isinstance(driver["name"], str)
    identifiers = [rule["id"] for rule in driver["rules"]]
    assert len(set(identifiers)) == len(identifiers)
    for rule in driver["rules"]:
        for text in ("shortDescription", "fullDescription", "help"):
            assert rule[text]["text"].strip(), rule["id"]
        assert rule["defaultConfiguration"]["level"] in LEVELS
    for result in run["results"]:
        assert result["message"]["text"] and result["level"] in LEVELS
        if "ruleIndex" in result:
            assert identifiers[result["ruleIndex"]] == result["ruleId"]
        for location in result["locations"]:
            assert location["logicalLocations"][0]["fullyQualifiedName"]
            place = location.get("physicalLocation")
            if place is not None:
                assert "\\" not in place["artifactLocation"]["uri"]
                assert place["region"]["startLine"] >= 1
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        for notification in invocation.get("toolExecutionNotifications", []):
            assert notification["message"]["text"] and notification["level"] in LEVELS
    return run


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text("import torch\n\n\n@torch.no_grad\nclass Code:\n    pass\n")


def test_each_property_is_a_rule_with_help(code):
    run = check(sarif(answer(GOOD), {}))
    names = [option.name.replace(" ", "-") for option in registry.options("property")]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [*names, "incomplete"]
    assert run["results"] == [] and run["invocations"][0]["exitCode"] == 0


def test_each_failure_is_an_error_at_the_line_of_the_code(code):
    run = check(sarif(answer(GOOD, BAD, WORSE, examples=[EXAMPLE]), {"width": 8}))
    first, second = run["results"]
    assert (first["ruleId"], first["level"]) == ("causality", "error")
    assert first["message"]["text"] == (
        "Code: output 0 moves. Smallest: output 0 moves by 1 (length 2, made with width=1)"
    )
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "code.py"}, "region": {"startLine": 5}}
    assert first["properties"] == {"measured": None, "declared": True}
    assert second["ruleId"] == "left-padding" and run["invocations"][0]["exitCode"] == 1


def test_what_is_not_established_is_a_warning(code):
    run = check(sarif(answer(GOOD, UNCLEAR, window=9), {}))
    [result] = run["results"]
    assert (result["ruleId"], result["level"]) == ("incomplete", "warning")
    assert "declared and not established: window=9 (too wide)" in result["message"]["text"]
    both = check(sarif(answer(BAD, UNCLEAR, window=9), {}))["results"]
    assert [one["level"] for one in both] == ["error", "warning"]
    nothing = Answer(target="absent.py:Code", detail="absent.py is no file")
    [result] = check(sarif(nothing, {}))["results"]
    assert (result["level"], result["message"]["text"]) == ("warning", "absent.py is no file")


def test_an_error_of_ours_is_a_notification_and_no_result(code):
    ours = Answer(target="code.py:Code", detail="attnlab itself failed", traceback="Traceback …")
    run = check(sarif(ours, {}))
    [invocation] = run["invocations"]
    assert run["results"] == [] and not invocation["executionSuccessful"]
    assert invocation["exitCode"] == 3
    assert "Traceback" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_a_name_is_followed_to_the_file_that_defines_it(tmp_path, monkeypatch):
    package = tmp_path / "net_s"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from net_s.deep import Mine as Code\nmade = Code()\n")
    (package / "deep" / "__init__.py").write_text("from .code import Mine\n")
    (package / "deep" / "code.py").write_text("raise RuntimeError\nclass Mine:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    place = (package / "deep" / "code.py", 2)
    for target in ("net_s:Code", "net_s.deep:Mine", "net_s/__init__.py:Code.layers.0"):
        path, line = source_of(target)
        assert (path.resolve(), line) == place
    assert source_of("net_s:made")[1] == 2
    assert source_of("net_s:absent") == (package.relative_to(tmp_path) / "__init__.py", 1)
    assert source_of("torch.nn:Linear")[0].name == "linear.py"
    assert source_of("nowhere_s:Code") is None
    result = check(sarif(Answer(target="hf:llama", detail="no"), {}))["results"][0]
    assert "physicalLocation" not in result["locations"][0]
