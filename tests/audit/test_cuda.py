"""The audit of code that lives on a GPU; tried where there is one."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from attnlab.audit.contract import Contract
from attnlab.audit.sandbox import Limits, Request, audit_in_child
from attnlab.audit.subject.load import from_file

KERNEL = Path(__file__).parents[2] / "examples" / "triton_attention.py"
LIMITS = Limits(seconds=280, gibibytes=32)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU here")


def answer(name, *options, device="cuda", **declared):
    request = Request(
        target=f"{KERNEL}:{name}", options=options, contract=Contract(**declared), device=device
    )
    found = audit_in_child(request, LIMITS)
    assert found.certificate is not None, found.detail
    return found


def verdicts(found):
    return {one.name: one.verdict for one in found.certificate.findings}


def test_on_the_cpu_the_module_is_plain_pytorch():
    for leak in (False, True):
        module = from_file(f"{KERNEL}:Attention", {"leak": leak}).double()
        x = torch.randn(2, 7, 64, dtype=torch.float64)
        q, k, v = module.inner(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        assert torch.equal(module(x), module.outer(y))


def test_without_a_gpu_the_kernel_says_in_one_line_what_it_needs():
    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises((ImportError, ValueError), match=r"pip install triton|--device cuda"):
        from_file(f"{KERNEL}:attend", {})(q, q, q)


@on_gpu
@pytest.mark.parametrize("name", ["Attention", "attend"])
def test_a_right_kernel_passes(name):
    found = answer(name, causal=True)
    assert found.certificate.verdict == "pass", found.certificate.reason
    device = found.certificate.findings[-1]
    assert device.name == "device" and device.verdict == "pass"
    assert "float16 loses" in device.detail and "bfloat16 loses" in device.detail


@on_gpu
@pytest.mark.parametrize("name", ["Attention", "attend"])
def test_a_leak_that_is_in_the_kernel_only_is_found_with_a_script(name):
    found = answer(name, "leak=true", causal=True)
    assert verdicts(found)["causality"] == "fail"
    if name == "Attention":
        assert verdicts(found)["device"] == "fail"
    scripts = {one["name"]: one["script"] for one in found.examples}
    assert "partial(call_on, 'cuda', code)" in scripts["causality"]


@on_gpu
def test_plain_pytorch_passes_on_a_gpu_too():
    target = f"{KERNEL.parent / 'causal.py'}:CausalAttention"
    request = Request(
        target=target, options=("width=32",), contract=Contract(causal=True), device="cuda"
    )
    certificate = audit_in_child(request, LIMITS).certificate
    assert certificate is not None and certificate.verdict == "pass", certificate.reason
