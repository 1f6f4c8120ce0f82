"""Models that have read about invented people, asked about these and about others.

    seed --> people, weights, order of the batches --train--> a model --ask--> answers of each group

Every seed draws other people, so that what differs between seeds is all that chance decides. The
people nobody has told the model about come from the same generator: a matched control. Trainings
run side by side with one thread each, and are kept with the answers: what was stopped goes on.

Cost: about 70 seconds of one core for a training that reads, 10 for one that does not.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from attnlab import __version__, config
from attnlab.data.biographies import Biographies
from attnlab.data.corpora import Question
from attnlab.data.objectives import Questions
from attnlab.evaluate import Answer, answer_questions
from attnlab.experiments.costs import training_seconds
from attnlab.experiments.local import LocalPool
from attnlab.experiments.pool import Task
from attnlab.experiments.progress import Progress
from attnlab.experiments.workspace import Job, Workspace, open_workspace
from attnlab.studies.birthplaces import people
from attnlab.studies.birthplaces.experiment import BirthplacesStudy
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
    workspace = _workspace(root, progress)
    tasks, names = [], {}
    for seed in seeds:
        made = recipe(arm, seed, steps)
        trained = _digest(config.to_dict(made))
        asked = _digest(
            [LONGEST, {group: list(map(astuple, q)) for group, q in questions(seed).items()}]
        )
        folder = workspace.run_of(f"{arm}, seed {seed}, {trained}").folder
        tasks.append(Task(f"{arm}, seed {seed}", folder, made))
        names[seed] = f"ask {arm}, seed {seed}, {trained} {asked}"
    every = _digest(sorted(str(task.folder.name) for task in tasks))
    with Run(workspace.folder).locked():
        jobs = [
            Job(
                f"train {arm}, {len(tasks)} times, {every}",
                lambda: _train(workspace, tasks),
                _seconds(tasks),
            )
        ]
        for seed, task in zip(seeds, tasks, strict=True):
            jobs.append(Job(names[seed], _ask(workspace, task, seed), lambda: 5.0))
        kept = workspace.run_jobs(jobs)
    return [
        {group: [Answer(**one) for one in found] for group, found in kept[names[seed]].items()}
        for seed in seeds
    ]


def recipe(arm: str, seed: int, steps: int) -> Recipe:
    """The study's best recipe for so few people, with people of this seed.

    It trains on documents and questions together. Without reading it is the same on the questions
    alone: model, optimiser, schedule; fewer steps, after which it knows them all by heart.
    """
    study = BirthplacesStudy(scale="tiny", recipe="best", steps=steps)
    corpus = drawn(seed)
    asked = len(corpus.load().questions["train"])
    reads = "rotary" if arm == "none" else arm
    (made,) = study.stages(reads, seed, asked).values()
    # no evaluation on the way: only the end is asked about
    made = dataclasses.replace(made, corpus=corpus, evaluate_every=None)
    if arm != "none":
        return made
    return dataclasses.replace(
        made, objective=Questions(), batch=min(made.batch, asked), steps=min(ASKED_ONLY, steps)
    )


def drawn(seed: int) -> Biographies:
    made = BirthplacesStudy(scale="tiny").corpus()
    assert isinstance(made, Biographies)
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


def _workspace(root: Path, progress: Progress) -> Workspace:
    here = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    identity = hashlib.sha256(f"{here['device']} {__version__}".encode()).hexdigest()[:6]
    return open_workspace(root, "knowledge", identity, progress, again=False, kind="claims")


def _digest(what: Any) -> str:
    """Another recipe is another training, and other questions are another interview."""
    made = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(made.encode()).hexdigest()[:6]


def _seconds(tasks: Sequence[Task]) -> Callable[[], float]:
    def expected() -> float:
        waiting = [task for task in tasks if not Run(task.folder).finished]
        alone = [training_seconds(task.recipe) for task in waiting]
        return sum(alone) / LocalPool().concurrency(max(len(waiting), 1))

    return expected


def _train(workspace: Workspace, tasks: Sequence[Task]) -> None:
    for name, ending in workspace.train_all(tasks, LocalPool()).items():
        if ending["ending"] != "finished":
            raise RuntimeError(f"{name} {ending['ending']}: {ending['why']}")


def _ask(workspace: Workspace, task: Task, seed: int) -> Callable[[], object]:
    def work() -> object:
        saved = open_saved(str(task.folder), workspace.folder, best=False)
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
