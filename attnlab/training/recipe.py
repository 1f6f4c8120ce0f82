"""A recipe: everything that decides how a model is trained. The same recipe gives the same run."""

from typing import Literal

from attnlab.config import choice, setting, settings
from attnlab.data.corpora import CorpusSettings
from attnlab.data.objectives import Objective
from attnlab.data.tokens import TokenizerSettings
from attnlab.models.model import ModelSettings
from attnlab.training.optim import OptimiserSettings, Schedule

LARGEST_BATCH = 1 << 20


@settings
class Recipe:
    corpus: CorpusSettings = choice("corpus", "python-docs", about="the text to train on")
    tokenizer: TokenizerSettings = choice(
        "tokenizer", "characters", about="how text becomes tokens"
    )
    objective: Objective = choice("objective", "causal", about="what the model learns to predict")
    model: ModelSettings = choice(
        "model", "transformer", about="the model; its vocabulary is that of the tokenizer"
    )
    start: str | None = setting(
        None,
        none="new weights",
        about="a run or checkpoint to finetune: its weights and its tokenizer are used",
    )

    optimiser: OptimiserSettings = choice(
        "optimiser", "adamw", about="how gradients change the weights"
    )
    schedule: Schedule = setting(Schedule(), about="the learning rate over the steps")
    context: int | None = setting(
        None, low=1, none="the model's context", about="tokens in a training sample"
    )
    batch: int = setting(
        32, low=1, high=LARGEST_BATCH, about="samples in a step, over all processes"
    )
    accumulate: int = setting(
        1, low=1, about="parts of a batch, one after the other: less memory, the same gradient"
    )
    steps: int = setting(1000, low=1, about="updates of the weights")
    clip: float | None = setting(
        1.0,
        above=0,
        because="it is a norm",
        none="no limit",
        about="largest norm of the gradient; a longer one is scaled down",
    )
    average: float | None = setting(
        None,
        above=0,
        below=1,
        none="the last weights",
        about="decay of a moving average of the weights, which is then evaluated and used",
    )
    seed: int = setting(0, about="random seed of the weights, the batches and dropout")

    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", about="where to train; auto: on a GPU if there is one"
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", about="dtype of the matrix products; weights stay float32"
    )
    compile: bool = setting(False, about="compile the step; on CUDA, as a single captured graph")
    parallel: Literal["ddp", "fsdp"] = setting(
        "ddp", about="under torchrun: weights on every process, or sharded"
    )
    replicas: int = setting(
        1,
        low=1,
        about="with parallel=fsdp: copies of the weights, each sharded over its part of the "
        "processes; one a machine is hybrid sharding (HSDP)",
    )
    recompute: bool = setting(
        False,
        about="activation (gradient) checkpointing: a block's forward pass is computed again for "
        "its backward pass, which keeps less memory and takes a third more operations",
    )
    timeout: float = setting(
        600.0,
        above=0,
        high=86_400,
        about="under torchrun: seconds to wait for another process before all end",
    )

    evaluate_every: int | None = setting(
        250, low=1, none="never", about="steps between evaluations on the validation split"
    )
    evaluate_tokens: int | None = setting(
        1 << 20,
        low=1,
        none="all of it",
        about="tokens of the validation split in an evaluation; of a large one always the same",
    )
    evaluate_whole: bool = setting(
        False, about="after the last step, evaluate on the whole validation split as well"
    )
    patience: int | None = setting(
        None,
        low=1,
        none="train all steps",
        about="evaluations without a better one before it stops",
    )
    save_every: int | None = setting(
        250, low=1, none="never", about="steps between checkpoints, besides the best and the last"
    )
    save_best: bool = setting(True, about="save a checkpoint when an evaluation is the best so far")
    keep: int = setting(2, low=1, about="newest checkpoints to keep, besides the best")
    sample_every: int | None = setting(
        None, low=1, none="never", about="steps between samples of generated text"
    )
    sample_tokens: int = setting(
        200,
        low=1,
        high=10_000,
        because="training waits for it; attnlab generate writes longer texts",
        about="tokens in a sample of generated text",
    )
    tensorboard: bool = setting(False, about="write curves for TensorBoard as well")

    def check(self) -> None:
        if self.batch % self.accumulate:
            raise ValueError(
                f"batch {self.batch} does not divide into accumulate={self.accumulate} parts"
            )
        if self.compile and getattr(self.objective, "apart", False):
            raise ValueError(
                "compile and objective.apart exclude each other: a compiled step looks at no "
                "borders of documents; use compile=false"
            )

    @property
    def evaluated_rows(self) -> int | None:
        """Samples of validation in an evaluation; None: all."""
        if self.evaluate_tokens is None:
            return None
        return max(self.evaluate_tokens // self.length, 1)

    @property
    def length(self) -> int:
        """Tokens in a sample."""
        own: int = getattr(self.model, "context", 128)
        return own if self.context is None else self.context
