"""What the window study found: tables, curves and sentences, computed from its results.

Axes: n held-out samples, s segments of positions.

Intervals of whole losses are over seeds. Those by position are over held-out samples, the seeds of
a model averaged: at each position the same characters are asked of every model.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlab.reports.report import Block, Plot, Section, Series, Table
from attnlab.statistics import Interval, mean_interval
from attnlab.studies.language import in_words, megabytes, paired, verdict, with_ends
from attnlab.studies.study import Findings

FULL = "full attention"
# jobs by name
SIZES, CACHES, COSTS = "sizes", "caches", "costs of a step"
MEMORY_NOISE = 0.1  # what is read from a process on a CPU is no better
Pattern = tuple[int | None, ...]  # keys that the layers see, again and again; None: all


def reach(pattern: Pattern, depth: int) -> int | None:
    """How many characters a prediction can depend on, the newest included; None: on all."""
    seen = [pattern[layer % len(pattern)] for layer in range(depth)]
    known = [keys for keys in seen if keys is not None]
    return sum(keys - 1 for keys in known) + 1 if len(known) == depth else None


def edges(context: int, depth: int, windows: Sequence[int]) -> list[int]:
    """Where the segments of positions end: at powers of two, windows, their reach, and half-way
    (on a log axis) from there to the end."""
    found = {1 << power for power in range(context.bit_length())}
    for keys in windows:
        far = depth * (keys - 1) + 1
        found |= {keys, far, half_way(far, context)}
    return sorted({edge for edge in found if 1 <= edge < context} | {context})


def half_way(start: int, end: int) -> int:
    return round(math.sqrt(start * end))


def findings(study: Any, results: dict[str, Any]) -> Findings:
    reading = Reading(study, results)
    return Findings(
        title="Sliding windows against full attention",
        question=(
            "What does a model lose, and what does it save, when a position sees only the last few "
            "characters instead of all of them?"
        ),
        answer=_answer(reading),
        sections=[_quality(reading), _where(reading), _costs(reading)],
        summary=_summary(reading),
    )


@dataclass(frozen=True)
class Reading:
    study: Any
    results: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return list(self.study.patterns())

    @property
    def others(self) -> list[str]:
        return [name for name in self.names if name != FULL]

    @property
    def context(self) -> int:
        return int(self.study.size.context)

    def narrowest(self, name: str) -> int:
        """The smallest window among its layers."""
        return min(keys for keys in self.study.patterns()[name] if keys is not None)

    def reach(self, name: str) -> int | None:
        """In characters; None when it reaches all of the sample."""
        far = reach(self.study.patterns()[name], self.study.size.depth)
        return None if far is None or far >= self.context else far

    def losses(self, name: str) -> dict[int, float]:
        return {s: self.results[f"{name}, seed {s}"]["loss"] for s in self.study.repeats}

    def difference(self, name: str) -> Interval:
        return paired(self.losses(name), self.losses(FULL))

    @cached_property
    def _rows(self) -> dict[str, Float[np.ndarray, "n s"]]:
        return {
            name: np.mean(
                [self.results[f"{name}, seed {s}"]["rows"] for s in self.study.repeats], axis=0
            )
            for name in self.names
        }

    def between(self, name: str, start: int, end: int) -> Float[np.ndarray, " n"]:
        """The mean loss of each held-out sample at positions start+1 … end, which are edges."""
        ends = self.study.edges()
        starts = [0, *ends[:-1]]
        lengths = np.array(
            [b - a if start <= a and b <= end else 0 for a, b in zip(starts, ends, strict=True)]
        )
        assert lengths.sum() == end - start, "a segment crosses the border"
        found: Float[np.ndarray, " n"] = self._rows[name] @ lengths / lengths.sum()
        return found

    def gap(self, name: str, start: int, end: int) -> Interval:
        """To full attention at these positions."""
        gaps = self.between(name, start, end) - self.between(FULL, start, end)
        return mean_interval(gaps.tolist())

    def later(self, name: str, start: int) -> Interval | None:
        """How the loss changes from the first half (on a log axis) after a position to the rest."""
        middle = half_way(start, self.context)
        if not start < middle < self.context:
            return None
        after = self.between(name, middle, self.context) - self.between(name, start, middle)
        return mean_interval(after.tolist())

    @property
    def octaves(self) -> list[tuple[int, int]]:
        """Positions 1, 2, 3–4, 5–8 …, each as (the one before, the last)."""
        ends = [
            1 << power for power in range(self.context.bit_length()) if 1 << power < self.context
        ]
        return list(zip([0, *ends], [*ends, self.context], strict=True))

    def cost(self, name: str, what: str) -> Any:
        return self.results[COSTS][name][what]

    def share(self, name: str, what: str) -> float | None:
        """Of full attention's cost."""
        mine, full = self.cost(name, what), self.cost(FULL, what)
        return None if mine is None or not full else mine / full

    def other_kernels(self, name: str) -> bool:
        """Whether it is computed in another way than full attention."""
        return bool(self.cost(name, "paths") != self.cost(FULL, "paths"))

    def turns_overlap(self, name: str) -> bool:
        """Whether some turn of either was as fast as some turn of the other."""
        mine, full = self.results[COSTS][name], self.results[COSTS][FULL]
        faster, slower = sorted((mine, full), key=lambda cost: cost["step_ms"])
        return bool(faster["slowest_ms"] >= slower["fastest_ms"])


def _mean(losses: dict[int, float]) -> Interval:
    return mean_interval(list(losses.values()))


def _answer(reading: Reading) -> str:
    parts = [f"that of {name} {in_words(reading.difference(name))}" for name in reading.others]
    listed = ", ".join(parts[:-1]) + " and " + parts[-1]
    over = f" (over {count} seeds)" if (count := len(reading.study.repeats)) > 1 else ""
    return (
        f"Full attention's held-out loss is {_mean(reading.losses(FULL)).mean:.3f} nats a "
        f"character; {listed}{over}. {_cost_answer(reading, reading.others[0])}"
    )


def _cost_answer(reading: Reading, name: str) -> str:
    memory, far = reading.share(name, "memory"), reading.reach(name)
    cache = reading.results[CACHES][name][0] / reading.results[CACHES][FULL][0]
    spread = " (within the spread of the turns)" if reading.turns_overlap(name) else ""
    kernel = ", through another kernel" if reading.other_kernels(name) else ""
    time = f"{reading.share(name, 'step_ms'):.2f} of full attention's time a step"
    parts = [f"{time}{spread}{kernel}"]
    if memory is not None:
        alike = abs(memory - 1) < MEMORY_NOISE
        parts.append(f"{'about all' if alike else f'{memory:.2f}'} of its memory in training")
    costs = ", ".join(parts) + f" and {cache:.2f} of its cache after {reading.context:,} characters"
    if far is None:
        return f"The narrowest, {name}, takes {costs}."
    gap = reading.gap(name, far, reading.context)
    return (
        f"The narrowest, {name}, takes {costs}; beyond its reach of {far} characters its loss "
        f"{in_words(gap)}, an interval over held-out samples of these trained models that says "
        "nothing about other seeds."
    )


def _quality(reading: Reading) -> Section:
    size, seeds = reading.study.size, len(reading.study.repeats)
    over = (
        f"In brackets are 95 % intervals over {seeds} seeds; where one holds 0, they cannot tell. "
        "Each is at 95 % by itself: of several comparisons one may leave out 0 by chance."
        if seeds > 1
        else "There is one seed, so no difference can be told from chance."
    )
    rows = [
        [
            name,
            with_ends(_mean(reading.losses(name))),
            None if name == FULL else with_ends(reading.difference(name), sign="+"),
            None if name == FULL else verdict(reading.difference(name)),
        ]
        for name in reading.names
    ]
    text = f"""
        {len(reading.names)} transformers of {reading.results[SIZES]["parameters"]:,} parameters in
        {size.depth} layers are trained on the same {size.steps:,} batches of {size.batch} samples
        of {size.context:,} characters. They differ only in which keys a position attends to: with
        full attention its own and all before it; with a window of w, its own and the w−1 before it.
        The last two mix: three layers with the narrowest window and one with full attention, which
        comes last in each group of four layers or first.

        Two things may pull in opposite directions. A window cannot use what is further back. But it
        also need not learn to ignore it: that the nearest characters matter most is built in, while
        full attention has to find it out among {size.context:,} positions. This study does not
        measure the two apart.

        The loss is the mean of −log p(next character) over the held-out last tenth of the text, in
        nats. {over}
        """
    table = Table(
        title="Held-out loss",
        columns=["model", "held-out loss", "difference from full attention", "its loss is"],
        rows=rows,
        note="Differences are taken seed by seed: with a seed come the same batches for all.",
    )
    return Section(heading="How good", text=text, blocks=[table])


def _where(reading: Reading) -> Section:
    text = """
        At position t of a sample there are t characters to predict from. Up to position w a model
        with a window of w sees all of them, just as full attention does: a difference there is one
        of learning, not of sight. Beyond, a layer sees only the last w, but its inputs have
        themselves seen w−1 characters further back, and so on: through d layers something can reach
        a prediction from d·(w−1)+1 characters, the newest included. Beyond this reach nothing can,
        whatever has been learned. The vertical lines mark it.

        In the second picture the difference is taken on the same held-out characters. The bands and
        the intervals below are at 95 % over held-out samples of these trained models, the seeds of
        a model averaged. They say what other text of this kind would show of these very models, and
        nothing about other seeds. Samples count as independent, although they are neighbouring
        pieces of one text.
        """
    blocks: list[Block] = [_by_position(reading), _gaps_by_position(reading), _gap_table(reading)]
    if any(reading.reach(name) is not None for name in reading.others):
        blocks.append(_flat_table(reading))
    return Section(heading="Where", text=text, blocks=blocks)


def _by_position(reading: Reading) -> Plot:
    curves = {
        name: [float(reading.between(name, *octave).mean()) for octave in reading.octaves]
        for name in reading.names
    }
    everything = [loss for curve in curves.values() for loss in curve]
    series = [Series(name=n, x=_middles(reading), y=curve) for n, curve in curves.items()]
    return Plot(
        title="Held-out loss by position",
        x="position in the sample (characters to predict from)",
        y="loss, nats a character",
        series=[*series, *_reaches(reading, min(everything), max(everything))],
        log_x=True,
        note="Positions 1, 2, 3–4, 5–8 and so on are averaged, and drawn at their middle.",
    )


def _gaps_by_position(reading: Reading) -> Plot:
    series, ends = [], [0.0]
    for name in reading.others:
        gaps = [reading.gap(name, *octave) for octave in reading.octaves]
        lows, highs = [gap.low for gap in gaps], [gap.high for gap in gaps]
        y = [gap.mean for gap in gaps]
        series.append(Series(name=name, x=_middles(reading), y=y, low=lows, high=highs))
        ends += [end for end in (*lows, *highs) if end is not None]
    return Plot(
        title="Difference from full attention by position",
        x="position in the sample (characters to predict from)",
        y="loss minus that of full attention, nats",
        series=[*series, *_reaches(reading, min(ends), max(ends))],
        log_x=True,
        note="Above 0 the window loses, below it gains.",
    )


def _middles(reading: Reading) -> list[float]:
    return [math.sqrt((before + 1) * last) for before, last in reading.octaves]


def _reaches(reading: Reading, bottom: float, top: float) -> list[Series]:
    """Vertical lines where the reach of a window ends inside of the sample."""
    found = sorted({far for name in reading.others if (far := reading.reach(name)) is not None})
    if not found:
        return []
    names = ", ".join(map(str, found))
    x = [float(far) for far in found for _ in range(3)]
    y: list[float | None] = [bottom, top, None] * len(found)
    return [Series(name=f"reach: {names}", x=x, y=y)]


def _gap_table(reading: Reading) -> Table:
    rows = []
    for name in reading.others:
        keys, far = reading.narrowest(name), reading.reach(name)
        end = reading.context if far is None else far
        rows.append(
            [
                name,
                "all" if far is None else str(far),
                with_ends(reading.gap(name, 0, keys), sign="+"),
                with_ends(reading.gap(name, keys, end), sign="+") if keys < end else None,
                None
                if far is None
                else with_ends(reading.gap(name, far, reading.context), sign="+"),
            ]
        )
    return Table(
        title="Difference from full attention, by what the model can see",
        columns=[
            "model",
            "reach",
            "in the first window, where both see all",
            "from there to its reach",
            "beyond its reach",
        ],
        rows=rows,
        note="Nats a character, with 95 % intervals over held-out samples, not over seeds.",
    )


def _flat_table(reading: Reading) -> Table:
    def cell(change: Interval | None) -> str | None:
        return None if change is None else with_ends(change, sign="+")

    rows = [
        [name, str(far), cell(reading.later(name, far)), cell(reading.later(FULL, far))]
        for name in reading.others
        if (far := reading.reach(name)) is not None
    ]
    return Table(
        title="Does the loss still fall beyond the reach?",
        columns=["model", "reach", "change of its loss", "of full attention's, at the same place"],
        rows=rows,
        note=(
            "What is beyond the reach is cut in two, half-way on the log axis: the loss in the "
            "second part minus that in the first, over held-out samples. Where the interval holds "
            "0, a fall, a rise or none cannot be told. Other characters are asked for in the two "
            "parts, so the intervals are wider than those of the differences above."
        ),
    )


def _costs(reading: Reading) -> Section:
    context = reading.context
    rows = [
        [
            name,
            reading.cost(name, "step_ms"),
            f"{reading.cost(name, 'fastest_ms'):.1f} to {reading.cost(name, 'slowest_ms'):.1f}",
            reading.share(name, "step_ms"),
            reading.cost(name, "tokens_per_second"),
            megabytes(reading.cost(name, "memory")),
            *(megabytes(count) for count in reading.results[CACHES][name]),
            ", ".join(reading.cost(name, "paths")),
        ]
        for name in reading.names
    ]
    text = f"""
        Full attention compares a position with all before it, so its part of a step grows with the
        square of the length; with a window it grows with the length times the window. How much of
        the step that is depends on the rest: with {context:,} characters and a width of
        {reading.study.size.width} the other products count as well. In writing, full attention
        keeps the keys and values of all it has read. A window needs the last w only, kept in a ring
        of room for 2w: constant, however long the text grows.

        {_kernels(reading)}
        """
    table = Table(
        title="Costs",
        columns=[
            "model",
            "ms a step",
            "fastest to slowest turn",
            "of full attention's",
            "characters a second in training",
            "peak MB of a step",
            f"MB of cache after {context:,}",
            f"after {2 * context:,}",
            "computed by",
        ],
        rows=rows,
        note=(
            "Times are medians: the models take turns in random order, and the device is waited "
            "for. The peak holds weights, gradients, the optimiser's state and all else that a "
            "step needs; on a CPU it is read from the process, and right to a tenth. Caches are in "
            "float32, for one text. Computed by: native is the C of this package, sdpa is "
            "PyTorch's own attention, flex is FlexAttention, tiled is plain PyTorch tile by tile."
        ),
    )
    return Section(heading="What it costs", text=text, blocks=[table])


def _kernels(reading: Reading) -> str:
    others = [name for name in reading.others if reading.other_kernels(name)]
    if not others:
        return "All of them are computed by the same kernel."
    return (
        f"Not computed as full attention is (last column): {', '.join(others)}. There a difference "
        "in time is one of kernels as well as of windows."
    )


def _summary(reading: Reading) -> dict[str, Any]:
    study, results = reading.study, reading.results

    def model(name: str) -> dict[str, Any]:
        keys = None if name == FULL else reading.narrowest(name)
        far, end = reading.reach(name), reading.context
        found: dict[str, Any] = {
            "windows": list(study.patterns()[name]),
            "reach": reach(study.patterns()[name], study.size.depth),
            "loss": {
                "seeds": list(reading.losses(name).values()),
                **dataclasses.asdict(_mean(reading.losses(name))),
            },
            "loss_by_position": [
                float(reading.between(name, *octave).mean()) for octave in reading.octaves
            ],
            "cache_bytes": results[CACHES][name],
        }
        if keys is not None:
            difference = reading.difference(name)
            found["from_full"] = {
                **dataclasses.asdict(difference),
                "verdict": verdict(difference),
                "by_position": [
                    dataclasses.asdict(reading.gap(name, *octave)) for octave in reading.octaves
                ],
                "in_the_first_window": dataclasses.asdict(reading.gap(name, 0, keys)),
                "beyond_its_reach": (
                    None if far is None else dataclasses.asdict(reading.gap(name, far, end))
                ),
            }
        if far is not None and (change := reading.later(name, far)) is not None:
            found["change_beyond_its_reach"] = dataclasses.asdict(change)
        return found

    return {
        "scale": study.chosen_scale,
        "context": reading.context,
        "depth": study.size.depth,
        "steps": study.size.steps,
        **results[SIZES],
        "positions": [[before + 1, last] for before, last in reading.octaves],
        "models": {name: model(name) for name in reading.names},
        "costs": results[COSTS],
    }
