"""Recurrent networks: what two units can remember, and which of them are language models.

Axes in the formulas: t time, T length of a text, V vocabulary; h is a hidden state, f and g the
halves of a bidirectional one, from the left and from the right.

A text is x₁ … x_T after a fixed first token, so that x₁ too is predicted from something that was
read. Every total runs over all V^T texts.
"""

import copy
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.models.recurrent import (
    BidirectionalReader,
    BidirectionalSettings,
    Elman,
    PrefixBidirectionalLM,
    PrefixBidirectionalSettings,
)
from attnlab.reports.report import Cell, Plot, Series, Table
from attnlab.theory.claim import EQUAL, About, Answer, Claim, Evidence, Knob, Measure, setting
from attnlab.theory.draw import Array, blank, built

Reader = BidirectionalReader | PrefixBidirectionalLM
Readout = Literal["last", "mean"]
Pair = tuple[Fraction, Fraction]

INPUTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
START: Pair = (Fraction(0), Fraction(0))
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class ElmanRemembersBoth(Claim):
    bias: float = setting(-1.0, low=-3, high=3, about="b_y, added before the output's activation")
    length: int = setting(6, low=1, high=8, live=5, about="longest input that is tried")

    about = About(
        statement="An Elman network with W_hh = W_hx = I, b_h = 0, W_yh = [1 1] and b_y = −1 "
        "answers 1 exactly when both inputs have been seen.",
        formula="hₜ = slide(hₜ₋₁ + xₜ),   yₜ = slide(hₜ,₀ + hₜ,₁ + b_y),   "
        "slide(a) = min(1, max(0, a))\n"
        "yₜ = 1 if x_r,₀ = 1 and x_s,₁ = 1 for some r, s ≤ t, and 0 otherwise",
        derivation="""Call input i seen at t when x_r,ᵢ = 1 for some r ≤ t. We show by induction
            that hₜ,ᵢ is 1 when input i was seen and 0 when not. It is so at the start, where
            nothing was seen and h₀ = 0. A step adds xₜ,ᵢ, which is 0 or 1: 0 + 0 stays 0, all
            other sums are 1 or 2, and slide makes both 1.

            So there are four states, each leads only to these four, and a search that starts at
            h₀ and follows all four inputs finds no fifth. What holds in all four holds after
            inputs of any length, not only of those that were tried one by one.

            The output is slide(b_y), slide(1 + b_y) or slide(2 + b_y) when none, one or both were
            seen. It has to be 0, 0, 1. The middle one asks for b_y ≤ −1 and the last one for
            b_y ≥ −1, so with these matrices −1 is not one answer but the only one.""",
        expected="holds",
        answers=[
            Answer("004 student", "1.1", "these matrices and b_y = −1, with the four states"),
            Answer("004 GPT-4", "1.1", "the same matrices and b_y = −1, tried on single steps"),
        ],
        knob=Knob("b_y = 0: one input is enough", {"bias": 0.0}),
    )

    def run(self) -> Evidence:
        bias = Fraction(self.bias)
        tried, wrong, difference = self._tried(bias)
        reached = _reachable()
        # both documents give this value, whatever the setting
        theirs = _wrong(reached, Fraction(-1))
        biases = np.linspace(-3, 1, 81)
        counts = {"none": 0, "one": 1, "both": 2}
        return Evidence(
            kind="exact",
            trials=tried,
            measures=[
                Measure(f"wrong outputs, of {tried:,} inputs", wrong, "=", 0),
                Measure("wrong outputs in the states of any length", _wrong(reached, bias), "=", 0),
                Measure("states that are ever reached", len(reached), "=", 4),
                Measure("|our float64 network − fractions|", difference, "≤", EQUAL),
            ],
            right={"004 student": theirs == 0, "004 GPT-4": theirs == 0},
            picture=Plot(
                title="What the network answers, by how many of the inputs were seen",
                x="b_y",
                y="output y",
                series=[
                    Series(name=name, x=biases.tolist(), y=np.clip(count + biases, 0, 1).tolist())
                    for name, count in counts.items()
                ],
                note="Right is 0, 0 and 1: the lines are so at b_y = −1 and nowhere else.",
            ),
            details=[_transitions(bias)],
        )

    def _tried(self, bias: Fraction) -> tuple[int, int, float]:
        """How many inputs of up to `length` steps there are, how many end in a wrong output, and
        how far our network is from the fractions at the worst."""
        ours = _elman_outputs(float(bias), self.length)
        states = [((0, 0), START)]
        tried, wrong, difference = 0, 0, 0.0
        for time in range(self.length):
            states = [_step(seen, state, x) for seen, state in states for x in INPUTS]
            tried += len(states)
            wrong += _wrong(states, bias)
            exact = np.array([float(_output(state, bias)) for _, state in states])
            # all inputs with the same first steps lie side by side
            same = ours[:, time].reshape(len(states), -1)
            difference = max(difference, float(np.abs(same - exact[:, None]).max()))
        return tried, wrong, difference


def _slide(a: Fraction) -> Fraction:
    return min(Fraction(1), max(Fraction(0), a))


def _step(seen: tuple[int, int], state: Pair, x: tuple[int, int]) -> tuple[tuple[int, int], Pair]:
    """What was seen, which is the truth, and the hidden state, which is the network's."""
    return (
        (seen[0] | x[0], seen[1] | x[1]),
        (_slide(state[0] + x[0]), _slide(state[1] + x[1])),
    )


def _output(state: Pair, bias: Fraction) -> Fraction:
    return _slide(state[0] + state[1] + bias)


def _wrong(reached: list[tuple[tuple[int, int], Pair]], bias: Fraction) -> int:
    return sum(_output(state, bias) != min(seen) for seen, state in reached)


def _reachable() -> list[tuple[tuple[int, int], Pair]]:
    """All pairs of (what was seen, hidden state) that any input of any length leads to."""
    reached = [((0, 0), START)]
    for seen, state in reached:  # which grows meanwhile, until nothing new comes
        for x in INPUTS:
            if (step := _step(seen, state, x)) not in reached:
                reached.append(step)
    return reached


def _elman_outputs(bias: float, length: int) -> Array:
    """Outputs [input, time] of our module for all inputs, in the order of `itertools.product`."""
    network = blank(lambda: Elman(2, 2, 1, "slide"))
    recurrence = network.recurrence
    recurrence.from_input.weight.copy_(torch.eye(2))
    recurrence.from_input.bias.fill_(0)
    recurrence.from_hidden.weight.copy_(torch.eye(2))
    network.output.weight.fill_(1)
    network.output.bias.fill_(bias)
    inputs = torch.tensor(list(itertools.product(INPUTS, repeat=length)), dtype=torch.float64)
    return network(inputs)[..., 0].numpy()


def _transitions(bias: Fraction) -> Table:
    rows: list[list[str | float]] = []
    for seen, state in _reachable():
        followers = [_step(seen, state, x)[1] for x in INPUTS]
        states = [f"{first} {second}" for first, second in (state, *followers)]
        rows.append([*states, float(_output(state, bias))])
    inputs = [f"x = {first} {second}" for first, second in INPUTS]
    return Table(title="From each state to the next", columns=["h", *inputs, "y"], rows=rows)


@dataclass(frozen=True, kw_only=True)
class BirnnIsNoLm(Claim):
    backward: float = setting(1.0, low=0, high=3, about="weight of the half that reads backwards")
    vocabulary: int = setting(3, low=2, high=5)
    length: int = setting(4, low=1, high=5, about="tokens of a text after the first, fixed one")
    width: int = setting(5, low=1, high=16)
    models: int = setting(5, low=1, high=20, live=2, about="how many networks are drawn")

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
        answers=[
            Answer("004 student", "1.2(a)", "no: h depends on the inputs to come"),
            Answer("004 GPT-4", "1.2(a)", "no: the backward half uses the future"),
        ],
        knob=Knob("cut the backward direction: W_g = 0", {"backward": 0.0}),
    )

    def run(self) -> Evidence:
        texts = _texts(self.vocabulary, self.length)
        networks = [self._network(model) for model in range(self.models)]
        rows = [self._measured(_weighed(one, self.backward), texts) for one in networks]
        totals, roundings, peeks = (np.array(column) for column in zip(*rows, strict=True))
        # the documents speak of the network as it is, whatever the setting
        whole = rows if self.backward == 1 else [self._measured(one, texts) for one in networks]
        no_model = all(abs(total - 1) > rounding for total, rounding, _ in whole)
        strengths = np.linspace(0, max(self.backward, 2), 9).tolist()
        listed: list[list[Cell]] = [[f"{number}", *row] for number, row in enumerate(rows, 1)]
        copying = _total(_copying(self.vocabulary), texts)
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
            right={"004 student": no_model, "004 GPT-4": no_model},
            picture=Plot(
                title=f"Sum of the “probabilities” of all {len(texts):,} texts",
                x="weight of the half that reads backwards",
                y="Σ p(text)",
                series=[
                    Series(
                        name=f"network {number}",
                        x=strengths,
                        y=[_total(_weighed(one, strength), texts) for strength in strengths],
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
        return built(settings.build, self.seed, f"network {model}")

    def _measured(self, reader: BidirectionalReader, texts: Tensor) -> tuple[float, float, float]:
        """The total, a bound on its rounding, and how far xₜ moves its own logits."""
        total = _total(reader, texts)
        moved = _influence(reader, texts, tokens=1)
        return total, _rounding(reader, self.length, len(texts)) * total, moved


def _weighed(reader: BidirectionalReader, backward: float) -> BidirectionalReader:
    """A copy whose half that reads backwards has so much weight."""
    made = copy.deepcopy(reader)
    made.network.from_back.weight.mul_(backward)
    return made


@dataclass(frozen=True, kw_only=True)
class BirnnOfPrefixIsLm(Claim):
    whole: bool = setting(False, about="read the whole text instead of what came before xₜ")
    vocabulary: int = setting(3, low=2, high=5)
    length: int = setting(4, low=1, high=5, about="tokens of a text after the first, fixed one")
    width: int = setting(5, low=1, high=16)
    models: int = setting(5, low=1, high=20, live=2, about="how many networks are drawn")

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
        answers=[
            Answer("004 student", "1.2(b)", "yes: it holds what came before, and no more"),
            Answer("004 GPT-4", "1.2(b)", "yes: p(xₜ | fₜ₋₁, gₜ₋₁) of the prefix"),
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
        ahead = max(
            _influence(one, texts, tokens=self.length) for name in judged for one in networks[name]
        )
        documents = largest["prefix, its last h"] <= EQUAL  # whatever the setting
        names = [f"network {model + 1}" for model in range(self.models)]
        return Evidence(
            kind="construction",
            trials=len(judged) * self.models * len(texts),
            measures=[
                Measure(
                    "|Σ p(text) − 1|, largest", max(largest[name] for name in judged), "≤", EQUAL
                ),
                Measure("change of p(xₜ | …)'s logits by xₜ and what follows", ahead, "≤", EQUAL),
            ],
            right={"004 student": documents, "004 GPT-4": documents},
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
                        [name, largest[name], self._forgetting(networks[name][0], readout, texts)]
                        for name, readout in readouts.items()
                    ],
                    note="To forget is to have W_hh = 0: the state holds one token and no more.",
                )
            ],
        )

    def _network(self, model: int, readout: Readout | None) -> Reader:
        """The drawn network; all readouts have the same weights, since names decide them."""
        purpose = f"network {model}"
        if readout is None:
            settings = BidirectionalSettings(vocabulary=self.vocabulary, width=self.width)
            return built(settings.build, self.seed, purpose)
        prefix = PrefixBidirectionalSettings(
            vocabulary=self.vocabulary, width=self.width, readout=readout
        )
        return built(prefix.build, self.seed, purpose)

    def _forgetting(self, network: Reader, readout: Readout | None, texts: Tensor) -> float:
        forgetful = self._network(0, readout)
        forgetful.network.back.from_hidden.weight.fill_(0)
        return float((forgetful(texts) - network(texts)).abs().max())


def _copying(vocabulary: int) -> BidirectionalReader:
    """Backwards, the first units keep the token read last and the others the one before it, which
    is the token to be predicted; the output says that one."""
    settings = BidirectionalSettings(vocabulary=vocabulary, width=2 * vocabulary)
    reader = blank(settings.build)
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
    """How far the logits of p(xₜ | …) move, at most, when xₜ and the tokens − 1 after it change
    and all others stay."""
    logits = model(texts)[:, :-1]
    _, length, vocabulary = logits.shape
    grid = logits.reshape(*[vocabulary] * length, length, vocabulary).numpy()
    return max(
        float(np.ptp(grid[..., time, :], axis=tuple(range(time, min(time + tokens, length)))).max())
        for time in range(length)
    )


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
