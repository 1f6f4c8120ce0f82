"""Stops a training whose model sees the future, before it has cost a night.

    stop = StopOnLeak(every=500)
    for step in range(steps):
        stop(model, step)       # raises FutureSeen
        ...

    trainer = Trainer(..., callbacks=[trainer_callback(every=500)])    # transformers

The model itself is asked, on its device and in its precision: nothing is copied, and afterwards
its modes, buffers, gradients and the state of every random generator are what they were.

Axes: b batch, t time; output i, input j.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.lengths import Lengths
from attnlab.audit.probe.probe import SAFETY, apart
from attnlab.audit.properties.causality import fails
from attnlab.audit.subject.adapters import subject_for
from attnlab.audit.subject.base import Subject

if TYPE_CHECKING:
    from transformers import TrainerCallback

LENGTHS = (5, 33)  # odd; the second beyond a block of 32
WRAPPED = ("module", "_orig_mod")  # of models made parallel, or compiled


class FutureSeen(RuntimeError):
    """An output that moves with a later input."""


class StopOnLeak:
    """Call it with the model at every step; it looks at step 0, and then every so many.

    `options` are what the adapters cannot find out of the model, such as {"vocabulary": 50257}.
    """

    def __init__(
        self,
        *,
        every: int | None = None,
        lengths: Sequence[int] = LENGTHS,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every is {every}; it counts steps: 1 or more, or None for once")
        if not lengths or min(lengths) < 2:
            raise ValueError(f"lengths are {list(lengths)}; a leak needs 2 positions or more")
        self.every, self.lengths, self.options = every, tuple(lengths), dict(options or {})
        self._done = False

    def __call__(self, model: nn.Module, step: int = 0) -> None:
        due = not self._done if self.every is None else step % self.every == 0
        if due:
            self._done = True
            self.look(model, step)

    def look(self, model: nn.Module, step: int = 0) -> None:
        """Raises FutureSeen, and leaves the model as it was."""
        model = _unwrap(model)
        with _leave_as_it_was(model), torch.no_grad():
            subject = subject_for(_Still(model), self.options, type(model).__name__)
            taken = Lengths(partial(_refusal, subject))
            for length in dict.fromkeys(taken.fit(one, low=2) for one in self.lengths):
                if leak := _leak(subject, length):
                    raise FutureSeen(
                        f"at step {step}, {subject.name} sees the future: {leak}; look at its mask "
                        f"(attnlab audit finds the smallest case)"
                    )


def trainer_callback(**settings: Any) -> "TrainerCallback":
    """A `transformers.TrainerCallback` that looks before training and every so many steps."""
    from transformers import TrainerCallback

    stop = StopOnLeak(**settings)

    class Stop(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            stop(given["model"], int(state.global_step))

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            stop(given["model"], int(state.global_step))

    return Stop()


def _refusal(subject: Subject, length: int) -> SubjectError | None:
    """What a model raises at a length, such as one beyond its table of positions."""
    try:
        subject.run(subject.draw(2, length, 0))
    except SubjectError as error:
        return error
    return None


def _leak(subject: Subject, length: int) -> str:
    """What moves an output before it, a single input if one suffices; empty if nothing does."""
    look = partial(fails, subject.run, subject.draw, batch=2, length=length, factor=1.0, seed=0)
    look = partial(look, tolerance=_tolerance(subject, length))
    few = sorted({1, 2, length // 2, length - 1})  # a training waits for this
    leaks, together, _ = look(cuts=few, changed=length)
    if not leaks:
        return ""
    leaks, alone, _ = look(cuts=list(range(1, length)), changed=1)
    return alone if leaks else together


def _tolerance(subject: Subject, length: int) -> float:
    """Rounding, in the model's own precision: rows are the same in any order."""
    x = subject.draw(2, length, 0)
    before = subject.run(x)
    rounding = apart(subject.run(x.flip(0)).flip(0), before)
    noise = apart(subject.run(x), before)
    floor = torch.finfo(before.dtype).eps * float(before.abs().nan_to_num().max())
    return 4 * noise + max(SAFETY * rounding, floor)


class _Still(nn.Module):
    """A model as the adapters see it, without its parameters: what they prepare is not the model.

    Inputs are brought to where the model is, and to its precision.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        kept = {name: value for name, value in vars(model).items() if type(value) is int}
        vars(self).update(kept, _all=tuple(model.modules()), _facts=model)
        first = next(iter(model.parameters()), torch.zeros(0))

        @functools.wraps(model.forward)
        def forward(*positional: Any, **named: Any) -> object:
            given = {name: _place(value, first) for name, value in named.items()}
            return model(*(_place(value, first) for value in positional), **given)

        vars(self)["forward"] = forward
        for name in ("config", "settings"):
            if hasattr(model, name):
                vars(self)[name] = getattr(model, name)

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        return iter(vars(self)["_all"])


def _place(value: object, like: Tensor) -> object:
    if not isinstance(value, Tensor):
        return value
    return value.to(like) if value.is_floating_point() else value.to(like.device)


@contextmanager
def _leave_as_it_was(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, and as it was afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (
            module,
            dict(module._buffers),
            {n: b.clone() for n, b in module._buffers.items() if b is not None},
        )
        for module in model.modules()
    ]
    devices = {one.device for one in model.parameters() if one.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices, key=str)):
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, held, values in buffers:
                module._buffers.clear()
                module._buffers.update(held)
                for name, value in values.items():
                    held[name].copy_(value)  # type: ignore[union-attr]


def _unwrap(model: nn.Module) -> nn.Module:
    wrapper = type(model).__name__
    if wrapper in ("DistributedDataParallel", "DataParallel", "OptimizedModule"):
        inner = next(getattr(model, name) for name in WRAPPED if hasattr(model, name))
        return _unwrap(inner)
    return model
