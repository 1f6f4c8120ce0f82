"""A stranger's file may crash, hang, print, leave or eat memory: what is left is a report."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.errors import InputError
from attnlab.audit.sandbox import Answer, Limits, Request, advice_on, audit_here, audit_in_child
from attnlab.json_files import finite

GOOD = """
from torch import nn
class Code(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        {inside}
        return self.layer(x)
"""
SEGFAULT = "import ctypes; ctypes.string_at(0)"
MEMORY = "import torch; torch.empty(3 * 2**30, dtype=torch.uint8)"  # asked for, never touched
PRINTS = """import sys, os; print("{'answer': 1}"); os.write(1, b'raw'); sys.stderr.write('more')"""


@pytest.fixture
def ask(tmp_path):
    """The answer for a file with this at its top, and this in its forward."""

    def ask(top="", inside="pass", limits=Limits(seconds=60), **declared):  # noqa: B008
        path = tmp_path / "theirs.py"
        path.write_text(f"{top}\n{GOOD.format(inside=inside)}")
        request = Request(target=f"{path}:Code", contract=Contract(**declared))
        return audit_in_child(request, limits)

    return ask


def processes():
    """Those that this one has started, dead ones included."""
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(found.read_text().split()) if found.exists() else set()


@pytest.fixture(autouse=True)
def children():
    """What a test leaves behind; other tests in this process may have theirs."""
    before = processes()
    return lambda: processes() - before


def test_a_child_finds_what_this_process_finds_whatever_the_code_prints(ask, tmp_path, capfd):
    answer = ask(top=PRINTS, inside=PRINTS, causal=True)
    assert answer.certificate is not None and answer.certificate.verdict == "pass"
    assert capfd.readouterr() == ("", "")
    here = audit_here(Request(target=f"{tmp_path}/theirs.py:Code", contract=Contract(causal=True)))
    verdicts = [(one.name, one.verdict) for one in here.certificate.findings]
    assert [(one.name, one.verdict) for one in answer.certificate.findings] == verdicts
    assert answer.certificate.contract == Contract(causal=True)
    assert len(answer.certificate.influence) > 1
    json.dumps(answer.plain(), allow_nan=False)


@pytest.mark.parametrize(
    ("where", "what", "said"),
    [
        ("top", SEGFAULT, "Segmentation fault (SIGSEGV) while it was loaded; it printed: File"),
        ("inside", "import os; os._exit(0)", "exit code 0, as os._exit does"),
        ("inside", "import sys; sys.exit(7)", "SystemExit: 7"),
        ("top", "import sys; sys.exit(7)", "sys.exit(7)"),
        ("inside", "raise KeyboardInterrupt", "the code raised KeyboardInterrupt, as if"),
        ("top", "raise type('Odd', (BaseException,), {})('unheard of')", "Odd: unheard of"),
        ("top", "print('a hint'); import os; os.abort()", "Aborted (SIGABRT)"),
        ("top", "def nonsense(:", "line 1: "),
        ("top", "import no_such_module", "No module named 'no_such_module'"),
        ("top", "import torch; torch.zeros(1).cuda()", "it needs a GPU, and there is none here"),
        ("inside", MEMORY, "memory ran out; allow more with --memory"),
    ],
)
def test_code_that_cannot_be_audited_gets_one_line_that_says_why(
    ask, where, what, said, capfd, children
):
    answer = ask(**{where: what}, limits=Limits(seconds=60, gibibytes=2))
    assert answer.certificate is None
    assert said in answer.detail and "\n" not in answer.detail
    plain = answer.plain()
    assert (plain["verdict"], plain["checks"]) == ("incomplete", [])
    assert not children()
    assert capfd.readouterr() == ("", "")


BREAKS = """
from attnlab.audit.properties.finite import Finite
def examine(self, probe):
    raise KeyError("ours")
Finite.examine = examine
"""


def test_an_error_of_ours_in_the_child_is_said_with_its_traceback(ask):
    answer = ask(top=BREAKS)
    assert answer.certificate is None and answer.verdict == "error"
    assert answer.detail == "attnlab itself failed during finite: KeyError: 'ours'"
    assert 'raise KeyError("ours")' in answer.traceback and "AuditError" in answer.traceback
    plain = answer.plain()
    assert (plain["verdict"], plain["checks"]) == ("error", [])
    assert plain["traceback"] == answer.traceback


LEAKS = """
import torch
from torch import nn
class Code(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        return self.layer(x) + x.flip(1)
"""
BEFORE = {  # where an error of ours leaves no certificate
    "find_decoder": "attnlab.audit.subject.caches.find_decoder",
    "prepare": "attnlab.audit.repro.prelude.prepare",
    "options_of": "attnlab.audit.subject.load.options_of",
    "from_file": "attnlab.audit.subject.load.parts_of",
    "arrange": "attnlab.audit.subject.adapters._lay_out",
    "guard": "attnlab.audit.probe.probe.guard",
}
AFTER = {  # and where the certificate is finished
    "script": "attnlab.audit.repro.smallest.script",
    "smallest": "attnlab.audit.repro.smallest.smallest",
    "stage": "attnlab.audit.repro.stage.for_subject",
    "record": "attnlab.audit.repro.stage.record",
    "fresh": "attnlab.audit.repro.stage.prepare",
    "with_less": "attnlab.audit.repro.stage.defaults_of",
}
KINDS = [ValueError, OSError, KeyError]


@pytest.fixture
def leaky(tmp_path, monkeypatch):
    """Audits code that is not causal, while something of ours raises an error."""

    def audit(place, kind):
        path = tmp_path / "leaky.py"
        path.write_text(LEAKS)

        def broken(*given, **named):
            raise kind("ours")

        monkeypatch.setattr(place, broken)
        return audit_here(Request(target=f"{path}:Code", contract=Contract(causal=True)))

    return audit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", BEFORE)
def test_an_error_of_ours_is_never_blamed_on_the_code_whatever_its_type(leaky, place, kind):
    answer = leaky(BEFORE[place], kind)
    assert answer.certificate is None and answer.verdict == "error"
    assert "attnlab itself failed" in answer.detail and f"{kind.__name__}: " in answer.detail
    assert "raise kind" in answer.traceback


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", AFTER)
def test_an_error_of_ours_in_an_example_leaves_the_certificate(leaky, place, kind):
    answer = leaky(AFTER[place], kind)
    assert answer.verdict == "error" and "raise kind" in answer.traceback
    assert f"attnlab itself failed: {kind.__name__}: " in answer.detail
    assert answer.certificate is not None and answer.certificate.verdict == "fail"
    assert {one["name"] for one in answer.examples} == {
        one.name for one in answer.certificate.failed
    }
    plain = answer.plain()
    assert plain["verdict"] == "fail" and plain["traceback"] == answer.traceback


def test_an_error_of_ours_in_one_example_costs_no_other(tmp_path, monkeypatch):
    from attnlab.audit.repro import smallest

    usual, done = smallest.script, []

    def once(*given):
        done.append(given)
        if len(done) == 1:
            raise ValueError("ours")
        return usual(*given)

    monkeypatch.setattr(smallest, "script", once)
    path = tmp_path / "leaky.py"
    path.write_text(LEAKS.replace("x.flip(1)", "x.flip(1) + x.flip(0)"))
    answer = audit_here(Request(target=f"{path}:Code", contract=Contract(causal=True)))
    scripts = [bool(one["script"]) for one in answer.examples]
    assert scripts == [False, *[True] * (len(scripts) - 1)] and len(scripts) > 1
    assert answer.verdict == "error"


def test_code_that_leaves_while_an_example_is_made_leaves_the_certificate(tmp_path):
    path = tmp_path / "leaves.py"
    mark = tmp_path / "made"
    path.write_text(
        f"import pathlib, sys\nmark = pathlib.Path({str(mark)!r})\n"
        "if mark.exists(): sys.exit(5)\nmark.touch()\n" + LEAKS
    )
    answer = audit_here(Request(target=f"{path}:Code", contract=Contract(causal=True)))
    assert answer.verdict == "fail" and not answer.traceback
    assert {one["reason"] for one in answer.examples} == {
        "it could not be repeated: the code called sys.exit(5) while it was loaded or run"
    }


def test_an_error_of_ours_in_the_parent_is_said_too(ask, monkeypatch):
    def broken(target, plain):
        raise ValueError("ours")

    monkeypatch.setattr("attnlab.audit.sandbox.answer_of", broken)
    answer = ask()
    assert answer.verdict == "error" and answer.detail.endswith("failed: ValueError: ours")


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        ("from torch.nn.functional import scaled_dot_product_attention as code", [], "what it"),
        ("def code(q, k, v): return v", ["kv_heads=many"], "kv_heads is 'many'"),
        ("def code(q, k, v): return v", ["kv_heads=none"], "kv_heads is None"),
        ("def code(q, k, v): return v", ["kv_heads=-1"], "kv_heads is -1"),
        ("from torch import nn\ncode = nn.LazyLinear(8)", ["width=8"], "uninitialized parameter"),
        (
            "from torch import nn\nclass code(nn.Embedding):\n    def forward(self): pass\n"
            "code = code(9, 3)",
            [],
            "takes nothing",
        ),
    ],
)
def test_what_a_person_can_mend_is_no_error_of_ours(tmp_path, code, words, said):
    path = tmp_path / "theirs.py"
    path.write_text(code)
    answer = audit_here(Request(target=f"{path}:code", options=tuple(words)))
    assert (answer.certificate, answer.traceback) == (None, "")
    assert said in answer.detail


def test_a_name_that_is_too_long_for_a_file_is_a_slip():
    answer = audit_here(Request(target=f"{'long' * 99}.py:Code"))
    assert answer.verdict == "incomplete" and "cannot be read" in answer.detail


def test_a_crash_under_a_probe_names_the_probe(ask):
    answer = ask(inside=f"if x.shape[1] == 23: {SEGFAULT}")
    assert "while it examined evaluation" in answer.detail
    assert "theirs.py" in answer.detail  # where it happened


LEAVES = """
import os, pathlib, time
mark = pathlib.Path({mark!r})
""" + LEAKS.replace("        return", "        if mark.exists(): {does}\n        return")
PREFIX = """
from attnlab.audit.properties.prefix import Prefix
Prefix.examine = lambda self, probe: mark.touch() or probe.subject.run(probe.subject.draw(1, 5, 0))
"""


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A file; once it is there, time is up."""
    path, usual = tmp_path / "mark", time.monotonic
    clock = SimpleNamespace(monotonic=lambda: usual() + 1e6 * path.exists())
    monkeypatch.setattr("attnlab.audit.sandbox.time", clock)
    return path


@pytest.mark.parametrize(
    ("does", "cause", "causal"),
    [
        ("time.sleep(600)", "time ran out after 500 s", True),
        ("time.sleep(600)", "time ran out after 500 s", None),
        ("os._exit(3)", "the code ended its process with exit code 3, as os._exit does", True),
        ("exit(3)", "the code called sys.exit(3) while it was loaded or run", None),
        ("raise KeyboardInterrupt", "the code raised KeyboardInterrupt, as if", None),
        ("raise MemoryError", "memory ran out", True),
    ],
)
def test_an_audit_that_ends_early_tells_what_it_found_and_is_no_pass(
    tmp_path, mark, monkeypatch, does, cause, causal
):
    path = tmp_path / "leaves.py"
    path.write_text(LEAVES.format(mark=str(mark), does=does) + PREFIX)
    if "sleep" not in does:
        monkeypatch.setattr("attnlab.audit.sandbox.time", time)
    request = Request(target=f"{path}:Code", contract=Contract(causal=causal))
    answer = audit_in_child(request, Limits(seconds=500))
    certificate = answer.certificate
    assert certificate is not None and certificate.verdict == ("fail" if causal else "incomplete")
    verdicts = {one.name: one.verdict for one in certificate.findings}
    assert verdicts.pop("evaluation") == verdicts.pop("finite") == "pass"
    assert verdicts.pop("causality") == ("fail" if causal else "pass")
    assert "prefix" in verdicts and set(verdicts.values()) == {"cannot tell"}
    rest = {one.detail for one in certificate.findings if one.name in verdicts}
    assert len(rest) == 1 and cause in rest.pop()
    assert cause in certificate.unfinished and certificate.unfinished in certificate.reason
    if "sleep" in does:
        text = "time ran out after 500 s while it examined prefix; allow more with --timeout 1000"
        assert certificate.unfinished == text
    plain = answer.plain()
    assert plain["unfinished"] == certificate.unfinished and len(plain["checks"]) > 9


def test_time_that_runs_out_on_the_way_to_examples_leaves_the_certificate(tmp_path, mark):
    path = tmp_path / "leaves.py"
    slow = (
        "from attnlab.audit.repro import smallest\n"
        "smallest.example_of = lambda *given: mark.touch() or time.sleep(600)\n"
    )
    path.write_text(LEAVES.format(mark=str(mark), does="pass") + slow)
    request = Request(target=f"{path}:Code", contract=Contract(causal=True))
    answer = audit_in_child(request, Limits(seconds=500))
    assert answer.certificate is not None and not answer.certificate.unfinished
    assert answer.verdict == "fail" and answer.certificate.influence
    assert "time ran out after 500 s while it was run again to make" in answer.detail
    assert [one["script"] for one in answer.examples] == [""] * len(answer.certificate.failed)


@pytest.mark.parametrize(
    ("where", "phrase"),
    [("top", "while it was loaded"), ("inside", "while it was called for the first time")],
)
def test_it_is_said_whether_code_was_loaded_or_called(ask, where, phrase):
    assert phrase in ask(**{where: "import os; os._exit(0)"}).detail


def test_code_that_hangs_is_ended_with_all_that_it_started(ask, tmp_path, children):
    mark = tmp_path / "process"
    top = (
        "import subprocess, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "other = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(mark)!r}, 'w').write(str(other.pid))\n"
        "print('about to wait')\nwhile True: time.sleep(1)"
    )
    answer = ask(top=top, limits=Limits(seconds=8))
    assert "time ran out after 8 s while it " in answer.detail
    assert "; allow more with --timeout 60" in answer.detail
    assert "it printed: about to wait" in answer.detail
    assert not children()
    pid = int(mark.read_text())
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and alive(pid):
        time.sleep(0.05)
    assert not alive(pid)


# starts a process in a session of its own, and leaves it without a parent
DAEMON = """
import subprocess, sys
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(daemon.pid)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a session of its own gets away")
@pytest.mark.parametrize("end", ["pass", "import os; os._exit(3)", "while True: pass"])
def test_a_process_in_a_session_of_its_own_ends_with_the_code(ask, tmp_path, children, mark, end):
    noted = tmp_path / "process"
    top = (
        "import subprocess, sys\n"
        f"found = subprocess.check_output([sys.executable, '-S', '-c', {DAEMON!r}])\n"
        f"open({str(noted)!r}, 'wb').write(found)\n"
    )
    late = f"open({str(mark)!r}, 'w')\n" if end.startswith("while") else ""
    ask(top=top + late + end, limits=Limits(seconds=500))
    assert not alive(int(noted.read_text())) and not children()


FORGED = {"certificate": None, "detail": "forged", "traceback": "", "examples": []}


@pytest.mark.parametrize(
    "text", ["no JSON", json.dumps({"answer": FORGED}), "x" * 100_000], ids=["text", "json", "long"]
)
@pytest.mark.parametrize("line", ["\n", ""], ids=["line", "open"])
def test_code_that_writes_to_the_pipe_of_answers_ends_its_audit_and_forges_nothing(ask, text, line):
    top = (
        "import os, stat\nfor handle in range(3, 64):\n"
        "    try:\n"
        "        if stat.S_ISFIFO(os.fstat(handle).st_mode):\n"
        "            os.set_blocking(handle, False)\n"  # some library's own pipe has no reader
        f"            os.write(handle, {(text + line).encode()!r})\n"
        "    except OSError:\n        pass"
    )
    answer = ask(top=top, causal=True)
    assert answer.detail.startswith("the code wrote to the pipe of the audit's answers while it")
    assert answer.certificate is None and not answer.traceback


def alive(pid):
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_a_process_that_outlives_the_code_holds_nothing_up(ask):
    """Were it waited for, the test's own timeout would end this."""
    top = "import subprocess, os; subprocess.Popen(['sleep', '1000'], close_fds=False)"
    assert ask(top=f"{top}; os._exit(3)").detail.startswith("the code ended its process")


def test_temporary_files_of_the_code_go_with_it(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(tmp_path.iterdir())
    answer = ask(top="import tempfile, os; tempfile.mkdtemp(); os._exit(1)")
    assert answer.certificate is None
    assert {one.name for one in set(tmp_path.iterdir()) - before} == {"theirs.py"}


def test_a_child_without_a_parent_ends_itself(tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text("import time\ntime.sleep(100)")
    program = (
        "import os; from attnlab.audit import sandbox; sandbox.GRACE = 1\n"
        "reads, writes = os.pipe(); os.dup2(writes, 9)\n"
        "import sys; sys.argv = ['child', '9']; sandbox.main()"
    )
    limits = vars(Limits(seconds=1))
    given = {**Request(target=f"{path}:Code").plain(), **limits, "secret": ""}
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(given).encode())
    assert done.returncode == -14  # SIGALRM: it did not wait for the code to end


def test_limits_are_above_zero():
    for limits in ({"seconds": 0}, {"gibibytes": -1}, {"seconds": float("nan")}):
        with pytest.raises(ValueError, match="use more than 0"):
            Limits(**limits)


def test_what_json_cannot_hold_becomes_none():
    finding = Finding(name="padding", verdict="fail", detail="…", measured=float("inf"))
    certificate = Certificate(target="x", contract=Contract(), findings=(finding,))
    plain = Answer(target="x", certificate=certificate).plain()
    assert plain["checks"][0]["measured"] is None
    assert finite({"a": (1.0, float("nan"))}) == {"a": [1.0, None]}


def test_a_long_reason_is_cut_in_its_middle():
    text = advice_on(InputError("begin " + "x" * 5000 + "\nend"))
    assert len(text) < 700 and text.startswith("begin") and text.endswith(" end")
