"""Banded attention in C: banded.c, compiled by the machine's own compiler on first use.

Axes: b batch, h query heads, g key/value heads, q queries, k keys, d head width, e value width.

The library is tried in a child process before it is kept: a compiler or a processor that does not
keep its word gives a reason for not taking this path, not a dead process.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnlab.files import CacheWarning, cache_folder, read, sha256, write_whole
from attnlab.kernels.band import Band
from attnlab.kernels.hardware import machine_id

NAMES = ("banded.c", "step.c", "vectors.h")  # step.c is kernels/step.py's, in the same library
SOURCES = [Path(__file__).with_name(name) for name in NAMES]
FLAGS = ["-O3", "-fPIC", "-shared", "-std=gnu11"]
MACHINES: tuple[list[str], ...] = (
    ["-march=native"],
    [],
)  # the second for compilers that do not know the first
LONGEST_RUN = 512  # queries of a unit of work: each packed key tile serves so many, still in L2
WORK_PER_THREAD = 1 << 19  # multiplications that are worth waking a thread for
UNITS_PER_THREAD = 4  # enough to share the work evenly
TRIAL_SECONDS = 60  # it takes a fraction of one
RUNS_PER_THREAD = 3  # likewise, but each has gradients of its own

_POINTERS = (
    *("ranges", "table", "sinks", "padding", "softmax", "along", "partial", "partial_table"),
)
_TENSORS = ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v")
_SIZES = ("batch", "heads", "kv_heads", "queries", "keys", "width", "value_width")
_NUMBERS = (
    *(*_SIZES, "ranges_stride", "table_stride", "zero"),
    *("run", "parts", "threads", "partial_stride"),
)


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((n, ctypes.c_long) for n in ("batch", "head", "time"))]


def _job_type(real: type) -> type[ctypes.Structure]:
    class Job(ctypes.Structure):
        """struct job of banded.c, field for field."""

        _fields_ = [
            *((name, _Tensor) for name in _TENSORS),
            *((name, ctypes.c_void_p) for name in _POINTERS),
            *((name, ctypes.c_long) for name in _NUMBERS),
            *((name, real) for name in ("scale", "cap")),
            ("region", ctypes.c_void_p),
            ("next", ctypes.c_long),
            ("failed", ctypes.c_int),
            ("phase", ctypes.c_int),
        ]

    return Job


_REALS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_JOBS = {dtype: _job_type(real) for dtype, real in _REALS.items()}


class Unavailable(Exception):
    """Why there is no compiled path on this machine."""


def forward(band: Band) -> tuple[Tensor, Tensor]:
    """The output, and what the backward pass needs of the softmax: [b, h, q, 2]."""
    q, v = band.q, band.v
    call = _Call(band)
    out = call.result("out", q, v.shape[3])
    softmax = call.buffer("softmax", *q.shape[:3], 2)
    units = q.shape[0] * q.shape[1]
    call.job.run = _run_length(q.shape[2], units, call.job.threads)
    call("attnlab_forward")
    return out[..., : v.shape[3]].to(q.dtype), softmax


def backward(
    band: Band,
    out: Float[Tensor, "b h q e"],
    softmax: Float[Tensor, "b h q 2"],
    grad_out: Float[Tensor, "b h q e"],
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v = band.q, band.k, band.v
    call = _Call(band)
    call.tensor("grad_out", grad_out)
    call.tensor("out", out)
    call.pointer("softmax", softmax)
    along = call.buffer("along", *q.shape[:3])
    grad_q = call.result("grad_q", q, q.shape[3])
    grad_k = call.result("grad_k", k, k.shape[3])
    grad_v = call.result("grad_v", v, v.shape[3])
    call.split_backward()
    grad_table = call.table_gradient() if learned else None
    call("attnlab_backward")
    grad_sinks = q.new_empty(0)
    if band.sinks is not None:
        weights = (band.sinks.to(softmax.dtype)[:, None] - softmax[..., 0]).exp() * softmax[..., 1]
        grad_sinks = -(weights * along).sum((0, 2)).to(band.sinks.dtype)
    return (
        grad_q[..., : q.shape[3]].to(q.dtype),
        grad_k[..., : k.shape[3]].to(k.dtype),
        grad_v[..., : v.shape[3]].to(v.dtype),
        q.new_empty(0) if grad_table is None else call.cut_table(grad_table.sum((0, 1))),
        grad_sinks,
    )


class _Call:
    """One call into the library: fills in struct job and keeps alive what it points to."""

    def __init__(self, band: Band) -> None:
        q, k, v = band.q, band.k, band.v
        # half precisions are computed in float32
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.library = library(self.dtype)
        self.lanes = self.library.attnlab_lanes()
        self.job = _JOBS[self.dtype]()
        self.kept: list[Tensor] = []
        job = self.job
        for name, x in (("q", q), ("k", k), ("v", v)):
            self.tensor(name, x)
        job.batch, job.heads, job.queries = q.shape[:3]
        job.kv_heads, job.keys = k.shape[1:3]
        job.width, job.value_width = self.round_up(q.shape[3]), self.round_up(v.shape[3])
        job.scale, job.cap = band.scale, band.cap
        ranges = band.mask.ranges().contiguous()
        assert ranges.dtype == torch.long, ranges.dtype
        self.kept.append(ranges)
        job.ranges, job.ranges_stride = ranges.data_ptr(), 3 * job.queries * (len(ranges) > 1)
        pairs = int((ranges[:, :, 1] - ranges[:, :, 0]).sum()) * (job.batch // len(ranges))
        work = job.heads * pairs * job.width
        job.threads = max(min(torch.get_num_threads(), work // WORK_PER_THREAD), 1)
        job.region = torch_thread_pool()
        room = self.library.attnlab_key_tile()  # vectors may read past the last key
        self.band, self.room = band, room
        if band.table is not None:
            table = F.pad(band.table.detach().to(self.dtype), (room, room))
            self.pointer("table", table)
            job.table_stride, job.zero = table.shape[1], band.zero + room
        if band.sinks is not None:
            self.pointer("sinks", band.sinks)
        if band.padding is not None:
            hidden = torch.zeros(job.batch, job.keys + room, dtype=self.dtype)
            hidden[:, : job.keys].masked_fill_(band.padding, -torch.inf)
            self.pointer("padding", hidden)

    def round_up(self, width: int) -> int:
        return -(-width // self.lanes) * self.lanes

    def tensor(self, name: str, x: Tensor) -> None:
        x = x.to(self.dtype)
        if x.shape[3] % self.lanes:
            x = F.pad(x, (0, -x.shape[3] % self.lanes))
        if x.stride(3) != 1:  # also what F.pad makes of heads that lie innermost ("channels last")
            x = x.contiguous()
        self.kept.append(x)
        setattr(self.job, name, _Tensor(x.data_ptr(), *x.stride()[:3]))

    def result(self, name: str, like: Tensor, width: int) -> Tensor:
        """A result laid out in memory as `like` is, so that heads merge without a copy."""
        shape = (*like.shape[:3], self.round_up(width))
        x = torch.empty_like(like, dtype=self.dtype) if like.shape == shape else None
        if x is None or x.stride(3) != 1:
            x = torch.empty(shape, dtype=self.dtype)
        self.tensor(name, x)
        return x

    def buffer(self, name: str, *shape: int) -> Tensor:
        x = torch.empty(shape, dtype=self.dtype)
        self.pointer(name, x)
        return x

    def pointer(self, name: str, x: Tensor) -> None:
        x = x.detach().to(self.dtype).contiguous()
        self.kept.append(x)
        setattr(self.job, name, x.data_ptr())

    def split_backward(self) -> None:
        """Enough units for the threads where there are fewer key/value heads than threads.

        First the query heads of a group are shared out, then the queries cut into runs: several to
        a thread, since in causal attention the later ones take longer. Each unit has gradients of
        its own for the keys it attends to, added up at the end.
        """
        job, tile = self.job, 64
        heads, group = job.batch * job.kv_heads, job.heads // job.kv_heads
        job.parts = min(-(-job.threads // heads), group)
        job.run = job.queries
        if heads * job.parts < job.threads:
            runs = -(-RUNS_PER_THREAD * job.threads // (heads * job.parts))
            job.run = -(-max(job.queries // runs, tile) // tile) * tile
        units = heads * job.parts * -(-job.queries // job.run)
        if units > heads:
            job.partial_stride = self.library.attnlab_partial_stride(ctypes.byref(job))
            self.buffer("partial", units, job.partial_stride)

    def table_gradient(self) -> Tensor:
        """From each row of the batch and each run of queries, to be added up."""
        job = self.job
        runs = -(-job.queries // job.run)
        sums = torch.empty(job.batch, runs, job.heads, job.table_stride, dtype=torch.float64)
        self.kept.append(sums)
        job.partial_table = sums.data_ptr()
        return sums

    def cut_table(self, padded: Float[Tensor, "h n"]) -> Tensor:
        assert self.band.table is not None
        return padded[:, self.room : -self.room].to(self.band.table.dtype)

    def __call__(self, function: str) -> None:
        if getattr(self.library, function)(ctypes.byref(self.job)):
            raise MemoryError("attention could not get scratch memory for its threads")


def _run_length(queries: int, heads: int, threads: int) -> int:
    run = LONGEST_RUN
    while run > 64 and heads * -(-queries // run) < threads * UNITS_PER_THREAD:
        run //= 2
    return run


@functools.cache
def torch_thread_pool() -> int | None:
    """PyTorch's OpenMP entry point: its threads are used, not a second set beside them."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):
        return None


@functools.cache
def why_unavailable() -> str | None:
    try:
        library(torch.float32)
        library(torch.float64)
    except Unavailable as reason:
        return str(reason)
    return None


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL:
    path = build(dtype)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:  # a folder from which nothing may be executed, say
        raise Unavailable(f"the compiled path cannot be loaded: {error}") from None
    for name in ("attnlab_lanes", "attnlab_key_tile", "attnlab_job_size", "attnlab_partial_stride"):
        getattr(loaded, name).restype = ctypes.c_long
    assert loaded.attnlab_job_size() == ctypes.sizeof(_JOBS[dtype]), "struct job differs from Job"
    return loaded


def build(dtype: torch.dtype, folder: Path | None = None) -> Path:
    """The library in the cache, or in this folder: what is there if it is whole, else a new one."""
    compiler = os.environ.get("CC") or "cc"
    found = shutil.which(compiler)
    if found is None:
        raise Unavailable(f"no C compiler: {compiler!r} is not on the PATH (set CC to name one)")
    flags = [*FLAGS, *(["-DREAL_IS_DOUBLE"] if dtype == torch.float64 else [])]
    version = subprocess.run([found, "--version"], capture_output=True, check=False).stdout
    sources = [source.read_bytes() for source in SOURCES]
    text = b"".join([*sources, repr((flags, MACHINES)).encode(), version, machine_id().encode()])
    try:
        name = f"banded-{hashlib.sha256(text).hexdigest()[:16]}.so"
        target = (folder or cache_folder()) / name
        if not is_whole(target):
            _compile(found, flags, target)
    except OSError as error:
        raise Unavailable(f"no place for compiled code: {error}") from None
    return target


def _seal(target: Path) -> Path:
    """Holds the hash of what was compiled: loading a damaged library ends the process."""
    return target.with_suffix(".sha256")


def is_whole(target: Path) -> bool:
    """Whether a compiled library is there, bit by bit as it was built."""
    if not os.path.lexists(target) or not os.path.lexists(_seal(target)):
        return False  # another process may be at it
    try:
        same = read(_seal(target)) == sha256(target).encode()
    except OSError:  # no plain file
        same = False
    if not same:
        warnings.warn(f"{target} is damaged; compiling it again", CacheWarning, stacklevel=2)
    return same


def _compile(compiler: str, flags: list[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        for machine in MACHINES:
            programs = [str(source) for source in SOURCES if source.suffix == ".c"]
            command = [compiler, *flags, *machine, *programs, "-o", str(built)]
            command += ["-lm", "-lpthread"]
            answer = subprocess.run(command, capture_output=True, check=False, text=True)
            if answer.returncode == 0:
                break
        else:
            lines = answer.stderr.splitlines()
            message = next((line for line in lines if "error" in line), "no message")
            raise Unavailable(f"{compiler} could not compile banded.c: {message}")
        trial = [sys.executable, "-c", _TRIAL, str(built)]
        try:
            ended = subprocess.run(trial, capture_output=True, check=False, timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            late = f"the compiled path did not end its trial in {TRIAL_SECONDS} s"
            raise Unavailable(late) from None
        if ended.returncode:
            raise Unavailable(f"the compiled path failed its trial (exit {ended.returncode})")
        # the seal last: without it the library is built again
        _seal(target).unlink(missing_ok=True)
        write_whole(target, built.read_bytes())
        write_whole(_seal(target), sha256(target).encode())


# Every vector instruction of the library is in what these run: if they run in a child process, they
# run here.
_TRIAL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
sys.exit(library.attnlab_trial() or library.attnlab_step_trial())
"""
