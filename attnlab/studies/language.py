"""What the studies of language models share: text, costs of a step, loss by position, words.

Axes: n held-out samples, t time.
Cost: a loss by position is one forward pass over the held-out text; costs of steps take some steps.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import nn

from attnlab import chance, files
from attnlab.bench.measure import peak_memory, take_turns
from attnlab.data.batches import IGNORE, Batch, Source, batch_of
from attnlab.data.corpora import Corpus, PythonDocs, TextFiles
from attnlab.data.tokens import Characters
from attnlab.generate import Sampling, evaluating, generate
from attnlab.kernels import dispatch
from attnlab.models.model import parameters
from attnlab.statistics import Interval, mean_interval
from attnlab.studies.desk import Desk, training_seconds
from attnlab.studies.study import Study
from attnlab.training.loop import EVALUATION_TOKENS
from attnlab.training.parallel import World, place_of
from attnlab.training.recipe import Recipe
from attnlab.training.saved import Saved, open_saved
from attnlab.training.setup import prepare
from attnlab.training.step import Stepper

SEEDS = {"tiny": 2, "small": 2, "full": 3}
SAMPLES = 4  # held-out samples that a text must have at least: an interval over fewer says little
STEPS_A_TURN = 4  # so that waiting for the device is a small part of what is timed
POINTS = 20  # of a learning curve
PEAKS = 3  # readings of the memory: a CPU's is right to a few percent only
PATIENCE = 30.0  # seconds of measuring for each model


@dataclass(frozen=True, kw_only=True)
class LanguageStudy(Study):
    data: str = ""  # a text file or folder; the documentation of Python if empty
    scale: Literal["auto", "tiny", "small", "full"] = "auto"  # auto: full on a GPU, else small
    seeds: int | None = None  # trainings of each kind; 2 at small, 3 at full if none

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; it counts repeated trainings: use 1 or more")

    @property
    def chosen_scale(self) -> str:
        if self.scale != "auto":
            return self.scale
        return "full" if torch.cuda.is_available() else "small"

    @property
    def repeats(self) -> range:
        return range(SEEDS[self.chosen_scale] if self.seeds is None else self.seeds)

    @property
    def corpus(self) -> Any:
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


def expected_seconds(recipe: Recipe, held: int) -> float:
    """Of a training and its evaluation on `held` tokens, which is a third of as many steps."""
    more = -(-held // (3 * recipe.batch * recipe.length))
    return training_seconds(dataclasses.replace(recipe, steps=recipe.steps + more))


def count(settings: Any) -> int:
    """Parameters of a model, without making them."""
    with torch.device("meta"):
        return parameters(settings.build())


def matched(settings: Any, wanted: int) -> Any:
    """The settings with the width whose number of parameters is nearest to the wanted one."""

    def at(width: int) -> Any:
        return dataclasses.replace(settings, width=width)

    low, high = 1, 2
    while count(at(high)) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(at(middle)) < wanted else (low, middle)
    return min(at(low), at(high), key=lambda near: abs(count(near) - wanted))


def train(desk: Desk, name: str, recipe: Recipe) -> dict[str, Any]:
    """Held-out loss, steps, seconds in them, and the training loss over its POINTS parts."""
    run = desk.train(name, recipe)
    result = files.read_json(run.folder / "result.json")
    losses = [row["loss"] for row in run.read("metrics")]
    parts = [part for part in np.array_split(losses, min(POINTS, len(losses))) if len(part)]
    return {
        "loss": result["best_loss"],
        "steps": result["step"],
        "seconds": result["step_seconds"],
        "curve": {
            "step": np.cumsum([len(part) for part in parts]).tolist(),
            "loss": [float(part.mean()) for part in parts],
        },
    }


def opened(desk: Desk, training: str) -> Saved:
    folder = desk.run(training).folder
    return open_saved(str(folder), folder.parent)


def held_out(saved: Saved) -> tuple[Source, Iterable[Batch]]:
    """The source a model was trained from, and its held-out batches as the training had them."""
    recipe = saved.recipe
    source = recipe.objective.source(
        recipe.corpus.load(), saved.tokenizer, context=recipe.length, seed=recipe.seed
    )
    device = next(saved.model.parameters()).device
    size = max(EVALUATION_TOKENS[device.type] // recipe.length, 1)
    return source, source.validation(size)


def position_losses(
    model: nn.Module, batches: Iterable[Batch], dtype: str = "float32"
) -> Float[np.ndarray, "n t"]:
    """The loss of every held-out target; NaN where a sample has none."""
    device = next(model.parameters()).device
    half = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else nullcontext()
    rows = []
    with evaluating(model), torch.no_grad():
        for batch in batches:
            with half:
                logits = model(batch.tokens.to(device))
            targets = batch.targets.to(device)
            losses = F.cross_entropy(
                logits.flatten(0, 1).float(),
                targets.flatten(),
                ignore_index=IGNORE,
                reduction="none",
            ).view_as(targets)
            rows.append(losses.masked_fill(targets == IGNORE, torch.nan).cpu().double().numpy())
    return np.concatenate(rows)


def beginning(corpus: Corpus, length: int) -> str:
    """Where the first whole line of the held-out text begins; its beginning if there is none."""
    held = next(corpus.pieces("validation"))
    line = held[held.find("\n", 0, len(held) // 2) + 1 :].lstrip() or held
    return line[:length]


def written(saved: Saved, prompt: list[int], tokens: int) -> str:
    """Text after the prompt; a model reads half its context and writes the other half, again and
    again, so that none works beyond the length it was trained on."""
    half = max(saved.recipe.length // 2, 1)
    text = list(prompt)
    while len(text) < len(prompt) + tokens:
        seed = chance.number(saved.recipe.seed, "written", len(text))
        sampling = Sampling(temperature=0.8, seed=seed)
        text += generate(saved.model, [text[-half:]], tokens=half, sampling=sampling)[0]
    return str(saved.tokenizer.decode(text[len(prompt) : len(prompt) + tokens]))


class Steps:
    """A model at the beginning of its training, ready to take the same steps again and again."""

    def __init__(self, recipe: Recipe) -> None:
        setup = prepare(recipe, Path())
        self.recipe, self.model = setup.recipe, setup.model
        self.device = place_of(recipe.device)
        self.model.to(self.device)
        self.optimiser = recipe.optimiser.build(self.model)
        world = World(rank=0, size=1, device=self.device)
        self.stepper = Stepper(self.model, self.optimiser, self.recipe, world)
        self.batches = [
            batch_of(setup.source, seed=recipe.seed, step=step, size=recipe.batch)
            for step in range(STEPS_A_TURN)
        ]

    def take(self) -> None:
        for batch in self.batches:
            self.stepper.take(0, [batch])

    def paths(self) -> list[str]:
        """The ways attention goes; on CUDA a row is enough, and its kernels are compiled anyway."""
        tokens = self.batches[0].tokens[: None if self.device.type == "cpu" else 1]
        half = self.recipe.dtype == "bfloat16"
        with dispatch.record_choices() as seen:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                self.model(tokens.to(self.device))
        return sorted({choice.path for choice in seen})

    def memory(self) -> int | None:
        """Peak bytes of a step: weights, gradients, the optimiser's state, and all else in it.

        Not of a captured step, whose memory is set aside once and for all.
        """
        self.take()  # from here on there are gradients and a state
        weights = list(self.model.parameters())
        kept = [*weights, *weights, *self.optimiser.state().values()]  # a gradient for each weight
        peaks = [
            peak_memory(lambda: self.stepper.take(0, self.batches[:1]), self.device)
            for _ in range(PEAKS)
        ]
        known = [peak for peak in peaks if peak is not None]
        if not known:
            return None
        return int(statistics.median(known)) + sum(x.numel() * x.element_size() for x in kept)


def step_costs(recipes: Mapping[str, Recipe], turns: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of a step, in turns, and which ways attention goes; on CUDA also the memory."""
    devices = [place_of("auto")] if place_of("auto").type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # dropout sets the seed in every step
        return _step_costs(recipes, turns)


def _step_costs(recipes: Mapping[str, Recipe], turns: int) -> dict[str, dict[str, Any]]:
    ready: dict[str, Steps] = {}
    costs: dict[str, dict[str, Any]] = {}
    for name, recipe in recipes.items():
        ready[name] = steps = Steps(recipe)
        costs[name] = {"paths": steps.paths()}
        if steps.device.type == "cuda":
            costs[name]["memory"] = steps.memory()
        # before the next model is made, which lets the compiler forget what it knew
        steps.stepper.rehearse(steps.batches[:1])
    takes = {name: steps.take for name, steps in ready.items()}
    for name, timing in take_turns(takes, place_of("auto"), turns, PATIENCE).items():
        milliseconds = timing.median / STEPS_A_TURN
        tokens = recipes[name].batch * recipes[name].length
        costs[name] |= {
            "step_ms": milliseconds,
            "fastest_ms": timing.fastest / STEPS_A_TURN,
            "slowest_ms": timing.slowest / STEPS_A_TURN,
            "tokens_per_second": 1e3 * tokens / milliseconds,
        }
    return costs


def step_memory(recipes: Mapping[str, Recipe]) -> dict[str, int | None]:
    """Peak bytes of a step on the CPU. Reading them slows what comes after: do it last."""
    return {name: Steps(recipe).memory() for name, recipe in recipes.items()}


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> Interval:
    """Of the differences, seed by seed."""
    return mean_interval([these[seed] - those[seed] for seed in these])


def verdict(difference: Interval) -> Literal["lower", "higher", "cannot tell"]:
    low, high = difference.low, difference.high
    if low is None or high is None or low <= 0 <= high:
        return "cannot tell"
    return "lower" if high < 0 else "higher"


def in_words(difference: Interval) -> str:
    """What follows "the model's": is 0.11 lower (0.09 to 0.13), or cannot be told apart."""
    size, low, high = abs(difference.mean), difference.low, difference.high
    if low is None or high is None:
        way = "lower" if difference.mean < 0 else "higher"
        return f"is {size:.3f} {way} in one seed, which cannot tell"
    found = verdict(difference)
    if found == "cannot tell":
        return f"cannot be told apart from it ({low:+.3f} to {high:+.3f})"
    ends = sorted((abs(low), abs(high)))
    return f"is {size:.3f} {found} ({ends[0]:.3f} to {ends[1]:.3f})"


def with_ends(interval: Interval, digits: int = 3, sign: str = "") -> str:
    """1.64 (1.60 to 1.68) for a table; one seed has no ends."""
    mean = f"{interval.mean:{sign}.{digits}f}"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} ({interval.low:{sign}.{digits}f} to {interval.high:{sign}.{digits}f})"


def megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6
