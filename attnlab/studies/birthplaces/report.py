"""The report of the birthplaces study: tables, curves and sentences, computed from its results."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist, fmean, variance
from typing import Any, Literal

from attnlab.experiments import verdicts
from attnlab.experiments.experiment import Findings
from attnlab.experiments.presentation import counted_seeds
from attnlab.experiments.verdicts import LEVEL, Difference, Pair
from attnlab.reports.report import Plot, Section, Series, Table
from attnlab.statistics import Interval, Variance, mean_interval, share_interval
from attnlab.studies.birthplaces import published
from attnlab.studies.birthplaces.experiment import (
    ARMS,
    INTERVIEWED,
    Baseline,
    BirthplacesStudy,
    JudgedResult,
)
from attnlab.studies.birthplaces.people import GROUPS, Interview

# pretrained as they should be; the answer is about the first that was run, whatever came out
RIGHT = ("rotary", "learned")
MANY = 500  # degrees of freedom: more change nothing
CONSTANT, NONE = "the most frequent answer", "no pretraining"

Answer = Literal["Yes", "No", "Cannot tell"]


class ArmResult(JudgedResult):
    pipeline_seconds: float  # of all stages, and of answering


Arms = dict[str, list[ArmResult]]  # one for each seed


def findings(study: BirthplacesStudy, results: dict[str, Any]) -> Findings:
    baseline: Baseline = results[CONSTANT]
    arms: Arms = {arm: last_stages(study, arm, results) for arm in study.chosen()}
    spread = {arm: _interval(found) for arm, found in arms.items()}
    ahead = leads(baseline, arms)
    interviews: list[Interview] = [
        result for name, result in results.items() if name.startswith("interview ")
    ]
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
                "published": published.summary(arm) or None if study.data else None,
            }
            for arm, found in arms.items()
        },
        "verdict": verdict(ahead),
        "compared": judged_arm(arms),
        "ahead": {
            found.second: {
                "mean": lead.mean,
                "low": lead.low,
                "high": lead.high,
                "seeds": lead.count,
                "p": found.p,
            }
            for found in ahead
            if (lead := found.interval) is not None
        },
        "checks": _checks(study, baseline["accuracy"], spread),
        "interviews": interviews,
    }
    sections = [_main(study, baseline, arms, spread), _curves(study, arms)]
    if interviews:
        sections.append(_confidence(study, interviews))
    sections.append(_how(study, arms))
    return Findings(
        title="Birthplaces: does pretraining carry facts?",
        question="Can a model answer questions about people whom it has only read about?",
        answer=_answer(baseline, spread, ahead),
        sections=sections,
        summary=summary,
    )


def last_stages(study: BirthplacesStudy, arm: str, results: dict[str, Any]) -> list[ArmResult]:
    """The last stage of each seed, with the seconds of all its stages."""
    found: list[ArmResult] = []
    for seed in study.repeats:
        stages = [
            results[name]
            for stage in ("pretrain", "train", "finetune")
            if (name := f"{stage} {arm}, seed {seed}") in results
        ]
        seconds = sum(one["ready_seconds"] + one["training_seconds"] for one in stages)
        last: JudgedResult = stages[-1]
        found.append({**last, "pipeline_seconds": seconds + last["answering_seconds"]})
    return found


def _interval(found: Sequence[ArmResult]) -> Interval:
    """Over seeds or over the people asked, whichever reaches further.

    Seeds that happen to agree say nothing about other people, and all seeds ask the same ones.
    """
    seeds = mean_interval([one["accuracy"] for one in found])
    people = share_interval(round(seeds.mean * found[0]["questions"]), found[0]["questions"])
    return _wider(seeds, people) if seeds.count > 1 else people


def difference(
    these: Sequence[float], those: Sequence[float], people: int, name: str = CONSTANT
) -> Difference:
    """Of two accuracies: by the choice of seeds, paired, and by that of the people asked.

    Over people it is the sum of the variances of two Wilson shares. Both answer the same questions,
    which usually makes the truth narrower; how each answered is not kept. Arms vary very
    differently over the seeds, so a pair has no noise but its own. One seed never tells.
    """
    apart = [a - b for a, b in zip(these, those, strict=True)]
    found = Difference(first="", second=name, mean=fmean(apart), seeds=len(apart))
    if len(apart) == 1:
        return found
    by_people = sum(_share_variance(fmean(each), people) for each in (these, those))
    return replace(
        found,
        by_seeds=Variance(variance(apart) / len(apart), len(apart) - 1),
        by_sample=Variance(by_people, min(people - 1, MANY)),
    )


def _share_variance(accuracy: float, people: int) -> float:
    """From the width of Wilson's interval, which is above 0 for every share."""
    share = share_interval(round(accuracy * people), people)
    assert share.low is not None and share.high is not None  # a share always has ends
    half = (share.high - share.low) / 2
    return (half / NormalDist().inv_cdf((1 + LEVEL) / 2)) ** 2


def _wider(seeds: Interval, people: Interval) -> Interval:
    assert seeds.low is not None and seeds.high is not None  # of several seeds
    assert people.low is not None and people.high is not None  # a share always has ends
    return Interval(
        seeds.mean, min(seeds.low, people.low), max(seeds.high, people.high), seeds.count
    )


def judged_arm(arms: Sequence[str] | Arms) -> str | None:
    """The arm that the answer is about: named beforehand, not picked by its accuracy."""
    others = [arm for arm in arms if arm not in ("none", *RIGHT)]
    return next((arm for arm in (*RIGHT, *others) if arm in arms), None)


def leads(baseline: Baseline, arms: Arms) -> Sequence[Pair]:
    """The judged arm against each of its rivals, judged together."""
    arm = judged_arm(arms)
    if arm is None:
        return ()
    people = arms[arm][0]["questions"]
    these = [one["accuracy"] for one in arms[arm]]
    found = [difference(these, [baseline["accuracy"]] * len(these), people)]
    if "none" in arms:
        found.append(difference(these, [one["accuracy"] for one in arms["none"]], people, NONE))
    return verdicts.judge(found).pairs


def verdict(ahead: Sequence[Pair]) -> Answer:
    """Yes: told to be above both; No: told to be below one of them."""
    directions = [one.direction for one in ahead]
    if "lower" in directions:
        return "No"
    return "Yes" if directions == ["higher", "higher"] else "Cannot tell"


def _checks(
    study: BirthplacesStudy, baseline: float, spread: dict[str, Interval]
) -> dict[str, bool]:
    """What the theory says must come out, of the means of the arms that were run."""
    means = {arm: interval.mean for arm, interval in spread.items()}
    checks = {}
    if "none" in means:
        checks["mean without pretraining below the most frequent answer"] = means["none"] < baseline
    for arm in RIGHT:
        if arm in means:
            checks[f"{arm}: mean above the most frequent answer"] = means[arm] > baseline
    if {"rotary", "one-wording"} <= means.keys():
        checks["mean of many wordings above that of one"] = means["one-wording"] < means["rotary"]
    for arm in ("none", *RIGHT) if study.data and study.size is None else ():
        if arm in means:
            worst = published.accuracies(arm)[0] / 100
            checks[f"{arm}: mean no lower than any published file"] = means[arm] >= worst
    return checks


def _answer(baseline: Baseline, spread: dict[str, Interval], ahead: Sequence[Pair]) -> str:
    arm = judged_arm([*spread])
    always = f"always answering {baseline['answer']} gets {_percent(baseline['accuracy'])}"
    without = f", no pretraining {_with(spread['none'])}" if "none" in spread else ""
    if arm is None:
        return f"Cannot tell, nothing was pretrained: {always}{without}."
    shares = f"{always}{without}, and {ARMS[arm]} {_with(spread[arm])} of the questions"
    return f"{verdict(ahead)}: {shares}. {_lead(ahead)}"


def _lead(ahead: Sequence[Pair]) -> str:
    parts = [f"{_points(one.interval)} above {one.second}" for one in ahead if one.interval]
    said = f"The last is {' and '.join(parts)}."
    seeds = min(one.interval.count for one in ahead if one.interval)
    if seeds == 1:
        said += (
            " That is one seed: the interval of each accuracy is over the people asked, and what "
            "another seed would give is not known."
        )
    else:
        said += (
            f" These are 95\u00a0% intervals over {counted_seeds(seeds)} and the people asked; "
            "they are judged together, with Holm's correction."
        )
    if NONE not in [one.second for one in ahead]:
        said += " The arm without pretraining was not run, so what pretraining adds is not known."
    return said


def _points(found: Interval) -> str:
    mean = f"{100 * found.mean:.1f}".replace("-", "\u2212")
    if found.low is None or found.high is None:
        return f"{mean} points"
    ends = f"{100 * found.low:.1f} to {100 * found.high:.1f}".replace("-", "\u2212")
    return f"{mean} points ({ends})"


def _main(
    study: BirthplacesStudy, baseline: Baseline, arms: Arms, spread: dict[str, Interval]
) -> Section:
    rows: list[list[Any]] = [
        [f"always {baseline['answer']}", f"{100 * baseline['accuracy']:.1f}", "", "", ""]
    ]
    for arm, found in arms.items():
        each = ", ".join(f"{100 * one['accuracy']:.1f}" for one in found)
        seconds = sum(one["pipeline_seconds"] for one in found) / len(found)
        others = published.summary(arm) if study.data else ""
        rows.append([ARMS[arm], _ends(spread[arm]), each, others, f"{seconds:.0f} s"])
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
        "further. The arm without pretraining is trained on the questions alone, for its own "
        "number of steps (see Sizes): what is equal is the people, not the time."
    )
    note = _remark(study, counts["dev"])
    table = Table(title="Exact answers", columns=columns, rows=rows, note=note)
    return Section(heading="How many answers are right", text=text, blocks=[table, bars])


def _remark(study: BirthplacesStudy, people: int) -> str:
    if not study.data:
        return "The people are invented, so nothing published compares."
    if study.tuning:
        return f"{study.tuning} of the training questions play dev here; dev itself is unseen."
    return (
        f"One person is {100 / people:.1f} points. Published: median (least to most) of the "
        "predictions on the course's dev that public repositories of the assignment carry, scored "
        "with its answers; docs/studies.md links each file. Their settings were not checked."
    )


def _curves(study: BirthplacesStudy, arms: Arms) -> Section:
    shown = {arm: found for arm, found in arms.items() if arm != "none"} or arms
    at_once = study.recipe == "best"
    plot = Plot(
        title="Accuracy while learning to answer",
        x="part of the training" if at_once else "epochs of finetuning",
        y="dev accuracy, %",
        series=[_curve(arm, found) for arm, found in shown.items()],
        note="The band reaches from the worst seed to the best." if study.times > 1 else "",
    )
    if at_once:
        heading, text = "How the answers come", "Questions are mixed in from the first step on."
    else:
        heading = "How long to finetune"
        text = (
            "Finetuning shows how questions are asked, and answers them for the training people "
            "only. The curves are of the dev questions themselves: the best epoch of a curve is "
            "picked by these answers and so looks better than it is. The tables have the last one."
        )
    return Section(heading=heading, text=text, blocks=[plot])


def _curve(arm: str, found: Sequence[ArmResult]) -> Series:
    """The mean over seeds at each point that all of them have."""
    curves = [{x: accuracy for x, accuracy in one["curve"]} for one in found]  # noqa: C416
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


def _confidence(study: BirthplacesStudy, interviews: Sequence[Interview]) -> Section:
    first, seeds = interviews[0], len(interviews)
    rows: list[list[Any]] = []
    for group, label in GROUPS.items():
        found = [one["groups"][group] for one in interviews if one["groups"][group]["people"]]
        if not found:
            continue
        right = [one["right"] for one in found if one["right"] is not None]
        sure = [one["confidence"]["mean"] for one in found if one["confidence"]]
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
        note=f"{ARMS[INTERVIEWED].capitalize()}; means over {counted_seeds(seeds)}, "
        "without intervals. Those read about are the first of dev.",
    )
    shares = [5 * n for n in range(21)]
    plot = Plot(
        title="How sure the answers are",
        x="confidence: the probability of the whole answer",
        y="people at or below, %",
        series=[
            Series(name=group, x=known["percentiles"], y=shares)
            for group, found in first["groups"].items()
            if (known := found["confidence"]) is not None
        ],
        note=f"Seed {study.repeats[0]}.",
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
        "nothing in its form says so. How far the probability that the model gives to an answer "
        "tells them apart is in the tables."
    )
    return Section(heading="Who is known", text=text, blocks=[table, plot, detect, examples])


def _how(study: BirthplacesStudy, arms: Arms) -> Section:
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
            "the same facts told differently."
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
