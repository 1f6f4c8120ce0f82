"""Attention weights as a probability distribution: what the softmax makes of any scores.

Axes in the formulas: n keys, width d; s are scores, α weights, c = Σ αᵢ vᵢ is what comes out.
"""

from typing import Literal

import numpy as np

from attnlab.config import setting, settings
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
from attnlab.theory.draw import Array, largest, normal, softmax

RAISED = np.linspace(-4, 4, 33)  # what the score of one key is set to, from weak to strong
DIRECTIONS = 50  # in which the output is compared with the values


@settings
class WeightsAreADistribution(Claim):
    rule: Literal["softmax", "divided by their sum", "sigmoid"] = setting(
        "softmax", about="how scores become weights"
    )
    spread: float = setting(1.0, low=0.1, high=3, about="standard deviation of the scores")
    keys: int = setting(10, low=2, high=200, about="number of keys", metadata={"live": 50})
    width: int = setting(8, low=1, high=64, about="coordinates of a value")
    cases: int = setting(200, low=1, high=2000, about="random cases to try", metadata={"live": 100})

    about = About(
        statement="Softmax weights are a probability distribution: each is between 0 and 1, they "
        "add up to 1, and a higher score has a higher weight. Raising the score of one key moves "
        "the output towards its value, on a straight line.",
        formula="αᵢ = exp(sᵢ) / Σ exp(sₖ),   0 < αᵢ < 1,   Σ αᵢ = 1,   sᵢ > sⱼ ⇔ αᵢ > αⱼ\n"
        "c = (1 − αⱼ) c_rest + αⱼ vⱼ,   dαⱼ/dsⱼ = αⱼ(1 − αⱼ) > 0,   "
        "‖c − vⱼ‖ = (1 − αⱼ) ‖c_rest − vⱼ‖",
        derivation="""exp is positive, so every weight is a positive number divided by a sum of
            which it is a part: above 0, and below 1 as soon as there is another key. The sum of the
            numerators is the denominator, so the weights add up to 1. exp increases, and all
            weights have the same denominator, so weights are in the order of their scores.

            A mean with such weights lies in the convex hull of the values: in no direction does it
            reach beyond the farthest of them. A head mixes values, it never goes beyond them.

            Now raise the score of key j and leave the others. The others' weights keep their
            proportions, so c_rest, their own weighted mean, stays where it is, and
            c = (1 − αⱼ) c_rest + αⱼ vⱼ moves on the line from c_rest to vⱼ. The derivative of αⱼ
            by its score is αⱼ(1 − αⱼ) > 0. So c comes nearer to vⱼ with every step, and reaches it
            in the limit only (claim copy says how fast).

            This compares an output with itself. It does not say that the output is nearest to the
            value of the heaviest key: two lighter ones with values close together can outweigh
            it. How often that happens is in the table.""",
        expected="holds",
        questions=("earlier 1(a)i", "earlier 1(a)iv"),
        answers=[
            Answer(
                document="002",
                part="1(a)i",
                line=7,
                quote="对于序列中每一个值都有一个 $\\alpha$ ( $\\alpha$ 在 0 到 1 之间) … "
                "\\sum \\alpha_i = 1",
                conclusion="every value has a weight between 0 and 1, and they add up to 1",
            ),
            Answer(
                document="002",
                part="1(a)iv",
                line=15,
                quote="点积越大, 则该词注意力权重越高 … 得到的注意力输出则更接近词的 value",
                conclusion="the larger the score of a word, the closer the output is to its value",
                reason="the larger the score, the higher the weight",
            ),
        ],
        knob=Knob("scores divided by their sum, without exp", {"rule": "divided by their sum"}),
        remark="Scores divided by their sum add up to 1 as well, but some are negative or above 1. "
        "A sigmoid keeps every weight between 0 and 1, but they do not add up to 1. Either way the "
        "output can lie outside the values' hull.",
    )

    def run(self) -> Evidence:
        scores = self.spread * normal(self.seed, "scores", self.cases, self.keys)
        values = normal(self.seed, "values", self.cases, self.keys, self.width)
        weights = self._weights(scores)
        total = largest(weights.sum(axis=1) - 1)
        inside = bool((weights > 0).all() and (weights < 1).all())
        misplaced = int((np.argsort(scores, axis=1) != np.argsort(weights, axis=1)).sum())

        # the first key's score is set to each of RAISED (the axis r), the others stay
        raised = np.repeat(scores[:, None], len(RAISED), axis=1)
        raised[:, :, 0] = RAISED
        moved = self._weights(raised)
        outputs = np.einsum("crn,cnd->crd", moved, values)
        own, rest = values[:, None, 0], self._rest(scores, values)[:, None]
        weight = moved[:, :, :1]
        off_line = largest(outputs - ((1 - weight) * rest + weight * own))
        distance = np.linalg.norm(outputs - own, axis=2)
        rises = float(np.diff(weight[:, :, 0], axis=1).min())
        nears = float(np.diff(distance, axis=1).max())
        beyond = self._beyond(weights, values)
        return Evidence(
            kind="construction",
            trials=self.cases,
            measures=[
                Measure("smallest weight", float(weights.min()), ">", 0.0),
                Measure("largest weight", float(weights.max()), "<", 1.0),
                Measure("largest |Σ α − 1|", total, "≤", EQUAL),
                Measure("keys that are not in the order of their scores", misplaced, "=", 0),
                Measure("least rise of a weight with its score", rises, ">", 0.0),
                Measure("largest change of ‖c − vⱼ‖ as the score of j rises", nears, "<", 0.0),
                Measure("largest distance of c from the line to vⱼ", off_line, "≤", EQUAL),
                Measure("farthest that c is outside the values' hull", beyond, "≤", EQUAL),
            ],
            judgements={
                "002 1(a)i": Judgement(mark(inside and total <= EQUAL)),
                "002 1(a)iv": Judgement(mark(nears < 0), mark(rises > 0 and misplaced == 0)),
            },
            picture=self._picture(
                weight[0, :, 0], distance[0] / np.linalg.norm(rest - own, axis=2)[0]
            ),
            details=[
                Table(
                    title=f"{self.cases} cases with {self.keys} keys and random values",
                    columns=["in how many of them", "share"],
                    rows=[
                        [
                            "the output is nearest to the value of the heaviest key",
                            self._nearest_is_heaviest(weights, values),
                        ]
                    ],
                )
            ],
        )

    def _weights(self, scores: Array) -> Array:
        if self.rule == "softmax":
            return softmax(scores)
        if self.rule == "sigmoid":
            return 0.5 * (1 + np.tanh(scores / 2))
        return scores / scores.sum(axis=-1, keepdims=True)

    def _rest(self, scores: Array, values: Array) -> Array:
        """The output without the first key."""
        weights = self._weights(scores)[:, 1:]
        weights = weights / weights.sum(axis=1, keepdims=True)
        return np.einsum("cn,cnd->cd", weights, values[:, 1:])

    def _beyond(self, weights: Array, values: Array) -> float:
        """How far the output lies beyond all values, in the worst of some random directions."""
        directions = normal(self.seed, "directions", self.width, DIRECTIONS)
        directions /= np.linalg.norm(directions, axis=0)
        along = values @ directions  # [case, key, direction]
        outputs = np.einsum("cn,cnr->cr", weights, along)
        return max(0.0, float((outputs - along.max(axis=1)).max()))

    @staticmethod
    def _nearest_is_heaviest(weights: Array, values: Array) -> float:
        outputs = np.einsum("cn,cnd->cd", weights, values)
        nearest = np.linalg.norm(values - outputs[:, None], axis=2).argmin(axis=1)
        return float((nearest == weights.argmax(axis=1)).mean())

    def _picture(self, weight: Array, distance: Array) -> Plot:
        return Plot(
            title="Raising the score of one key",
            x="its score",
            y="part",
            series=[
                Series(name="its weight αⱼ", x=RAISED.tolist(), y=weight.tolist()),
                Series(
                    name="‖c − vⱼ‖, of ‖c_rest − vⱼ‖",
                    x=RAISED.tolist(),
                    y=distance.tolist(),
                ),
            ],
            note=f"{self.keys} keys; weights by {self.rule}; the first case.",
        )
