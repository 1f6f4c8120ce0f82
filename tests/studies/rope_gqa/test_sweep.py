"""The sweep over key/value heads: one kernel for all, and bytes that can be counted."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.kernels import attention
from attnlab.studies.rope_gqa import sweep
from attnlab.studies.rope_gqa.flawed import CopiedKeys
from attnlab.studies.rope_gqa.sweep import KV_HEADS, DifferentKernels, Kernel, Sweep

SMALL = Sweep(width=48, depth=2, block=32, batch=2, rows=2, turns=2, patience=1.0, peaks=1)
CPU = torch.device("cpu")
PLAIN = Kernel("float32")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(sweep, "torch_device", lambda device: CPU)


@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_the_cache_holds_what_the_formula_says(kv_heads):
    _, found = sweep.decode_call(SMALL, PLAIN, kv_heads, CPU, tokens=1)
    by_hand = 2 * 2 * kv_heads * 8 * 4  # keys and values, layers, heads, head width, float32
    assert found == {"counted": by_hand, "formula": by_hand}


def test_every_variant_is_timed_through_one_kernel():
    for found in (
        sweep.attention_times(SMALL, passes="forward"),
        sweep.attention_times(SMALL, passes="both"),
        sweep.step_times(SMALL),
        sweep.decoding(SMALL),
    ):
        assert found["kernel"].endswith(", float32")
        assert list(found["times"]) == ["1", "2", "3", "6"]
        for time in found["times"].values():
            assert 0 < time["fastest"] <= time["median"] <= time["slowest"]
            assert time["turns"] == 2


def test_a_variant_with_another_kernel_is_noticed():
    def look(kernel, kv_heads):
        score = CopiedKeys() if kv_heads == 2 else None
        return sweep.attention_call(SMALL, kernel, kv_heads, CPU, passes="both", score=score)

    with pytest.raises(DifferentKernels, match="2 through reference, 3 through PyTorch's flash"):
        sweep.alike(look, CPU)


@pytest.mark.parametrize(
    "measure",
    [
        lambda: sweep.attention_times(SMALL, passes="forward"),
        lambda: sweep.step_times(SMALL),
        lambda: sweep.decoding(SMALL),
        lambda: sweep.training_memory(SMALL),
    ],
)
def test_with_different_kernels_nothing_is_reported(monkeypatch, measure):
    names = iter(["flash", "math", "math", "math"] * 2)
    monkeypatch.setattr(sweep, "path_of", lambda work: next(names))
    found = measure()
    assert "1 through flash, 2 through math" in found["refused"]
    assert "times" not in found and "bytes" not in found


def test_the_next_kernel_is_tried_when_the_first_does_not_serve_all(monkeypatch):
    tried = (Kernel("float32", "CUDNN_ATTENTION"), PLAIN)
    monkeypatch.setattr(sweep, "kernels_on", lambda device: tried)

    def look(kernel, kv_heads):
        def work():
            if kernel.backend:
                raise RuntimeError("No available kernel. Aborting execution.")
            return attention(*torch.randn(3, 1, 2, 4, 8))

        return work

    assert sweep.alike(look, CPU) == (PLAIN, "PyTorch's flash, float32")


def test_an_error_that_is_not_about_kernels_is_not_hidden():
    def look(kernel, kv_heads):
        def work():
            raise RuntimeError("out of memory")

        return work

    with pytest.raises(RuntimeError, match="out of memory"):
        sweep.alike(look, CPU)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 6])
def test_kernels_within_pytorch_are_told_apart(kv_heads, grad):
    q = torch.randn(1, 6, 8, 8, requires_grad=grad)
    k = torch.randn(1, kv_heads, 8, 8)

    def work():
        out = attention(q, k, k, path="sdpa")
        if grad:
            out.sum().backward()

    assert sweep.path_of(work) == "PyTorch's flash"
    with sdpa_kernel(SDPBackend.MATH):
        assert sweep.path_of(work) == "PyTorch's math"


def test_a_hidden_kernel_is_no_kernel():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(AssertionError, match="hidden"), torch.inference_mode():
        sweep.path_of(lambda: attention(q, q, q, path="sdpa"))


def test_only_the_number_of_key_value_heads_differs():
    settings = {kv: sweep.settings_of(SMALL, kv) for kv in KV_HEADS}
    assert {type(one.attention).__name__ for one in settings.values()} == {"Grouped"}
    assert [one.attention.kv_heads for one in settings.values()] == list(KV_HEADS)
    assert {one.attention.heads for one in settings.values()} == {6}


def test_memory_is_measured_for_every_variant():
    found = sweep.training_memory(SMALL)["bytes"]
    assert list(found) == ["1", "2", "3", "6"]
    for peak in found.values():
        assert peak is None or 0 < peak["least"] <= peak["median"] <= peak["most"]
