"""Code on a device gives what it gives on the CPU in float64, as far as its dtype can.

Without a GPU the device is the CPU under another name, and a flag that is up during its calls.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.audit import Contract, audit
from attnlab.audit.contract import Certificate
from attnlab.audit.errors import InputError
from attnlab.audit.probe.probe import Probe
from attnlab.audit.properties.device import Device
from attnlab.audit.repro import prelude
from attnlab.audit.repro import stage as staging
from attnlab.audit.repro.smallest import examples_of
from attnlab.audit.subject import adapters, convention
from attnlab.audit.subject.base import Subject
from attnlab.audit.subject.device import device_for

ON_DEVICE = [False]


class Kernel(nn.Module):
    """Plain PyTorch on the CPU; on the device something that takes no float64, with a fault."""

    def __init__(self, width=32, fault="", half=True, plain=True):
        super().__init__()
        self.inner, self.fault, self.half, self.plain = (
            nn.Linear(width, 3 * width),
            fault,
            half,
            plain,
        )

    def forward(self, x):
        q, k, v = self.inner(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        if not ON_DEVICE[0]:
            if not self.plain:
                raise RuntimeError("the kernel runs on a GPU only")
            return self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        if x.dtype is torch.float64 or (x.dtype is not torch.float32 and not self.half):
            raise TypeError(f"the kernel does not take {x.dtype}")
        fault, t = self.fault, x.shape[1]
        scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        if fault == "scale":
            scores = scores * 1.05
        if fault == "block" and t > 64:
            scores[..., 64:, :64] = float("-inf")
        weights = scores.softmax(-1)
        if fault == "tf32":
            weights = weights.bfloat16().float() * 0.25 + weights * 0.75
        if fault == "coarse" and x.dtype is torch.float16:
            weights = (weights * 32).round() / 32
        return self.join((weights @ v.float()).to(x.dtype))

    def join(self, y):
        return y.transpose(1, 2).flatten(2)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    usual = prelude.call_on

    def call_on(device, code, *inputs, **more):
        ON_DEVICE[0] = bool(device)
        try:
            return usual(device, code, *inputs, **more)
        finally:
            ON_DEVICE[0] = False

    monkeypatch.setattr(adapters, "device_for", lambda name: "" if name == "cpu" else "cpu")
    monkeypatch.setattr(convention, "call_on", call_on)
    monkeypatch.setitem(staging.TOOLS, "call_on", call_on)


def found(code):
    subject = adapters.subject_for(code, {}, "code", "fake")
    assert subject.dtype is torch.float32
    return Device().examine(Probe(subject, Contract(causal=True)))


def test_a_kernel_that_gives_what_the_cpu_gives_passes():
    finding = found(Kernel())
    assert finding.verdict == "pass"
    assert "from the CPU in float64; plain PyTorch in float32 by" in finding.detail
    assert "float16 loses" in finding.detail and "bfloat16 loses" in finding.detail


@pytest.mark.parametrize(
    ("fault", "word"), [("scale", "float32"), ("block", "float32"), ("coarse", "float16")]
)
def test_a_kernel_that_differs_fails(fault, word):
    finding = found(Kernel(fault=fault))
    assert finding.verdict == "fail"
    assert f"in {word} output" in finding.detail


def test_products_in_tf32_are_told_and_no_failure():
    finding = found(Kernel(fault="tf32"))
    assert finding.verdict == "pass"
    assert "as products in TF32 are" in finding.detail


def test_what_cannot_be_compared_is_no_pass():
    finding = found(Kernel(half=False, plain=False))
    assert finding.verdict == "cannot tell"
    assert "in no other way (RuntimeError: the kernel runs on a GPU only)" in finding.detail


def test_half_precisions_are_compared_where_the_cpu_cannot_be():
    assert found(Kernel(plain=False)).verdict == "pass"
    assert found(Kernel(plain=False, fault="coarse")).verdict == "fail"


def test_the_whole_audit_runs_on_a_device():
    certificate = audit(Kernel(), device="fake", causal=True)
    assert certificate.verdict == "pass"
    assert certificate.findings[-1].name == "device"


def test_a_script_names_the_device(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(
        "from torch import nn\n"
        "class Code(nn.Module):\n"
        "    def __init__(self, width=8):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(width, width)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x) + x.flip(1)\n"
    )
    from attnlab.audit.examine import examine
    from attnlab.audit.subject.load import from_file

    subject = adapters.subject_for(from_file(f"{path}:Code", {}), {}, "Code", "fake")
    certificate = examine(subject, Contract(causal=True))
    failed = Certificate(
        target="Code",
        contract=certificate.contract,
        findings=tuple(one for one in certificate.failed if one.name == "causality"),
    )
    (one,) = examples_of(failed, subject, f"{path}:Code", {})
    assert "prepare(code, torch.float64).to('cpu')" in one.script
    assert "partial(call_on, 'cpu', code)(x)" in one.script


def test_tensors_are_moved_and_nothing_else(monkeypatch):
    monkeypatch.undo()
    x, places = torch.zeros(2, 3), torch.arange(3)
    devices = prelude.call_on(
        "meta", lambda x, n, mask: (x.device, n, mask.device), x, 7, mask=places
    )
    assert devices == (torch.device("meta"), 7, torch.device("meta"))
    assert prelude.call_on("", lambda x: x.device, x) == torch.device("cpu")


def test_a_device_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="PyTorch finds no GPU here; audit it on a machine"):
        device_for("cuda")
    with pytest.raises(InputError, match="is no device; use cpu, cuda or cuda:1"):
        device_for("gpu")
    assert device_for("cpu") == ""


def test_a_subject_of_ones_own_is_not_moved():
    class Own(Subject):
        def draw(self, batch, length, seed):
            raise NotImplementedError

        def run(self, x, *, padding=None, positions=None):
            raise NotImplementedError

    with pytest.raises(InputError, match="leave --device out"):
        adapters.subject_for(Own(), {}, "Own", "fake")
