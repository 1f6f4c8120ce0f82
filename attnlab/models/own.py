"""A language model of a person's own: `model=mine.py:GPT`.

Axes: b batch, t time, v vocabulary.

Its class is given what it asks for among vocabulary, context, width, depth and heads, under the
names that people have for them. It maps tokens [b, t] to logits [b, t, v]; of several outputs the
first counts, and of an object its `logits`. A class that is a `Decoder` of ours decodes with its
cache; any other reads the whole text again for every token.
"""

import inspect
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.attention.own import count_operations, numbers
from attnlab.code.own import OwnCode
from attnlab.code.running import defined_at, running
from attnlab.config import setting, settings
from attnlab.models.model import LanguageModel

KNOWN = ("vocabulary", "context", "width", "depth", "heads")


@settings
class OwnModel(OwnCode):
    key: ClassVar[str] = "model"

    vocabulary: int = setting(256, low=1, about="distinct tokens; those of the tokenizer")
    context: int = setting(256, low=1, about="tokens of a training text")
    width: int = setting(128, low=1, about="d_model: numbers in the vector of a token")
    depth: int = setting(4, low=1, about="layers")
    heads: int = setting(4, low=1, about="query heads")

    def build(self) -> LanguageModel:
        made = self.make({name: getattr(self, name) for name in KNOWN})
        if isinstance(made, LanguageModel):
            made.settings = self
            return made
        if not isinstance(made, nn.Module):
            raise ValueError(f"{self.option} makes a {type(made).__name__}; it must be a module")
        return OwnLanguageModel(made, self)


class OwnLanguageModel(LanguageModel):
    settings: OwnModel

    def __init__(self, inner: nn.Module, settings: OwnModel) -> None:
        super().__init__()
        self.inner, self.settings, self.files = inner, settings, settings.files()
        # which for some is the sign that logits of every token are wanted
        self.wants_targets = "targets" in inspect.signature(inner.forward).parameters

    @property
    def longest(self) -> int | None:
        return self.settings.context  # whether it can read more is not known

    def operations(self, context: int) -> float:
        """Measured: products of matrices in one reading, and twice as many on the way back."""
        device = next((one.device for one in self.parameters()), None)
        tokens = torch.zeros(1, context, dtype=torch.long, device=device)
        return 3.0 * count_operations(lambda: self(tokens)) / context

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        name, vocabulary = self.settings.option, self.settings.vocabulary
        named = {"targets": tokens} if self.wants_targets else {}
        with running(f"{name} failed", self.files):
            out: Any = self.inner(tokens, **named)
        out = getattr(out, "logits", out)
        out = out[0] if isinstance(out, tuple | list) and out else out
        wanted = [*tokens.shape, vocabulary]
        if not isinstance(out, Tensor) or list(out.shape) != wanted:
            shown = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"{name} gives {shown}; logits for every token are {wanted}{defined_at(self.inner)}"
            )
        if not out.is_floating_point() or out.device != tokens.device:
            raise ValueError(
                f"{name} gives {numbers(out)}; logits are floating-point numbers on "
                f"{tokens.device}{defined_at(self.inner)}"
            )
        return out
