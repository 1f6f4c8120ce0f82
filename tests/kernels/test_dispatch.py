"""Which path serves what and why, and what wrong input is told."""

import subprocess
import threading

import pytest
import torch
from problems import Problem

from attnlab.kernels import (
    DistanceBias,
    LinearBias,
    Reach,
    Request,
    attention,
    choose,
    dispatch,
    flex,
    hardware,
)
from attnlab.kernels.band import band_of
from attnlab.kernels.mask import keys_of_course_width, keys_of_left_reach, visible
from attnlab.kernels.tiled import _Tiling


def request(**changes):
    (q, k, v), _, options = Problem(**changes).tensors()
    return dispatch.request_of(q, k, v, **options)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"queries": 50}, "sdpa"),
        ({"queries": 50, "causal": False}, "sdpa"),
        ({"queries": 50, "window": 50}, "sdpa"),
        ({"queries": 50, "window": 51}, "sdpa"),
        ({"queries": 1, "keys": 50}, "sdpa"),
        ({"queries": 3, "keys": 50, "window": 9}, "sdpa"),
        ({"queries": 200}, "native"),
        ({"queries": 200, "window": 300}, "native"),
        ({"queries": 200, "causal": False}, "sdpa"),
        ({"queries": 24, "batch": 99}, "sdpa"),
        ({"queries": 50, "window": 49}, "native"),
        ({"queries": 50, "keys": 60}, "native"),
        ({"queries": 50, "padding": True}, "native"),
        ({"queries": 50, "alibi": True}, "native"),
        ({"queries": 50, "documents": 3}, "native"),
        ({"queries": 50, "soft_cap": 5.0}, "native"),
        ({"queries": 50, "sinks": True}, "native"),
        ({"queries": 1, "keys": 50, "sinks": True}, "reference"),
        ({"queries": 1, "keys": 50, "align": "start"}, "sdpa"),
    ],
)
def test_the_path_fits_the_request(changes, path):
    choice = choose(request(**changes))
    assert choice.path == path and choice.reason


def test_a_window_of_everything_is_plain_causal_attention():
    q = torch.randn(1, 2, 50, 16)
    assert torch.equal(attention(q, q, q, window=50), attention(q, q, q))
    assert torch.equal(attention(q, q, q, window=10**9), attention(q, q, q))


def test_a_dense_bias_goes_where_its_gradient_is():
    q = torch.randn(1, 2, 20, 16)
    bias = torch.randn(20, 20)
    assert choose(Request(q=q, k=q, v=q, bias=bias)).path == "sdpa"
    bias.requires_grad_()
    assert choose(Request(q=q, k=q, v=q, bias=bias)).path == "reference"
    attention(q, q, q, bias=bias).sum().backward()
    assert bias.grad.isfinite().all()


@pytest.mark.parametrize("path", ["sdpa", "reference"])
def test_a_dense_bias_is_cut_with_the_keys_nobody_sees(path):
    q, k = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 40, 16)
    bias = torch.randn(2, 3, 40)
    got = attention(q, k, k, window=5, bias=bias, path=path)
    want = attention(q, k, k, window=5, bias=bias, path="reference")
    torch.testing.assert_close(got, want)
    for shape in [(1,), (), (3, 1), (1, 40)]:
        flat = torch.randn(shape)
        got = attention(q, k, k, window=5, bias=flat, path=path)
        want = attention(q, k, k, window=5, bias=flat.expand(2, 3, 40), path="reference")
        torch.testing.assert_close(got, want)


def test_nothing_to_attend_to():
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        q = torch.randn(2, 2, queries, 8, requires_grad=True)
        k = torch.randn(2, 2, keys, 8, requires_grad=True)
        out = attention(q, k, k, window=3)
        assert out.shape == (2, 2, queries, 8) and (out == 0).all()
        out.sum().backward()


@pytest.mark.needs_compiler
def test_weights_are_the_references_and_add_up_to_one():
    (q, k, v), _, options = Problem(queries=20, window=6, padding=True).tensors()
    out, weights = attention(q, k, v, return_weights=True, **options)
    sums = weights.sum(-1)
    assert ((sums - 1).abs().lt(1e-12) | (sums == 0)).all()
    torch.testing.assert_close(out, attention(q, k, v, path="native", **options))
    with pytest.raises(ValueError, match="path 'native' keeps no weights"):
        attention(q, k, v, return_weights=True, path="native")


def test_the_mask_of_the_course():
    """N = 6, w = 4: the matrix of the question, three keys to a query."""
    t = torch.arange(6)
    mask = visible(t, t, causal=True, window=keys_of_course_width(4))
    rows = ["100000", "110000", "111000", "011100", "001110", "000111"]
    assert ["".join(str(int(seen)) for seen in row) for row in mask] == rows


def test_other_conventions_are_converted_by_name():
    assert keys_of_left_reach(0) == 1
    assert keys_of_course_width(0) == 1
    assert keys_of_course_width(5) == 3


def test_the_tiled_path_computes_no_more_than_the_band():
    q = torch.empty(1, 8, 16_384, 64)
    tiles = _Tiling(band_of(Request(q=q, k=q, v=q, window=256))).tiles()
    pairs = sum(
        (tile.queries.stop - tile.queries.start) * (tile.keys.stop - tile.keys.start)
        for tile in tiles
    )
    assert pairs <= 16_384 * (256 + 64)


T = torch.randn(2, 4, 10, 8)
IDS = torch.tensor([[0] * 4 + [1] * 6])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": T[:, :3], "v": T[:, :3]}, "4 query heads do not divide into 3 key/value heads"),
        ({"k": T[:1], "v": T[:1]}, "the batch sizes"),
        ({"v": T[:, :, :5]}, "k and v must have the same heads and time"),
        ({"k": T[..., :4]}, "q and k must have the same head width"),
        ({"q": T[0]}, r"each must be \[batch, heads, time, width\]"),
        ({"q": T.double()}, "give them one dtype"),
        ({"q": T.int(), "k": T.int(), "v": T.int()}, "attention needs floating-point numbers"),
        ({"q": T.to("meta")}, "q is on meta, k on cpu, v on cpu; move them together"),
        ({"q": T[:, :0]}, "heads and head width must be 1 or more"),
        ({"window": 0}, "window is 0; it counts the query's own key, so use 1 or more"),
        ({"window": -3}, "window is -3"),
        ({"window": Reach(before=-1, after=0)}, "window.before is -1; .* use 0 or more, or None"),
        ({"window": Reach(before=3, after=2)}, "window.after is 2, .* use after=0 or causal=False"),
        ({"align": "middle"}, r"align is 'middle'; .*\('end'\) or the first \('start'\)"),
        ({"chunk": 0}, "chunk is 0; it counts positions, so use 1 or more"),
        ({"prefix": 3, "window": 4}, "prefix and window exclude each other"),
        ({"prefix": 3, "chunk": 4}, "prefix and chunk exclude each other"),
        ({"prefix": 3, "segments": IDS}, "prefix and segments exclude each other"),
        ({"prefix": 11}, "prefix has 11; there are 10 keys, so use 0 to 10"),
        ({"prefix": torch.tensor([1.0, 2.0])}, "prefix is torch.float32 of shape"),
        ({"key_lengths": torch.tensor([3, -1])}, "key_lengths has -1; .* use 0 to 10"),
        ({"key_lengths": torch.tensor([3])}, "one whole number .* for each of the 2 rows"),
        ({"key_lengths": torch.tensor([3, 4]), "segments": IDS}, "exclude each other"),
        ({"segments": IDS.flip(1)}, "go from 1 back to 0 in row 0; .* number them in order"),
        (
            {"segments": IDS[:, :9]},
            r"segments of keys have shape \[1, 9\]; they must be \[1 or 2, 10\]",
        ),
        ({"segments": IDS.float()}, "segments of keys are torch.float32; use torch.long"),
        ({"soft_cap": 0.0}, "soft_cap is 0.0; it bounds scores, so use a finite number above 0"),
        ({"soft_cap": float("inf")}, "soft_cap is inf"),
        ({"sinks": torch.zeros(3)}, "one score for each of the 4 heads"),
        ({"bias": DistanceBias(torch.zeros(4, 3), 3)}, r"\[4 heads, distances\], with distance 0"),
        ({"path": "sdpa", "soft_cap": 2.0}, "path 'sdpa' cannot serve this: .* caps no scores"),
        ({"path": "sdpa", "sinks": 0.0}, "path 'sdpa' cannot serve this: .* has no sinks"),
        ({"scale": float("nan")}, "scale is nan; use a finite number"),
        ({"bias": torch.zeros(3, 10, 10)}, "bias has shape"),
        ({"bias": LinearBias(torch.zeros(3))}, "one slope for each of the 4 heads"),
        ({"bias": torch.zeros(10, 10, dtype=torch.bool)}, "use floating point"),
        ({"key_padding": torch.zeros(2, 9, dtype=torch.bool)}, "key_padding has shape"),
        ({"key_padding": torch.zeros(2, 10)}, "it must be bool, True for padding"),
        ({"path": "natve"}, "no path called 'natve'; did you mean 'native'"),
        ({"path": "native", "bias": torch.zeros(10, 10)}, "a bias given as a tensor is dense"),
        ({"path": "flex"}, "path 'flex' cannot serve this: head widths"),
    ],
)
def test_wrong_input_is_told_the_rule(change, message, unchecked_shapes):
    arguments = {"q": T, "k": T, "v": T, **change}
    with pytest.raises(ValueError, match=message):
        attention(**arguments)


def test_flex_on_the_cpu_says_that_it_has_no_backward():
    q = torch.randn(1, 2, 128, 16, requires_grad=True)
    with pytest.raises(ValueError, match="FlexAttention has no backward pass on the CPU"):
        attention(q, q, q, window=5, path="flex")


def test_flex_on_a_cpu_without_avx2_says_so(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    q = torch.randn(1, 2, 128, 16)
    with pytest.raises(ValueError, match="FlexAttention needs AVX2 on the CPU"):
        attention(q, q, q, window=5, path="flex")


@pytest.mark.needs_compiler
def test_flex_equals_the_definition_going_forward():
    q, k, v = (torch.randn(1, heads, 200, 16) for heads in (4, 2, 2))
    if not flex._has_vectors():
        with pytest.raises(ValueError, match="FlexAttention needs AVX2 on the CPU"):
            attention(q, k, v, window=33, path="flex")
        return
    got = attention(q, k, v, window=33, path="flex")
    torch.testing.assert_close(got, attention(q, k, v, window=33, path="reference"))


def test_code_compiled_for_other_instructions_is_not_found_again():
    tag = f"mine;cpu={torch.backends.cpu.get_cpu_capability()};"
    with torch.compiler.config.patch(cache_key_tag="mine;"):  # monkeypatch would hide it afterwards
        for _ in range(2):
            flex._compiled.__wrapped__()
            assert torch.compiler.config.cache_key_tag == tag  # a person's own stays


@pytest.fixture
def fresh_probe(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    hardware.cpu_multiplies.cache_clear()
    yield
    hardware.cpu_multiplies.cache_clear()


@pytest.mark.needs_compiler
def test_bfloat16_on_a_cpu_that_would_crash_is_an_error_not_a_dead_process(
    monkeypatch, fresh_probe
):
    monkeypatch.setattr(hardware, "_PROBE", "import os; os.kill(os.getpid(), 4)")
    q = torch.randn(1, 2, 20, 16).bfloat16()
    for arguments in ({}, {"path": "reference"}, {"path": "tiled"}, {"return_weights": True}):
        with pytest.raises(ValueError, match="bfloat16 products do not run on this CPU"):
            attention(q, q, q, **arguments)
    # computed in float32, so it does not need the instructions that crash
    assert attention(q, q, q, window=5, path="native").dtype == torch.bfloat16
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("asked twice"))
    hardware.cpu_multiplies.cache_clear()
    assert not hardware.cpu_multiplies("bfloat16")


def test_the_probe_tells_what_runs(fresh_probe):
    assert hardware.cpu_multiplies("float32")


def test_the_probe_needs_no_place_to_remember(monkeypatch, fresh_probe, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "file"))
    assert hardware.cpu_multiplies("float32")


def test_the_probe_asks_again_under_a_cap(monkeypatch, fresh_probe):
    """With oneDNN capped products may work that end the process without the cap."""
    for cap, probe, works in (("SSE41", "", True), (None, "raise SystemExit(1)", False)):
        monkeypatch.setattr(hardware, "_PROBE", probe)
        if cap:
            monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", cap)
        else:
            monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        hardware.cpu_multiplies.cache_clear()
        assert hardware.cpu_multiplies("float32") is works


def test_choices_of_another_thread_are_not_recorded():
    """A page and a training in one process each have their own."""
    q = torch.randn(1, 1, 40, 8)
    with dispatch.record_choices() as outer:
        other = threading.Thread(target=lambda: attention(q, q, q, window=5, path="tiled"))
        other.start()
        other.join()
        with dispatch.record_choices() as inner:
            attention(q, q, q, path="reference")
        attention(q, q, q)
    assert {choice.path for choice in outer} == {"sdpa"}
    assert {choice.path for choice in inner} == {"reference"}


def test_choices_are_recorded():
    q = torch.randn(1, 1, 40, 8)
    with dispatch.record_choices() as seen:
        attention(q, q, q)
        attention(q, q, q, window=5, path="tiled")
    attention(q, q, q, path="reference")
    assert {choice.path for choice in seen} == {"sdpa", "tiled"}
    assert all(choice.reason for choice in seen)


@pytest.mark.parametrize("window", [2.5, 0.5, float("nan"), float("inf")])
def test_a_window_that_counts_no_keys_is_refused(window, unchecked_shapes):
    x = torch.ones(1, 1, 5, 3)
    with pytest.raises(ValueError, match=r"window is .* so use"):
        attention(x, x, x, window=window)
