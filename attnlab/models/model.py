"""What a language model is: its settings, its logits, its cache, and what training it costs.

Axes: b batch, t time, v vocabulary.

Operations are those in products of matrices. A matrix with n entries costs 2n operations a token,
and twice that again on the way back. Attention is counted by its score (attention/scores.py), for
the pairs of query and key that attend to each other, and with what its backward pass computes
again. Everything elementwise is left out, as torch.utils.flop_counter does: norms, activations,
softmax, the tanh of the additive score, the optimiser. A step may therefore take longer than its
operations say: match=seconds counts time.
"""

from dataclasses import Field
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@runtime_checkable
class ModelSettings(Protocol):
    """The settings of a model: what `model` in the registry names."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def vocabulary(self) -> int: ...
    @property
    def width(self) -> int: ...
    def build(self) -> "LanguageModel": ...


class LanguageModel(nn.Module):
    """Tokens in, logits for the next token out."""

    settings: ModelSettings
    causal: ClassVar[bool] = True  # whether no logit depends on a later token

    @property
    def longest(self) -> int | None:
        """How many tokens it can read at once, if that is limited."""
        return None

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        raise NotImplementedError

    def operations(self, context: int) -> float:
        """Operations of a training step for one token of a sample of `context` tokens."""
        linear = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        return 3 * 2.0 * linear


@runtime_checkable
class ModelCache(Protocol):
    """What a model keeps of the tokens it has read."""

    length: int  # tokens read so far

    @property
    def bytes(self) -> int: ...
    def reset(self) -> None:
        """Forget everything, for the next texts."""
        ...


C = TypeVar("C", bound=ModelCache)


class Decoder(LanguageModel, Generic[C]):
    """A language model with a cache: it reads on from there, in rows of different lengths."""

    def new_cache(self) -> C:
        """An empty cache, for the next texts."""
        raise NotImplementedError

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        positions: Int[Tensor, "#b t"] | None = None,
        key_padding: Bool[Tensor, "b t"] | None = None,
        cache: C | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Logits for the token after each one.

        With a cache, `tokens` are the next ones of the same texts. `positions` default to counting
        on from what the cache has read; rows padded on the left need their own.
        """
        raise NotImplementedError


def parameters(model: nn.Module) -> int:
    """How many numbers training changes; those of tied weights are counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
