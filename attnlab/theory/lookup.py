"""Attention as look-up: copying a value, mixing two, and taking a sum apart.

Axes in the formulas: n keys, width d; α are weights, c = Σ αᵢ vᵢ is what comes out.
"""

import math

import numpy as np

from attnlab.config import setting, settings
from attnlab.reports.report import Plot, Series
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
from attnlab.theory.draw import Array, largest, normal, orthonormal, softmax

NEAR = 0.01  # what "about equal" means here, for weights that add up to 1


@settings
class Copy(Claim):
    lead: float = setting(12.0, low=0, high=40, about="by how much one score leads the others")
    keys: int = setting(10, low=2, high=1000, about="number of keys", metadata={"live": 500})
    width: int = setting(16, low=1, high=256, about="coordinates of a value")
    cases: int = setting(500, low=1, high=5000, about="random cases to try", metadata={"live": 100})

    about = About(
        statement="A key whose score leads all others by g gets all the weight but at most "
        "(n − 1)e^(−g). With a lead of 12 among 10 keys the output is a copy of its value, to 1 % "
        "of the largest distance between values.",
        formula="kⱼ·q ≥ kᵢ·q + g for all i ≠ j   ⇒   1 − αⱼ ≤ (n − 1) e^(−g),   "
        "‖c − vⱼ‖ ≤ (n − 1) e^(−g) · max ‖vᵢ − vⱼ‖",
        derivation="""Divide numerator and denominator of αⱼ by exp(kⱼ·q). What remains is
            αⱼ = 1 / (1 + Σ exp(kᵢ·q − kⱼ·q)), a sum over the n − 1 other keys, and each of its
            terms is at most e^(−g). So αⱼ ≥ 1 / (1 + (n − 1)e^(−g)) ≥ 1 − (n − 1)e^(−g).

            The first of these is an equality when all the others are exactly g behind: that case
            is computed both ways. For the output, c − vⱼ = Σ αᵢ (vᵢ − vⱼ) over the others, whose
            weights together are 1 − αⱼ.

            Neither q nor kⱼ has to equal anything: a weight near 1 needs a lead, and a weight of
            exactly 0 or 1 does not occur, since exp is positive.""",
        expected="holds",
        questions=("A4 1(a)", "earlier 1(a)ii-iii"),
        answers=[
            Answer(
                document="000",
                part="1(a)",
                line=5,
                quote="只有相等的 \\( q \\) 和 \\( v \\) 才会是1，其余情况注意力分数是0",
                conclusion="an equal q and v get weight 1, and all others exactly 0",
            ),
            Answer(
                document="001",
                part="1(a)",
                line=7,
                quote="显著大于 q 与其他所有键向量 … 分布 α 会将几乎所有的权重集中在 α_j 上",
                conclusion="a score far above the others takes almost all the weight, and c ≈ vⱼ",
                reason="the softmax of a score far above the others goes to 1",
            ),
            Answer(
                document="002",
                part="1(a)ii-iii",
                line=11,
                quote="k_j^T q > k_i^T q, \\forall i \\neq j … \\alpha_j \\approx 1",
                conclusion="a score above the others takes almost all the weight",
            ),
            Answer(
                document="003",
                part="1(a)",
                line=7,
                quote="$k_{i+j}^T q$ must be $\\sim 0$ & $k_i^T q$ must be $\\gg 0$",
                conclusion="the others' scores near 0 and this one far above 0 give weight 1",
            ),
        ],
        knob=Knob("no lead at all: g = 0", {"lead": 0.0}),
    )

    def run(self) -> Evidence:
        others = normal(self.seed, "scores", self.cases, self.keys - 1)
        leader = others.max(axis=1, keepdims=True) + self.lead
        weights = softmax(np.concatenate([leader, others], axis=1))
        lost = weights[:, 1:].sum(axis=1)
        bound = (self.keys - 1) * math.exp(-self.lead)
        values = normal(self.seed, "values", self.cases, self.keys, self.width)
        output = np.einsum("cn,cnd->cd", weights, values)
        error = np.linalg.norm(output - values[:, 0], axis=1)
        farthest = np.linalg.norm(values - values[:, :1], axis=2).max(axis=1)

        worst = self._weight(self.lead)
        formula = 1 / (1 + bound)
        copied = float((error / farthest).max()) <= NEAR
        leads = np.linspace(0, max(self.lead, 1.0), 50)
        return Evidence(
            kind="construction",
            trials=self.cases,
            measures=[
                Measure(
                    "error of the copy, of the largest possible",
                    float((error / farthest).max()),
                    "≤",
                    NEAR,
                ),
                Measure(
                    "|αⱼ − 1/(1 + (n−1)e^(−g))| with all others g behind",
                    abs(worst - formula),
                    "≤",
                    EQUAL,
                ),
                Measure("weight lost, of (n−1)e^(−g)", float((lost / bound).max()), "≤", 1 + EQUAL),
            ],
            judgements={
                "000 1(a)": Judgement(mark(not lost.any())),
                "001 1(a)": Judgement(mark(copied), mark(abs(worst - formula) <= EQUAL)),
                # ">" is not "≫": by how much the score leads is left out
                "002 1(a)ii-iii": Judgement(mark(copied, complete=self._weight(1.0) >= 1 - NEAR)),
                "003 1(a)": Judgement(mark(self._weight(self.lead) >= 1 - NEAR)),
            },
            picture=Plot(
                title="Weight that goes elsewhere",
                x="lead g of one score",
                y="1 − αⱼ",
                log_y=True,
                series=[
                    Series(
                        name="all others g behind",
                        x=leads.tolist(),
                        y=[1 / (1 + math.exp(g) / (self.keys - 1)) for g in leads],
                    ),
                    Series(
                        name="bound (n − 1)e^(−g)",
                        x=leads.tolist(),
                        y=[(self.keys - 1) * math.exp(-g) for g in leads],
                    ),
                ],
            ),
        )

    def _weight(self, lead: float) -> float:
        """The weight of a key whose score is `lead`; all other scores are 0."""
        return float(softmax(np.array([lead, *[0.0] * (self.keys - 1)]))[0])


@settings
class AverageOfTwo(Claim):
    beta: float = setting(12.0, low=0, high=40, about="length of the query along each key")
    keys: int = setting(10, low=3, high=200, about="number of keys")
    width: int = setting(
        16, low=3, high=256, about="coordinates of a key; at least as many as keys"
    )

    about = About(
        statement="For keys of length 1 at right angles, q = β(k_a + k_b) weighs both keys alike. "
        "With β = 12 among 10 keys each weight is ½, to within 0.01.",
        formula="q = β(k_a + k_b)   ⇒   α_a = α_b = e^β / (2e^β + n − 2) → ½",
        derivation="""The scores are k_a·q = β(1 + 0) = β, k_b·q = β and kᵢ·q = 0 for the rest.
            The softmax of these is e^β / (2e^β + n − 2) twice, and 1 / (2e^β + n − 2) for the
            n − 2 others. Nothing is approximated so far.

            The two weights add up to 1 − (n − 2)/(2e^β + n − 2). That is near 1 only when e^β is
            far above n − 2: a query of length 1, which is β = 1/√2, is too weak. With n = 10 it
            gives each of the two 0.168, and the eight others 0.083 each.""",
        expected="holds",
        questions=("A4 1(b)", "earlier 1(b)ii"),
        answers=[
            Answer(
                document="000",
                part="1(b)",
                line=9,
                quote="当 \\( q = K_a + K_b \\) 时 … 经过Softmax修正以后，两者均为0.5",
                conclusion="q = k_a + k_b, so β = 1, gives both a weight of ½",
                reason="both have the same score, and all others 0",
            ),
            Answer(
                document="001",
                part="1(b)",
                line=17,
                quote="取 $q = \\beta(k_a + k_b)$ ，其中 β 是一个较大的正数标量",
                conclusion="q = β(k_a + k_b) with a large β gives both about ½",
                reason="the formula for α_a, in which e^β is far above n − 2",
            ),
            Answer(
                document="002",
                part="1(b)ii",
                line=53,
                quote="q = \\beta(K_a + K_b) \\quad \\beta \\gg 0 … "
                "\\frac{\\exp(\\beta)}{n-2 + 2\\exp(\\beta)} \\approx",
                conclusion="q = β(k_a + k_b) with β ≫ 0 gives both about ½",
                reason="the formula for α_a",
            ),
            Answer(
                document="003",
                part="1(b)",
                line=13,
                quote="\\Rightarrow q = \\frac{k_a + k_b}{\\sqrt{2}} … \\text{check: } k_a^T q",
                conclusion="q = (k_a + k_b)/√2, a query of length 1, averages the two",
                reason="both keys get the same score, 1/√2",
            ),
        ],
        knob=Knob("a query of length 1: β = 1/√2", {"beta": 1 / math.sqrt(2)}),
    )

    def run(self) -> Evidence:
        keys = orthonormal(self.seed, "keys", self.keys, self.width)
        weights = self._weights(keys, self.beta)
        formula = self._formula(self.beta)
        betas = np.linspace(0, max(self.beta, 1.0), 50).tolist()

        def halves(beta: float, among: Array = keys) -> bool:
            return abs(float(self._weights(among, beta)[0]) - 0.5) <= NEAR

        def judge(beta: float) -> Mark:
            """Wrong if it fails with only one other key."""
            return mark(halves(beta, keys[:3]), complete=halves(beta))

        alone = keys @ (keys[0] + keys[1])  # the scores with β = 1
        alike = abs(float(alone[0] - alone[1])) <= EQUAL
        follows = abs(float(weights[0]) - formula) <= EQUAL
        short = 1 / math.sqrt(2)

        return Evidence(
            kind="construction",
            trials=1,
            measures=[
                Measure("|α_a − ½|", abs(float(weights[0]) - 0.5), "≤", NEAR),
                Measure("|α_a − formula|", abs(float(weights[0]) - formula), "≤", EQUAL),
                Measure("|α_a − α_b|", abs(float(weights[0] - weights[1])), "≤", EQUAL),
            ],
            judgements={
                # equal scores give equal weights, and not yet ½
                "000 1(b)": Judgement(
                    judge(1.0), mark(alike and largest(alone[2:]) <= EQUAL, complete=halves(1.0))
                ),
                "001 1(b)": Judgement(judge(self.beta), mark(follows)),
                "002 1(b)ii": Judgement(judge(self.beta), mark(follows)),
                "003 1(b)": Judgement(judge(short), mark(alike, complete=halves(short))),
            },
            picture=Plot(
                title="Weight of each of the two keys",
                x="β",
                y="α_a = α_b",
                series=[
                    Series(name=f"n = {self.keys}", x=betas, y=[self._formula(b) for b in betas]),
                    Series(name="½", x=[betas[0], betas[-1]], y=[0.5, 0.5]),
                ],
            ),
        )

    def _weights(self, keys: Array, beta: float) -> Array:
        return softmax(keys @ (beta * (keys[0] + keys[1])))

    def _formula(self, beta: float) -> float:
        return 1 / (2 + (self.keys - 2) * math.exp(-beta))


@settings
class RecoverAPart(Claim):
    overlap: float = setting(
        0.0, low=0, high=1, about="sine of the angle by which B leans towards A"
    )
    width: int = setting(
        16, low=2, high=256, about="coordinates of a value; at least first + second"
    )
    first: int = setting(4, low=1, high=128, about="columns of A")
    second: int = setting(5, low=1, high=128, about="columns of B")
    cases: int = setting(100, low=1, high=2000, about="random cases to try", metadata={"live": 50})

    about = About(
        statement="When v_a lies in one subspace and v_b in another at right angles to it, their "
        "sum loses nothing: a fixed matrix gives v_a back.",
        formula="v_a = A c,  v_b = B d,  AᵀA = I,  AᵀB = 0   ⇒   Aᵀ(v_a + v_b) = c   and   "
        "A Aᵀ(v_a + v_b) = v_a",
        derivation="""Aᵀ(A c + B d) = (AᵀA) c + (AᵀB) d = c + 0: multiplying by Aᵀ reads off the
            coordinates of v_a. They are not v_a itself: c has as many entries as A has columns,
            v_a as many as A has rows. Multiplying by A once more gives A c = v_a, so the matrix
            that returns the vector is M = A Aᵀ, the projection onto the span of A.

            If B leans towards A by an angle, AᵀB d is not 0 and stays in the result as an
            error that grows with the sine of that angle.""",
        expected="holds",
        questions=("earlier 1(b)i",),
        answers=[
            Answer(
                document="002",
                part="1(b)i (Mv_a = c)",
                line=41,
                quote="A^T A c = c … A^T B d = 0",
                conclusion="Aᵀv_a = c and Aᵀv_b = 0",
                reason="the columns are orthonormal, and those of A at right angles to B's",
            ),
            Answer(
                document="002",
                part="1(b)i (Ms = v_a)",
                line=25,
                quote="M s = v_a \\Rightarrow M(v_a + v_b) = v_a … 满足要求, 故 $M = A^T$",
                conclusion="M = Aᵀ gives M(v_a + v_b) = v_a",
                reason="Aᵀv_a = c and Aᵀv_b = 0",
            ),
        ],
        knob=Knob("B is not at right angles to A", {"overlap": 0.5}),
        remark="Aᵀ gives the coordinates c. Whoever reads “v_a” as its coordinates in the basis A "
        "finds 002 right; v_a itself, which 002 asks for, has as many entries as A has rows.",
    )

    def run(self) -> Evidence:
        if self.first + self.second > self.width:
            raise ValueError(
                f"first + second is {self.first + self.second}, more than width {self.width}; "
                f"so many columns cannot all be at right angles"
            )
        cases = [self._random_case(case) for case in range(max(self.cases, 10))]
        rows = [_recover(*case, self.overlap) for case in cases[: self.cases]]
        coordinates, vectors, given = zip(*rows, strict=True)
        read_off = max(coordinates) <= EQUAL
        # 002's reason is what was drawn: AᵀA = I and AᵀB = 0
        straight = max(_orthogonality_error(a, b, self.overlap) for a, b, _, _ in cases) <= EQUAL
        lean = np.linspace(0, 1, 21)
        errors = [float(np.mean([_recover(*case, s)[1] for case in cases[:10]])) for s in lean]
        return Evidence(
            kind="construction",
            trials=self.cases,
            measures=[
                Measure("largest |A Aᵀ(v_a + v_b) − v_a|", max(vectors), "≤", EQUAL),
                Measure("largest |Aᵀ(v_a + v_b) − c|", max(coordinates), "≤", EQUAL),
            ],
            judgements={
                "002 1(b)i (Mv_a = c)": Judgement(mark(read_off), mark(straight)),
                "002 1(b)i (Ms = v_a)": Judgement(mark(all(given)), mark(read_off, all(given))),
            },
            picture=Plot(
                title="Error when the subspaces are not at right angles",
                x="sine of the angle by which B leans towards A",
                y="mean over ten cases of the largest error in v_a",
                series=[Series(name="M = A Aᵀ", x=lean.tolist(), y=errors)],
            ),
        )

    def _random_case(self, case: int) -> tuple[Array, Array, Array, Array]:
        """A, B, c and d."""
        rows = orthonormal(self.seed, f"basis {case}", self.first + self.second, self.width)
        c, d = (
            normal(self.seed, f"c {case}", self.first),
            normal(self.seed, f"d {case}", self.second),
        )
        return rows[: self.first].T, rows[self.first :].T, c, d


def _recover(a: Array, b: Array, c: Array, d: Array, overlap: float) -> tuple[float, float, bool]:
    """The errors in the coordinates and in the vector, and whether Aᵀ gave the vector."""
    leaning = _lean(a, b, overlap)
    both, vector = a @ c + leaning @ d, a @ c
    answered = a.T @ both
    same = answered.shape == vector.shape and largest(answered - vector) <= EQUAL
    return largest(answered - c), largest(a @ answered - vector), same


def _lean(a: Array, b: Array, overlap: float) -> Array:
    """B with its first column turned towards A's."""
    leaning = b.copy()
    leaning[:, 0] = math.sqrt(1 - overlap**2) * b[:, 0] + overlap * a[:, 0]
    return leaning


def _orthogonality_error(a: Array, b: Array, overlap: float) -> float:
    """The larger of |AᵀA − I| and |AᵀB|."""
    across = largest(a.T @ _lean(a, b, overlap))
    return max(largest(a.T @ a - np.eye(a.shape[1])), across)
