"""The flawed protocol computes the same attention; only its numbers about it are wrong."""

import pytest
import torch

from attnlab.attention.scores import ScaledDotScore
from attnlab.bench.measure import usual_peak
from attnlab.studies.rope_gqa import flawed, sweep
from attnlab.studies.rope_gqa.flawed import CopiedKeys, EmptyingCache
from attnlab.studies.rope_gqa.sweep import Kernel, Sweep

SMALL = Sweep(width=48, depth=1, block=32, batch=2, rows=2, turns=2, patience=1.0, peaks=1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(flawed, "torch_device", lambda device: CPU)


@pytest.mark.parametrize(
    "score", [CopiedKeys(), EmptyingCache(CopiedKeys()), EmptyingCache(ScaledDotScore())]
)
def test_the_flawed_variants_compute_the_same(score):
    fair, other = (
        sweep.attention_call(SMALL, Kernel("float32"), 2, CPU, passes="forward", score=one)
        for one in (None, score)
    )
    torch.testing.assert_close(fair(), other())


def test_the_flawed_variants_run_through_different_kernels():
    found = flawed.flawed_times(SMALL)
    assert found["kernels"]["shared"] == "reference" != found["kernels"]["six"]
    for name in ("fair", "unsynchronised", "other_kernels", "together"):
        assert found[name]["shared"] > 0 and found[name]["six"] > 0


def test_the_shared_variant_alone_empties_the_cache(monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    six = sweep.attention_call(SMALL, Kernel("float32"), 6, CPU, passes="forward")
    six()
    assert not emptied
    score = EmptyingCache(CopiedKeys())
    sweep.attention_call(SMALL, Kernel("float32"), 2, CPU, passes="forward", score=score)()
    assert emptied == [True]


def test_what_is_left_after_a_pass_is_not_its_peak():
    """A pass that needs 8 MB for a moment and keeps 2 MB. Pages are counted, so not to the byte."""

    def work():
        large = torch.ones(2_000_000)
        return large[:500_000] * 2

    left = flawed._left_by(work, CPU)
    peak = usual_peak(work, CPU, calls=1)
    if left is None or peak is None:
        pytest.skip("the memory of a process cannot be read here")
    assert left == pytest.approx(2e6, abs=5e5)
    assert peak["median"] > 7.5e6


def test_with_different_kernels_nothing_is_reported(monkeypatch):
    names = iter(["flash", "math"] * 8)
    monkeypatch.setattr(sweep, "path_of", lambda work: next(names))
    assert set(flawed.flawed_times(SMALL)) == {"refused"}
    assert set(flawed.flawed_memory(SMALL)) == {"refused"}
