"""The scale: the factor on the product of query and key, 1/√(head width) in most code.

Axes: b batch, h query heads, g key/value heads, t time, d head width.

Other factors are somebody's choice and only reported; 1/√(heads · head width) is nobody's: it comes
of taking the model's width for the head's, and fails unless a setting asks for it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnlab.audit.probe.identify import NO_SOFTMAX, SEEN_LENGTH, grain, observe, scale_seen
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.scores import bent_scores
from attnlab.audit.properties.property import Case, Property
from attnlab.audit.repro.prelude import CannotTell, Result, Shape, Tool
from attnlab.audit.subject.adapters import HEADS, WIDTHS

MODEL = "1/√(heads · head width)"


def fails(
    run: Tool,
    draw: Tool,
    heads: Shape | None,
    watch: Any,
    *,
    wanted: float | None,
    chosen: list[float],
    count: int,
    causal: bool,
    length: int,
    seed: int,
    tolerance: float,
) -> Result:
    """The factor on query · key: the one wanted, or any but 1/√(heads · head width) by mistake."""
    x = draw(2, length, seed)
    if heads is not None:
        (h, _, d), found = heads, scale_of_function(run, x, heads)
    else:
        one = observe(run, x, heads, watch)[0]
        seen = scale_seen(one, torch.finfo(one.q.dtype).eps ** 0.5)
        if seen == NO_SOFTMAX:  # as it is where scores are bent: small ones are not
            slope = slope_seen(run, x, watch, causal)
            seen = scale_seen(one, torch.finfo(one.q.dtype).eps ** 0.5, slope)
        if isinstance(seen, str):
            raise CannotTell(seen)
        found, h, d = seen, one.q.shape[1], one.q.shape[3]
    h = max(h, count)  # heads may be modules of their own, of which one is seen at a time
    name = factor_name(found, h, d)
    text = f"scores are {found:.4g} times query · key: {name} (head width {d})"
    if wanted is not None:
        wrong = abs(found - wanted) > 1e-3 * abs(found)
        return wrong, text + (f", and {wanted:.4g} is declared" if wrong else ""), found
    wrong = name == MODEL and not any(abs(found / one - 1) < 1e-3 for one in chosen)
    if wrong:
        text += "; heads are compared over the head width: declare scale=… if it is meant"
    return wrong, text, found


def slope_seen(run: Tool, x: Tensor, watch: Any, causal: bool) -> float:
    """The factor between small products and scores, if it is one for all rows."""
    plain = observe(run, x[:1], None, watch)
    bent = bent_scores(run, x[:1], None, watch, causal, plain)
    known = bent.slopes[bent.slopes.isfinite()]
    if float(known.max() - known.min()) > 100 * bent.fine * float(known.abs().max()):
        raise CannotTell("scores are products of queries and keys times a factor for each row")
    return float(known.median())


def scale_of_function(run: Tool, x: Tensor, heads: Shape) -> float:
    """The factor, or that of small scores where large ones are bent."""
    known = [factor_at(run, x, heads, size) for size in (1.0, 2.0**-8, 2.0**-12)]
    found = next((one for one in known if one is not None), None)
    if found is None:
        raise CannotTell(NO_SOFTMAX)
    return found


def factor_at(run: Tool, x: Tensor, heads: Shape, small: float) -> float | None:
    """From the score of a query with its own key, which no rotation changes, against a key of 0.

    Without the query a bias is left, and is taken away. Every position but the first has a say.
    """
    h, g, d = heads
    queries, key = x[..., : h * d].unflatten(-1, (h, d)), x[..., h * d : (h + 1) * d]
    scores, products = [], []
    for at in range(1, x.shape[1]):
        logs = []
        for size in (small, 0.0):
            text = x.clone()
            text[..., : h * d] *= size
            text[..., h * d : (h + g) * d] = key.repeat(1, 1, g)  # one key, whoever reads it
            text[:, at - 1, h * d : (h + g) * d] = 0
            weights = observe(run, text, heads, None)[0].weights
            logs.append(weights[:, :, at].double().log())
        against = [one[:, :, at] - one[:, :, at - 1] for one in logs]
        scores.append(against[0] - against[1])
        products.append(small * (queries[:, at].double() * key[:, at, None].double()).sum(-1))
    score, product = torch.stack(scores), torch.stack(products)
    score, product = score[score.isfinite()], product[score.isfinite()]
    if not score.numel():
        raise CannotTell("no query attends to its own key and the one before")
    factor = float((score * product).sum() / product.square().sum())
    floor = 100 * grain(weights, torch.finfo(x.dtype).eps ** 0.5)
    off = float((score - factor * product).abs().max())
    return None if off > floor * (small + float(score.abs().max())) else factor


def factor_name(found: float, heads: int, width: int) -> str:
    known = {
        "1/√(head width)": width**-0.5,
        MODEL: (heads * width) ** -0.5,
        "1/(head width)": 1 / width,
        "1": 1.0,
        "√(head width)": width**0.5,
    }
    near = (name for name, value in known.items() if abs(found / value - 1) < 1e-3)
    return next(near, "a factor of its own")


class Scale(Property):
    """The factor between query · key and the logarithm of weights.

    Needs: a look inside.
    Fails: another than declared; 1/√(heads · head width) undeclared.
    """

    name = "scale"
    field = "scale"
    fixed = (HEADS, WIDTHS)

    def cases(self, probe: Probe) -> Iterator[Case]:
        how = {"wanted": self.declared(probe), "chosen": settings_of(probe)}
        how["causal"] = bool(probe.contract.causal)
        count = probe.subject.heads or 1
        yield self.case(probe, fails, **how, count=count, length=SEEN_LENGTH)


def settings_of(probe: Probe) -> list[float]:
    """Factors that a setting asks for, as it is or under a root: then they are a choice."""
    module, found = probe.subject.module, set()
    for one in [] if module is None else module.modules():
        for holder in (getattr(one, "config", None), getattr(one, "settings", None)):
            for name, value in getattr(holder, "__dict__", {}).items():
                number = type(value) in (int, float) and value > 0
                if number and any(part in name for part in ("scal", "multiplier", "temperature")):
                    found |= {float(value), 1 / value, value**0.5, value**-0.5}
    return sorted(found)
