"""The weights that a training begins with, of which a process keeps its own rows and no more.

They are the ones of a plain training: the model is built as ever, on the CPU, in the same order of
random numbers. But a large tensor lies on the device "meta" meanwhile. When it is filled, it is
made whole, cut, and forgotten. So what a process needs at most is its shard of the model and the
largest tensor whole, for as long as that is filled.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.compat import TorchDispatchMode
from attnlab.printable import raised
from attnlab.training.shards import Cut

LONGEST = 200  # letters of why a building failed
LARGE = 1 << 14  # numbers; what is smaller is there whole on every process until it is cut

M = TypeVar("M", bound=nn.Module)

_aten = torch.ops.aten
FACTORIES = {_aten.empty.memory_format, _aten.zeros.default, _aten.ones.default, _aten.full.default}
# what overwrites all of a tensor, with no regard to what was in it
FILLERS = {
    *(_aten.normal_.default, _aten.uniform_.default, _aten.zero_.default, _aten.fill_.Scalar),
}
SAME_TENSOR = {_aten.detach.default, _aten.alias.default}


class Unfit(Exception):
    """An operation on a large tensor whose result cannot be known from rows alone."""


class _AsOnCpu(TorchFunctionMode):
    """Code that asks where a tensor lies hears that it is on the CPU, as it would be.

    Some of PyTorch's own initialisations do nothing to a tensor on "meta", and nobody would know.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[Any, Any] = {
            torch.Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: True,  # type: ignore[attr-defined]
            torch.Tensor.device.__get__: torch.device("cpu"),  # type: ignore[attr-defined]
        }
        self.truthful = False  # while an operation on such a tensor is carried out

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function in self.answers and not self.truthful:
            return self.answers[function]
        return function(*args, **(kwargs or {}))


class _Rows(TorchDispatchMode):
    """Large tensors on "meta" while a model is built; of each, the rows of this process."""

    def __init__(self, cut: Cut, fill: bool, said: _AsOnCpu) -> None:
        super().__init__()
        self.cut, self.fill, self.said = cut, fill, said
        self.kept: dict[int, Tensor] = {}  # by the storage of the tensor on "meta"
        self._alive: list[Tensor] = []  # or another would get a storage's number

    def rows_of(self, tensor: Tensor) -> Tensor:
        return self.kept[tensor.untyped_storage()._cdata]

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before, self.said.truthful = self.said.truthful, True
        try:
            return self._carry_out(operation, args, kwargs or {})
        finally:
            self.said.truthful = before

    def _carry_out(self, operation: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if operation in FACTORIES:
            return self._make(operation, args, options)
        if not any(_on_meta(one) for one in [*args, *options.values()]):
            return operation(*args, **options)
        if operation in SAME_TENSOR:
            return operation(*args, **options)
        first = args[0]
        if operation in FILLERS and isinstance(first, Tensor) and _is_all_of_it(first):
            if self.fill:
                made = torch.empty(first.shape, dtype=first.dtype)
                self._keep(first, operation(made, *args[1:], **options))
            else:
                self._keep(first, torch.empty(first.shape, dtype=first.dtype, device="meta"))
            return first
        raise Unfit(str(operation))

    def _make(self, operation: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        size, device = args[0], options.get("device") or torch.device("cpu")
        large = len(size) and math.prod(size) >= LARGE
        if not large or torch.device(device).type != "cpu":
            made: Tensor = operation(*args, **options)
            return made
        there: Tensor = operation(*args, **{**options, "device": torch.device("meta")})
        self._alive.append(there)
        if operation is not _aten.empty.memory_format:  # all rows are alike
            rows = self.cut.rows(size[0])
            self.kept[there.untyped_storage()._cdata] = operation(
                [rows[1] - rows[0], *size[1:]], *args[1:], **options
            )
        return there

    def _keep(self, tensor: Tensor, whole: Tensor) -> None:
        start, stop = self.cut.rows(len(whole))
        rows = whole[start:stop]
        kept = torch.zeros(rows.shape, dtype=rows.dtype) if rows.is_meta else rows.clone()
        self.kept[tensor.untyped_storage()._cdata] = kept


def _on_meta(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_meta
    return isinstance(value, list | tuple) and any(map(_on_meta, value))


def _is_all_of_it(tensor: Tensor) -> bool:
    size = tensor.numel() * tensor.element_size()
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == size


def build_rows(
    build: Callable[[], M], cut: Cut, *, fill: bool = True
) -> tuple[M, dict[str, Tensor]]:
    """A model whose large weights are on "meta", and of these the rows of this process, by name.

    Without `fill` they are zeros, for weights that come from elsewhere: random numbers take time.

    Unfit where something else than filling it is done to a large tensor, as an orthogonal matrix
    needs; then only the whole model will do. So does a building that fails: it may read numbers
    that are not there, or give a weight other data. Any other fault shows in the whole one again.
    """
    said = _AsOnCpu()
    mode = _Rows(cut, fill, said)
    try:
        with said, mode:
            model = build()
    except (Unfit, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(raised(error).split())[:LONGEST]
        raise Unfit(reason) from error
    rows = {}
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            try:
                rows[name] = mode.rows_of(parameter)
            except KeyError:
                raise Unfit(f"{name} is left as memory has it") from None
    if any(one.is_meta for one in model.buffers()):
        raise Unfit("a buffer is large")
    return model, rows
