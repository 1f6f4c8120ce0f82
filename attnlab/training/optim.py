"""Optimisers as settings, their state by parameter name, and the schedule as a pure function.

Every step's learning rate is `rate · schedule.factor(step, steps)`; nothing about it is remembered,
so a resumed run has the rate it would have had.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import Field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnlab.config import refusal, setting, settings
from attnlab.training.shards import is_sharded, like, whole

GATHERED = 1 << 25  # numbers of sharded matrices that are together whole at once


@settings
class Schedule:
    """Up over `warmup` steps, level until `hold` of the run is over, then down to `final`.

    The waves go up and down for ever: a cosine that is at its lowest every 2 `wave` steps, cut off
    below `final`, whatever the length of the run.
    """

    warmup: int = setting(
        0, low=0, about="steps in which the learning rate rises to its full value"
    )
    hold: float = setting(
        0.0,
        low=0,
        high=1,
        because="it is a part of the run",
        about="fraction of the run after which the rate falls",
    )
    shape: Literal["cosine", "linear", "constant", "waves"] = setting(
        "cosine", about="how the rate falls; waves rise and fall again"
    )
    final: float = setting(
        0.1,
        low=0,
        high=1,
        because="it is a part of the full rate",
        about="where the rate ends, as a fraction of its full value",
    )
    wave: int | None = setting(
        None,
        low=1,
        none="every other shape",
        about="with shape=waves: steps from the top of a wave to its bottom",
    )

    def check(self) -> None:
        if (self.shape == "waves") != (self.wave is not None):
            raise refusal(
                self,
                "wave",
                "with shape=waves it is a number of steps, 1 or more, and with any other none",
            )

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at step 0, 1, … steps - 1."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        level = max(self.warmup, round(self.hold * steps))
        if self.shape == "constant" or step < level:
            return 1.0
        if self.wave is not None:
            return max(self.final, (1 + math.cos(math.pi * (step - level + 1) / self.wave)) / 2)
        gone = min((step - level + 1) / max(steps - level, 1), 1.0)
        left = 1 - gone if self.shape == "linear" else (1 + math.cos(math.pi * gone)) / 2
        return self.final + (1 - self.final) * left


@runtime_checkable
class OptimiserSettings(Protocol):
    """The settings of an optimiser: what `optimiser` in the registry names."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def build(self, model: nn.Module) -> "Optimiser": ...


@settings
class AdamW:
    rate: float = setting(1e-3, low=0, below=100, about="learning rate at its full value")
    betas: tuple[float, ...] = setting(
        (0.9, 0.95),
        low=0,
        below=1,
        count=2,
        about="decay of the running means of the gradient and its square",
    )
    weight_decay: float = setting(
        0.1,
        low=0,
        below=100,
        about="pulls matrices and tables towards 0; biases and gains are left alone",
    )
    decay_gains: bool = setting(
        False, about="decay the gains of norms too: a high rate then stays stable"
    )

    def build(self, model: nn.Module) -> "Optimiser":
        return Optimiser(model, [self._torch(list(model.named_parameters()), self.rate)])

    def _torch(self, named: list[tuple[str, nn.Parameter]], rate: float) -> torch.optim.Optimizer:
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in named:
            gain = parameter.ndim < 2 and not name.endswith("bias")
            small = parameter.ndim >= 2 or (gain and self.decay_gains)
            (decayed if small else others).append(parameter)
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay, "scale": rate},
            {"params": others, "weight_decay": 0.0, "scale": rate},
        ]
        groups = [group for group in groups if group["params"]]
        first = named[0][1]
        return torch.optim.AdamW(
            groups,
            lr=rate_for(first, rate),
            betas=(self.betas[0], self.betas[1]),
            fused=True,
            capturable=first.is_cuda,
        )


@settings
class Muon:
    """Orthogonalised momentum for the matrices inside the model; AdamW for all the rest."""

    rate: float = setting(0.02, low=0, below=100, about="learning rate of the matrices")
    momentum: float = setting(0.95, low=0, below=1, about="decay of the averaged gradient")
    weight_decay: float = setting(0.0, low=0, below=100, about="pulls the matrices towards 0")
    iterations: int = setting(
        5, low=1, high=20, about="Newton–Schulz iterations that orthogonalise an update"
    )
    rest_rate: float = setting(
        3e-3, low=0, below=100, about="AdamW's learning rate for embeddings, head and vectors"
    )
    rest_betas: tuple[float, ...] = setting(
        (0.9, 0.95), low=0, below=1, count=2, about="AdamW's betas for embeddings, head and vectors"
    )

    def build(self, model: nn.Module) -> "Optimiser":
        inside: list[tuple[str, nn.Parameter]] = []
        rest: list[tuple[str, nn.Parameter]] = []
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        head = getattr(getattr(model, "head", None), "weight", None)
        for name, parameter in model.named_parameters():
            table = id(parameter) in tables or parameter is head
            (rest if parameter.ndim != 2 or table else inside).append((name, parameter))
        others = AdamW(rate=self.rest_rate, betas=self.rest_betas, weight_decay=0.0)
        parts = [others._torch(rest, self.rest_rate)]
        if inside:
            parts.append(StackedMuon([p for _, p in inside], self))
        return Optimiser(model, parts)


class StackedMuon(torch.optim.Muon):
    """torch.optim.Muon, all matrices of one shape at once.

    Torch's own takes one matrix after another, always in bfloat16: many small products, and the end
    of the process on a CPU that traps bfloat16. Here the iteration runs over stacks, in float32 on
    the CPU, and sharded matrices (FSDP) are put together first.
    """

    def __init__(self, matrices: list[nn.Parameter], settings: Muon) -> None:
        super().__init__(
            matrices,
            lr=rate_for(matrices[0], settings.rate),  # type: ignore[arg-type]
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            ns_steps=settings.iterations,
        )
        self.param_groups[0]["scale"] = settings.rate
        self.found_inf: Tensor | None = None  # as in torch's fused AdamW: 1 skips the update

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "the loop computes the loss"
        for group in self.param_groups:
            stacks: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    stacks[tuple(sorted(parameter.shape))].append(parameter)
            for parameters in stacks.values():
                for some in _within_memory(parameters):
                    self._update(some, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        rate, momentum, skip = group["lr"], group["momentum"], self.found_inf
        moving = []
        for parameter in parameters:
            state, grad = self.state[parameter], parameter.grad
            assert grad is not None
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(grad)
            buffer = state["momentum_buffer"]
            if skip is not None:  # a NaN must not reach the state either
                grad = torch.where(skip > 0, buffer, grad)
            buffer.lerp_(grad, 1 - momentum)
            nesterov = grad.lerp(buffer, momentum)
            moving.append(whole(nesterov.T if nesterov.shape[0] > nesterov.shape[1] else nesterov))
        turned = orthogonalise(torch.stack(moving), group["ns_steps"], group["ns_coefficients"])
        if skip is not None:
            turned = torch.where(skip > 0, 0, turned)
            rate = torch.where(skip > 0, 0, rate)
        for parameter, update in zip(parameters, turned, strict=True):
            rows, columns = parameter.shape
            update = update.T if rows > columns else update
            parameter.mul_(1 - rate * group["weight_decay"])
            parameter.sub_(like(update, parameter) * (rate * math.sqrt(max(1, rows / columns))))


def orthogonalise(
    matrices: Tensor, iterations: int, coefficients: tuple[float, float, float]
) -> Tensor:
    """Newton–Schulz over a stack [n, rows ≤ columns]: singular values go near 1.

    x ← a x + (b g + c g²) x with g = x xᵀ, again and again.
    """
    a, b, c = coefficients
    dtype = torch.bfloat16 if matrices.is_cuda else torch.float32
    x = matrices.to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    if dtype == torch.float32 and x.shape[-1] >= 2 * x.shape[-2]:
        return (_polynomial(x @ x.mT, iterations, coefficients) @ x).to(matrices.dtype)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def _polynomial(gram: Tensor, iterations: int, coefficients: tuple[float, float, float]) -> Tensor:
    """What the iteration multiplies x by, from its first g alone: wide matrices cost rows³ only.

    All powers of g commute, so with p = a + b g + c g² an iteration is x ← p x and g ← p² g.
    """
    a, b, c = coefficients
    product: Tensor | None = None
    for left in reversed(range(iterations)):
        p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        product = p if product is None else p @ product
        if left:
            gram = p @ (p @ gram)
    assert product is not None
    return product


def _within_memory(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Sharded matrices are put together only so many at a time; others are there anyway."""
    count = len(parameters)
    if is_sharded(parameters[0]):
        count = max(GATHERED // parameters[0].numel(), 1)
    for begin in range(0, len(parameters), count):
        yield parameters[begin : begin + count]


class Optimiser:
    """One or more torch optimisers over a model, with their state by parameter name."""

    def __init__(self, model: nn.Module, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        self._names = {id(p): name for name, p in model.named_parameters()}

    def set_rates(self, factor: float) -> None:
        for group in self._groups():
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["scale"] * factor)
            else:
                group["lr"] = group["scale"] * factor

    def skip_when(self, flag: Tensor) -> None:
        """From now on an update is left out on the device while the flag is 1."""
        for part in self.parts:
            part.found_inf = flag  # type: ignore[attr-defined]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Every tensor of the state under "parameter/slot"; of shards, those of this process."""
        return dict(self._slots())

    def empty_state(self) -> dict[str, Tensor]:
        """What a saved state must be like."""
        return {name: empty for name, (*_, empty) in self._places().items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Put a saved state in place; a missing, foreign or misshapen tensor is refused."""
        places = self._places()
        for name in sorted(saved.keys() ^ places.keys()):
            fault = "has no place" if name in saved else "is missing"
            raise ValueError(
                f"the optimiser's state does not fit this model and optimiser: {name} {fault}"
            )
        for name, (part, parameter, slot, empty) in places.items():
            if saved[name].shape != empty.shape:
                raise ValueError(
                    f"optimiser state {name} has shape {tuple(saved[name].shape)}; "
                    f"this model needs {tuple(empty.shape)}"
                )
            value = like(saved[name].to(empty.device, empty.dtype), empty)
            part.state[parameter][slot] = value if is_sharded(value) else value.clone()

    def _places(self) -> dict[str, tuple[torch.optim.Optimizer, Tensor, str, Tensor]]:
        return {
            f"{self._names[id(parameter)]}/{slot}": (part, parameter, slot, empty)
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
            for slot, empty in _empty_slots(part, parameter).items()
        }

    def _groups(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            yield from part.param_groups

    def _slots(self) -> Iterator[tuple[str, Tensor]]:
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    for slot, tensor in part.state[parameter].items():
                        yield f"{self._names[id(parameter)]}/{slot}", tensor


def _empty_slots(part: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The slots a part keeps for a parameter, by a tensor of the shape each will have."""
    alike = parameter.detach()
    if isinstance(part, StackedMuon):
        return {"momentum_buffer": alike}
    fused = part.param_groups[0]["fused"]
    count = torch.zeros((), device=parameter.device if fused else "cpu")
    return {"step": count, "exp_avg": alike, "exp_avg_sq": alike}


def rate_for(parameter: Tensor, rate: float) -> float | Tensor:
    """On CUDA the rate lies on the device: a captured step reads it anew every time."""
    return torch.tensor(rate, device=parameter.device) if parameter.is_cuda else rate
