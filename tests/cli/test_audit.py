"""`attnlab audit`: verdicts as exit codes, evidence as files, and one line for every slip."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAKY = f"{ROOT}/examples/leaky.py:LeakyAttention"


def test_a_failure_comes_with_its_certificate_and_a_script_that_shows_it(attnlab):
    pytest.importorskip("matplotlib")
    words = ["width=8", "--declare", "causal=true", "--html", "page.html", "--repro", "deep/repro"]
    code, out, err = attnlab("audit", LEAKY, *words)
    assert code == 1 and err == ""
    assert "causality    fail" in out and "smallest: output 0 moves by" in out
    assert "(batch 1, length 2, made with width=1 heads=1)" in out
    assert "wrote page.html\nwrote deep/repro/LeakyAttention_causality.py\n" in out
    page = Path("page.html").read_text()
    assert "It fails 2 properties" in page and page.count("<svg") == 2
    assert f"attnlab audit {LEAKY} width=8 --declare causal=true" in page
    scripts = sorted(Path("deep/repro").iterdir())
    kinds = ["LeakyAttention_causality.py", "LeakyAttention_weights.py"]
    assert [script.name for script in scripts] == kinds
    for script, said in zip(scripts, ("output 0 moves by", "query "), strict=True):
        done = subprocess.run([sys.executable, script], capture_output=True, text=True)
        assert done.returncode == 1 and done.stdout.startswith(f"wrong: {said}")


def test_json_is_all_that_is_printed(attnlab):
    path = Path("theirs.py")
    path.write_text(
        "import torch\nprint('hello')\n"
        "def attention(q, k, v):\n"
        "    print('called')\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
    )
    code, out, err = attnlab("audit", "theirs.py:attention", "--declare", "causal=true", "--json")
    found = json.loads(out)
    assert code == 0 and err == ""
    assert (found["target"], found["verdict"]) == ("attention", "pass")
    assert {"name", "verdict", "measured", "declared", "detail"} <= found["checks"][0].keys()


def test_files_that_were_written_are_named_beside_the_json(attnlab):
    words = ["width=8", "--declare", "causal=true", "--json", "--in-process"]
    code, out, err = attnlab("audit", LEAKY, *words, "--sarif", "x.sarif", "--repro", "scripts")
    assert code == 1 and json.loads(out)["verdict"] == "fail"
    names = ["scripts/LeakyAttention_causality.py", "scripts/LeakyAttention_weights.py", "x.sarif"]
    assert err.splitlines() == [f"wrote {name}" for name in names]
    results = json.loads(Path("x.sarif").read_text())["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["causality", "weights"]
    place = results[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("examples/leaky.py")
    code, _, err = attnlab("audit", "absent.py:Code", "--sarif", "x.sarif")
    assert code == 2 and "is no file" in err
    [result] = json.loads(Path("x.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "incomplete" and "is no file" in result["message"]["text"]


def test_one_reason_for_which_nothing_can_be_told_is_said_once(attnlab):
    Path("theirs.py").write_text(
        "calls = []\ndef attend(q, k, v):\n    calls.append(q)\n"
        "    assert len(calls) == 1, 'once only'\n    return v\n"
    )
    code, out, _ = attnlab("audit", "theirs.py:attend", "--in-process")
    assert code == 2 and out.count("once only") == 1


def test_what_code_prints_in_this_process_stays_out_of_the_json(attnlab):
    Path("theirs.py").write_text("print('hello')\nfrom torch import nn\ncode = nn.Linear(8, 8)")
    code, out, err = attnlab("audit", "theirs.py:code", "--in-process", "--json")
    assert code == 0 and json.loads(out)["verdict"] == "pass" and "hello" in err


def test_the_contract_may_come_from_a_file_and_words_win_over_it(attnlab):
    Path("contract.json").write_text('{"causal": true, "window": 3}')
    words = ["width=8", "--contract", "contract.json", "--json", "--in-process"]
    _, out, _ = attnlab("audit", LEAKY, *words, "--declare", "causal=false")
    declared = {one["name"]: one["declared"] for one in json.loads(out)["checks"]}
    assert (declared["causality"], declared["window"]) == (False, 3)


def test_code_that_crashes_gives_json_and_one_line(attnlab):
    Path("theirs.py").write_text("import os; os.abort()")
    code, out, err = attnlab("audit", "theirs.py:Code", "--json")
    assert code == 2
    found = json.loads(out)
    assert found["verdict"] == "incomplete" and found["checks"] == []
    assert "SIGABRT" in found["detail"] and err.count("\n") == 1 and "SIGABRT" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent.py:Code"], "absent.py is no file"),
        (["theirs"], "write file.py:Name"),
        (
            ["theirs.py"],
            "write theirs.py:Code or theirs.py:Gpu or theirs.py:Two or theirs.py:Exits",
        ),
        (["package.theirs.Code"], "names no code; write package.theirs:Code"),
        (["nowhere.deep:Code"], "such as nowhere/deep.py, or install the package (pip install no"),
        (["work.ipynb"], "it is a notebook: call attnlab.audit.audit(module) in it, or save"),
        (["work.ipynb:Code"], "it is a notebook: call attnlab.audit.audit(module) in it, or save"),
        (
            ["torch.nn:TransformerDecoder", "num_layers=2"],
            "decoder_layer, which is a module and no",
        ),
        (["torch.nn:TransformerDecoder", "num_layers=2"], "(decoder_layer=…, num_layers=2)"),
        (["theirs.py:Still"], "Still has no forward, so it cannot be called; name a module that"),
        (["theirs.py:Holds", "layer=Good"], "(layer=Good is the text 'Good', not the Good of the"),
        (["theirs.py:Code", "--declare", "positions=rope"], "'rope'; did you mean 'rotary'?"),
        (
            ["theirs.py:Code", "--declare", "positions=x"],
            "it must be one of none, absolute, relative, rotary, alibi",
        ),
        (["theirs.py:Cod"], "has no 'Cod'; did you mean 'Code'?"),
        (["theirs.py:Code"], "needs width; add width=…"),
        (["theirs.py:Code", "width=8", "wide=3"], "takes no 'wide'"),
        (["theirs.py:Code", "width=8"], "outputs must be [batch, time, width]"),
        (["theirs.py:Gpu"], "it needs a GPU, and there is none here; audit it on a machine that"),
        (["theirs.py:Two"], "missing 1 required positional argument: 'other'; wrap it in"),
        (["theirs.py:Plain"], "Plain gives a Plain; it must give a module, a function"),
        (["theirs.py:Exits"], "the code called sys.exit(3)"),
        (["theirs.py:nothing"], "nothing in theirs.py is int; name a class or a function"),
        (["broken.py:Code"], "broken.py, line 1:"),
        (["zeros.py:Code"], "zeros.py: source code string cannot contain null bytes"),
        (["theirs.py:Code", "--declare", "casual=true"], "did you mean"),
        (["theirs.py:Code", "--declare", "window=0"], "1 or more"),
        (
            ["theirs.py:Code", "--contract", "absent.json"],
            "--contract absent.json is no file; give",
        ),
        (["theirs.py", "Good"], "write theirs.py:Good"),
        (
            ["theirs.py:Good", "causal=true"],
            "takes no 'causal'; what it must do is declared: --dec",
        ),
        (["theirs.py:attend", "causal=true"], "takes no 'causal'; what it must do is declared: --"),
        (
            ["theirs.py:Good", "--declare", "causal=true", "--declare", "causal=false"],
            "declare it o",
        ),
        (
            ["theirs.py:Code", "--sarif", "no/such.sarif"],
            "--sarif no/such.sarif: there is no folder no",
        ),
        (["theirs.py:Code", "--contract", "broken.py"], "broken.py is not JSON"),
        (
            ["theirs.py:Code", "--contract", "broken.py"],
            'write it as {"causal": true, "window": 8}',
        ),
        (["theirs.py:Code", "--contract", "contract.json"], "contract.json: colour: no such"),
        (["theirs.py:Code", "--html", "no/such/page.html"], "no folder no/such; make it first"),
        (["theirs.py:Code", "--html", "."], "--html . is a folder; name a file in it"),
        (["theirs.py:Code", "--html", "/proc/page.html"], "/proc/page.html cannot be written"),
        (["theirs.py:Code", "--repro", "/proc/scripts"], "is no folder that can be written"),
        (["theirs.py:Code", "--devise", "cuda"], "no option --devise; did you mean '--device'?"),
        (["theirs.py:Code", "--in_proces"], "no option --in_proces; did you mean '--in-proc"),
        (["theirs.py:Code", "--repro", "theirs.py"], "is no folder that can be written"),
        (["theirs.py:Code", "--repro", "theirs.py/inside"], "is no folder that can be written"),
        (["theirs.py:Code", "--timeout", "0"], "the limit of time is 0"),
        (["theirs.py:Code", "--memory", "-1"], "the limit of memory is -1"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_2(attnlab, words, said):
    Path("theirs.py").write_text(
        "from torch import nn\n"
        "class Code(nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(width, width)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x).sum()\n"
        "class Good(nn.Linear):\n"
        "    def __init__(self, width=8):\n"
        "        super().__init__(width, width)\n"
        "class Gpu(Good):\n"
        "    def forward(self, x):\n"
        "        raise AssertionError('Torch not compiled with CUDA enabled')\n"
        "class Two(Good):\n"
        "    def forward(self, x, other):\n"
        "        return x + other\n"
        "class Exits(Good):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        Exits.calls += 1\n"
        "        return super().forward(x) if Exits.calls < 9 else exit(3)\n"
        "class Plain: pass\n"
        "class Still(nn.Module): pass\n"
        "class Holds(nn.Module):\n"
        "    def __init__(self, layer):\n"
        "        super().__init__()\n"
        "        self.layer = layer\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
        "def attend(q, k, v): return v\n"
        "nothing = 3\n"
    )
    Path("broken.py").write_text("def (")
    Path("zeros.py").write_bytes(b"x = 1\0")
    Path("contract.json").write_text('{"colour": 3}')
    # in this process: what these show does not depend on where the code runs
    code, out, err = attnlab("audit", *words, "--in-process")
    assert code == 2 and out == ""
    assert said in " ".join(err.split()) and err.count("\n") == 1 and "Traceback" not in err


def test_a_place_that_cannot_be_written_is_found_before_the_audit(attnlab):
    Path("theirs.py").write_text("raise RuntimeError('this was run')")
    code, _, err = attnlab("audit", "theirs.py:Code", "--html", "no/page.html")
    assert code == 2 and "there is no folder no" in err and "this was run" not in err


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (
            "while True: pass",
            "time ran out after 6 s while it was loaded; allow more with --timeout 60",
        ),
        ("import os; os._exit(0)", "ended its process with exit code 0"),
        ("import torch; torch.empty(3 * 2**30, dtype=torch.uint8)", "memory ran out; allow more"),
    ],
)
def test_code_that_hangs_leaves_or_eats_memory_gives_json_and_one_line(attnlab, does, said):
    Path("theirs.py").write_text(does)
    limits = ["--timeout", "6" if "while" in does else "60", "--memory", "1"]
    code, out, err = attnlab("audit", "theirs.py:Code", *limits, "--json")
    found = json.loads(out)
    assert code == 2 and found["verdict"] == "incomplete" and found["checks"] == []
    assert said in found["detail"] and said in err and err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(attnlab, tmp_path):
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o500)
    for option in (["--html", shut / "page.html"], ["--repro", shut / "scripts"]):
        code, _, err = attnlab("audit", LEAKY, "width=8", *option)
        assert code == 2 and "written" in err


def test_when_nothing_can_be_said_the_exit_code_is_2_with_one_line(attnlab):
    Path("theirs.py").write_text(
        "calls = []\n"
        "def attend(q, k, v):\n"
        "    calls.append(q)\n"
        "    assert len(calls) == 1, 'once only'\n"
        "    return v\n"
    )
    code, _, err = attnlab("audit", "theirs.py:attend", "--in-process")
    assert code == 2 and err.strip().count("\n") == 0
    assert "the audit of theirs.py:attend is incomplete" in err and "once only" in err


def test_an_error_of_attnlab_itself_is_exit_code_3_with_its_traceback(attnlab):
    Path("theirs.py").write_text(
        "from torch import nn\n"
        "from attnlab.audit.properties.finite import Finite\n"
        "Finite.examine = lambda self, probe: {}['ours']\n"
        "code = nn.Linear(8, 8)\n"
    )
    code, out, err = attnlab("audit", "theirs.py:code", "--declare", "causal=true")
    assert (code, out) == (3, "") and "Traceback" in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: theirs.py:code was not audited: attnlab itself failed during")
    assert "finite: KeyError: 'ours'; please report this" in last
    code, out, _ = attnlab("audit", "theirs.py:code", "--json")
    assert code == 3 and json.loads(out)["verdict"] == "error"


@pytest.mark.parametrize(  # of every kind at every place: tests/audit/test_sandbox.py
    ("kind", "where"),
    [("ValueError", ["--in-process"]), ("OSError", []), ("KeyError", ["--in-process"])],
)
def test_an_error_of_ours_is_exit_code_3_before_the_certificate_and_after_it(attnlab, kind, where):
    """Before: nothing is printed. After: the certificate first, and then the traceback."""
    Path("theirs.py").write_text(
        "import torch\n"
        "from attnlab.audit.repro import smallest\n"
        "from attnlab.audit.subject import caches\n"
        "def broken(*given):\n"
        f"    raise {kind}('ours')\n"
        "class Code(torch.nn.Linear):\n"
        "    def __init__(self, width=8, module=None, name=''):\n"
        "        super().__init__(width, width)\n"
        "        if name:\n"
        "            setattr({'caches': caches, 'smallest': smallest}[module], name, broken)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) + x.flip(1)\n"
    )
    from attnlab.audit.repro import smallest
    from attnlab.audit.subject import caches

    words = ["theirs.py:Code", "--declare", "causal=true", *where]
    with pytest.MonkeyPatch.context() as patch:  # what the file changes in this process
        patch.setattr(caches, "find_decoder", caches.find_decoder)
        code, out, err = attnlab("audit", *words, "module=caches", "name=find_decoder")
    assert (code, out) == (3, "") and "Traceback" in err
    assert "was not audited: attnlab itself failed" in err.splitlines()[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smallest, "script", smallest.script)
        words += ["module=smallest", "name=script", "--html", "page.html", "--repro", "scripts"]
        code, out, err = attnlab("audit", *words)
        assert code == 3 and "causality    fail" in out and "\nCode: fail\nwrote page.html\n" in out
        assert "Traceback" in err and f"{kind}: " in err
        assert "was audited, but attnlab itself failed" in err.splitlines()[-1]
        assert "It fails" in Path("page.html").read_text()
        code, out, err = attnlab("audit", *words, "--json")
    found = json.loads(out)
    assert code == 3 and found["verdict"] == "fail" and f"{kind}: " in found["traceback"]


def test_an_error_of_ours_in_the_page_of_a_certificate_leaves_the_certificate(attnlab, monkeypatch):
    pytest.importorskip("matplotlib")

    def broken(*given):
        raise ValueError("ours")

    monkeypatch.setattr("attnlab.audit.certificate.page", broken)
    words = ["width=8", "--in-process", "--html", "page.html", "--repro", "scripts"]
    code, out, err = attnlab("audit", LEAKY, *words, "--declare", "causal=true")
    assert code == 3 and "LeakyAttention: fail" in out and "Traceback" in err
    assert any(Path("scripts").iterdir()) and not Path("page.html").exists()


def test_what_is_declared_and_not_established_is_exit_code_2_and_named(attnlab):
    Path("theirs.py").write_text(
        "import torch\n"
        "def attend(q, k, v):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
    )
    words = ["theirs.py:attend", "--in-process", "--declare", "causal=true"]
    assert attnlab("audit", *words)[0] == 0
    code, out, err = attnlab("audit", *words, "--declare", "cache=true")
    assert code == 2 and out.rstrip().endswith("attend: incomplete")
    assert "declared and not established: cache=true (no cache was found" in err
    code, out, _ = attnlab("audit", *words, "--declare", "cache=true", "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["unestablished"]) == (2, "incomplete", ["cache"])


def test_what_is_no_file_of_ours_is_not_replaced(attnlab):
    os.mkfifo("pipe")
    Path("link.html").symlink_to("real.html")
    Path("real.html").write_text("old")
    for word in ("pipe", "/dev/null", LEAKY.partition(":")[0]):
        code, _, err = attnlab("audit", LEAKY, "width=8", "--in-process", "--html", word)
        assert code == 2 and "would be replaced" in err
    attnlab("audit", LEAKY, "width=8", "--in-process", "--html", "link.html")
    assert Path("link.html").is_symlink() and "old" not in Path("real.html").read_text()[:9]


STOPS = """
import pathlib, time, torch
mark = pathlib.Path("mark")
class Code(torch.nn.Linear):
    def __init__(self, width=8):
        super().__init__(width, width)
    def forward(self, x):
        if mark.exists(): time.sleep(600)
        return super().forward(x) + x.flip(1)
from attnlab.audit.properties.prefix import Prefix
Prefix.examine = lambda self, probe: mark.touch() or probe.subject.run(probe.subject.draw(1, 5, 0))
"""


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ([], signal.SIGINT),
        (["--in-process"], signal.SIGINT),
        (["--json"], signal.SIGINT),
        (["--json"], signal.SIGTERM),
    ],
)
def test_a_signal_shows_what_is_there_and_one_line(tmp_path, where, number):
    """As a terminal sends it: to every process of the group."""
    said = "stopped by Ctrl-C" if number == signal.SIGINT else "stopped by SIGTERM"
    (tmp_path / "theirs.py").write_text(STOPS)
    words = ["theirs.py:Code", "--declare", "causal=true", "--timeout", "500", *where]
    process = subprocess.Popen(
        [sys.executable, "-m", "attnlab", "audit", *words, "--html", "page.html"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not (tmp_path / "mark").exists():
        time.sleep(0.05)
    os.killpg(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == 128 + number, err
    if where == ["--json"]:
        found = json.loads(out)
        assert found["verdict"] == "fail" and said in found["unfinished"]
    else:
        assert "causality    fail" in out and f"cannot tell    {said}" in out
        assert "Code: fail" in out
    assert err.count("\n") == 1 and said in err
    assert not (tmp_path / "page.html").exists()
