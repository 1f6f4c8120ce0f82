"""Recurrent models: the Elman network, and three language models made of it.

Axes: b batch, t time, i input width, c hidden width, o output width, v vocabulary.

    Elman          h[t] = f(W_hh h[t-1] + W_hx x[t] + b_h),   y[t] = f(W_yh h[t] + b_y)
    bidirectional  one Elman forwards, one backwards, h[t] = f(W_f f[t] + W_g g[t] + b)

A bidirectional network over the whole text has read the answer before it is asked: as a language
model it is wrong, and kept to show that. Over each prefix it is right, and costs O(t²).
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.config import setting, settings
from attnlab.models.model import Decoder, LanguageModel

Activation = Literal["tanh", "relu", "sigmoid", "slide"]


def slide(x: Tensor) -> Tensor:
    """The course's activation: x between 0 and 1, flat outside."""
    return x.clamp(0, 1)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "slide": slide,
}


class Recurrence(nn.Module):
    """h[t] = f(W_hh h[t-1] + W_hx x[t] + b_h)"""

    def __init__(self, inputs: int, width: int, activation: Activation = "tanh") -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, width)  # W_hx and b_h
        self.from_hidden = nn.Linear(width, width, bias=False)  # W_hh
        nn.init.orthogonal_(self.from_hidden.weight)  # keeps a signal's size from step to step
        self.activation = _ACTIVATIONS[activation]

    def start(self, x: Float[Tensor, "b t i"]) -> Float[Tensor, "b c"]:
        return x.new_zeros(x.shape[0], self.from_hidden.in_features)

    def forward(
        self,
        x: Float[Tensor, "b t i"],
        state: Float[Tensor, "b c"] | None = None,
        padding: Bool[Tensor, "b t"] | None = None,
    ) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "b c"]]:
        """All hidden states, and the last one to continue from; padding leaves a state as it is."""
        state = self.start(x) if state is None else state
        states = []
        for time, drive in enumerate(self.from_input(x).unbind(1)):
            new = self.step(drive, state)
            state = new if padding is None else torch.where(padding[:, time, None], state, new)
            states.append(state)
        return torch.stack(states, dim=1), state

    def step(self, drive: Tensor, state: Tensor) -> Tensor:
        """One step, given what the input contributes."""
        return self.activation(self.from_hidden(state) + drive)


class Elman(nn.Module):
    """The Elman network of the course: a recurrence and an output y[t] = f(W_yh h[t] + b_y)."""

    def __init__(
        self, inputs: int, width: int, outputs: int, activation: Activation = "slide"
    ) -> None:
        super().__init__()
        self.recurrence = Recurrence(inputs, width, activation)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Float[Tensor, "b t i"]) -> Float[Tensor, "b t o"]:
        states, _ = self.recurrence(x)
        return self.recurrence.activation(self.output(states))


class Bidirectional(nn.Module):
    """f from the left, g from the right, h[t] = act(W_f f[t] + W_g g[t] + b)."""

    def __init__(self, inputs: int, width: int, activation: Activation = "tanh") -> None:
        super().__init__()
        self.ahead = Recurrence(inputs, width, activation)
        self.back = Recurrence(inputs, width, activation)
        self.from_ahead = nn.Linear(width, width)
        self.from_back = nn.Linear(width, width, bias=False)

    def forward(self, x: Float[Tensor, "b t i"]) -> Float[Tensor, "b t c"]:
        ahead, _ = self.ahead(x)
        back, _ = self.back(x.flip(1))
        return self.join(ahead, back.flip(1))

    def join(self, ahead: Tensor, back: Tensor) -> Tensor:
        return self.ahead.activation(self.from_ahead(ahead) + self.from_back(back))


@settings
class RecurrentSettings:
    """What the three language models have in common."""

    vocabulary: int = setting(
        256, low=1, high=1 << 20, about="distinct tokens; in a training, those of the tokenizer"
    )
    width: int = setting(128, low=1, high=1 << 20, about="numbers in the state and in a token")
    activation: Activation = setting("tanh", about="what the new state is passed through")


@settings
class ElmanSettings(RecurrentSettings):
    def build(self) -> "ElmanLM":
        return ElmanLM(self)


class RecurrentCache:
    """The state after all that was read, of a size that does not grow with it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.state: Tensor | None = None
        self.length = 0

    @property
    def bytes(self) -> int:
        return 0 if self.state is None else self.state.numel() * self.state.element_size()


class ElmanLM(Decoder[RecurrentCache]):
    """A language model in constant memory: everything read so far is in one vector."""

    def __init__(self, settings: ElmanSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Embedding(settings.vocabulary, settings.width)
        self.recurrence = Recurrence(settings.width, settings.width, settings.activation)
        self.head = nn.Linear(settings.width, settings.vocabulary)

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        *,
        positions: Int[Tensor, "#b t"] | None = None,
        key_padding: Bool[Tensor, "b t"] | None = None,
        cache: RecurrentCache | None = None,
    ) -> Float[Tensor, "b t v"]:
        """Logits for the token after each one; `positions` mean nothing to a recurrence."""
        state = None if cache is None else cache.state
        states, state = self.recurrence(self.embed(tokens), state, key_padding)
        if cache is not None:
            cache.state = state.detach()
            cache.length += tokens.shape[1]
        return self.head(states)

    def new_cache(self) -> RecurrentCache:
        return RecurrentCache()


@settings
class BidirectionalSettings(RecurrentSettings):
    def build(self) -> "BidirectionalReader":
        return BidirectionalReader(self)


class BidirectionalModel(LanguageModel):
    """A bidirectional network between the tokens and the logits."""

    def __init__(self, settings: "BidirectionalSettings | PrefixBidirectionalSettings") -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Embedding(settings.vocabulary, settings.width)
        self.network = Bidirectional(settings.width, settings.width, settings.activation)
        self.head = nn.Linear(settings.width, settings.vocabulary)


class BidirectionalReader(BidirectionalModel):
    """Logits from a bidirectional network over the whole text: each saw the token it predicts."""

    causal = False

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        return self.head(self.network(self.embed(tokens)))


@settings
class PrefixBidirectionalSettings(RecurrentSettings):
    readout: Literal["mean", "last"] = setting(
        "mean", about="the states of a prefix that predict its next token: their mean, or the last"
    )

    def build(self) -> "PrefixBidirectionalLM":
        return PrefixBidirectionalLM(self)


class PrefixBidirectionalLM(BidirectionalModel):
    """A bidirectional network run anew over every prefix, all prefixes side by side.

    With readout "last" the prefix's last h is used, as in the course: its backward half has read
    one token only. With "mean" the h of all the prefix are averaged, and both directions matter.
    """

    settings: PrefixBidirectionalSettings

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        x, network = self.embed(tokens), self.network
        length = tokens.shape[1]
        ahead, _ = network.ahead(x)
        drive = network.back.from_input(x)
        # Row n of `back` belongs to the prefix that ends at n. At step s it reads token n - s; the
        # prefixes that are no longer than s are done, and their rows drop out.
        back = torch.zeros_like(ahead)
        total = torch.zeros_like(ahead)
        steps = length if self.settings.readout == "mean" else 1
        for s in range(steps):
            back = network.back.step(drive[:, : length - s], back[:, min(s, 1) :])
            joined = network.join(ahead[:, : length - s], back)
            total = total + nn.functional.pad(joined, (0, 0, s, 0))
        if self.settings.readout == "mean":
            count = torch.arange(1, length + 1, device=tokens.device, dtype=total.dtype)
            total = total / count[:, None]
        return self.head(total)

    def operations(self, context: int) -> float:
        found = super().operations(context)
        if self.settings.readout == "mean":
            back = self.network.back.from_hidden.weight.numel()
            joined = sum(
                linear.weight.numel()
                for linear in (self.network.from_ahead, self.network.from_back)
            )
            found += 3 * 2.0 * (back + joined) * (context - 1) / 2
        return found
