"""Optimisers as settings, their state by parameter name, and the schedule as a pure function.

Every step's learning rate is `rate · schedule.factor(step, steps)`; nothing about it is remembered,
so a run that goes on has the rate it would have had.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Up over `warmup` steps, level until `hold` of the run is over, then down to `final`.

    The waves go up and down for ever: a cosine that is at its lowest every 2 `wave` steps, cut off
    below `final`, whatever the length of the run.
    """

    warmup: int = 0
    hold: float = 0.0
    shape: Literal["cosine", "linear", "constant", "waves"] = "cosine"
    final: float = 0.1
    wave: int | None = None  # steps from the top of a wave to its bottom

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(
                f"schedule.warmup is {self.warmup}; it is a number of steps, 0 or more"
            )
        for name in ("hold", "final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"schedule.{name} is {getattr(self, name)}; it is a part: from 0 to 1"
                )
        if (self.shape == "waves") != (self.wave is not None) or (
            self.wave is not None and self.wave < 1
        ):
            raise ValueError(
                f"schedule.wave is {self.wave}; with shape=waves it is a number of steps, 1 or "
                "more, and with any other shape none"
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


@dataclass(frozen=True, kw_only=True)
class AdamW:
    rate: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.95)
    weight_decay: float = 0.1  # on matrices and tables; vectors are left alone
    decay_gains: bool = False  # and the gains of norms: what keeps a high rate from running away

    def __post_init__(self) -> None:
        _check_rates(self, "rate", "weight_decay")
        _check_betas("optimiser.betas", self.betas)

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


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Orthogonalised momentum for the matrices inside the model; AdamW for all the rest."""

    rate: float = 0.02
    momentum: float = 0.95
    weight_decay: float = 0.0
    iterations: int = 5
    rest_rate: float = 3e-3  # AdamW, for embeddings, head and vectors
    rest_betas: tuple[float, ...] = (0.9, 0.95)

    def __post_init__(self) -> None:
        _check_rates(self, "rate", "weight_decay", "rest_rate")
        _check_betas("optimiser.rest_betas", self.rest_betas)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"optimiser.momentum is {self.momentum}; use 0 to less than 1")
        if not 1 <= self.iterations <= 20:
            raise ValueError(f"optimiser.iterations is {self.iterations}; use 1 to 20, mostly 5")

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
                self._update(parameters, group)

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
        turned = orthogonalised(torch.stack(moving), group["ns_steps"], group["ns_coefficients"])
        if skip is not None:
            turned = torch.where(skip > 0, 0, turned)
            rate = torch.where(skip > 0, 0, rate)
        for parameter, update in zip(parameters, turned, strict=True):
            rows, columns = parameter.shape
            update = update.T if rows > columns else update
            parameter.mul_(1 - rate * group["weight_decay"])
            parameter.sub_(like(update, parameter) * (rate * math.sqrt(max(1, rows / columns))))


def orthogonalised(
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
        """Every tensor of the state, whole, under "parameter/slot"."""
        return {name: whole(tensor) for name, tensor in self._slots()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Put a saved state in place; a missing, foreign or misshapen tensor is refused."""
        places = {
            f"{self._names[id(parameter)]}/{slot}": (part, parameter, slot, empty)
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
            for slot, empty in _empty_slots(part, parameter).items()
        }
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
            part.state[parameter][slot] = value.clone()

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
    """The slots a part keeps for a parameter, with the shapes they will have."""
    zeros = torch.zeros_like(parameter)
    if isinstance(part, StackedMuon):
        return {"momentum_buffer": zeros}
    fused = part.param_groups[0]["fused"]
    count = torch.zeros((), device=parameter.device if fused else "cpu")
    return {"step": count, "exp_avg": zeros, "exp_avg_sq": zeros}


def rate_for(parameter: Tensor, rate: float) -> float | Tensor:
    """On CUDA the rate lies on the device: a captured step reads it anew every time."""
    return torch.tensor(rate, device=parameter.device) if parameter.is_cuda else rate


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor, cut in shards as the other is."""
    if isinstance(other, DTensor):
        return distribute_tensor(tensor.contiguous(), other.device_mesh, other.placements)
    return tensor


def _check_rates(settings: Any, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value < 100:
            raise ValueError(f"optimiser.{name} is {value}; use 0 or a little more, such as 0.001")


def _check_betas(name: str, betas: Iterable[float]) -> None:
    betas = tuple(betas)
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{name} is {list(betas)}; give two numbers from 0 to less than 1")
