"""What the birthplaces study found: tables, curves and sentences, computed from its results."""

from collections.abc import Sequence
from typing import Any

from attnlab.reports.report import Plot, Section, Series, Table
from attnlab.statistics import Interval, mean_interval, share_interval
from attnlab.studies.birthplaces.people import GROUPS
from attnlab.studies.study import Findings

ARMS = {
    "none": "no pretraining",
    "learned": "pretrained, learned positions",
    "rotary": "pretrained, rotary positions",
    "growing": "pretrained, rotary with growing frequencies (a mistake)",
    "by-head": "pretrained, rotary by head index (a mistake)",
    "one-wording": "pretrained, rotary, one wording a person",
}
RIGHT = ("learned", "rotary")  # pretrained as they should be: neither mistakes nor short of words
INTERVIEWED = "rotary"  # the arm whose confidence is examined

# median and range of the runs people have published, in percent
PUBLISHED = {
    "none": "1.8 (0.2 to 2.6, 28 runs)",
    "learned": "23.0 (12.4 to 27.2, 30 runs)",
    "rotary": "31.8 (27.0 to 40.4, 10 runs)",
    "growing": "12.2 and 21.6 (2 runs)",
    "by-head": "14.8 (1 run)",
}
WORST_PUBLISHED = {"none": 0.002, "learned": 0.124, "rotary": 0.27}


def findings(study: Any, results: dict[str, Any]) -> Findings:
    baseline = results["the most frequent answer"]
    arms = {arm: judged(study, arm, results) for arm in study.chosen()}
    spread = {arm: _interval(found) for arm, found in arms.items()}
    interviews = [r for name, r in results.items() if name.startswith("interview ")]
    summary = {
        "baseline": baseline,
        "arms": {
            arm: {
                "label": ARMS[arm],
                "accuracy": spread[arm].mean,
                "low": spread[arm].low,
                "high": spread[arm].high,
                "by_seed": [one["accuracy"] for one in found],
                "pipeline_seconds": [one["pipeline_seconds"] for one in found],
                "parameters": found[0]["parameters"],
                "published": PUBLISHED.get(arm) if study.data else None,
            }
            for arm, found in arms.items()
        },
        "checks": _checks(study, baseline["accuracy"], spread),
        "interviews": interviews,
    }
    sections = [_main(study, baseline, arms, spread), _curves(study, arms)]
    if interviews:
        sections.append(_confidence(interviews))
    sections.append(_how(study, arms))
    return Findings(
        title="Birthplaces: does pretraining carry facts?",
        question="Can a model answer questions about people whom it has only read about?",
        answer=_answer(baseline, spread),
        sections=sections,
        summary=summary,
    )


def judged(study: Any, arm: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """What each seed's last stage gave, with the seconds of all its stages."""
    found: list[dict[str, Any]] = []
    for seed in study.repeats:
        stages = [
            results[name]
            for stage in ("pretrain", "train", "finetune")
            if (name := f"{stage} {arm}, seed {seed}") in results
        ]
        seconds = sum(one["ready_seconds"] + one["training_seconds"] for one in stages)
        last = stages[-1]
        found.append({**last, "pipeline_seconds": seconds + last["answering_seconds"]})
    return found


def _interval(found: Sequence[dict[str, Any]]) -> Interval:
    """Over seeds or over the people asked, whichever reaches further.

    Seeds that happen to agree say nothing about other people, and all seeds ask the same ones.
    """
    seeds = mean_interval([one["accuracy"] for one in found])
    people = share_interval(round(seeds.mean * found[0]["questions"]), found[0]["questions"])
    if seeds.low is None or seeds.high is None:
        return people
    assert people.low is not None and people.high is not None  # a share always has ends
    return Interval(
        seeds.mean, min(seeds.low, people.low), max(seeds.high, people.high), seeds.count
    )


def _checks(study: Any, baseline: float, spread: dict[str, Interval]) -> dict[str, bool]:
    """What the theory says must come out, where the arms for it were run."""
    means = {arm: interval.mean for arm, interval in spread.items()}
    checks = {}
    if "none" in means:
        checks["without pretraining below the most frequent answer"] = means["none"] < baseline
    for arm in RIGHT:
        if arm in means:
            checks[f"{arm}: pretraining beats the most frequent answer"] = means[arm] > baseline
    if {"rotary", "one-wording"} <= means.keys():
        checks["many wordings beat one"] = means["one-wording"] < means["rotary"]
    for arm, least in WORST_PUBLISHED.items() if study.data and study.size is None else ():
        if arm in means:
            checks[f"{arm}: no worse than any published run"] = means[arm] >= least
    return checks


def _answer(baseline: dict[str, Any], spread: dict[str, Interval]) -> str:
    pretrained = [arm for arm in RIGHT if arm in spread] or [arm for arm in spread if arm != "none"]
    best = max(pretrained, key=lambda arm: spread[arm].mean, default=None)
    always = f"always answering {baseline['answer']} gets {_percent(baseline['accuracy'])}"
    without = f", without pretraining {_with(spread['none'])}" if "none" in spread else ""
    if best is None:
        return f"Not tried with pretraining: {always}{without}."
    verdict = "Yes" if (spread[best].low or 0) > baseline["accuracy"] else "Not that it shows here"
    return f"{verdict}: {always}{without}, and {ARMS[best]} {_with(spread[best])} of the questions."


def _main(
    study: Any, baseline: dict[str, Any], arms: dict[str, Any], spread: dict[str, Interval]
) -> Section:
    rows: list[list[Any]] = [
        [f"always {baseline['answer']}", f"{100 * baseline['accuracy']:.1f}", "", "", ""]
    ]
    for arm, found in arms.items():
        each = ", ".join(f"{100 * one['accuracy']:.1f}" for one in found)
        seconds = sum(one["pipeline_seconds"] for one in found) / len(found)
        published = PUBLISHED.get(arm, "") if study.data else ""
        rows.append([ARMS[arm], _ends(spread[arm]), each, published, f"{seconds:.0f} s"])
    columns = ["variant", "right on dev, %", "each seed, %", "published, %", "time of one"]
    counts = baseline["questions"]
    bars = Plot(
        title="Accuracy on people who were never asked about",
        x="",
        y="accuracy, %",
        kind="bars",
        series=[
            Series(
                name="accuracy",
                x=["most frequent", *arms],
                y=[100 * baseline["accuracy"], *(100 * spread[arm].mean for arm in arms)],
                low=[None, *(_end(spread[arm].low) for arm in arms)],
                high=[None, *(_end(spread[arm].high) for arm in arms)],
            )
        ],
    )
    text = (
        f"{counts['train']:,} people are asked about in training, {counts['dev']:,} others are "
        "asked about afterwards. An answer counts when it is exactly right. Intervals are at "
        "95\u00a0%: over seeds (Student's t) or over the people asked (Wilson), whichever reaches "
        "further."
    )
    table = Table(title="Exact answers", columns=columns, rows=rows, note=_remark(study))
    return Section(heading="How many answers are right", text=text, blocks=[table, bars])


def _remark(study: Any) -> str:
    if not study.data:
        return "The people are invented, so nothing published compares."
    if study.tuning:
        return f"{study.tuning} of the training questions play dev here; dev itself is unseen."
    return "One point is five people of 500. Published: the same data, other people's programs."


def _curves(study: Any, arms: dict[str, Any]) -> Section:
    shown = {arm: found for arm, found in arms.items() if arm != "none"} or arms
    curves = {arm: _curve(arm, found) for arm, found in shown.items()}
    at_once = study.recipe == "best"
    plot = Plot(
        title="Accuracy while learning to answer",
        x="part of the training" if at_once else "epochs of finetuning",
        y="dev accuracy, %",
        series=list(curves.values()),
        note="The band reaches from the worst seed to the best." if study.times > 1 else "",
    )
    if at_once:
        heading, text = "How the answers come", "Questions are mixed in from the first step on."
    else:
        heading = "How long to finetune"
        text = (
            "Finetuning shows how questions are asked, and answers them for the training people "
            f"only. {' '.join(_peak(arm, curve) for arm, curve in curves.items())} What comes "
            "after a peak is learning those answers by heart, at the cost of what was stored."
        )
    return Section(heading=heading, text=text, blocks=[plot])


def _curve(arm: str, found: Sequence[dict[str, Any]]) -> Series:
    """The mean over seeds at each point that all of them have."""
    curves = [dict(map(tuple, one["curve"])) for one in found]
    at = sorted(set.intersection(*(set(curve) for curve in curves)))
    points = [[100 * curve[x] for curve in curves] for x in at]
    several = len(found) > 1
    return Series(
        name=arm,
        x=at,
        y=[sum(values) / len(values) for values in points],
        low=[min(values) for values in points] if several else None,
        high=[max(values) for values in points] if several else None,
    )


def _peak(arm: str, curve: Series) -> str:
    means = [value for value in curve.y if value is not None]
    best = max(range(len(means)), key=means.__getitem__)
    return (
        f"{arm.capitalize()}: best after epoch {curve.x[best]:g} ({means[best]:.1f} %), "
        f"{means[-1]:.1f} % at the end."
    )


def _confidence(interviews: Sequence[dict[str, Any]]) -> Section:
    first = interviews[0]
    rows: list[list[Any]] = []
    for group, label in GROUPS.items():
        found = [one["groups"][group] for one in interviews if one["groups"][group]["people"]]
        if not found:
            continue
        right = [one["right"] for one in found if one["right"] is not None]
        sure = [one["confidence"]["mean"] for one in found]
        rows.append(
            [
                label,
                found[0]["people"],
                _mean_percent(right) if right else None,
                _mean_percent(sure),
            ]
        )
    table = Table(
        title="Whom it is asked about",
        columns=["people", "how many", "right", "mean confidence"],
        rows=rows,
    )
    shares = [5 * n for n in range(21)]
    plot = Plot(
        title="How sure the answers are",
        x="confidence: the probability of the whole answer",
        y="people at or below, %",
        series=[
            Series(name=group, x=found["confidence"]["percentiles"], y=shares)
            for group, found in first["groups"].items()
            if found["people"]
        ],
    )
    detect = Table(
        title="Confidence as a detector of made-up answers",
        columns=["told apart", "AUROC"],
        rows=[
            [what, _mean_number([one["auroc"][what] for one in interviews])]
            for what in first["auroc"]
        ],
        note="1 tells them apart without fault, 0.5 not at all.",
    )
    examples = Table(
        title="Some answers",
        columns=["question", "answer", "truth", "confidence"],
        rows=[
            [one["question"], one["given"], one["expected"] or "nobody", one["confidence"]]
            for found in first["groups"].values()
            for one in found["examples"][:3]
        ],
    )
    text = (
        "A model always answers. For a name that belongs to nobody the answer is made up, and "
        "nothing in its form says so; what differs is the probability the model gives it."
    )
    return Section(heading="Who is known", text=text, blocks=[table, plot, detect, examples])


def _how(study: Any, arms: dict[str, Any]) -> Section:
    if study.recipe == "best":
        text = (
            "Best recipe: one training in which documents with a lost span, a few words asked for "
            "by the name alone, and the training questions come side by side; Muon, an average "
            "of the weights, rotary positions, normalised queries and keys."
        )
    else:
        text = (
            "Course recipe: documents lose a span and the model fills it in (pretraining), then "
            "it is shown questions with answers (finetuning)."
        )
    controls = [arm for arm in arms if arm in ("growing", "by-head")]
    if controls:
        text += (
            "\n\nTwo variants are mistakes, kept as controls. Growing frequencies: a lost minus "
            "sign, so that nearly all pairs turn by more than a full circle from one token to the "
            "next few. By head index: the angle counts heads instead of tokens, turns query and "
            "key alike, and so tells nothing: such a model has no positions at all."
        )
    if "one-wording" in arms:
        text += (
            "\n\nOne wording: each person's document is the same in every epoch. Many wordings: "
            "the same facts told differently. With one, the model can store the sentence as a "
            "string of letters; with many, what stays the same is the name and its facts."
        )
    sizes = Table(
        title="Sizes",
        columns=["variant", "parameters", "steps of the last stage", "loss at its end"],
        rows=[
            [ARMS[arm], found[0]["parameters"], found[0]["steps"], found[0]["loss"]]
            for arm, found in arms.items()
        ],
    )
    return Section(heading="How it was done", text=text, blocks=[sizes])


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _with(interval: Interval) -> str:
    """In a sentence: "31.8 % (27.0 to 40.4)"."""
    if interval.low is None or interval.high is None:
        return _percent(interval.mean)
    low, high = max(interval.low, 0.0), min(interval.high, 1.0)
    return f"{_percent(interval.mean)} ({100 * low:.1f} to {100 * high:.1f})"


def _ends(interval: Interval) -> str:
    """In a column of percent."""
    return _with(interval).replace("\u00a0%", "")


def _end(share: float | None) -> float | None:
    return None if share is None else 100 * min(max(share, 0.0), 1.0)


def _mean_percent(values: Sequence[float]) -> str:
    return _percent(sum(values) / len(values))


def _mean_number(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
