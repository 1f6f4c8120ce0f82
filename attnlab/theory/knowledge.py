"""Knowledge: what pretraining stores, and what a model says about people who do not exist.

Both claims train models, as the birthplaces study does: invented people, or with `data` the
course's own. The trainings stay in the folder `runs`, so that what was stopped goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from attnlab.data.corpora import Question
from attnlab.evaluate import Answer as Given
from attnlab.evaluate import answer_questions
from attnlab.reports.report import Plot, Series, Table
from attnlab.statistics import Interval, auroc, auroc_interval, mean_interval
from attnlab.studies import study as studies
from attnlab.studies.birthplaces import people
from attnlab.studies.birthplaces.experiment import BirthplacesStudy
from attnlab.studies.birthplaces.findings import ARMS
from attnlab.studies.desk import slug
from attnlab.studies.progress import Progress
from attnlab.theory.claim import About, Answer, Claim, Evidence, Knob, Measure, setting
from attnlab.training.saved import open_saved

LOW_END = 0.025  # the chance that a 95 % interval lies above the truth


@dataclass(frozen=True, kw_only=True)
class Studied(Claim):
    trained = True

    seeds: int = setting(3, low=1, high=50, about="trainings of each kind, from `seed` on")
    data: str = field(default="", metadata={"about": "the course's folder; none: invented people"})
    runs: Path = field(default=Path("runs"), metadata={"about": "where the trainings are kept"})

    def arms(self) -> tuple[str, ...]:
        return ("none", "rotary")

    @property
    def study(self) -> BirthplacesStudy:
        return BirthplacesStudy(
            data=self.data,
            scale="auto" if self.data else "tiny",
            arms=self.arms(),
            seeds=self.seeds,
            first=self.seed,
            **self.recipe(),
        )

    def recipe(self) -> dict[str, Any]:
        """Settings of the study that differ from its own."""
        return {}

    def carried_out(self, progress: Progress) -> studies.Outcome:
        return studies.carry_out("birthplaces", self.study, root=self.runs, progress=progress)

    def prepare(self, progress: Progress) -> None:
        self.carried_out(progress)


@dataclass(frozen=True, kw_only=True)
class PretrainingCarriesFacts(Studied):
    arm: Literal["rotary", "none", "growing", "by-head"] = "rotary"
    seeds: int = setting(5, low=2, high=50, about="trainings of each kind, from `seed` on")

    about = About(
        statement="Facts come with pretraining: finetuned on questions about other people, a model "
        "without it does worse than always giving the most frequent answer, and one with it does "
        "better.",
        formula="accuracy(no pretraining) < accuracy(most frequent answer) < accuracy(pretrained)",
        derivation="""The questions of finetuning are about other people than those of the test.
            They show what a question looks like and which words are places; they hold no fact
            that the test asks for. A model that has only seen them can do no better than guess a
            place, and a guess by a person's name is worse than the most frequent place, because
            it follows chance resemblances to other names.

            A model that has read a sentence about each person has met the answer, although nobody
            asked for it. If it now answers better than the most frequent place does, the fact was
            stored in its weights by pretraining, and finetuning only taught it how it is asked
            for.""",
        expected="holds",
        answers=[
            Answer("003", "3(d), 3(f), 4(a)", "1.2 % without, 5 % always London, 27.6 % with"),
        ],
        knob=Knob("no pretraining", {"arm": "none"}),
        remark="Document 003 also reports 19.2 % with rotary positions, below its 27.6 % with "
        "learned ones. That is what growing frequencies, a lost minus sign, bring on the course's "
        "data; rotary positions done right are ahead there (docs/studies.md).",
    )

    def arms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("none", "rotary", self.arm)))

    def run(self) -> Evidence:
        found = self.carried_out(Progress()).results
        baseline = found["baseline"]["accuracy"]
        each = {arm: one["by_seed"] for arm, one in found["arms"].items()}
        ahead = mean_interval([share - baseline for share in each[self.arm]])
        behind = mean_interval([baseline - share for share in each["none"]])
        shown = {"no pretraining": each["none"], ARMS[self.arm]: each[self.arm]}
        questions = found["baseline"]["questions"]
        return Evidence(
            kind="trained",
            trials=sum(map(len, each.values())),
            measures=[
                Measure("pretrained − most frequent, low end of 95 %", _low(ahead), ">", 0.0),
                Measure("most frequent − no pretraining, low end", _low(behind), ">", 0.0),
            ],
            right={"003": _low(ahead) > 0 and _low(behind) > 0},
            picture=Plot(
                title="People who were never asked about",
                x="seed",
                y="right answers, %",
                kind="points",
                series=[
                    *(
                        Series(
                            name=name,
                            x=[self.seed + n for n in range(len(shares))],
                            y=[100 * share for share in shares],
                        )
                        for name, shares in shown.items()
                    ),
                    Series(
                        name=f"always {found['baseline']['answer']}",
                        x=[self.seed + n for n in range(self.seeds)],
                        y=[100 * baseline] * self.seeds,
                    ),
                ],
                note=f"{questions['dev']} people asked about, after {questions['train']} others.",
            ),
            details=[
                Table(
                    title="Right answers, %",
                    columns=["variant", "mean", "each seed"],
                    rows=[
                        [f"always {found['baseline']['answer']}", 100 * baseline, ""],
                        *(
                            [
                                name,
                                100 * sum(shares) / len(shares),
                                ", ".join(f"{100 * share:.1f}" for share in shares),
                            ]
                            for name, shares in shown.items()
                        ),
                    ],
                )
            ],
            false_alarm=2 * LOW_END,
        )


@dataclass(frozen=True, kw_only=True)
class MadeUpAnswers(Studied):
    arm: Literal["rotary", "none"] = "rotary"
    steps: int = setting(1500, low=1, high=100_000, about="of training, on invented people")

    about = About(
        statement="Asked about people who do not exist, a model answers with places all the same; "
        "only its confidence tells known from unknown, and not reliably.",
        formula="most answers about nobody are places;   "
        "½ < AUROC(confidence; read about or not) < 1",
        derivation="""A language model has no way of not answering: after the question it gives a
            distribution over next tokens, and finetuning has taught it that what follows is a
            place. A name that it never met still moves that distribution, so some place comes
            out, in the same form as a true answer.

            What differs is how the probability is spread. For a person it has read about, the
            stored fact pulls towards one place; for a name made of letters nothing does. The
            probability of the whole answer is the model's confidence. AUROC is the chance that a
            person it has read about gets a higher one than a name that belongs to nobody: ½ would
            mean that confidence says nothing, 1 that it tells them apart without fault. A
            recombined name, a known first name with a known last name, is harder to tell, since
            its parts pull towards places of their own.""",
        expected="holds",
        answers=[
            Answer("003", "4(c)", "it gives what is most similar to the prompt, right or wrong"),
        ],
        knob=Knob("a model without pretraining, which has read about nobody", {"arm": "none"}),
        remark="Names made of known parts are hardly told from known people. Without pretraining "
        "confidence says nothing at all: there is no knowledge for it to reflect.",
    )

    def recipe(self) -> dict[str, Any]:
        return {"recipe": "best", "steps": None if self.data else self.steps}

    def run(self) -> Evidence:
        done = self.carried_out(Progress())
        corpus = self.study.corpus().load()
        asked = people.groups(corpus, 200, self.seed)
        places = {question.answer for table in corpus.questions.values() for question in table}
        interviews = [self._interview(done.folder, seed, asked) for seed in self.study.repeats]
        areas = [_told_apart(answers, "invented") for answers in interviews]
        # all seeds ask the same people, so more seeds make no more people
        mean = auroc_interval(fmean(areas), len(asked["read"]), len(asked["invented"]))
        nobody = [
            one
            for answers in interviews
            for group in ("recombined", "invented")
            for one in answers[group]
        ]
        fluent = sum(one.given in places for one in nobody) / len(nobody)
        first = interviews[0]
        return Evidence(
            kind="trained",
            trials=self.seeds,
            measures=[
                Measure("AUROC, read about or invented, low end of 95 %", _low(mean), ">", 0.5),
                Measure("the same, high end", _high(mean), "<", 1.0),
                Measure("the same, of the worst seed", min(areas), ">", 0.5),
                Measure("share of places among answers about nobody", fluent, ">", 0.5),
            ],
            # an answer is made up for every name, whoever it is
            right={"003": fluent > 0.5},
            picture=Plot(
                title="How sure the answers are",
                x="confidence: the probability of the whole answer",
                y="people at or below, %",
                series=[
                    Series(name=group, **_distribution(answers)) for group, answers in first.items()
                ],
                note="Seed by seed alike; this is the first.",
            ),
            details=[
                Table(
                    title="Told apart from people read about, AUROC of each seed",
                    columns=["people", "AUROC"],
                    rows=[
                        [people.GROUPS[group], _listed(interviews, group)]
                        for group in ("recombined", "invented")
                    ],
                ),
                Table(
                    title="Whom it is asked about",
                    columns=["people", "right, %", "a place, %", "mean confidence, %"],
                    rows=[
                        [people.GROUPS[group], *_shares([i[group] for i in interviews], places)]
                        for group in asked
                    ],
                ),
            ],
            false_alarm=2 * LOW_END,
        )

    def _interview(
        self, folder: Path, seed: int, asked: dict[str, list[Question]]
    ) -> dict[str, list[Given]]:
        stage = "finetune" if self.arm == "none" else "train"
        run = folder / "runs" / slug(f"{stage} {self.arm}, seed {seed}")
        saved = open_saved(str(run), folder, best=False)
        return {
            group: answer_questions(saved.model, saved.tokenizer, questions, batch=256)
            for group, questions in asked.items()
        }


def _told_apart(answers: dict[str, list[Given]], group: str) -> float:
    read = [one.confidence for one in answers["read"]]
    nobody = [one.confidence for one in answers[group]]
    found = auroc(read, nobody)
    assert found is not None  # both groups have people
    return found


def _listed(interviews: Sequence[dict[str, list[Given]]], group: str) -> str:
    return ", ".join(f"{_told_apart(answers, group):.2f}" for answers in interviews)


def _distribution(answers: Sequence[Given]) -> dict[str, Any]:
    sure = sorted(one.confidence for one in answers)
    return {"x": sure, "y": [100 * (n + 1) / len(sure) for n in range(len(sure))]}


def _shares(interviews: Sequence[Sequence[Given]], places: set[str | None]) -> list[Any]:
    """Of all seeds together: right, places, mean confidence, in percent."""
    answers = [one for interview in interviews for one in interview]
    known = [one for one in answers if one.expected is not None]
    right = sum(one.given == one.expected for one in known)
    return [
        100 * right / len(known) if known else None,
        100 * sum(one.given in places for one in answers) / len(answers),
        100 * sum(one.confidence for one in answers) / len(answers),
    ]


def _low(interval: Interval) -> float:
    assert interval.low is not None  # of two seeds or more
    return interval.low


def _high(interval: Interval) -> float:
    assert interval.high is not None
    return interval.high
