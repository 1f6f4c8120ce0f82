"""Weights of one model carried into another: matched by what they are, written as a conversion.

The conversion is Python source over a state dict that needs torch alone. The doctor itself runs
that source and nothing else, so what it hands over is what it has tried.

Axes: h query heads, g key/value heads, d head width. A matrix is [out, in] unless it is stored the
other way, which a width tells where it is not square.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnlab.audit.errors import InputError
from attnlab.doctor import moves as own_moves
from attnlab.interop import layouts
from attnlab.interop.names import Part, parts_of

Order = Literal["kind", "group"]
INWARD = ("q", "k", "v", "kv", "qkv", "gate", "up", "gate_up", "third")  # read a token's vector
OUTWARD = ("o", "down")  # give one
FUSED = {"qkv": ("q", "k", "v"), "kv": ("k", "v"), "gate_up": ("gate", "up")}


@dataclass(frozen=True)
class Weights:
    """The parameters of a model by name: shapes, and which are one and the same tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    first: Mapping[str, str]  # the first name of a tensor that has several

    @classmethod
    def of(cls, module: nn.Module | None) -> "Weights":
        named = [] if module is None else list(module.named_parameters(remove_duplicate=False))
        firsts: dict[int, str] = {}
        first = {name: firsts.setdefault(id(one), name) for name, one in named}
        return cls({name: tuple(one.shape) for name, one in named}, first)

    @cached_property
    def parts(self) -> dict[str, Part]:
        return parts_of(self.shapes)

    @cached_property
    def width(self) -> int | None:
        """Of a token's vector."""
        parts = self.parts
        tables = [name for name, one in parts.items() if one.name == "embed"]
        norms = [name for name, one in parts.items() if one.name.startswith("norm ")]
        named = [self.shapes[one][-1] for one in (*tables, *norms) if self.shapes[one]]
        if named:
            return named[0]
        sizes = [set(self.shapes[n]) for n, one in parts.items() if one.name in INWARD + OUTWARD]
        common = set.intersection(*(one for one in sizes if len(one))) if sizes else set()
        return common.pop() if len(common) == 1 else None

    def shared_heads(self, heads: int, d: int) -> int | None:
        """Key/value heads, by the rows of keys."""
        for name, part in self.parts.items():
            shape = self.shapes[name]
            if part.kind != "weight" or len(shape) != 2:
                continue
            turned = shape[0] == self.width and shape[1] != self.width
            rows = shape[1] if turned else shape[0]
            if part.name == "k" and rows % d == 0:
                return rows // d
            if part.name == "qkv" and rows % d == 0 and rows // d > heads:
                return max(1, (rows // d - heads) // 2)
        return None


@dataclass(frozen=True)
class Heads:
    query: int
    shared: int  # key/value heads
    width: int

    @property
    def rows(self) -> int:
        """Of fused queries, keys and values."""
        return (self.query + 2 * self.shared) * self.width


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What a conversion does besides matching; causes change it."""

    fused_a: Order = "kind"
    fused_b: Order = "kind"
    transposed: Literal["", "a", "b"] = ""  # square matrices: of which model they are [in, out]
    # parts, whether biases too, and an expression of {}
    wraps: tuple[tuple[tuple[str, ...], bool, str], ...] = ()
    taken: tuple[tuple[str, str], ...] = ()  # a part of B, and the part of A that it is read from

    def wrapped(self, parts: Sequence[str], text: str, biases: bool = True) -> "Moves":
        return replace(self, wraps=(*self.wraps, (tuple(parts), biases, text)))


@dataclass(frozen=True)
class Piece:
    text: str
    shape: tuple[int, ...]
    whole: str = ""  # the expression of the fused weight that it is cut from


@dataclass(frozen=True)
class Conversion:
    source: str
    carried: Mapping[str, str]  # B's name: the expression
    alone_a: tuple[str, ...]  # parameters without a partner
    alone_b: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def run(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By the source alone, in a namespace of its own."""
        space: dict[str, Any] = {}
        exec(compile(self.source, "<conversion>", "exec"), space)
        found: dict[str, Tensor] = space["convert"](dict(state))
        return found


class Carrier:
    """Writes conversions from A to B."""

    def __init__(
        self,
        a: Weights,
        b: Weights,
        heads: tuple[Heads | None, Heads | None],
        rules: Mapping[str, str] | None = None,
    ) -> None:
        self.a, self.b = a, b
        self.heads_a, self.heads_b = heads
        renamed = {name: _rename(name, rules or {}) for name in a.shapes}
        self.parts_a = _settle(parts_of(renamed.values()), renamed, a.shapes, a.width)
        for name in (*a.shapes, *b.shapes):  # they are written into source
            if not re.fullmatch(r"[\w.-]+", name):
                raise InputError(f"a parameter is called {name!r}, which no checkpoint has")
        own = {name: name for name in b.shapes}
        self.parts_b = _settle(b.parts, own, b.shapes, b.width)
        self._check_rules(rules or {}, renamed)
        self._match_leftovers(renamed)

    def _check_rules(self, rules: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """A rule names something in A, and what it is called there is something in B."""
        for pattern in rules:
            if not any(re.fullmatch(pattern, name) for name in renamed):
                near = [one for one in renamed if re.search(pattern, one)] or list(renamed)
                raise InputError(
                    f"the rule {pattern!r} matches no whole name of A, such as {near[0]}"
                )
        known = set(self.parts_b.values())
        known |= {one for part in known for one in _members(part)}
        for name, called in renamed.items():
            part = self.parts_a[name]
            if called not in (name, *self.b.shapes) and not known & {part, *_members(part)}:
                raise InputError(
                    f"the rules call {name} of A {called!r}, which is nothing in B; "
                    f"names there are such as {next(iter(self.b.shapes))}"
                )

    def _match_leftovers(self, renamed: Mapping[str, str]) -> None:
        """The same name is the same part; so is the only one of a shape that is left of a layer."""
        for name, called in renamed.items():
            if called in self.parts_b and self.parts_a[name] != self.parts_b[called]:
                self.parts_a[name] = self.parts_b[called]
        mine, theirs = self._unmatched(self.parts_a, self.a), self._unmatched(self.parts_b, self.b)
        for name, part in mine.items():
            same = self._alike(part, self.a.shapes[name], theirs, self.b)
            back = self._alike(part, self.a.shapes[name], mine, self.a)
            if len(same) == 1 and len(back) == 1:
                self.parts_a[name] = theirs[same[0]]

    def _unmatched(self, parts: Mapping[str, Part], weights: Weights) -> dict[str, Part]:
        other = self.parts_b if parts is self.parts_a else self.parts_a
        known = set(other.values()) | {one for o in other.values() for one in _members(o)}
        return {
            name: part
            for name, part in parts.items()
            if weights.first[name] == name and not known & {part, *_members(part)}
        }

    @staticmethod
    def _alike(
        part: Part, shape: tuple[int, ...], among: Mapping[str, Part], weights: Weights
    ) -> list[str]:
        return [
            name
            for name, one in among.items()
            if (one.layer, one.kind) == (part.layer, part.kind) and weights.shapes[name] == shape
        ]

    def has(self, *names: str) -> bool:
        """Whether both models have one of these parts, maybe fused."""
        return all(
            any(one.name in names for part in parts.values() for one in (part, *_members(part)))
            for parts in (self.parts_a, self.parts_b)
        )

    def write(self, moves: Moves) -> Conversion:
        pieces, notes = self._pieces(moves), list[str]()
        taken = dict(moves.taken)
        carried: dict[str, str] = {}
        alone, used = [], set[Part]()
        for name, part in self.parts_b.items():
            if self.b.first[name] != name:
                continue
            text = self._assemble(name, part, pieces, moves, taken, used)
            if text:
                carried[name] = text
            elif part.kind == "bias" and self._has_weight(part, pieces, taken):
                carried[name] = f"torch.zeros({self.b.shapes[name][0]}, dtype=torch.float64)"
                notes.append(f"{name} is 0: the other has no such bias")
            else:
                alone.append(name)
        rest = [
            name
            for name, part in self.parts_a.items()
            if self.a.first[name] == name and not used & {part, *_members(part)}
        ]
        lines = _in_loops(carried)
        return Conversion(_source(lines), carried, tuple(rest), tuple(alone), tuple(notes))

    def _has_weight(
        self, part: Part, pieces: Mapping[Part, Piece], taken: Mapping[str, str]
    ) -> bool:
        names = FUSED.get(part.name, (part.name,))
        found = [part._replace(name=taken.get(one, one), kind="weight") for one in names]
        return all(one in pieces for one in found)

    def _pieces(self, moves: Moves) -> dict[Part, Piece]:
        """A's weights as q, k and v, gate and up … by themselves, wrapped as the moves say."""
        found: dict[Part, Piece] = {}
        for name, part in self.parts_a.items():
            first = self.a.first[name]
            text, shape = f'a["{first}"]', self.a.shapes[name]
            if _stored_turned(part, shape, self.a.width) or (
                moves.transposed == "a" and _square(part, shape)
            ):
                text, shape = f"{text}.T", shape[::-1]
            for one, piece in self._cut(part, text, shape, moves).items():
                found[one] = self._wrap(one, piece, moves)
        return found

    def _cut(
        self, part: Part, text: str, shape: tuple[int, ...], moves: Moves
    ) -> dict[Part, Piece]:
        members = _members(part)
        if not members:
            return {part: Piece(text, shape)}
        if part.name == "qkv":
            heads = self.heads_a
            if heads is None or heads.rows != shape[0]:
                return {part: Piece(text, shape)}
            h, g, d = heads.query, heads.shared, heads.width
            cut = f"split_by_{moves.fused_a}({text}, {h}, {g})"
            rows = [h * d, g * d, g * d]
        else:
            cut, rows = f"{text}.chunk(2)", [shape[0] // 2] * 2
        return {
            one: Piece(f"{cut}[{at}]", (rows[at], *shape[1:]), text)
            for at, one in enumerate(members)
        }

    @staticmethod
    def _wrap(part: Part, piece: Piece, moves: Moves) -> Piece:
        for names, biases, text in moves.wraps:
            if part.name in names and (biases or part.kind == "weight"):
                piece = Piece(text.replace("{}", piece.text), piece.shape)
        return piece

    def _assemble(
        self,
        name: str,
        part: Part,
        pieces: Mapping[Part, Piece],
        moves: Moves,
        taken: Mapping[str, str],
        used: set[Part],
    ) -> str:
        shape, members = self.b.shapes[name], _members(part)
        if members and part not in pieces:
            sources = [one._replace(name=taken.get(one.name, one.name)) for one in members]
            cut = [pieces.get(one) for one in sources]
            if any(one is None for one in cut):
                return ""
            known = [one for one in cut if one is not None]
            text = self._fuse(part, known, moves)
            made = (sum(one.shape[0] for one in known), *known[0].shape[1:])
        else:
            sources = [part._replace(name=taken.get(part.name, part.name))]
            found = pieces.get(sources[0])
            if found is None:
                return ""
            text, made = found.text, found.shape
            if part.name in ("k", "v") and made[0] < shape[0]:
                text, made = self._repeated(text, made, shape)
        if made != shape and part.name == "positions" and made[1:] == shape[1:]:
            text, made = f"shift_rows({text}, 0, {shape[0]})", shape
        if _stored_turned(part, shape, self.b.width) or (
            moves.transposed == "b" and _square(part, shape)
        ):
            text, made = f"{text}.T", made[::-1]
        if made != shape and made[::-1] == shape:
            text, made = f"{text}.T", shape
        if made != shape or not text:
            return ""
        used.update(sources)
        return text.removesuffix(".T.T")

    def _repeated(
        self, text: str, made: tuple[int, ...], shape: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...]]:
        """Keys or values of shared heads, for more heads: each once for every one that reads it."""
        a, b = self.heads_a, self.heads_b
        if (
            a is None
            or b is None
            or b.shared % a.shared
            or made[0] * b.shared != shape[0] * a.shared
        ):
            return text, made
        return f"repeat_heads({text}, {a.shared}, {b.shared})", (shape[0], *made[1:])

    def _fuse(self, part: Part, pieces: Sequence[Piece], moves: Moves) -> str:
        whole = pieces[0].whole
        untouched = whole and all(one.whole == whole for one in pieces)
        if untouched and (part.name != "qkv" or moves.fused_a == moves.fused_b):
            order = [
                int(match[1]) for one in pieces if (match := re.search(r"\[(\d)\]$", one.text))
            ]
            if order == list(range(len(pieces))):
                return whole
        listed = ", ".join(one.text for one in pieces)
        if part.name != "qkv":
            return f"torch.cat([{listed}])"
        heads = self.heads_b
        if heads is None or heads.rows != sum(one.shape[0] for one in pieces):
            return ""
        more = f", {heads.query}, {heads.shared}" if moves.fused_b == "group" else ""
        return f"fuse_by_{moves.fused_b}({listed}{more})"


def _rename(name: str, rules: Mapping[str, str]) -> str:
    for pattern, text in rules.items():
        if re.fullmatch(pattern, name):
            return re.sub(pattern, text, name)
    return name


def _members(part: Part) -> list[Part]:
    return [part._replace(name=one) for one in FUSED.get(part.name, ())]


def _square(part: Part, shape: tuple[int, ...]) -> bool:
    known = part.name in (*INWARD, *OUTWARD) or "." in part.name
    return known and len(shape) == 2 and shape[0] == shape[1]


def _stored_turned(part: Part, shape: tuple[int, ...], width: int | None) -> bool:
    """Whether a matrix that is not square is [in, out]."""
    if width is None or len(shape) != 2 or shape[0] == shape[1]:
        return False
    if part.name in INWARD:
        return shape[0] == width
    return part.name in OUTWARD and shape[1] == width


def _settle(
    parts: Mapping[str, Part],
    renamed: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    width: int | None,
) -> dict[str, Part]:
    """By shape what names leave open: which of w1, w2 and w3 is which, and two in one."""
    found = {name: parts[called] for name, called in renamed.items()}
    for layer in {one.layer for one in found.values()}:
        mine = {n: one for n, one in found.items() if one.layer == layer and one.kind == "weight"}
        by_name = {one.name: name for name, one in mine.items()}
        if width is not None and {"up", "down", "third"} <= set(by_name):
            names = [by_name[one] for one in ("up", "down", "third")]
            giving = [one for one in names if _gives(shapes[one], width)]
            if len(giving) == 1:
                rest = [one for one in names if one != giving[0]]
                for name, word in zip((*giving, *rest), ("down", "gate", "up"), strict=True):
                    _call(found, name, word)
        elif "up" in by_name and "down" in by_name and "gate" not in by_name:
            up, down = shapes[by_name["up"]], shapes[by_name["down"]]
            if width is not None and max(up) == 2 * max(down) and max(down) != width:
                _call(found, by_name["up"], "gate_up")
    return found


def _gives(shape: tuple[int, ...], width: int) -> bool:
    return shape[0] == width and shape[1] != width


def _call(found: dict[str, Part], name: str, word: str) -> None:
    """A weight, and its bias, by another word."""
    for one in (name, re.sub(r"weight$", "bias", name)):
        if one in found:
            found[one] = found[one]._replace(name=word)


def _in_loops(carried: Mapping[str, str]) -> list[str]:
    """Assignments; what is the same for every layer but for its number stands in a loop."""
    plain, layers = list[str](), dict[str, list[str]]()  # lines of a loop, and their numbers
    unrolled = list[str]()
    for name, text in carried.items():
        number = re.search(r"(?:^|\.)(\d+)\.", name)
        sources = re.findall(r'a\["([^"]*)"\]', text)
        if number is None or not all(_numbered(one, number[1]) for one in sources):
            plain.append(f'b["{name}"] = {text}')
            continue
        at = number[1]
        unrolled.append(f'b["{name}"] = {text}')
        for one in dict.fromkeys(sources):
            text = text.replace(f'a["{one}"]', f'a[f"{_blank(one, at)}"]')
        layers.setdefault(f'b[f"{_blank(name, at)}"] = {text}', []).append(at)
    numbers = {tuple(one) for one in layers.values()}
    if len(numbers) != 1:
        return [*plain, *unrolled]
    (only,) = numbers
    counted = list(only) == [str(at) for at in range(len(only))]
    loop = f"range({len(only)})" if counted else f"({', '.join(only)},)"
    return [*plain, f"for n in {loop}:", *(f"    {line}" for line in layers)]


def _numbered(name: str, at: str) -> bool:
    """Whether the first number in a name is this one."""
    found = re.search(r"(?:^|\.)(\d+)\.", name)
    return found is not None and found[1] == at


def _blank(name: str, at: str) -> str:
    return re.sub(rf"(^|\.){at}\.", r"\1{n}.", name, count=1)


def _source(lines: Sequence[str]) -> str:
    """With the functions that it calls, so that it stands alone."""
    body = "\n".join(f"    {line}" for line in lines)
    functions = [
        one
        for module in (layouts, own_moves)
        for one in vars(module).values()
        if isinstance(one, FunctionType) and re.search(rf"\b{one.__name__}\(", body)
    ]
    gap = "\n\n" if functions else ""
    written = "\n\n".join(inspect.getsource(one).rstrip() + "\n" for one in functions)
    return (
        '"""Weights of A as B takes them; written and tried by attnlab diff."""\n\n'
        f"import torch\nfrom torch import Tensor\n\n\n{written}{gap}"
        "def convert(a: dict[str, Tensor]) -> dict[str, Tensor]:\n"
        f"    b = {{}}\n{body}\n"
        "    return {name: one.detach().clone().contiguous() for name, one in b.items()}\n"
    )


def state_of(module: nn.Module | None) -> dict[str, Tensor]:
    """Its parameters, copied."""
    if module is None:
        return {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: one.detach().clone() for name, one in named}


def load(module: nn.Module | None, state: Mapping[str, Tensor]) -> None:
    """Into its parameters, those that are named."""
    if module is None:
        return
    own = dict(module.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, one in state.items():
            own[name].copy_(one)
