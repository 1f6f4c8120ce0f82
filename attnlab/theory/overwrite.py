"""The delta rule as a memory: a value replaces the one before it at its key, and is not added.

Axes in the formulas: S is a state of keys by values, k a key of length 1, v a value, β a strength.
"""

import numpy as np
import torch

from attnlab.config import setting, settings
from attnlab.kernels import delta
from attnlab.reports.report import Plot, Series
from attnlab.theory.claim import EQUAL, About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import Array, largest, normal, orthonormal

ROUNDS = 8  # in the picture


@settings
class DeltaRuleOverwrites(Claim):
    adds: bool = setting(False, about="add to what is held, as plain linear attention does")
    strength: float = setting(1.0, low=0, high=1, about="β: the part of a value that is replaced")
    rounds: int = setting(3, low=2, high=8, about="how often each key is written")
    keys: int = setting(6, low=2, high=32, about="keys, at right angles")
    width: int = setting(12, low=2, high=64, about="coordinates of a key; at least as many as keys")
    cases: int = setting(50, low=1, high=500, about="random cases to try", metadata={"live": 20})

    about = About(
        statement="The delta rule overwrites a key's value where plain linear attention adds: a "
        "key that is written again with β = 1 gives its last value alone, exactly, and keys at "
        "right angles to it keep theirs.",
        formula="S′ = (I − β k kᵀ) S + β k vᵀ,  ‖k‖ = 1   ⇒   S′ᵀ k = (1 − β) Sᵀ k + β v\n"
        "k′·k = 0   ⇒   S′ᵀ k′ = Sᵀ k′\n"
        "S′ = S + β k vᵀ   ⇒   S′ᵀ k = Sᵀ k + β v",
        derivation="""Read at any q: S′ᵀ q = Sᵀ q + β (k·q) (v − Sᵀ k). What is written is the
            difference of the new value and of what is held at the key, hence the name. At q = k
            the factor k·q is 1, and the first formula follows; with β = 1 nothing of the old value
            is left. At right angles to k the factor is 0, and nothing changes.

            Plain linear attention writes v itself. Nothing is subtracted, so after three writes at
            one key the state gives the sum of three values there, and only a new key gives its
            value back.

            Between these two cases a key k′ that is neither k nor at right angles to it is
            disturbed: what it gives moves by β (k·k′) (v − Sᵀ k). A state of width d holds d keys
            at right angles and no more, so overwriting exactly is one thing, and remembering a
            long text another. A decay α multiplies S first: then (1 − β) α Sᵀ k + β v is read.""",
        expected="holds",
        knob=Knob("plain linear attention: values are added", {"adds": True}),
    )

    def run(self) -> Evidence:
        cases = [self._case(case) for case in range(self.cases)]
        last, others, mixed, added = zip(*cases, strict=True)
        rounds = list(range(1, ROUNDS + 1))
        return Evidence(
            kind="construction",
            trials=self.cases,
            measures=[
                Measure("|read at a key − its last value|", max(last), "≤", EQUAL),
                Measure("|read at the other keys, moved by a write|", max(others), "≤", EQUAL),
                Measure("|Sᵀk after − ((1−β) Sᵀk + β v)|, any keys", max(mixed), "≤", EQUAL),
                Measure("|read after plain addition − β · sum of values|", max(added), "≤", EQUAL),
            ],
            picture=Plot(
                title="What is read at a key, after it was written again and again",
                x="times that each key was written",
                y="distance from its last value, of that value",
                series=[
                    Series(name=name, x=rounds, y=[self._distance(adds, n) for n in rounds])
                    for name, adds in (("delta rule", False), ("plain addition", True))
                ],
            ),
        )

    def _case(self, case: int) -> tuple[float, float, float, float]:
        """The largest differences: from the last value, at other keys, from the formula, and of
        plain addition from the sum of the values."""
        keys = orthonormal(self.seed, f"keys {case}", self.keys, self.width)
        values = normal(self.seed, f"values {case}", self.rounds, self.keys, self.width)
        text = np.tile(keys, (self.rounds, 1)), values.reshape(-1, self.width)
        state = self._write(*text)
        last = largest(keys @ state - values[-1])
        added = largest(keys @ self._write(*text, adds=True) - self.strength * values.sum(0))
        again = self._write(keys[:1], values[0, :1], state)
        others = largest(keys[1:] @ (again - state))

        anywhere = normal(self.seed, f"any keys {case}", self.keys, self.width)
        anywhere /= np.linalg.norm(anywhere, axis=1, keepdims=True)
        before = self._write(anywhere, values[0])
        key, value = anywhere[:1], values[1, :1]
        after = self._write(key, value, before)
        read = (1 - self.strength) * key @ before + self.strength * value
        return last, others, largest(key @ after - read), added

    def _distance(self, adds: bool, rounds: int) -> float:
        keys = orthonormal(self.seed, "keys 0", self.keys, self.width)
        values = normal(self.seed, "picture", ROUNDS, self.keys, self.width)[:rounds]
        text = np.tile(keys, (rounds, 1)), values.reshape(-1, self.width)
        state = self._write(*text, adds=adds)
        apart = np.linalg.norm(keys @ state - values[-1], axis=1)
        return float((apart / np.linalg.norm(values[-1], axis=1)).mean())

    def _write(
        self, keys: Array, values: Array, state: Array | None = None, adds: bool | None = None
    ) -> Array:
        """The state after these were written to it, one after another, by the laboratory's own."""
        if self.adds if adds is None else adds:
            added = self.strength * keys.T @ values
            return added if state is None else state + added
        k, v = (torch.from_numpy(one)[None, None] for one in (keys, values))
        strength = torch.full((1, 1, len(keys)), self.strength, dtype=torch.float64)
        held = None if state is None else torch.from_numpy(state)[None, None]
        found: Array = delta.recurrent(k, k, v, 0 * strength, strength, held)[1][0, 0].numpy()
        return found
