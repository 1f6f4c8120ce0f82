"""What the studies of language models share: the text, the scale, the seeds, a training."""

from typing import Any, Literal, TypedDict

import torch

from attnlab.config import setting, settings
from attnlab.data.corpora import PythonDocs, TextFiles
from attnlab.data.tokens import Characters
from attnlab.experiments.experiment import Experiment
from attnlab.experiments.presentation import condense
from attnlab.experiments.workspace import Workspace
from attnlab.training.recipe import Recipe
from attnlab.training.saved import Saved, open_saved

Text = PythonDocs | TextFiles
ScaleName = Literal["auto", "tiny", "small", "full"]
SEEDS = {"tiny": 2, "small": 2, "full": 3}
SAMPLES = 4  # held-out samples that a text must have at least: an interval over fewer says little
POINTS = 20  # of a learning curve


@settings
class LanguageStudy(Experiment):
    data: str = setting("", about="text file or folder; empty: the documentation of Python")
    scale: ScaleName = setting(
        "auto", about="size of the models and of the study; auto: full on a GPU, else small"
    )
    seeds: int | None = setting(
        None,
        low=1,
        because="it counts repeated trainings",
        none=f"{SEEDS['small']} ({SEEDS['full']} at full scale)",
        about="trainings of each model, with other random seeds",
    )

    @property
    def chosen_scale(self) -> str:
        if self.scale != "auto":
            return self.scale
        return "full" if torch.cuda.is_available() else "small"

    @property
    def repeats(self) -> range:
        return range(SEEDS[self.chosen_scale] if self.seeds is None else self.seeds)

    @property
    def corpus(self) -> Text:
        return TextFiles(path=self.data) if self.data else PythonDocs()

    def fingerprint(self, context: int) -> str:
        """Of the text, when it is long enough for samples of this context."""
        corpus = self.corpus.load()
        held, least = corpus.characters("validation"), SAMPLES * context + 1
        if held < least:
            raise ValueError(
                f"{corpus.name} keeps {held:,} characters for validation, its last tenth; "
                f"scale={self.chosen_scale} needs {least:,} there: use a longer text"
            )
        return str(corpus.fingerprint)

    def measures(self) -> tuple[int, int]:
        """Of the text: distinct characters, and characters held out."""
        corpus = self.corpus.load()
        vocabulary = Characters().train(corpus.alphabet(), special=False).size
        return vocabulary, corpus.characters("validation")


class Curve(TypedDict):
    step: list[int]
    loss: list[float]


class TrainingResult(TypedDict):
    """Held-out loss, steps, seconds in them, and the training loss over its POINTS parts."""

    loss: float
    steps: int
    seconds: float
    curve: Curve


def train(workspace: Workspace, name: str, recipe: Recipe) -> TrainingResult:
    run = workspace.train(name, recipe)
    result = run.result()
    rows = [(row["step"], row["loss"]) for row in run.read("metrics")]
    curve = condense(rows, POINTS, result["step"])
    return {
        "loss": result["best_loss"],
        "steps": result["step"],
        "seconds": result["step_seconds"],
        "curve": {"step": [step for step, _ in curve], "loss": [loss for _, loss in curve]},
    }


def open_trained(workspace: Workspace, training: str) -> Saved:
    folder = workspace.run_of(training).folder
    return open_saved(str(folder), folder.parent)


def losses_by_seed(results: dict[str, Any], name: str, seeds: range) -> dict[int, float]:
    """Of the jobs "<name>, seed <n>"."""
    return {seed: results[f"{name}, seed {seed}"]["loss"] for seed in seeds}
