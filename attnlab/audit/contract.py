"""What code is declared to do, what the audit found, and how the two compare."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnlab.config import setting, settings

Verdict = Literal["pass", "fail", "not applicable", "cannot tell"]


@settings
class Contract:
    """None: not declared, so it is measured and reported, and fails only if wrong in any reading.

    `window` counts the keys a query sees, its own included.
    """

    causal: bool | None = setting(None, about="no output depends on a later input")
    window: int | None = setting(
        None,
        low=1,
        because="it counts the query's own key",
        about="keys a query attends to, its own included",
    )
    heads: int | None = setting(None, low=1, about="query heads")
    kv_heads: int | None = setting(None, low=1, about="key/value heads")
    positions: Literal["none", "absolute", "relative", "rotary", "alibi"] | None = setting(
        None, about="how the code knows the order of tokens"
    )
    rope_layout: Literal["half-split", "interleaved"] | None = setting(
        None, about="which coordinates rotary positions rotate together"
    )
    rope_base: float | None = setting(None, about="base of the rotary frequencies")
    rope_fraction: float | None = setting(None, about="part of a head's coordinates that rotates")
    scale: float | None = setting(None, about="factor on query · key")
    dtype: Literal["bfloat16"] | None = setting(
        None, about="dtype that must work besides float32 and float64"
    )
    layout: Literal["btc", "tbc", "bhtd", "bthd"] | None = setting(
        None, about="order of the axes of x, or of q, k and v"
    )
    cache: bool | None = setting(None, about="it decodes with a KV cache")
    padding: bool | None = setting(None, about="it takes a padding mask")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found. `measured` and `declared` are plain JSON values."""

    name: str
    verdict: Verdict
    detail: str  # in one sentence: what was done and seen
    measured: Any = None
    declared: Any = None
    example: Any = None  # of a failure: what `audit/repro/smallest.py` needs to repeat it


@dataclass(frozen=True, kw_only=True)
class Certificate:
    target: str
    contract: Contract
    findings: tuple[Finding, ...]
    influence: tuple[tuple[float, ...], ...] = ()  # how much output i moves with input j

    @property
    def verdict(self) -> Verdict:
        """Nothing that was examined to its end is no pass."""
        verdicts = {finding.verdict for finding in self.findings}
        if "fail" in verdicts:
            return "fail"
        return "pass" if "pass" in verdicts else "cannot tell"

    @property
    def reason(self) -> str:
        """Why nothing can be said of it, if nothing can."""
        open_ = (one.detail for one in self.findings if one.verdict == "cannot tell")
        return next(open_, "there is nothing to examine")

    def plain(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "verdict": self.verdict,
            "checks": [
                {
                    "name": finding.name,
                    "verdict": finding.verdict,
                    "measured": finite(finding.measured),
                    "declared": finite(finding.declared),
                    "detail": finding.detail,
                }
                for finding in self.findings
            ],
        }


def finite(value: Any) -> Any:
    """What JSON can hold: None where a number is infinite or none at all."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
