"""An Elman network of two units: what it can remember.

Axes in the formulas: t time; x are inputs, h hidden states and y outputs.
"""

import itertools
from fractions import Fraction

import numpy as np
import torch

from attnlab.config import setting, settings
from attnlab.models.recurrent import Elman
from attnlab.reports.report import Plot, Series, Table
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
from attnlab.theory.draw import Array, frozen_module

Pair = tuple[Fraction, Fraction]

INPUTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
START: Pair = (Fraction(0), Fraction(0))


@settings
class ElmanRemembersBoth(Claim):
    bias: float = setting(-1.0, low=-3, high=3, about="b_y, added before the output's activation")
    length: int = setting(
        6, low=1, high=8, about="longest input that is tried", metadata={"live": 5}
    )

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
        questions=("CMU 1.1",),
        answers=[
            Answer(
                document="004 student",
                part="1.1",
                line=176,
                quote="\\qquad b_y = -1$$ … $h_t$ will contain a 1 in position i if and only if",
                conclusion="these matrices with b_y = −1 do it",
                reason="a unit is 1 exactly when its input was seen, and of the four states only "
                "(1, 1) gives 1",
            ),
            Answer(
                document="004 GPT-4",
                part="1.1",
                line=270,
                quote="$W_{yh} = (1 \\ 1)$ 和 $b_y = -1$ … 如果仅有一个分量为1,或者两个分量都为0",
                conclusion="these matrices with b_y = −1 do it",
                reason="the output is 1 when both units are 1, and 0 otherwise",
            ),
        ],
        knob=Knob("b_y = 0: one input is enough", {"bias": 0.0}),
    )

    def run(self) -> Evidence:
        bias = Fraction(self.bias)
        tried, wrong, difference = self._try_all(bias)
        reached = _reachable()
        # both documents give this value, whatever the setting
        theirs = mark(_wrong(reached, Fraction(-1)) == 0)
        remembered = all(state == tuple(map(Fraction, seen)) for seen, state in reached)
        both = all((_output(one, Fraction(-1)) == 1) == (min(one) == 1) for _, one in reached)
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
            judgements={
                "004 student 1.1": Judgement(theirs, mark(remembered and both)),
                "004 GPT-4 1.1": Judgement(theirs, mark(both)),
            },
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

    def _try_all(self, bias: Fraction) -> tuple[int, int, float]:
        """All inputs of up to `length` steps: their number, how many end in a wrong output, and the
        largest difference between our network and exact fractions."""
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
    """The next pair of (inputs seen so far, hidden state): the truth, and the network's."""
    return (
        (seen[0] | x[0], seen[1] | x[1]),
        (_slide(state[0] + x[0]), _slide(state[1] + x[1])),
    )


def _output(state: Pair, bias: Fraction) -> Fraction:
    return _slide(state[0] + state[1] + bias)


def _wrong(reached: list[tuple[tuple[int, int], Pair]], bias: Fraction) -> int:
    return sum(_output(state, bias) != min(seen) for seen, state in reached)


def _reachable() -> list[tuple[tuple[int, int], Pair]]:
    """All pairs of (inputs seen so far, hidden state) that any input of any length leads to."""
    reached = [((0, 0), START)]
    for seen, state in reached:  # which grows meanwhile, until nothing new comes
        for x in INPUTS:
            if (step := _step(seen, state, x)) not in reached:
                reached.append(step)
    return reached


def _elman_outputs(bias: float, length: int) -> Array:
    """Outputs [input, time] of our module for all inputs, in the order of `itertools.product`."""
    network = frozen_module(lambda: Elman(2, 2, 1, "slide"))
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
