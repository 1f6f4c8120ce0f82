"""`attnlab check machines`: the verdicts are the same on every machine that can be imitated here.

On each the quick claims are settled, the kernels held to the definition, texts decoded through
every cache and the documents made again; the claims also with other seeds. What must not change is
a verdict, a greedy text, a document, or that an error is within its limit. Numbers do move, in
their last digits: the report says which, how far, and how near to its bound each came.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import files
from attnlab.checks import Tick
from attnlab.checks.machines import imitate, table
from attnlab.checks.machines.imitate import BASELINE, MACHINES, Machine
from attnlab.config import refusal, setting, settings
from attnlab.stop import stoppable

PARTS = ("claims", "kernels", "decoding", "documents")
SHORT_MACHINES = ("default", "no-compiler")
DOCS = Path(__file__).parents[3] / "docs"
# the measures of an outcome: as the claim stands, beyond its condition, with its knob turned
WHERE = {"measures": "", "outside": "beyond: ", "knob_measures": "knob: "}
# of a recorded number; below the second it is rounding, of which only the size is the same
RELATIVE, ROUNDING = 1e-6, 1e-9

Key = tuple[str, str]  # a claim and one of its measures


@settings
class MachinesCheck:
    machines: tuple[str, ...] = setting(
        (),
        choices=[machine.name for machine in MACHINES],
        about="machines to imitate; empty: all that this one can",
    )
    parts: tuple[str, ...] = setting(PARTS, choices=PARTS, about="what to compare")
    claims: tuple[str, ...] = setting(
        (), about="claims to run, by name or package.module:Class; empty: all quick ones"
    )
    seeds: int = setting(5, low=1, about="random seeds of the claims on the machine as it is")
    short: bool = setting(False, about="two machines, two seeds, a few cases of each part")
    patience: float = setting(
        900.0, above=0, because="it is in seconds", about="timeout of one machine in seconds"
    )
    docs: Path | None = setting(
        None, none="nowhere", about="existing folder in which to write machines.md"
    )

    def check(self) -> None:
        if self.docs is not None and not self.docs.is_dir():
            raise refusal(self, "docs", "it must be an existing folder")

    def run(self, tick: Tick) -> dict[str, Any]:
        tick("asking what this machine can imitate")
        chosen, left_out = imitate.usable(
            self.machines or (SHORT_MACHINES if self.short else tuple(m.name for m in MACHINES))
        )
        seeds = range(1, min(self.seeds, 2) if self.short else self.seeds)
        others = [imitate.with_seed(seed) for seed in seeds if "claims" in self.parts]
        every = [BASELINE, *chosen, *others]
        found: dict[str, Any] = {}

        def so_far() -> dict[str, Any]:
            done = [one for one in every if one.name in found]
            return judge(done, found, left_out) if done else {}

        with stoppable(lambda: f"{len(found)} of {len(every)} machines", so_far):
            for one in every:
                found[one.name] = self._found(one, tick)
        report = judge(every, found, left_out)
        if self.docs is not None:
            files.write_whole(self.docs / "machines.md", table.document(report).encode())
        return report

    def show(self, report: dict[str, Any], screen: Console) -> None:
        table.show(report, screen)

    def _found(self, machine: Machine, tick: Tick) -> dict[str, Any]:
        begin = time.perf_counter()
        parts = ["claims"] if machine.seed else list(self.parts)
        request = {"parts": parts, "claims": self.claims, "short": self.short}
        try:
            found = imitate.run(
                machine, request, self.patience, lambda text: tick(f"{machine.name}: {text}")
            )
        except imitate.Failed as error:
            found = {"error": str(error)}
        return {**found, "seconds": time.perf_counter() - begin}


def judge(
    machines: Sequence[Machine],
    found: Mapping[str, Mapping[str, Any]],
    left_out: Mapping[str, str],
) -> dict[str, Any]:
    """The report: a row for each machine, what moved, and the smallest margins."""
    here = found[BASELINE.name]
    numbers = {name: _numbers(one) for name, one in found.items()}
    moved = {name: _find_moved(numbers[BASELINE.name], there) for name, there in numbers.items()}
    moved[BASELINE.name] = set().union(*moved.values())  # elsewhere, so it might have here
    rows = []
    for machine in machines:
        there = found[machine.name]
        row = {
            "machine": machine.name,
            "imitated_by": machine.said,
            "error": there.get("error"),
            "verdicts_changed": list(_changes(here, there)),
            "examined": _examined(there),
            "numbers": len(numbers[machine.name]),
            "moved": len(moved[machine.name]),
            "smallest_margin": _smallest(numbers[machine.name], moved[machine.name], 1),
            "kernels": _worst(there.get("kernels", {})),
            "decoding": _worst(there.get("decoding", {}).get("errors", {})),
            "texts_changed": _texts_changed(here, there),
            "documents": _documents(there),
            "seconds": round(there["seconds"], 1),
        }
        rows.append({**row, "passed": _passed(row)})
    return {
        "hardware": here.get("hardware", {}),
        "not_imitated": dict(left_out),
        "machines": rows,
        "verdicts_changed": sum(len(row["verdicts_changed"]) for row in rows),
        "largest_moves": _largest_moves(numbers, {m.name for m in machines if not m.seed}),
        "smallest_margins": _smallest(numbers[BASELINE.name], moved[BASELINE.name], 8),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "passed": len(rows) > 1 and all(row["passed"] for row in rows),
    }


def _passed(row: Mapping[str, Any]) -> bool:
    wrong = (row["error"], row["verdicts_changed"], row["texts_changed"], row["documents"]["off"])
    within = all((row[part]["worst"] or 0) <= 1 for part in ("kernels", "decoding"))
    return row["examined"] > 0 and within and not any(wrong)


def _examined(there: Mapping[str, Any]) -> int:
    """Claims, cases and documents; where there are none, nothing can be wrong and nothing right."""
    decoded, made = there.get("decoding", {}), there.get("documents") or {"compared": 0}
    cases = [there.get("claims", {}), there.get("kernels", {}), decoded.get("errors", {})]
    return sum(map(len, cases)) + int(made["compared"])


def _numbers(there: Mapping[str, Any]) -> dict[Key, dict[str, Any]]:
    return {
        (name, measure["what"]): measure
        for name, claim in there.get("claims", {}).items()
        for measure in claim["measures"]
    }


def _find_moved(here: Mapping[Key, Any], there: Mapping[Key, Any]) -> set[Key]:
    """Whatever is not the same to the last bit."""
    return {
        key
        for key in here.keys() & there.keys()
        if any(here[key][end] != there[key][end] for end in ("value", "bound"))
    }


def _changes(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    for name, claim in there.get("claims", {}).items():
        base = here.get("claims", {}).get(name, {})
        pairs = (("verdict", claim.get("expected", base.get("verdict"))),)
        for which, wanted in (*pairs, ("knob_verdict", base.get("knob_verdict"))):
            if (now := claim.get(which)) != wanted:
                yield f"{name}, {which.replace('_', ' ')}: {wanted} → {now}"


def _smallest(
    numbers: Mapping[Key, Mapping[str, Any]], moved: set[Key], most: int
) -> list[dict[str, Any]]:
    """Of the numbers that move at all, those nearest to their bound."""
    known = [key for key in moved if key in numbers and numbers[key]["margin"] is not None]
    near = sorted(known, key=lambda key: (numbers[key]["margin"], key))[:most]
    return [{"claim": key[0], **_plain(numbers[key])} for key in near]


def _largest_moves(
    numbers: Mapping[str, Mapping[Key, Mapping[str, Any]]], names: set[str]
) -> list[dict[str, Any]]:
    """How far each number went on any machine, in parts of itself; rounding does not count."""
    moves = []
    for key, before in numbers[BASELINE.name].items():
        ways = [
            (abs(there[key]["value"] - before["value"]) / abs(before["value"]), name)
            for name in sorted(names)
            if key in (there := numbers[name]) and abs(before["value"]) > ROUNDING
        ]
        part, name = max(ways, default=(0.0, ""))
        if part > 0:
            after = numbers[name][key]["value"]
            move = {"claim": key[0], "what": key[1], "machine": name, "before": before["value"]}
            moves.append({**move, "after": after, "part": part})
    return sorted(moves, key=lambda move: -move["part"])[:8]


def _worst(cases: Mapping[str, float]) -> dict[str, Any]:
    """The case nearest to its limit, or furthest beyond it."""
    if not cases:
        return {"cases": 0, "worst": None, "case": None}
    case = max(cases, key=lambda name: cases[name])
    worst = cases[case]
    return {"cases": len(cases), "worst": min(worst, 1e300), "case": case}  # JSON has no infinity


def _texts_changed(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    before, after = (one.get("decoding", {}).get("texts", {}) for one in (here, there))
    return [case for case, text in after.items() if before.get(case, text) != text]


def read_record() -> dict[str, Any]:
    """The claims as they came out when the theory was written; none without the documents."""
    from attnlab.theory import record

    return {**record.read(DOCS)}


def _documents(there: Mapping[str, Any]) -> dict[str, Any]:
    """Documents that came out differently, and recorded numbers that are further off than told."""
    made = there.get("documents")
    if not made:
        return {"compared": 0, "off": []}
    now = _numbers(there)
    then = {
        (outcome["name"], where + measure["what"]): measure
        for outcome in read_record()["outcomes"]
        for kind, where in WHERE.items()
        for measure in outcome[kind]
    }
    both = now.keys() & then.keys()
    off = list(made["different"])
    for key, end in product(sorted(both), ("value", "bound")):
        before = float(then[key][end])  # infinity is text in JSON
        if not math.isclose(now[key][end], before, rel_tol=RELATIVE, abs_tol=ROUNDING):
            off.append(f"{key[0]}: {key[1]}, {end} {before:g} → {now[key][end]:g}")
    return {"compared": made["compared"] + len(both), "off": off}


def _plain(measure: Mapping[str, Any]) -> dict[str, Any]:
    return {n: None if v in (math.inf, -math.inf) or v != v else v for n, v in measure.items()}
