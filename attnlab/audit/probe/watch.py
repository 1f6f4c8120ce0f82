"""Attention as it happens: products of queries with keys, and of weights with values, noted.

Axes: n rows times heads, t time, d head width, e value width; query i, key j.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class _Watch(TorchDispatchMode):
    """Notes products of [t, d] with [d, t], and those of [t, t] with [t, e] that follow.

    Queries may come in chunks, one after another: [a, d] with [d, t], then [a, t] with [t, e].
    Products whose numbers are `at`, counted from 0 as they come, are made larger by `gain` on the
    way: so scores of any size are seen, whatever norms are before them.
    Whole in itself: scripts that repeat a failure bring it along.
    """

    supports_higher_order_operators = True  # such as flex_attention: it runs, and shows nothing

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch's compiler takes seconds to import, only to be told to stay away

    def __init__(self, length: int, gain: float = 1.0, at: Any = ()) -> None:
        super().__init__()
        self.length, self.gain, self.at = length, gain, at
        self.count = 0  # of products that compare, or look like it
        self.numbers: list[tuple[int, ...]] = []  # of those that were found to, by application
        self.parts: tuple[int, ...] = ()  # the same of the chunks so far
        self.linear: list[Tensor] = []
        self.compared: tuple[Tensor, Tensor] | None = None
        self.found: list[tuple[Tensor, ...]] = []
        self.chunks: list[tuple[Tensor, ...]] = []  # of the queries of one application, so far
        self.linear_before: list[tuple[Tensor, ...]] = []
        self.mistake: Exception | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        before = self.count
        try:
            self._see(func, args, out)
        except Exception as error:  # a mistake of ours is not raised inside the person's code
            self.mistake = self.mistake or error
        if self.count > before and before in self.at:
            out = out + (self.gain - 1) * (args[-2] @ args[-1]) * (kwargs or {}).get("alpha", 1)
        return out

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.mistake is not None and error[0] is None:
            raise self.mistake

    def _see(self, func: Any, args: Any, out: Any) -> None:
        aten = torch.ops.aten
        if func in (aten.bmm.default, aten.baddbmm.default):
            self._note(args[-2], args[-1], out)
        elif func in (aten.mm.default, aten.addmm.default) or (
            func is aten.add.Tensor
            and out.ndim > 1
            and any(getattr(one, "ndim", 0) == 1 for one in args)
        ):  # a linear layer, or the bias that is added to one
            self.linear.append(out.flatten(0, -2))

    def _note(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        t = self.length
        square = out.shape[1:] == (t, t)
        if out.shape[2] == t and out.shape[1] <= t and left.shape[2] != t:
            self.compared, self.count = (left.clone(), right.mT.clone()), self.count + 1
        elif left.shape[2] == t and left.shape[1] < t and self.compared is not None:
            self._add_chunk(*self.compared, right.clone(), left.clone())
            self.compared = None
        elif left.shape[1:] == (t, t) and not square and self.compared is not None:
            q, k = self.compared
            if len(q) == len(left):
                self.found.append((q, k, right.clone(), left.clone()))
                self.numbers.append((self.count - 1,))
                self.linear_before.append(tuple(self.linear))
            self.compared, self.linear = None, []

    def _add_chunk(self, q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> None:
        """Chunks that share their keys and values and make up all queries are one application."""
        if q.shape[:2] != weights.shape[:2]:
            self.chunks, self.parts = [], ()
            return
        same = self.chunks and all(
            one.shape == other.shape and torch.equal(one, other)
            for one, other in zip((k, v), self.chunks[-1][1:3], strict=True)
        )
        self.chunks = [*(self.chunks if same else []), (q, k, v, weights)]
        self.parts = (*(self.parts if same else ()), self.count - 1)
        if sum(one[0].shape[1] for one in self.chunks) != self.length:
            return
        q, weights = (torch.cat([one[n] for one in self.chunks], 1) for n in (0, 3))
        self.chunks = []
        # in another order than that of time they would show nothing but that
        if bool((weights != 0).all()) or not bool(weights.triu(1).any()):
            self.found.append((q, k, v, weights))
            self.numbers.append(self.parts)
            self.linear_before.append(tuple(self.linear))
        self.linear = []


class Einsums(TorchFunctionMode):
    """Shows einsums to a watch as they were written; inside, axes are folded into each other."""

    def __init__(self, watch: "Watch") -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.einsum and len(args) == 3 and isinstance(args[0], str):
            letters = args[0].replace(" ", "")
            plain = letters.replace(",", "").replace("->", "").isalpha() and "->" in letters
            try:
                self.watch.quiet = plain and self.watch.einsum(letters, *args[1:])
            except Exception as error:  # likewise
                self.watch.mistake = self.watch.mistake or error
        try:
            out = func(*args, **(kwargs or {}))
        finally:
            larger, self.watch.larger, self.watch.quiet = self.watch.larger, False, False
        return out * self.watch.gain if larger else out


class Watch(_Watch):
    """Sees einsums as they were written, too: inside, heads that share a key become rows."""

    def __init__(self, length: int, gain: float = 1.0, at: Any = ()) -> None:
        super().__init__(length, gain, at)
        self.larger = False  # what the einsum gives that was noted last
        self.folded: Folded | None = None  # of the einsum that compared last
        self.folds = False  # whether there was one
        self.quiet = False  # the products inside an einsum that was noted as a whole
        self.einsums = Einsums(self)

    def __enter__(self) -> "Watch":
        self.einsums.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self.einsums.__exit__(*error)
        super().__exit__(*error)

    def _note(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        if self.quiet:
            return
        before, folded = len(self.found), self.folded
        super()._note(left, right, out)
        if len(self.found) > before and folded is not None:
            self.found[-1] = tuple(one[folded.order] for one in self.found[-1])
        if self.compared is None or folded is None or self.compared[0] is not folded.q:
            self.folded = None

    def einsum(self, letters: str, left: Tensor, right: Tensor) -> bool:
        """Notes an einsum of heads that share keys; whether it was one."""
        compares = folding(letters, left, right, self.length)
        if compares is not None:
            self.compared, self.folded, self.folds = (compares.q, compares.k), compares, True
            self.larger, self.count = self.count in self.at, self.count + 1
            return True
        if self.folded is None:
            return False
        sides, given = letters.split("->")
        first, second = sides.split(",")
        fits = left.shape[:-2] == self.folded.leading and left.shape[-2:] == (self.length,) * 2
        new = set(second) - set(first)
        if not fits or len(new) != 1 or first[-1] not in second or first[-1] in given:
            return False
        values = spread(right, second, first[:-2] + first[-1] + new.pop(), left.shape[:-2])
        weights = left.flatten(0, -3)
        self._note(weights, values, weights.new_empty(values.shape))
        return True


@dataclass(frozen=True)
class Folded:
    """Queries and keys [n, t, d] of an einsum in which heads share keys, as the scores have them.

    `order` puts the n in the order of the queries' own axes, which is that of the heads.
    """

    q: Tensor
    k: Tensor
    order: Tensor
    leading: torch.Size  # of the scores, without the last two axes


def folding(letters: str, left: Tensor, right: Tensor, length: int) -> Folded | None:
    """Reads an einsum as scores [..., i, j] of queries that share keys; None if it is no such."""
    sides, given = letters.split("->")
    first, second = sides.split(",")
    if len(given) < 3:
        return None
    i, j = given[-2], given[-1]
    if i not in first or j not in second or i in second or j in first:
        return None
    summed = (set(first) & set(second)) - set(given)
    heads = [one for one in first if one not in (i, *summed)]
    shared = set(heads) - set(second)
    if len(summed) != 1 or not shared or set(given[:-2]) != set(heads):
        return None
    if set(second) - set(given) - summed:  # summed on one side only: no product of q and k
        return None
    d = summed.pop()
    sizes = dict(zip(first, left.shape, strict=True)) | dict(zip(second, right.shape, strict=True))
    if sizes[i] != length or sizes[j] != length or sizes[d] == length:
        return None
    leading = torch.Size(sizes[one] for one in given[:-2])
    numbers = torch.arange(leading.numel()).view(leading)
    return Folded(
        q=spread(left, first, given[:-2] + i + d, leading),
        k=spread(right, second, given[:-2] + j + d, leading),
        order=numbers.permute([given.index(one) for one in heads]).flatten(),
        leading=leading,
    )


def spread(x: Tensor, letters: str, wanted: str, leading: torch.Size) -> Tensor:
    """x with these axes, repeated along those of `leading` that it lacks, as [n, t, d]."""
    there = [one for one in wanted if one in letters]
    x = x.permute([letters.index(one) for one in there])
    for place, one in enumerate(wanted[:-2]):
        if one not in letters:
            x = x.unsqueeze(place)
    return x.expand(*leading, *x.shape[-2:]).flatten(0, -3).clone()
