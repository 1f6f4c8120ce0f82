"""Attention to look at: who attends to whom, who may, who influences whom, and what comes next.

Axes: t tokens, output i, input j; h heads.
Cost: one forward pass for the weights; for the influence map t passes, side by side in batches.

Weights are those of the reference path: the attention of a layer is asked for them, with what it
was given in the model. Influence is measured from outside, as the audit
does it: token j is replaced, and every output watched.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import config, counter_rng, registry
from attnlab.attention.heads import AttentionOptions, HeadedAttention
from attnlab.generate import evaluating, precise
from attnlab.kernels import dispatch
from attnlab.kernels.request import visible
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.page.generation import OpenModels
from attnlab.page.validation import text, whole

LONGEST_TEXT, MOST_TOKENS = 2_000, 256  # characters, tokens
LIKELIEST = 12
AT_ONCE = 32  # texts in a batch of the influence map
EFFORT = 2e10  # tokens · parameters that an influence map may take: some seconds
FAINT = 1e-12  # of the largest influence: rounding of float64
KEPT = 4  # texts, so that changing layer or head asks nothing of the model
MECHANISM = {
    "score": "scaled-dot",
    "heads": 4,
    "kv_heads": 4,
    "positions": "rotary",
    "window": None,
    "width": 64,
    "depth": 2,
    "seed": 0,
}
RANGES = {"heads": (1, 16), "kv_heads": (1, 16), "width": (4, 256), "depth": (1, 8)}


@dataclass(frozen=True)
class Inspection:
    """A model that read a text."""

    tokens: list[str]
    inside: list[tuple[Tensor, AttentionOptions]]  # what the attention of each layer was given
    model: Transformer
    influence: list[list[float]] | None
    note: str
    next: list[dict[str, Any]]
    paths: list[str]


@dataclass(frozen=True)
class ModelInput:
    """A model with a text, ready to be read."""

    key: str
    model: nn.Module
    ids: list[int]
    tokens: list[str]
    name: Callable[[int], str]  # of a token

    @classmethod
    def of_run(cls, models: OpenModels, run: str, written: str) -> "ModelInput":
        saved = models.take(run)
        ids = saved.tokenizer.encode(written).tolist()
        if len(ids) > MOST_TOKENS:
            raise ValueError(f"the text has {len(ids)} tokens; use {MOST_TOKENS} or fewer")

        def name(token: int) -> str:
            return str(saved.tokenizer.decode([token]))

        key = str((models.version(run), written))
        return cls(key, saved.model, ids, [name(token) for token in ids], name)

    @classmethod
    def random_model(cls, chosen: Mapping[str, Any], written: str) -> "ModelInput":
        model, ids = random_model(chosen, written)
        alphabet = [*sorted(set(written)), "·"]  # there are two tokens at least
        return cls(str((chosen, written)), model, ids, list(written), lambda one: alphabet[one])


class InspectionCache:
    """The texts that were read lately."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Inspection] = OrderedDict()

    def steps(
        self, key: str, model: nn.Module, ids: list[int], names: list[str]
    ) -> Iterator[Inspection | None]:
        """Read a text, with time for others in between; the last thing given is the inspection."""
        found = self._kept.pop(key, None)
        reading = read(model, ids, names) if found is None else iter([found])
        while (found := next(reading)) is None:
            yield None
        self._kept[key] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        yield found


def read(model: nn.Module, ids: list[int], names: list[str]) -> Iterator[Inspection | None]:
    if not isinstance(model, Transformer):
        kind = type(model).__name__
        raise ValueError(
            f"this model is a {kind}, which has no attention to look at; choose another"
        )
    with torch.inference_mode(), evaluating(model), dispatch.record_choices() as chosen:
        inside, logits = _record_attention(model, torch.tensor([ids], device=_device(model)))
    likely = logits[0, -1].double().softmax(-1).topk(min(LIKELIEST, logits.shape[-1]))
    following = [
        {"id": int(token), "probability": float(share)}
        for share, token in zip(likely.values, likely.indices, strict=True)
    ]
    influence: list[list[float]] | None = None
    note = ""
    effort = sum(parameter.numel() for parameter in model.parameters()) * len(ids) ** 2
    if effort > EFFORT:
        most = max(1, int(len(ids) * (EFFORT / effort) ** 0.5))
        note = f"no influence map: for this model it takes {most} tokens or fewer"
    else:
        measured = influences(model, ids)
        while (influence := next(measured)) is None:
            yield None
    yield Inspection(
        tokens=names,
        inside=inside,
        model=model,
        influence=influence,
        note=note,
        next=following,
        paths=sorted(f"{one.path}: {one.reason}" for one in chosen),
    )


def _record_attention(
    model: Transformer, tokens: Tensor
) -> tuple[list[tuple[Tensor, AttentionOptions]], Tensor]:
    """What the attention of each layer is given, and the logits."""
    inside: list[tuple[Tensor, AttentionOptions]] = []

    def note(module: nn.Module, given: tuple[Tensor], named: dict[str, Any]) -> None:
        inside.append((given[0], named["options"]))

    hooks = [
        block.attention.register_forward_pre_hook(note, with_kwargs=True)  # type: ignore
        for block in model.blocks
    ]
    try:
        return inside, model(tokens)
    finally:
        for hook in hooks:
            hook.remove()


def weights(inspected: Inspection, layer: int) -> Tensor:
    """Of a layer, [h, t, t]."""
    attention = inspected.model.blocks[layer].attention
    assert isinstance(attention, HeadedAttention)
    with torch.inference_mode(), evaluating(attention):
        return attention.weights(*inspected.inside[layer])[0]


def influences(model: nn.Module, ids: list[int]) -> Iterator[list[list[float]] | None]:
    """How far output i moves when token j is replaced, [i][j]; given after the last batch."""
    vocabulary: int = model.settings.vocabulary  # type: ignore
    exact, device = precise(model), _device(model)
    tokens = torch.tensor(ids, device=device)
    columns = []
    with evaluating(exact):
        with torch.inference_mode():
            before = exact(tokens[None])[0]
        for start in range(0, len(ids), AT_ONCE):
            at = torch.arange(start, min(start + AT_ONCE, len(ids)), device=device)
            rows = tokens.repeat(len(at), 1)
            other = (rows[torch.arange(len(at)), at] + 1) % vocabulary
            rows[torch.arange(len(at)), at] = other
            with torch.inference_mode():
                columns.append((exact(rows) - before).abs().amax(-1))  # [j, i]
            yield None
    moved = torch.cat(columns).T
    moved = moved.masked_fill(moved < FAINT * moved.max(), 0.0)
    yield [[float(f"{size:.4g}") for size in row] for row in moved.tolist()]


def describe_head(
    inspected: Inspection, layer: int, head: int, seconds: float, name: Callable[[int], str]
) -> dict[str, Any]:
    """One layer and head of a text that was read; `name` gives the text of a token."""
    settings = inspected.model.settings
    layers, heads = settings.depth, settings.attention.heads
    if not 0 <= layer < layers or not 0 <= head < heads:
        raise ValueError(
            f"layer {layer}, head {head}: this model has layers 0 to {layers - 1} and heads 0 to "
            f"{heads - 1}"
        )
    began = time.perf_counter()
    at = torch.arange(len(inspected.tokens))
    mask = visible(at, at, True, settings.window_of(layer))
    rows = weights(inspected, layer)[head].double().cpu()
    return {
        "tokens": inspected.tokens,
        "layers": layers,
        "heads": heads,
        "layer": layer,
        "head": head,
        "kv_head": head // (heads // settings.attention.kv_heads),
        "window": settings.window_of(layer),
        "weights": [[round(weight, 6) for weight in row] for row in rows.tolist()],
        "mask": mask.int().tolist(),
        "influence": inspected.influence,
        "next": [
            {"token": name(one["id"]), "probability": one["probability"]} for one in inspected.next
        ],
        "paths": inspected.paths,
        "note": inspected.note,
        "seconds": seconds + time.perf_counter() - began,
    }


def mechanism(wanted: Any) -> dict[str, Any]:
    """The choices for a model that is made on the spot, each checked."""
    if not isinstance(wanted, Mapping):
        raise ValueError(f"mechanism is an object with some of {', '.join(MECHANISM)}")
    for key in wanted:
        if key not in MECHANISM:
            raise ValueError(f"{key[:80]!r}: {registry.suggest(key, list(MECHANISM))}")
    chosen = {**MECHANISM, **wanted}
    if "kv_heads" not in wanted:
        chosen["kv_heads"] = chosen["heads"]
    for key, (low, high) in RANGES.items():
        whole(chosen, key, low, high)
    whole(chosen, "seed", 0, 2**31 - 1)
    if chosen["window"] is not None:
        whole(chosen, "window", 1, MOST_TOKENS)
    for kind in ("score", "positions"):
        registry.find(kind, text(chosen, kind, 40))
    return chosen


def random_model(chosen: Mapping[str, Any], written: str) -> tuple[Transformer, list[int]]:
    """A small random transformer over the characters of a text, and the text as its tokens.

    Its weights are larger than those a training begins with, under which attention is nearly even.
    """
    alphabet = sorted(set(written))
    ids = [alphabet.index(letter) for letter in written]
    if len(ids) > MOST_TOKENS:
        raise ValueError(f"the text has {len(ids)} characters; use {MOST_TOKENS} or fewer")
    settings = config.override(
        TransformerSettings(vocabulary=max(2, len(alphabet)), context=MOST_TOKENS),
        [
            f"width={chosen['width']}",
            f"depth={chosen['depth']}",
            "attention=grouped",
            f"attention.heads={chosen['heads']}",
            f"attention.kv_heads={chosen['kv_heads']}",
            f"score={chosen['score']}",
            f"positions={chosen['positions']}",
            f"window={'none' if chosen['window'] is None else chosen['window']}",
        ],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(counter_rng.number(chosen["seed"], "a model to look at"))
        model = settings.build().eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "score" not in name:
                spread = 1.0 if "embed" in name or "table" in name else parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=1.6 * spread if "project" in name else spread)
    return model, ids


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def options() -> dict[str, Any]:
    """What can be chosen for a mechanism."""
    return {
        "defaults": MECHANISM,
        "score": _option_list("score"),
        "positions": _option_list("positions"),
        "ranges": {**{k: list(v) for k, v in RANGES.items()}, "window": [1, MOST_TOKENS]},
        "most_tokens": MOST_TOKENS,
        "most_characters": LONGEST_TEXT,
    }


def _option_list(kind: str) -> list[dict[str, str]]:
    return [{"name": one.name, "about": one.summary} for one in registry.options(kind)]
