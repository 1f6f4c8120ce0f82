"""Birthplaces: does pretraining carry facts that finetuning never shows?

Each arm is trained in stages, and its last stage is judged by questions about people whose
documents it may have read but who were never asked about. Without `data`, the people are invented
and the truth is known; with the course's files and a GPU it is the published experiment.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from attnlab import config, files, presets
from attnlab.config import refusal, setting, settings
from attnlab.data.biographies import Biographies
from attnlab.data.birthplaces import Birthplaces, most_frequent_answer, share_of
from attnlab.data.corpora import Corpus
from attnlab.data.mixed import Mixed
from attnlab.data.objectives import Questions, SpanCorruption
from attnlab.evaluate import accuracy, answer_questions
from attnlab.experiments.costs import training_seconds
from attnlab.experiments.experiment import Experiment, Findings
from attnlab.experiments.workspace import Job, Workspace, slug
from attnlab.studies.birthplaces import people
from attnlab.training.optim import AdamW, Muon, Schedule
from attnlab.training.recipe import Recipe
from attnlab.training.runs import Run
from attnlab.training.saved import Saved, open_saved

ARMS = {
    "none": "no pretraining",
    "learned": "pretrained, learned positions",
    "rotary": "pretrained, rotary positions",
    "growing": "pretrained, rotary with growing frequencies (a mistake)",
    "by-head": "pretrained, rotary by head index (a mistake)",
    "one-wording": "pretrained, rotary, one wording a person",
}
INTERVIEWED = "rotary"  # the arm whose confidence is examined
_POSITIONS = {"learned": "learned", "growing": "rotary-growing", "by-head": "rotary-by-head"}
FEWEST = 4  # people: some to ask about in training, some afterwards


@dataclass(frozen=True)
class Size:
    """What a study of invented people is made of, so that it fits two cores.

    Facts are learned by being met: nearly 500 times a person. How the sizes were chosen, and what
    came out at others, is in docs/notes.md.
    """

    people: int
    steps: int
    arms: tuple[str, ...] = tuple(ARMS)
    seeds: int = 1
    wordings: int = 10
    width: int = 64
    batch: int = 48


SIZES = {
    "small": Size(people=70, steps=700),
    "tiny": Size(people=50, steps=520, arms=("none", "rotary", "one-wording")),
}
CONTEXT = 56  # span corruption uses 7/8 of it: 49, as long as the longest of these documents


@settings
class BirthplacesStudy(Experiment):
    data: str = setting("", about="folder with wiki.txt; empty: invented biographies")
    scale: Literal["auto", "tiny", "small", "full"] = setting(
        "auto", about="size of the models and of the study; auto: full with data, else small"
    )
    recipe: Literal["course", "best"] = setting("course", about="recipe to train by")
    arms: tuple[str, ...] = setting(
        (), choices=ARMS, about="arms to train; empty: all that belong to the recipe"
    )
    seeds: int | None = setting(
        None,
        low=1,
        none="1 (3 at full scale)",
        about="trainings of each arm, with other random seeds",
    )
    first: int = setting(0, low=0, because="seeds count from 0", about="first of the random seeds")
    people: int | None = setting(
        None,
        low=FEWEST,
        because="some are asked about in training and some afterwards",
        none="all of the data, or those of the scale",
        about="people to take from the data or to invent",
    )
    steps: int | None = setting(
        None, low=1, none="those of the scale", about="steps of pretraining"
    )
    tuning: int = setting(
        0, low=0, about="training questions used as the dev set, to choose settings by"
    )

    def check(self) -> None:
        if "one-wording" in self.arms and self.data:
            raise refusal(
                self, "arms", "one-wording needs invented people, who can be told of in many ways"
            )
        if self.scale == "full" and not self.data:
            raise refusal(
                self, "scale", "it is the course's experiment, so write data=FOLDER as well"
            )

    @property
    def size(self) -> Size | None:
        """None for the course's own."""
        scale = self.scale if self.scale != "auto" else "full" if self.data else "small"
        return SIZES.get(scale)

    @property
    def times(self) -> int:
        return self.seeds or (self.size.seeds if self.size else 3)

    @property
    def repeats(self) -> range:
        """The seeds."""
        return range(self.first, self.first + self.times)

    def chosen(self) -> list[str]:
        if self.arms:
            return list(self.arms)
        if self.recipe == "best" and self.size is None:
            return ["none", "rotary"]
        arms = self.size.arms if self.size else tuple(ARMS)
        return [arm for arm in arms if arm != "one-wording" or not self.data]

    def corpus(self, arm: str = "rotary") -> Birthplaces | Biographies:
        if self.data:
            return Birthplaces(path=self.data, people=self.people, tuning=self.tuning)
        assert self.size is not None
        wordings = 1 if arm == "one-wording" else self.size.wordings
        return Biographies(
            people=self.people or self.size.people,
            attributes=1,
            wordings=wordings,
            spread=1.5,  # of so few people none would else be from a common place
        )

    def text(self) -> str:
        return self._load().fingerprint

    def _load(self) -> Corpus:
        return self.corpus().load()

    def stages(self, arm: str, seed: int, questions: int) -> dict[str, Recipe]:
        """The trainings of an arm by name, in order; the last is judged."""
        make = self._stages_of_size if self.size else self._stages_in_full
        made = make(arm, questions)
        overrides = [f"model.positions={_POSITIONS[arm]}"] if arm in _POSITIONS else []
        corpus = self.corpus(arm)
        stages = {}
        for name, recipe in made.items():
            changed = dataclasses.replace(
                config.override(recipe, overrides),
                corpus=corpus,
                seed=seed,
                keep=1,
                save_best=False,
            )
            if self.steps is not None and name != "finetune":
                changed = dataclasses.replace(changed, steps=self.steps)
            stages[name] = changed
        return stages

    def _stages_in_full(self, arm: str, questions: int) -> dict[str, Recipe]:
        gpu = torch.cuda.is_available()
        fast = ["dtype=bfloat16", "compile=true"] if gpu else ["dtype=float32", "compile=false"]
        best = presets.birthplaces_best()
        none = arm == "none"
        finetune = presets.birthplaces_none() if none else presets.birthplaces_finetune()
        if self.recipe == "best":  # its model, for as long as the course takes
            finetune = dataclasses.replace(finetune, model=best.model)
        # too few steps to be worth compiling; some ten points of a curve
        epoch = -(-questions // finetune.batch)
        every = max(finetune.steps // epoch // 10, 1) * epoch
        overrides = [*fast, "compile=false", f"evaluate_every={every}"]
        finetune = config.override(finetune, overrides)
        if none:
            return {"finetune": finetune}
        if self.recipe == "best":
            return {"train": config.override(best, fast)}
        return {
            "pretrain": config.override(presets.birthplaces_pretrain(), fast),
            "finetune": finetune,
        }

    def _stages_of_size(self, arm: str, questions: int) -> dict[str, Recipe]:
        assert self.size is not None
        size = self.size
        model = presets.transformer(
            context=128 if self.data else CONTEXT, width=size.width, depth=2, **presets.MODERN
        )
        pretrain = Recipe(
            objective=Mixed() if self.recipe == "best" else SpanCorruption(),
            model=model,
            **{**presets.FAST, "optimiser": Muon(rate=0.02, momentum=0.9, weight_decay=0.1)},
            batch=size.batch,
            steps=size.steps,
            evaluate_every=None,
            save_every=None,
        )
        epoch = max(-(-questions // 32), 1)
        finetune = Recipe(
            objective=Questions(),
            model=model,
            optimiser=AdamW(rate=1e-3),
            schedule=Schedule(warmup=2),
            batch=min(32, questions),
            steps=15 * epoch,
            evaluate_every=epoch,
            save_every=None,
        )
        if arm == "none":
            return {"finetune": dataclasses.replace(finetune, steps=40 * epoch)}
        if self.recipe == "best":
            return {"train": dataclasses.replace(pretrain, evaluate_every=max(size.steps // 10, 1))}
        return {"pretrain": pretrain, "finetune": finetune}

    def jobs(self, workspace: Workspace) -> list[Job]:
        corpus = self._load()
        plan = [Job("the most frequent answer", lambda: _baseline(corpus))]
        for seed in self.repeats:
            for arm in self.chosen():
                plan += self._jobs_of(workspace, corpus, arm, seed)
            if INTERVIEWED in self.chosen():
                plan.append(self._interview(workspace, corpus, seed))
        return plan

    def _jobs_of(self, workspace: Workspace, corpus: Corpus, arm: str, seed: int) -> list[Job]:
        stages = self.stages(arm, seed, len(corpus.questions["train"]))
        *_, last = stages
        plan, before = [], None
        for stage, recipe in stages.items():
            name = f"{stage} {arm}, seed {seed}"
            if before is not None:
                recipe = dataclasses.replace(recipe, start=str(workspace.run_of(before).folder))
            judged = stage == last
            work: Callable[[], TrainingResult] = _trained(workspace, name, recipe)
            if judged:
                work = _judged(workspace, name, recipe, corpus)
            cost = _cost(recipe, corpus, judged)
            plan.append(Job(name, work, cost, trainings=partial(list, [(name, recipe)])))
            before = name
        return plan

    def _interview(self, workspace: Workspace, corpus: Corpus, seed: int) -> Job:
        stage = list(self.stages(INTERVIEWED, seed, 1))[-1]
        run = workspace.run_of(f"{stage} {INTERVIEWED}, seed {seed}")

        def work() -> people.Interview:
            saved = open_saved(str(run.folder), workspace.folder, best=False)
            asked = people.groups(corpus, 200, seed)
            return people.interview(saved.model, saved.tokenizer, asked)

        return Job(f"interview {INTERVIEWED}, seed {seed}", work, lambda: 5.0)

    def findings(self, results: dict[str, Any]) -> Findings:
        from attnlab.studies.birthplaces.report import findings  # which knows this class

        return findings(self, results)


class Baseline(TypedDict):
    """The answer that is right most often, given to every question."""

    answer: str
    accuracy: float
    questions: dict[str, int]  # by split


class TrainingResult(TypedDict):
    """What a finished training cost and where it ended."""

    loss: float | None
    steps: int
    parameters: int
    ready_seconds: float
    training_seconds: float


class JudgedResult(TrainingResult):
    accuracy: float
    right: int
    questions: int
    answering_seconds: float
    curve: list[list[float]]  # epochs of finetuning, or part of the training, and accuracy


def _baseline(corpus: Corpus) -> Baseline:
    answer = most_frequent_answer(corpus.questions["train"])
    sizes = {split: len(table) for split, table in corpus.questions.items()}
    dev = corpus.questions["dev"]
    return {"answer": answer, "accuracy": share_of(answer, dev), "questions": sizes}


def _cost(recipe: Recipe, corpus: Corpus, judged: bool) -> Callable[[], float]:
    return lambda: training_seconds(recipe) + (0.01 * len(corpus.questions["dev"]) if judged else 0)


def _trained(workspace: Workspace, name: str, recipe: Recipe) -> Callable[[], TrainingResult]:
    return lambda: _facts(workspace.train(name, recipe))


def _judged(
    workspace: Workspace, name: str, recipe: Recipe, corpus: Corpus
) -> Callable[[], JudgedResult]:
    """Train, then ask: the answers to dev, and predictions for the questions without answers."""

    def work() -> JudgedResult:
        run = workspace.train(name, recipe)
        began = time.monotonic()
        saved = open_saved(str(run.folder), workspace.folder, best=False)
        answers = answer_questions(saved.model, saved.tokenizer, corpus.questions["dev"], batch=512)
        seconds = time.monotonic() - began
        if corpus.questions["test"]:
            _predict(workspace.folder / "predictions" / f"{slug(name)}.txt", saved, corpus)
        epoch = -(-len(corpus.questions["train"]) // recipe.batch)
        unit = epoch if isinstance(recipe.objective, Questions) else recipe.steps
        return {
            **_facts(run),
            "accuracy": accuracy(answers),
            "right": sum(answer.given == answer.expected for answer in answers),
            "questions": len(answers),
            "answering_seconds": seconds,
            "curve": [[row["step"] / unit, row["accuracy"]] for row in run.read("eval")],
        }

    return work


def _predict(path: Path, saved: Saved, corpus: Corpus) -> None:
    files.make_folder(path.parent)
    answers = answer_questions(saved.model, saved.tokenizer, corpus.questions["test"], batch=512)
    files.write_whole(path, "".join(f"{answer.given}\n" for answer in answers).encode())


def _facts(run: Run) -> TrainingResult:
    result = run.result()
    opening = run.manifest()
    return {
        "loss": result["loss"],
        "steps": result["step"],
        "parameters": opening["parameters"],
        "ready_seconds": opening["ready_seconds"],
        "training_seconds": result["seconds"],
    }
