"""The plan of a conversion: what happens to each tensor, refused before anything is written.

What moves numbers and computes none is undone before its result is handed out, and the bits are
compared. Only the mean of key/value heads has no inverse: it is another function.

Cost: the attention of one layer at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnlab.interop import layouts
from attnlab.interop.anatomy import BESIDE, MATRICES, NORMS, SEPARATE, Anatomy, Names
from attnlab.interop.conversion import Conversion, Parts, Stored
from attnlab.interop.names import fused_leaf, leaf_of, parts_of, separate_leaf, with_leaf
from attnlab.interop.native import Form, Rotary
from attnlab.interop.rules import turned

Read = Callable[[str], Tensor]
FLOATS = ("F64", "F32", "F16", "BF16")
WIDER = {torch.float32: torch.float64, torch.float64: torch.float64}  # of others: float32


@dataclass(frozen=True)
class Move:
    do: Callable[[Parts], Parts]
    undo: Callable[[Parts], Parts] | None  # None: numbers are computed, and others are lost


class Plan:
    """What happens to each tensor; all that can be refused by names and shapes is refused here."""

    def __init__(self, anatomy: Anatomy, asked: Conversion) -> None:
        self.anatomy, self.asked = anatomy, asked
        self.renamed: dict[str, list[str]] = {}  # a name that was, and what it has become
        self.moves: list[Move] = []
        self.groups: dict[str, int] = {}  # a tensor of attention that changes, and its layer
        self.outputs: list[Names] = []  # of each layer that changes
        self.transposed: set[str] = set()
        self.table, self.added, self.dropped = "", "", ""  # of a head that is tied or untied
        self.changed: list[str] = []  # tensors that the folder has not, or not so; once written
        if anatomy.plain.get("quantization_config"):
            raise anatomy.refused("it is quantized; convert the model that it was made from")
        if asked.rotary or asked.qkv or asked.kv_heads:
            self._plan_attention()
        if asked.matrices:
            self._plan_matrices()
        if asked.head:
            self._plan_head()
        for name in (*self.groups, *self.transposed):
            if anatomy.tensors[name].dtype not in FLOATS:
                raise anatomy.refused(
                    f"{name} has dtype {anatomy.tensors[name].dtype}; it is one of "
                    + ", ".join(FLOATS)
                )

    @property
    def is_exact(self) -> bool:
        """Whether it is the same function, of which nothing is lost."""
        return all(one.undo is not None for one in self.moves)

    def stream(self, read: Read, copy: Read) -> Iterator[tuple[str, Tensor]]:
        """All tensors of the result; `copy` reads what stays as it is, of any dtype."""
        done: set[int] = set()
        for name in self.anatomy.tensors:
            if name in self.groups:
                layer = self.groups[name]
                if layer not in done:
                    done.add(layer)
                    yield from self._convert(layer, read)
            elif name in self.transposed:
                given = read(name)
                made = turned(given)
                self._compare(name, given, turned(made))
                self._note(name, made)
                yield name, made
            elif name == self.dropped:
                self._compare_heads(name, copy)
            else:
                yield name, copy(name)
            if name == self.table and self.added:
                made = copy(name)
                self._note(self.added, made)
                yield self.added, made

    def _convert(self, layer: int, read: Read) -> Iterator[tuple[str, Tensor]]:
        names = self._of_group(layer)
        given = {key: read(name) for key, name in names.items()}
        parts = self.before.apart(given)
        for move in self.moves:
            if move.undo is not None:
                parts = move.do(parts)
        # the mean is left out of what is undone
        after = self.after if self.is_exact else replace(self.after, kv_heads=self.before.kv_heads)
        back = after.apart(after.together(parts))
        for move in reversed(self.moves):
            if move.undo is not None:
                back = move.undo(back)
        again = self.before.together(back)
        for key, name in names.items():
            self._compare(name, given[key], again[key])
        for move in self.moves:
            if move.undo is None:
                parts = move.do(parts)
        for key, tensor in self.after.together(parts).items():
            name = self.outputs[layer][key]
            if names.get(key) != name or not _is_same(given[key], tensor):
                self._note(name, tensor)
            yield name, tensor

    def _note(self, name: str, made: Tensor) -> None:
        if not made.is_meta:
            self.changed.append(name)

    def _compare(self, name: str, was: Tensor, back: Tensor) -> None:
        """Nothing is written if what was moved does not come back."""
        if not _is_same(was, back):
            raise self.anatomy.refused(f"{name} does not come back bit for bit; nothing is written")

    def _compare_heads(self, name: str, copy: Read) -> None:
        head, table = copy(name), copy(self.table)
        if not head.is_meta and not (head.dtype == table.dtype and head.equal(table)):
            raise self.anatomy.refused(
                f"{name} is not the same as {self.table}; tied, its weights would be lost"
            )

    def _of_group(self, layer: int) -> Names:
        wanted = (*SEPARATE, "qkv", *(NORMS if self.moves else ()))
        return {key: n for key, n in self.anatomy.layers[layer].items() if key[0] in wanted}

    def _plan_attention(self) -> None:
        one, asked = self.anatomy, self.asked
        _ = one.layers, one.kv_heads  # refused here, if they are not known
        form = asked.qkv or one.form
        if asked.qkv == one.form:
            how = "separate" if one.form == "separate" else f"fused {one.form}"
            raise one.refused(f"its queries, keys and values are {how} already")
        if asked.qkv and "separate" not in (form, one.form) and one.kv_heads == 1:
            raise one.refused("with one key/value head both orders of fused weights are the same")
        if asked.rotary:
            self._plan_rotary(asked.rotary)
        if asked.kv_heads:
            self._plan_sharing(asked.kv_heads)
        inward = one.matrices == "in-out"
        turned_after = inward if asked.matrices is None else asked.matrices == "in-out"
        self.before = Stored(one.form, inward, one.heads, one.kv_heads)
        self.after = Stored(form, turned_after, one.heads, asked.kv_heads or one.kv_heads)
        for layer in range(len(one.layers)):
            names = self._of_group(layer)
            self.groups |= dict.fromkeys(names.values(), layer)
            self.outputs.append(self._named(names, form))
        one.refuse_strangers(set(self.groups), attention=bool(self.moves))
        self._refuse_names()

    def _plan_rotary(self, layout: Rotary) -> None:
        one = self.anatomy
        if one.rotary == layout:
            raise one.refused(f"its pairs are {layout} already, as its config.json says")
        if one.native is not None and one.native.rotary is None and one.rotary is None:
            raise one.refused(f"this {one.kind} model rotates nothing")
        heads = {"q": one.heads, "k": one.kv_heads}
        rotated = one.rotated
        if rotated == 2:
            raise one.refused(
                "2 coordinates of a head turn, which are one pair in both layouts: nothing moves"
            )
        for layer in one.layers:
            for (part, _), name in layer.items():
                if part in NORMS:
                    heads[part] = one.norm_heads(name, heads[part[0]])
        to_half, back = layouts.interleaved_to_half_split, layouts.half_split_to_interleaved

        def by(permute: Callable[[Tensor, int, int], Tensor]) -> Callable[[Parts], Parts]:
            return lambda parts: {
                (part, kind): permute(rows, heads[part], rotated) if part in heads else rows
                for (part, kind), rows in parts.items()
            }

        ways = [by(to_half), by(back)]
        self.moves.append(Move(*(ways if layout == "half-split" else reversed(ways))))

    def _plan_sharing(self, wanted: int) -> None:
        one = self.anatomy
        now = one.kv_heads
        if wanted == now:
            raise one.refused(f"it has {now} key/value heads already")
        if one.heads % wanted or max(now, wanted) % min(now, wanted):
            fitting = [
                n
                for n in range(1, one.heads + 1)
                if one.heads % n == 0 and max(now, n) % min(now, n) == 0 and n != now
            ]
            raise one.refused(
                f"kv_heads={wanted}: {now} key/value heads of {one.heads} query heads become "
                f"{', '.join(map(str, fitting)) or 'no other number'}"
            )
        shared = {"k", "v"}
        for layer in one.layers:
            for (part, _), name in layer.items():
                # a norm of each head has rows for one, whatever their number
                if part == "k_norm" and one.norm_heads(name, now) == now and one.heads > 1:
                    query = layer.get(("q_norm", "weight"))
                    if query and one.norm_heads(query, one.heads) == one.heads:
                        shared.add("k_norm")

        def by(change: Callable[[Tensor], Tensor]) -> Callable[[Parts], Parts]:
            return lambda parts: {
                (part, kind): change(rows) if part in shared else rows
                for (part, kind), rows in parts.items()
            }

        def mean(rows: Tensor) -> Tensor:
            """In a wider dtype, and rounded once."""
            most, least = max(now, wanted), min(now, wanted)
            wide = rows.to(WIDER.get(rows.dtype, torch.float32))
            return layouts.mean_heads(wide, most, least).to(rows.dtype)

        def repeat(rows: Tensor) -> Tensor:
            return layouts.repeat_heads(rows, now, wanted)

        self.moves.append(Move(by(mean), None) if wanted < now else Move(by(repeat), by(mean)))

    def _plan_matrices(self) -> None:
        one = self.anatomy
        if one.matrices == self.asked.matrices:
            raise one.refused(f"its matrices are {one.matrices} already")
        for name, part in one.parts.items():
            shape = one.tensors[name].shape
            if part.layer is None or len(shape) < 2 or name in self.groups:
                continue
            if part.name in MATRICES and len(shape) == 2:
                self.transposed.add(name)
            elif not BESIDE.fullmatch(name.rpartition(".")[2]):
                raise one.refused(f"{name} is no matrix that is known; it cannot be transposed")
        if not self.transposed and not self.groups:
            raise one.refused("it has no matrices in layers")
        one.refuse_strangers(self.transposed | set(self.groups), attention=False)

    def _plan_head(self) -> None:
        one = self.anatomy
        found = {
            word: [n for n, p in one.parts.items() if p.name == word and p.kind == "weight"]
            for word in ("embed", "head")
        }
        if len(found["embed"]) != 1 or len(found["head"]) > 1:
            raise one.refused("its table of embeddings has no name that is known")
        self.table = found["embed"][0]
        head = found["head"][0] if found["head"] else ""
        said = one.plain.get("tie_word_embeddings")
        if head and one.tensors[head].shape != one.tensors[self.table].shape:
            raise one.refused(f"{head} and {self.table} have different shapes")
        if not head and said is False:
            raise one.refused("it has no head, though its config.json says that it is untied")
        if self.asked.head == "tied":
            if not head:
                raise one.refused("its head is tied already: it has no weights for one")
            self.dropped = head
        elif head and said is True:
            raise one.refused(f"it has {head} and its config.json says tied; give head=tied first")
        elif head:
            raise one.refused(f"its head is untied already: it has {head}")
        else:
            self.added = one.head_name(self.table)
            if self.added in one.tensors:
                raise one.refused(f"{self.added} is there already")

    def _named(self, names: Names, form: Form) -> Names:
        """What the weights of a layer are called in the result."""
        kept = {key: name for key, name in names.items() if key[0] in NORMS}
        was = self.anatomy.is_fused
        if (form == "separate") is not was:
            made = {key: name for key, name in names.items() if key[0] not in NORMS}
        elif form == "separate":
            made = {
                (part, kind): with_leaf(name, separate_leaf(part, leaf_of(name)))
                for (fused, kind), name in names.items()
                if fused == "qkv"
                for part in SEPARATE
            }
        else:
            made = self._fused(names)
        return made | kept

    def _fused(self, names: Names) -> Names:
        one, made = self.anatomy, Names()
        for kind in ("weight", "bias"):
            there = [part for part in SEPARATE if (part, kind) in names]
            if there and there != list(SEPARATE):
                lost = next(part for part in SEPARATE if part not in there)
                raise one.refused(
                    f"{names[there[0], kind]} is there and no {kind} of {lost}; in one they are "
                    "all there or none"
                )
            dtypes = {one.tensors[names[part, kind]].dtype for part in there}
            if len(dtypes) > 1:
                raise one.refused(f"q, k and v have different dtypes: {', '.join(sorted(dtypes))}")
            if there:
                name = names["q", kind]
                native = one.native
                leaf = native.fused if native and native.fused else fused_leaf(leaf_of(name))
                made["qkv", kind] = with_leaf(name, leaf)
        return made

    def _refuse_names(self) -> None:
        """A name that would not be found again, or that another tensor has."""
        one = self.anatomy
        rest = [name for name in one.tensors if name not in self.groups]
        new = [name for layer in self.outputs for name in layer.values()]
        parts = parts_of([*rest, *new])
        for layer in self.outputs:
            for (part, kind), name in layer.items():
                if name in rest or (parts[name].name, parts[name].kind) != (part, kind):
                    raise one.refused(f"{part} would be called {name}, which is taken or not known")


def _is_same(one: Tensor, other: Tensor) -> bool:
    """In every bit; of tensors without memory as far as they go."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_meta:
        return True
    return one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8))
