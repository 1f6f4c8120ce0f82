"""Bidirectional recurrent networks: which of them are language models.

Axes in the formulas: t time, T length of a text, V vocabulary; h is a hidden state, f and g the
halves of a bidirectional one, from the left and from the right.

A text is x₁ … x_T after a fixed first token, so that x₁ too is predicted from something that was
read. Every total runs over all V^T texts.
"""

import copy
import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.config import setting, settings
from attnlab.models.recurrent import (
    BidirectionalReader,
    BidirectionalSettings,
    PrefixBidirectionalLM,
    PrefixBidirectionalSettings,
)
from attnlab.reports.report import Cell, Plot, Series, Table
from attnlab.theory.claim import (
    EQUAL,
    About,
    Answer,
    Claim,
    Evidence,
    Judgement,
    Knob,
    Measure,
    mark,
)
from attnlab.theory.draw import Array, frozen_module, random_module

Reader = BidirectionalReader | PrefixBidirectionalLM
Readout = Literal["last", "mean"]

EPSILON = float(np.finfo(np.float64).eps)


@settings
class BirnnIsNoLm(Claim):
    backward: float = setting(1.0, low=0, high=3, about="weight of the half that reads backwards")
    vocabulary: int = setting(3, low=2, high=5, about="distinct tokens")
    length: int = setting(4, low=1, high=5, about="tokens of a text after the first, fixed one")
    width: int = setting(5, low=1, high=16, about="numbers in a state and in a token")
    models: int = setting(5, low=1, high=20, about="random networks to try", metadata={"live": 2})

    about = About(
        statement="A bidirectional RNN over the whole text gives no language model: its "
        "“probabilities” of all texts do not add up to 1.",
        formula="hₜ = σ(W_f fₜ + W_g gₜ + b),   fₜ from x₁ … xₜ,   gₜ from xₜ … x_T\n"
        "Σ over all texts of ∏ₜ p(xₜ | hₜ₋₁) ≠ 1",
        derivation="""In a language model the sum over all texts is taken from the end. The last
            factor p(x_T | x₁ … x_T₋₁) is the only one that knows x_T, and over all x_T it adds up
            to 1; then the same goes for x_T₋₁, and so on down to 1.

            Here the first of these steps fails. h_T₋₁ contains g_T₋₁, which was computed from x_T.
            For each x_T there is another vector of probabilities, and the sum takes one entry of
            each: Σ p(x_T | h(x_T)), which can be anything between 0 and V. A network that hands
            xₜ through gₜ₋₁ to the output gives every text a probability near 1, and the total
            goes towards V^T; the table has one.

            That a sum in float64 is not 1 could be rounding, so rounding is bounded. If no unit
            weighs what comes in by more than A in total, an error e of its inputs becomes at most
            A e + (2n + 4) ε A, with n inputs and the machine's ε; from the first token to a logit
            there are T + 3 units in a row. An error e of the logits changes a log-probability by
            2 e at most. The totals are much farther from 1 than that.

            The claim is about almost all weights, not about all: with W_g = 0 nothing is read
            backwards and the total is 1.""",
        expected="holds",
        questions=("CMU 1.2(a)",),
        answers=[
            Answer(
                document="004 student",
                part="1.2(a)",
                line=325,
                quote="No because … $h_t$ depends on all inputs future and past",
                conclusion="it gives no language model",
                reason="h depends on the inputs to come",
            ),
            Answer(
                document="004 GPT-4",
                part="1.2(a)",
                line=354,
                quote="不可以直接使用双向RNN定义自回归语言模型,因为双向RNN的设计依赖未来的信息",
                conclusion="it gives no language model",
                reason="a bidirectional RNN uses what is to come",
            ),
        ],
        knob=Knob("cut the backward direction: W_g = 0", {"backward": 0.0}),
    )

    def run(self) -> Evidence:
        texts = _texts(self.vocabulary, self.length)
        networks = [self._network(model) for model in range(self.models)]
        rows = [self._measure(_with_backward_weight(one, self.backward), texts) for one in networks]
        totals, roundings, peeks = (np.array(column) for column in zip(*rows, strict=True))
        # the documents speak of the network as it is, whatever the setting
        whole = rows if self.backward == 1 else [self._measure(one, texts) for one in networks]
        theirs = Judgement(
            mark(all(abs(total - 1) > rounding for total, rounding, _ in whole)),
            mark(all(moved > rounding for _, rounding, moved in whole)),
        )
        strengths = np.linspace(0, max(self.backward, 2), 9).tolist()
        listed: list[list[Cell]] = [[f"{number}", *row] for number, row in enumerate(rows, 1)]
        copying = _total(_copying_network(self.vocabulary), texts)
        return Evidence(
            kind="counterexample",
            trials=self.models * len(texts),
            measures=[
                Measure(
                    "smallest |total − 1| of a network",
                    float(np.abs(totals - 1).min()),
                    ">",
                    float(roundings.max()),
                ),
                Measure(
                    "change of p(xₜ | hₜ₋₁)'s logits by xₜ itself",
                    float(peeks.min()),
                    ">",
                    float(roundings.max()),
                ),
            ],
            judgements={"004 student 1.2(a)": theirs, "004 GPT-4 1.2(a)": theirs},
            picture=Plot(
                title=f"Sum of the “probabilities” of all {len(texts):,} texts",
                x="weight of the half that reads backwards",
                y="Σ p(text)",
                series=[
                    Series(
                        name=f"network {number}",
                        x=strengths,
                        y=[
                            _total(_with_backward_weight(one, strength), texts)
                            for strength in strengths
                        ],
                    )
                    for number, one in enumerate(networks[:4], 1)
                ],
                note="With weight 0 nothing is read backwards: a language model, total 1.",
            ),
            details=[
                Table(
                    title="Totals over all texts",
                    columns=["network", "Σ p(text)", "rounding is below", "xₜ moves its logits by"],
                    rows=[*listed, ["made to copy xₜ", copying, None, None]],
                    note=f"No total can exceed V^T = {len(texts):,}.",
                )
            ],
        )

    def _network(self, model: int) -> BidirectionalReader:
        settings = BidirectionalSettings(vocabulary=self.vocabulary, width=self.width)
        return random_module(settings.build, self.seed, f"network {model}")

    def _measure(self, reader: BidirectionalReader, texts: Tensor) -> tuple[float, float, float]:
        """The total, a bound on its rounding, and how far xₜ moves its own logits."""
        total = _total(reader, texts)
        moved = _influence(reader, texts, tokens=1)
        return total, _rounding(reader, self.length, len(texts)) * total, moved


def _with_backward_weight(reader: BidirectionalReader, backward: float) -> BidirectionalReader:
    """A copy in which the backward half has this weight."""
    made = copy.deepcopy(reader)
    made.network.from_back.weight.mul_(backward)
    return made


@settings
class BirnnOfPrefixIsLm(Claim):
    whole: bool = setting(False, about="read the whole text instead of what came before xₜ")
    vocabulary: int = setting(3, low=2, high=5, about="distinct tokens")
    length: int = setting(4, low=1, high=5, about="tokens of a text after the first, fixed one")
    width: int = setting(5, low=1, high=16, about="numbers in a state and in a token")
    models: int = setting(5, low=1, high=20, about="random networks to try", metadata={"live": 2})

    about = About(
        statement="A bidirectional RNN that reads only what came before xₜ gives a language "
        "model: the probabilities of all texts add up to 1.",
        formula="Σ over all texts of ∏ₜ p(xₜ | BiRNN(x₁ … xₜ₋₁)) = 1",
        derivation="""p(xₜ | BiRNN(x₁ … xₜ₋₁)) is a softmax of something computed from x₁ … xₜ₋₁
            alone. How it was computed does not matter: forwards, backwards or both, it is a
            function of the past, and for each past the V probabilities add up to 1.

            So the last token can be summed away, Σ p(x_T | x₁ … x_T₋₁) = 1, then the one before
            it, down to the first. This needs that no factor changes with its own token or a later
            one, and that is measured too.

            The price is time: each prefix has a backward half of its own, so a text takes O(T²)
            steps. All texts are enumerated, with two ways to read a prefix: its last h, which is
            what the documents mean, and the mean of all its h.""",
        expected="holds",
        questions=("CMU 1.2(b)",),
        answers=[
            Answer(
                document="004 student",
                part="1.2(b)",
                line=329,
                quote="contains info on all the $\\mathbf{x}$ from time 1 to time t-1 … $h_i$ is "
                "dependent on $x_0, \\dots, x_{t-1}",
                conclusion="it gives a language model",
                reason="h depends on x₁ … xₜ₋₁, and on each of them",
            ),
            Answer(
                document="004 GPT-4",
                part="1.2(b)",
                line=361,
                quote="可以使用双向RNN处理到时间步 … 因为此时没有使用未来的输入序列",
                conclusion="it gives a language model",
                reason="nothing that is to come is used",
            ),
        ],
        knob=Knob("read the whole text", {"whole": True}),
        remark="""Of the prefix's last h, the backward half has read one token only: setting its
            W_hh to zero changes no logit at all. With the last h the network is bidirectional in
            name; the mean over the prefix makes both directions count.""",
    )

    def run(self) -> Evidence:
        texts = _texts(self.vocabulary, self.length)
        readouts: dict[str, Readout | None]
        readouts = {"prefix, its last h": "last", "prefix, mean h": "mean", "whole text": None}
        networks = {
            name: [self._network(model, readout) for model in range(self.models)]
            for name, readout in readouts.items()
        }
        excess = {name: [_total(one, texts) - 1 for one in networks[name]] for name in networks}
        judged = [name for name in readouts if (readouts[name] is None) == self.whole]
        largest = {name: max(map(abs, excess[name])) for name in networks}

        def later(name: str) -> float:
            return max(_influence(one, texts, tokens=self.length) for one in networks[name])

        theirs = "prefix, its last h"  # whatever the setting
        model, unseen = mark(largest[theirs] <= EQUAL), later(theirs) <= EQUAL
        told = min(_least_influence(one, texts) for one in networks[theirs]) > EQUAL
        names = [f"network {model + 1}" for model in range(self.models)]
        return Evidence(
            kind="construction",
            trials=len(judged) * self.models * len(texts),
            measures=[
                Measure(
                    "|Σ p(text) − 1|, largest", max(largest[name] for name in judged), "≤", EQUAL
                ),
                Measure(
                    "change of p(xₜ | …)'s logits by xₜ and what follows",
                    max(map(later, judged)),
                    "≤",
                    EQUAL,
                ),
            ],
            judgements={
                "004 student 1.2(b)": Judgement(model, mark(told and unseen)),
                "004 GPT-4 1.2(b)": Judgement(model, mark(unseen)),
            },
            picture=Plot(
                title=f"By how much the sum over all {len(texts):,} texts misses 1",
                x="drawn weights",
                y="Σ p(text) − 1",
                kind="bars",
                series=[Series(name=name, x=names, y=excess[name]) for name in networks],
                note="The same weights read three ways; the prefixes' bars are too low to see.",
            ),
            details=[
                Table(
                    title="The same weights, read three ways",
                    columns=[
                        "reads",
                        "largest |Σ p(text) − 1|",
                        "logits move when the backward half forgets",
                    ],
                    rows=[
                        [
                            name,
                            largest[name],
                            self._effect_of_forgetting(networks[name][0], readout, texts),
                        ]
                        for name, readout in readouts.items()
                    ],
                    note="To forget is to have W_hh = 0: the state holds one token and no more.",
                )
            ],
        )

    def _network(self, model: int, readout: Readout | None) -> Reader:
        """A random network; all readouts have the same weights, which depend on parameter names."""
        purpose = f"network {model}"
        if readout is None:
            settings = BidirectionalSettings(vocabulary=self.vocabulary, width=self.width)
            return random_module(settings.build, self.seed, purpose)
        prefix = PrefixBidirectionalSettings(
            vocabulary=self.vocabulary, width=self.width, readout=readout
        )
        return random_module(prefix.build, self.seed, purpose)

    def _effect_of_forgetting(
        self, network: Reader, readout: Readout | None, texts: Tensor
    ) -> float:
        forgetful = self._network(0, readout)
        forgetful.network.back.from_hidden.weight.fill_(0)
        return float((forgetful(texts) - network(texts)).abs().max())


def _copying_network(vocabulary: int) -> BidirectionalReader:
    """A network that copies the token it should predict.

    Reading backwards, its first units hold the token read last, and the others the token read
    before that, which is the one to be predicted. The output is that one.
    """
    settings = BidirectionalSettings(vocabulary=vocabulary, width=2 * vocabulary)
    reader = frozen_module(settings.build)
    for parameter in reader.parameters():
        parameter.fill_(0)
    sure = 10 * torch.eye(vocabulary)  # tanh(10) and a softmax that leads by 10 are near 1
    last, before = slice(vocabulary), slice(vocabulary, None)
    reader.embed.weight[:, last] = torch.eye(vocabulary, dtype=torch.float64)
    reader.network.back.from_input.weight[last, last] = sure.double()
    reader.network.back.from_hidden.weight[before, last] = sure.double()
    reader.network.from_back.weight[last, before] = sure.double()
    reader.head.weight[:, last] = sure.double()
    return reader


def _texts(vocabulary: int, length: int) -> Tensor:
    """All texts [V^T, 1 + T], each after the token 0."""
    texts = torch.cartesian_prod(*[torch.arange(vocabulary)] * length)
    return F.pad(texts.reshape(-1, length), (1, 0))


def _total(model: nn.Module, texts: Tensor) -> float:
    """The sum of ∏ p(xₜ | …) over the texts."""
    logs = model(texts)[:, :-1].log_softmax(-1)
    return float(logs.gather(2, texts[:, 1:, None]).sum((1, 2)).exp().sum())


def _influence(model: nn.Module, texts: Tensor, tokens: int) -> float:
    """The largest change of the logits of p(xₜ | …) by xₜ and the `tokens` − 1 after it."""
    grid, length = _grid(model, texts)
    return max(
        float(np.ptp(grid[..., time, :], axis=tuple(range(time, min(time + tokens, length)))).max())
        for time in range(length)
    )


def _least_influence(model: nn.Module, texts: Tensor) -> float:
    """The smallest change of the logits of p(xₜ | …) by any earlier token."""
    grid, length = _grid(model, texts)
    moved = [
        float(np.ptp(grid[..., time, :], axis=earlier).max())
        for time in range(length)
        for earlier in range(time)
    ]
    return min(moved, default=math.inf)  # before the first there is none


def _grid(model: nn.Module, texts: Tensor) -> tuple[Array, int]:
    """Logits [x₁, …, x_T, t, V], and T."""
    logits = model(texts)[:, :-1]
    _, length, vocabulary = logits.shape
    return logits.reshape(*[vocabulary] * length, length, vocabulary).numpy(), length


def _rounding(reader: BidirectionalReader, length: int, texts: int) -> float:
    """A bound on the relative rounding of the total; the derivation says where it comes from."""
    network = reader.network
    largest = float(reader.embed.weight.abs().max())  # states are below 1, by tanh
    units = [
        _incoming(network.ahead.from_hidden) + _incoming(network.ahead.from_input),
        _incoming(network.back.from_hidden) + _incoming(network.back.from_input),
        _incoming(network.from_ahead) + _incoming(network.from_back),
        _incoming(reader.head),
    ]
    weighed = float(torch.cat(units).max()) * max(largest, 1.0)
    weighed, depth = max(weighed, 1.0), length + 3
    unit = (2 * reader.settings.width + 4) * EPSILON
    logit = unit * depth * weighed**depth  # Σ A^i over the depth, at most depth · A^depth
    softmax = (reader.settings.vocabulary + 6) * EPSILON
    # a bound above 1 says nothing, however large, and need not overflow
    return math.expm1(min(length * (2 * logit + softmax), 1.0)) + texts * EPSILON


def _incoming(layer: nn.Linear) -> Tensor:
    total = layer.weight.abs().sum(1)
    return total if layer.bias is None else total + layer.bias.abs()
