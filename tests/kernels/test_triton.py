"""Our kernels for CUDA against the definition: compiled on a GPU, elsewhere interpreted.

The interpreter computes every operation with NumPy, so problems and tiles are small here. Whether
Triton is to interpret is decided when it is first imported: `test_they_equal_the_definition` runs
this file again in a process of its own with TRITON_INTERPRET=1.
"""

import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from problems import SHAPES, Problem, assert_as_good_as_plain, errors, solve

from attnlab.kernels import (
    DistanceBias,
    LinearBias,
    Request,
    attention,
    choose,
    rotate,
    rotation,
)
from attnlab.kernels.band import band_of
from attnlab.kernels.dispatch import PATHS
from attnlab.kernels.triton import engine, tiles
from attnlab.kernels.triton.tiles import Tile

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = engine.is_interpreted()
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
runs = pytest.mark.skipif(
    not HAS_TRITON or (DEVICE == "cpu" and not INTERPRETED),
    reason="there is no CUDA device, and the interpreter runs in a process of its own"
    if HAS_TRITON
    else "Triton is not installed: pip install triton==3.6.0 --no-deps",
)

if INTERPRETED and HAS_TRITON:
    import interpreted

    interpreted.mend()


@pytest.mark.skipif(not HAS_TRITON or INTERPRETED or DEVICE == "cuda", reason="see `runs`")
def test_they_equal_the_definition():
    """All of this file, by the interpreter."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture(autouse=True)
def small_tiles():
    """Several tiles in a small problem; one loop for keys, as on the chip."""
    one = Tile(32, 16, warps=4, stages=1, described=False)
    with tiles.forced(forward=one, queries=one, keys=replace(one, parts=1)):
        yield


# as many kinds of requests as there are, on few queries
SMALL = {
    "one token": SHAPES["one token"],
    "odd": Problem(queries=43, window=13, width=24, batch=1),
    "window of one key": Problem(queries=20, window=1, batch=1),
    "window a tile": Problem(queries=70, window=16, batch=1, kv_heads=1),
    "window past a tile of keys": Problem(queries=90, window=40, batch=1, kv_heads=1),
    "no window": Problem(queries=75, batch=1, kv_heads=1),
    "ratio 3": Problem(queries=20, window=9, ratio=3, batch=1),
    "odd width": Problem(queries=20, window=7, width=5, value_width=19, batch=1),
    "width 80": Problem(queries=20, window=7, width=80, batch=1, kv_heads=1),
    "very wide heads": Problem(queries=18, window=7, width=200, value_width=72, kv_heads=1),
    "last queries": Problem(queries=9, keys=40, window=6),
    "more queries than keys": Problem(queries=40, keys=25, window=6, batch=1),
    "alibi": Problem(queries=40, window=20, alibi=True, batch=1),
    "padding": Problem(queries=40, window=20, padding=True),
    "both ways": Problem(queries=40, window=9, causal=False, padding=True, alibi=True),
    "both ways, no window": Problem(queries=40, causal=False, batch=1),
    "more to one side": Problem(queries=50, reach=(5, 17), causal=False, batch=1),
    "first queries": Problem(queries=30, keys=50, align="start", window=9, batch=1),
    "chunks": Problem(queries=50, chunk=16, padding=True),
    "prefix": Problem(queries=33, keys=50, prefix=True, batch=3, kv_heads=1),
    "documents": Problem(queries=50, documents=4, window=21, alibi=True, kv_heads=1),
    "documents without keys": Problem(queries=60, keys=20, documents=6, batch=3, kv_heads=1),
    "key lengths": Problem(queries=30, lengths=True, batch=4, kv_heads=1),
    "soft cap": Problem(queries=40, soft_cap=1.5, batch=1),
    "soft cap, hardly felt": Problem(queries=30, soft_cap=50.0, window=20, batch=1),
    "sinks": Problem(queries=40, sinks=True, padding=True, window=3, kv_heads=1),
}


@runs
@pytest.mark.parametrize("name", SMALL)
def test_is_as_exact_as_plain_pytorch_in_float32(name):
    problem = SMALL[name]
    true, plain = solve(problem, "reference"), solve(problem, "reference", torch.float32)
    found = solve(problem, "triton", torch.float32, DEVICE)
    assert_as_good_as_plain(found, plain, true, torch.float32)


@runs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["odd", "padding", "more to one side", "sinks"])
def test_is_as_exact_as_rounding_in_half_precisions(name, dtype):
    """The bar is what the definition in float32 makes of the same inputs, rounded, twice."""
    problem = SMALL[name]
    true = solve(problem, "reference")
    rounded = [x.to(dtype) for x in solve(problem, "reference", torch.float32)]
    found = solve(problem, "triton", dtype, DEVICE)
    scale = max(float(x.abs().max()) for x in true)
    limit = 4 * torch.finfo(dtype).eps * scale + 2 * max(errors(rounded, true))
    assert max(errors(found, true)) <= limit


@runs
@pytest.mark.parametrize(
    "tile",
    [
        Tile(16, 32, stages=1, described=False),
        Tile(32, 16, stages=1, parts=1, pack=4, described=False),
        Tile(16, 16, stages=1, pack=2, described=True),
    ],
    ids=["wide", "one loop, packed", "descriptors, packed"],
)
@pytest.mark.parametrize("name", ["ratio 4", "two sides", "documents", "tiles without a mask"])
def test_tiles_of_any_kind_compute_the_same(name, tile):
    problem = {
        "ratio 4": Problem(queries=37, window=19, ratio=4, batch=1, kv_heads=1),
        "two sides": Problem(queries=21, keys=70, reach=(20, 33), causal=False, ratio=2, batch=1),
        "documents": Problem(queries=40, documents=3, ratio=4, kv_heads=1),
        "tiles without a mask": Problem(queries=110, window=75, batch=1, kv_heads=1, ratio=4),
    }[name]
    true, plain = solve(problem, "reference"), solve(problem, "reference", torch.float32)
    with tiles.forced(forward=tile, queries=tile, keys=tile):
        found = solve(problem, "triton", torch.float32, DEVICE)
    assert_as_good_as_plain(found, plain, true, torch.float32)


def test_heads_are_packed_by_powers_of_two_that_divide_the_group():
    def pack(group, rows=64, most=8):
        tile = Tile(rows, 64, pack=most)
        with tiles.forced(forward=tile):
            of = {"chip": "", "width": 64, "window": 9, "dtype": torch.float32, "group": group}
            return tiles.chosen("forward", **of).pack

    assert [pack(group) for group in (1, 2, 3, 4, 6, 7, 8, 16)] == [1, 2, 1, 4, 2, 1, 8, 8]
    assert pack(8, rows=4) == 4


@runs
def test_a_bias_by_distance_is_added_and_has_no_gradient_here():
    (q, k, v), _, options = Problem(queries=40, table=True, window=20, kv_heads=1).tensors()
    q, k, v = (x.float().to(DEVICE) for x in (q, k, v))
    bias = options.pop("bias")
    options["bias"] = DistanceBias(bias.values.float().to(DEVICE), bias.zero)
    found = attention(q, k, v, **options, path="triton")
    torch.testing.assert_close(found, attention(q, k, v, **options, path="reference"))
    options["bias"].values.requires_grad_()
    with pytest.raises(ValueError, match="it has no gradient of a bias by distance"):
        attention(q, k, v, **options, path="triton")


@runs
@pytest.mark.parametrize("layout", ["half-split", "interleaved"])
@pytest.mark.parametrize("pairs", [8, 5])
def test_it_turns_queries_and_keys_itself(layout, pairs):
    """Of as many heads, of the last queries, of only some coordinates; gradients turned back."""
    torch.manual_seed(0)
    shapes = [(2, 4, 30, 16), (2, 2, 45, 16), (2, 2, 45, 12), (2, 4, 30, 12)]
    q, k, v, grad = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    places = torch.stack([torch.arange(45), torch.arange(45) + 7])
    for per_head in (False, True):
        angles = rotation(places, pairs, layout=layout, dtype=torch.float64)
        if per_head:
            angles = replace(angles, cos=angles.cos.expand(-1, 4, -1, -1))
            angles = replace(angles, sin=angles.sin.expand(-1, 4, -1, -1))
        found = {}
        for path, dtype in (("reference", torch.float64), ("triton", torch.float32)):
            device = DEVICE if path == "triton" else "cpu"
            leaves = [x.to(device, dtype).requires_grad_() for x in (q, k, v)]
            by = replace(angles, cos=angles.cos.to(device, dtype), sin=angles.sin.to(device, dtype))
            out = attention(*leaves, window=20, rotary=by, path=path)
            found[path] = [out, *torch.autograd.grad(out, leaves, grad.to(device, dtype))]
        for mine, true in zip(found["triton"], found["reference"], strict=True):
            torch.testing.assert_close(mine.cpu().double(), true, atol=3e-6, rtol=1e-5)


@runs
def test_queries_are_turned_where_they_stand():
    q, k, v = (torch.randn(2, 2, n, 16, device=DEVICE) for n in (9, 20, 20))
    lengths = torch.tensor([12, 20], device=DEVICE)
    by = rotation(torch.arange(20, device=DEVICE)[None], 8)
    at = (lengths[:, None] - 9) + torch.arange(9, device=DEVICE)
    true = attention(rotate(q, by.at(at)), rotate(k, by), v, key_lengths=lengths, path="reference")
    found = attention(q, k, v, key_lengths=lengths, rotary=by, path="triton")
    torch.testing.assert_close(found, true)


@runs
@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("name", ["plain", "sinks", "padding", "alibi, cap"])
def test_few_queries_share_out_their_keys(name, splits):
    from attnlab.kernels.triton import launch

    problem = {
        "plain": Problem(queries=3, keys=200, window=150, batch=1),
        "sinks": Problem(queries=1, keys=90, sinks=True, ratio=4),
        "padding": Problem(queries=5, keys=90, padding=True, window=60),
        "alibi, cap": Problem(queries=2, keys=70, alibi=True, soft_cap=2.0, batch=1),
    }[name]
    (q, k, v), _, options = problem.tensors()
    bias, sinks = options.get("bias"), options.get("sinks")
    if isinstance(bias, LinearBias):
        options["bias"] = LinearBias(bias.slopes.float().to(DEVICE))
    if sinks is not None:
        options["sinks"] = sinks.float().to(DEVICE)
    if options.get("key_padding") is not None:
        options["key_padding"] = options["key_padding"].to(DEVICE)
    q, k, v = (x.float().to(DEVICE) for x in (q, k, v))
    true = attention(q, k, v, **options, path="reference")
    band = band_of(Request(q=q, k=k, v=v, **options), slopes=True)
    tile = Tile(16, 16, stages=1, pack=4, described=False)
    with tiles.forced(forward=tile):
        torch.testing.assert_close(launch.forward(band, splits)[0], true)


@runs
def test_a_query_that_sees_nothing_gives_zero_and_finite_gradients():
    leaves = [torch.randn(2, 2, 20, 16, device=DEVICE, requires_grad=True) for _ in range(3)]
    padding = torch.zeros(2, 20, dtype=torch.bool, device=DEVICE)
    padding[0, :10], padding[1] = True, True
    out = attention(*leaves, window=4, key_padding=padding, path="triton")
    assert (out[0, :, :10] == 0).all() and (out[1] == 0).all() and (out[0, :, 10:] != 0).any()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))


@runs
def test_padding_is_never_read():
    q, k, v = (torch.randn(1, 2, 30, 16, device=DEVICE) for _ in range(3))
    padding = (torch.arange(30, device=DEVICE) % 3 == 0)[None]
    clean = attention(q, k, v, window=9, key_padding=padding, path="triton")
    hidden = padding[:, None, :, None]
    leaves = [q, k.masked_fill(hidden, torch.nan), v.masked_fill(hidden, torch.inf)]
    leaves = [x.requires_grad_() for x in leaves]
    out = attention(*leaves, window=9, key_padding=padding, path="triton")
    assert torch.equal(out, clean)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), leaves))


@runs
@pytest.mark.parametrize("size", [1e3, 1e10, 3e19])
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # NumPy tells of overflows
def test_finite_numbers_never_give_nan(size):
    """Scores of 3e19² do not fit into float32: they count as its largest number."""
    torch.manual_seed(0)
    leaves = [
        (torch.rand(1, 2, 40, 16, device=DEVICE) * n).requires_grad_() for n in (size, size, 1)
    ]
    out = attention(*leaves, window=9, path="triton")
    assert out.isfinite().all() and (out > 0).all()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


@runs
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_shows_wherever_it_is_seen(where):
    q, k, v = (torch.randn(1, 1, 20, 16, device=DEVICE) for _ in range(3))
    (k if where == "k" else v)[0, 0, 5] = torch.nan
    assert attention(q, k, v, window=3, path="triton")[0, 0, 5:8].isnan().all()


@runs
def test_any_memory_layout_is_read_right():
    problem = Problem(queries=40, window=17, width=16, batch=2, kv_heads=1)
    inputs, grad, options = problem.tensors()
    true = solve(problem, "reference")
    layouts = [
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: torch.cat((x, x), dim=3)[..., : x.shape[3]],
    ]
    for one, other in zip(layouts, [*layouts[1:], layouts[0]], strict=True):
        made = [make(x.float()) for make, x in zip((one, other, one), inputs, strict=True)]
        leaves = [x.to(DEVICE).requires_grad_() for x in made]
        out = attention(*leaves, path="triton", **options)
        grads = torch.autograd.grad(out, leaves, other(grad.float()).to(DEVICE))
        assert max(errors([out.detach(), *grads], true)) < 1e-4


@runs
def test_expanded_gradients_are_read_right():
    q, k, v = (torch.randn(1, 2, 20, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    found, plain = (
        torch.autograd.grad(attention(q, k, v, window=8, path=path).sum(), (q, k, v))
        for path in ("triton", "reference")
    )
    torch.testing.assert_close(found, plain)


@runs
def test_results_lie_as_their_inputs_and_as_the_compiler_is_told():
    heads_inside = torch.randn(2, 20, 4, 16, device=DEVICE).transpose(1, 2)
    out = attention(heads_inside, heads_inside, heads_inside, window=5, path="triton")
    assert out.stride() == heads_inside.stride()
    inputs = [torch.randn(2, n, 20, 16, device=DEVICE, requires_grad=True) for n in (4, 2, 2)]
    by = rotation(torch.arange(20, device=DEVICE)[None], 8)
    rest = (None, None, None, None, by.cos, by.sin, 7, 0, 0.25, 0.0, 0, False, "triton", False)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.attnlab.banded, (*inputs, *rest), test_utils=tests)


def test_what_it_cannot_do_it_says(monkeypatch):
    monkeypatch.setattr(engine, "why_unavailable", lambda device: None)
    refusal = PATHS["triton"].refusal

    def asked(width=16, dtype=torch.float32, **options):
        q = torch.randn(1, 2, 20, width).to(dtype)
        return refusal(Request(q=q, k=q, v=q, **options))

    assert asked() is None
    assert "torch.float64" in asked(dtype=torch.float64)
    assert asked(width=257) == "head widths (257, 257) are not both at most 256"
    assert asked(scale=-1.0) == "scores are multiplied by -1, and must be by more than 0"
    assert asked(dropout=0.1) == "it leaves out no weights at random"
    assert asked(bias=torch.zeros(20, 20)) == "a bias given as a tensor is dense"
    by = rotation(torch.arange(20)[None], 8)
    by.cos.requires_grad_()
    assert asked(rotary=by) == "it has no gradient of angles"


def test_where_it_cannot_run_it_says_so(monkeypatch):
    q = torch.randn(1, 2, 20, 16)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="the kernels run on CUDA, not on cpu"):
        attention(q, q, q, window=5, path="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(engine, "_has_triton", lambda: False)
    with pytest.raises(ValueError, match="Triton is not installed"):
        attention(q, q, q, window=5, path="triton")
    assert choose(Request(q=q, k=q, v=q, window=5)).path in ("native", "tiled")


@pytest.fixture
def a_gpu(monkeypatch, tmp_path):
    """A GPU by name; what its trial comes to is up to the test."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(engine, "_capability", lambda index: (9, 0))
    monkeypatch.setattr(engine, "_missing", lambda kind: None)
    monkeypatch.setattr(engine, "_fingerprint", lambda index: "chip")
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    engine.trial.cache_clear()
    yield tmp_path / "attnlab" / "triton-chip"
    engine.trial.cache_clear()


def test_a_trial_that_worked_is_remembered(monkeypatch, a_gpu):
    monkeypatch.setattr(engine, "_failure", lambda device: None)
    assert engine.trial(0) is None and a_gpu.read_bytes() == b"works"
    engine.trial.cache_clear()
    monkeypatch.setattr(engine, "_failure", lambda device: pytest.fail("tried twice"))
    assert engine.trial(0) is None
    engine.trial.cache_clear()
    a_gpu.write_bytes(b"damaged")
    monkeypatch.setattr(engine, "_failure", lambda device: "output off by 3")
    assert engine.trial(0) == "output off by 3" and a_gpu.read_bytes() == b"damaged"


def test_an_old_chip_is_not_tried(monkeypatch, a_gpu):
    monkeypatch.setattr(engine, "_capability", lambda index: (7, 5))
    monkeypatch.setattr(engine, "_failure", lambda device: pytest.fail("tried"))
    gpu = torch.device("cuda", 0)
    assert engine.why_unavailable(gpu) == "compute capability 7.5 is below 8.0"


def test_what_was_compiled_has_its_trial_when_it_runs(monkeypatch, a_gpu):
    monkeypatch.setattr(engine, "_failure", lambda device: "output off by 3")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    gpu = torch.device("cuda", 0)
    assert engine.why_unavailable(gpu) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    with pytest.raises(RuntimeError, match="cannot serve this: output off by 3; use path='flex'"):
        engine._trust(gpu)


COMPILED = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import interpreted
interpreted.mend()
from attnlab.kernels import attention, rotation
by = rotation(torch.arange(40)[None], 8)
for options in ({"window": 9, "rotary": by}, {"chunk": 16}):
    def attend(q, k, v):
        return attention(q, k, v, path="triton", **options)
    leaves = [torch.randn(1, n, 40, 16, requires_grad=True) for n in (4, 2, 2)]
    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(*leaves)
    true = attend(*leaves)
    assert torch.equal(found, true)
    grads = [torch.autograd.grad(out.sum(), leaves) for out in (found, true)]
    assert all(torch.equal(mine, same) for mine, same in zip(*grads))
"""


@pytest.mark.skipif(not INTERPRETED, reason="test_cuda.py does this on a GPU")
def test_compiled_code_has_no_break():
    """Nor with the rotation inside, or with ranges; in a process where nothing checks types."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", COMPILED, str(here)]
    done = subprocess.run(command, cwd=here.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@runs
def test_the_trial_finds_a_wrong_kernel(monkeypatch):
    from attnlab.kernels.triton import launch

    one = Tile(64, 64, stages=1, described=False)
    with tiles.forced(forward=one, queries=one, keys=one):
        assert engine._failure(torch.device(DEVICE)) is None
        right = launch.forward

        def wrong(band):
            out, *rest = right(band)
            return out * 1.5, *rest

        monkeypatch.setattr(launch, "forward", wrong)
        assert "found output off by" in engine._failure(torch.device(DEVICE))
        monkeypatch.setattr(launch, "forward", None)
        assert "the trial raised TypeError" in engine._failure(torch.device(DEVICE))


@runs
def test_tuning_tries_tiles_and_names_the_best():
    from rich.console import Console

    from attnlab.bench import tuning

    def tried(kernel, group):
        yield Tile(32, 32, stages=1, parts=1)
        yield Tile(16, 48)  # no power of two: it does not run

    inputs = [torch.randn(1, n, 32, 16, device=DEVICE) for n in (2, 1, 1)]
    report = tuning.run(tuple(inputs), [8], 1, lambda text: None, tried)
    assert [row["kernel"] for row in report["tuned"]] == list(tiles.KERNELS)
    for row in report["tuned"]:
        assert row["best"]["tile"]["rows"] == 32 and row["tried"][1]["ms"] is None
    screen = Console(width=200, record=True)
    tuning.show(report, screen)
    assert "(16, 8): Tile(rows=32" in screen.export_text()
