"""The report of a comparison. All that the clock decides is in the section TIMES."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from attnlab.compare.analysis import (
    Analysis,
    Conditions,
    Cost,
    VariantResult,
    answer,
    rates,
    summary,
)
from attnlab.experiments import samples
from attnlab.experiments.experiment import Findings
from attnlab.experiments.presentation import (
    BAND,
    curve,
    learning_curves,
    listed,
    megabytes,
    over_seeds,
    with_ends,
)
from attnlab.reports.report import Block, Cell, Plot, Section, Series, Table
from attnlab.training.parallel import torch_device

TIMES = "Time and memory"
EQUAL = {
    "parameters": "of equally many parameters",
    "flops": "given equally many operations",
    "seconds": "given equally many seconds",
    "steps": "given equally many steps",
}
HOW = {
    "parameters": """All have as many parameters as the first, to 2 %: the inner width of the
        feed-forward parts was changed where that is enough, else the width of the model. All take
        the same steps.""",
    "flops": """All are given as many operations (FLOPs) as the first, those of matrix products and
        attention, forward and backward: a variant that needs fewer for a step takes more steps.""",
    "seconds": """All are given as many seconds of steps: before the trainings the steps of all were
        timed in turns, and a faster variant takes more steps. Schedules scale with the steps.""",
    "steps": """All take the same steps, whatever these cost and however many parameters they
        train.""",
}


def findings(conditions: Conditions, variants: Sequence[VariantResult]) -> Findings:
    analysis = Analysis(conditions, variants)
    labels = [one.label for one in variants]
    return Findings(
        title=f"{listed(labels)} compared",
        question=f"Which has the lowest held-out loss on {conditions.text}, "
        f"{EQUAL[conditions.settings.match]}: {listed(labels, 'or')}?",
        answer=answer(analysis),
        sections=_sections(analysis),
        summary=summary(analysis),
        rates=rates(analysis),
    )


def _sections(analysis: Analysis) -> list[Section]:
    found = [_results(analysis), _pairs(analysis), _curves(analysis), _cache(analysis)]
    found.append(_times(analysis))
    if any(one.searched for one in analysis.variants):
        found.append(_search(analysis))
    if analysis.conditions.samples["texts"]:
        found.append(samples.section(analysis.conditions.samples))
    return [*found, _how(analysis)]


def _results(analysis: Analysis) -> Section:
    target = analysis.target
    rows: list[list[Cell]] = [
        [
            one.label,
            with_ends(analysis.loss(one)),
            with_ends(analysis.above_best(one)),
            len(one.trained)
            if not one.unfinished
            else f"{len(one.finished)} of {len(one.trained)}",
            one.parameters,
            one.operations / 1e6,
            one.steps,
            None if target is None or (s := one.steps_to(target)) is None else round(s),
        ]
        for one in analysis.variants
    ]
    at = "" if target is None else f" {target:.3f}"
    blocks: list[Block] = [
        Table(
            title="Results",
            columns=[
                "variant",
                "held-out loss",
                "above the best",
                "seeds",
                "parameters",
                "million operations a token",
                "steps",
                f"steps to a loss of{at}",
            ],
            rows=rows,
            note=f"Nats a token over {analysis.conditions.held_out:,} held-out tokens, after the "
            f"last step; means over the seeds. The {analysis.percent} intervals count the choice "
            "of seeds and of the held-out text. Variants share both, so intervals of two losses "
            "may overlap where their difference, above the best, is clear. The loss to reach is "
            "the best that all variants reached, unless one was asked for"
            f"{_on_all_text(analysis)}.",
        )
    ]
    unfinished = [
        [one.label, f"{seed}", found.ending, found.why]
        for one in analysis.variants
        for seed, found in one.unfinished.items()
    ]
    if unfinished:
        blocks.append(
            Table(
                title="Trainings that did not finish",
                columns=["variant", "seed", "what happened", "why"],
                rows=unfinished,
                note="They count in no mean. A variant that lost trainings this way is compared "
                "on the seeds that are left, which flatters it.",
            )
        )
    return Section(heading="How good", blocks=blocks)


def _on_all_text(analysis: Analysis) -> str:
    """Where an older version has trained, and its evaluations are not known by parts."""
    return "" if analysis.conditions.same_text else "; on all held-out text"


def _pairs(analysis: Analysis) -> Section:
    labels = [one.label for one in analysis.variants]
    matrix = Table(
        title="Row against column",
        columns=["", *labels],
        rows=[
            [row, *(None if row == column else analysis.verdict(row, column) for column in labels)]
            for row in labels
        ],
    )
    rows: list[list[Cell]] = []
    for pair in analysis.pairs:
        said = with_ends(pair.interval, sign="+")
        errors = (pair.seeds_error, pair.text_error)
        rows.append([f"{pair.first} − {pair.second}", said, *errors, pair.p, pair.verdict])
    return Section(
        heading="Every pair",
        text=f"""With a seed come the same batches for all, so two variants are compared seed by
        seed. {_noise(analysis)} {len(rows)} pair{"s are" if len(rows) > 1 else " is"} judged, by
        Student's t with Holm's correction: the chance of even one wrong "better" or "worse" in this
        matrix is at most {100 * (1 - analysis.level):.3g} % when no variant varies more than twice
        as much over the seeds as the others, and neighbouring thirtieths of the text correlate by
        0.6 or less. {_neighbours(analysis)}""",
        blocks=[
            matrix,
            Table(
                title="Differences of the held-out loss",
                columns=[
                    "",
                    "difference",
                    "error by seeds",
                    "error by text",
                    "p, corrected",
                    "the first is",
                ],
                rows=rows,
                note=f"The {analysis.percent} interval is of each pair alone. It can leave out 0 "
                "and the verdict still be that we cannot tell, when many pairs are asked about. "
                "Standard errors: what other seeds, and other held-out text of the same length, "
                "would change. More seeds reduce the first only.",
            ),
        ],
    )


def _noise(analysis: Analysis) -> str:
    if len(analysis.conditions.seeds) == 1:
        return "One seed can never tell: use seeds=3 or more."
    if analysis.noise is None:
        return """Beyond rounding, the seeds change nothing in any difference, so nothing is known
        about the noise, and nothing can be told."""
    return f"""What seed and variant leave unexplained of a loss varies by
        {math.sqrt(analysis.noise.value):.3g} (standard deviation, from all variants together,
        {analysis.noise.degrees} degrees of freedom); a pair whose own differences vary more is
        judged by those."""


def _neighbours(analysis: Analysis) -> str:
    """How alike neighbouring stretches of the text were, which the promise depends on."""
    known = [pair.neighbours for pair in analysis.pairs if pair.neighbours is not None]
    texts = [text for one in analysis.variants for text in one.texts.values()]
    if not known:
        return ""
    stretches = texts[0]
    return f"""Here differences over neighbouring stretches ({len(stretches.sums)} of
        {fmean(stretches.counts):.0f} tokens) correlate by {min(known):.2f} to {max(known):.2f}, so
        the error by text comes from {len(stretches.batches().sums)} long parts of the text."""


def _curves(analysis: Analysis) -> Section:
    held_out = [curve(one.label, one.curve, analysis.level) for one in analysis.variants]
    training = [
        curve(one.label, over_seeds([found.curve for found in one.finished.values()]), band=False)
        for one in analysis.variants
    ]
    return learning_curves(
        "token",
        ("Held-out loss", held_out, f"Means over the seeds{_bands(analysis)}."),
        ("Training loss", training, "Means over stretches of steps and over the seeds."),
    )


def _bands(analysis: Analysis) -> str:
    several = len(analysis.conditions.seeds) >= BAND
    return f", with {analysis.percent} intervals" if several else ""


def _cache(analysis: Analysis) -> Section:
    front = analysis.front(analysis.cache_costs)
    rows: list[list[Cell]] = [
        [
            one.label,
            one.cache["per_token"] if one.cache else None,
            one.cache["constant"] if one.cache else None,
            one.cache["at_context"] if one.cache else None,
            "yes" if one.label in front else "no",
        ]
        for one in analysis.variants
    ]
    return Section(
        heading="Quality against cache",
        text="""While a model writes, its KV cache holds the keys and values of all tokens so far.
        Each further token adds to it; a window has a ring buffer of constant size instead, and a
        recurrent model one vector. Code without a KV cache reads the whole text again for every
        token; it has none to compare and no place on the front. A variant is off the Pareto front
        when another is told to be better (above) and has no larger cache.""",
        blocks=[
            Table(
                title="Bytes that decoding keeps",
                columns=[
                    "variant",
                    "for each token",
                    "besides",
                    f"after {analysis.conditions.context:,} tokens",
                    "on the front",
                ],
                rows=rows,
                note="Measured in float32 on the cache itself, after one context and after two.",
            ),
            _pareto(
                analysis,
                "Held-out loss against cache",
                f"bytes in the cache after {analysis.conditions.context:,} tokens",
                analysis.cache_costs,
            ),
        ],
    )


def _pareto(analysis: Analysis, title: str, x: str, cost: Mapping[str, Cost | None]) -> Plot:
    series = []
    for one in analysis.variants:
        price, loss = cost[one.label], analysis.loss(one)
        if price is None or loss is None:
            continue
        ends = (loss.low is not None) and len(one.finished) > 2
        series.append(
            Series(
                name=one.label,
                x=[price.middle],
                y=[loss.mean],
                low=[loss.low] if ends else None,
                high=[loss.high] if ends else None,
            )
        )
    return Plot(
        title=title,
        x=x,
        y="held-out loss, nats a token",
        series=series,
        kind="points",
        note="Further down is better, further left is cheaper.",
    )


def _times(analysis: Analysis) -> Section:
    front, target = analysis.front(analysis.step_costs), analysis.target
    rows: list[list[Cell]] = [
        [
            one.label,
            one.step["step_ms"],
            f"{one.step['fastest_ms']:.3g} to {one.step['slowest_ms']:.3g}",
            one.step["tokens_per_second"],
            None if target is None else one.seconds_to(target),
            megabytes(one.memory),
            one.decoding,
            ", ".join(one.step["paths"]) or "code of its own",
            "yes" if one.label in front else "no",
        ]
        for one in analysis.variants
    ]
    at = "" if target is None else f" {target:.3f}"
    return Section(
        heading=TIMES,
        text=f"""Measured on this machine when nothing else of this comparison ran, variant by
        variant in turns, {_threads()}. {_fastest(analysis)} A variant is off the Pareto front when
        another is told to be better (above) and not clearly slower: clearly means that all turns of
        one took longer than all of the other.""",
        blocks=[
            Table(
                title="Costs",
                columns=[
                    "variant",
                    "ms a step",
                    "fastest and slowest turn",
                    "tokens a second in training",
                    f"seconds of steps to a loss of{at}",
                    "peak MB of a step",
                    "tokens a second in decoding",
                    "attention goes by",
                    "on the front",
                ],
                rows=rows,
                note=f"A step reads {analysis.conditions.tokens:,} tokens. Medians of the turns. "
                f"Decoding writes one text up to the context{_decoders()}. Memory: weights, "
                "gradients, the optimiser's state and all else in a step; on a CPU right to some "
                "percent.",
            ),
            _pareto(
                analysis, "Held-out loss against time", "milliseconds a step", analysis.step_costs
            ),
        ],
    )


def _decoders() -> str:
    if torch_device("auto").type != "cpu":
        return ""
    return (
        "; a token of a standard transformer is one call into C there, of others many calls of "
        "PyTorch, so it compares programs as well as mechanisms"
    )


def _threads() -> str:
    return "on one thread" if torch_device("auto").type == "cpu" else "on the GPU"


def _fastest(analysis: Analysis) -> str:
    order = sorted(analysis.variants, key=lambda one: one.step["step_ms"])
    fast, slow = order[0], order[-1]
    overlap = fast.step["slowest_ms"] >= slow.step["fastest_ms"]
    spread = ", within the spread of the turns" if overlap else ""
    return (
        f"A step of {slow.label} takes {slow.step['step_ms'] / fast.step['step_ms']:.2f} times as "
        f"long as one of {fast.label}{spread}."
    )


def _search(analysis: Analysis) -> Section:
    conditions = analysis.conditions
    grid = conditions.search.rates
    rows: list[list[Cell]] = []
    edge = []
    for one in analysis.variants:
        found = one.searched or {"losses": [], "chosen": 1.0}
        losses = dict(found["losses"])
        rows.append([one.label, *(losses.get(rate) for rate in grid), f"{found['chosen']:g}"])
        if len(grid) > 1 and found["chosen"] in (min(grid), max(grid)):
            edge.append(one.label)
    more = f" The best of {', '.join(edge)} is at the edge: look further." if edge else ""
    curves = "" if conditions.same_text else ", the learning curves aside"
    gap = any(loss is None for row in rows for loss in row[1:-1])
    return Section(
        heading="Learning rates",
        text=f"""Searched because {conditions.search.why}. Before, every variant was trained once
        with each multiple of its recipe's rates and a seed of its own, {conditions.seeds[-1] + 1},
        which is used for nothing else: the same budget for each. The rate with the lowest loss on
        the first quarter of the held-out text was taken; all other losses and verdicts of this
        report leave that quarter out{curves}. Another search could choose a neighbouring
        rate: intervals do not count that.{more}""",
        blocks=[
            Table(
                title="Loss by multiple of the rate, on the quarter that chooses",
                columns=["variant", *(f"× {rate:g}" for rate in grid), "taken"],
                rows=rows,
                note="–: this training did not finish." if gap else "",
            )
        ],
    )


def _how(analysis: Analysis) -> Section:
    conditions = analysis.conditions

    def row(one: VariantResult) -> list[Cell]:
        return [one.label, one.spec, one.change or "nothing"]

    return Section(
        heading="What is equal",
        text=f"""{HOW[conditions.settings.match]} All train on {conditions.text}, with
        {analysis.seeds} ({", ".join(map(str, conditions.seeds))}): with a seed come the same
        samples in the same order for all. Where steps differ, one reads further than
        another. {rates(analysis)}""",
        blocks=[
            Table(
                title="The variants",
                columns=["variant", "as written", "changed to be equal"],
                rows=[row(one) for one in analysis.variants],
            )
        ],
    )
