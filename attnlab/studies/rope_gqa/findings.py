"""What the trainings of the rope-gqa study show: losses, differences, the answer.

Every sentence is computed from the numbers; a difference counts when its interval leaves out 0.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnlab.reports.report import Plot, Sample, Section, Series, Table
from attnlab.statistics import Interval, mean_interval
from attnlab.studies.language import verdict
from attnlab.studies.rope_gqa import costs, faults
from attnlab.studies.rope_gqa.sweep import Sweep
from attnlab.studies.study import Findings

# positions, key/value heads
MODELS = {
    "absolute": ("learned", 6),
    "rotary": ("rotary", 6),
    "grouped": ("learned", 2),
    "both": ("rotary", 2),
}
MEASURES = {
    "held_out": "held-out loss",
    "training": "training loss",
    "last": "training loss, last step",
}
PAIRS = (
    ("rotary", "absolute"),
    ("both", "grouped"),
    ("grouped", "absolute"),
    ("both", "rotary"),
    ("both", "absolute"),
)

Trained = dict[str, dict[int, list[dict[str, Any]]]]  # by variant and block, one for each seed


@dataclass(frozen=True, kw_only=True)
class About:
    """What was done, in numbers."""

    scale: str
    text: str
    seeds: list[int]
    blocks: tuple[int, int]
    steps: int
    width: int
    depth: int
    batch: int
    sweep: Sweep


@dataclass(frozen=True)
class Difference:
    """One variant's loss less another's, seed by seed."""

    first: str
    second: str
    interval: Interval

    @property
    def verdict(self) -> str:
        return verdict(self.interval)

    def __str__(self) -> str:
        return f"{self.first} − {self.second} = {interval_text(self.interval, signed=True)}"


def findings(about: About, trained: Trained, results: dict[str, Any]) -> Findings:
    differences = {
        (first, second): difference(trained, first, second, about.blocks[-1], "held_out")
        for first, second in PAIRS
    }
    cost = costs.costs_of(results, about.sweep)
    sections = [
        _losses(about, trained),
        _differences(about, trained),
        _curves(about, trained),
        costs.section(cost),
        faults.section(cost.flawed, _by_one_batch(about, trained)),
        _samples(results["samples"]),
        _how(about, trained),
    ]
    summary = {
        "scale": about.scale,
        "seeds": about.seeds,
        "variants": {variant: _numbers(about, trained, variant) for variant in MODELS},
        "differences": [
            {
                "block": block,
                "loss": measure,
                "first": first,
                "second": second,
                **asdict((found := difference(trained, first, second, block, measure)).interval),
                "verdict": found.verdict,
            }
            for block in about.blocks
            for measure in MEASURES
            for first, second in PAIRS
        ],
        "samples": results["samples"],
        **cost.summary,
    }
    return Findings(
        title="Rotary positions and shared key/value heads",
        question="What do rotary positions and shared key/value heads do to the loss, and what do "
        "shared heads save in time and memory?",
        answer=f"{_quality(about, differences)} {cost.answer}",
        sections=sections,
        summary=summary,
    )


def difference(trained: Trained, first: str, second: str, block: int, measure: str) -> Difference:
    values = ([seed[measure] for seed in trained[variant][block]] for variant in (first, second))
    return Difference(first, second, mean_interval([a - b for a, b in zip(*values, strict=True)]))


def interval_text(interval: Interval, signed: bool = False) -> str:
    """1.234 [1.200, 1.268]"""
    numbers = [interval.mean, interval.low, interval.high]
    sign = "+" if signed else ""
    mean, *ends = [f"{n:{sign}.3f}".replace("-", "−") for n in numbers if n is not None]
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _quality(about: About, differences: dict[tuple[str, str], Difference]) -> str:
    rotary, shared = differences["rotary", "absolute"], differences["both", "rotary"]
    seeds, (short, long) = _count(about), about.blocks
    return (
        f"{_effect('Rotary instead of learned positions', rotary, seeds)} (of the {long} learned "
        f"position vectors {long - short} are untrained when the blocks of {long} begin); "
        f"{_effect('two instead of six key/value heads', shared, seeds)}."
    )


def _effect(what: str, found: Difference, seeds: str) -> str:
    said = f"the held-out loss is {found.verdict}"
    if found.verdict == "cannot tell":
        said = f"{seeds} cannot tell whether the held-out loss changes"
    return f"{what}: {said}, {found}"


def _losses(about: About, trained: Trained) -> Section:
    short, long = about.blocks
    note = (
        f"Nats a character, means over {_count(about)} with 95 % intervals. Training loss: the "
        "mean of the last 50 steps, and the last step alone."
    )
    models = Table(
        title="The models",
        columns=["model", "positions", "key/value heads", "parameters"],
        rows=[
            [variant, *described, trained[variant][long][0]["parameters"]]
            for variant, described in MODELS.items()
        ],
    )
    titles = (
        f"After {about.steps} steps on blocks of {short}",
        f"After {about.steps} more steps on blocks of {long}",
    )
    tables = [
        Table(
            title=title,
            columns=["model", *MEASURES.values()],
            rows=[
                [
                    variant,
                    *(interval_text(_interval(trained, variant, block, m)) for m in MEASURES),
                ]
                for variant in MODELS
            ],
            note=note if stage else "",
        )
        for stage, (block, title) in enumerate(zip(about.blocks, titles, strict=True))
    ]
    seeds = Table(
        title="Each seed after both stages: held-out loss (training loss)",
        columns=["model", *(f"seed {seed}" for seed in about.seeds)],
        rows=[
            [
                variant,
                *(
                    f"{one['held_out']:.3f} ({one['training']:.3f})"
                    for one in trained[variant][long]
                ),
            ]
            for variant in MODELS
        ],
    )
    return Section(
        heading="Four models",
        text=f"""The same transformer four times: positions are learned vectors or rotations of
        queries and keys (RoPE), and six query heads have a key/value head each or share two (GQA).
        Every model is trained for {about.steps} steps on blocks of {short} characters, and goes on
        from its last weights for {about.steps} steps on blocks of {long}.

        The training loss is taken with dropout on what the model is being trained on, the held-out
        loss without dropout on text that it never sees. Only the second says how well a model does
        on anything new.""",
        blocks=[models, *tables, seeds],
    )


def _count(about: About) -> str:
    return f"{len(about.seeds)} seed" + ("" if len(about.seeds) == 1 else "s")


def _differences(about: About, trained: Trained) -> Section:
    short, long = about.blocks
    rows: list[list[str]] = []
    for first, second in PAIRS:
        found = [difference(trained, first, second, long, m) for m in ("training", "held_out")]
        texts = [interval_text(one.interval, signed=True) for one in found]
        rows.append([f"{first} − {second}", *texts, found[-1].verdict])
    return Section(
        heading="Do they differ?",
        text=f"""Two models of one seed read the same batches in the same order, so they are
        compared seed by seed. An interval that contains 0 means that
        repeating the experiment could give the other sign: we cannot tell.
        {_on_seeds(len(about.seeds))} Each interval is at 95 % by itself: of several comparisons one
        may leave out 0 by chance.

        One thing to know before praising rotary positions: on blocks of {short} no character
        stands past position {short - 1}, so of the {long} learned vectors only {short} have been
        trained when the long blocks begin, and the other {long - short} are still random. Rotary
        positions have no such table. How much of the difference comes from this handicap of the
        two-stage recipe, and how much from the idea itself, was not measured.""",
        blocks=[
            Table(
                title=f"Differences after both stages, blocks of {long}",
                columns=["", MEASURES["training"], MEASURES["held_out"], "held-out loss is"],
                rows=rows,
                note="The first two rows say what rotary positions do, with six heads and with "
                "two; the next two what sharing does, with learned positions and with rotary ones.",
            )
        ],
    )


def _on_seeds(seeds: int) -> str:
    if seeds == 1:
        return "One seed has no interval at all: use seeds=2 or more."
    if seeds == 2:
        return (
            "Intervals from two seeds are very wide; seeds=5 makes them about seven times narrower."
        )
    return ""


def _curves(about: About, trained: Trained) -> Section:
    training, held_out = [], []
    for variant in MODELS:
        rows: list[tuple[float, Interval | None]] = []
        points: list[tuple[float, Interval | None]] = []
        for stage, block in enumerate(about.blocks):
            shift = stage * about.steps
            if stage:  # a gap: the two stages ask for different things
                rows.append((shift, None))
                points.append((shift, None))
            rows += _over_seeds([one["curve"] for one in trained[variant][block]], shift)
            points += _over_seeds([one["evaluations"] for one in trained[variant][block]], shift)
        training.append(_series(variant, rows, ends=False))
        held_out.append(_series(variant, points, ends=len(about.seeds) > 2))
    switch = (
        f"Steps up to {about.steps} are on blocks of {about.blocks[0]}, the rest on blocks "
        f"of {about.blocks[1]}: more to read before each character makes it easier to guess."
    )
    return Section(
        heading="Learning curves",
        blocks=[
            Plot(
                title="Training loss",
                x="step",
                y="nats a character",
                series=training,
                note=f"Smoothed, means over the seeds. {switch}",
            ),
            Plot(
                title="Held-out loss",
                x="step",
                y="nats a character",
                series=held_out,
                note="Means over the seeds.",
            ),
        ],
    )


def _over_seeds(
    curves: Sequence[Sequence[Sequence[float]]], shift: int
) -> list[tuple[float, Interval | None]]:
    return [
        (shift + points[0][0], mean_interval([loss for _, loss in points]))
        for points in zip(*curves, strict=True)
    ]


def _series(name: str, rows: list[tuple[float, Interval | None]], ends: bool) -> Series:
    intervals = [interval for _, interval in rows]
    return Series(
        name=name,
        x=[step for step, _ in rows],
        y=[None if i is None else i.mean for i in intervals],
        low=[None if i is None else i.low for i in intervals] if ends else None,
        high=[None if i is None else i.high for i in intervals] if ends else None,
    )


def _samples(written: dict[str, Any]) -> Section:
    return Section(
        heading="What they write",
        text=f"""All four go on from the same words of the held-out text, with the same random
        numbers, at temperature 0.8: {written["prompt"]!r}. These are the models of seed
        {written["seed"]}.""",
        blocks=[
            Sample(title=variant, text=written["prompt"] + text)
            for variant, text in written["texts"].items()
        ],
    )


def _how(about: About, trained: Trained) -> Section:
    precision = trained["absolute"][about.blocks[-1]][0]["precision"]
    return Section(
        heading="Sizes",
        text=f"""{about.depth} layers, width {about.width}, 6 heads, batch {about.batch}, dropout
        0.1, AdamW with a constant rate; seeds {about.seeds[0]} to {about.seeds[-1]}; text:
        {about.text}. Trained in {precision}. {_scaled_down(about)}""",
    )


def _scaled_down(about: About) -> str:
    if about.scale == "full":
        return "This is the size of the course (CMU 10-423/623, homework 1)."
    return (
        "The course (CMU 10-423/623, homework 1) has 6 layers of width 192, blocks of 16 and 256, "
        "batch 64 and 600 steps a stage: attnlab study rope-gqa scale=full data=FILE."
    )


def _interval(trained: Trained, variant: str, block: int, measure: str) -> Interval:
    return mean_interval([one[measure] for one in trained[variant][block]])


def _numbers(about: About, trained: Trained, variant: str) -> dict[str, Any]:
    return {
        "parameters": trained[variant][about.blocks[0]][0]["parameters"],
        "stages": [
            {
                "block": block,
                **{
                    measure: {
                        "seeds": [one[measure] for one in trained[variant][block]],
                        **asdict(_interval(trained, variant, block, measure)),
                    }
                    for measure in MEASURES
                },
            }
            for block in about.blocks
        ],
    }


def _by_one_batch(about: About, trained: Trained) -> faults.Row:
    """What the last training step of one seed says about shared heads, and what is true."""
    long = about.blocks[-1]
    one = trained["both"][long][0]["last"] - trained["rotary"][long][0]["last"]
    found = difference(trained, "both", "rotary", long, "held_out")
    return faults.Row(
        fault="one training loss: the last step of one seed",
        reported=f"both − rotary {one:+.3f}".replace("-", "−"),
        true=f"{interval_text(found.interval, signed=True)}, {found.verdict}",
        why="One batch is a sample of the text, and one seed a sample of the models: such a number "
        "changes with every step. The truth here is the held-out loss of all seeds.",
    )
