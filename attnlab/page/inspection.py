"""Attention to look at: who attends to whom, who may, who influences whom, and what comes next.

Axes: t tokens, output i, input j; h heads.
Cost: one forward pass for the weights; for the influence map t passes, side by side in batches.

Weights are those of the reference path: the attention of a layer is asked for them, with what it
was given in the model. Influence is measured from outside, as the audit does it: token j is
replaced, and every output watched. So a model without attention has an influence map too.

What is looked at is named by one entry of SOURCES: a run, or a model that is made on the spot.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import config, counter_rng, registry
from attnlab.attention.heads import AttentionOptions, HeadedAttention
from attnlab.attention.own import OwnLayer
from attnlab.generate import evaluating, precise
from attnlab.kernels import dispatch
from attnlab.kernels.mask import Mask
from attnlab.models.model import LanguageModel, parameters
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.page.generation import OpenModels
from attnlab.page.validation import text, whole

LONGEST_TEXT, MOST_TOKENS = 20_000, 256  # characters that are read, tokens that are shown
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
class ModelInput:
    """A model with a text, ready to be read."""

    key: str
    model: LanguageModel
    ids: list[int]
    tokens: list[str]
    name: Callable[[int], str]  # of a token
    vocabulary: Sequence[int]  # tokens that a text may hold
    note: str = ""  # if not all of the text is read

    @classmethod
    def of_run(cls, models: OpenModels, run: object, written: str) -> "ModelInput":
        run = text({"run": run}, "run", 300)
        saved = models.take(run)
        ids, note = cut(saved.tokenizer.prompt(written).tolist(), saved.model.longest)

        def name(token: int) -> str:
            return str(saved.tokenizer.decode([token]))

        marks = {saved.tokenizer.pad, saved.tokenizer.mask}
        known = [token for token in range(saved.tokenizer.size) if token not in marks]
        key = str((models.version(run), written))
        return cls(key, saved.model, ids, [name(one) for one in ids], name, known, note)

    @classmethod
    def random_model(cls, wanted: Any, written: str) -> "ModelInput":
        chosen = mechanism(wanted)
        letters, note = cut(list(written), None)
        model, ids = random_model(chosen, "".join(letters))
        alphabet = [*sorted(set(letters)), "·"]  # there are two tokens at least
        known = range(len(set(letters)))
        key = str((chosen, letters))
        return cls(key, model, ids, letters, lambda one: alphabet[one], known, note)


def cut(tokens: list[Any], longest: int | None) -> tuple[list[Any], str]:
    """What of a text is looked at, and a sentence if that is not all of it."""
    most = MOST_TOKENS if longest is None else min(MOST_TOKENS, longest)
    if len(tokens) <= most:
        return tokens, ""
    why = "" if most == MOST_TOKENS else ", which is all that this model reads"
    return tokens[:most], (f"The text has {len(tokens):,} tokens; shown are the first {most}{why}.")


# each takes the open models, what the request says of the source, and the text
SOURCES: dict[str, Callable[[OpenModels, Any, str], ModelInput]] = {
    "run": ModelInput.of_run,
    "mechanism": lambda models, wanted, written: ModelInput.random_model(wanted, written),
}


def open_source(models: OpenModels, body: Mapping[str, Any]) -> Callable[[], ModelInput]:
    """The model and the text that a request names; what can be wrong without them is found now."""
    written = text(body, "text", LONGEST_TEXT)
    source = body.get("source")
    if not isinstance(source, Mapping) or len(source) != 1 or {*source} - {*SOURCES}:
        raise ValueError('source is {"run": NAME} or {"mechanism": {…}}')
    [(kind, wanted)] = source.items()
    return lambda: SOURCES[kind](models, wanted, written)


@dataclass(frozen=True)
class Inspection:
    """A model that has read a text."""

    tokens: list[str]
    ids: list[int]
    inside: list[tuple[Tensor, AttentionOptions]]  # what the attention of each layer was given
    model: LanguageModel
    absent: str  # why there are no attention weights; empty if there are
    influence: list[list[float]] | None
    note: str
    next: list[dict[str, Any]]
    paths: list[str]

    @property
    def layers(self) -> list[HeadedAttention]:
        """The attention of each layer; none where a model gives no weights."""
        return [] if self.absent else attention_layers(self.model)


class InspectionCache:
    """The texts that were read lately."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Inspection] = OrderedDict()

    def steps(self, given: ModelInput) -> Iterator[Inspection | None]:
        """Read a text, with time for others in between; the last thing given is the inspection."""
        found = self._kept.pop(given.key, None)
        reading = read(given.model, given.ids, given.tokens) if found is None else iter([found])
        while (found := next(reading)) is None:
            yield None
        self._kept[given.key] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        yield found


def read(model: LanguageModel, ids: list[int], names: list[str]) -> Iterator[Inspection | None]:
    absent = why_no_weights(model)
    with torch.inference_mode(), evaluating(model), dispatch.record_choices() as chosen:
        inside, logits = record_attention(model, torch.tensor([ids], device=device_of(model)))
        if not absent:
            absent = _refusal(attention_layers(model)[0], inside[0])
    likely = logits[0, -1].double().softmax(-1).topk(min(LIKELIEST, logits.shape[-1]))
    following = [
        {"id": int(token), "probability": float(share)}
        for share, token in zip(likely.values, likely.indices, strict=True)
    ]
    influence: list[list[float]] | None = None
    note = ""
    once = max(parameters(model), model.operations(len(ids)) / 6)  # a token of one forward pass
    effort = once * len(ids) ** 2
    if effort > EFFORT:
        most = max(1, int(len(ids) * (EFFORT / effort) ** 0.5))
        note = f"no influence map: for this model it takes {most} tokens or fewer"
    else:
        measured = influences(model, ids)
        while (influence := next(measured)) is None:
            yield None
    yield Inspection(
        tokens=names,
        ids=ids,
        inside=inside,
        model=model,
        absent=absent,
        influence=influence,
        note=note,
        next=following,
        paths=sorted(f"{one.path}: {one.reason}" for one in chosen),
    )


def attention_layers(model: nn.Module) -> list[HeadedAttention]:
    """The attention of each layer, if all of them are of a kind that gives its weights."""
    if not isinstance(model, Transformer):
        return []
    found = [block.attention for block in model.blocks]  # type: ignore[union-attr]
    found = [one.inner if isinstance(one, OwnLayer) else one for one in found]
    return [one for one in found if isinstance(one, HeadedAttention)]


def why_no_weights(model: nn.Module) -> str:
    if not isinstance(model, Transformer):
        return (
            f"This model ({type(model).__name__}) has no attention, so there are no heads to look "
            "at. What its outputs depend on can be measured all the same."
        )
    if len(attention_layers(model)) < len(model.blocks):
        plain = "The attention of this model does not give its weights, so there are none to show."
        found = (getattr(block.attention, "no_weights", "") for block in model.blocks)
        return next(filter(None, found), plain)
    return ""


def _refusal(attention: HeadedAttention, given: tuple[Tensor, AttentionOptions]) -> str:
    """What a score says that gives no weights; all layers have the same."""
    try:
        attention.weights(*given)
    except ValueError as error:
        return f"There are no attention weights to show: {error}."
    return ""


def record_attention(
    model: nn.Module, tokens: Tensor
) -> tuple[list[tuple[Tensor, AttentionOptions]], Tensor]:
    """What the attention of each layer is given, and the logits."""
    inside: list[tuple[Tensor, AttentionOptions]] = []

    def note(module: nn.Module, given: tuple[Tensor], named: dict[str, Any]) -> None:
        inside.append((given[0], named["options"]))

    hooks = [
        layer.register_forward_pre_hook(note, with_kwargs=True) for layer in attention_layers(model)
    ]
    try:
        return inside, model(tokens)
    finally:
        for hook in hooks:
            hook.remove()


def weights(inspected: Inspection, layer: int) -> Tensor:
    """Of a layer, [h, t, t]."""
    attention = inspected.layers[layer]
    with torch.inference_mode(), evaluating(attention):
        return attention.weights(*inspected.inside[layer])[0]


def layer_mask(attention: HeadedAttention, time: int) -> Tensor:
    """[t, t], True where a query of this layer attends to a key."""
    here = torch.device("cpu")
    window, chunk = attention.window, getattr(attention, "chunk", None)
    return Mask(queries=time, keys=time, device=here, window=window, chunk=chunk).visible()[0]


def influences(model: LanguageModel, ids: list[int]) -> Iterator[list[list[float]] | None]:
    """How far output i moves when token j is replaced, [i][j]; given after the last batch."""
    vocabulary = model.settings.vocabulary
    exact, device = precise(model), device_of(model)
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
    inspected: Inspection, layer: int, head: int, seconds: float, given: ModelInput
) -> dict[str, Any]:
    """One layer and head of a text that was read; without attention, what there is besides."""
    began = time.perf_counter()
    return {
        "tokens": inspected.tokens,
        **_head(inspected, layer, head),
        "absent": inspected.absent,
        "cut": given.note,
        "influence": inspected.influence,
        "next": [
            {"token": given.name(one["id"]), "probability": one["probability"]}
            for one in inspected.next
        ],
        "paths": inspected.paths,
        "note": inspected.note,
        "seconds": seconds + time.perf_counter() - began,
    }


def _head(inspected: Inspection, layer: int, head: int) -> dict[str, Any]:
    layers = inspected.layers
    if not layers:
        return {"layers": 0, "heads": 0, "layer": 0, "head": 0, "weights": None, "mask": None}
    heads = layers[0].heads
    if not 0 <= layer < len(layers) or not 0 <= head < heads:
        raise ValueError(
            f"layer {layer}, head {head}: this model has layers 0 to {len(layers) - 1} and heads "
            f"0 to {heads - 1}"
        )
    rows = weights(inspected, layer)[head].double().cpu()
    return {
        "layers": len(layers),
        "heads": heads,
        "layer": layer,
        "head": head,
        "kv_head": head // (heads // layers[layer].kv_heads),
        "window": layers[layer].window,
        "weights": [[round(weight, 6) for weight in row] for row in rows.tolist()],
        "mask": layer_mask(layers[layer], len(rows)).int().tolist(),
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


def device_of(model: nn.Module) -> torch.device:
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
