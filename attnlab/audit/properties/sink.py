"""A sink: one more score for each head, which takes weight and gives nothing.

Axes: b batch, h query heads, t time; query i, key j.

What is missing from 1 in a row of weights is held to the weight of a key whose score is known: it
is that of a key with one score for each head, whatever the text and however large its scores. That
is 0 in "off by one" softmax, which divides by 1 + the sum; learned ones are numbers that a
parameter of the module holds.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from attnlab.audit.contract import Finding
from attnlab.audit.probe.identify import SEEN_LENGTH, observe
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.scores import (
    LEAST,
    TOO_SHORT,
    Sink,
    bent_scores,
    exact,
    find_cap,
    find_sink,
    missing,
)
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Shape, Tool

NOTHING = "rows add up to 1: no sink takes any weight"
CLOSE = 1e-4  # between a measured score and the parameter that holds it


def fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    model: nn.Module | None,
    *,
    wanted: str | None,
    causal: bool,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """What is missing from 1 goes to a sink of the kind that is declared, in every layer."""
    if length < LEAST:
        raise CannotTell(TOO_SHORT)
    x = draw(1 if heads is None else 2, length, seed)
    if heads is not None:
        blank = x.clone()
        blank[..., (heads[0] + heads[1]) * heads[2] :] = 0
        given = float(run(blank).abs().max())
        if given > tolerance:
            text = f"where all values are 0 it gives up to {given:.2g}: something else than values"
            if wanted in ("fixed", "learned"):
                return True, f"{text} is added, and a sink gives nothing", None
            raise CannotTell(f"{text} is added")
    plain, found = observe(run, x, heads, watch), list[Sink | None]()
    for layer, one in enumerate(plain):
        if not missing(one.weights):
            found.append(None)
            continue
        bent = bent_scores(run, x, heads, watch, causal, plain, layer)
        cap = find_cap(bent)
        if cap is None:
            raise CannotTell("scores are bent in a way of their own, and rows do not add up to 1")
        found.append(find_sink(bent, cap.value or math.inf))
    sinks = [one for one in found if one is not None]
    if not sinks:
        return wanted in ("fixed", "learned"), NOTHING, None
    if len(sinks) < len(found) and wanted in ("fixed", "learned"):
        return True, f"{NOTHING} in layer {found.index(None)}", None
    restless = next((one for one in sinks if one.spread), None)
    if restless is not None and restless.spread:
        text = "what is missing from 1 is the weight of no key of one score"
        low, high = restless.spread
        if wanted not in ("fixed", "learned") or restless.biased:
            raise CannotTell(text)
        return True, f"{text}: in one text it is as of scores from {low:.3g} to {high:.3g}", None
    kind, text = named(model, sinks)
    measured = [list(one.scores) for one in sinks]
    if wanted in (None, kind):
        return False, text, measured
    if wanted != "none" and any(one.biased for one in sinks):
        raise CannotTell(f"{text}; a bias on the own key, if there is one, is part of it")
    if wanted == "learned" and kind == "unknown":
        other = next(filter(None, (held_otherwise(model, one) for one in sinks)), "")
        if not other:
            raise CannotTell(f"{text}; no parameter for sinks has a number for each head")
        return True, f"{text}, and {other}", measured
    return True, f"{text}; {wanted} is declared", measured


def named(model: nn.Module | None, sinks: list[Sink]) -> tuple[str, str]:
    """The kind of the sinks of all layers, and what is seen of them."""
    error = max(one.error for one in sinks)
    shown = "; ".join(", ".join(exact(one, error) for one in sink.scores) for sink in sinks)
    scores = f"{shown} (by head{'; by layer' if len(sinks) > 1 else ''}, ± {error:.1g})"
    if all(abs(one) <= max(10 * error, CLOSE) for sink in sinks for one in sink.scores):
        text = "a fixed sink: in every head rows are divided by 1 + the sum of exponentials"
        return "fixed", f"{text} (score 0 ± {error:.1g})"
    names = [holder(model, one) for one in sinks]
    if all(names):
        text = f"learned sinks, in {', '.join(dict.fromkeys(names))}: as keys of score {scores}"
        return "learned", text
    return "unknown", f"sinks: as keys of score {scores}"


def numbers_by_head(model: nn.Module | None, heads: int) -> dict[str, torch.Tensor]:
    """Parameters with a number for each head."""
    every = [] if model is None else list(model.named_parameters())
    return {
        name: one.detach().double().cpu().flatten() for name, one in every if one.numel() == heads
    }


def holder(model: nn.Module | None, sink: Sink) -> str:
    """The parameter that holds the scores of a sink; empty if there is none."""
    scores, close = torch.tensor(sink.scores, dtype=torch.float64), max(10 * sink.error, CLOSE)
    for name, one in numbers_by_head(model, len(scores)).items():
        if float((one - scores).abs().max()) <= close:
            return f"`{name}`"
    return ""


def held_otherwise(model: nn.Module | None, sink: Sink) -> str:
    """What parameters for sinks hold, where it is not what is measured; empty without any."""
    if holder(model, sink):
        return ""
    every = numbers_by_head(model, len(sink.scores)).items()
    held = {name: one.tolist() for name, one in every if "sink" in name.lower()}
    shown = (f"`{name}` holds {', '.join(f'{n:.4g}' for n in one)}" for name, one in held.items())
    return " and ".join(shown)


class SinkOfHeads(Property):
    """What is missing from 1 in rows of weights is held to a key that has one score for each head.

    Needs: a look inside; for `learned` a parameter with a number for each head.
    Fails: another kind than declared; declared learned: other scores than the parameter holds;
      declared: a value of its own.
    """

    name = "sink"
    field = "sink"

    def cases(self, probe: Probe) -> Iterator[Case]:
        how = {"wanted": self.declared(probe), "causal": bool(probe.contract.causal)}
        yield self.case(probe, fails, **how, length=SEEN_LENGTH)

    def on_pass(self, probe: Probe, tried: list[tuple[Case, Result]]) -> Finding:
        _, sentence, measured = tried[-1][1]
        if measured is None and self.declared(probe) is None:
            return self.finding("not applicable", sentence)
        return self.finding("pass", sentence, measured=measured or "none")
