"""Soft caps and sinks: what they do to the weights with which a query attends.

Axes in the formulas: n keys; s are scores, b is the score of a sink, c a cap, α are weights.
"""

import numpy as np
import torch

from attnlab.config import setting, settings
from attnlab.kernels import attention
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import EQUAL, About, Claim, Evidence, Knob, Measure
from attnlab.theory.draw import Array, largest, normal

PATHS = ("reference", "tiled", "auto")  # auto: also the compiled one, where there is one
LEADS = np.linspace(0, 20, 21)  # how far below the sink all scores are, for the picture
FAR = 20.0  # caps: the tanh of so much is 1 in float64
COMMON = (1.0, 5.0, 10.0, 30.0, 50.0)  # caps of the table


def weights_of(
    scores: Array, path: str, *, sink: float | None = None, cap: float | None = None
) -> Array:
    """Weights of a kernel for scores [case, key], each case a query.

    Queries are unit vectors, so that q·k are the scores as they are; values are unit vectors, so
    that the outputs are the weights.
    """
    cases, keys = scores.shape
    q, v = torch.eye(cases).double()[None, None], torch.eye(keys).double()[None, None]
    k = torch.from_numpy(scores.T.copy())[None, None]
    found = attention(q, k, v, causal=False, scale=1.0, sinks=sink, soft_cap=cap, path=path)
    return found[0, 0].numpy()


def logs(weights: Array) -> Array:
    """ln α; minus infinity where a weight is 0, since no float64 is as small."""
    with np.errstate(divide="ignore"):
        return np.log(weights)


@settings
class SinkAttendsToNothing(Claim):
    sink: bool = setting(True, about="give the head a sink")
    score: float = setting(0.0, low=-5, high=5, about="score b of the sink")
    lead: float = setting(12.0, low=0, high=20, about="g: how far below b all scores lie, at least")
    spread: float = setting(1.0, low=0.1, high=3, about="standard deviation of other scores")
    keys: int = setting(10, low=1, high=200, about="number of keys")
    cases: int = setting(200, low=9, high=500, about="queries to try", metadata={"live": 50})

    about = About(
        statement="With a sink a head can attend to nothing: the weights of its keys add up to "
        "less than 1, and to as near 0 as one likes when their scores lie far enough below the "
        "sink's. With softmax alone they add up to 1, whatever the scores.",
        formula="Σ αⱼ = Z / (Z + e^b) < 1,   Z = Σ exp(sⱼ)\n"
        "sⱼ ≤ b − g for all j   ⇒   Σ αⱼ ≤ n e^(−g) / (1 + n e^(−g)) → 0\n"
        "αᵢ = exp(sᵢ − sⱼ) αⱼ",
        derivation="""A sink is one more score of the softmax, b, and its weight goes to no value.
            The weights of the keys are αⱼ = exp(sⱼ) / (Z + e^b). They add up to Z / (Z + e^b),
            which is below 1, since e^b is positive. Their proportions are those of the softmax
            alone: what the sink takes, it takes from all keys in one ratio.

            Where all scores are at least g below b, Z is at most n e^(b−g). Since Z / (Z + e^b)
            grows with Z, it is at most n e^(−g) / (1 + n e^(−g)). So with n keys, g = ln n + 7
            leaves them less than a thousandth, and the output, a sum of values with these weights,
            is no longer than that part of the longest value.

            Without a sink the weights add up to 1 (claim weights-are-a-distribution), and the
            output is a mean of values. Softmax alone can give a zero only where the values have
            one as a mean, such as a key whose value is zero: a sink with a place in the text. If
            all values have a coordinate that is 1, that coordinate of the output is Σ αⱼ.""",
        expected="holds",
        knob=Knob("no sink", {"sink": False}),
        remark="A sink of score 0 is the softmax “off by one”: 1 + Z below the line. It is also "
        "what one more key with a score of 0 and a value of 0 would do.",
    )

    def run(self) -> Evidence:
        b = self.score if self.sink else None
        scores = self.score + self.spread * normal(self.seed, "scores", self.cases, self.keys)
        below = -np.abs(normal(self.seed, "scores below", self.cases, self.keys))
        weak = self.score - self.lead + below
        found = [weights_of(scores, path, sink=b) for path in PATHS]
        faint = max(float(weights_of(weak, path, sink=b).sum(1).max()) for path in PATHS)
        z = np.exp(scores).sum(axis=1)
        formula = z / (z + np.exp(self.score))
        ratio = np.exp(scores - scores.max(axis=1, keepdims=True))
        alone = [weights_of(one, path).sum(1) - 1 for path in PATHS for one in (scores, weak)]
        most = self.keys * np.exp(-self.lead)
        return Evidence(
            kind="construction",
            trials=2 * self.cases,
            measures=[
                Measure(
                    "largest Σ α where all scores are g below b", faint, "≤", most / (1 + most)
                ),
                Measure("least 1 − Σ α", min(float(1 - a.sum(1).max()) for a in found), ">", EQUAL),
                Measure(
                    "largest |Σ α − Z/(Z + e^b)|",
                    max(largest(one.sum(1) - formula) for one in found),
                    "≤",
                    EQUAL,
                ),
                Measure(
                    "largest |αᵢ − exp(sᵢ − sⱼ) αⱼ|, j the heaviest key",
                    max(largest(one - ratio * one.max(1, keepdims=True)) for one in found),
                    "≤",
                    EQUAL,
                ),
                Measure("largest |Σ α − 1| of softmax alone", max(map(largest, alone)), "≤", EQUAL),
            ],
            picture=self._picture(below),
        )

    def _picture(self, below: Array) -> Plot:
        """The first case, moved as a whole."""
        moved = self.score - LEADS[:, None] + below[:1]
        lines = {"with a sink": self.score, "softmax alone": None}
        return Plot(
            title=f"What {self.keys} keys get when all their scores lie below the sink's",
            x="g, how far below",
            y="Σ α",
            log_y=True,
            series=[
                Series(
                    name=name,
                    x=LEADS.tolist(),
                    y=weights_of(moved, "reference", sink=b).sum(1).tolist(),
                )
                for name, b in lines.items()
            ],
        )


@settings
class SoftCapBoundsRatios(Claim):
    capped: bool = setting(True, about="cap the scores")
    cap: float = setting(5.0, low=0.5, high=50, about="c, the bound on scores")
    spread: float = setting(10.0, low=0.1, high=50, about="standard deviation of the scores")
    keys: int = setting(10, low=2, high=100, about="number of keys")
    cases: int = setting(200, low=9, high=500, about="queries to try", metadata={"live": 50})

    about = About(
        statement="A soft cap c keeps the ratio of any two weights of a query below e^(2c), and no "
        "smaller bound holds for all scores. A difference of two scores becomes "
        "2c tanh(|sᵢ − sⱼ|/(2c)) at most, which it is where sᵢ = −sⱼ.",
        formula="s′ = c tanh(s/c),   αᵢ / αⱼ = exp(s′ᵢ − s′ⱼ)\n"
        "|s′ᵢ − s′ⱼ| ≤ 2c tanh(|sᵢ − sⱼ| / (2c)) < 2c\n"
        "αᵢ < 1 / (1 + (n − 1) e^(−2c))",
        derivation="""All capped scores lie between −c and c, so two of them are less than 2c
            apart, and two weights of one query, which have the same denominator, are in a ratio
            below e^(2c). Scores of 20c and −20c come as near to that as a float64 can tell. If each
            of the n − 1 other weights is at least e^(−2c) times the largest one, the largest is
            below 1 / (1 + (n − 1) e^(−2c)).

            More is true. With x = s/c for two scores, tanh x₁ − tanh x₂ is sinh(x₁ − x₂) over
            cosh x₁ cosh x₂, and 2 cosh x₁ cosh x₂ = cosh(x₁ + x₂) + cosh(x₁ − x₂). For a given
            difference that is largest where x₁ + x₂ = 0, and there it is
            2 sinh(x₁ − x₂) / (1 + cosh(x₁ − x₂)) = 2 tanh((x₁ − x₂)/2). Since tanh y < y for y > 0,
            a cap brings any two scores nearer to each other. It does not change their order.

            The bound is on scores. A bias that is added after the cap, or a window, which is a bias
            of minus infinity, changes ratios further.""",
        expected="holds",
        knob=Knob("no cap", {"capped": False}),
        remark="A cap of 50 bounds ratios by e^100, about 3·10⁴³: it keeps scores from growing "
        "without end, and still lets one of a thousand keys have all of the weight but 4·10⁻⁴¹.",
    )

    def run(self) -> Evidence:
        cap, c = self.cap if self.capped else None, self.cap
        random = self.spread * normal(self.seed, "scores", self.cases, self.keys)
        at = c * np.geomspace(0.01, FAR, 13)
        opposite = np.zeros((len(at), self.keys))
        opposite[:, 0], opposite[:, 1] = at, -at
        lonely = np.full((1, self.keys), -FAR * c)  # one key far above all others
        lonely[0, 0] = FAR * c
        scores = np.concatenate([random, opposite, lonely])
        found = [weights_of(scores, path, cap=cap) for path in PATHS]
        ratios = [logs(one) for one in found]
        pairs = [logs(one[len(random) : -1, 0]) - logs(one[len(random) : -1, 1]) for one in found]
        return Evidence(
            kind="construction",
            trials=len(scores),
            measures=[
                Measure(
                    "largest ln(αᵢ/αⱼ)",
                    max(float((one.max(1) - one.min(1)).max()) for one in ratios),
                    "≤",
                    2 * c + EQUAL,
                ),
                Measure(
                    "how far below 2c it is where s = ±20c",
                    max(float(2 * c - one[-1]) for one in pairs),
                    "≤",
                    EQUAL,
                ),
                Measure(
                    "largest ln(αᵢ/αⱼ) − 2c tanh((sᵢ − sⱼ)/(2c))",
                    max(self._beyond(scores, one) for one in ratios),
                    "≤",
                    EQUAL,
                ),
                Measure(
                    "largest | same | where sᵢ = −sⱼ",
                    max(largest(one - 2 * c * np.tanh(at / c)) for one in pairs),
                    "≤",
                    EQUAL,
                ),
                Measure(
                    "largest weight",
                    max(float(one.max()) for one in found),
                    "≤",
                    1 / (1 + (self.keys - 1) * np.exp(-2 * c)) + EQUAL,
                ),
            ],
            picture=self._picture(),
            details=[
                Table(
                    title="What common caps allow",
                    columns=["cap", "largest ratio", "largest weight of 10 keys", "of 1,000 keys"],
                    rows=[[one, np.exp(2 * one), *_largest_weights(one)] for one in COMMON],
                )
            ],
        )

    def _beyond(self, scores: Array, ratios: Array) -> float:
        """How far any pair of keys is beyond its bound."""
        apart = scores[:, :, None] - scores[:, None, :]
        with np.errstate(invalid="ignore"):  # two weights of 0 have no ratio: NaN meets no bound
            beyond = (
                ratios[:, :, None]
                - ratios[:, None, :]
                - 2 * self.cap * np.tanh(apart / 2 / self.cap)
            )
        return float(beyond[apart > 0].max())

    def _picture(self) -> Plot:
        difference = np.linspace(0, 6 * self.cap, 61)
        starts = {"s₂ = −s₁": -difference / 2, "s₂ = 0": 0 * difference, "s₂ = c": 0 * difference}
        starts["s₂ = c"] = starts["s₂ = c"] + self.cap
        cap = self.cap if self.capped else None
        series = [
            Series(name=name, x=difference.tolist(), y=_difference(low, low + difference, cap))
            for name, low in starts.items()
        ]
        series.append(Series(name="2c", x=[0.0, 6 * self.cap], y=[2 * self.cap] * 2))
        return Plot(
            title=f"Two scores and their weights, cap {self.cap:g}"
            if self.capped
            else "Two scores and their weights, no cap",
            x="s₁ − s₂",
            y="ln(α₁/α₂)",
            series=series,
        )


def _difference(low: Array, high: Array, cap: float | None) -> list[float]:
    weights = weights_of(np.stack([high, low], axis=1), "reference", cap=cap)
    found = logs(weights[:, 0]) - logs(weights[:, 1])
    return found.tolist()


def _largest_weights(cap: float) -> list[float]:
    return [float(1 / (1 + (keys - 1) * np.exp(-2 * cap))) for keys in (10, 1000)]
