"""Models that have read about invented people, asked about these and about others.

    seed --> people, weights, order of the batches --train--> a model --ask--> answers of each group

Every seed draws other people, so that what differs between seeds is all that chance decides. The
people nobody has told the model about come from the same generator: a matched control. Trainings
run side by side with one thread each, and are kept with the answers: what was stopped goes on.

Cost: about 70 seconds of one core for a training that reads, 4 for one that does not.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from attnlab import __version__, config
from attnlab.compare.fleet import Fleet
from attnlab.compare.work import Task
from attnlab.data.biographies import Biographies
from attnlab.data.corpora import Question
from attnlab.evaluate import Answer, answer_questions
from attnlab.studies.birthplaces import people
from attnlab.studies.birthplaces.experiment import BirthplacesStudy
from attnlab.studies.desk import Desk, Job, open_desk, training_seconds
from attnlab.studies.progress import Progress
from attnlab.training.loop import machine
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import open_saved

UNREAD = 500  # people to ask about whom nothing was read
ASKED_ONLY = 400  # steps of a training without reading: all its questions are known by heart then
LONGEST = 16  # characters of an answer; the longest place has 8
RECOMBINED = 200  # names made of a known first and a known last name
GROUPS = {
    "asked": people.GROUPS["asked"],
    "read": people.GROUPS["read"],
    "unread": "from the same generator, never read about",
    "recombined": people.GROUPS["recombined"],
}
Interview = Mapping[str, Sequence[Answer]]  # answers by group


def interviews(
    arm: str, seeds: Sequence[int], steps: int, *, root: Path, progress: Progress
) -> list[Interview]:
    """One for each seed; what is not there yet is trained and asked."""
    recipes = {seed: recipe(arm, seed, steps) for seed in seeds}
    desk = _desk(root, progress)
    names = {seed: _named(f"interview {arm}", seed, recipes[seed]) for seed in seeds}
    together = _named(f"train {arm} {seeds[0]} to", seeds[-1], recipes[seeds[-1]])
    with Run(desk.folder).locked():
        tasks = [
            Task(f"{arm}, seed {seed}", desk.run(_named(arm, seed, one)).folder, one)
            for seed, one in recipes.items()
        ]
        seconds = _seconds(tasks)
        jobs = [Job(together, lambda: _train(desk, tasks), seconds)]
        for seed, task in zip(seeds, tasks, strict=True):
            jobs.append(Job(names[seed], _asked(desk, task, seed), lambda: 5.0))
        kept = desk.do(jobs)
    return [
        {group: [Answer(**one) for one in found] for group, found in kept[names[seed]].items()}
        for seed in seeds
    ]


def recipe(arm: str, seed: int, steps: int) -> Recipe:
    """The study's best recipe for so few people, with people of this seed."""
    study = BirthplacesStudy(scale="tiny", recipe="best", steps=steps)
    (made,) = study.stages(arm, seed, len(drawn(seed).load().questions["train"])).values()
    taken = min(ASKED_ONLY, steps) if arm == "none" else steps
    # no evaluation on the way: only the end is asked about
    return dataclasses.replace(made, corpus=drawn(seed), steps=taken, evaluate_every=None)


def drawn(seed: int) -> Biographies:
    made: Biographies = BirthplacesStudy(scale="tiny").corpus()
    return dataclasses.replace(made, seed=seed)


def questions(seed: int) -> dict[str, list[Question]]:
    """Whom a model of this seed is asked about, by group."""
    settings = drawn(seed)
    corpus = settings.load()
    more = dataclasses.replace(settings, people=settings.people + UNREAD).truth()
    assert [one.name for one in more[: settings.people]] == [one.name for one in corpus.people]
    letters = set("".join(corpus.alphabet()))
    unread = [
        Question(f"Where was {one.name} born?", one.attributes["birthplace"])
        for one in more[settings.people :]
        if set(one.name) <= letters
    ]
    return {
        "asked": corpus.questions["train"],
        "read": corpus.questions["dev"],
        "unread": unread,
        "recombined": people.groups(corpus, RECOMBINED, seed)["recombined"],
    }


def _desk(root: Path, progress: Progress) -> Desk:
    here = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    identity = hashlib.sha256(f"{here['device']} {__version__}".encode()).hexdigest()[:6]
    return open_desk(root, "knowledge", identity, progress, again=False, kind="claims")


def _named(what: str, seed: int, one: Recipe) -> str:
    """Another recipe is another training."""
    made = json.dumps(config.to_dict(one), sort_keys=True, default=str)
    return f"{what}, seed {seed} {hashlib.sha256(made.encode()).hexdigest()[:6]}"


def _seconds(tasks: Sequence[Task]) -> Any:
    def expected() -> float:
        waiting = [task for task in tasks if not Run(task.folder).finished]
        alone = [training_seconds(task.recipe) for task in waiting]
        return sum(alone) / Fleet().side_by_side(max(len(waiting), 1))

    return expected


def _train(desk: Desk, tasks: Sequence[Task]) -> None:
    total = sum(task.recipe.steps for task in tasks)
    with desk.progress.counting("trainings", total) as watch:
        outcomes = Fleet().train(tasks, desk.folder / "log.txt", watch)
    for name, outcome in outcomes.items():
        if outcome["ending"] != "finished":
            raise RuntimeError(f"{name} {outcome['ending']}: {outcome['why']}")


def _asked(desk: Desk, task: Task, seed: int) -> Any:
    def work() -> Any:
        saved = open_saved(str(task.folder), desk.folder, best=False)
        return {
            group: [
                dataclasses.asdict(answer)
                for answer in answer_questions(
                    saved.model, saved.tokenizer, asked, batch=256, longest=LONGEST
                )
            ]
            for group, asked in questions(seed).items()
        }

    return work
