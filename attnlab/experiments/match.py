"""Making variants equal in one thing: parameters, operations, seconds or steps.

The first variant is the measure of the others. Parameters are matched by the inner width of the
feed-forward parts, so that what is compared, attention, keeps its shape; where half to twice of
that is not enough, the width of the model is changed first.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from attnlab.models.meta import measure
from attnlab.models.model import ModelSettings, parameters
from attnlab.training.recipe import Recipe

Budget = Literal["parameters", "flops", "seconds", "steps"]
TOLERANCE = 0.02  # of the parameters
WIDEST = 1 << 16


M = TypeVar("M", bound=ModelSettings)


@dataclass(frozen=True)
class MatchedRecipe:
    recipe: Recipe
    change: str  # what was done to make it equal; empty if nothing


def match(
    budget: Budget,
    recipes: Mapping[str, Recipe],
    *,
    seconds: float | None = None,
    step_ms: Mapping[str, float] | None = None,
    steps: Mapping[str, int] | None = None,
) -> dict[str, MatchedRecipe]:
    """The recipes with equal budgets.

    For "seconds", `step_ms` are the milliseconds of a step of each, and `seconds` those of all
    steps together; if None, those of the first variant. `steps` are those chosen before, instead.
    """
    first, measure = next(iter(recipes.items()))
    if budget == "parameters":
        wanted = count(measure.model)
        return {
            label: _with_parameters(label, recipe, wanted, first)
            for label, recipe in recipes.items()
        }
    if budget == "flops":
        total = measure.steps * operations(measure)
        steps = {label: round(total / operations(r)) for label, r in recipes.items()}
    elif budget == "seconds":
        if steps is None:
            assert step_ms is not None
            total = measure.steps * step_ms[first] if seconds is None else 1e3 * seconds
            steps = {label: int(total / step_ms[label]) for label in recipes}
    else:
        steps = dict.fromkeys(recipes, measure.steps)
    return {label: _with_steps(recipe, max(steps[label], 1)) for label, recipe in recipes.items()}


def count(settings: ModelSettings) -> int:
    """Parameters of a model, without making them."""
    return measure(settings, parameters)


def operations(recipe: Recipe) -> float:
    """Of a step, for each token."""
    return measure(recipe.model, lambda model: model.operations(recipe.length))


def _with_steps(recipe: Recipe, steps: int) -> MatchedRecipe:
    """The schedule keeps its shape."""
    if steps == recipe.steps:
        return MatchedRecipe(recipe, "")
    warmup = round(recipe.schedule.warmup * steps / recipe.steps)
    schedule = dataclasses.replace(recipe.schedule, warmup=warmup)
    changed = dataclasses.replace(recipe, steps=steps, schedule=schedule)
    return MatchedRecipe(changed, f"steps {recipe.steps:,} → {steps:,}")


def _with_parameters(label: str, recipe: Recipe, wanted: int, first: str) -> MatchedRecipe:
    model = recipe.model
    if count(model) == wanted:
        return MatchedRecipe(recipe, "")
    near = _near(model, wanted)
    off = count(near) / wanted - 1
    if abs(off) > TOLERANCE:
        raise ValueError(
            f"{label} cannot be matched: the nearest model of its kind has {count(near):,} "
            f"parameters, {abs(off):.1%} {'more' if off > 0 else 'fewer'} than the {wanted:,} of "
            f"{first}; {TOLERANCE:.0%} are allowed: use another width or depth, or match=flops"
        )
    changes = [
        f"{words} {getattr(model, name):g} → {getattr(near, name):.4g}"
        for name, words in (("width", "width"), ("expansion", "feed-forward expansion"))
        if getattr(model, name, None) != getattr(near, name, None)
    ]
    return MatchedRecipe(dataclasses.replace(recipe, model=near), ", ".join(changes))


def _near(model: M, wanted: int) -> M:
    """The nearest model: by its feed-forward parts, by its width, or by both."""
    found = [model, *_by_feedforward(model, wanted)]
    if min(_distance(one, wanted) for one in found) > TOLERANCE:
        with suppress(ValueError):  # of a width that does not go with sections of rotations
            wide = with_nearest_width(model, wanted)
            found += [wide, *_by_feedforward(wide, wanted)]
    return min(found, key=lambda one: _distance(one, wanted))


def _distance(model: ModelSettings, wanted: int) -> float:
    return abs(count(model) / wanted - 1)


def with_nearest_width(model: M, wanted: int) -> M:
    """The width whose number of parameters is nearest to the wanted one.

    Heads keep their number, so the width changes by two for each: rotations turn pairs.
    """
    attention = getattr(model, "attention", None)
    unit = 1 if attention is None else 2 * attention.heads
    if (keyed := getattr(model, "keyed", None)) is not None:  # of a hybrid's other layers
        unit = math.lcm(unit, 2 * keyed.heads)
    return _nearest(lambda n: dataclasses.replace(model, width=unit * n), wanted, 1, WIDEST // unit)


def _by_feedforward(model: M, wanted: int) -> list[M]:
    if not hasattr(model, "expansion"):
        return []
    width: int = model.width
    inner = model.expansion * width

    def at(n: int) -> M:
        return dataclasses.replace(model, expansion=n / width)

    return [_nearest(at, wanted, max(round(inner / 2), 1), round(2 * inner))]


def _nearest(make: Callable[[int], M], wanted: int, low: int, high: int) -> M:
    """Of a kind of models that grow with a number, the one nearest to the wanted parameters."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(make(middle)) < wanted else (low, middle)
    return min(make(low), make(high), key=lambda one: _distance(one, wanted))
