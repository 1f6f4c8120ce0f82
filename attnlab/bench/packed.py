"""`attnlab bench packed`: attention of documents packed into one row, against one by one.

Axes: h heads, t time, d head width.

    packed       all documents in one row, told apart by `segments`
    one by one   a call for each document
    padded       all in one batch, each as long as the longest

and on CUDA, since on the CPU it has no backward pass:

    FlexAttention                the row, with PyTorch's document mask made in each call
    FlexAttention, mask at hand  the same, its mask made once before

The tensors of each lie ready; padding stands at the end, where causal attention needs no mask. Each
is checked against the definition in float64, outputs and gradients of every document, before it is
timed. A ratio is the median over turns: what slows the machine slows both in a turn.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from attnlab import counter_rng
from attnlab.bench.measure import seconds_in_turns
from attnlab.config import refusal, setting, settings
from attnlab.kernels import attention, hardware
from attnlab.kernels.mask import segments_of_lengths
from attnlab.stop import stoppable

PACKED = "packed"
Documents = list[Tensor]  # [1, h, t, d] of each document
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@settings
class PackedBench:
    tokens: int = setting(16384, low=1, about="tokens of the row")
    means: tuple[int, ...] = setting((512, 2048), low=1, about="mean tokens of a document")
    heads: int = setting(8, low=1, about="query heads")
    kv_heads: int | None = setting(
        None, low=1, none="as many as heads", about="key/value heads; they divide heads"
    )
    width: int = setting(64, low=1, about="coordinates of a query, key or value")
    turns: int = setting(7, low=1, about="timings of each way")
    patience: float = setting(
        20.0, above=0, about="seconds of timing after which a way gets no more turns"
    )
    dtype: Literal["float32", "bfloat16"] | None = setting(
        None, none="bfloat16 on CUDA, else float32", about="dtype of queries, keys and values"
    )
    device: Literal["cpu", "cuda"] | None = setting(
        None, none="a GPU if there is one", about="where to measure"
    )
    threads: int | None = setting(
        None, low=1, none="as many as PyTorch takes", about="threads of the CPU"
    )
    seed: int = setting(0, low=0, about="random seed of lengths and numbers")

    def check(self) -> None:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise refusal(self, "kv_heads", f"it must divide heads = {self.heads}")

    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        before, device = torch.get_num_threads(), self.place()
        name = self.dtype or ("bfloat16" if device.type == "cuda" else "float32")
        dtype = _DTYPES[name]
        hardware.require(dtype, device)
        report: dict[str, Any] = {
            "settings": asdict(self),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "dtype": name,
            "threads": self.threads or before,
            "torch": torch.__version__,
            "rows": [],
        }
        done = 0
        torch.set_num_threads(self.threads or before)
        try:
            with stoppable(lambda: f"{done} of {len(self.means)} means", report.copy):
                for mean in self.means:
                    report["rows"] += self._measure(mean, device, dtype, tick)
                    done += 1
        finally:
            torch.set_num_threads(before)
        return report

    def show(self, report: dict[str, Any], screen: Console) -> None:
        screen.print(
            f"{self.tokens:,} tokens on {report['device']}, {report['dtype']}, "
            f"{report['threads']} threads, {self.heads} heads of {self.width}; medians of up to "
            f"{self.turns} turns: ms, and ratio = packed / this way",
            highlight=False,
        )
        digits = 0 if report["device"] == "cpu" else 2
        table = Table(box=None, header_style="bold")
        for heading in ("mean", "documents", "longest"):
            table.add_column(heading, justify="right")
        table.add_column("way", no_wrap=True)
        for heading in ("forward", "ratio", "+ backward", "ratio"):
            table.add_column(heading, justify="right")
        for row in report["rows"]:
            sizes = [f"{row[name]:,}" for name in ("mean", "documents", "longest")]
            cells = [*(sizes if row["name"] == PACKED else ("", "", "")), row["name"]]
            if row["wrong"]:
                table.add_row(*cells, f"[red]wrong: {row['wrong']}[/]")
                continue
            for what in ("forward", "both"):
                ratio = row[what]["ratio"]
                cells += [
                    f"{row[what]['ms']:,.{digits}f}",
                    "–" if ratio is None else f"{ratio:.2f}",
                ]
            table.add_row(*cells)
        screen.print(table)

    def passed(self, report: dict[str, Any]) -> bool:
        return not any(row["wrong"] for row in report["rows"])

    def place(self) -> torch.device:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, but PyTorch finds no CUDA device; use device=cpu")
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def lengths(self, mean: int) -> list[int]:
        """Random, as the distances of random points in a row are; the last one is what is left."""
        dice = counter_rng.uniform(self.seed, f"lengths {mean}", np.arange(self.tokens))
        ends = np.ceil(-mean * np.log1p(-dice)).clip(1).cumsum().astype(int)
        inside = ends[ends < self.tokens].tolist()
        return np.diff([0, *inside, self.tokens]).tolist()

    def _measure(
        self, mean: int, device: torch.device, dtype: torch.dtype, tick: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        lengths = self.lengths(mean)
        counts = (self.heads, self.kv_heads or self.heads, self.kv_heads or self.heads)
        rng = torch.Generator().manual_seed(self.seed)
        q, k, v, grad = (
            [torch.randn(1, count, t, self.width, generator=rng).to(device, dtype) for t in lengths]
            for count in (*counts, self.heads)
        )
        ways = {way.name: way for way in ways_of(q, k, v, grad)}
        tick(f"mean {mean:,}: the definition")
        true = definition(q, k, v, grad)
        wrong: dict[str, str | None] = {}
        for name, way in ways.items():
            tick(f"mean {mean:,}: checking {name}")
            wrong[name] = fault(way, true)
        del true
        right = {name: way for name, way in ways.items() if wrong[name] is None}
        found: dict[str, dict[str, Any]] = {name: {} for name in ways}
        for what in ("forward", "both"):
            spent = seconds_in_turns(
                {name: getattr(way, what) for name, way in right.items()},
                device,
                self.turns,
                self.patience,
                lambda name, what=what: tick(f"mean {mean:,}: {name}, {what}"),  # type: ignore[misc]
            )
            for name, seconds in spent.items():
                ours = spent.get(PACKED) if name != PACKED else None
                # one that ran out of patience has had the first turns
                ratios = [a / b for a, b in zip(ours, seconds, strict=False)] if ours else None
                found[name][what] = {
                    "ms": 1e3 * statistics.median(seconds),
                    "ratio": statistics.median(ratios) if ratios else None,
                    "ratios": ratios,
                }
        about = {"mean": mean, "documents": len(lengths), "longest": max(lengths)}
        return [{**about, "name": name, "wrong": wrong[name], **found[name]} for name in ways]


@dataclass(frozen=True)
class Way:
    """One way to run documents: its calls, each of queries, keys, values and a gradient."""

    name: str
    attend: Attend
    calls: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]
    split: Callable[[Sequence[Tensor]], Documents]  # results of all calls, document by document

    @torch.no_grad()
    def forward(self) -> list[Tensor]:
        return [self.attend(q, k, v) for q, k, v, _ in self.calls]

    def both(self) -> list[tuple[Tensor, ...]]:
        """Outputs and gradients; all calls before the first gradient, as in a training step."""
        leaves = [[x.detach().requires_grad_() for x in call[:3]] for call in self.calls]
        outs = [self.attend(*three) for three in leaves]
        grads = [call[3] for call in self.calls]
        flat = torch.autograd.grad(outs, [x for three in leaves for x in three], grads)
        return [(out.detach(), *flat[3 * n : 3 * n + 3]) for n, out in enumerate(outs)]


def ways_of(q: Documents, k: Documents, v: Documents, grad: Documents) -> list[Way]:
    lengths = [one.shape[2] for one in q]
    ends = torch.tensor([0, *lengths], device=q[0].device).cumsum(0)
    segments, longest = segments_of_lengths(ends), max(lengths)

    def row(documents: Documents) -> Tensor:
        return torch.cat(documents, dim=2)

    def batch(documents: Documents) -> Tensor:
        return torch.cat([F.pad(one, (0, 0, 0, longest - one.shape[2])) for one in documents])

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, segments=segments)

    def of_row(results: Sequence[Tensor]) -> Documents:
        return list(results[0].split(lengths, dim=2))

    def of_batch(results: Sequence[Tensor]) -> Documents:
        return [results[0][n : n + 1, :, :t] for n, t in enumerate(lengths)]

    ours = (row(q), row(k), row(v), row(grad))
    return [
        Way(PACKED, packed, [ours], of_row),
        *(Way(name, peer, [ours], of_row) for name, peer in flex_ways(segments)),
        Way("one by one", attention, list(zip(q, k, v, grad, strict=True)), list),
        Way("padded", attention, [(batch(q), batch(k), batch(v), batch(grad))], of_batch),
    ]


def flex_ways(segments: Tensor) -> Iterator[tuple[str, Attend]]:
    """PyTorch's document mask, as its documentation has it."""
    if segments.device.type != "cuda":
        return
    numbers, size = segments[0], segments.shape[1]
    make = torch.compile(create_block_mask)
    flex = torch.compile(flex_attention)

    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (numbers[i] == numbers[j])

    def mask() -> BlockMask:
        return make(same, None, None, size, size, device=segments.device)

    def attend(q: Tensor, k: Tensor, v: Tensor, at_hand: BlockMask | None) -> Tensor:
        blocks = mask() if at_hand is None else at_hand
        return flex(q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1])

    yield "FlexAttention", partial(attend, at_hand=None)
    yield "FlexAttention, mask at hand", partial(attend, at_hand=mask())


def definition(q: Documents, k: Documents, v: Documents, grad: Documents) -> list[Documents]:
    """Outputs, and gradients of q, k and v, of each document alone in float64."""

    def alone(*given: Tensor) -> Tensor:
        return attention(*given, path="sdpa")

    wide = ([x.double() for x in each] for each in (q, k, v, grad))
    results = Way("definition", alone, list(zip(*wide, strict=True)), list).both()
    return [list(kind) for kind in zip(*results, strict=True)]


def fault(way: Way, true: list[Documents]) -> str | None:
    """What is wrong with the results of a way, or None."""
    both = zip(*way.both(), strict=True)
    results = {"output": way.split(way.forward())}
    results |= {
        f"{name} with gradients" if name == "output" else name: way.split(kind)
        for name, kind in zip(("output", *(f"gradient of {x}" for x in "qkv")), both, strict=True)
    }
    for (name, mine), exact in zip(results.items(), [true[0], *true], strict=True):
        largest = max(float(one.abs().max()) for one in exact)
        off = [float((a - b).abs().max()) for a, b in zip(mine, exact, strict=True)]
        error = math.inf if any(map(math.isnan, off)) else max(off) / largest
        limit = 64 * torch.finfo(mine[0].dtype).eps  # of the largest number: rounding, summed up
        if not error <= limit:
            return f"{name} off by {error:.1e} (limit {limit:.1e})"
    return None
