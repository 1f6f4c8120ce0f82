"""A recipe: everything that decides how a model is trained. The same recipe gives the same run."""

from dataclasses import dataclass, field
from typing import Literal

from attnlab.config import choice
from attnlab.data.corpora import CorpusSettings
from attnlab.data.objectives import Objective
from attnlab.data.tokens import TokenizerSettings
from attnlab.models.model import ModelSettings
from attnlab.training.optim import OptimiserSettings, Schedule

LARGEST_BATCH = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Recipe:
    corpus: CorpusSettings = choice("corpus", "python-docs")
    tokenizer: TokenizerSettings = choice("tokenizer", "characters")
    objective: Objective = choice("objective", "causal")
    model: ModelSettings = choice("model", "transformer")  # its vocabulary is the tokenizer's
    start: str | None = None  # a run or checkpoint whose weights and tokenizer are taken over

    optimiser: OptimiserSettings = choice("optimiser", "adamw")
    schedule: Schedule = field(default_factory=Schedule)
    context: int | None = None  # tokens in a sample; the model's own if none
    batch: int = 32  # samples in a step, over all processes
    accumulate: int = 1  # parts that a process takes its share in: less memory, same gradient
    steps: int = 1000
    clip: float | None = 1.0  # largest norm of the gradient
    average: float | None = None  # memory of a moving average of the weights, which is then used
    seed: int = 0

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the products; weights stay float32
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun

    evaluate_every: int | None = 250  # steps; the whole validation split
    patience: int | None = None  # evaluations without a better one until it stops
    save_every: int | None = 250  # steps; besides the best and the last
    save_best: bool = True  # whenever an evaluation is better than all before it
    keep: int = 2  # newest checkpoints kept, besides the best
    sample_every: int | None = None  # steps; writes some text
    sample_tokens: int = 200
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "accumulate", "steps", "keep", "sample_tokens"):
            _check(name, getattr(self, name), 1)
        for name in ("context", "evaluate_every", "patience", "save_every", "sample_every"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), 1)
        if self.batch > LARGEST_BATCH:
            raise ValueError(f"batch is {self.batch}; use at most {LARGEST_BATCH}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is {self.clip}; use a norm above 0, or none")
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"average is {self.average}; use a number between 0 and 1, or none")
        if self.batch % self.accumulate:
            raise ValueError(
                f"batch {self.batch} does not divide into accumulate={self.accumulate} parts"
            )

    @property
    def length(self) -> int:
        """Tokens in a sample."""
        own: int = getattr(self.model, "context", 128)
        return own if self.context is None else self.context


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; use {least} or more")
