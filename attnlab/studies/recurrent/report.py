"""The report of the recurrent study: tables, curves and sentences, computed from its results."""

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from attnlab.experiments import verdicts
from attnlab.experiments.experiment import Findings
from attnlab.experiments.presentation import (
    HOW_MEASURED,
    in_words,
    judged_numbers,
    judged_together,
    mean_with_ends,
    megabytes,
    numbers,
    with_ends,
)
from attnlab.experiments.verdicts import Difference, Pair, Verdicts
from attnlab.reports.report import Plot, Sample, Section, Series, Table
from attnlab.studies.language import losses_by_seed
from attnlab.studies.recurrent.experiment import (
    ALL,
    DECODING,
    HONEST,
    MEMORY,
    SAMPLES,
    SIZES,
    TIMES,
    RecurrentStudy,
)
from attnlab.training.parallel import torch_device

LABELS = {
    "transformer": "transformer",
    "elman": "Elman",
    "prefix-birnn": "prefix-BiRNN",
    "birnn": "BiRNN",
}
TIMED = " in equal time"
PREFIXES = "birnn by prefixes"


def findings(study: RecurrentStudy, results: dict[str, Any]) -> Findings:
    analysis = Analysis(study, results)
    return Findings(
        title="Recurrent networks and a transformer",
        question=(
            "Which learns to predict text best with equally many parameters, and which in equally "
            "much time; and why is a bidirectional network no language model?"
        ),
        answer=_answer(analysis),
        sections=[
            _equal_steps(analysis),
            _equal_time(analysis),
            _leak(analysis),
            _samples(results[SAMPLES]),
        ],
        rates=_about_rate(study.chosen_scale),
        summary=_summary(analysis),
    )


@dataclass(frozen=True)
class Analysis:
    """The losses by seed, and the verdicts on their differences."""

    study: RecurrentStudy
    results: dict[str, Any]

    def losses(self, name: str) -> dict[int, float]:
        """Of a model; of one in equal time, after as many steps as fit; or by prefixes."""
        if name == PREFIXES:
            return {s: self.results[f"leak, seed {s}"]["by prefixes"] for s in self.study.repeats}
        return losses_by_seed(self.results, name, self.study.repeats)

    @cached_property
    def verdicts(self) -> Verdicts:
        """The family: equal steps, equal time and the leak.

        Each has its own noise: models that trained for other steps vary differently.
        """
        timed, reading = [name + TIMED for name in HONEST[1:]], ["birnn", PREFIXES]
        against = [(first, second) for first in reading for second in HONEST]
        return verdicts.judge(
            [
                *self._differences(HONEST, [(name, "transformer") for name in HONEST[1:]]),
                *self._differences(["transformer", *timed], [(n, "transformer") for n in timed]),
                *self._differences([*reading, *HONEST], [(PREFIXES, "birnn"), *against]),
            ]
        )

    def _differences(self, names: list[str], among: list[tuple[str, str]]) -> list[Difference]:
        return verdicts.differences({name: self.losses(name) for name in names}, among=among)

    def difference(self, name: str, timed: bool = False) -> Pair:
        return self.verdicts.between(timed_name(name) if timed else name, "transformer")

    def swapped(self, name: str, what: str) -> float:
        leaks = [self.results[f"leak, seed {s}"] for s in self.study.repeats]
        return fmean(one["swap"][name][what] for one in leaks)

    def steps_that_fit(self, name: str) -> int:
        return int(self.results[f"{timed_name(name)}, seed 0"]["steps"])

    @property
    def uniform(self) -> float:
        """The loss of guessing all characters alike."""
        return math.log(self.results[SIZES]["vocabulary"])


def timed_name(name: str) -> str:
    """The transformer needs all of its own time."""
    return name if name == "transformer" else name + TIMED


def _answer(analysis: Analysis) -> str:
    def against(timed: bool) -> str:
        parts = (f"{LABELS[n]}'s {in_words(analysis.difference(n, timed))}" for n in HONEST[1:])
        return " and ".join(parts)

    base = fmean(analysis.losses("transformer").values())
    unequal = ", its step compiled and theirs not," if compiled_alone() else ""
    return (
        f"The transformer's held-out loss is {base:.3f} nats a character; after equally many steps "
        f"{against(timed=False)}, in equal time{unequal} {against(timed=True)}. "
        f"{_leak_answer(analysis)}"
    )


def compiled_alone() -> bool:
    """Whether the transformer's step is compiled, as on CUDA, and those of the others are not."""
    return torch_device("auto").type == "cuda"


def _leak_answer(analysis: Analysis) -> str:
    mean, honest = (fmean(analysis.losses(name).values()) for name in ("birnn", PREFIXES))
    found = analysis.verdicts.between(PREFIXES, "birnn").direction
    if found != "higher":
        what = "it gains nothing" if found == "lower" else "whether it gains cannot be told"
        return (
            f"The bidirectional network has {mean:.3f} where it reads whole samples and "
            f"{honest:.3f} where it is given only what came before: {what} by reading ahead."
        )
    better = _directions(analysis, "birnn") == {"lower"}
    too_good = ", better than every language model here," if better else ""
    return (
        f"The bidirectional network reaches {mean:.3f}{too_good} where each position can read its "
        f"own answer; given only what came before, it has {honest:.3f}{_place(analysis)}."
    )


def _directions(analysis: Analysis, name: str) -> set[str]:
    """Of its loss, against each of the language models."""
    return {analysis.verdicts.between(name, other).direction for other in HONEST}


def _place(analysis: Analysis) -> str:
    """Of the bidirectional network among the language models, when it is given prefixes alone."""
    found = _directions(analysis, PREFIXES)
    if found == {"higher"}:
        return ", worse than all three"
    if "lower" in found:
        return ", not worse than all three"
    return "; whether that is worse than all three cannot be told"


def _equal_steps(analysis: Analysis) -> Section:
    size, results = analysis.study.size, analysis.results
    family, seeds = len(analysis.verdicts.pairs), len(analysis.study.repeats)
    rows = [
        [
            LABELS[name],
            results[SIZES][name]["width"],
            results[SIZES][name]["parameters"],
            None if name == "transformer" else f"{_more(results[SIZES], name):+.1%}",
            mean_with_ends(analysis.losses(name)),
            _difference(analysis, name),
        ]
        for name in HONEST
    ]
    text = f"""
        Every model reads the same {size.steps:,} batches of {size.batch} samples of {size.context}
        characters in the same order, and has the same optimiser, rate and schedule.
        {_about_rate(analysis.study.chosen_scale)} The transformer's width is given; the widths of
        the others are searched so that the numbers of parameters agree.

        The Elman network carries everything it has read in one vector,
        h[t] = f(W h[t−1] + U x[t] + b). The transformer looks back at every position directly. The
        prefix-BiRNN takes each beginning of the text by itself, reads it forwards and backwards and
        averages what it finds: it uses both directions and still nothing that comes later. The
        price is that every position is read again for each later one, so that its time grows with
        the square of the length.

        The loss is the mean of −log p(next character) over the held-out last tenth of the text, in
        nats; guessing all {results[SIZES]["vocabulary"]} characters alike would give
        {analysis.uniform:.2f}. In brackets are 95 % intervals. {
        judged_together(family, seeds, text=False)
    }

        {_why_ahead(analysis)}
        """
    table = Table(
        title="Held-out loss at equal parameters and steps",
        columns=[
            "model",
            "width",
            "parameters",
            "more than the transformer",
            "held-out loss",
            "difference from the transformer",
        ],
        rows=rows,
        note="Differences are taken seed by seed: with a seed come the same batches for all.",
    )
    curves = Plot(
        title="Training loss",
        x="step",
        y="loss, nats a character",
        series=[
            Series(name=LABELS[name], x=curve["step"], y=curve["loss"])
            for name in HONEST
            for curve in [results[f"{name}, seed 0"]["curve"]]
        ],
        note="Seed 0; a point is the mean over a twentieth of the training, drawn at its end.",
    )
    return Section(heading="Equal parameters, equal steps", text=text, blocks=[table, curves])


def _more(sizes: dict[str, Any], name: str) -> float:
    return float(sizes[name]["parameters"] / sizes["transformer"]["parameters"] - 1)


def _about_rate(scale: str) -> str:
    chosen = (
        "The rate is the best of 0.005, 0.01 and 0.02 for each of the three language models at "
        "scale=small"
    )
    return (
        f"{chosen}." if scale == "small" else f"{chosen}; it was not searched again at this size."
    )


def _why_ahead(analysis: Analysis) -> str:
    """A network that few expect to win needs a word."""
    if analysis.difference("elman").direction != "lower":
        return ""
    return f"""
        That the Elman network is ahead of the transformer has two likely reasons. That the newest
        characters matter most is built into it, while attention has to learn where to look, and
        {analysis.study.size.steps:,} steps are few for that. And samples of
        {analysis.study.size.context} characters hold little that only a long look back would find.
        Neither was measured.
        """


def _equal_time(analysis: Analysis) -> Section:
    results, steps = analysis.results, analysis.study.size.steps
    base = results[TIMES]["transformer"]["step_ms"]
    rows = [
        [
            LABELS[name],
            results[TIMES][name]["step_ms"],
            results[TIMES][name]["step_ms"] / base,
            megabytes(results[MEMORY][name]),
            results[DECODING][name],
            analysis.steps_that_fit(name),
            mean_with_ends(analysis.losses(timed_name(name))),
            _difference(analysis, name, timed=True),
        ]
        for name in HONEST
    ]
    if compiled_alone():
        how = (
            "The transformer's step is compiled and captured as one graph; the recurrent ones are "
            "launched operation by operation, hundreds of small ones a step. So this compares "
            "these programs on this device; compiled or fused recurrent steps were not tried."
        )
    else:
        how = "All three run in PyTorch, operation by operation."
    text = f"""
        The transformer's {steps:,} steps take {steps * base / 1e3:.1f} seconds. The others are
        trained anew, with as many steps as fit into these seconds by the measured time of a step,
        and with a schedule of that length. {how} The time of a step was measured once, so the
        intervals of this table, over seeds, hold nothing of its noise.

        In training, a transformer computes all positions of a sample side by side, while a
        recurrent network must wait for position t−1 before it can compute t. In writing, the Elman
        network needs one vector and the transformer the keys and values of all it has read; the
        prefix-BiRNN must read everything anew for each character.
        """
    table = Table(
        title="Costs, and held-out loss in the transformer's time",
        columns=[
            "model",
            "ms a step",
            "of the transformer's time",
            "peak MB of a step",
            "characters a second in writing",
            "steps that fit",
            "held-out loss",
            "difference from the transformer",
        ],
        rows=rows,
        note=f"{HOW_MEASURED} Writing is one text that grows to the length of a sample, compiled "
        "for none of them.",
    )
    return Section(heading="Equal time", text=text, blocks=[table])


def _leak(analysis: Analysis) -> Section:
    context = analysis.study.size.context
    text = f"""
        A language model gives p(x[t+1] | x[1] … x[t]) for each t, and the product over t is the
        probability of the text. A bidirectional network has a forward half
        a[t] = f(W a[t−1] + U x[t] + b) and a backward half g[t] = f(V g[t+1] + R x[t] + c), and
        predicts from h[t] = f(A a[t] + B g[t] + d). But g[t] is made of g[t+1], and that of x[t+1]:
        the very character that is asked for at position t. The network need not predict it, only
        copy it. What it gives is p(x[t+1] | x[1] … x[t], x[t+1] …): near 1 once it has learned to
        copy, and nothing about language.

        Two experiments test it. First, put another character at t+1 and look at the prediction at
        t, which comes before it. A language model cannot change it, since it has not read so far.
        The table says how often the bidirectional network's prediction changes, and how often its
        first guess becomes the character that was put there. Second, ask honestly: give it the
        prefix x[1] … x[t] alone and take the prediction at its last position. That is all that
        anyone has who writes a text, so it also decides what its samples are worth.

        Held-out text does not protect against this, because the answer leaks there just as well.
        In each sample only the last of the {context} positions is
        asked an honest question, since nothing follows it: see the right end of the curves. The
        prefix-BiRNN is the same kind of network with the leak closed.
        """
    rows = [
        [
            LABELS[name],
            mean_with_ends(analysis.losses(name)),
            mean_with_ends(analysis.losses(PREFIXES if name == "birnn" else name)),
            f"{analysis.swapped(name, 'changed'):.0%}",
            f"{analysis.swapped(name, 'followed'):.0%}",
        ]
        for name in ALL
    ]
    table = Table(
        title="What each model knows, and what it has only read ahead",
        columns=[
            "model",
            "held-out loss, whole samples",
            "held-out loss, prefixes alone",
            "changes with the next character",
            "guesses the one put there",
        ],
        rows=rows,
        note=(
            f"Guessing all characters alike gives {analysis.uniform:.2f}. For a language model the "
            "two losses are one and the same: it reads a sample as it reads a prefix. In the last "
            "two columns another character stands after the middle of held-out samples."
        ),
    )
    lines = {
        "transformer": "transformer",
        "birnn": "BiRNN, whole samples",
        "by prefixes": "BiRNN, prefixes alone",
    }
    plot = Plot(
        title="Held-out loss by position in the sample",
        x="position",
        y="loss, nats a character",
        series=[
            Series(
                name=label,
                x=list(range(1, context + 1)),
                y=analysis.results["leak, seed 0"]["position"][name],
            )
            for name, label in lines.items()
        ],
        note="Seed 0.",
    )
    heading = "The leak: a network that has read the answer"
    return Section(heading=heading, text=text, blocks=[table, plot])


def _samples(texts: dict[str, str]) -> Section:
    text = """
        Each continues the same held-out beginning, at temperature 0.8, reading no more than the
        length it was trained on. In training the bidirectional network had a future to copy from;
        here there is none.
        """
    samples = [Sample(title="the beginning", text=texts["prompt"])]
    samples += [Sample(title=LABELS[name], text=texts[name]) for name in ALL]
    return Section(heading="What they write", text=text, blocks=samples)


def _summary(analysis: Analysis) -> dict[str, Any]:
    results, repeats = analysis.results, analysis.study.repeats

    def plain(name: str) -> dict[str, Any]:
        return numbers([*analysis.losses(name).values()])

    def compared(timed: bool) -> dict[str, Any]:
        return {name: judged_numbers(analysis.difference(name, timed)) for name in HONEST[1:]}

    return {
        "scale": analysis.study.chosen_scale,
        "sizes": results[SIZES],
        "equal_steps": {
            "steps": analysis.study.size.steps,
            "loss": {name: plain(name) for name in HONEST},
            "from_transformer": compared(timed=False),
        },
        "equal_time": {
            "steps": {name: analysis.steps_that_fit(name) for name in HONEST},
            "loss": {name: plain(timed_name(name)) for name in HONEST},
            "from_transformer": compared(timed=True),
        },
        "leak": {
            "whole_samples": plain("birnn"),
            "prefixes": plain(PREFIXES),
            "uniform": analysis.uniform,
            "swap": {
                name: [results[f"leak, seed {s}"]["swap"][name] for s in repeats] for name in ALL
            },
        },
        "costs": {
            "step": results[TIMES],
            "memory": results[MEMORY],
            "characters_per_second": results[DECODING],
        },
        "samples": results[SAMPLES],
    }


def _difference(analysis: Analysis, name: str, timed: bool = False) -> str | None:
    if name == "transformer":
        return None
    return with_ends(analysis.difference(name, timed).interval, sign="+")
