"""The dot product: what it has to do with the angle of key and query.

Axes in the formulas: width d of keys and queries, θ the angle between them.
"""

import math

import numpy as np
import torch

from attnlab.attention.scores import ScaledDot
from attnlab.config import setting, settings
from attnlab.kernels import Request
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.angle import cosines
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
from attnlab.theory.draw import Array, frozen_module, largest, normal

QUERY = np.array([[1.0, 0.0]])
# the same direction at two lengths, another at two lengths, and one that scores as the first does
KEYS = np.array([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [3.0, 3.0], [1.0, 5.0]])


@settings
class DotProductIsNotTheAngle(Claim):
    unit: bool = setting(False, about="make keys and queries length 1 first")
    longer: float = setting(3.0, low=1, high=20, about="length of the second key; the first has 1")
    degrees: float = setting(
        45.0, low=0, high=90, about="degrees between the second key and the query"
    )
    width: int = setting(8, low=1, high=64, about="coordinates of a query or key")
    cases: int = setting(50, low=1, high=500, about="random cases to try", metadata={"live": 100})

    about = About(
        statement="The dot product is no measure of the angle between key and query: it grows with "
        "their lengths, so a long key far off the query's direction can get more attention than a "
        "short one that points exactly there.",
        formula="k·q = ‖k‖ ‖q‖ cos θ,   (c k)·q = c (k·q)   but   θ(c k, q) = θ(k, q)   for c > 0\n"
        "(k + k′)·q = k·q + k′·q   but   (k + k′)·(q + q′) = k·q + k·q′ + k′·q + k′·q′",
        derivation="""Take the query (1, 0). The keys (1, 0) and (2, 0) have the same angle to it,
            0, and the scores 1 and 2. The keys (1, 0) and (1, 5) have the same score, 1, and the
            angles 0 and 79 degrees. So neither tells the other. A key of length c at the angle θ
            scores c cos θ and beats (1, 0) as soon as c > 1 / cos θ.

            Is the dot product linear? In the key alone, and in the query alone, it is: that is
            what a product with a fixed vector means. As a function of the pair it is not. Doubling
            the pair (k, q) makes (2k)·(2q) = 4 k·q, where something linear would make 2 k·q. It is
            bilinear. And cos θ is linear in neither: it does not change when k is doubled.

            For vectors of length 1 the dot product is cos θ, and all of this is over: the score
            has no parameters at all and follows the angle. So it is not fixed parameters that keep
            a score from it.""",
        expected="holds",
        questions=("CMU 2.1(a)", "CMU 2.1(b)"),
        answers=[
            Answer(
                document="004 GPT-4",
                part="2.1(a) angle",
                line=422,
                quote="仅依赖于查询和键向量的方向性 … 计算的是查询和键之间的夹角或相对方向",
                conclusion="the dot product measures the angle, and depends on directions only",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(b) linear",
                line=500,
                quote="点积是一个线性度量,而余弦相似度是一个非线性度量",
                conclusion="the dot product is linear, and the cosine is not",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(b) lengths",
                line=485,
                quote="角度 $\\theta$ 或余弦相似度 $\\cos(\\theta)$ ,因为它们依赖于向量的 … 长度",
                conclusion="the angle and its cosine depend on the lengths of the vectors",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(b) fixed",
                line=496,
                quote="由于 $w_s$ 不会随输入变化,因此它无法动态地调整来适应每个不同的",
                conclusion="parameters that are the same for all inputs cannot give the angle",
            ),
        ],
        knob=Knob("keys and queries of length 1", {"unit": True}),
        remark="""GPT-4 has it the wrong way round: by its words the dot product depends on
            directions only, and the cosine on lengths too.""",
    )

    def run(self) -> Evidence:
        k, other_k, q, other_q = normal(self.seed, "vectors", 4, self.cases, self.width)
        size = self.longer
        direction = math.radians(self.degrees)
        two = np.array([[1.0, 0.0], [size * math.cos(direction), size * math.sin(direction)]])
        first, second = self._weights(two)
        by_length = _dots(size * k, q, self.unit) - size * _dots(k, q, self.unit)
        in_key = _dots(k + other_k, q, self.unit) - _sum_of_dots(k, other_k, q, self.unit)
        both = _dots(k + other_k, q + other_q, self.unit)
        apart = both - _dots(k, q, self.unit) - _dots(other_k, other_q, self.unit)
        return Evidence(
            kind="counterexample",
            trials=self.cases,
            measures=[
                Measure(
                    "weight of the longer key, less that of the nearer", second - first, ">", 0
                ),
                Measure("|(c k)·q − c (k·q)|, relative", largest(by_length) / size, "≤", EQUAL),
                Measure("|(k + k′)·q − k·q − k′·q|", largest(in_key), "≤", EQUAL),
                Measure("|(k + k′)·(q + q′) − k·q − k′·q′|", largest(apart), ">", EQUAL),
            ],
            judgements=self._judgements(k, other_k, q, other_q),
            picture=self._picture(),
            details=[self._table()],
        )

    def _judgements(
        self, k: Array, other_k: Array, q: Array, other_q: Array
    ) -> dict[str, Judgement]:
        """Judges the dot product and the cosine as they are, whatever the settings."""
        doubled = largest(_dots(2 * k, q, False) - _dots(k, q, False))
        turned = largest(_dots(2 * k, q, True) - _dots(k, q, True))
        linear = {
            unit: largest(_dots(k + other_k, q, unit) - _sum_of_dots(k, other_k, q, unit)) <= EQUAL
            for unit in (False, True)
        }
        of_pairs = _dots(2 * k, 2 * q, False) - 2 * _dots(k, q, False)
        cosine = np.diagonal(cosines(k, q))
        return {
            "004 GPT-4 2.1(a) angle": Judgement(mark(doubled <= EQUAL)),
            # linear in the key; complete, if it was so in the pair
            "004 GPT-4 2.1(b) linear": Judgement(
                mark(linear[False] and not linear[True], complete=largest(of_pairs) <= EQUAL)
            ),
            "004 GPT-4 2.1(b) lengths": Judgement(mark(turned > EQUAL)),
            # of vectors of length 1, the dot product has no parameter that could change
            "004 GPT-4 2.1(b) fixed": Judgement(mark(largest(_dots(k, q, True) - cosine) > EQUAL)),
        }

    def _weights(self, keys: Array) -> list[float]:
        """Weights of our attention for the query (1, 0)."""
        module = frozen_module(lambda: ScaledDot().build(1, 2))
        q, k = (torch.from_numpy(_normalize(one, self.unit))[None, None] for one in (QUERY, keys))
        weights: list[float] = (
            module.weights(Request(q=q, k=k, v=k, causal=False)).flatten().tolist()
        )
        return weights

    def _table(self) -> Table:
        scores = _dots(KEYS, QUERY, self.unit).tolist()
        degrees = np.degrees(np.arccos(cosines(KEYS, QUERY)[:, 0])).tolist()
        weights = self._weights(KEYS)
        return Table(
            title=f"Keys against the query (1, 0){', all made length 1' if self.unit else ''}",
            columns=["key", "length", "angle in degrees", "k·q", "weight"],
            rows=[
                [f"({key[0]:g}, {key[1]:g})", float(np.linalg.norm(key)), *rest]
                for key, *rest in zip(KEYS, degrees, scores, weights, strict=True)
            ],
        )

    def _picture(self) -> Plot:
        lengths = np.linspace(0.1, max(self.longer, 2.0), 30)
        lines = []
        for degrees in sorted({0.0, self.degrees, 60.0, 120.0}):
            at = math.radians(degrees)
            keys = lengths[:, None] * np.array([math.cos(at), math.sin(at)])
            y = _dots(keys, QUERY, self.unit).tolist()
            lines.append(Series(name=f"{degrees:g}° off the query", x=lengths.tolist(), y=y))
        return Plot(
            title=f"The score of a key{' made length 1' if self.unit else ''}, by its length",
            x="length of the key",
            y="k·q, for q = (1, 0)",
            series=lines,
            note="A measure of the angle would be level.",
        )


def _normalize(vectors: Array, unit: bool) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if unit else vectors


def _dots(keys: Array, queries: Array, unit: bool) -> Array:
    """k·q of each pair; with `unit` the vectors are normalized, so it is the cosine."""
    return np.asarray((_normalize(keys, unit) * _normalize(queries, unit)).sum(axis=-1))


def _sum_of_dots(one: Array, other: Array, queries: Array, unit: bool) -> Array:
    return _dots(one, queries, unit) + _dots(other, queries, unit)
