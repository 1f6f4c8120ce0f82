"""The kernels as an engine of banded attention, and when they cannot serve.

Before its first use on a chip the path is tried against the definition on a small problem, and the
answer is kept for that chip, driver, version and code: a compiler or a chip that does not keep its
word gives a reason for not taking this path.
"""

import functools
import hashlib
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import files
from attnlab.kernels import reference
from attnlab.kernels.band import Band, band_of
from attnlab.kernels.request import DistanceBias, Request

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256
OLDEST = (8, 0)  # compute capability: the first with bfloat16 and asynchronous copies
ROUNDINGS = 32  # of the largest number, within which a trial is right
SOURCES = ("parts.py", "forward.py", "backward.py", "launch.py", "tiles.py")


def refusal(request: Request) -> str | None:
    """Why the kernels cannot serve a request, or None."""
    reason = why_unavailable(request.q.device)
    if reason is not None:
        return reason
    if request.q.dtype not in DTYPES:
        return f"the kernels do not compute in {request.q.dtype}"
    widths = (request.q.shape[3], request.v.shape[3])
    if max(widths) > WIDEST:
        return f"head widths {widths} are not both at most {WIDEST}"
    if 0 in (request.queries, request.keys, *widths, request.q.shape[0]):
        return "there is nothing to attend to"
    if request.factor <= 0:
        return f"scores are multiplied by {request.factor:g}, and must be by more than 0"
    bias = request.bias
    if isinstance(bias, DistanceBias) and request.needs_grad and bias.values.requires_grad:
        return "it has no gradient of a bias by distance"
    rotary = request.rotary
    if rotary is not None and (rotary.cos.requires_grad or rotary.sin.requires_grad):
        return "it has no gradient of angles"
    return None


def why_unavailable(device: torch.device) -> str | None:
    """Why the path cannot run on a device at all."""
    reason = _missing(device.type)
    if reason is not None or device.type == "cpu":
        return reason
    capability = _capability(device.index or 0)
    if capability < OLDEST:
        have, need = (".".join(map(str, one)) for one in (capability, OLDEST))
        return f"compute capability {have} is below {need}"
    if torch.compiler.is_compiling():
        return None  # compiled code has its trial when it first runs
    return trial(device.index or 0)


def _missing(kind: str) -> str | None:
    if kind not in ("cuda", "cpu"):
        return f"the kernels run on CUDA, not on {kind}"
    if kind == "cpu" and not is_interpreted():
        return "the kernels run on CUDA, not on cpu"
    if not _has_triton():
        return "Triton is not installed"
    if kind == "cuda" and torch.version.hip is not None:
        return "the kernels are not tried on AMD's chips"
    return None


def is_interpreted() -> bool:
    """Whether Triton's interpreter is asked for, which runs kernels on the CPU to look at them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def trial(index: int) -> str | None:
    """Why the kernels are not to be trusted on this GPU, or None: tried once, then remembered."""
    try:
        memory = files.cache_folder() / f"triton-{_fingerprint(index)}"
        known = files.read(memory) if memory.exists() else b""
    except OSError:
        memory, known = None, b""  # no place to remember it: tried once a process
    if known == b"works":
        return None  # anything else is tried again
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    try:
        with torch.cuda.device(index):
            reason = _failure(torch.device("cuda", index))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    if reason is None and memory is not None:
        files.write_whole(memory, b"works")
    return reason


def _fingerprint(index: int) -> str:
    """Changes with chip, driver, versions and kernels."""
    import triton

    folder = Path(__file__).parent
    parts = [
        torch.cuda.get_device_name(index),
        str(_capability(index)),
        _driver(),
        torch.__version__,
        str(torch.version.cuda),
        triton.__version__,
        *((folder / name).read_text() for name in SOURCES),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text() if path.exists() else ""


def _failure(device: torch.device) -> str | None:
    """What is wrong on a small problem: grouped heads, a window, padding, an odd length."""
    rng = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        shapes = [(2, 4, 150, 64), (2, 2, 190, 64), (2, 2, 190, 64), (2, 4, 150, 64)]
        wide = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]
        *leaves, grad = [x.to(device, dtype) for x in wide]
        padding = torch.rand(2, 190, generator=rng).to(device) < 0.2
        try:
            found = _with_gradients(leaves, grad, padding, ours=True)
        except Exception as error:  # whatever a compiler or a driver raises
            return f"the trial raised {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        true = _with_gradients([x.double() for x in leaves], grad.double(), padding, ours=False)
        for name, mine, exact in zip(("output", "q", "k", "v"), found, true, strict=True):
            off = float((mine.double() - exact).abs().max() / exact.abs().max())
            if not off <= ROUNDINGS * torch.finfo(dtype).eps:
                return f"the trial in {dtype} found {name} off by {off:.1e}"
    return None


def _with_gradients(
    leaves: list[Tensor], grad: Tensor, padding: Tensor, *, ours: bool
) -> list[Tensor]:
    q, k, v = (x.requires_grad_() for x in leaves)
    request = Request(q=q, k=k, v=v, window=70, key_padding=padding)
    if not ours:
        out = reference.attend(request)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]
    from attnlab.kernels.triton import launch

    band = band_of(request)
    with torch.no_grad():
        out, stats, _ = launch.forward(band)
        grads = launch.backward(band, out, stats, grad, False)
    return [out, *grads[:3]]


def forward(band: Band, alone: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`alone`: there will be no backward pass, and few queries may share out their keys."""
    from attnlab.kernels.triton import launch

    _trust(band.q.device)
    with _current(band.q.device):
        return launch.forward(band, None if alone else 1)


def backward(
    band: Band,
    out: Float[Tensor, "b h q e"],
    stats: Float[Tensor, "kinds b h q"],
    grad_out: Float[Tensor, "b h q e"],
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from attnlab.kernels.triton import launch

    with _current(band.q.device):
        return launch.backward(band, out, stats, grad_out, learned)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _trust(device: torch.device) -> None:
    """Compiled code comes here without having asked."""
    reason = why_unavailable(device)
    if reason is not None:
        raise RuntimeError(f"path 'triton' cannot serve this: {reason}; use path='flex'")
