"""`attnlab bench window`: sliding-window attention, ours against its peers, in one run.

Axes: b batch, h heads, t time, d head width.

Every candidate is first checked against the definition in float64: outputs on pieces of the longest
text, gradients on a shorter one. One that is wrong is named and its times are not reported. With
`rotary` queries and keys are turned as part of the work: peers get a pass for it, compiled on CUDA.

On CUDA calls are recorded as graphs and replayed, so that no time of Python counts, and heads lie
side by side in memory, as a projection leaves them.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor

from attnlab.bench import peers, table, tuning
from attnlab.bench.measure import Timing, exponent, peak_memory, recorded, take_turns
from attnlab.config import refusal, setting, settings
from attnlab.extras import missing
from attnlab.kernels import Request, Rotation, attention, choose, hardware, rotation
from attnlab.kernels.dispatch import PATHS
from attnlab.kernels.mask import Reach, keys_of_left_reach
from attnlab.stop import stoppable

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@settings
class WindowBench:
    lengths: tuple[int, ...] = setting((4096, 8192, 16384), low=1, about="tokens in a text")
    windows: tuple[int, ...] = setting(
        (64, 256, 1024), low=1, about="keys a query attends to, including its own"
    )
    batch: int = setting(1, low=1, about="texts side by side")
    heads: int = setting(8, low=1, about="query heads")
    kv_heads: int | None = setting(
        None, low=1, none="as many as heads", about="key/value heads; they divide heads"
    )
    width: int = setting(64, low=1, about="coordinates of a query, key or value")
    dtype: Literal["float32", "float64", "bfloat16"] | None = setting(
        None, none="bfloat16 on CUDA, else float32", about="dtype of queries, keys and values"
    )
    device: Literal["cpu", "cuda"] | None = setting(
        None, none="a GPU if there is one", about="where to measure"
    )
    turns: int = setting(7, low=1, about="timings of each candidate at each length and window")
    patience: float = setting(
        5.0, about="seconds of timing after which a candidate gets no more turns"
    )
    dense_up_to: int = setting(
        16384, about="longest text for candidates with a dense mask, which cost length²"
    )
    rotary: bool = setting(False, about="rotary positions are part of the work")
    tune: bool = setting(
        False, about="try sizes of tiles of the kernels for CUDA, and print the best ones"
    )
    flex: bool = setting(
        True, about="measure FlexAttention too; it compiles for 20 seconds a length"
    )

    def check(self) -> None:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise refusal(self, "kv_heads", f"it must divide heads = {self.heads}")

    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        return run(self, tick)

    def show(self, report: dict[str, Any], screen: Console) -> None:
        (tuning.show if self.tune else table.show)(report, screen)

    def passed(self, report: dict[str, Any]) -> bool:
        return not any(row["wrong"] for row in report["rows"])

    @property
    def middle(self) -> int:
        return sorted(self.windows)[len(self.windows) // 2]

    def places(self) -> list[tuple[int, int]]:
        """Every length at the middle window, every window at the longest length."""
        along = [(length, self.middle) for length in sorted(self.lengths)]
        across = [(max(self.lengths), window) for window in sorted(self.windows)]
        return list(dict.fromkeys(along + across))


@dataclass(frozen=True)
class Candidate:
    name: str
    make: Callable[[int], Function]  # window -> function
    keys: Callable[[int], int] = lambda window: window  # how many a query really attends to
    backward: bool = True
    note: str = ""

    def of(self, window: int, by: Rotation | None) -> Function:
        """What it computes; `by` has the angles of the longest text."""
        return self.make(window) if by is None else peers.turning(self.make(window), by)


@dataclass(frozen=True)
class Ours(Candidate):
    """`make` gives a function that turns queries and keys itself."""

    def of(self, window: int, by: Rotation | None) -> Function:
        path: Callable[..., Tensor] = self.make(window)
        return path if by is None else lambda q, k, v: path(q, k, v, rotary=peers.until(by, k))


@dataclass
class Row:
    length: int
    window: int
    name: str
    forward: Timing | None = None
    both: Timing | None = None  # forward + backward
    memory: int | None = None  # peak bytes of forward + backward beyond the inputs
    wrong: str | None = None
    note: str = ""


def run(settings: WindowBench, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    device = torch.device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but PyTorch finds no CUDA device here; use device=cpu")
    name = settings.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    dtype = _DTYPES[name]
    hardware.require(dtype, device)
    if settings.tune:
        inputs = _inputs(settings, max(settings.lengths), device, dtype)
        return tuning.run(inputs, settings.windows, settings.turns, tick)
    rows: list[Row] = []
    absent: dict[tuple[int, int], dict[str, str]] = {}
    places = settings.places()

    def done() -> str:
        return f"{len({(row.length, row.window) for row in rows})} of {len(places)} sizes"

    def report() -> dict[str, Any]:
        return _report(settings, rows, absent, device, name)

    with stoppable(done, report):
        for length, window in places:
            inputs = _inputs(settings, length, device, dtype)
            absent[length, window] = left_out(settings, inputs, window)
            rows += _measure(settings, inputs, window, tick)
        for row in rows:  # after all the times, which it would disturb
            if row.forward:
                inputs = _inputs(settings, row.length, device, dtype)
                tick(f"length {row.length:,}, window {row.window:,}: {row.name}, memory")
                row.memory = _peak(settings, row, inputs)
    return report()


def _inputs(
    settings: WindowBench, length: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    kv_heads = settings.kv_heads or settings.heads
    rng = torch.Generator(device).manual_seed(length)
    shapes = [
        (settings.batch, n, length, settings.width) for n in (settings.heads, kv_heads, kv_heads)
    ]
    q, k, v = (torch.randn(s, generator=rng, device=device, dtype=dtype) for s in shapes)
    if device.type == "cuda":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return q, k, v


def _angles(settings: WindowBench, inputs: tuple[Tensor, Tensor, Tensor]) -> Rotation | None:
    if not settings.rotary:
        return None
    places = torch.arange(inputs[0].shape[2], device=inputs[0].device)[None]
    return rotation(places, settings.width // 2)


def _peak(settings: WindowBench, row: Row, inputs: tuple[Tensor, Tensor, Tensor]) -> int | None:
    """Of forward and backward, or of forward alone where there is no backward."""
    found = {c.name: c for c in _candidates(settings, inputs, row.window)}[row.name]
    make = _both if found.backward else _forward
    function = found.of(row.window, _angles(settings, inputs))
    return peak_memory(make(function, inputs), inputs[0].device)


def _candidates(
    settings: WindowBench, inputs: tuple[Tensor, Tensor, Tensor], window: int
) -> Iterator[Candidate]:
    q, k, v = inputs
    device = q.device
    request = Request(q=q, k=k, v=v, window=window)
    chosen = choose(request)
    yield Ours("attnlab", _path("auto"), note=f"path {chosen.path}: {chosen.reason}")
    if device.type == "cpu" and chosen.path == "native":
        yield Ours("attnlab, no compiler", _path("tiled"))
    if window >= q.shape[2]:
        yield Candidate("SDPA, causal", _path("sdpa"))
    elif not _dense_left_out(settings, q.shape[2]) and window == settings.middle:  # one for all
        yield Candidate("dense mask", _path("sdpa"))
    if not _flex_left_out(settings, request):
        backward = device.type == "cuda"
        note = "" if backward else "it has no backward pass on the CPU"
        yield Candidate("FlexAttention", _path("flex"), backward=backward, note=note)
    if device.type == "cuda" and not peers.why_not_varlen(request):
        yield Candidate("varlen_attn", peers.varlen)
    if not _local_left_out(request):
        note = "its window counts the keys before the query: one key more"
        yield Candidate("local-attention", _local_attention, keys_of_left_reach, note=note)


def left_out(
    settings: WindowBench, inputs: tuple[Tensor, Tensor, Tensor], window: int
) -> dict[str, str]:
    """Peers that are not measured at a place, and why."""
    q, k, v = inputs
    request = Request(q=q, k=k, v=v, window=window)
    reasons = {
        "dense mask": "" if window >= q.shape[2] else _dense_left_out(settings, q.shape[2]),
        "FlexAttention": _flex_left_out(settings, request),
        "local-attention": _local_left_out(request),
        # on the CPU it is no peer
        "varlen_attn": peers.why_not_varlen(request) if q.device.type == "cuda" else "",
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _dense_left_out(settings: WindowBench, length: int) -> str:
    longest = settings.dense_up_to
    return f"{length:,} tokens are more than dense_up_to={longest}" if length > longest else ""


def _flex_left_out(settings: WindowBench, request: Request) -> str:
    return (PATHS["flex"].refusal(request) or "") if settings.flex else "flex=false"


def _local_left_out(request: Request) -> str:
    heads, kv_heads, length = request.q.shape[1], request.k.shape[1], request.q.shape[2]
    if importlib.util.find_spec("local_attention") is None:
        return missing("local-attention", "this peer")
    if kv_heads != heads:
        return f"it has a key/value head for every query head, not {kv_heads} for {heads}"
    window = request.window
    assert not isinstance(window, Reach)
    if window is None or window >= length:
        return f"its window must be shorter than the text, and {window:,} is not"
    return ""


def _path(path: str) -> Callable[[int], Callable[..., Tensor]]:
    return lambda window: partial(attention, window=window, path=path)


def _local_attention(window: int) -> Function:
    from local_attention import LocalAttention

    return LocalAttention(
        window_size=window,
        causal=True,
        look_backward=1,
        exact_windowsize=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )


def _measure(
    settings: WindowBench,
    inputs: tuple[Tensor, Tensor, Tensor],
    window: int,
    tick: Callable[[str], None],
) -> list[Row]:
    length, device = inputs[0].shape[2], inputs[0].device
    candidates = list(_candidates(settings, inputs, window))
    rows = {c.name: Row(length, window, c.name, note=c.note) for c in candidates}
    by = _angles(settings, inputs)
    place = f"length {length:,}, window {window:,}: "
    for candidate in candidates:
        tick(place + f"checking {candidate.name}")
        rows[candidate.name].wrong = check(candidate, inputs, window, by)
    right = [c for c in candidates if rows[c.name].wrong is None]

    def label(what: str) -> Callable[[str], None]:
        return lambda name: tick(place + f"{name}, {what}")

    forward = {c.name: _forward(c.of(window, by), inputs) for c in right}
    with torch.no_grad():
        forward = {name: recorded(call, device) for name, call in forward.items()}
        timings = take_turns(forward, device, settings.turns, settings.patience, label("forward"))
    both = {c.name: _both(c.of(window, by), inputs) for c in right if c.backward}
    both = {name: recorded(call, device) for name, call in both.items()}
    backward = take_turns(
        both, device, settings.turns, settings.patience, label("forward + backward")
    )
    for candidate in right:
        row = rows[candidate.name]
        row.forward, row.both = timings[candidate.name], backward.get(candidate.name)
    return list(rows.values())


def _forward(function: Function, inputs: tuple[Tensor, Tensor, Tensor]) -> Callable[[], object]:
    return lambda: function(*inputs)


def _both(function: Function, inputs: tuple[Tensor, Tensor, Tensor]) -> Callable[[], object]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    grad = torch.randn_like(inputs[0])  # laid out as the queries, as the next product leaves it
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


def check(
    candidate: Candidate,
    inputs: tuple[Tensor, Tensor, Tensor],
    window: int,
    by: Rotation | None = None,
) -> str | None:
    """What is wrong with a candidate, or None."""
    function, keys = candidate.of(window, by), candidate.keys(window)
    limit = 64 * torch.finfo(inputs[0].dtype).eps  # of the largest number: rounding, summed up
    length = inputs[0].shape[2]
    with torch.no_grad():
        out = function(*inputs)
    for stop in {min(96, length), length // 2, length}:
        start = max(stop - 96, 0)
        q, k, v = (x[:, :, :stop].double() for x in inputs)
        turn = peers.until(by, k)
        true = attention(q[:, :, start:], k, v, window=keys, rotary=turn, path="sdpa")
        error = _error(out[:, :, start:stop], true)
        if not error <= limit:
            return f"output off by {error:.1e} at positions {start} to {stop} (limit {limit:.1e})"
    return _check_gradients(function, inputs, keys, by, limit) if candidate.backward else None


def _check_gradients(
    function: Function,
    inputs: tuple[Tensor, Tensor, Tensor],
    keys: int,
    by: Rotation | None,
    limit: float,
) -> str | None:
    length = min(inputs[0].shape[2], 3 * keys + 5, 1024)
    short = [x[:, :, :length] for x in inputs]
    grad = torch.randn_like(short[0])
    ours = _gradients(function, short, grad)
    wide = [x.double() for x in short]
    turn = peers.until(by, wide[1])
    definition = partial(attention, window=keys, rotary=turn, path="reference")
    true = _gradients(definition, wide, grad)
    for name, mine, exact in zip("qkv", ours, true, strict=True):
        error = _error(mine, exact)
        if not error <= limit:
            return f"gradient of {name} off by {error:.1e} (limit {limit:.1e})"
    return None


def _gradients(function: Function, inputs: list[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, grad.to(leaves[0].dtype))


def _error(mine: Tensor, true: Tensor) -> float:
    worst = (mine.double() - true).abs().max() / true.abs().max()
    return math.inf if worst.isnan() else float(worst)


def _report(
    settings: WindowBench,
    rows: list[Row],
    absent: dict[tuple[int, int], dict[str, str]],
    device: torch.device,
    dtype: str,
) -> dict[str, Any]:
    ours = [row for row in rows if row.name == "attnlab"]
    return {
        "settings": asdict(settings),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "torch": torch.__version__,
        "rows": [{**asdict(row), "rates": _rates(settings, row)} for row in rows],
        "left_out": [
            {"length": length, "window": window, "name": peer, "reason": reason}
            for (length, window), reasons in absent.items()
            for peer, reason in reasons.items()
        ],
        "ratios": [_ratios(row, rows) for row in ours],
        "exponents": {
            "length": _exponents([row for row in ours if row.window == settings.middle], "length"),
            "window": _exponents(
                [row for row in ours if row.length == max(settings.lengths)], "window"
            ),
        },
    }


def _ratios(ours: Row, rows: list[Row]) -> dict[str, Any]:
    """Our time over each peer's, at one place."""
    found: dict[str, Any] = {"length": ours.length, "window": ours.window, "best": {}}
    for what in ("forward", "both"):
        mine: Timing | None = getattr(ours, what)
        others = [r for r in rows if (r.length, r.window) == (ours.length, ours.window)]
        name = "forward + backward" if what == "both" else what
        found[name] = {
            peer.name: mine.median / theirs.median
            for peer in others
            if peer is not ours and mine and (theirs := getattr(peer, what))
        }
        strangers = [found[name][peer] for peer in found[name] if not peer.startswith("attnlab")]
        found["best"][name] = max(strangers, default=None)
    return found


def _rates(settings: WindowBench, row: Row) -> dict[str, float]:
    """TFLOP/s, of products for pairs of a query and a key that it attends to: 2 of them forward,
    and 5 on the way back."""
    window = min(row.window, row.length)
    pairs = settings.batch * settings.heads * (row.length * window - window * (window - 1) // 2)
    timings = {"forward": (row.forward, 2), "forward + backward": (row.both, 7)}
    return {
        name: 2e-9 * products * settings.width * pairs / timing.median
        for name, (timing, products) in timings.items()
        if timing
    }


def _exponents(rows: list[Row], axis: str) -> dict[str, float | None]:
    def of(what: str) -> float | None:
        timed = [(getattr(row, axis), getattr(row, what)) for row in rows if getattr(row, what)]
        return exponent([size for size, _ in timed], [timing.median for _, timing in timed])

    return {"forward": of("forward"), "forward + backward": of("both")}
