"""A query that points along one key and away from all the others: what the minus signs are worth.

Axes in the formulas: n keys, width d; β is a length, α are weights.
"""

import math

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
    Mark,
    Measure,
    mark,
)
from attnlab.theory.draw import Array, largest, orthonormal, softmax
from attnlab.theory.lookup import NEAR


@settings
class OppositeOfTheOtherKeys(Claim):
    beta: float = setting(6.0, low=0, high=40, about="length of the query along each key")
    keys: int = setting(10, low=3, high=100, about="number of keys")
    width: int = setting(
        16, low=3, high=128, about="coordinates of a key; at least as many as keys"
    )

    about = About(
        statement="A query along one key and against all the others leads by 2β, twice as far as "
        "a query along the key alone. It copies the value once β is large: with β = 6 among 10 "
        "keys to within 0.01, and with β = 1 not.",
        formula="q = β(kⱼ − Σ kᵢ)   ⇒   kⱼ·q = β,  kᵢ·q = −β,   αⱼ = e^(2β) / (e^(2β) + n − 1)\n"
        "q = β(k_a + k_b − Σ kᵢ)   ⇒   α_a = α_b = e^(2β) / (2e^(2β) + n − 2)",
        derivation="""For keys of length 1 at right angles, kⱼ·(kⱼ − Σ kᵢ) = 1 and
            kᵢ·(kⱼ − Σ kᵢ) = −1 for each of the others. So the lead is 2, however many keys there
            are, and 2β with the factor β. The softmax sees differences only: α is that of the
            scores 2β and 0. The same holds for two keys with a plus sign.

            With β = 1 the weight is e²/(e² + n − 1): 0.88 for two keys, 0.45 for ten. The minus
            signs are no substitute for a long query. They are not even the best use of its length:
            the vector has length β√n, so a query of length ℓ leads by 2ℓ/√n in this way, and by ℓ
            when it is ℓkⱼ. For more than four keys the plain query leads by more.

            Written as qᵢ = −kᵢ and qⱼ = kⱼ, with an index, it is one query for each key. A head
            has one query for all keys. But the scores qᵢ·kᵢ would be −1 and 1 as well, so nothing
            that is measured here depends on how the index is read.""",
        expected="holds with a condition",
        condition="β is large against ½ ln n; at β = 1, as it is written in 003, the others keep "
        "most of the weight among ten keys",
        questions=("A4 1(a)", "A4 1(b)"),
        answers=[
            Answer(
                document="003",
                part="1(a)ii",
                line=7,
                quote="For $\\alpha_i$ to be $\\sim 1$ … $q_{i+j} = -k_{i+j}$ , $q_i = k_i$",
                conclusion="q along one key and against the others, with β = 1, gives weight ~ 1",
                reason="the others' scores are then ~ 0, and this one's ≫ 0",
            ),
            Answer(
                document="003",
                part="1(b) (signs)",
                line=7,
                quote="$q_{j \\neq a,b} = -k_{j \\neq a,b}$ & $q_{j=a,b} = k_{j=a,b}$",
                conclusion="q along two keys and against the others, with β = 1, averages the two",
            ),
        ],
        knob=Knob("as 003 writes it: β = 1", {"beta": 1.0}),
        remark="003 does not keep to it: where it computes the length of the query for 1(b), it "
        "leaves the subtracted keys out and goes on with (k_a + k_b)/√2 (claim average-of-two).",
    )

    def run(self) -> Evidence:
        keys = orthonormal(self.seed, "keys", self.keys, self.width)
        scores = _scores(keys, 1) * self.beta
        lead = float(scores[0] - scores[1:].max())
        weight = float(softmax(scores)[0])
        pair = softmax(_scores(keys, 2) * self.beta)
        written = _scores(keys, 1)  # β = 1
        # what "≫ 0" takes by claim copy: a lead after which the others share 0.01
        far = math.log((self.keys - 1) / NEAR)
        as_said = largest(written[1:]) <= NEAR and float(written[0]) >= far
        betas = np.linspace(0, max(self.beta, 1.0), 50)
        return Evidence(
            kind="construction",
            trials=1,
            measures=[
                Measure("1 − αⱼ", 1 - weight, "≤", NEAR),
                Measure("|αⱼ − formula|", abs(weight - self._formula(self.beta, 1)), "≤", EQUAL),
                Measure("|lead − 2β|", abs(lead - 2 * self.beta), "≤", EQUAL * max(1, self.beta)),
                Measure(
                    "|α_a − formula| with two keys",
                    largest(pair[:2] - self._formula(self.beta, 2)),
                    "≤",
                    EQUAL,
                ),
            ],
            outside=[Measure("1 − αⱼ with β = 1", 1 - float(softmax(written)[0]), ">", NEAR)],
            judgements={
                "003 1(a)ii": Judgement(_judge(keys, 1), mark(as_said)),
                "003 1(b) (signs)": Judgement(_judge(keys, 2)),
            },
            picture=self._picture(betas),
            details=[
                Table(
                    title="With β = 1",
                    columns=["keys", "weight of one key", "weight of each of two"],
                    rows=[
                        [n, self._formula(1.0, 1, n), self._formula(1.0, 2, n)]
                        for n in sorted({3, 10, 100, self.keys})
                    ],
                )
            ],
        )

    def _formula(self, beta: float, wanted: int, keys: int | None = None) -> float:
        others = (keys or self.keys) - wanted
        return 1 / (wanted + others * math.exp(-2 * beta))

    def _picture(self, betas: Array) -> Plot:
        """Plotted over the length of the query, so both queries are equally long at each x."""
        lengths = betas * math.sqrt(self.keys)
        plain = [1 / (1 + (self.keys - 1) * math.exp(-length)) for length in lengths]
        return Plot(
            title=f"Weight of one of {self.keys} keys, for queries of equal length",
            x="length of the query",
            y="αⱼ",
            series=[
                Series(
                    name="kⱼ minus the others",
                    x=lengths.tolist(),
                    y=[self._formula(beta, 1) for beta in betas],
                ),
                Series(name="kⱼ alone", x=lengths.tolist(), y=plain),
            ],
            note=f"β = 1 is a length of {math.sqrt(self.keys):.2f}.",
        )


def _scores(keys: Array, wanted: int) -> Array:
    """Scores of the query that adds the first `wanted` keys and subtracts the others."""
    return keys @ (keys[:wanted].sum(axis=0) - keys[wanted:].sum(axis=0))


def _judge(keys: Array, wanted: int) -> Mark:
    """Judges β = 1: wrong if it fails with only one other key."""

    def works(among: Array) -> bool:
        return largest(softmax(_scores(among, wanted))[:wanted] - 1 / wanted) <= NEAR

    return mark(works(keys[: wanted + 1]), complete=works(keys))
