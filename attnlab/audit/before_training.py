"""Code of a person's own, examined before a training: a model that sees the future learns nothing.

Only models with such code are examined; ours are held to this by tests. The model is run as it
trains and as it is used, with the weights it begins with and with none of them at 0: a gate that
begins closed would hide what is behind it. Code that fails, or gives no finite numbers, is told of
here too, before there is a run.

Axes: b batch, t time, v vocabulary.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from attnlab import stop
from attnlab.audit.probe.probe import SAFETY, apart
from attnlab.audit.properties.causality import fails
from attnlab.audit.repro import prelude
from attnlab.code.own import own_parts
from attnlab.models.model import LanguageModel, parameters
from attnlab.registry import OptionWarning
from attnlab.training.recipe import Recipe
from attnlab.training.weights import build_model

LENGTHS = (5, 33)  # odd; the second beyond a block of 32
LONGEST = 2048  # of the training texts: longer ones are cut there
BLIND = 0.01  # of the outputs: what moves by less would not be seen
EXACT = 50_000_000  # numbers of weights, or of logits, up to which it is run in float64


def refuse_leak(recipe: Recipe) -> None:
    """A ValueError with the example where an output moves with a later token."""
    codes = list(dict.fromkeys(one.option for one in own_parts(recipe.model)))
    if not codes:
        return
    named = " and ".join(codes)
    for look in _looks(recipe):
        for length in _lengths(recipe, look.model):
            stop.heed()
            if look.is_blind(length):
                warnings.warn(
                    f"whether {named} sees the future cannot be told: its outputs are random "
                    f"{look.mode}",
                    OptionWarning,
                    stacklevel=2,
                )
                return
            if leak := look.leak(length):
                raise ValueError(
                    f"{named} sees the future, so nothing is trained: {leak}, {look.mode}; look at "
                    f"its mask (attnlab audit {codes[0]} --declare causal=true may find a smaller "
                    "case)"
                )
    stop.heed()


def _looks(recipe: Recipe) -> Iterator["_Look"]:
    model = build_model(recipe)
    _refuse_infinite(model, recipe)
    logits = 2 * min(recipe.length, LONGEST) * recipe.model.vocabulary
    if max(parameters(model), logits) <= EXACT and _takes_float64(model, recipe):
        yield _Look(build_model(recipe), training=True)  # as it trains, if not as exactly
        model = model.double()
    dtype = next((one.dtype for one in model.parameters()), torch.float32)
    yield _Look(model, training=False)
    yield _Look(model, training=True)
    prelude.prepare(model, dtype)
    yield _Look(model, training=False)
    yield _Look(model, training=True)


def _lengths(recipe: Recipe, model: LanguageModel) -> list[int]:
    """That of the training, and shorter ones, but those that the code does not take."""
    trained, look = min(recipe.length, LONGEST), _Look(model, training=False)

    def is_taken(length: int) -> bool:
        with suppress(ValueError):
            look.run(look.draw(2, length, 0))
            return True
        return False

    return [*(one for one in LENGTHS if one < trained and is_taken(one)), trained]


@dataclass(frozen=True)
class _Look:
    model: LanguageModel
    training: bool

    @property
    def mode(self) -> str:
        return "in training mode" if self.training else "in evaluation mode"

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        return prelude.sample((batch, length), self.model.settings.vocabulary, seed, torch.long)

    def run(self, tokens: Tensor) -> Tensor:
        """With the same dropout every time, so that nothing but the tokens differs."""
        with torch.set_grad_enabled(self.training), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.model.train(self.training)(tokens).detach()

    def leak(self, length: int) -> str:
        """What moves an output before it, a single token if one suffices; empty if nothing does."""
        look = partial(fails, self.run, self.draw, batch=2, length=length, factor=1.0, seed=0)
        look = partial(look, tolerance=self._tolerance(length))
        leaks, together, _ = look(cuts=sorted({1, 2, length // 2, length - 1}), changed=length)
        if not leaks:
            return ""
        leaks, alone, _ = look(cuts=list(range(1, length)), changed=1)
        return str(alone if leaks else together)

    def is_blind(self, length: int) -> bool:
        """Whether outputs move by themselves, so that a leak would not show."""
        size = float(self.run(self.draw(2, length, 0)).abs().nan_to_num().max())
        return self._tolerance(length) > BLIND * size

    def _tolerance(self, length: int) -> float:
        """Rounding: in evaluation mode rows are the same in any order."""
        x, still = self.draw(2, length, 0), replace(self, training=False)
        before = still.run(x)
        rounding = apart(still.run(x.flip(0)).flip(0), before)
        noise = apart(self.run(x), self.run(x))
        floor = torch.finfo(before.dtype).eps * float(before.abs().nan_to_num().max())
        return 4 * noise + max(SAFETY * rounding, floor)


def _refuse_infinite(model: LanguageModel, recipe: Recipe) -> None:
    """Numbers that are none move by nothing that can be measured."""
    for training in (False, True):
        look = _Look(model, training)
        for length in _lengths(recipe, model):
            out = look.run(look.draw(2, length, 0))
            if not out.isfinite().all():
                codes = " and ".join(dict.fromkeys(one.option for one in own_parts(recipe.model)))
                bad = out[~out.isfinite()][0].item()
                raise ValueError(
                    f"{codes} gives {bad} among its outputs for a text of {length} tokens, "
                    f"{look.mode}, with the weights it begins with; a row of scores that is all "
                    "-inf has no softmax"
                )


def _takes_float64(model: nn.Module, recipe: Recipe) -> bool:
    """Code that makes float32 numbers of its own may not."""
    try:
        exact = copy.deepcopy(model).double()
        with torch.no_grad():
            tokens = torch.zeros(1, min(recipe.length, LONGEST), dtype=torch.long)
            out = exact.eval()(tokens)
    except Exception:  # whatever their code does
        return False
    return bool(out.dtype == torch.float64)
