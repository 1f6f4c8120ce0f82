"""What code is declared to do, what the audit found, and the one verdict that follows from both.

Every reader of a certificate (command line, page, HTML, pytest, `assert_contract`, sweep, checks)
asks `Certificate.verdict`, `.exit_code` and `.allowed()`, and decides nothing itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from attnlab.config import setting, settings
from attnlab.json_files import finite

Verdict = Literal["pass", "fail", "not applicable", "cannot tell"]  # of one property
Conclusion = Literal["pass", "fail", "incomplete"]  # of a certificate
# "error": there is no certificate, because attnlab itself failed
EXIT_CODES: Mapping[str, int] = {"pass": 0, "fail": 1, "incomplete": 2, "error": 3}

# A declared field is established when these properties pass.
ESTABLISHED_BY: Mapping[str, tuple[str, ...]] = {
    "causal": ("causality",),
    "window": ("window",),
    "heads": ("heads",),
    "kv_heads": ("heads",),
    "positions": ("positions",),
    "rope_layout": ("positions",),
    "rope_base": ("positions",),
    "rope_fraction": ("positions",),
    "rope_scaling": ("positions",),
    "rope_factor": ("positions",),
    "scale": ("scale",),
    "soft_cap": ("soft-cap",),
    "sink": ("sink",),
    "dtype": ("precision", "positions"),  # whose angles are what a half precision rounds
    "layout": ("batch", "heads"),  # time taken for rows fails the one, for heads the other
    "segments": ("packing",),
    "cache": ("cache",),
    "padding": ("padding",),
}


@settings
class Contract:
    """None: not declared, so it is measured and reported, and fails only if wrong in any reading.

    `window` counts the keys a query attends to, including its own. False demands nothing: code
    that need not be causal may be.
    """

    causal: bool | None = setting(None, about="no output depends on a later input")
    window: int | None = setting(
        None,
        low=1,
        because="it counts the query's own key",
        about="keys a query attends to, including its own",
    )
    heads: int | None = setting(None, low=1, about="query heads")
    kv_heads: int | None = setting(None, low=1, about="key/value heads")
    positions: Literal["none", "absolute", "relative", "rotary", "alibi"] | None = setting(
        None, about="how the code knows the order of tokens"
    )
    rope_layout: Literal["half-split", "interleaved"] | None = setting(
        None, about="which coordinates rotary positions rotate together"
    )
    rope_base: float | None = setting(None, above=1, about="base of the rotary frequencies")
    rope_fraction: float | None = setting(
        None, above=0, high=1, about="fraction of a head's coordinates that rotates"
    )
    rope_scaling: Literal["none", "linear", "ntk", "yarn", "llama3"] | None = setting(
        None, about="which rotations are slower, so that longer texts can be read"
    )
    rope_factor: float | None = setting(
        None, low=1, because="rates are divided by it", about="how much slower they are"
    )
    scale: float | None = setting(None, above=0, about="factor on query · key")
    soft_cap: float | None = setting(
        None, above=0, about="bound on scores: soft_cap · tanh(score / soft_cap)"
    )
    sink: Literal["none", "fixed", "learned"] | None = setting(
        None, about="one more score a head, which takes weight: 0, or what a parameter holds"
    )
    dtype: Literal["bfloat16"] | None = setting(
        None, about="dtype that must work besides float32 and float64"
    )
    layout: Literal["btc", "tbc", "bhtd", "bthd"] | None = setting(
        None, about="order of the axes of x, or of q, k and v"
    )
    segments: Literal["apart", "alone"] | None = setting(
        None, about="texts in one row that it is told of: apart, or each as if it were alone"
    )
    cache: bool | None = setting(None, about="it decodes with a KV cache")
    padding: bool | None = setting(None, about="it takes a padding mask")

    def declared(self) -> dict[str, Any]:
        """The declared fields and their values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def demanded(self) -> dict[str, Any]:
        """The declared fields that a certificate has to establish."""
        return {name: value for name, value in self.declared().items() if value is not False}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one property came to. `measured` and `declared` are plain JSON values."""

    name: str
    verdict: Verdict
    aspect: str = ""  # of a failure: which of the things that the property asks for
    detail: str  # in one sentence: what was done and seen
    measured: Any = None
    declared: Any = None
    example: Any = None  # of a failure: what `audit/repro/smallest.py` needs to repeat it
    besides: "tuple[Finding, ...]" = ()  # failures of other aspects; in a certificate beside it

    @property
    def title(self) -> str:
        """The property, and of several failures which: `cache (single steps)`."""
        return f"{self.name} ({self.aspect})" if self.aspect else self.name


@dataclass(frozen=True, kw_only=True)
class Certificate:
    target: str
    contract: Contract
    findings: tuple[Finding, ...]
    influence: tuple[tuple[float, ...], ...] = ()  # how much output i moves with input j
    layers: int = 1  # applications of attention: a window reaches further through each
    unfinished: str = ""  # why the audit ended before everything was examined

    @property
    def verdict(self) -> Conclusion:
        """A pass needs a property that passes, none that fails, every demanded field, an end."""
        verdicts = {finding.verdict for finding in self.findings}
        if "fail" in verdicts:
            return "fail"
        whole = not self.unestablished and not self.unfinished
        return "pass" if "pass" in verdicts and whole else "incomplete"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict == "fail")

    @property
    def unestablished(self) -> tuple[str, ...]:
        """Demanded fields that were neither established nor broken."""
        return tuple(name for name in self.contract.demanded() if self._open(name))

    def _open(self, field: str) -> list[str]:
        """Why a field is not established, a reason for each property; none if one of them fails."""
        found = {finding.name: finding for finding in self.findings}  # of several, all fail
        deciding = {name: found.get(name) for name in ESTABLISHED_BY[field]}
        if any(one is not None and one.verdict == "fail" for one in deciding.values()):
            return []
        return [
            f"{name} was not examined" if one is None else one.detail
            for name, one in deciding.items()
            if one is None or one.verdict != "pass"
        ]

    @property
    def shortfall(self) -> str:
        """Why the audit ended early, and which declared fields were not established; or empty."""
        every = (f"{self.written(name)} ({self._open(name)[0]})" for name in self.unestablished)
        listed = ", ".join(every)
        lacks = [f"declared and not established: {listed}"] if listed else []
        return "; ".join([*([self.unfinished] if self.unfinished else []), *lacks])

    @property
    def reason(self) -> str:
        """Why it is no pass, in one line; empty for a pass."""
        known = [f"{one.title}: {one.detail}" for one in self.failed]
        known += [self.shortfall] if self.shortfall else []
        if known or self.verdict == "pass":
            return "; ".join(known)
        unclear = (one.detail for one in self.findings if one.verdict == "cannot tell")
        return f"no property passes: {next(unclear, 'there is nothing to examine')}"

    def written(self, field: str) -> str:
        """A declared field as it is declared: `window=8`."""
        value = getattr(self.contract, field)
        return f"{field}={value if isinstance(value, str) else json.dumps(value)}"

    def allowed(self) -> tuple[tuple[bool, ...], ...] | None:
        """Whether the contract lets output i move with input j, [t, t] as `influence`.

        None where it says nothing of that. Through n layers a window of w reaches n (w - 1) + 1
        inputs.
        """
        if self.contract.causal is None and self.contract.window is None:
            return None
        side, window = len(self.influence), self.contract.window
        reach = side if window is None else self.layers * (window - 1) + 1
        both_ways = self.contract.causal is False
        return tuple(
            tuple(i - j < reach and (j <= i or both_ways) for j in range(side)) for i in range(side)
        )

    def __repr__(self) -> str:
        from attnlab.audit.table import text

        return text(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        from attnlab.audit.notebook import html

        return html(self)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target,
            "verdict": self.verdict,
            "reason": self.reason,
            **({"unfinished": self.unfinished} if self.unfinished else {}),
            "contract": self.contract.declared(),
            "unestablished": list(self.unestablished),
            "layers": self.layers,
            "checks": [
                {
                    "name": finding.name,
                    "aspect": finding.aspect,
                    "verdict": finding.verdict,
                    "measured": finite(finding.measured),
                    "declared": finite(finding.declared),
                    "detail": finding.detail,
                }
                for finding in self.findings
            ],
        }
