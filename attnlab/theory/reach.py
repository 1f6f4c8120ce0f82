"""Stacked windows: how far back the tokens are that an output of several layers depends on.

Axes in the formulas: L layers, each with a window of W keys, a query's own included; tokens t.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnlab.config import setting, settings
from attnlab.kernels.mask import visible
from attnlab.models.transformer import Transformer, TransformerSettings
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import Array, random_module

VOCABULARY, WIDTH = 11, 16
BEYOND = 3  # tokens of the text that no path of windows leads to
DEEPEST, WIDEST, LONGEST = 5, 6, 24  # up to these, masks are multiplied out
COMMON = ((4, 16), (12, 256), (32, 4096))  # layers and keys, for the table


def reach(layers: int, window: int) -> int:
    return layers * (window - 1) + 1


def windows_of(layers: int, window: int, full: bool) -> tuple[int | None, ...]:
    """Of each layer; the middle one is full if any is."""
    found: list[int | None] = [window] * layers
    if full:
        found[layers // 2] = None
    return tuple(found)


def leads_to(windows: tuple[int | None, ...], length: int) -> NDArray[np.bool_]:
    """True at (t, u) where a path leads from token u to output t: all masks, one after another."""
    at, found = torch.arange(length), np.eye(length, dtype=bool)
    for window in windows:
        found = (visible(at, at, True, window).numpy().astype(int) @ found) > 0
    return found


@settings
class StackedWindowsReach(Claim):
    layers: int = setting(3, low=1, high=6, about="L: layers of the transformer")
    window: int = setting(4, low=1, high=12, about="W: keys a query attends to, including its own")
    full: bool = setting(False, about="one layer attends to all keys")

    about = About(
        statement="An output of a stack of L layers with a window of W keys depends on no more "
        "than the last L·(W − 1) + 1 tokens, whatever the parameters; with the random ones drawn "
        "here it depends on each of them. One full layer among them, and it depends on all tokens.",
        formula="∂zₜ/∂xᵤ = 0 for t − u > L(W − 1)\n"
        "∂zₜ/∂xᵤ ≠ 0 for 0 ≤ t − u ≤ L(W − 1), with random parameters",
        derivation="""One layer moves information from a key to a query, and what a query attends to
            is at most W − 1 tokens back. All else in a layer (residual, norm, feed-forward) stays
            at its token. So what reaches output t from token u has made L steps, each of 0 to W − 1
            tokens back: t − u is at most L(W − 1). Together with token t itself these are
            L(W − 1) + 1 tokens. For a token beyond, no term of the output contains it, so the
            derivative is exactly 0, in any precision.

            Each of the distances from 0 to L(W − 1) is a sum of L steps from 0 to W − 1, so there
            is a path for each of these tokens. Softmax weights are never 0, so a path is lost only
            where parameters make it so: a value matrix of 0, or sums that cancel. The
            random parameters drawn here do neither.

            With windows of several widths the steps add up alike: 1 + Σ(W − 1), over the layers. A
            layer without a window takes a step of any size, so the whole stack reaches everything.

            This says which tokens can matter, and not how much. A path of L longest steps is one of
            many, and its part of the derivative is a product of L weights.""",
        expected="holds",
        knob=Knob("one full layer among them", {"full": True}),
        remark="In the recorded run the derivative by the farthest token is the smallest of all. "
        "Whether a trained model makes use of such tokens is another question.",
    )

    def run(self) -> Evidence:
        cases = [
            (layers, window, length)
            for layers in range(1, DEEPEST + 1)
            for window in range(1, WIDEST + 1)
            for length in range(1, LONGEST + 1)
        ]
        pairs = sum(self._unlike_rule(*case) for case in cases)
        expected = reach(self.layers, self.window)
        found = self._influences(self.layers)
        everything = self._influences(self.layers, full=True)
        return Evidence(
            kind="exact",
            trials=len(cases),
            measures=[
                Measure("tokens that the last output depends on", _count(found), "=", expected),
                Measure("largest derivative beyond", float(found[expected:].max()), "=", 0),
                Measure("least derivative within", float(found[:expected].min()), ">", 0),
                Measure(
                    f"pairs unlike the rule, L ≤ {DEEPEST}, W ≤ {WIDEST}, all texts ≤ {LONGEST}",
                    pairs,
                    "=",
                    0,
                ),
                Measure(
                    "tokens that it depends on with a full layer",
                    _count(everything),
                    "=",
                    len(everything),
                ),
            ],
            picture=self._picture(),
            details=[
                Table(
                    title="How far a stack reaches",
                    columns=["layers", "window", "tokens"],
                    rows=[[*one, reach(*one)] for one in COMMON],
                )
            ],
        )

    def _unlike_rule(self, layers: int, window: int, length: int) -> int:
        at = np.arange(length)
        back = at[:, None] - at[None, :]
        rule = (back >= 0) & (back < reach(layers, window))
        return int((leads_to(windows_of(layers, window, self.full), length) != rule).sum())

    def _influences(self, layers: int, full: bool = False) -> Array:
        """The largest derivative of the last token's logits by each token, from the last one on."""
        model = random_module(
            TransformerSettings(
                vocabulary=VOCABULARY,
                width=WIDTH,
                depth=layers,
                window=windows_of(layers, self.window, full or self.full),
            ).build,
            self.seed,
            "transformer",
        )
        tokens = torch.arange(reach(self.layers, self.window) + BEYOND)[None] % VOCABULARY
        jacobian = torch.autograd.functional.jacobian(
            lambda x: _logits(model, tokens, x)[0, -1], model.embed(tokens)
        )
        return jacobian[:, 0].abs().amax(dim=(0, 2)).flip(0).numpy()

    def _picture(self) -> Plot:
        return Plot(
            title=f"How much the last output moves with the token so many places back, "
            f"W = {self.window}",
            x="places back",
            y="largest derivative",
            log_y=True,
            series=[
                Series(
                    name=f"{layers} {'layer' if layers == 1 else 'layers'}",
                    x=list(range(len(found))),
                    y=[float(one) if one > 0 else None for one in found],
                )
                for layers in sorted({1, 2, self.layers})
                if layers <= self.layers
                for found in [self._influences(layers)]
            ],
            note="What is exactly 0 is not drawn.",
        )


def _count(derivatives: Array) -> int:
    """Of those that are not 0."""
    return int((derivatives > 0).sum())


def _logits(model: Transformer, tokens: Tensor, x: Tensor) -> Tensor:
    """Of token vectors in place of those of the tokens."""
    handle = model.embed.register_forward_hook(lambda module, given, out: x)
    try:
        return model(tokens)
    finally:
        handle.remove()
