"""The files in examples/ci do what they say: their commands are run on right and on wrong code."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
CI = ROOT / "examples" / "ci"
RIGHT, WRONG = "examples/causal.py:CausalAttention", "examples/leaky.py:LeakyAttention"

yaml = pytest.importorskip("yaml")


@pytest.fixture
def shell(tmp_path):
    """Runs a line in a folder that holds the examples, with attnlab on its path."""
    program = tmp_path / "bin" / "attnlab"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m attnlab "$@"\n')
    program.chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def run(line, **env):
        known = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **env}
        return subprocess.run(
            ["bash", "-e", "-c", line], cwd=tmp_path, env=known, capture_output=True, text=True
        )

    return run


def test_the_action_audits_uploads_and_fails_with_the_audit(shell, tmp_path):
    workflow = yaml.safe_load((CI / "github-action.yml").read_text())
    job = workflow["jobs"]["audit"]
    assert workflow["permissions"]["security-events"] == "write"
    steps = {step["name"]: step for step in job["steps"] if "name" in step}
    assert steps["Upload"]["with"]["sarif_file"] == "audit.sarif"
    assert "!cancelled()" in steps["Upload"]["if"]  # also after a failure
    assert not any(step.get("continue-on-error") for step in job["steps"])
    done = shell(steps["Audit"]["run"], **job["env"])
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "audit.sarif").read_text())["runs"][0]["results"] == []
    done = shell(steps["Audit"]["run"], **{**job["env"], "CODE": WRONG})
    [run] = json.loads((tmp_path / "audit.sarif").read_text())["runs"]
    assert done.returncode == run["invocations"][0]["exitCode"] == 1
    places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
    line = Path(ROOT / "examples" / "leaky.py").read_text().split("class LeakyAttention")[0]
    assert places[0]["region"]["startLine"] == line.count("\n") + 1


def test_the_hook_passes_right_code_and_stops_a_commit_of_wrong_code(shell):
    [repository] = yaml.safe_load((CI / "pre-commit-config.yaml").read_text())["repos"]
    [hook] = repository["hooks"]
    assert (repository["repo"], hook["language"], hook["pass_filenames"]) == (
        "local",
        "system",
        False,
    )
    assert RIGHT in hook["entry"]
    assert shell(hook["entry"]).returncode == 0
    assert shell(hook["entry"].replace(RIGHT, WRONG)).returncode == 1


def test_the_line_for_junit_makes_a_report(shell, tmp_path):
    text = (CI / "README.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("pytest ")]
    line = line.replace("pytest", f"{shlex.quote(sys.executable)} -m pytest -p no:cacheprovider", 1)
    done = shell(line.replace(RIGHT, WRONG))
    assert done.returncode == 1, done.stdout + done.stderr
    suite = ElementTree.parse(tmp_path / "audit.xml").getroot()[0]
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"causality", "verdict"} <= failed
    files = {line.split("](")[1].split(")")[0] for line in text.splitlines() if "](" in line}
    assert all((CI / file).is_file() for file in files)
