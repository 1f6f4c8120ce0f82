"""`attnlab check doctor`: why two models differ is found on known pairs, and nothing is guessed.

Every pair of the development set is diagnosed. A pair counts if the verdict is right and the causes
are exactly the known ones, alone. The control: with the very causes of the pairs taken from the
doctor, every difference must be left unexplained, and none explained by something else.
"""

import time
from collections.abc import Sequence
from typing import Any

from attnlab import registry
from attnlab.checks import Tick
from attnlab.config import setting, settings
from attnlab.doctor.cause import Cause, all_causes
from attnlab.doctor.diagnosis import Diagnosis, diagnose
from attnlab.doctor.pairs.pairs import ALONE, OTHERS, SAME, SEVERAL, Pair
from attnlab.stop import stoppable

FAMILIES = {"alone": ALONE, "several": SEVERAL, "equal": SAME, "others": OTHERS}


@settings
class DoctorCheck:
    family: str | None = setting(
        None, choices=tuple(FAMILIES), none="all", about="pairs to diagnose: those of one family"
    )
    controls: int = setting(8, low=0, about="pairs diagnosed again without their causes")

    def run(self, tick: Tick) -> dict[str, Any]:
        chosen = FAMILIES if self.family is None else {self.family: FAMILIES[self.family]}
        pairs = [pair for some in chosen.values() for pair in some]
        begin, wrong = time.perf_counter(), list[dict[str, Any]]()
        done = 0

        def how_far() -> str:
            return f"{done} of {len(pairs)} pairs"

        with stoppable(how_far, lambda: {"wrong": wrong}):
            for done, pair in enumerate(pairs):
                tick(f"{done + 1}/{len(pairs)} {pair.name}")
                found = diagnose(pair.case())
                if not is_right(pair, found):
                    wrong.append(complaint(pair, found))
            blind = self._controls(pairs, tick)
        report = {
            "pairs": len(pairs),
            "right": len(pairs) - len(wrong),
            "score": (len(pairs) - len(wrong)) / len(pairs),
            "by_family": {name: len(some) for name, some in chosen.items()},
            "wrong": wrong,
            **blind,
            "seconds": round(time.perf_counter() - begin, 1),
        }
        return {**report, "passed": not wrong and not blind["controls_guessed"]}

    def _controls(self, pairs: Sequence[Pair], tick: Tick) -> dict[str, Any]:
        """Without its causes a difference has no explanation; whatever is named is a guess."""
        known = [pair for pair in pairs if pair.verdict == "explained"]
        step = max(1, len(known) // self.controls) if self.controls else 1
        guessed, chosen = [], known[::step][: self.controls]
        for pair in chosen:
            tick(f"control: {pair.name}")
            found = diagnose(pair.case(), causes=without(pair.causes))
            if found.equal or found.sets:
                guessed.append(complaint(pair, found))
        return {"controls": len(chosen), "controls_guessed": guessed}


def without(names: frozenset[str]) -> list[Cause]:
    return [one for one in all_causes() if registry.name_of("cause", one) not in names]


def is_right(pair: Pair, found: Diagnosis) -> bool:
    """The verdict, and the known causes and no others."""
    if verdict_of(found) != pair.verdict:
        return False
    named = [frozenset(one.cause for one in some) for some in found.sets]
    return named == ([pair.causes] if pair.verdict == "explained" else [])


def verdict_of(found: Diagnosis) -> str:
    return "equal" if found.equal else "explained" if found.sets else "unexplained"


def complaint(pair: Pair, found: Diagnosis) -> dict[str, Any]:
    return {
        "pair": pair.name,
        "expected": " ".join(sorted(pair.causes)) or pair.verdict,
        "found": " or ".join(" ".join(one.cause for one in some) for some in found.sets)
        or verdict_of(found),
    }
