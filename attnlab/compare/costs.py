"""What variants cost: time and memory of a step, speed of decoding, bytes in the cache.

Times are taken in turns, in one process in which nothing else happens. On a CPU with one thread, as
the trainings have.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from attnlab.bench.measure import take_turns
from attnlab.generate import generate
from attnlab.studies import language
from attnlab.training.parallel import place_of
from attnlab.training.recipe import Recipe
from attnlab.training.weights import build_model

LEAST = 16  # tokens: a cache has room for so many from the beginning


def step_times(recipes: Mapping[str, Recipe], turns: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of a training step; on CUDA also its memory."""
    with one_thread():
        return language.step_costs(recipes, turns)


def decoding(recipes: Mapping[str, Recipe], turns: int) -> dict[str, float | None]:
    """Tokens a second of one text that grows to the context; None for models that keep nothing."""
    device = place_of("auto")

    def writer(recipe: Recipe) -> Callable[[], object] | None:
        model = build_model(recipe).to(device)
        if not hasattr(model, "new_cache"):
            return None
        return lambda: generate(model, [[0]], tokens=recipe.length)

    found: dict[str, float | None] = dict.fromkeys(recipes)
    writers = {label: made for label, r in recipes.items() if (made := writer(r)) is not None}
    with one_thread():
        times = take_turns(writers, device, turns, language.PATIENCE)
    for label, timing in times.items():
        found[label] = 1e3 * recipes[label].length / timing.median
    return found


def cache(recipe: Recipe) -> dict[str, Any] | None:
    """Bytes that decoding keeps, measured after a context and after two.

    `per_token` is what each further token adds, `constant` what is there besides: the rings of
    windows, the state of a recurrent model.
    """
    model: Any = build_model(recipe).eval()
    if not hasattr(model, "new_cache"):
        return None
    length = max(recipe.length, LEAST)
    tokens, kept, found = torch.zeros(1, length, dtype=torch.long), model.new_cache(), []
    with torch.no_grad():
        for _ in range(2):
            # all at position 0: learned ones go no further than a context
            model(tokens, positions=torch.zeros_like(tokens), cache=kept)
            found.append(kept.bytes)
    per_token = (found[1] - found[0]) // length
    constant = found[0] - length * per_token
    return {
        "per_token": per_token,
        "constant": constant,
        "at_context": constant + per_token * recipe.length,
    }


def memory(
    recipes: Mapping[str, Recipe], costs: Mapping[str, Mapping[str, Any]]
) -> dict[str, int | None]:
    """Peak bytes of a step. Reading them slows what comes after on a CPU: do it last."""
    if all("memory" in cost for cost in costs.values()):
        return {label: cost["memory"] for label, cost in costs.items()}
    with one_thread():
        return language.step_memory(recipes)


@contextmanager
def one_thread() -> Iterator[None]:
    """Where trainings have one each."""
    before = torch.get_num_threads()
    if place_of("auto").type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
