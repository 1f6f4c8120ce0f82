"""All heads of a model at once: a small picture of each, and what it does in words where clear.

Axes: h heads, t tokens, s side of a small picture.
Cost: the weights of every layer, and once more for a few random sequences that repeat.

A small picture holds the largest weight of each block of a head's map, as one byte a cell: 0 where
the mask hides the whole block, else 1 to 255 for weights from 0 to 1.
"""

import base64
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnlab.attention import patterns
from attnlab.attention.heads import HeadedAttention
from attnlab.attention.patterns import Repeats, Score
from attnlab.generate import evaluating
from attnlab.page.inspection import (
    Inspection,
    ModelInput,
    device_of,
    layer_mask,
    record_attention,
    weights,
)

SIDE, SMALL_SIDE, MANY = 32, 16, 256  # cells of a picture, and where there are many heads
MOST = 1024  # heads that are shown
KEPT = 4


class OverviewCache:
    """The overviews that were made lately."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def steps(self, inspected: Inspection, given: ModelInput) -> Iterator[dict[str, Any] | None]:
        """A layer at a time; the last thing given is the overview."""
        found = self._kept.pop(given.key, None)
        making = overview(inspected, given) if found is None else iter([found])
        while (found := next(making)) is None:
            yield None
        self._kept[given.key] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        yield found


def overview(inspected: Inspection, given: ModelInput) -> Iterator[dict[str, Any] | None]:
    layers = inspected.layers
    count = len(layers) * layers[0].heads if layers else 0
    shown = layers[: max(1, MOST // layers[0].heads)] if layers else []
    side = min(len(inspected.ids), SIDE if count <= MANY else SMALL_SIDE)
    sequences, why = repeating_sequences(layers, given)
    read_again: list[Any] = []
    if sequences is not None:
        with torch.inference_mode(), evaluating(inspected.model):
            ids = sequences.ids.to(device_of(inspected.model))
            read_again, _ = record_attention(inspected.model, ids)
    rows = []
    for number, attention in enumerate(shown):
        yield None
        one = weights(inspected, number).double().cpu()
        mask = layer_mask(attention, len(inspected.ids))
        scores = patterns.text_scores(one, inspected.ids, mask)
        if sequences is None:
            repeated = [patterns.unmeasured("induction", why)] * attention.heads
        else:
            with torch.inference_mode(), evaluating(attention):
                again = attention.weights(*read_again[number]).double().cpu()
            seen = layer_mask(attention, sequences.ids.shape[1])
            repeated = patterns.induction_scores(again, sequences, seen)
        small = small_pictures(one, mask, side)
        for head in range(attention.heads):
            found = [*scores[head], repeated[head]]
            rows.append(
                {
                    "layer": number,
                    "head": head,
                    "cells": base64.b64encode(small[head].numpy().tobytes()).decode(),
                    "does": patterns.in_words(found),
                    "scores": [_plain(score) for score in found],
                }
            )
    yield {
        "side": side,
        "layers": len(shown),
        "heads": shown[0].heads if shown else 0,
        "pictures": rows,
        "definitions": patterns.PATTERNS,
        "rule": patterns.RULE,
        "absent": inspected.absent,
        "note": ""
        if len(shown) == len(layers)
        else f"Shown are the first {len(shown)} of {len(layers)} layers.",
    }


def repeating_sequences(
    layers: list[HeadedAttention], given: ModelInput
) -> tuple[Repeats | None, str]:
    """Random sequences for induction, or why there are none.

    They are drawn from the tokens of the text, which a person has chosen, if it has enough of them.
    """
    own = sorted(set(given.ids))
    drawn_from = own if len(own) >= patterns.LEAST_TOKENS else given.vocabulary
    windows = [one.window for one in layers if one.window is not None]
    wide = [window for window in windows if window >= patterns.LEAST_TOKENS]
    window = min(wide) if wide else None
    if not layers:
        return None, ""
    if len(windows) == len(layers) and not wide:
        return None, f"no window reaches the {patterns.LEAST_TOKENS} keys that it takes"
    found = patterns.repeats(drawn_from, given.model.longest, window)
    if found is not None:
        return found, ""
    return None, f"it takes {patterns.LEAST_TOKENS} different tokens, and room to repeat them"


def small_pictures(weights: Tensor, mask: Tensor, side: int) -> Tensor:
    """[h, t, t] to [h, s, s] bytes."""
    largest = F.adaptive_max_pool2d(weights[None], side)[0]
    seen = F.adaptive_max_pool2d(mask[None, None].double(), side)[0] > 0
    return torch.where(seen, 1 + (254 * largest.clamp(0, 1)).round(), 0.0).to(torch.uint8)


def _plain(score: Score) -> dict[str, Any]:
    rounded = {
        name: None if value is None else round(value, 4)
        for name, value in (("weight", score.weight), ("even", score.even))
    }
    return {
        "pattern": score.pattern,
        **rounded,
        "queries": score.queries,
        "clear": score.clear,
        "reason": score.reason,
    }
