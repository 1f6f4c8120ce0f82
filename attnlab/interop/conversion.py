"""What a conversion is asked for, and how the attention of a layer is written down.

Axes: r rows of a weight or bias, heads · d of them; d head width. Inside, a matrix is [out, in].
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attnlab.config import setting, settings
from attnlab.interop import layouts
from attnlab.interop.anatomy import NORMS, SEPARATE
from attnlab.interop.native import Form, Matrices, Rotary
from attnlab.interop.rules import turned

Parts = dict[tuple[str, str], Tensor]  # by part and kind, such as ("q", "bias")


@settings
class Conversion:
    """What is asked for, and what the folder has now where nothing else says it."""

    rotary: Rotary | None = setting(None, about="pairs that turn together, from now on")
    qkv: Form | None = setting(None, about="queries, keys and values, separate or fused")
    kv_heads: int | None = setting(None, low=1, about="key/value heads, from now on")
    head: Literal["tied", "untied"] | None = setting(None, about="whether the head is the table")
    matrices: Matrices | None = setting(None, about="which way matrices are stored")
    heads: int | None = setting(None, low=1, about="query heads it has")
    rotated: int | None = setting(None, low=2, about="coordinates of a head that turn")
    fused: Form | None = setting(None, about="in which order q, k and v are fused now")

    @property
    def asked(self) -> dict[str, str | int]:
        """The moves, by name."""
        names = ("rotary", "qkv", "kv_heads", "head", "matrices")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class Stored:
    """How the attention of a layer is written down."""

    form: Form
    inward: bool  # matrices are [in, out]
    heads: int
    kv_heads: int

    def apart(self, given: Parts) -> Parts:
        """Queries, keys and values of their own, [out, in]."""
        found: Parts = {}
        for (part, kind), tensor in given.items():
            whole = turned(tensor) if self.inward and part not in NORMS else tensor
            if part != "qkv":
                found[part, kind] = whole
                continue
            split = layouts.split_by_kind if self.form == "by-kind" else layouts.split_by_group
            for one, rows in zip(SEPARATE, split(whole, self.heads, self.kv_heads), strict=True):
                found[one, kind] = rows
        return found

    def together(self, parts: Parts) -> Parts:
        """The inverse of `apart`."""
        found = {key: one for key, one in parts.items() if key[0] in NORMS}
        for kind in ("weight", "bias"):
            given = {one: parts[one, kind] for one in SEPARATE if (one, kind) in parts}
            if given and self.form != "separate":
                q, k, v = (given[one] for one in SEPARATE)
                if self.form == "by-kind":
                    given = {"qkv": layouts.fuse_by_kind(q, k, v)}
                else:
                    fused = layouts.fuse_by_group(q, k, v, self.heads, self.kv_heads)
                    given = {"qkv": fused}
            for part, tensor in given.items():
                found[part, kind] = turned(tensor) if self.inward else tensor
        return {key: one.contiguous() for key, one in found.items()}
