"""Where norms stand, of a token's vector and of queries and keys."""

from collections.abc import Iterator
from dataclasses import dataclass

from attnlab.doctor.case import Case, Change
from attnlab.doctor.cause import Cause
from attnlab.doctor.placing import PLACES

BEFORE = "x + f(norm(x))"


@dataclass(frozen=True)
class NormPlace(Cause):
    """Before a layer's attention and feed-forward, after the sum, or on what they give.

    The side that has them before is run with them elsewhere.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        for side, patient in (("a", case.a), ("b", case.b)):
            if not patient.norms:
                continue
            for place, shown in PLACES.items():
                a, b = (BEFORE, shown) if side == "a" else (shown, BEFORE)
                yield self.change(
                    a, b, setting="the place of norms", **{f"patch_{side}": {"norm_place": place}}
                )


@dataclass(frozen=True)
class QkNormPlace(Cause):
    """Queries and keys are normalised before they are turned, or after.

    The side on which they are turned last is run the other way round.
    """

    def propose(self, case: Case) -> Iterator[Change]:
        a, b = case.a, case.b
        if not a.head_norms or not b.head_norms or (a.rotation is None) == (b.rotation is None):
            return
        before, after = "before the rotation", "after it"
        setting = "where queries and keys are normalised"
        patch = {"head_norm": True}
        if a.rotation is not None:
            yield self.change(before, after, patch_a=patch, setting=setting)
        else:
            yield self.change(after, before, patch_b=patch, setting=setting)
