"""Counter-examples are as small as they can be, and their scripts tell broken code from mended."""

import runpy
import subprocess
import sys

import pytest
import torch

from attnlab import registry
from attnlab.audit.contract import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.repro import smallest as smallest_module
from attnlab.audit.repro.smallest import legal, run, smaller, weight
from attnlab.audit.repro.stage import for_subject
from attnlab.audit.sandbox import Request, audit_here
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.load import from_file

CODE = """
import torch
import torch.nn.functional as F
from torch import nn

BUG = "{bug}"
left = []


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, window=3):
        super().__init__()
        self.heads, self.window = heads, window
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def new_cache(self):
        return {{"keys": []}} if BUG != "left over" else {{"keys": left}}

    def forward(self, x, attention_mask=None, cache=None):
        if BUG == "batch":
            x = x - x.mean(0, keepdim=True)
        if BUG == "dropout":
            x = F.dropout(x, 0.5)
        past = cache["keys"][-1].shape[1] if cache is not None and cache["keys"] else 0
        if past:
            x = torch.cat([cache["keys"][-1], x], dim=1)
        if cache is not None:
            cache["keys"].append(x)
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        window = self.window + {{"wide": 1, "narrow": -1}}.get(BUG, 0)
        seen = (apart >= 0) & (apart < window)
        if BUG == "future":
            seen |= (apart >= -9) & (apart <= -8)
        if BUG == "steps" and past:
            seen |= apart < window + 1
        if attention_mask is not None and BUG != "padding":
            seen = seen & attention_mask[:, None, None].bool()
            v = torch.where(attention_mask[:, None, :, None].bool(), v, 0)
            k = torch.where(attention_mask[:, None, :, None].bool(), k, 0)
            q = torch.where(attention_mask[:, None, :, None].bool(), q, 0)
        if BUG == "overflow":
            weights = (q @ k.transpose(-1, -2)).exp().masked_fill(~seen, 0)
            out = weights / weights.sum(-1, keepdim=True) @ v
        else:
            scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, -1e300)
            out = scores.softmax(-1) @ v
        out = self.merge(out.transpose(1, 2).flatten(2))
        return out[:, past:]


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=BUG != "future")


def make(depth=2, width=16):
    return nn.Sequential(*(Attention(width) for _ in range(depth)))
"""
DECLARED = {"future": {"causal": True}, "wide": {"window": 3}, "narrow": {"window": 3}}
BUGS = {
    "future": ("causality", {"length": 9, "batch": 1}),
    "wide": ("window", {"length": 4}),
    "narrow": ("window", {"length": 3}),
    "steps": ("cache", {"pieces": [3, 1], "batch": 1}),
    "left over": ("cache", {"pieces": [1], "batch": 1, "warm": True}),
    "batch": ("batch", {"length": 1, "batch": 2}),
    "padding": ("padding", {"length": 2, "batch": 1, "real": 1}),
    "dropout": ("evaluation", {"length": 1, "batch": 1}),
    "overflow": ("finite", {"length": 1, "batch": 1}),
}


@pytest.fixture(autouse=True)
def one_thread():
    """As in the child: for inputs as small as these, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def write(tmp_path):
    def write(bug, name="theirs.py"):
        path = tmp_path / name
        path.write_text(CODE.format(bug=bug))
        return path

    return write


def examples(path, name, declared, *words):
    request = Request(target=f"{path}:{name}", options=words, contract=Contract(**declared))
    answer = audit_here(request)
    assert answer.certificate is not None, answer.detail
    return {one["name"]: one for one in reversed(answer.examples)}  # the first of each


def exit_code(script, *words, monkeypatch, capsys):
    """Runs a script as if this package were not there."""
    for name in [one for one in sys.modules if one.split(".")[0] == "attnlab"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, words)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with torch.random.fork_rng(), pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    monkeypatch.undo()
    return stop.value.code, capsys.readouterr().out


@pytest.mark.parametrize("bug", BUGS)
def test_a_script_fails_on_the_bug_and_passes_once_it_is_mended(
    bug, write, tmp_path, monkeypatch, capsys
):
    broken = write(bug)
    finding, smallest = BUGS[bug]
    found = examples(broken, "Attention", DECLARED.get(bug, {}), "width=16")
    assert finding in found, found
    one = found[finding]
    assert one["script"], one["reason"]
    assert {name: one["sizes"].get(name) for name in smallest} == smallest
    assert one["options"]["heads"] == 1
    script = tmp_path / one["file"]
    script.write_text(one["script"])
    tools = {"monkeypatch": monkeypatch, "capsys": capsys}
    code, out = exit_code(script, **tools)  # the file beside it
    assert code == 1 and one["sentence"] in out
    mended = write("", "mended.py")
    code, out = exit_code(script, mended, **tools)
    assert code == 0 and out.startswith("mended: ")


@pytest.mark.parametrize("bug", BUGS)
def test_the_case_that_failed_fails_again_in_newly_made_code_with_the_same_numbers(bug, write):
    target = f"{write(bug)}:Attention"
    torch.manual_seed(0)  # as every audit does
    subject = subject_for(from_file(target, {"width": 16}), {"width": 16}, "Attention")
    probe = Probe(subject, Contract(**DECLARED.get(bug, {})))
    finding = registry.load("property", BUGS[bug][0])().examine(probe)
    assert finding.verdict == "fail"
    stage = for_subject(subject, target, {"width": 16})
    sentence = finding.detail.partition("; protocol: ")[0]
    assert run(stage.again(), finding.example) == (True, sentence)


def test_where_it_does_not_the_report_says_what_that_means(tmp_path):
    path = tmp_path / "late.py"
    path.write_text(
        "from torch import nn\n"
        "class Late(nn.Linear):\n"
        "    calls = 0\n"
        "    def __init__(self, dim=8):\n"
        "        super().__init__(dim, dim)\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        y = super().forward(x)\n"
        "        return y + y.flip(1) if self.calls > 90 else y\n"
    )
    one = examples(path, "Late", {"causal": True})["causality"]
    assert not one["script"] and "depends on chance, or on what it ran before" in one["reason"]


def test_a_script_runs_in_a_bare_interpreter(write, tmp_path):
    broken = write("future")
    one = examples(broken, "Attention", {"causal": True})["causality"]
    script = tmp_path / one["file"]
    script.write_text(one["script"])
    blocked = f"import sys, runpy; sys.modules['attnlab'] = None; sys.argv = {[str(script)]!r}; "
    run = f"runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", blocked + run], capture_output=True)
    assert done.returncode == 1, done.stderr.decode()
    broken.write_text(broken.read_text().replace("def forward(self, x,", "def forward(self, z,"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" in done.stderr  # broken down is not still wrong
    broken.unlink()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 2 and "give its path" in done.stdout


def test_a_script_names_the_file_as_it_was_given(write, tmp_path, monkeypatch):
    write("future")
    monkeypatch.chdir(tmp_path)
    one = examples("theirs.py", "Attention", {"causal": True})["causality"]
    assert str(tmp_path) not in one["script"]
    assert "import attnlab" not in one["script"] and "from attnlab" not in one["script"]


def test_a_function_of_q_k_and_v_gets_fewer_heads(write, tmp_path, monkeypatch, capsys):
    broken = write("future")
    one = examples(broken, "attention", {"causal": True})["causality"]
    wanted = {"length": 2, "batch": 1, "heads": 1, "kv_heads": 1}
    assert {name: one["sizes"][name] for name in wanted} == wanted
    script = tmp_path / one["file"]
    script.write_text(one["script"])
    tools = {"monkeypatch": monkeypatch, "capsys": capsys}
    assert exit_code(script, **tools)[0] == 1
    assert exit_code(script, write("", "mended.py"), **tools)[0] == 0


def test_a_mistake_of_ours_in_the_evidence_is_not_blamed_on_the_code(write, monkeypatch):
    def mistaken(stage, finding, case):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(smallest_module, "script", mistaken)
    request = Request(target=f"{write('future')}:attention", contract=Contract(causal=True))
    answer = audit_here(request)
    assert answer.verdict == "error" and "ZeroDivisionError: ours" in answer.traceback
    assert answer.certificate is not None and answer.certificate.verdict == "fail"


def test_what_newly_made_code_raises_is_said_of_the_code(tmp_path):
    path = tmp_path / "once.py"
    path.write_text(
        "import pathlib, torch\n"
        "mark = pathlib.Path(__file__ + '.made')\n"
        "class Once(torch.nn.Module):\n"
        "    def __init__(self, dim=8):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(dim, dim)\n"
        "        self.first = not mark.exists()\n"
        "        mark.touch()\n"
        "    def forward(self, x):\n"
        "        if not self.first:\n"
        "            raise LookupError('only the first one runs')\n"
        "        return self.layer(x.flip(1))\n"
    )
    one = examples(path, "Once", {"causal": True})["causality"]
    assert not one["script"]
    assert "raised LookupError in `run`: only the first one runs" in one["reason"]


def test_code_that_is_right_has_no_counter_examples(write):
    assert examples(write(""), "Attention", {"causal": True, "window": 3}) == {}


def test_an_audit_is_the_same_twice(write):
    path = write("future")
    both = [examples(path, "Attention", {"causal": True})["causality"] for _ in range(2)]
    assert both[0] == both[1]


def test_making_smaller_never_makes_larger_and_ends():
    """Whatever still fails: the way down is finite, through sizes that make sense."""
    sizes = {"batch": 2, "length": 23, "cuts": [1, 9, 15], "changed": 23, "factor": 1e3, "seed": 0}
    seen = 0
    while True:
        lighter = [one for one in smaller(sizes) if legal(one) and weight(one) < weight(sizes)]
        if not lighter:
            break
        sizes, seen = lighter[-1], seen + 1
        assert seen < 200
    assert sizes["length"] == 2 and sizes["batch"] == 1
    assert (sizes["cuts"], sizes["changed"], sizes["factor"]) == ([1], 1, 1.0)
