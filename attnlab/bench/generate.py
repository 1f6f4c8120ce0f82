"""`attnlab bench generate`: tokens a second, against transformers with the same weights.

Axes: b rows, t time.

The peer is transformers' Llama: RMS-norm, swiglu, half-split rotary positions, a head of its own.
Our model of the same shape has the same weights. In turns, each on the same prompts:

    attnlab           `generate`, as everybody calls it
    attnlab, greedy   the same at temperature 0, computed in float64
    transformers      its `generate`, with the cache that grows
    static, compiled  its `generate` with the static cache and a compiled forward pass (static=yes)

All but the second sample at temperature 1 from all tokens, and none stops before its last token.
Before anything is timed, the greedy texts of both models in float64 are compared, token by token
(transformers keeps norms and angles in float32): where they differ nothing is timed. From a token
on that was as likely as another but for that rounding, a text is not compared. A speedup is the
median over turns of their time over ours: what slows the machine slows both in a turn. Where others
work on the machine, clock=processor counts the processor time of this process.

On a GPU the model to time has 110 M parameters:

    attnlab bench generate width=768 depth=12 heads=12 vocabulary=32768 tied=yes static=yes
"""

import importlib.util
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Int
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from attnlab.attention.heads import Grouped
from attnlab.bench.measure import clock, usual_peak
from attnlab.config import refusal, setting, settings
from attnlab.extras import missing
from attnlab.generate import Sampling, generate, precise
from attnlab.kernels import hardware
from attnlab.models.model import parameters
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.stop import stoppable

if TYPE_CHECKING:
    from transformers import CompileConfig

OURS, GREEDY, PEER, STATIC = "attnlab", "attnlab, greedy", "transformers", "static, compiled"
EPSILON = 1e-6  # of all norms
PEAKS = 3  # readings of the memory: a CPU's is right to a few percent only
TIE = 1e-4  # of the largest logit: more than transformers' float32 norms and angles can move one
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

EXACTLY = Sampling(temperature=0, exact=True)

Work = Callable[[], object]


@settings
class GenerateBench:
    width: int = setting(256, low=1, about="width of the model")
    depth: int = setting(4, low=1, about="layers of the model")
    heads: int = setting(4, low=1, about="query heads; they divide width")
    kv_heads: int | None = setting(
        None, low=1, none="as many as heads", about="key/value heads; they divide heads"
    )
    vocabulary: int = setting(256, low=2, about="distinct tokens")
    tied: bool = setting(False, about="the output layer is the embedding table")
    batch: tuple[int, ...] = setting((1, 16), low=1, about="texts side by side")
    prompt: int = setting(16, low=1, about="tokens of a prompt")
    tokens: int = setting(128, low=2, about="tokens that each text gets")
    rounds: int = setting(7, low=1, about="timings of each")
    static: bool = setting(False, about="also the static cache, compiled: minutes on a CPU")
    dtype: Literal["float32", "bfloat16", "float16"] | None = setting(
        None, none="bfloat16 on CUDA, else float32", about="dtype of the weights"
    )
    device: Literal["cpu", "cuda"] | None = setting(
        None, none="a GPU if there is one", about="where to measure"
    )
    memory: bool = setting(True, about="also the peaks of memory, after the times")
    threads: int | None = setting(
        None, low=1, none="as many as PyTorch takes", about="threads of the CPU"
    )
    clock: Literal["wall", "processor"] = setting(
        "wall", about="what is timed; processor: of this process, where others work on the machine"
    )

    def check(self) -> None:
        if self.width % (2 * self.heads):
            raise refusal(self, "width", f"use a multiple of 2 · heads = {2 * self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise refusal(self, "kv_heads", f"it must divide heads = {self.heads}")
        if self.clock == "processor" and self.device == "cuda":
            raise refusal(self, "clock", "it does not count what a GPU does; use clock=wall")

    def run(self, tick: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        before, done, device = torch.get_num_threads(), 0, self.place()
        name = self.dtype or ("bfloat16" if device.type == "cuda" else "float32")
        hardware.require(DTYPES[name], device)
        report: dict[str, Any] = {
            "settings": asdict(self),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "the CPU",
            "dtype": name,
            "threads": self.threads or before,
            "torch": torch.__version__,
            "rows": [],
            "left_out": [],
        }
        torch.set_num_threads(self.threads or before)
        try:
            with stoppable(lambda: f"{done} of {len(self.batch)} batches", report.copy):
                pair = self._pair(report, device, DTYPES[name])
                for batch in self.batch:
                    report["rows"] += self._measure(pair, batch, report, tick)
                    done += 1
        finally:
            torch.set_num_threads(before)
        return report

    def show(self, report: dict[str, Any], screen: Console) -> None:
        screen.print(
            f"{report['parameters']:,} parameters (width {self.width}, depth {self.depth}), "
            f"{report['dtype']} on {report['device']}, {report['threads']} threads, prompts of "
            f"{self.prompt}, "
            f"{self.tokens} tokens each; medians of {self.rounds} rounds, {self.clock} time",
            highlight=False,
        )
        table = Table("batch", "who", box=None, header_style="bold")
        for heading in ("tokens/s", "attnlab's speedup", "peak MB"):
            table.add_column(heading, justify="right")
        for row in report["rows"]:
            if row["wrong"]:
                table.add_row(str(row["batch"]), row["name"], f"[red]wrong: {row['wrong']}[/]")
                continue
            ratio = "" if row["speedup"] is None else f"{row['speedup']:.2f}"
            peak = "–" if row["memory"] is None else f"{row['memory']['median'] / 1e6:,.1f}"
            speed = f"{row['tokens_per_second']:,.0f}"
            table.add_row(str(row["batch"]), row["name"], speed, ratio, peak)
        screen.print(table)
        for one in report["left_out"]:
            screen.print(f"{one['name']} is left out: {one['reason']}", highlight=False)

    def passed(self, report: dict[str, Any]) -> bool:
        return not any(row["wrong"] for row in report["rows"])

    def place(self) -> torch.device:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device is cuda, but PyTorch finds no CUDA device here; use device=cpu"
            )
        gpu = self.clock == "wall" and torch.cuda.is_available()
        return torch.device(self.device or ("cuda" if gpu else "cpu"))

    def _pair(self, report: dict[str, Any], device: torch.device, dtype: torch.dtype) -> "Pair":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            ours = self._model()
        report["parameters"] = parameters(ours)
        theirs = None
        if importlib.util.find_spec("transformers") is None:
            report["left_out"].append({"name": PEER, "reason": missing(PEER, "this peer")})
        else:
            theirs = llama_of(ours).to(device)
            convert(theirs, dtype)
        return Pair(ours.to(device, dtype), theirs)

    def _model(self) -> Transformer:
        model = TransformerSettings(
            vocabulary=self.vocabulary,
            context=self.prompt + self.tokens,
            width=self.width,
            depth=self.depth,
            attention=Grouped(heads=self.heads, kv_heads=self.kv_heads or self.heads),
            feedforward="swiglu",
            norm_epsilon=EPSILON,
            tied=self.tied,
        ).build()
        for weight in model.parameters():
            if weight.dim() == 2:  # far from the start, where all tokens are nearly as likely
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        return model.eval()

    def _measure(
        self, pair: "Pair", batch: int, report: dict[str, Any], tick: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        rng = torch.Generator().manual_seed(batch)
        prompts = torch.randint(self.vocabulary, (batch, self.prompt), generator=rng)
        tick(f"{batch} rows: the same greedy texts?")
        if fault := pair.differ(prompts, self.tokens):
            return [{"batch": batch, "name": PEER, "wrong": fault}]
        works = pair.works(prompts, self.tokens)
        if self.static and pair.theirs is not None:
            works[STATIC] = lambda: pair.write(prompts, self.tokens, static=True)
        for name in list(works):
            tick(f"{batch} rows: {name} for the first time")
            try:
                for _ in range(2 if name == STATIC else 1):  # its graphs are made the second time
                    works[name]()
            except Exception as error:  # a compiler and another library meet here
                if name != STATIC:
                    raise
                lines = str(error).strip().splitlines() or [type(error).__name__]
                report["left_out"].append({"name": name, "reason": f"it failed: {lines[0]}"})
                del works[name]
        seconds = self._turns(works, pair.device, lambda name: tick(f"{batch} rows: {name}"))
        peaks: dict[str, Any] = dict.fromkeys(works)
        if self.memory:
            for name, work in works.items():
                tick(f"{batch} rows: memory of {name}")
                peaks[name] = usual_peak(work, pair.device, PEAKS)
        plain = seconds[OURS]
        return [
            {
                "batch": batch,
                "name": name,
                "wrong": None,
                "tokens_per_second": batch * self.tokens / statistics.median(seconds[name]),
                "seconds": seconds[name],
                "speedup": None
                if name == OURS
                else statistics.median(a / b for a, b in zip(seconds[name], plain, strict=True)),
                "memory": peaks[name],
            }
            for name in works
        ]

    def _turns(
        self, works: dict[str, Work], device: torch.device, tick: Callable[[str], None]
    ) -> dict[str, list[float]]:
        order = list(works)
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(self.rounds):
            random.Random(turn).shuffle(order)  # who comes after whom matters: caches, clocks
            for name in order:
                tick(name)
                if self.clock == "wall":
                    seconds[name].append(clock(works[name], device))
                    continue
                start = time.process_time()
                works[name]()
                seconds[name].append(time.process_time() - start)
        return seconds


@dataclass(frozen=True)
class Pair:
    """Our model, and the same one in transformers if that is installed."""

    ours: Transformer
    theirs: Any | None

    @property
    def device(self) -> torch.device:
        return self.ours.embed.weight.device

    def differ(self, prompts: Int[Tensor, "b t"], tokens: int) -> str | None:
        """Where greedy texts in float64 part, if they do."""
        if self.theirs is None:
            return None
        mine = generate(self.ours, prompts.tolist(), tokens=tokens, sampling=EXACTLY)
        with _in_float64(self.theirs):
            other = self.write(prompts, tokens, sample=False)
        for row, (a, b) in enumerate(zip(mine, other, strict=True)):
            places = [place for place in range(tokens) if a[place] != b[place]]
            if not places:
                continue
            place = places[0]
            one, two = a[place], b[place]
            if not self._as_likely([*prompts[row].tolist(), *a[:place]], one, two):
                return f"greedy texts part in row {row} at token {place}: {one}, not {two}"
        return None

    @torch.no_grad()
    def _as_likely(self, text: list[int], one: int, two: int) -> bool:
        logits = precise(self.ours)(torch.tensor([text], device=self.device))[0, -1]
        return bool((logits[one] - logits[two]).abs() <= TIE * logits.abs().max())

    def works(self, prompts: Int[Tensor, "b t"], tokens: int) -> dict[str, Work]:
        """What is timed, by name."""
        texts = prompts.tolist()
        works: dict[str, Work] = {
            OURS: lambda: generate(self.ours, texts, tokens=tokens),
            GREEDY: lambda: generate(self.ours, texts, tokens=tokens, sampling=EXACTLY),
        }
        if self.theirs is not None:
            works[PEER] = lambda: self.write(prompts, tokens)
        return works

    def write(
        self,
        prompts: Int[Tensor, "b t"],
        tokens: int,
        *,
        sample: bool = True,
        static: bool = False,
    ) -> list[list[int]]:
        """What transformers adds to each prompt."""
        assert self.theirs is not None
        how: dict[str, Any] = {"do_sample": sample}
        if sample:
            how |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        if static:
            how |= {"cache_implementation": "static", "compile_config": _compiler(self.device)}
        prompts = prompts.to(self.device)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = self.theirs.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=tokens,
                **how,
            )
        return [row[prompts.shape[1] :] for row in found.tolist()]


def llama_of(model: Transformer) -> nn.Module:
    """Llama of transformers with the weights of our model of that shape."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    settings = model.settings
    config = transformers.LlamaConfig(
        vocab_size=settings.vocabulary,
        hidden_size=settings.width,
        intermediate_size=model.get_parameter("blocks.0.feedforward.up.weight").shape[0],
        num_hidden_layers=settings.depth,
        num_attention_heads=settings.attention.heads,
        num_key_value_heads=settings.attention.kv_heads,
        max_position_embeddings=settings.context,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=settings.tied,
        bos_token_id=None,
        eos_token_id=None,  # no text ends before its last token
        pad_token_id=None,
    )
    llama = transformers.LlamaForCausalLM(config).eval()
    width = settings.width // settings.attention.heads
    parts = [settings.attention.heads * width, *[settings.attention.kv_heads * width] * 2]
    weights = {
        "model.embed_tokens.weight": model.embed.weight,
        "model.norm.weight": model.norm.get_parameter("weight"),
        "lm_head.weight": model.head.weight,
    }
    for number, block in enumerate(model.blocks):
        projected = block.get_parameter("attention.project.weight").split(parts)
        for name, weight in zip("qkv", projected, strict=True):
            weights[f"model.layers.{number}.self_attn.{name}_proj.weight"] = weight
        for theirs, own in SAME.items():
            weights[f"model.layers.{number}.{theirs}.weight"] = block.get_parameter(f"{own}.weight")
    llama.load_state_dict(weights)
    return llama


SAME = {
    "self_attn.o_proj": "attention.merge",
    "mlp.gate_proj": "feedforward.gate",
    "mlp.up_proj": "feedforward.up",
    "mlp.down_proj": "feedforward.down",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feedforward_norm",
}


def _compiler(device: torch.device) -> "CompileConfig | None":
    """By itself transformers compiles on a GPU only."""
    if device.type == "cuda":
        return None
    from transformers import CompileConfig

    config = CompileConfig(fullgraph=False, mode="default")
    setattr(config, "_compile_all_devices", True)  # noqa: B010  # declared as None there
    return config


def convert(model: nn.Module, dtype: torch.dtype) -> None:
    """All weights; buffers hold angles, which transformers keeps in float32 in every dtype."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


@contextmanager
def _in_float64(model: nn.Module) -> Iterator[None]:
    before = next(model.parameters()).dtype
    convert(model, torch.float64)
    try:
        yield
    finally:
        convert(model, before)  # every weight was such a number before
