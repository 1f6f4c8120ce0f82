"""The report of the window study: tables, curves and sentences, computed from its results.

Axes: n held-out samples, s segments of positions.

Whole losses are judged as comparisons judge them, by seeds and text. Intervals by position are over
held-out samples, the seeds of a model averaged: at each position all models predict the same
characters.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from attnlab.experiments import verdicts
from attnlab.experiments.costs import StepCost
from attnlab.experiments.experiment import Findings
from attnlab.experiments.presentation import (
    HOW_MEASURED,
    counted_seeds,
    in_words,
    judged_numbers,
    judged_together,
    listed,
    mean_with_ends,
    megabytes,
    numbers,
    with_ends,
)
from attnlab.experiments.verdicts import Difference, Pair, Stretches, Verdicts
from attnlab.reports.report import Block, Plot, Section, Series, Table
from attnlab.statistics import Interval, mean_interval
from attnlab.studies.language import losses_by_seed
from attnlab.studies.window.experiment import (
    CACHES,
    COSTS,
    FULL,
    SIZES,
    WindowStudy,
    half_way,
    reach,
)

BEYOND = "beyond its reach"  # of the narrowest window
MEMORY_NOISE = 0.1  # what is read from a process on a CPU is no better


def findings(study: WindowStudy, results: dict[str, Any]) -> Findings:
    analysis = Analysis(study, results)
    return Findings(
        title="Sliding windows against full attention",
        question=(
            "What does a model lose, and what does it save, when a query attends only to the last "
            "few characters instead of all of them?"
        ),
        answer=_answer(analysis),
        sections=[_quality(analysis), _where(analysis), _costs(analysis)],
        summary=_summary(analysis),
    )


@dataclass(frozen=True)
class Analysis:
    study: WindowStudy
    results: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return list(self.study.patterns())

    @property
    def others(self) -> list[str]:
        return [name for name in self.names if name != FULL]

    @property
    def context(self) -> int:
        return self.study.size.context

    def narrowest(self, name: str) -> int:
        """The smallest window among its layers."""
        return min(keys for keys in self.study.patterns()[name] if keys is not None)

    def reach(self, name: str) -> int | None:
        """In characters; None when it reaches all of the sample."""
        far = reach(self.study.patterns()[name], self.study.size.depth)
        return None if far is None or far >= self.context else far

    def losses(self, name: str) -> dict[int, float]:
        return losses_by_seed(self.results, name, self.study.repeats)

    @cached_property
    def verdicts(self) -> Verdicts:
        """The family: every model against full attention, and the narrowest beyond its reach."""
        losses = {name: self.losses(name) for name in self.names}
        against = [(name, FULL) for name in self.others]
        found = verdicts.differences(losses, self._texts(0, self.context), against)
        if (far := self.reach(self.others[0])) is not None:
            found.append(self._beyond(far))
        return verdicts.judge(found)

    def _beyond(self, far: int) -> Difference:
        texts = self._texts(far, self.context)
        losses = {name: {s: one.loss for s, one in row.items()} for name, row in texts.items()}
        (found,) = verdicts.differences(losses, texts, [(self.others[0], FULL)])
        return dataclasses.replace(found, first=BEYOND)

    def _texts(self, start: int, end: int) -> dict[str, dict[int, Stretches]]:
        """Losses at positions start+1 … end, every whole held-out sample a stretch."""
        lengths = self._lengths(start, end)

        def stretches(rows: Float[np.ndarray, "n s"]) -> Stretches:
            return Stretches((rows @ lengths).tolist(), [end - start] * len(rows))

        return {
            name: {s: stretches(r) for s, r in zip(self.study.repeats, seeds, strict=True)}
            for name, seeds in self._rows.items()
        }

    def difference(self, name: str) -> Pair:
        return self.verdicts.between(name, FULL)

    @cached_property
    def _rows(self) -> dict[str, Float[np.ndarray, "seeds n s"]]:
        return {
            name: np.array([self.results[f"{name}, seed {s}"]["rows"] for s in self.study.repeats])
            for name in self.names
        }

    def _lengths(self, start: int, end: int) -> Float[np.ndarray, " s"]:
        """Positions of each segment that lie in start+1 … end, which are edges."""
        ends = self.study.edges()
        starts = [0, *ends[:-1]]
        lengths = np.array(
            [b - a if start <= a and b <= end else 0 for a, b in zip(starts, ends, strict=True)],
            np.float64,
        )
        assert lengths.sum() == end - start, "a segment crosses the border"
        return lengths

    def between(self, name: str, start: int, end: int) -> Float[np.ndarray, " n"]:
        """The mean loss of each held-out sample at positions start+1 … end, which are edges."""
        lengths = self._lengths(start, end)
        found: Float[np.ndarray, " n"] = self._rows[name].mean(0) @ lengths / lengths.sum()
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

    def cost(self, name: str) -> StepCost:
        found: StepCost = self.results[COSTS][name]
        return found

    def share(self, name: str, what: Literal["step_ms", "memory"]) -> float | None:
        """Of full attention's cost."""
        mine, full = self.cost(name)[what], self.cost(FULL)[what]
        return None if mine is None or not full else mine / full

    def other_kernels(self, name: str) -> bool:
        """Whether it is computed in another way than full attention."""
        return self.cost(name)["paths"] != self.cost(FULL)["paths"]

    def turns_overlap(self, name: str) -> bool:
        """Whether some turn of either was as fast as some turn of the other."""
        costs = self.cost(name), self.cost(FULL)
        faster, slower = sorted(costs, key=lambda cost: cost["step_ms"])
        return faster["slowest_ms"] >= slower["fastest_ms"]


def _answer(analysis: Analysis) -> str:
    parts = [f"that of {name} {in_words(analysis.difference(name))}" for name in analysis.others]
    seeds = len(analysis.study.repeats)
    over = f" (over {counted_seeds(seeds)})" if seeds > 1 else ""
    return (
        f"Full attention's held-out loss is {fmean(analysis.losses(FULL).values()):.3f} nats a "
        f"character; {listed(parts)}{over}. {_cost_answer(analysis, analysis.others[0])}"
    )


def _cost_answer(analysis: Analysis, name: str) -> str:
    memory, far = analysis.share(name, "memory"), analysis.reach(name)
    cache = analysis.results[CACHES][name][0] / analysis.results[CACHES][FULL][0]
    spread = " (within the spread of the turns)" if analysis.turns_overlap(name) else ""
    kernel = ", through another kernel" if analysis.other_kernels(name) else ""
    time = f"{analysis.share(name, 'step_ms'):.2f} of full attention's time a step"
    parts = [f"{time}{spread}{kernel}"]
    if memory is not None:
        alike = abs(memory - 1) < MEMORY_NOISE
        parts.append(f"{'about all' if alike else f'{memory:.2f}'} of its memory in training")
    after = f"{cache:.2f} of its cache after {analysis.context:,} characters"
    costs = f"{', '.join(parts)} and {after}"
    if far is None:
        return f"The narrowest, {name}, takes {costs}."
    beyond = in_words(analysis.verdicts.between(BEYOND, FULL))
    return (
        f"The narrowest, {name}, takes {costs}; beyond its reach of {far} characters its loss "
        f"{beyond}."
    )


def _quality(analysis: Analysis) -> Section:
    size, seeds = analysis.study.size, len(analysis.study.repeats)
    family, parameters = len(analysis.verdicts.pairs), analysis.results[SIZES]["parameters"]
    rows = [
        [
            name,
            mean_with_ends(analysis.losses(name)),
            None if name == FULL else with_ends(analysis.difference(name).interval, sign="+"),
            None if name == FULL else analysis.difference(name).direction,
        ]
        for name in analysis.names
    ]
    text = f"""
        {len(analysis.names)} transformers of {parameters:,} parameters in {size.depth} layers are
        trained on the same {size.steps:,} batches of {size.batch} samples of {size.context:,}
        characters. They differ only in which keys a position attends to: with full attention its
        own and all before it; with a window of w, its own and the w−1 before it.
        The last two are mixed: three layers with the narrowest window and one with full attention,
        which comes last in each group of four layers or first.

        Two things may pull in opposite directions. A window cannot use what is further back. But it
        also need not learn to ignore it: that the nearest characters matter most is built in, while
        full attention has to find it out among {size.context:,} positions. This study does not
        measure the two apart.

        The loss is the mean of −log p(next character) over the held-out last tenth of the text, in
        nats. {judged_together(family, seeds, text=True)}
        """
    table = Table(
        title="Held-out loss",
        columns=["model", "held-out loss", "difference from full attention", "its loss is"],
        rows=rows,
        note="Differences are taken seed by seed: with a seed come the same batches for all.",
    )
    return Section(heading="How good", text=text, blocks=[table])


def _where(analysis: Analysis) -> Section:
    text = """
        At position t of a sample there are t characters to predict from. Up to position w a model
        with a window of w attends to all of them, as full attention does: a difference there is
        one of learning, not of what it can attend to. Beyond, a layer attends only to the last w,
        but its inputs depend on w−1 characters further back, and so on: through d layers a
        prediction depends on d·(w−1)+1 characters, including the newest. It cannot depend on
        anything beyond this reach, whatever has been learned. The vertical lines mark it.

        In the second picture the difference is taken on the same held-out characters. The bands and
        the intervals below are at 95 %, each by itself, over held-out samples of these trained
        models, the seeds of a model averaged. They say what other text of this kind would show of
        these very models, and nothing about other seeds. Samples count as independent, although
        they are neighbouring pieces of one text. So no verdict comes from them; the one in the
        answer, beyond the reach of the narrowest window, counts seeds and text as above.
        """
    blocks: list[Block] = [_by_position(analysis), _gaps_by_position(analysis)]
    blocks.append(_gap_table(analysis))
    if any(analysis.reach(name) is not None for name in analysis.others):
        blocks.append(_flat_table(analysis))
    return Section(heading="Where", text=text, blocks=blocks)


def _by_position(analysis: Analysis) -> Plot:
    curves = {
        name: [float(analysis.between(name, *octave).mean()) for octave in analysis.octaves]
        for name in analysis.names
    }
    everything = [loss for curve in curves.values() for loss in curve]
    series = [Series(name=n, x=_middles(analysis), y=curve) for n, curve in curves.items()]
    return Plot(
        title="Held-out loss by position",
        x="position in the sample (characters to predict from)",
        y="loss, nats a character",
        series=[*series, *_reaches(analysis, min(everything), max(everything))],
        log_x=True,
        note="Positions 1, 2, 3–4, 5–8 and so on are averaged, and drawn at their middle.",
    )


def _gaps_by_position(analysis: Analysis) -> Plot:
    series, ends = [], [0.0]
    for name in analysis.others:
        gaps = [analysis.gap(name, *octave) for octave in analysis.octaves]
        lows, highs = [gap.low for gap in gaps], [gap.high for gap in gaps]
        y = [gap.mean for gap in gaps]
        series.append(Series(name=name, x=_middles(analysis), y=y, low=lows, high=highs))
        ends += [end for end in (*lows, *highs) if end is not None]
    return Plot(
        title="Difference from full attention by position",
        x="position in the sample (characters to predict from)",
        y="loss minus that of full attention, nats",
        series=[*series, *_reaches(analysis, min(ends), max(ends))],
        log_x=True,
        note="Above 0 the window loses, below it gains.",
    )


def _middles(analysis: Analysis) -> list[float]:
    return [math.sqrt((before + 1) * last) for before, last in analysis.octaves]


def _reaches(analysis: Analysis, bottom: float, top: float) -> list[Series]:
    """Vertical lines where the reach of a window ends inside of the sample."""
    found = sorted({far for name in analysis.others if (far := analysis.reach(name)) is not None})
    if not found:
        return []
    names = ", ".join(map(str, found))
    x = [float(far) for far in found for _ in range(3)]
    y: list[float | None] = [bottom, top, None] * len(found)
    return [Series(name=f"reach: {names}", x=x, y=y)]


def _gap_table(analysis: Analysis) -> Table:
    rows = []
    for name in analysis.others:
        keys, far = analysis.narrowest(name), analysis.reach(name)
        end = analysis.context if far is None else far
        rows.append(
            [
                name,
                "all" if far is None else str(far),
                with_ends(analysis.gap(name, 0, keys), sign="+"),
                with_ends(analysis.gap(name, keys, end), sign="+") if keys < end else None,
                None
                if far is None
                else with_ends(analysis.gap(name, far, analysis.context), sign="+"),
            ]
        )
    return Table(
        title="Difference from full attention, by what the model can attend to",
        columns=[
            "model",
            "reach",
            "in the first window, where both attend to all",
            "from there to its reach",
            "beyond its reach",
        ],
        rows=rows,
        note="Nats a character, with 95 % intervals over held-out samples, not over seeds.",
    )


def _flat_table(analysis: Analysis) -> Table:
    rows = [
        [
            name,
            str(far),
            with_ends(analysis.later(name, far), sign="+"),
            with_ends(analysis.later(FULL, far), sign="+"),
        ]
        for name in analysis.others
        if (far := analysis.reach(name)) is not None
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


def _costs(analysis: Analysis) -> Section:
    context = analysis.context
    rows = [
        [
            name,
            analysis.cost(name)["step_ms"],
            f"{analysis.cost(name)['fastest_ms']:.1f} to {analysis.cost(name)['slowest_ms']:.1f}",
            analysis.share(name, "step_ms"),
            analysis.cost(name)["tokens_per_second"],
            megabytes(analysis.cost(name)["memory"]),
            *(megabytes(count) for count in analysis.results[CACHES][name]),
            ", ".join(analysis.cost(name)["paths"]),
        ]
        for name in analysis.names
    ]
    text = f"""
        Full attention compares a position with all before it, so its part of a step grows with the
        square of the length; with a window it grows with the length times the window. How much of
        the step that is depends on the rest: with {context:,} characters and a width of
        {analysis.study.size.width} the other products count as well. In writing, full attention
        keeps the keys and values of all it has read. A window needs the last w only, kept in a ring
        of room for 2w: constant, however long the text grows.

        {_kernels(analysis)}
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
        note=f"{HOW_MEASURED} Caches are in float32, for one text. Computed by: native is the C of "
        "this package, sdpa is PyTorch's own attention, flex is FlexAttention, tiled is plain "
        "PyTorch tile by tile.",
    )
    return Section(heading="What it costs", text=text, blocks=[table])


def _kernels(analysis: Analysis) -> str:
    others = [name for name in analysis.others if analysis.other_kernels(name)]
    if not others:
        return "All of them are computed by the same kernel."
    return (
        f"Not computed as full attention is (last column): {', '.join(others)}. There a difference "
        "in time is one of kernels as well as of windows."
    )


def _summary(analysis: Analysis) -> dict[str, Any]:
    study, results = analysis.study, analysis.results

    def model(name: str) -> dict[str, Any]:
        keys = None if name == FULL else analysis.narrowest(name)
        far, end = analysis.reach(name), analysis.context
        found: dict[str, Any] = {
            "windows": list(study.patterns()[name]),
            "reach": reach(study.patterns()[name], study.size.depth),
            "loss": numbers([*analysis.losses(name).values()]),
            "loss_by_position": [
                float(analysis.between(name, *octave).mean()) for octave in analysis.octaves
            ],
            "cache_bytes": results[CACHES][name],
        }
        if keys is not None:
            found["from_full"] = {
                **judged_numbers(analysis.difference(name)),
                "by_position": [
                    dataclasses.asdict(analysis.gap(name, *octave)) for octave in analysis.octaves
                ],
                "in_the_first_window": dataclasses.asdict(analysis.gap(name, 0, keys)),
                "beyond_its_reach": (
                    None if far is None else dataclasses.asdict(analysis.gap(name, far, end))
                ),
            }
        if far is not None and (change := analysis.later(name, far)) is not None:
            found["change_beyond_its_reach"] = dataclasses.asdict(change)
        return found

    return {
        "scale": study.chosen_scale,
        "context": analysis.context,
        "depth": study.size.depth,
        "steps": study.size.steps,
        **results[SIZES],
        "positions": [[before + 1, last] for before, last in analysis.octaves],
        "models": {name: model(name) for name in analysis.names},
        "costs": results[COSTS],
    }
