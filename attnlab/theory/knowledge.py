"""Knowledge: what a model learns by reading, and how it answers about people it never read about.

Both claims use the same trainings (`interviews.py`). Each training has its own people, so an
interval over trainings covers all that is random: people, places, weights, batches. docs/notes.md
says how bounds and sizes were chosen; the seeds used for that are not the recorded ones.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from attnlab.config import setting, settings
from attnlab.data.biographies import Person
from attnlab.data.birthplaces import most_frequent_answer, share_of
from attnlab.data.corpora import Question
from attnlab.evaluate import Answer as Given
from attnlab.evaluate import accuracy
from attnlab.experiments.progress import Progress
from attnlab.reports.report import Cell, Plot, Series, Table
from attnlab.statistics import auroc
from attnlab.studies.birthplaces.people import name_in
from attnlab.theory.claim import (
    About,
    Answer,
    Claim,
    ErrorRates,
    Evidence,
    Judgement,
    Knob,
    Measure,
    mark,
)
from attnlab.theory.interviews import GROUPS, Interview, corpus_settings, interviews, questions

LEVEL = 0.99  # of the intervals: each end is wrong in 0.5 % of runs
RELIABLE = 0.95  # AUROC above which confidence would be reliable: 1 pair of 20 in the wrong order
ARMS = {
    "rotary": "documents and questions",
    "growing": "the same, rotary with growing frequencies (a mistake)",
    "by-head": "the same, rotary by head index (a mistake)",
    "none": "questions alone, again",
}
MARGIN = 0.05  # right answers by which "no better than" may be missed


@settings
class TrainedClaim(Claim):
    """A claim about trained models, each trained with other people."""

    trained = True

    seed: int = setting(100, low=0, high=2**31 - 1, about="random seed of the first training")
    draws: int = setting(10, low=2, high=50, about="trainings, each with other people")
    steps: int = setting(
        1500, low=1, high=100_000, about="steps of a training that reads documents"
    )
    runs: Path = setting(Path("runs"), about="folder where the trainings are stored")

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.draws)

    def interview(self, arm: str, progress: Progress | None = None) -> list[Interview]:
        return interviews(
            arm, self.seeds, self.steps, root=self.runs, progress=progress or Progress()
        )


@settings
class PretrainingCarriesFacts(TrainedClaim):
    arm: Literal["rotary", "none", "growing", "by-head"] = setting(
        "rotary", about="training under test; with none it reads questions alone"
    )

    about = About(
        statement="Facts come with reading: asked about people whom no question of its training "
        "was about, a model that has also read about them does better than always giving the most "
        "frequent answer, and one trained on the questions alone does no better (by 5 points of "
        "100 or more).",
        formula="accuracy(has read) > accuracy(most frequent answer),   "
        "accuracy(questions alone) < accuracy(most frequent answer) + 0.05,   "
        "accuracy(has read) > accuracy(questions alone)",
        derivation="""The questions of training are about other people than those of the test. They
            show what a question looks like and which words are places; they hold no fact that the
            test asks for. Places are drawn independently of names, so a model that has only seen
            these questions can do no better, on average over people, than the place that is most
            frequent in the generator. It may well do worse, since it follows chance resemblances
            to other names; how much worse is no law. What it is held against is the most frequent
            place among the people of its own questions, which is no better either.

            A model that has read a sentence about each person has met the answer, although nobody
            asked for it. If it now answers better than the most frequent place does, the fact was
            stored in its weights by reading.

            Here documents and questions are trained on together (the best recipe of the
            birthplaces study), not one after the other as in the course; what differs between the
            two models is whether there are documents, and the number of steps (1,500 and 400:
            without documents all is known by heart by then). With pretraining and then
            finetuning, on real people, the same comes out: attnlab study birthplaces
            (docs/studies.md).

            Every training has people, places, weights and batches of its own, so the interval over
            the trainings is about all of these. The people who were read about are few; the model
            that read nothing is asked about many more from the same generator, for which it is
            prepared no better and no worse.""",
        expected="holds",
        questions=("A4 3(d)", "A4 3(f)", "A4 4(a)"),
        answers=[
            Answer(
                document="003",
                part="4(a)",
                line=85,
                quote="Via pretraining, the model better learned the facts.",
                conclusion="facts that were read are known, though no question asked for them",
            ),
        ],
        knob=Knob("no reading: questions alone", {"arm": "none"}),
        remark="Document 003 reports 1.2 % without pretraining (line 47), 5 % for one answer, "
        "27.6 % with pretraining and learned positions (line 53), and 19.2 % with rotary ones "
        "(line 83). Growing frequencies, a lost minus sign, would explain that, and so "
        "would other mistakes: which one it was cannot be told. With rotary positions done right "
        "the mean of three trainings on the course's data is above that with learned ones "
        "(docs/studies.md).",
    )

    def prepare(self, progress: Progress) -> None:
        for arm in dict.fromkeys(("none", self.arm)):
            self.interview(arm, progress)

    def run(self) -> Evidence:
        without, having = self.interview("none"), self.interview(self.arm)
        asked = [questions(seed) for seed in self.seeds]
        frequent = [most_frequent_answer(one["asked"]) for one in asked]
        constant = [share_of(a, one["read"]) for a, one in zip(frequent, asked, strict=True)]
        widely = [
            share_of(a, one["read"] + one["unread"]) for a, one in zip(frequent, asked, strict=True)
        ]
        read, unprepared = ([accuracy(one["read"]) for one in arm] for arm in (having, without))
        guessed = [accuracy([*one["read"], *one["unread"]]) for one in without]
        found = [
            _mean("has read − most frequent answer", _less(read, constant), ">", 0.0),
            _mean("questions alone − most frequent answer", _less(guessed, widely), "<", MARGIN),
            _mean("has read − questions alone", _less(read, unprepared), ">", 0.0),
        ]
        shown = {
            "always the most frequent answer": constant,
            "questions alone": unprepared,
            ARMS[self.arm]: read,
        }
        rows: list[list[Cell]] = [
            [name, "people read about", 100 * fmean(shares), _percent(shares)]
            for name, shares in shown.items()
        ]
        for name, shares in zip(shown, (widely, guessed), strict=False):
            rows.append([name, "these and unread people", 100 * fmean(shares), _percent(shares)])
        return Evidence(
            kind="trained",
            trials=2 * self.draws,
            measures=found,
            judgements={"003 4(a)": Judgement(mark(found[0].met and found[2].met))},
            picture=Plot(
                title="People who were never asked about",
                x="training, each with other people",
                y="right answers, %",
                kind="points",
                series=[
                    Series(name=name, x=list(self.seeds), y=[100 * share for share in shares])
                    for name, shares in shown.items()
                ],
                note=f"{len(asked[0]['read'])} people asked about, after "
                f"{len(asked[0]['asked'])} others.",
            ),
            details=[
                Table(
                    title="Right answers, %",
                    columns=["variant", "asked", "mean", "each training"],
                    rows=rows,
                )
            ],
            error_rates=ErrorRates.of_means(found, LEVEL),
        )


@settings
class MadeUpAnswers(TrainedClaim):
    arm: Literal["rotary", "none"] = setting(
        "rotary", about="training under test; with none it reads questions alone"
    )
    against: Literal["known", "unread"] = setting(
        "known", about="people that unread ones are compared with"
    )

    about = About(
        statement="Asked about people it has never read about, a model answers with places all the "
        "same. A name made of two known ones is answered with the place of somebody who shares "
        "it, more often than by chance. Confidence tells people of the training from others, but "
        "in more than 1 pair of 20 it does not.",
        formula="share of places among answers about unread people > ½\n"
        "½ < AUROC(confidence; known or unread) < 0.95\n"
        "P(place of somebody who shares a name) > P(the same with answers shuffled)",
        derivation="""A language model has no way of not answering: after the question it gives a
            distribution over next tokens, and finetuning has taught it that what follows is a
            place. A name that it never met still moves that distribution, so some place comes
            out, in the same form as a true answer.

            What differs is how the probability is spread. For a person it has read about, the
            stored fact pulls towards one place; for others nothing does. The probability of the
            whole answer is the model's confidence. AUROC is the chance that a known person gets a
            higher one than an unread one: ½ would mean that confidence says nothing, 1 that it
            tells them apart without fault. Known are all the people of the training: it has read
            about each, and half of them it was also asked about. The unread come from the same
            generator of names and places. So what is told is what training did with a person, by
            reading or by asking; the table has the AUROC of those whom it has only read about.

            A recombined name has a known person's first name and another's last name. If the
            model answers with what it remembers of similar names, its answer is more often than
            by chance the place of somebody who shares a name. Chance is what the same answers
            score when they are dealt out to other names.""",
        expected="holds",
        questions=("A4 4(c)",),
        answers=[
            Answer(
                document="003",
                part="4(c)",
                line=91,
                quote="Remembering most similar vectors to the prompt, & return that, which can be "
                "utterly wrong.",
                conclusion="it answers with what belongs to a similar name, more often than by "
                "chance, and can be wrong",
            ),
        ],
        knob=Knob("unread people against other unread people", {"against": "unread"}),
        remark="Of people it has only read about confidence tells less (the table). A shared name "
        "is one kind of similarity; the document's “most similar vectors” may mean others, which "
        "were not tested.",
    )

    def prepare(self, progress: Progress) -> None:
        self.interview(self.arm, progress)

    def run(self) -> Evidence:
        found = self.interview(self.arm)
        known = [corpus_settings(seed).load().people for seed in self.seeds]
        places = [{one.attributes["birthplace"] for one in people} for people in known]
        areas = [_auroc(*self._groups(one)) for one in found]
        fluent = [
            fmean(answer.given in there for answer in one["unread"])
            for one, there in zip(found, places, strict=True)
        ]
        resembling = [
            resemblance(one["recombined"], _sharing(people))
            for one, people in zip(found, known, strict=True)
        ]
        above = [share - by_chance for share, by_chance in resembling]
        wrong = [1 - accuracy(one["unread"]) for one in found]
        tests = [
            _mean("AUROC of confidence, known or unread", areas, ">", 0.5),
            _mean("the same, not to be relied on", areas, "<", RELIABLE),
            _mean("share of places among answers about unread people", fluent, ">", 0.5),
            _mean("place of somebody who shares a name, above chance", above, ">", 0.0),
        ]
        met = [one.met for one in tests]
        shown = {
            f"AUROC, {self.against} or unread": areas,
            "… of those never asked about": [_auroc(one["read"], one["unread"]) for one in found],
            "answers about unread people: places": fluent,
            "… right": [1 - share for share in wrong],
            "recombined: place of somebody who shares a name": [share for share, _ in resembling],
            "… by chance": [by_chance for _, by_chance in resembling],
        }
        return Evidence(
            kind="trained",
            trials=self.draws,
            measures=tests,
            judgements={"003 4(c)": Judgement(mark(met[3] and fmean(wrong) > 0.5))},
            picture=Plot(
                title="How sure the answers are",
                x="confidence: the probability of the whole answer",
                y="people at or below, %",
                series=[
                    Series(name=group, **_distribution([a for one in found for a in one[group]]))
                    for group in GROUPS
                ],
                note=f"All {self.draws} trainings together.",
            ),
            details=[
                Table(
                    title="Each training, with other people",
                    columns=["", "mean", "each"],
                    rows=[[words, fmean(them), _listed(them)] for words, them in shown.items()],
                ),
                Table(
                    title="Whom it is asked about",
                    columns=["people", "right, %", "a place, %", "mean confidence, %"],
                    rows=[
                        [words, *_shares([one[group] for one in found], places)]
                        for group, words in GROUPS.items()
                    ],
                ),
            ],
            error_rates=ErrorRates.of_means(tests, LEVEL),
        )

    def _groups(self, one: Interview) -> tuple[Sequence[Given], Sequence[Given]]:
        if self.against == "known":
            return [*one["asked"], *one["read"]], one["unread"]
        return one["unread"][::2], one["unread"][1::2]


def _mean(what: str, draws: Sequence[float], rule: Literal["<", ">"], bound: float) -> Measure:
    return Measure.mean(what, draws, rule, bound, LEVEL)


def resemblance(answers: Sequence[Given], near: Callable[[str], set[str]]) -> tuple[float, float]:
    """How often an answer is the place of somebody who shares a name, and how often by chance.

    By chance: each answer is compared with every other name.
    """
    sets = [near(one.question) for one in answers]
    hits = sum(one.given in there for one, there in zip(answers, sets, strict=True))
    all_pairs = sum(one.given in there for one in answers for there in sets)
    count = len(answers)
    return hits / count, (all_pairs - hits) / (count * (count - 1))


def _sharing(people: Sequence[Person]) -> Callable[[str], set[str]]:
    """The places of those who share a first or a last name with the person in a question."""
    named = [(one.name.split(), one.attributes["birthplace"]) for one in people]

    def near(question: str) -> set[str]:
        first, *_, last = name_in(Question(question, None)).split()
        return {place for parts, place in named if first == parts[0] or last == parts[-1]}

    return near


def _auroc(read: Sequence[Given], unread: Sequence[Given]) -> float:
    found = auroc([one.confidence for one in read], [one.confidence for one in unread])
    assert found is not None  # both groups have people
    return found


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _percent(shares: Sequence[float]) -> str:
    return ", ".join(f"{100 * share:.1f}" for share in shares)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _distribution(answers: Sequence[Given]) -> dict[str, list[float]]:
    """The distribution of confidence at up to 200 points, which is more than a picture shows."""
    sure = sorted(one.confidence for one in answers)
    steps = min(len(sure), 200)
    places = [-(-len(sure) * (n + 1) // steps) for n in range(steps)]
    return {"x": [sure[n - 1] for n in places], "y": [100 * n / len(sure) for n in places]}


def _shares(groups: Sequence[Sequence[Given]], places: Sequence[set[str]]) -> list[Cell]:
    """Over all trainings, in percent: right answers, answers that are places, mean confidence."""
    pairs = [(one, there) for group, there in zip(groups, places, strict=True) for one in group]
    known = [one for one, _ in pairs if one.expected is not None]
    return [
        100 * accuracy(known) if known else None,
        100 * fmean(one.given in there for one, there in pairs),
        100 * fmean(one.confidence for one, _ in pairs),
    ]
