"""`attnlab bench decode`: attention of one query, as decoding has it, against PyTorch's own.

Axes: b batch, h heads, g key/value heads, k keys, d head width.

Three cases: all keys, a window, and a padding mask. In each, PyTorch's scaled_dot_product_attention
on the very same tensors is the measure of the others:

    a layer's step   a request made of the KV cache's views, and its attention: what a layer does
    attention()      the function for everybody, which checks its arguments at every call
    append           a token's keys and values into the KV cache, which comes before a layer's step

The first two are checked against the definition in float64 before anything is timed. Times are
those of the fastest turn: a turn takes about a millisecond, and others on the machine only ever
make it longer.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from attnlab.attention.cache import Cached, Full, Ring
from attnlab.bench.measure import take_turns
from attnlab.config import refusal, setting, settings
from attnlab.kernels import Request, attention, dispatch
from attnlab.stop import stoppable

PEER = "SDPA"
APPEND = "append"
PATIENCE = 60.0  # seconds; a turn takes some hundredths of one


@settings
class DecodeBench:
    keys: int = setting(128, low=1, about="keys in the KV cache, the query's own included")
    window: int = setting(
        64, low=1, about="keys a query attends to, including its own, in the case with a window"
    )
    batch: int = setting(1, low=1, about="texts side by side")
    heads: int = setting(4, low=1, about="query heads")
    kv_heads: int | None = setting(
        None, low=1, none="as many as heads", about="key/value heads; they divide heads"
    )
    width: int = setting(32, low=1, about="coordinates of a query, key or value")
    calls: int = setting(100, low=1, about="calls in a turn; one is too short to be timed")
    turns: int = setting(50, low=1, about="timings of each candidate in each case")
    threads: int | None = setting(
        None, low=1, none="as many as PyTorch takes", about="threads of the CPU"
    )

    def check(self) -> None:
        if self.window > self.keys:
            raise refusal(self, "window", f"use at most keys = {self.keys}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise refusal(self, "kv_heads", f"it must divide heads = {self.heads}")

    @torch.inference_mode()
    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        before = torch.get_num_threads()
        report: dict[str, Any] = {
            "settings": asdict(self),
            "threads": self.threads or before,
            "torch": torch.__version__,
            "rows": [],
        }
        cases, done = self.cases(), 0
        torch.set_num_threads(self.threads or before)
        try:
            with stoppable(lambda: f"{done} of {len(cases)} cases", report.copy):
                for case in cases:
                    report["rows"] += self._measure(case, tick)
                    done += 1
        finally:
            torch.set_num_threads(before)
        return report

    def show(self, report: dict[str, Any], screen: Console) -> None:
        screen.print(
            f"one query on the CPU, float32, {report['threads']} threads, batch {self.batch}, "
            f"{self.heads} heads of {self.width}, {self.keys} keys, window {self.window}; fastest "
            f"of {self.turns} turns",
            highlight=False,
        )
        table = Table("case", "who", box=None, header_style="bold")
        for heading in ("µs", f"of {PEER}'s time"):
            table.add_column(heading, justify="right")
        for row in report["rows"]:
            if row["wrong"]:
                table.add_row(row["case"], row["name"], f"[red]wrong: {row['wrong']}[/]")
            else:
                ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
                table.add_row(row["case"], row["name"], f"{row['us']:.1f}", ratio)
        screen.print(table)

    def passed(self, report: dict[str, Any]) -> bool:
        return not any(row["wrong"] for row in report["rows"])

    def cases(self) -> "list[Case]":
        padding = torch.zeros(self.batch, self.keys, dtype=torch.bool)
        padding[:, : self.keys // 8] = True
        return [
            self._case("all keys"),
            self._case("window", window=self.window),
            self._case("padding", padding=padding),
        ]

    def _case(self, name: str, window: int | None = None, padding: Tensor | None = None) -> "Case":
        rng = torch.Generator().manual_seed(0)
        counts = (self.heads, self.kv_heads or self.heads, self.kv_heads or self.heads)
        times = (1, self.keys, self.keys)
        q, k, v = (
            torch.randn(self.batch, count, time, self.width, generator=rng)
            for count, time in zip(counts, times, strict=True)
        )
        return Case(name, q, k, v, window, padding)

    def _measure(self, case: "Case", tick: Callable[[str], None]) -> list[dict[str, Any]]:
        works = case.works()
        wrong = {name: case.wrong(name, work) for name, work in works.items()}
        times = take_turns(
            {name: self._many(work) for name, work in works.items() if wrong[name] is None},
            torch.device("cpu"),
            self.turns,
            PATIENCE,
            lambda name: tick(f"{case.name}: {name}"),
        )
        rows: list[dict[str, Any]] = []
        for name, fault in wrong.items():
            rows.append({"case": case.name, "name": name, "wrong": fault})
            if fault is None:
                fastest, peer = times[name].fastest, times.get(PEER)
                rows[-1] |= {
                    "us": 1e3 * fastest / self.calls,
                    "ratio": fastest / peer.fastest if peer else None,
                }
        return rows

    def _many(self, work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(self.calls):
                work()

        return run


@dataclass(frozen=True)
class Case:
    """One query, the last, over keys and values."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    window: int | None
    padding: Tensor | None

    def works(self) -> dict[str, Callable[[], object]]:
        """What is timed, by name; all but the last compute the same."""
        q, window, held = self.q, self.window, self.fill_cache()
        grouped = q.shape[1] != held.k.shape[1]
        token = self.k[:, :, -1:], self.v[:, :, -1:]
        cache = Ring().build(window or self.k.shape[2])
        cache.append(self.k, self.v, self.padding)

        def step() -> Tensor:
            return dispatch.attend(
                Request(
                    q=q,
                    k=held.k,
                    v=held.v,
                    window=window,
                    key_padding=held.key_padding,
                    padding_mask=held.padding_mask,
                )
            )

        return {
            PEER: lambda: F.scaled_dot_product_attention(
                q, held.k, held.v, attn_mask=held.padding_mask, enable_gqa=grouped
            ),
            "a layer's step": step,
            "attention()": lambda: attention(
                q, self.k, self.v, window=window, key_padding=self.padding
            ),
            APPEND: lambda: cache.append(*token),
        }

    def fill_cache(self) -> Cached:
        """What the KV cache gives a layer for the last token."""
        cache = (Full() if self.window is None else Ring()).build(self.window)
        before, last = slice(0, -1), slice(-1, None)
        for piece in (before, last):
            padding = None if self.padding is None or piece == last else self.padding[:, piece]
            found = cache.append(self.k[:, :, piece], self.v[:, :, piece], padding)
        return found

    def wrong(self, name: str, work: Callable[[], object]) -> str | None:
        """How far a result is off the definition in float64, if that is more than rounding."""
        result = work()
        if name == APPEND:
            return None
        assert isinstance(result, Tensor)
        q, k, v = (x.double() for x in (self.q, self.k, self.v))
        true = attention(q, k, v, window=self.window, key_padding=self.padding, path="reference")
        limit = 64 * torch.finfo(result.dtype).eps * float(true.abs().max())
        error = float((result - true).abs().max())
        return None if error <= limit else f"off by {error:.1e} (limit {limit:.1e})"
