"""The compiled path: every instruction set, any number of threads, and a compiler that fails."""

import os
import subprocess
import sys

import pytest
import torch
from problems import Problem, errors, solve

from attnlab.bench.measure import peak_memory
from attnlab.files import CacheWarning
from attnlab.kernels import LinearBias, Request, attention, choose, native
from attnlab.kernels.band import band_of

needs_compiler = pytest.mark.needs_compiler

PROBLEMS = [
    Problem(queries=300, batch=1, kv_heads=1, ratio=1, width=16),
    Problem(queries=150, keys=190, window=37, width=24, alibi=True, padding=True),
    Problem(queries=700, window=90, batch=1, kv_heads=1, ratio=3, width=20),
    Problem(queries=60, keys=50, causal=False, window=11, value_width=9),
]


@pytest.fixture
def fresh_library(monkeypatch, tmp_path):
    """Whatever is loaded in the test is built for it, and forgotten afterwards."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    _forget()
    yield tmp_path
    _forget()


def _forget():
    native.library.cache_clear()
    native.why_unavailable.cache_clear()


@needs_compiler
@pytest.mark.parametrize("machine", [["-mavx2", "-mfma"], ["-mavx"], ["-msse2"], ["-O0"]], ids=str)
def test_every_instruction_set_gives_the_same(machine, monkeypatch, fresh_library):
    if os.uname().machine != "x86_64":
        pytest.skip("these flags are for x86-64")
    monkeypatch.setattr(native, "MACHINES", (machine,))
    for problem in PROBLEMS:
        assert max(errors(solve(problem, "native"), solve(problem, "reference"))) < 1e-12
        single = solve(problem, "native", torch.float32)
        true = solve(problem, "reference")
        for error, one in zip(errors(single, true), true, strict=True):
            assert error < 2e-5 * max(float(one.abs().max()) / 10, 1)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("pool", ["torch's", "its own"])
def test_any_number_of_threads_gives_the_same(threads, pool, monkeypatch):
    monkeypatch.setattr(native, "WORK_PER_THREAD", 1)  # small problems too
    if pool == "its own":
        monkeypatch.setattr(native, "torch_thread_pool", lambda: None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for problem in PROBLEMS:
            assert max(errors(solve(problem, "native"), solve(problem, "reference"))) < 1e-12
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1), (3, 2, 1, 0)], ids=str)
def test_the_axes_may_lie_in_memory_in_any_order(order):
    """Heads innermost is a layout that PyTorch's own operations keep: "channels last"."""
    back = [order.index(axis) for axis in range(4)]
    given = [torch.randn(2, 4, 11, width, dtype=torch.float64) for width in (2, 2, 3, 3)]
    found = []
    for path in ("reference", "native"):
        q, k, v = (
            one.permute(order).contiguous().permute(back).requires_grad_() for one in given[:3]
        )
        out = attention(q, k, v, window=4, path=path)
        towards = given[3].permute(order).contiguous().permute(back)
        found.append([out, *torch.autograd.grad(out, (q, k, v), towards)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)  # float64: rounding


@needs_compiler
def test_the_same_call_gives_the_same_bits():
    for problem in PROBLEMS:
        first, second = (solve(problem, "native", torch.float32) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_compiler
def test_scratch_memory_is_written_before_it_is_read():
    """glibc fills fresh memory with bytes that make large numbers, in a child process."""
    code = (
        "import sys; sys.path.insert(0, 'tests/kernels')\n"
        "from problems import *\nfrom test_native import PROBLEMS\n"
        "for p in PROBLEMS:\n"
        "    assert max(errors(solve(p, 'native'), solve(p, 'reference'))) < 1e-12"
    )
    env = {**os.environ, "MALLOC_PERTURB_": "129"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_extra_memory_grows_with_the_length_not_with_its_square():
    length, width = 1 << 16, 16
    q, k, v = (torch.randn(1, 1, length, width, requires_grad=True) for _ in range(3))

    def run():
        return torch.autograd.grad(attention(q, k, v, window=512, path="native").sum(), (q, k, v))

    run()
    peak = peak_memory(run, torch.device("cpu"))
    if peak is None:
        pytest.skip("this system does not tell a process its peak memory")
    tensor = length * width * 4
    # output, its gradient, three gradients, copies for the two threads' runs, row statistics
    assert peak < 12 * tensor + (8 << 20), f"{peak / tensor:.1f} tensors' worth; scores are 4,096"


def _pick():
    q = torch.randn(1, 2, 100, 16)
    return choose(Request(q=q, k=q, v=q, window=5))


def test_without_a_compiler_the_tiled_path_serves_and_says_why(monkeypatch, fresh_library):
    monkeypatch.setenv("CC", "no-such-compiler")
    choice = _pick()
    assert choice.path == "tiled"
    assert "no C compiler: 'no-such-compiler'" in choice.reason
    q = torch.randn(1, 2, 100, 16)
    with pytest.raises(ValueError, match="path 'native' cannot serve this: no C compiler"):
        attention(q, q, q, window=5, path="native")


@needs_compiler
def test_a_compiler_that_fails_is_a_reason(monkeypatch, fresh_library):
    monkeypatch.setattr(native, "FLAGS", [*native.FLAGS, "-DROWS_MISSING", "-include", "no-such.h"])
    assert "could not compile banded.c" in _pick().reason
    assert not list(fresh_library.glob("attnlab/*.so"))


@needs_compiler
@pytest.mark.parametrize(
    ("trial", "said"),
    [
        ("import os; os.kill(os.getpid(), 4)", "failed its trial (exit -4)"),
        ("import time; time.sleep(600)", "did not end its trial in 1 s"),
    ],
)
def test_a_library_that_dies_in_its_trial_is_a_reason_not_a_dead_process(
    monkeypatch, fresh_library, trial, said
):
    monkeypatch.setattr(native, "_TRIAL", trial)
    monkeypatch.setattr(native, "TRIAL_SECONDS", 1)
    choice = _pick()
    assert choice.path == "tiled" and said in choice.reason
    assert not list(fresh_library.glob("attnlab/*.so"))


@needs_compiler
def test_a_cache_folder_open_to_others_is_not_used(monkeypatch, fresh_library):
    folder = fresh_library / "attnlab"
    folder.mkdir()
    folder.chmod(0o777)
    choice = _pick()
    assert choice.path == "tiled" and "can be written by others" in choice.reason


@needs_compiler
def test_a_cache_folder_that_cannot_be_made_is_a_reason(monkeypatch, fresh_library):
    (fresh_library / "file").write_text("")
    monkeypatch.setenv("ATTNLAB_CACHE", str(fresh_library / "file"))
    assert "no place for compiled code" in _pick().reason


@needs_compiler
def test_the_library_is_built_once(monkeypatch, fresh_library):
    first = native.build(torch.float32)
    monkeypatch.setattr(native, "_compile", lambda *args: pytest.fail("compiled twice"))
    assert native.build(torch.float32) == first


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other seal", "link"])
def test_a_damaged_library_is_said_and_built_again(damage, fresh_library):
    built = native.build(torch.float32)
    content, seal = bytearray(built.read_bytes()), native._seal(built)
    if damage == "other seal":
        seal.write_bytes(b"0" * 64)
    elif damage == "link":  # even to the same bytes
        built.rename(fresh_library / "elsewhere.so")
        built.symlink_to(fresh_library / "elsewhere.so")
    else:
        content[len(content) // 2] ^= 255
        built.write_bytes({"empty": b"", "cut": content[:4000], "flipped": content}[damage])
    with pytest.warns(CacheWarning, match="is damaged; compiling it again"):
        native.build(torch.float32)
    assert native.is_whole(built) and not built.is_symlink()
    assert native.library(torch.float32).attnlab_lanes() > 0


@needs_compiler
def test_a_library_that_another_process_has_not_finished_is_built_without_a_word(fresh_library):
    built = native.build(torch.float32)
    native._seal(built).unlink()
    native.build(torch.float32)
    assert native.is_whole(built)


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_a_reason(monkeypatch, fresh_library):
    (fresh_library / "no.so").write_bytes(b"no library")
    monkeypatch.setattr(native, "build", lambda dtype: fresh_library / "no.so")
    choice = _pick()
    assert choice.path == "tiled" and "cannot be loaded" in choice.reason


@needs_compiler
def test_torch_compile_takes_it_as_one_operation():
    from torch.library import opcheck

    q, k, v = (torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3))
    bias = LinearBias(torch.tensor([0.5, 0.1], requires_grad=True))
    for engine in ("native", "tiled"):
        for changes in ({}, {"soft_cap": 3.0, "sinks": torch.zeros(2), "bias": bias}):
            band = band_of(Request(q=q, k=k, v=v, window=8, scale=0.25, **changes))
            arguments = (
                *(q, k, v, band.table, band.sinks, None, band.mask.ranges(), None, None, 0, 0),
                *(band.scale, band.cap, band.zero, False, engine, False),
            )
            opcheck(torch.ops.attnlab.banded.default, arguments)
