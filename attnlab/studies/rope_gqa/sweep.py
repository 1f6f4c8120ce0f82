"""What fewer key/value heads cost and save, every number of them measured one way.

Six query heads share 1, 2, 3 or 6 key/value heads; nothing else changes. Candidates take turns in
random order, the device is waited for, medians count. All of them must run through one kernel:
PyTorch may silently choose different ones, so the kernel that runs is recorded, and where no kernel
serves all alike nothing is reported.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab import config, presets
from attnlab.attention.heads import head_width
from attnlab.bench.measure import take_turns, usual_peak
from attnlab.compat import TorchDispatchMode
from attnlab.data.batches import Batch
from attnlab.kernels import dispatch
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.training.parallel import World, torch_device
from attnlab.training.recipe import Recipe
from attnlab.training.step import Stepper

HEADS = 6
KV_HEADS = (1, 2, 3, 6)
VOCABULARY = 65  # characters; its size plays no part in attention
CAPTURED_CALLS = 20  # in one graph: starting it is then no part of the time

# forward alone; forward with all that a backward pass would need; forward and backward
Passes = Literal["forward", "kept", "both"]
Work = Callable[[], object]
Make = Callable[["Kernel", int], Work]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """How large and how often it is measured."""

    width: int = 192
    depth: int = 6
    block: int = 256  # tokens in a sample
    batch: int = 64  # samples in a training step
    rows: int = 128  # texts that are decoded side by side
    turns: int = 30
    patience: float = 20.0  # seconds of turns for a candidate
    peaks: int = 3  # of the memory; those of a CPU are pages of the process, which vary a little


class DifferentKernels(Exception):
    """No kernel serves all variants alike: their times would compare kernels, not heads."""


@dataclass(frozen=True)
class Kernel:
    """A precision, and which of PyTorch's own kernels is allowed; None: as it likes."""

    dtype: str
    backend: str | None = None

    @contextmanager
    def forced(self) -> Iterator[None]:
        if self.backend is None:
            yield
            return
        with sdpa_kernel(getattr(SDPBackend, self.backend)):
            yield


def kernels_on(device: torch.device) -> Sequence[Kernel]:
    """Those to try, the plainest first. In float32 CUDA has kernels for six heads that refuse
    shared ones; the flash kernel takes both, in half precision; the last one takes everything."""
    plain, last = Kernel("float32"), Kernel("float32", "MATH")
    if device.type == "cuda":
        return plain, Kernel("bfloat16", "FLASH_ATTENTION"), last
    return plain, last


def alike(look: Make, device: torch.device) -> tuple[Kernel, str]:
    """The first kernel through which every variant goes, and its name."""
    reasons = []
    for kernel in kernels_on(device):
        try:
            with kernel.forced():
                paths = {kv: path_of(look(kernel, kv)) for kv in KV_HEADS}
        except RuntimeError as error:
            if not any(part in str(error) for part in NO_KERNEL):
                raise
            reasons.append(f"{kernel.dtype}: {kernel.backend} does not serve all")
            continue
        if len(set(paths.values())) == 1:
            return kernel, f"{paths[HEADS]}, {kernel.dtype}"
        each = ", ".join(f"{kv} through {path}" for kv, path in paths.items())
        reasons.append(f"{kernel.dtype}: {each}")
    raise DifferentKernels("; ".join(reasons))


NO_KERNEL = ("No available kernel", "No viable backend")  # so PyTorch says it


def path_of(work: Work) -> str:
    """The paths of ours that a piece of work takes, and within PyTorch's own its kernel."""
    with dispatch.record_choices() as seen, _Fused() as fused:
        work()
    own = {choice.path for choice in seen} - {"sdpa"}
    return " and ".join(sorted(own | {f"PyTorch's {name}" for name in fused.names}))


class _Fused(TorchDispatchMode):
    """Collects which of PyTorch's attention kernels are called; inference mode would hide them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        name = func.overloadpacket.__name__
        assert name != "scaled_dot_product_attention", "its kernel is hidden: use no_grad"
        if name == "_safe_softmax":  # in none but the one made of plain products
            self.names.add("math")
        elif name.startswith("_scaled_dot_product_") and not name.endswith("_backward"):
            kind = name.removeprefix("_scaled_dot_product_").replace("_attention", "")
            self.names.add(kind.removesuffix("_for_cpu"))
        return func(*args, **(kwargs or {}))


def attention_times(sweep: Sweep, *, passes: Passes) -> dict[str, Any]:
    """Milliseconds of one attention module over a whole batch."""
    device = torch_device("auto")

    def work(kernel: Kernel, kv_heads: int) -> Work:
        return attention_call(sweep, kernel, kv_heads, device, passes=passes)

    def make(kernel: Kernel, kv_heads: int) -> Work:
        return captured(work(kernel, kv_heads), device)

    calls = CAPTURED_CALLS if device.type == "cuda" else 1
    return _timed(sweep, device, look=work, make=make, calls=calls)


def step_times(sweep: Sweep) -> dict[str, Any]:
    """Milliseconds of a whole training step, on CUDA compiled and captured as in training."""
    device = torch_device("auto")
    return _timed(
        sweep,
        device,
        look=lambda kernel, kv: _step(sweep, kernel, kv, device, compiled=False),
        make=lambda kernel, kv: _step(sweep, kernel, kv, device, compiled=device.type == "cuda"),
    )


def training_memory(sweep: Sweep) -> dict[str, Any]:
    """Bytes at the peak of a training step beyond weights and optimiser; None: cannot be read."""
    device = torch_device("auto")

    def make(kernel: Kernel, kv_heads: int) -> Work:
        return _step(sweep, kernel, kv_heads, device, compiled=False)

    try:
        kernel, path = alike(make, device)
    except DifferentKernels as error:
        return {"refused": str(error)}
    found: dict[str, dict[str, float] | None] = {}
    with kernel.forced():
        for kv in KV_HEADS:
            step = make(kernel, kv)
            step()  # the first makes the optimiser's state, which stays
            found[str(kv)] = usual_peak(step, device, sweep.peaks)
    return {"kernel": path, "bytes": found}


def decoding(sweep: Sweep) -> dict[str, Any]:
    """Bytes of the cache for a token, and milliseconds to decode some tokens of every row."""
    device = torch_device("auto")
    # the caches double once, in the first turn, which does not count
    tokens = max(sweep.block // (sweep.turns + 2), 1)
    cached: dict[str, dict[str, int]] = {}

    def make(kernel: Kernel, kv_heads: int) -> Work:
        work, counted = decode_call(sweep, kernel, kv_heads, device, tokens)
        cached[str(kv_heads)] = counted
        return work

    found = _timed(sweep, device, look=make, make=make)
    return {**found, "tokens": tokens * sweep.rows, "cache": cached}


def _timed(
    sweep: Sweep, device: torch.device, *, look: Make, make: Make, calls: int = 1
) -> dict[str, Any]:
    try:
        kernel, path = alike(look, device)
    except DifferentKernels as error:
        return {"refused": str(error)}
    with kernel.forced():
        works = {str(kv): make(kernel, kv) for kv in KV_HEADS}
        times = take_turns(works, device, sweep.turns, sweep.patience)
    return {
        "kernel": path,
        "times": {
            name: {
                "median": time.median / calls,
                "fastest": time.fastest / calls,
                "slowest": time.slowest / calls,
                "turns": time.turns,
            }
            for name, time in times.items()
        },
    }


def model_of(sweep: Sweep, kernel: Kernel, kv_heads: int, device: torch.device) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = settings_of(sweep, kv_heads).build()
    return model.to(device=device, dtype=getattr(torch, kernel.dtype))


def settings_of(sweep: Sweep, kv_heads: int) -> TransformerSettings:
    """The course's transformer with rotary positions. Six key/value heads are of the same class
    as fewer: nothing but their number differs."""
    overrides = [
        f"width={sweep.width}",
        f"depth={sweep.depth}",
        f"context={sweep.block}",
        f"vocabulary={VOCABULARY}",
        f"attention.kv_heads={kv_heads}",
        "attention_dropout=0",  # which not every kernel has
    ]
    model = presets.rope_gqa_both().model
    assert isinstance(model, TransformerSettings)
    return config.override(model, overrides)


def attention_call(
    sweep: Sweep,
    kernel: Kernel,
    kv_heads: int,
    device: torch.device,
    *,
    passes: Passes,
    score: torch.nn.Module | None = None,
) -> Work:
    """One attention module at work on a batch; `score` stands in for its own."""
    model = model_of(sweep, kernel, kv_heads, device)
    block: Any = model.blocks[0]
    module = block.attention
    module.score = module.score if score is None else score
    dtype = getattr(torch, kernel.dtype)
    rotary = model.positions.rotation_of_span(0, sweep.block, device, dtype)
    shape = (sweep.batch, sweep.block, sweep.width)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    changed = [x.requires_grad_(), *module.parameters()]

    def forward() -> Tensor:
        with torch.no_grad():
            return kept()

    def kept() -> Tensor:
        attended: Tensor = module(x, rotary=rotary)
        return attended

    def both() -> object:
        return torch.autograd.grad(kept().square().mean(), changed)

    works: dict[Passes, Work] = {"forward": forward, "kept": kept, "both": both}
    return works[passes]


def captured(work: Work, device: torch.device) -> Work:
    """On CUDA a graph of many calls: so small a module is done before Python has begun the next."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # as PyTorch asks for before a capture
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED_CALLS):
            work()

    def replay() -> None:
        assert work is not None  # the graph reads its tensors by address, and keeps none of them
        graph.replay()

    return replay


def _step(
    sweep: Sweep, kernel: Kernel, kv_heads: int, device: torch.device, *, compiled: bool
) -> Work:
    recipe = Recipe(
        model=settings_of(sweep, kv_heads),
        batch=sweep.batch,
        dtype="bfloat16" if kernel.dtype == "bfloat16" else "float32",
        compile=compiled,
    )
    model = model_of(sweep, Kernel("float32"), kv_heads, device)
    stepper = Stepper(model, recipe.optimiser.build(model), recipe, World(0, 1, device))
    tokens = _tokens(sweep.batch, sweep.block)
    batch = [Batch(tokens, tokens)]
    if compiled:
        stepper.rehearse(batch)

    def step() -> None:
        with torch.random.fork_rng(devices=[]):  # dropout seeds the generators
            stepper.take(0, batch)

    return step


def decode_call(
    sweep: Sweep, kernel: Kernel, kv_heads: int, device: torch.device, tokens: int
) -> tuple[Work, dict[str, int]]:
    """Decodes `tokens` more of every row at each call; and bytes for a token, counted and by the
    formula. All variants have as long a cache at the same turn."""
    model = model_of(sweep, kernel, kv_heads, device).eval()
    cache = model.new_cache()
    with torch.no_grad():
        prompt = _tokens(sweep.rows, sweep.block).to(device)
        newest = model(prompt, cache=cache)[:, -1:].argmax(-1)
    bytes_each = getattr(torch, kernel.dtype).itemsize
    width = head_width(model.settings.attention, sweep.width)
    counted, rest = divmod(cache.bytes, sweep.rows * sweep.block)
    assert rest == 0, "a cache filled at once has no room to spare"
    formula = 2 * sweep.depth * kv_heads * width * bytes_each

    @torch.no_grad()
    def decode() -> None:
        nonlocal newest
        for _ in range(tokens):
            newest = model(newest, cache=cache)[:, -1:].argmax(-1)

    return decode, {"counted": counted, "formula": formula}


def _tokens(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCABULARY, (rows, length), generator=generator)
