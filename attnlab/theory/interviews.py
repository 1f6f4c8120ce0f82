"""Models trained on texts about invented people, then asked about these people and about others.

    seed --> people, weights, order of the batches --train--> a model --ask--> answers of each group

Every seed draws other people, other weights and other batches, so the spread over seeds covers all
that is random. People whom the model never read about come from the same generator: a matched
control. Trainings run in parallel with one thread each. Trained models and answers are stored, so
an interrupted run resumes.

Cost: about 70 seconds of one core for a training on documents and questions, 10 on questions alone.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

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
from attnlab.kernels.hardware import machine
from attnlab.studies.birthplaces import people
from attnlab.studies.birthplaces.experiment import BirthplacesStudy
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import open_saved

UNREAD = 500  # people who are asked about and whom no document mentions
# steps of a training on questions alone: by then the model has memorised all of them
QUESTION_STEPS = 400
LONGEST = 16  # characters of an answer; the longest place has 8
RECOMBINED = 200  # names made of a known first and a known last name
GROUPS = {
    "asked": people.GROUPS["asked"],
    "read": people.GROUPS["read"],
    "unread": "from the same generator, never read about",
    "recombined": people.GROUPS["recombined"],
}
Interview = Mapping[str, Sequence[Answer]]  # answers by group
Plain = dict[str, list[dict[str, object]]]  # an interview in JSON


def interviews(
    arm: str, seeds: Sequence[int], steps: int, *, root: Path, progress: Progress
) -> list[Interview]:
    """One interview for each seed; those not stored yet are trained and asked now."""
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
    """The birthplaces study's best recipe for so few people, with the people of this seed.

    It trains on documents and questions together. The arm "none" has the same model, optimiser and
    schedule but trains on the questions alone, for fewer steps.
    """
    study = BirthplacesStudy(scale="tiny", recipe="best", steps=steps)
    corpus = corpus_settings(seed)
    asked = len(corpus.load().questions["train"])
    reads = "rotary" if arm == "none" else arm
    (made,) = study.stages(reads, seed, asked).values()
    # no evaluation during training: only the final model is asked
    made = dataclasses.replace(made, corpus=corpus, evaluate_every=None)
    if arm != "none":
        return made
    return dataclasses.replace(
        made, objective=Questions(), batch=min(made.batch, asked), steps=min(QUESTION_STEPS, steps)
    )


def corpus_settings(seed: int) -> Biographies:
    made = BirthplacesStudy(scale="tiny").corpus()
    assert isinstance(made, Biographies)
    return dataclasses.replace(made, seed=seed)


def questions(seed: int) -> dict[str, list[Question]]:
    """The questions for a model of this seed, by group of people."""
    settings = corpus_settings(seed)
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


def _digest(what: object) -> str:
    """Part of a job's name: another recipe or other questions make another job."""
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


def _ask(workspace: Workspace, task: Task, seed: int) -> Callable[[], Plain]:
    def work() -> Plain:
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
