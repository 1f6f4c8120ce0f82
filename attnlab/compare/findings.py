"""The report of a comparison. What the clock decided is in the section called TIMES, only there."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from attnlab.compare.reading import (
    About,
    Contender,
    Cost,
    Reading,
    answer,
    listed,
    rates,
    summary,
)
from attnlab.reports.report import Block, Cell, Plot, Sample, Section, Series, Table
from attnlab.statistics import mean_interval
from attnlab.studies.language import megabytes, with_ends
from attnlab.studies.study import Findings
from attnlab.training.parallel import place_of

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
    "flops": """All are given as many operations as the first (products of matrices and attention,
        forward and back): who needs fewer for a step takes more steps.""",
    "seconds": """All are given as many seconds of steps: before the trainings the steps of all were
        timed in turns, and who is faster takes more steps. Schedules scale with the steps.""",
    "steps": """All take the same steps, whatever these cost and however many parameters they
        train.""",
}


def findings(about: About, contenders: Sequence[Contender]) -> Findings:
    reading = Reading(about, contenders)
    labels = [one.label for one in contenders]
    return Findings(
        title=f"{listed(labels)} compared",
        question=f"Which has the lowest held-out loss on {about.text}, "
        f"{EQUAL[about.comparison.match]}: {listed(labels, 'or')}?",
        answer=answer(reading),
        sections=_sections(reading),
        summary=summary(reading),
    )


def _sections(reading: Reading) -> list[Section]:
    found = [_results(reading), _pairs(reading), _curves(reading), _cache(reading)]
    found.append(_times(reading))
    if any(one.searched for one in reading.contenders):
        found.append(_search(reading))
    if reading.about.samples["texts"]:
        found.append(_samples(reading))
    return [*found, _how(reading)]


def _results(reading: Reading) -> Section:
    rows: list[list[Cell]] = []
    target = reading.target
    for one in reading.contenders:
        loss = reading.loss(one)
        ends = [found["ending"] for found in one.stranded.values()]
        rows.append(
            [
                one.label,
                None if loss is None else with_ends(loss),
                None if (lead := reading.above_best(one)) is None else with_ends(lead),
                f"{len(one.finished)} of {len(one.trained)}" if ends else len(one.finished),
                one.parameters,
                one.operations / 1e6,
                one.steps,
                None if target is None or (s := one.steps_to(target)) is None else round(s),
            ]
        )
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
            note=f"Nats a token over {reading.about.held_out:,} held-out tokens, after the last "
            f"step; means over the seeds. The {reading.percent} intervals count the choice of "
            "seeds and of the held-out text. Variants share both, so intervals of two losses may "
            "overlap where their difference, above the best, is clear. The loss to reach is the "
            "best that all variants reached, unless one was asked for.",
        )
    ]
    stranded = [
        [one.label, f"{seed}", found["ending"], found["why"]]
        for one in reading.contenders
        for seed, found in one.stranded.items()
    ]
    if stranded:
        blocks.append(
            Table(
                title="Trainings that did not come to their end",
                columns=["variant", "seed", "what happened", "why"],
                rows=stranded,
                note="They count in no mean. A variant that lost trainings this way is compared "
                "on the seeds that are left, which flatters it.",
            )
        )
    return Section(heading="How good", blocks=blocks)


def _pairs(reading: Reading) -> Section:
    labels = [one.label for one in reading.contenders]
    matrix = Table(
        title="Row against column",
        columns=["", *labels],
        rows=[
            [row, *(None if row == column else reading.verdict(row, column) for column in labels)]
            for row in labels
        ],
    )
    rows: list[list[Cell]] = []
    for pair in reading.pairs:
        said = None if pair.interval is None else with_ends(pair.interval, sign="+")
        errors = (pair.seeds_error, pair.text_error)
        rows.append([f"{pair.first} − {pair.second}", said, *errors, pair.p, pair.verdict])
    return Section(
        heading="Every pair",
        text=f"""With a seed come the same batches for all, so two variants are compared seed by
        seed. {_noise(reading)} {len(rows)} pair{"s are" if len(rows) > 1 else " is"} looked at, by
        Student's t with Holm's correction: the chance of even one wrong "better" or "worse" in this
        matrix is at most {100 * (1 - reading.level):.3g} % when no variant varies more than twice
        as much over the seeds as the others, and neighbouring thirtieths of the text correlate by
        0.6 or less. {_neighbours(reading)}""",
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
                note=f"The {reading.percent} interval is of each pair alone. It can leave out 0 "
                "and the verdict still be that we cannot tell, when many pairs are asked about. "
                "Standard errors: what other seeds, and other held-out text of the same length, "
                "would change. More seeds reduce the first only.",
            ),
        ],
    )


def _noise(reading: Reading) -> str:
    if len(reading.about.seeds) == 1:
        return "One seed can never tell: use seeds=3 or more."
    if reading.noise is None:
        return """Beyond rounding, the seeds change nothing in any difference, so nothing is known
        about the noise, and nothing can be told."""
    return f"""What seed and variant leave unexplained of a loss varies by
        {math.sqrt(reading.noise.value):.3g} (standard deviation, from all variants together,
        {reading.noise.degrees} degrees of freedom); a pair whose own differences vary more is
        judged by those."""


def _neighbours(reading: Reading) -> str:
    """How alike neighbouring stretches of the text were, which the promise depends on."""
    known = [pair.neighbours for pair in reading.pairs if pair.neighbours is not None]
    texts = [text for one in reading.contenders for text in one.texts.values()]
    if not known:
        return ""
    stretches = texts[0]
    return f"""Here differences over neighbouring stretches ({len(stretches.sums)} of
        {fmean(stretches.counts):.0f} tokens) correlate by {min(known):.2f} to {max(known):.2f}, so
        the error by text comes from {len(stretches.batches().sums)} long parts of the text."""


def _curves(reading: Reading) -> Section:
    held_out = []
    for one in reading.contenders:
        points = [mean_interval(losses, reading.level) for _, losses in one.curve]
        ends = len(one.finished) > 2  # of two seeds they are as wide as the plot
        held_out.append(
            Series(
                name=one.label,
                x=[step for step, _ in one.curve],
                y=[point.mean for point in points],
                low=[point.low for point in points] if ends else None,
                high=[point.high for point in points] if ends else None,
            )
        )
    training = []
    for one in reading.contenders:
        rows = [found["curve"] for found in one.finished.values()]
        parts = [(at[0][0], fmean(loss for _, loss in at)) for at in zip(*rows, strict=True)]
        training.append(
            Series(name=one.label, x=[step for step, _ in parts], y=[loss for _, loss in parts])
        )
    return Section(
        heading="Learning curves",
        blocks=[
            Plot(
                title="Held-out loss",
                x="step",
                y="nats a token",
                series=held_out,
                note=f"Means over the seeds{_bands(reading)}.",
            ),
            Plot(
                title="Training loss",
                x="step",
                y="nats a token",
                series=training,
                note="Means over stretches of steps and over the seeds.",
            ),
        ],
    )


def _bands(reading: Reading) -> str:
    return f", with {reading.percent} intervals" if len(reading.about.seeds) > 2 else ""


def _cache(reading: Reading) -> Section:
    front = reading.front(reading.cache_costs)
    rows: list[list[Cell]] = [
        [
            one.label,
            one.cache["per_token"] if one.cache else None,
            one.cache["constant"] if one.cache else None,
            one.cache["at_context"] if one.cache else None,
            "yes" if one.label in front else "no",
        ]
        for one in reading.contenders
    ]
    return Section(
        heading="Quality against cache",
        text="""Keys and values of what was read are kept while a text is written. Each further
        token adds to them; a window keeps a ring of constant size instead, and a recurrent model
        one vector. A variant is off the front when another is told to be better (above) and has no
        larger cache.""",
        blocks=[
            Table(
                title="Bytes that decoding keeps",
                columns=[
                    "variant",
                    "for each token",
                    "besides",
                    f"after {reading.about.context:,} tokens",
                    "on the front",
                ],
                rows=rows,
                note="Measured in float32 on the cache itself, after one context and after two.",
            ),
            _pareto(
                reading,
                "Held-out loss against cache",
                f"bytes in the cache after {reading.about.context:,} tokens",
                reading.cache_costs,
            ),
        ],
    )


def _pareto(reading: Reading, title: str, x: str, cost: Mapping[str, Cost | None]) -> Plot:
    series = []
    for one in reading.ranked:
        price, loss = cost[one.label], reading.loss(one)
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


def _times(reading: Reading) -> Section:
    front, target = reading.front(reading.step_costs), reading.target
    rows: list[list[Cell]] = [
        [
            one.label,
            one.step["step_ms"],
            f"{one.step['fastest_ms']:.3g} to {one.step['slowest_ms']:.3g}",
            one.step["tokens_per_second"],
            None if target is None else one.seconds_to(target),
            megabytes(one.memory),
            one.decoding,
            ", ".join(one.step["paths"]),
            "yes" if one.label in front else "no",
        ]
        for one in reading.contenders
    ]
    at = "" if target is None else f" {target:.3f}"
    return Section(
        heading=TIMES,
        text=f"""Measured on this machine when nothing else of this comparison ran, variant by
        variant in turns, {_threads()}. {_fastest(reading)} A variant is off the front when another
        is told to be better (above) and not clearly slower: clearly means that all turns of one
        took longer than all of the other.""",
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
                note=f"A step reads {reading.about.tokens:,} tokens. Medians of the turns. "
                "Decoding writes one text up to the context. Memory: weights, gradients, the "
                "optimiser's state and all else in a step; on a CPU right to some percent.",
            ),
            _pareto(
                reading, "Held-out loss against time", "milliseconds a step", reading.step_costs
            ),
        ],
    )


def _threads() -> str:
    return "on one thread" if place_of("auto").type == "cpu" else "on the GPU"


def _fastest(reading: Reading) -> str:
    order = sorted(reading.contenders, key=lambda one: one.step["step_ms"])
    fast, slow = order[0], order[-1]
    overlap = fast.step["slowest_ms"] >= slow.step["fastest_ms"]
    spread = ", within the spread of the turns" if overlap else ""
    return (
        f"A step of {slow.label} takes {slow.step['step_ms'] / fast.step['step_ms']:.2f} times as "
        f"long as one of {fast.label}{spread}."
    )


def _search(reading: Reading) -> Section:
    grid = reading.about.search.rates
    rows: list[list[Cell]] = []
    edge = []
    for one in reading.contenders:
        found = one.searched or {"losses": [], "chosen": 1.0}
        losses = dict(found["losses"])
        rows.append([one.label, *(losses.get(rate) for rate in grid), f"{found['chosen']:g}"])
        if len(grid) > 1 and found["chosen"] in (min(grid), max(grid)):
            edge.append(one.label)
    more = f" The best of {', '.join(edge)} is at the edge: look further." if edge else ""
    return Section(
        heading="Learning rates",
        text=f"""Searched because {reading.about.search.why}. Before, every variant was trained once
        with each multiple of its recipe's rates and a seed of its own,
        {reading.about.seeds[-1] + 1}, which counts for nothing else: the same budget for each. The
        rate with the lowest loss on the first quarter of the held-out text was taken; all other
        losses and verdicts of this report leave that quarter out, the learning curves aside.
        Another search could choose a neighbouring rate: intervals do not count that.{more}""",
        blocks=[
            Table(
                title="Loss by multiple of the rate, on the quarter that chooses",
                columns=["variant", *(f"× {rate:g}" for rate in grid), "taken"],
                rows=rows,
                note="A gap: it did not come to its end.",
            )
        ],
    )


def _samples(reading: Reading) -> Section:
    written = reading.about.samples
    return Section(
        heading="What they write",
        text=f"""All go on from the same words of the held-out text, with the same random numbers,
        at temperature 0.8: {written["prompt"]!r}. These are the models of seed
        {written["seed"]}.""",
        blocks=[
            Sample(title=label, text=written["prompt"] + text)
            for label, text in written["texts"].items()
        ],
    )


def _how(reading: Reading) -> Section:
    about = reading.about

    def row(one: Contender) -> list[Cell]:
        return [one.label, one.spec, one.change or "nothing"]

    return Section(
        heading="What is equal",
        text=f"""{HOW[about.comparison.match]} All train on {about.text}, with
        {reading.counted_seeds} ({", ".join(map(str, about.seeds))}): with a seed come the same
        samples in the same order for all. Where steps differ, one reads further than
        another. {rates(reading)}""",
        blocks=[
            Table(
                title="The variants",
                columns=["variant", "as written", "changed to be equal"],
                rows=[row(one) for one in reading.contenders],
            )
        ],
    )
