"""What code is declared to do, what the audit found, and how the two compare."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["pass", "fail", "not applicable", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class Contract:
    """None: not declared, so it is measured and reported, and fails only if wrong in any reading.

    `window` counts the keys a query sees, its own included.
    """

    causal: bool | None = None
    window: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    positions: Literal["none", "absolute", "relative", "rotary", "alibi"] | None = None
    rope_layout: Literal["half-split", "interleaved"] | None = None
    rope_base: float | None = None
    rope_fraction: float | None = None
    scale: float | None = None  # on query · key
    dtype: Literal["bfloat16"] | None = None  # that it must stand, besides the usual ones
    layout: Literal["btc", "tbc", "bhtd", "bthd"] | None = None  # of x, or of q, k and v
    cache: bool | None = None
    padding: bool | None = None

    def __post_init__(self) -> None:
        for name in ("window", "heads", "kv_heads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is declared as {value}; it counts something: 1 or more")


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
