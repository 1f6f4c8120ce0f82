"""In pytest, each property of code on the command line is a test, and contracts have a fixture."""

import subprocess
import sys

import pytest
import torch._dynamo  # noqa: F401  pytester forgets what is imported within it; this cannot come twice

from attnlab.audit import declaration, sandbox

KEPT = (declaration, sandbox)  # a session inside this one forgets what it imports first
pytest_plugins = ["pytester"]
PLUGIN = ["-p", "no:attnlab", "-p", "attnlab.audit.plugins.pytest_plugin", "-p", "no:cacheprovider"]
CODE = """
import torch
from torch import nn
class Sees(nn.Module):
    def __init__(self, width, ahead=0):
        super().__init__()
        self.ahead, self.layer = ahead, nn.Linear(width, width)
    def forward(self, x):
        return self.layer(x.cumsum(1) + (x.roll(-1, 1) if self.ahead else 0))
"""


@pytest.fixture
def run(pytester):
    pytester.makepyfile(theirs=CODE)

    def run(*words):
        return pytester.runpytest_inprocess(*PLUGIN, "-v", *words)

    return run


def test_each_property_is_a_test(run):
    result = run("--attnlab-audit=theirs.py:Sees width=8 ahead=1", "--attnlab-declare=causal=true")
    outcomes = result.parseoutcomes()
    # the property, and the verdict
    assert outcomes["failed"] == 2 and outcomes["passed"] > 1 and outcomes["skipped"] > 0
    result.stdout.fnmatch_lines(["*theirs.py:Sees, causality: output * moves by *"])
    result.stdout.fnmatch_lines(["smallest: output * moves by *"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_several_can_be_given_and_chosen_from(run):
    both = ["--attnlab-audit=theirs.py:Sees width=8", "--attnlab-audit=theirs.py:Sees width=4"]
    result = run(*both, "-k", "causality", "--attnlab-declare=causal=true")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 2 and "failed" not in outcomes


def test_what_cannot_be_audited_fails_in_one_line(run):
    result = run("--attnlab-audit=theirs.py:Absent", "-k", "causality")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["theirs.py:Absent was not audited: *has no 'Absent'*"])


def test_an_error_of_ours_is_shown_with_its_traceback(run, pytester):
    pytester.makepyfile(
        breaks="""
        from attnlab.audit.repro import smallest
        def script(*given):
            raise ValueError("ours")
        smallest.script = script
        from theirs import Sees
        """
    )
    result = run("--attnlab-audit=breaks.py:Sees width=8 ahead=1", "--attnlab-declare=causal=true")
    assert result.parseoutcomes()["failed"] == 2  # causality as ever, and the verdict
    result.stdout.fnmatch_lines(["*breaks.py:Sees, causality: output * moves by *"])
    result.stdout.fnmatch_lines(["breaks.py:Sees: attnlab itself failed: ValueError: ours"])
    result.stdout.fnmatch_lines(["*Traceback (most recent call last):"])


def test_a_value_error_that_is_no_slip_is_shown_with_its_traceback(pytester):
    pytester.makepyfile(theirs=CODE)
    pytester.makeconftest(
        """
        from attnlab.audit import declaration
        def broken(*given):
            raise ValueError("ours")
        declaration.read_contract = broken
        """
    )
    code = "--attnlab-audit=theirs.py:Sees width=8"
    result = pytester.runpytest_subprocess(*PLUGIN, code, "-k", "causality")
    result.stdout.fnmatch_lines(["*raise ValueError(*"])


def test_a_slip_on_the_command_line_is_one_line(run):
    for words in (["--attnlab-declare=casual=true"], ["--attnlab-timeout=0"]):
        result = run("--attnlab-audit=theirs.py:Sees width=8", "-k", "causality", *words)
        result.stdout.fnmatch_lines(["*did you mean*" if "casual" in words[0] else "*use more*"])
        result.stdout.no_fnmatch_line("*Error*")


def test_what_is_declared_and_not_established_fails(run):
    code, declare = "--attnlab-audit=theirs.py:Sees width=8", "--attnlab-declare=cache=true"
    result = run(code, declare)
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["theirs.py:Sees: cache=true was not established: no cache *"])
    result.stdout.fnmatch_lines(["theirs.py:Sees: incomplete; declared and not established: *"])
    assert run(code).ret == pytest.ExitCode.OK


def test_what_cannot_be_told_at_all_fails(run, pytester):
    pytester.makepyfile(
        once="""
        calls = []
        def attend(q, k, v):
            calls.append(q)
            assert len(calls) == 1, "once only"
            return v
        """
    )
    result = run("--attnlab-audit=once.py:attend")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["once.py:attend: incomplete; no property passes: *once only*"])


def test_nothing_is_collected_where_nothing_is_asked(run):
    assert run().ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_fixture_holds_code_to_its_contract(pytester):
    pytester.makepyfile(
        theirs=CODE,
        test_theirs="""
        import theirs
        def test_good(attnlab_audit):
            assert attnlab_audit(theirs.Sees(8), causal=True).verdict == "pass"
        def test_bad(attnlab_audit):
            attnlab_audit(theirs.Sees(8, ahead=1), causal=True)
        """,
    )
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*does not keep its contract*"])


def test_loading_it_does_not_load_torch():
    """Every run of pytest pays for what a plugin imports."""
    program = (
        "import sys, types; package = types.ModuleType('attnlab.audit')\n"
        "import attnlab; package.__path__ = [attnlab.__path__[0] + '/audit']\n"
        "sys.modules['attnlab.audit'] = package\n"  # what the package itself imports is its own
        "import attnlab.audit.plugins.pytest_plugin, attnlab.audit.sandbox\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
