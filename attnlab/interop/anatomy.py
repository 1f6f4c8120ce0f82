"""What the tensors of a folder are: the parts of its attention by layer, its heads, its layout.

Only names, shapes and the config are read. What cannot be known is refused in one line: a
conversion that leaves out a layer, or takes a head for two, gives a model that computes nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnlab.interop.folder import FolderError, Found
from attnlab.interop.names import ATTENTION, Part, parts_of
from attnlab.interop.native import NATIVE, Form, Matrices, Native, Rotary

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
RECORD = "attnlab_layout"  # in a config.json: where the weights are laid out as no code reads them
# the ends of a matrix: one reads a token's vector, one gives it
INWARD, OUTWARD = ("q", "k", "v", "qkv", "gate", "up", "gate_up"), ("o", "down")
MATRICES = (*INWARD, *OUTWARD, "kv", "third")
SEPARATE = ("q", "k", "v")
NORMS = ("q_norm", "k_norm")
# beside the weights of an attention: buffers, and what a head has whatever its rows are
BESIDE = re.compile(r"(rotary_emb\.)?inv_freq|bias|masked_bias|causal_mask|sinks")

Names = dict[tuple[str, str], str]  # of a part and its kind, such as ("q", "bias")


def of_config(plain: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of these fields that is a count."""
    found = (plain.get(name) for name in names)
    return next((one for one in found if type(one) is int and one > 0), None)


@dataclass(frozen=True)
class Anatomy:
    tensors: Mapping[str, Found]
    plain: Mapping[str, Any]  # of its config.json; empty if there is none
    place: str  # as it is called in messages
    given_heads: int | None = None
    given_form: Form | None = None
    given_rotated: int | None = None

    @cached_property
    def parts(self) -> dict[str, Part]:
        return parts_of(self.tensors)

    @property
    def kind(self) -> str | None:
        found = self.plain.get("model_type")
        return found if isinstance(found, str) else None

    @property
    def native(self) -> Native | None:
        return NATIVE.get(self.kind or "")

    @property
    def recorded(self) -> Mapping[str, Any]:
        found = self.plain.get(RECORD)
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def layers(self) -> list[Names]:
        """Of each layer the parts of its attention."""
        found: dict[int | None, Names] = {}
        first: dict[int | None, str] = {}
        known = (*SEPARATE, *NORMS, "qkv", "kv", "o")
        for name, part in self.parts.items():
            first.setdefault(part.layer, name)
            layer = found.setdefault(part.layer, {})
            if part.name in known:
                layer[part.name, part.kind] = name
        if any(("q", "weight") in one or ("qkv", "weight") in one for one in found.values()):
            outside = found.get(None, {})
            if ("q", "weight") not in outside and ("qkv", "weight") not in outside:
                found.pop(None, None)  # embeddings and the head
        for number, names in found.items():
            where = "it" if number is None else f"layer {number}"
            self._refuse_partial(where, names, first[number])
        self._refuse_count(len(found))
        self._refuse_several(list(found.values()))
        return list(found.values())

    def _refuse_partial(self, where: str, names: Names, example: str) -> None:
        weights = [part for part, kind in names if kind == "weight"]
        there = [one for one in (*SEPARATE, "qkv", "kv") if one in weights]
        if there == ["qkv"]:
            return
        lost = [one for one in SEPARATE if one not in there]
        alike = [n for n in self.tensors if lost and parts_of([n])[n].name in lost]
        several = [name for name in alike if self.parts[name].name == name]
        if len(several) > 1:
            raise self.refused(
                f"{several[0]} and {several[1]} seem to be the same; they are of several models, "
                "and one is converted at a time"
            )
        if not there:
            raise self.refused(
                f"{where} has no queries, keys and values by known names (it has {example})"
            )
        if "qkv" in there or "kv" in there:
            raise self.refused(
                f"{where} has weights of {', '.join(there)}; known are q, k, v or all in one"
            )
        if lost:
            raise self.refused(
                f"{where} has a weight of {', '.join(there)} and none of {', '.join(lost)}"
            )

    def _refuse_count(self, found: int) -> None:
        wanted = of_config(self.plain, LAYERS)
        if wanted is not None and wanted != found:
            raise self.refused(f"config.json says {wanted} layers, and {found} have attention")

    def _refuse_several(self, layers: list[Names]) -> None:
        """Layers of an encoder beside those of a decoder, or one unlike the others."""
        blank = [
            {key: re.sub(r"(^|\.)\d+\.", r"\1*.", name, count=1) for key, name in one.items()}
            for one in layers
        ]
        for one in blank:
            for key in one.keys() & blank[0].keys():
                if one[key] != blank[0][key]:
                    raise self.refused(
                        f"layers are named differently, {one[key]} and {blank[0][key]}; they are "
                        "of several models, and one is converted at a time"
                    )

    @property
    def rotary(self) -> Rotary | None:
        """Which pairs turn now, if its config.json says so."""
        found = self.recorded.get("rotary")
        found = self._own_positions.get("layout", found)
        if found == "interleaved" or found == "half-split":
            made: Rotary = found
            return made
        return None

    @property
    def _own_positions(self) -> Mapping[str, Any]:
        """Of a folder of our own type the settings of its positions."""
        found: Any = self.plain if self.kind == "attnlab" else {}
        for name in ("settings", "positions"):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def head_name(self, table: str) -> str:
        """What the weights of a head are called, if they are not the table of embeddings."""
        if self.kind == "attnlab":
            return "head.weight"
        known = {"tok_embeddings.weight": "output.weight", "embed_in.weight": "embed_out.weight"}
        return next((head for one, head in known.items() if table.endswith(one)), "lm_head.weight")

    @property
    def is_fused(self) -> bool:
        return ("qkv", "weight") in self.layers[0]

    @cached_property
    def form(self) -> Form:
        """How queries, keys and values are stored now."""
        if not self.is_fused:
            if self.given_form not in (None, "separate"):
                raise self.refused(f"fused={self.given_form}, and q, k and v are separate in it")
            return "separate"
        native = self.native
        known = self.recorded.get("qkv")
        if known is None and native is not None and native.qkv != "separate":
            known = native.qkv
        if self.given_form is not None and known not in (None, self.given_form):
            raise self.refused(f"fused={self.given_form}, and a {self.kind} model has them {known}")
        found = known or self.given_form
        if found not in ("by-kind", "by-group"):
            raise self.refused(
                "in which order its queries, keys and values are fused cannot be seen; give "
                "fused=by-kind (all q, all k, all v) or fused=by-group (for each key/value head "
                "its q, k, v)"
            )
        made: Form = found
        return made

    @cached_property
    def width(self) -> int:
        """Of a token's vector."""
        tables = [n for n, one in self.parts.items() if one.name == "embed" and one.layer is None]
        norms = [n for n, one in self.parts.items() if one.name.startswith("norm ")]
        for name in (*tables, *norms):
            if self.tensors[name].shape:
                return self.tensors[name].shape[-1]
        raise self.refused("neither embeddings nor norms are there, so its width is not known")

    @cached_property
    def matrices(self) -> Matrices:
        """Which way matrices are stored, by all of those that are not square."""
        votes: dict[Matrices, str] = {}
        for name, part in self.parts.items():
            shape = self.tensors[name].shape
            inward = part.name in INWARD
            if part.kind == "bias" or len(shape) != 2 or not (inward or part.name in OUTWARD):
                continue
            if shape[0] != shape[1]:
                if self.width not in shape:
                    raise self._misfit(name)
                turned = (shape[0] == self.width) is inward
                votes.setdefault("in-out" if turned else "out-in", name)
        if len(votes) == 2:
            raise self.refused(
                f"{votes['in-out']} is stored [in, out] and {votes['out-in']} [out, in]"
            )
        if votes:
            return next(iter(votes))
        known = self.recorded.get("matrices") or (self.native and self.native.matrices)
        if known not in ("in-out", "out-in"):
            raise self.refused("all of its matrices are square, so which way they are is not seen")
        made: Matrices = known
        return made

    def rows(self, name: str) -> int:
        """Of a matrix that reads a token's vector."""
        shape = self.tensors[name].shape
        if len(shape) != 2:
            raise self.refused(f"{name} has shape {list(shape)}; a matrix is known")
        if shape[1 if self.matrices == "out-in" else 0] != self.width:
            raise self._misfit(name)
        return shape[0 if self.matrices == "out-in" else 1]

    @cached_property
    def heads(self) -> int:
        said = of_config(self.plain, HEADS)
        if said is not None and self.given_heads not in (None, said):
            raise self.refused(f"heads={self.given_heads}, and its config.json says {said}")
        found = said or self.given_heads
        if found is None:
            where = "config.json has no heads" if self.plain else "there is no config.json"
            raise self.refused(f"{where}; give it: heads=8")
        return found

    @cached_property
    def head_width(self) -> int:
        """By the rows of queries; of fused ones by what the output projection reads."""
        said, found = of_config(self.plain, ("head_dim",)), set[int]()
        for names in self.layers:
            if not self.is_fused:
                read, what = self.rows(names["q", "weight"]), names["q", "weight"]
            elif ("o", "weight") in names:
                what = names["o", "weight"]
                read = self.tensors[what].shape[1 if self.matrices == "out-in" else 0]
            elif said is not None:
                found.add(said)
                continue
            else:
                raise self.refused("no output projection is known, so the head width is not")
            if read % self.heads:
                raise self.refused(f"{what} has {read} rows, no multiple of {self.heads} heads")
            found.add(read // self.heads)
        if said is not None:
            found.add(said)
        if len(found) > 1:
            many = " and ".join(map(str, sorted(found)))
            raise self.refused(f"its heads are {many} wide, by its config.json and its weights")
        return found.pop()

    @cached_property
    def kv_heads(self) -> int:
        found = set[int]()
        for names in self.layers:
            for part in ("qkv",) if self.is_fused else ("k", "v"):
                name = names[part, "weight"]
                count, rest = divmod(self.rows(name), self.head_width)
                if self.is_fused:
                    count, odd = divmod(count - self.heads, 2)
                    rest = rest or odd
                if rest or count < 1 or self.heads % count:
                    raise self.refused(
                        f"{name} has {self.rows(name)} rows, which is no number of heads "
                        f"{self.head_width} wide that {self.heads} query heads can share"
                    )
                found.add(count)
        said = of_config(self.plain, KV_HEADS)
        if said is not None:
            found.add(said)
        if len(found) > 1:
            many = " and ".join(map(str, sorted(found)))
            raise self.refused(f"it has {many} key/value heads, by its config.json and its weights")
        return found.pop()

    @cached_property
    def rotated(self) -> int:
        """How many coordinates of a head turn."""
        rope = self.plain.get("rope_parameters")
        rope = rope if isinstance(rope, Mapping) else {}
        groups = [one for one in rope.values() if isinstance(one, Mapping)] or [rope]
        said = [one.get("partial_rotary_factor") for one in groups]
        if any(one is not None for one in said):
            said = [1.0 if one is None else one for one in said]
        said += [self.plain.get(name) for name in ("partial_rotary_factor", "rotary_pct")]
        parts = [one for one in said if isinstance(one, int | float)]
        turned = {int(self.head_width * one) for one in parts}
        if isinstance(part := self._own_positions.get("fraction"), float):
            turned.add(2 * (int(self.head_width * part) // 2))
        if (width := of_config(self.plain, ("rotary_dim",))) is not None:
            turned.add(width)
        if self.native and self.native.whole and turned - {self.head_width}:
            raise self.refused(
                f"its config.json says that {min(turned)} of {self.head_width} coordinates of a "
                f"head turn, and the code of a {self.kind} model turns all"
            )
        if not turned:
            part = self.native.part if self.native else None
            if part is not None:
                turned.add(int(self.head_width * part))
        if self.given_rotated is not None:
            turned.add(self.given_rotated)
        if not turned:
            raise self.refused(
                "how many coordinates of a head turn is not known; give it: "
                f"rotated={self.head_width} if all do"
            )
        found = turned.pop()
        if turned or found % 2 or not 2 <= found <= self.head_width:
            many = " and ".join(map(str, sorted({found, *turned})))
            raise self.refused(
                f"{many} coordinates of a head turn; it is one even number up to {self.head_width}"
            )
        return found

    def norm_heads(self, name: str, heads: int) -> int:
        """Of queries or keys: how many heads a gain of theirs has rows for."""
        (rows,) = self.tensors[name].shape or (0,)
        if rows == heads * self.head_width:
            return heads
        if rows == self.head_width:
            return 1
        raise self.refused(f"{name} has {rows} rows; a head is {self.head_width} wide")

    def refuse_strangers(self, touched: set[str], *, attention: bool) -> None:
        """What belongs to a weight that would change, or acts on what its rows are."""
        modules = {_module(name) for name in touched}
        around = {one.rpartition(".")[0] for one in modules} if attention else set()
        known = {*MATRICES, *NORMS, "embed", "positions", "head"}
        for name, part in self.parts.items():
            if name in touched or part.name in known:
                continue
            holder = next((one for one in modules if name.startswith(f"{one}.")), None)
            if holder is not None:
                raise self.refused(f"{name} belongs to a weight that would change; it is not known")
            inside = next((one for one in around if one and name.startswith(f"{one}.")), None)
            if inside is None or BESIDE.fullmatch(name.removeprefix(f"{inside}.")):
                continue
            if part.name.startswith("norm ") and not ATTENTION.search(inside.rpartition(".")[2]):
                continue
            raise self.refused(f"{name} acts on attention in a way that is not known")

    def of_layers(self, *wanted: str) -> Iterator[str]:
        """Names of these parts in all layers."""
        for name, part in self.parts.items():
            if part.name in wanted and part.layer is not None:
                yield name

    def _misfit(self, name: str) -> FolderError:
        return self.refused(
            f"{name} is {list(self.tensors[name].shape)}, and a token's vector has {self.width}"
        )

    def refused(self, why: str) -> FolderError:
        return FolderError(f"{self.place}: {why}")


def _module(name: str) -> str:
    return re.sub(r"[._](weight|bias)$", "", name)
