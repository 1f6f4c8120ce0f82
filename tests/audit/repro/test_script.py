"""Every failure has a script that tells broken code from mended, without this package."""

import builtins
import importlib
import pkgutil
import subprocess
import sys

import pytest
import torch
from audit.repro.scripts import ends

from attnlab import registry
from attnlab.audit import properties
from attnlab.audit.bugs.cases import FAMILIES, cases
from attnlab.audit.contract import Certificate, Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties import cache
from attnlab.audit.properties.left_padding import LeftPadding
from attnlab.audit.repro.script import Definitions, used_names
from attnlab.audit.repro.smallest import examples_of
from attnlab.audit.sandbox import Request, audit_here
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.load import from_file

CASE = """
from attnlab.audit.bugs.cases import cases

CASE = next(one for one in cases({family!r})[{family!r}] if one.name == {name!r})


def make(**options):
    return CASE.make({wrong})
"""
# what the development set has no case of
OTHERS = {
    "precision": (
        {},
        """
import torch
from torch import nn

class Code(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        scores = (q @ k.mT).tril()
        if {wrong}:
            scores = scores.half()
        return scores.to(x.dtype).softmax(-1) @ v
""",
    ),
    "training": (
        {},
        """
import torch.nn.functional as F
from torch import nn

class Code(nn.Module):
    def __init__(self, vocab_size=23):
        super().__init__()
        self.vocab_size = vocab_size
        self.table = nn.Embedding(vocab_size, vocab_size)
    def forward(self, tokens):
        return self.table(tokens)
    def loss(self, tokens, padding=None):
        labels = tokens
        if padding is not None and not {wrong}:
            labels = tokens.masked_fill(padding, -100)
        return F.cross_entropy(self(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
""",
    ),
    "padding": (
        {"causal": True},
        """
import torch
from torch import nn

class Code(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
    def forward(self, x, key_padding_mask=None):
        q, k, v = self.project(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.mT).masked_fill(~seen, float("-inf"))
        if key_padding_mask is not None:
            hidden = key_padding_mask[:, None] & ~torch.eye(x.shape[1], dtype=torch.bool)
            scores = scores + hidden * (-1e3 if {wrong} else -1e300)
        return scores.softmax(-1) @ v
""",
    ),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def failures(case, target):
    """Of the properties that the case is about."""
    subject = subject_for(from_file(target, case.options), case.options, case.name)
    probe = Probe(subject, case.contract)
    findings = [registry.load("property", name)().examine(probe) for name in case.reasons]
    certificate = Certificate(target=target, contract=case.contract, findings=tuple(findings))
    found = examples_of(certificate, subject, target, case.options)
    assert found, f"{case.name} fails none of {case.reasons}"
    return found


def answered(file, name, words, contract):
    answer = audit_here(Request(target=f"{file}:{name}", options=words, contract=contract))
    assert answer.certificate is not None, answer.detail
    failed = [one.name for one in answer.certificate.findings if one.verdict == "fail"]
    assert failed and [one["name"] for one in answer.examples] == failed
    return answer.examples


@pytest.mark.parametrize("family", FAMILIES)
def test_every_failure_of_the_development_set_has_one(family, tmp_path, monkeypatch):
    for case in cases(family)[family]:
        files = []
        for wrong in (True, False):
            files.append(tmp_path / f"{case.name.replace('-', '_')}_{wrong}.py")
            files[-1].write_text(CASE.format(family=family, name=case.name, wrong=wrong))
        for one in failures(case, f"{files[0]}:make"):
            assert one.script, f"{case.name}, {one.name}: {one.reason}"
            script = tmp_path / one.file
            script.write_text(one.script)
            codes = [ends(script, file, monkeypatch) for file in files]
            assert codes == [1, 0], f"{case.name}, {one.name}: {one.sizes}"


@pytest.mark.parametrize("name", OTHERS)
def test_so_have_failures_that_it_does_not_hold(name, tmp_path):
    declared, code = OTHERS[name]
    files = [tmp_path / f"{wrong}.py" for wrong in (True, False)]
    for file in files:
        file.write_text(code.format(wrong=file.stem))
    examples = {one["name"]: one for one in answered(files[0], "Code", (), Contract(**declared))}
    one = examples[name]
    assert one["script"], one["reason"]
    assert "import attnlab" not in one["script"] and "from attnlab" not in one["script"]
    script = tmp_path / one["file"]
    script.write_text(one["script"])
    runs = [
        subprocess.run([sys.executable, "-I", script, file], capture_output=True, text=True)
        for file in files
    ]
    assert [run.returncode for run in runs] == [1, 0], [run.stderr for run in runs]
    assert runs[0].stdout.startswith("wrong: ") and runs[1].stdout.startswith("mended: ")


def checks():
    """Every check of every property, with the module that it is in."""
    for found in pkgutil.iter_modules(properties.__path__, f"{properties.__name__}."):
        module = importlib.import_module(found.name)
        names = [name for name in vars(module) if name.endswith("fails")]
        yield from ((module, name) for name in names if callable(getattr(module, name)))


@pytest.mark.parametrize(("module", "name"), list(checks()), ids=lambda one: str(one)[-40:])
def test_every_check_is_printed_with_all_that_it_names(module, name):
    definitions = Definitions()
    definitions.define(name, module)
    parts = [
        definitions.import_lines(),
        *definitions.constants.values(),
        *definitions.functions.values(),
    ]
    text = "\n\n".join(parts)
    assert "attnlab" not in text
    space: dict = {}
    exec(compile(text, name, "exec"), space)
    assert used_names(text) <= {*space, *vars(builtins)}
    assert space[name].__doc__, "a script tells what is done"


def test_every_property_has_a_check():
    homes = {module.__name__ for module, _ in checks()}
    for option in registry.options("property"):
        assert option.target.partition(":")[0] in homes, option.name


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A model that does nothing wrong, saved."""
    pytest.importorskip("transformers")
    from attnlab.audit.hf import models as hf

    folder = tmp_path_factory.mktemp("models") / "gpt2"
    hf.model_of("gpt2").save_pretrained(folder)
    return folder


# one whose whole script is run as a person would, with nothing of this package to be found
@pytest.mark.parametrize(
    ("arch", "property", "outside"),
    [
        ("prophetnet", "causality", True),
        ("xlm", "padding", False),
        ("git", "left padding", False),
        ("rwkv", "cache", False),
        ("blt", "backends", False),
    ],
)
def test_so_have_models_of_transformers(arch, property, outside, gpt2, tmp_path, monkeypatch):
    one = of_model(f"hf:causal/{arch}", property)
    assert one.script, one.reason
    assert "import attnlab" not in one.script and "from attnlab" not in one.script
    script = tmp_path / one.file
    script.write_text(one.script)
    assert ends(script, "", monkeypatch) == 1
    if not outside:
        assert ends(script, gpt2, monkeypatch) == 0
        return
    command = [sys.executable, "-I", script, gpt2]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stdout[:8]) == (0, "mended: "), run.stderr


def test_what_float32_is_too_rough_to_show_is_shown_in_float64(gpt2, tmp_path, monkeypatch):
    from attnlab.audit.hf import stage as hf_stage

    monkeypatch.setattr(hf_stage, "EXACT", (cache.fails,))
    one = of_model("hf:rwkv", "cache")
    script = tmp_path / one.file
    script.write_text(one.script)
    assert "with in_float64():" in one.script
    assert [ends(script, folder, monkeypatch) for folder in ("", gpt2)] == [1, 0]
    assert torch.get_default_dtype() is torch.float32


def of_model(target, property):
    from attnlab.audit.hf import models as hf

    subject = hf.subject_of(target.removeprefix("hf:"))
    contract = Contract(causal=True, cache=True)
    known = {"left padding": LeftPadding}
    examined = known.get(property) or registry.load("property", property)
    finding = examined().examine(Probe(subject, contract))
    assert finding.verdict == "fail"
    certificate = Certificate(target=target, contract=contract, findings=(finding,))
    return examples_of(certificate, subject, target, {})[0]


def test_a_saved_model_is_read_from_its_folder_again(gpt2, tmp_path, monkeypatch):
    from attnlab.audit.hf import models as hf

    subject = hf.subject_of(str(gpt2))
    contract = Contract(causal=True, window=3)  # which it has not
    finding = registry.load("property", "window")().examine(Probe(subject, contract))
    certificate = Certificate(target="gpt2", contract=contract, findings=(finding,))
    (one,) = examples_of(certificate, subject, f"hf:{gpt2}", {})
    script = tmp_path / one.file
    script.write_text(one.script)
    assert one.file == "gpt2_window.py"
    assert ends(script, "", monkeypatch) == 1
    script.write_text(one.script.replace(str(gpt2), "nowhere"))
    assert ends(script, "", monkeypatch) == 2
