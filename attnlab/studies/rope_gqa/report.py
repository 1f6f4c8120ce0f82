"""The report of the rope-gqa study: losses, differences, the answer.

Every sentence is computed from the numbers. The held-out losses after both stages are judged, by
the verdicts that comparisons use; the other differences have intervals only.
"""

from functools import cached_property
from typing import Any

from attnlab.experiments import samples, verdicts
from attnlab.experiments.experiment import Findings
from attnlab.experiments.presentation import (
    Point,
    counted_seeds,
    curve,
    judged_numbers,
    judged_together,
    learning_curves,
    mean_with_ends,
    numbers,
    over_seeds,
    with_ends,
)
from attnlab.experiments.verdicts import Pair, Verdicts
from attnlab.reports.report import Section, Table
from attnlab.studies.rope_gqa import costs, faults
from attnlab.studies.rope_gqa.experiment import (
    MODELS,
    VARIANTS,
    RopeGqaStudy,
    TrainingResult,
    training_name,
)

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


class Analysis:
    """The losses by variant, block and seed, and their differences."""

    def __init__(self, study: RopeGqaStudy, results: dict[str, Any]) -> None:
        self.study, self.results = study, results
        self.seeds, self.blocks = study.seed_numbers, study.size.blocks

    def trained(self, variant: str, block: int) -> list[TrainingResult]:
        """One for each seed."""
        return [self.results[training_name(variant, seed, block)] for seed in self.seeds]

    def losses(self, variant: str, block: int, measure: str) -> dict[int, float]:
        return {
            seed: self.results[training_name(variant, seed, block)][measure] for seed in self.seeds
        }

    def differences(self, block: int, measure: str) -> Verdicts:
        table = {variant: self.losses(variant, block, measure) for variant in VARIANTS}
        return verdicts.judge(verdicts.differences(table, among=PAIRS))

    @cached_property
    def judged(self) -> Verdicts:
        """The family: held-out losses after both stages."""
        return self.differences(self.blocks[-1], "held_out")

    def interval(self, variant: str, block: int, measure: str) -> str | None:
        return mean_with_ends(self.losses(variant, block, measure))


def findings(study: RopeGqaStudy, results: dict[str, Any]) -> Findings:
    analysis = Analysis(study, results)
    cost = costs.costs_of(results, study.size.sweep)
    sections = [
        _losses(analysis),
        _differences(analysis),
        _curves(analysis),
        costs.section(cost),
        faults.section(cost.flawed, _by_one_batch(analysis)),
        samples.section(results["samples"]),
        _how(analysis),
    ]
    return Findings(
        title="Rotary positions and shared key/value heads",
        question="What do rotary positions and shared key/value heads do to the loss, and what do "
        "shared heads save in time and memory?",
        answer=f"{_quality(analysis)} {cost.answer}",
        sections=sections,
        summary={**_summary(analysis), "samples": results["samples"], **cost.summary},
    )


def _quality(analysis: Analysis) -> str:
    rotary = analysis.judged.between("rotary", "absolute")
    shared = analysis.judged.between("both", "rotary")
    seeds, (short, long) = counted_seeds(len(analysis.seeds)), analysis.blocks
    return (
        f"{_effect('Rotary instead of learned positions', rotary, seeds)} (of the {long} learned "
        f"position vectors {long - short} are untrained when the blocks of {long} begin); "
        f"{_effect('two instead of six key/value heads', shared, seeds)}."
    )


def _effect(what: str, found: Pair, seeds: str) -> str:
    said = f"the held-out loss is {found.direction}"
    if found.direction == "cannot tell":
        said = f"{seeds} cannot tell whether the held-out loss changes"
    size = with_ends(found.interval, sign="+")
    return f"{what}: {said}, {found.first} − {found.second} = {size}"


def _losses(analysis: Analysis) -> Section:
    steps, (short, long) = analysis.study.size.steps, analysis.blocks
    note = (
        f"Nats a character, means over {counted_seeds(len(analysis.seeds))} with 95 % intervals. "
        "Training loss: the mean of the last 50 steps, and the last step alone."
    )
    models = Table(
        title="The models",
        columns=["model", "positions", "key/value heads", "parameters"],
        rows=[
            [variant, *described, analysis.trained(variant, long)[0]["parameters"]]
            for variant, described in MODELS.items()
        ],
    )
    titles = (
        f"After {steps} steps on blocks of {short}",
        f"After {steps} more steps on blocks of {long}",
    )
    tables = [
        Table(
            title=title,
            columns=["model", *MEASURES.values()],
            rows=[
                [variant, *(analysis.interval(variant, block, m) for m in MEASURES)]
                for variant in VARIANTS
            ],
            note=note if stage else "",
        )
        for stage, (block, title) in enumerate(zip(analysis.blocks, titles, strict=True))
    ]
    seeds = Table(
        title="Each seed after both stages: held-out loss (training loss)",
        columns=["model", *(f"seed {seed}" for seed in analysis.seeds)],
        rows=[
            [
                variant,
                *(
                    f"{one['held_out']:.3f} ({one['training']:.3f})"
                    for one in analysis.trained(variant, long)
                ),
            ]
            for variant in VARIANTS
        ],
    )
    return Section(
        heading="Four models",
        text=f"""The same transformer four times: positions are learned vectors or rotations of
        queries and keys (RoPE), and six query heads have a key/value head each or share two (GQA).
        Every model is trained for {steps} steps on blocks of {short} characters, and continues
        from its last weights for {steps} steps on blocks of {long}.

        The training loss is taken with dropout on what the model is being trained on, the held-out
        loss without dropout on text that it is never trained on. Only the second says how well a
        model does on anything new.""",
        blocks=[models, *tables, seeds],
    )


def _differences(analysis: Analysis) -> Section:
    short, long = analysis.blocks
    training = analysis.differences(long, "training")
    rows = [
        [
            f"{first} − {second}",
            with_ends(training.between(first, second).interval, sign="+"),
            with_ends(analysis.judged.between(first, second).interval, sign="+"),
            analysis.judged.between(first, second).direction,
        ]
        for first, second in PAIRS
    ]
    return Section(
        heading="Do they differ?",
        text=f"""{judged_together(len(PAIRS), len(analysis.seeds), text=False)}

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


def _curves(analysis: Analysis) -> Section:
    steps = analysis.study.size.steps
    training, held_out = [], []
    for variant in VARIANTS:
        rows, points = list[Point](), list[Point]()
        for stage, block in enumerate(analysis.blocks):
            shift = stage * steps
            if stage:  # a gap: the two stages ask for different things
                rows.append((shift, ()))
                points.append((shift, ()))
            found = analysis.trained(variant, block)
            rows += over_seeds([one["curve"] for one in found], shift)
            points += over_seeds([one["evaluations"] for one in found], shift)
        training.append(curve(variant, rows, band=False))
        held_out.append(curve(variant, points))
    switch = (
        f"Steps up to {steps} are on blocks of {analysis.blocks[0]}, the rest on blocks "
        f"of {analysis.blocks[1]}: more to read before each character makes it easier to guess."
    )
    return learning_curves(
        "character",
        ("Training loss", training, f"Smoothed, means over the seeds. {switch}"),
        ("Held-out loss", held_out, "Means over the seeds."),
    )


def _how(analysis: Analysis) -> Section:
    study, seeds = analysis.study, analysis.seeds
    precision = analysis.trained("absolute", analysis.blocks[-1])[0]["precision"]
    return Section(
        heading="Sizes",
        text=f"""{study.size.depth} layers, width {study.size.width}, 6 heads, batch
        {study.size.batch}, dropout 0.1, AdamW with a constant rate; seeds {seeds[0]} to
        {seeds[-1]}; text: {study.data or "the documentation that comes with Python"}. Trained in
        {precision}. {_scaled_down(study.chosen_scale)}""",
    )


def _scaled_down(scale: str) -> str:
    if scale == "full":
        return "This is the size of the course (CMU 10-423/623, homework 1)."
    return (
        "The course (CMU 10-423/623, homework 1) has 6 layers of width 192, blocks of 16 and 256, "
        "batch 64 and 600 steps a stage: attnlab study rope-gqa scale=full data=FILE."
    )


def _summary(analysis: Analysis) -> dict[str, Any]:
    found = []
    for block in analysis.blocks:
        for measure in MEASURES:
            differences = analysis.differences(block, measure)
            judged = (block, measure) == (analysis.blocks[-1], "held_out")
            for pair in differences.pairs:
                row = judged_numbers(pair)
                if not judged:
                    row |= {"p": None, "verdict": None}
                row |= {"block": block, "loss": measure, "first": pair.first, "second": pair.second}
                found.append(row)
    return {
        "scale": analysis.study.chosen_scale,
        "seeds": analysis.seeds,
        "variants": {
            variant: {
                "parameters": analysis.trained(variant, analysis.blocks[0])[0]["parameters"],
                "stages": [
                    {
                        "block": block,
                        **{
                            measure: numbers([*analysis.losses(variant, block, measure).values()])
                            for measure in MEASURES
                        },
                    }
                    for block in analysis.blocks
                ],
            }
            for variant in VARIANTS
        },
        "differences": found,
    }


def _by_one_batch(analysis: Analysis) -> faults.Row:
    """What the last training step of one seed says about shared heads, and what is true."""
    long = analysis.blocks[-1]
    both, rotary = (analysis.trained(name, long)[0]["last"] for name in ("both", "rotary"))
    found = analysis.judged.between("both", "rotary")
    return faults.Row(
        fault="one training loss: the last step of one seed",
        reported=f"both − rotary {both - rotary:+.3f}",
        true=f"{with_ends(found.interval, sign='+')}, {found.direction}",
        why="One batch is a sample of the text, and one seed a sample of the models: such a number "
        "changes with every step. The truth here is the held-out loss of all seeds.",
    )
