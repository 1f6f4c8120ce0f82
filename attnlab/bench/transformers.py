"""`attnlab bench transformers`: a model of `transformers` with our attention, against its own.

    prefill   the model reads a row of tokens once and keeps the logits of the last
    step      loss, gradients of all weights

of a Mistral-shaped model (a window) and a Llama-shaped one (none), with `attn_implementation` set
to attnlab, sdpa and eager. All three have the same weights and take turns; a ratio is the median
over turns of our time by theirs. Before anything is timed, states of every token and gradients are
compared with those of `eager`, which reads the row in pieces through a KV cache, since that needs
little memory at any length. A peer that would need more memory than there may be is left out.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from attnlab.bench.measure import seconds_in_turns, usual_peak
from attnlab.config import refusal, setting, settings
from attnlab.extras import missing
from attnlab.stop import stoppable

OURS, PEERS = "attnlab", ("sdpa", "eager")
PIECE = 512  # tokens that the definition reads at a time
LIMIT = 256 * torch.finfo(torch.float32).eps  # of the largest number: rounding, through layers
GIB = 1 << 30


@settings
class TransformersBench:
    lengths: tuple[int, ...] = setting((2048, 8192, 32768), low=2, about="tokens to read at once")
    steps: tuple[int, ...] = setting((2048,), low=2, about="tokens of a training step")
    window: int = setting(512, low=1, about="keys of the model with a window")
    full: bool = setting(True, about="measure the model without a window too")
    layers: int = setting(4, low=1, about="layers of each model")
    width: int = setting(512, low=2, about="width of token vectors")
    heads: int = setting(8, low=1, about="query heads")
    kv_heads: int = setting(2, low=1, about="key/value heads; they divide heads")
    feedforward: int = setting(1376, low=1, about="width inside the feed-forward parts")
    vocabulary: int = setting(1024, low=2, about="tokens there are")
    turns: int = setting(5, low=1, about="timings of each way")
    patience: float = setting(
        60.0, above=0, about="seconds of timing after which a way gets no more turns"
    )
    memory: float = setting(8.0, above=0, about="GiB that a peer may need by our estimate")
    threads: int | None = setting(
        None, low=1, none="as many as PyTorch takes", about="threads of the CPU"
    )
    seed: int = setting(0, low=0, about="random seed of weights and tokens")

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise refusal(self, "kv_heads", f"it must divide heads = {self.heads}")
        if self.width % (2 * self.heads):
            raise refusal(
                self, "width", f"it must be an even number for each of {self.heads} heads"
            )

    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        try:
            import transformers

            import attnlab.integrations.transformers  # noqa: F401
        except ImportError:
            raise ValueError(missing("transformers", "bench transformers")) from None
        before = torch.get_num_threads()
        report: dict[str, Any] = {
            "settings": asdict(self),
            "device": "cpu",
            "dtype": "float32",
            "threads": self.threads or before,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rows": [],
            "left_out": [],
        }
        cases = list(self.cases())
        torch.set_num_threads(self.threads or before)
        done = 0
        try:
            with stoppable(lambda: f"{done} of {len(cases)} cases", report.copy):
                for case in cases:
                    self._measure(case, report, tick)
                    done += 1
                # the last, since it makes allocations slow from then on
                for case in cases:
                    self._weigh(case, report, tick)
        finally:
            torch.set_num_threads(before)
        return report

    def show(self, report: dict[str, Any], screen: Console) -> None:
        screen.print(
            f"transformers {report['transformers']} on {report['device']}, {report['dtype']}, "
            f"{report['threads']} threads: {self.layers} layers, width {self.width}, {self.heads} "
            f"heads, {self.kv_heads} of them key/value; medians of up to {self.turns} turns, "
            f"ratio = {OURS} / this way",
            highlight=False,
        )
        table = Table(box=None, header_style="bold")
        for heading in ("what", "window"):
            table.add_column(heading, no_wrap=True)
        table.add_column("tokens", justify="right")
        table.add_column("way", no_wrap=True)
        for heading in ("ms", "ratio", "peak MB"):
            table.add_column(heading, justify="right")
        for row in report["rows"]:
            window = "–" if row["window"] is None else f"{row['window']:,}"
            first = row["name"] == OURS
            cells = [row["what"], window, f"{row['length']:,}"] if first else [""] * 3
            if row["wrong"]:
                table.add_row(*cells, row["name"], f"[red]wrong: {row['wrong']}[/]")
                continue
            ratio, peak = row["ratio"], row.get("memory")
            table.add_row(
                *cells,
                row["name"],
                f"{row['ms']:,.0f}",
                "–" if ratio is None else f"{ratio:.2f}",
                "–" if peak is None else f"{peak / 1e6:,.0f}",
            )
        screen.print(table)
        for one in report["left_out"]:
            what = f"{one['what']}, {one['length']:,} tokens, window {one['window'] or 'none'}"
            screen.print(f"{one['name']} is left out ({what}): {one['reason']}", soft_wrap=True)

    def passed(self, report: dict[str, Any]) -> bool:
        return not any(row["wrong"] for row in report["rows"])

    def cases(self) -> Iterator["Case"]:
        for what, lengths in (("prefill", self.lengths), ("step", self.steps)):
            for length in lengths:
                for window in (self.window, None) if self.full else (self.window,):
                    yield Case(what=what, length=length, window=window)

    def model(self, window: int | None, name: str) -> nn.Module:
        """With weights that depend on the seed alone."""
        from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

        sizes: dict[str, Any] = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.feedforward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": max(*self.lengths, *self.steps, 2),
            "head_dim": self.width // self.heads,
        }
        config: Any = LlamaConfig(**sizes)
        if window is not None:
            config = MistralConfig(**sizes, sliding_window=window)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return AutoModelForCausalLM.from_config(config, attn_implementation=name).eval()

    def tokens(self, length: int) -> Tensor:
        rng = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.vocabulary, (1, length), generator=rng)

    def ways(self, case: "Case", report: dict[str, Any] | None = None) -> dict[str, "Way"]:
        """Ours, and each peer that there is memory for; the others are noted in the report."""
        found = {}
        for name in (OURS, *PEERS):
            need = self.bytes_of(name, case) / GIB
            if need > self.memory:
                reason = f"it would need about {need:,.0f} GiB, more than memory={self.memory:g}"
                if report is not None:
                    report["left_out"].append({**asdict(case), "name": name, "reason": reason})
                continue
            found[name] = Way(case, self.model(case.window, name), self.tokens(case.length))
        return found

    def bytes_of(self, name: str, case: "Case") -> float:
        """What a way needs for pairs of tokens, from what it is known to make of them at once."""
        pairs = float(case.length) ** 2
        if name == OURS:
            return 0.0
        if name == "sdpa":
            # a mask of bool, the terms that it is made of, and twice as float32 in a layer
            return pairs * 11 if case.window is not None else 0.0
        kept = self.layers if case.what == "step" else 1
        return pairs * 4 * (1 + self.heads * (1 + 2 * kept))

    def _model_to_trust(self, case: "Case") -> nn.Module:
        """The library's eager attention; in a step that it has no memory for, its sdpa."""
        whole = case.what == "step" and self.bytes_of("eager", case) > self.memory * GIB
        return self.model(case.window, "sdpa" if whole else "eager")

    def _measure(self, case: "Case", report: dict[str, Any], tick: Callable[[str], None]) -> None:
        ways = self.ways(case, report)
        tick(f"{case}: the definition")
        true = definition(self._model_to_trust(case), case, self.tokens(case.length))
        wrong = {}
        for name, way in ways.items():
            tick(f"{case}: checking {name}")
            wrong[name] = fault(way.results(), true)
        del true
        spent = seconds_in_turns(
            {name: way.run for name, way in ways.items() if wrong[name] is None},
            torch.device("cpu"),
            self.turns,
            self.patience,
            lambda name: tick(f"{case}: {name}"),
        )
        for name in ways:
            row: dict[str, Any] = {**asdict(case), "name": name, "wrong": wrong[name]}
            seconds, ours = spent.get(name), spent.get(OURS)
            if seconds:
                ratios = None
                if ours and name != OURS:  # one that ran out of patience has had the first turns
                    ratios = [a / b for a, b in zip(ours, seconds, strict=False)]
                row |= {
                    "ms": 1e3 * statistics.median(seconds),
                    "fastest": 1e3 * min(seconds),
                    "ratio": statistics.median(ratios) if ratios else None,
                    "ratios": ratios,
                }
            report["rows"].append(row)

    def _weigh(self, case: "Case", report: dict[str, Any], tick: Callable[[str], None]) -> None:
        for name, way in self.ways(case).items():
            row = next(r for r in report["rows"] if Case.of(r) == case and r["name"] == name)
            if not row["wrong"]:
                tick(f"{case}: memory of {name}")
                peak = usual_peak(way.run, torch.device("cpu"), 1)
                row["memory"] = None if peak is None else peak["median"]


@dataclass(frozen=True, kw_only=True)
class Case:
    what: str
    length: int
    window: int | None

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Case":
        return cls(what=row["what"], length=row["length"], window=row["window"])

    def __str__(self) -> str:
        window = "no window" if self.window is None else f"window {self.window}"
        return f"{self.what} of {self.length:,} tokens, {window}"


@dataclass(frozen=True)
class Way:
    """A model with one way of attention, and the tokens that it reads."""

    case: Case
    model: Any
    tokens: Tensor

    def run(self) -> object:
        if self.case.what == "prefill":
            with torch.no_grad():
                return self.model(self.tokens, use_cache=False, logits_to_keep=1).logits
        return gradients(self.model, self.tokens)

    def results(self) -> dict[str, Tensor]:
        """States of every token, or the gradients of all weights."""
        if self.case.what == "step":
            return gradients(self.model, self.tokens)
        with torch.no_grad():
            return {"states": self.model.model(self.tokens, use_cache=False)[0]}


def gradients(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Of the loss of the next token."""
    named = dict(model.named_parameters())
    logits = model(tokens, use_cache=False).logits
    loss = F.cross_entropy(logits[0, :-1], tokens[0, 1:])
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def definition(model: Any, case: Case, tokens: Tensor) -> dict[str, Tensor]:
    """By the library's eager attention: the row in pieces, or the gradients at once."""
    if case.what == "step":
        return gradients(model, tokens)
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        states = [
            model.model(piece, past_key_values=cache, use_cache=True)[0]
            for piece in tokens.split(PIECE, dim=1)
        ]
    return {"states": torch.cat(states, dim=1)}


def fault(mine: dict[str, Tensor], true: dict[str, Tensor]) -> str | None:
    """What is wrong with results, or None; gradients are measured by the largest of all."""
    largest = max(float(one.abs().max()) for one in true.values())
    for name, exact in true.items():
        error = float((mine[name] - exact).abs().max()) / largest
        if not error <= LIMIT:
            return f"{name} off by {error:.1e} (limit {LIMIT:.1e})"
    return None
