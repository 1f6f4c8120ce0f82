"""Several heads against noise: a head for each target, and heads whose outputs are averaged.

Axes in the formulas: n keys, H heads; α are weights, c = Σ αᵢ vᵢ is what comes out. Key a is γμ_a:
it varies in length, and γ is 1 on average.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np

from attnlab.config import setting, settings
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import (
    EQUAL,
    About,
    Answer,
    Claim,
    ErrorRates,
    Evidence,
    Judgement,
    Knob,
    Measure,
    mark,
)
from attnlab.theory.draw import Array, largest, normal, softmax, uniform_distance
from attnlab.theory.lookup import NEAR
from attnlab.theory.noise import FALSE_REFUTATION, Noisy, first_weight

SHARPLY = 0.25  # variance that fell to this part or less fell sharply

Query = tuple[float, float]  # (x, y) stands for β(xμ_a + yμ_b)
MIXED: Query = (1.0, 1.0)
PAIRS: dict[str, Sequence[Query]] = {
    "one each": [(1.0, 0.0), (0.0, 1.0)],
    "sum and difference": [(0.5, 0.5), (0.5, -0.5)],
    "both mixed": [MIXED, MIXED],
}
WORDS = {
    "one each": "two heads, βμ_a and βμ_b",
    "sum and difference": "two heads, β(μ_a ± μ_b)/2",
    "both mixed": "two heads, both β(μ_a + μ_b)",
}


@settings
class TwoHeadsSteady(Noisy):
    stretch: float = setting(0.5, low=0.01, high=4, about="variance of key a along its own mean")
    queries: Literal["one each", "sum and difference", "both mixed"] = setting(
        "one each", about="queries of the two heads"
    )

    about = About(
        statement="Two heads, one for each target, hold the average of v_a and v_b steady where "
        "one head swings: the variance of the output is at most a quarter.",
        formula="q₁ = βμ_a,  q₂ = βμ_b,  c = ½(c₁ + c₂) ≈ ½(v_a + v_b)   while γ > 0;   "
        "P(γ ≤ 0) = Φ(−√2) ≈ 7.9 %",
        derivation="""Head 1 gives key a the score βγ and all others about 0, so by the bound of
            `copy` its weight misses 1 by at most (n − 1)e^(−βγ). As long as γ is clearly positive
            that is nothing, whether γ is 0.5 or 2: the head compares a with keys that have nothing
            to do with it, not with b. Head 2 looks at b, which does not vary. So c₁ ≈ v_a,
            c₂ ≈ v_b, and c is their average.

            But γ is normal with mean 1 and variance ½, so it is not always positive: below 0 it
            is with probability Φ(−1/√½) = Φ(−√2) ≈ 7.9 %. Then the score of a is below those of
            the others, head 1 looks elsewhere, and c is not the average. With finite β the head
            fails a little earlier, where βγ = ln(n − 1).""",
        expected="holds with a condition",
        condition="γ > 0: the key must not come out reversed, which happens in 7.9 % of draws",
        questions=("A4 1(d)i", "A4 1(d)ii", "A4 1(e)", "earlier 1(d)"),
        answers=[
            Answer(
                document="001",
                part="1(d)i",
                line=75,
                quote="q_1 = \\beta \\mu_a, \\quad q_2 = \\beta \\mu_b",
                conclusion="one query for each target gives c ≈ ½(v_a + v_b), where no key varies "
                "in length",
            ),
            Answer(
                document="001",
                part="1(d)ii",
                line=83,
                quote="在所有样本中都始终保持在理想值 $\\frac{1}{2}(v_a + v_b)$ 附近 … "
                "它依然远大于其他无关键的得分（0）",
                conclusion="c is near ½(v_a + v_b) in all samples",
                reason="head 1 compares a with unrelated keys alone, and its score stays far above "
                "theirs",
            ),
            Answer(
                document="001",
                part="1(e)",
                line=96,
                quote="每个头只关注一个目标 … 避免了在不同目标之间摇摆不定 … 极大地提高了抗噪能力",
                conclusion="several heads make the output much less sensitive to noise",
                reason="each head has one target, so that targets no longer compete",
            ),
            Answer(
                document="002",
                part="1(d)i",
                line=98,
                quote="q_2 = \\beta \\mu_b \\quad \\beta \\gg 0 … C_1 \\approx v_a",
                conclusion="one query for each target gives c ≈ ½(v_a + v_b), where no key varies "
                "in length",
            ),
            Answer(
                document="002",
                part="1(d)ii",
                line=106,
                quote="= \\gamma \\beta … \\alpha_a \\approx 1 \\quad \\alpha_b \\approx 1 … "
                "C \\approx \\frac{1}{2} (v_a + v_b)",
                conclusion="α_a ≈ 1 in head 1, α_b ≈ 1 in head 2, so c ≈ ½(v_a + v_b)",
                reason="the scores are γβ and β",
            ),
            Answer(
                document="003",
                part="1(d)i",
                line=19,
                quote="pick $v_a, v_b = c_1, c_2$ by setting $q_1 = \\frac{k_a + k_b}{2}$ , "
                "$q_2 = \\frac{k_a - k_b}{2}$",
                conclusion="the queries (k_a + k_b)/2 and (k_a − k_b)/2 average the two",
                reason="c₁ = v_a and c₂ = v_b make c the average",
            ),
        ],
        knob=Knob("queries (k_a ± k_b)/2 instead", {"queries": "sum and difference"}),
        remark="“In all samples” is contradicted by the draws with γ ≤ 0. An “≈” that is true in "
        "nine draws of ten is not: it lacks the condition.",
    )

    def run(self) -> Evidence:
        keys, gamma = self.random_keys(self.stretch)
        means = self.means()
        steady = keys.copy()  # where no key varies in length, as 1(d)i asks
        steady[:, 0] -= (gamma - 1)[:, None] * means[0]
        heads = self._heads(keys, means)
        single = heads[MIXED]
        variance = float(single.var(axis=0).sum())
        paired = {name: _average(heads, pair) for name, pair in PAIRS.items()}
        off = {name: np.abs(out - self._goal()).max(axis=1) for name, out in paired.items()}
        parts = {name: float(out.var(axis=0).sum()) / variance for name, out in paired.items()}
        tame = gamma >= 0.5
        # head 1 has less than half of its weight on a where βγ < ln(n − 1)
        first = heads[PAIRS[self.queries][0]][:, 0]
        missed = float((first < 0.5).mean())
        length = NormalDist(1, math.sqrt(self.stretch))
        law = length.cdf(math.log(self.keys - 1) / self.beta)

        unvaried = self._heads(steady, means)
        # do the two queries average v_a and v_b where no key varies in length?
        averages = {
            name: largest(_average(unvaried, pair) - self._goal()) <= NEAR
            for name, pair in PAIRS.items()
        }
        always = float(off["one each"].max()) <= NEAR
        often = float(off["one each"][tame].max(initial=0)) <= NEAR
        along = self.beta * np.stack([keys[:, 0] @ means[0], keys[:, 1] @ means[1]], axis=1)
        # the noise moves a score by β√ε, six times of which hardly ever occurs
        scored = largest(along - self.beta * np.stack([gamma, 0 * gamma + 1], axis=1))
        as_said = scored <= 6 * self.beta * math.sqrt(self.noise)
        competing = parts["both mixed"] > SHARPLY
        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure(
                    "variance of c, of one head's (sharply less: at most a quarter)",
                    parts[self.queries],
                    "≤",
                    SHARPLY,
                ),
                Measure(
                    "largest |c − ½(v_a + v_b)| where γ ≥ ½",
                    float(off[self.queries][tame].max(initial=0)),
                    "≤",
                    NEAR,
                ),
            ],
            outside=[
                Measure("share of draws in which head 1 misses", missed, ">", 0.0),
                Measure(
                    "distance of that share from its law Φ((ln(n−1)/β − 1)/σ), σ² = Var γ",
                    abs(missed - law),
                    "≤",
                    uniform_distance(self.samples, FALSE_REFUTATION),
                ),
            ],
            judgements={
                "001 1(d)i": Judgement(mark(averages["one each"])),
                "001 1(d)ii": Judgement(mark(always), mark(often, complete=always)),
                "001 1(e)": Judgement(
                    mark(parts["one each"] <= SHARPLY),
                    mark(parts["one each"] <= SHARPLY and competing),
                ),
                "002 1(d)i": Judgement(mark(averages["one each"])),
                "002 1(d)ii": Judgement(
                    mark(often, complete=always), mark(as_said and often, complete=always)
                ),
                "003 1(d)i": Judgement(
                    mark(self._as_written(steady, means)),
                    mark(largest(np.eye(self.keys)[:2].mean(axis=0) - self._goal()) <= EQUAL),
                ),
            },
            picture=self._picture(length),
            details=[
                Table(
                    title=f"Variance of the output, summed over its weights, β = {self.beta:g}",
                    columns=["queries", "variance", "of one head's"],
                    rows=[
                        ["one head, β(μ_a + μ_b)", variance, 1.0],
                        *((WORDS[name], variance * part, part) for name, part in parts.items()),
                    ],
                )
            ],
            error_rates=ErrorRates(false_refutation=FALSE_REFUTATION, false_confirmation=None),
        )

    def _as_written(self, keys: Array, means: Array) -> bool:
        """Whether 003's queries average with the length that it writes, which has no factor β."""
        outputs = [softmax(keys @ (means[0] + sign * means[1]) / 2) for sign in (1, -1)]
        return largest(np.mean(outputs, axis=0) - self._goal()) <= NEAR

    def _goal(self) -> Array:
        """The average of v_a and v_b, where the values are unit vectors: c shows the weights."""
        return np.array([0.5, 0.5] + [0.0] * (self.keys - 2))

    def _heads(self, keys: Array, means: Array) -> dict[Query, Array]:
        """The output of a head for each query in PAIRS, with unit vectors as values."""
        queries = {query for pair in PAIRS.values() for query in pair}
        return {
            (a, b): softmax(keys @ (self.beta * (a * means[0] + b * means[1]))) for a, b in queries
        }

    def _picture(self, length: NormalDist) -> Plot:
        steps = np.linspace(-1, 3, 81)
        # head 1 gives a the score βγ times the one part of its query, b the other part
        (a, b), *_ = PAIRS[self.queries]
        scores = np.zeros((len(steps), self.keys))
        scores[:, 0], scores[:, 1] = self.beta * a * steps, self.beta * b
        return Plot(
            title=f"What head 1 of the {WORDS[self.queries]} does for each length of key a",
            x="γ, the length of key a along its mean",
            y="weight on a, and density of γ",
            series=[
                Series(
                    name="weight of head 1 on a",
                    x=steps.tolist(),
                    y=first_weight(scores).tolist(),
                ),
                Series(
                    name="how often γ occurs (density)",
                    x=steps.tolist(),
                    y=[length.pdf(step) for step in steps],
                ),
            ],
            note=f"β = {self.beta:g}, {self.keys} keys; γ is below 0 in "
            f"{100 * length.cdf(0):.1f} % of draws.",
        )


def _average(heads: Mapping[Query, Array], pair: Sequence[Query]) -> Array:
    return np.mean([heads[query] for query in pair], axis=0)


@settings
class AveragingHeadsCancelsNoise(Claim):
    shared: float = setting(
        0.0, low=0, high=1, about="correlation of the length of key a between heads"
    )
    heads: int = setting(4, low=2, high=32, about="heads that are averaged", metadata={"live": 8})
    beta: float = setting(30.0, low=0.1, high=100, about="length of the query along each mean")
    stretch: float = setting(0.5, low=0.01, high=4, about="variance of key a along its own mean")
    keys: int = setting(8, low=3, high=32, about="number of keys")
    samples: int = setting(
        20_000, low=1000, high=50_000, about="random draws of the keys", metadata={"live": 3_000}
    )

    about = About(
        statement="Averaging the outputs of H heads divides their variance by H. It does so if "
        "their noise is independent, and not at all if all heads read the same noisy key.",
        formula="Var(mean of c₁ … c_H) = (1 + (H − 1)ρ)/H · σ²,   ρ = correlation of two heads\n"
        "ρ = 0: σ²/H      ρ = 1: σ²",
        derivation="""The variance of a mean is the mean of all H² covariances: H of them are σ²,
            the other H(H − 1) are ρσ². So it is (1 + (H − 1)ρ)/H · σ², between σ²/H for independent
            noise and σ² for noise that all heads share. Measured with heads that all have the query
            β(μ_a + μ_b), in each of which key a has a length of its own.

            In the course's question all heads read the same keys: k_a is drawn once. Two heads
            with the same query then give the same output, whatever was drawn, and their average
            varies as each of them does.

            Two heads with different queries do vary less (claim two-heads-steady), and the table
            shows why. Head 2 looks for b, which does not vary, so there is no second noise that
            could cancel the first. Head 1 varies less than a single head, as a no longer competes
            with b, and it contributes a half of the output, so a quarter of its variance.

            For large β a head's output is that of a coin, thrown by the sign of γ − 1. If the
            lengths of two heads are correlated by r, the coins are correlated by (2/π) arcsin r:
            less than the lengths, but never 0 unless r is.""",
        expected="holds with a condition",
        condition="the noise of the heads is independent",
        questions=("A4 1(c)ii", "A4 1(d)ii", "A4 1(e)"),
        answers=[
            Answer(
                document="001",
                part="1(c)ii (heads)",
                line=69,
                quote="多头可以通过平均化不同头的输出来抵消这种方差",
                conclusion="several heads can cancel this variance by averaging their outputs",
            ),
            Answer(
                document="003",
                part="1(d)ii",
                line=19,
                quote="Same var in $c_1, c_2$ as before but now avg out, so not as much",
                conclusion="with its queries (k_a ± k_b)/2, c varies less than with one head",
                reason="both heads vary as one head did, and that averages out",
            ),
            Answer(
                document="003",
                part="1(e)",
                line=21,
                quote="By avg. head. anticipation, there is reduced var despite high var",
                conclusion="several heads reduce the variance",
                reason="their outputs are averaged",
            ),
        ],
        knob=Knob("all heads read the same key", {"shared": 1.0}),
    )

    def run(self) -> Evidence:
        numbers = self._random_numbers()
        found = {
            shared: self._average_variance(numbers, shared) for shared in (self.shared, 0.0, 1.0)
        }
        part, formula = found[self.shared]
        # under independence the correlation of two heads scatters by 1/√N, and the pairs are
        # uncorrelated; six standard errors, as the sum of squares behind it has a heavier tail
        room = 6 * math.sqrt(2 * (self.heads - 1) / (self.heads * self.samples))
        independent, same = (abs(self.heads * found[shared][0] - 1) <= room for shared in (0, 1))
        length = self._lengths(numbers, 1.0)[:, 0]
        single = _variance(self._outputs(length, MIXED))
        rows = {name: self._pair(length, pair) for name, pair in PAIRS.items()}
        one, two, _, less = rows["sum and difference"]
        as_before = all(abs(each / single - 1) <= 0.25 for each in (one, two))
        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure(
                    "|variance of the average / (σ²/H) − 1|", abs(self.heads * part - 1), "≤", room
                ),
                Measure("distance from (1 + (H−1)ρ)/H, ρ measured", formula, "≤", EQUAL),
            ],
            outside=[
                Measure(
                    "variance of the average, of σ², where all heads read the same key",
                    found[1.0][0],
                    "≥",
                    1 - EQUAL,
                )
            ],
            judgements={
                "001 1(c)ii (heads)": Judgement(mark(independent, complete=same)),
                # "same" is read as equal within a quarter
                "003 1(d)ii": Judgement(mark(less < single), mark(as_before)),
                "003 1(e)": Judgement(
                    mark(rows["one each"][-1] < single), mark(independent, complete=same)
                ),
            },
            picture=self._picture(numbers[:2000]),
            details=[
                Table(
                    title="Heads that read the same keys: variance, summed over the weights",
                    columns=["queries", "head 1", "head 2", "correlation", "average", "part"],
                    rows=[
                        ["one head, β(μ_a + μ_b)", single, None, None, single, 1.0],
                        *([WORDS[name], *row, row[-1] / single] for name, row in rows.items()),
                    ],
                    note="Part: of the variance of one head. Without variance, no correlation.",
                )
            ],
            error_rates=ErrorRates(false_refutation=FALSE_REFUTATION, false_confirmation=None),
        )

    def _random_numbers(self) -> Array:
        """Normal numbers: column 0 is shared by the heads, then a column for each head."""
        return normal(self.seed, "lengths", self.samples, 1 + self.heads)

    def _lengths(self, numbers: Array, shared: float) -> Array:
        """γ [sample, head]"""
        mixed = math.sqrt(shared) * numbers[:, :1] + math.sqrt(1 - shared) * numbers[:, 1:]
        return 1 + math.sqrt(self.stretch) * mixed

    def _outputs(self, length: Array, query: Query) -> Array:
        """Outputs of a head for each length of key a, with unit vectors as values."""
        scores = np.zeros((*length.shape, self.keys))
        scores[..., 0], scores[..., 1] = self.beta * query[0] * length, self.beta * query[1]
        return softmax(scores)

    def _average_variance(self, numbers: Array, shared: float) -> tuple[float, float]:
        """Variance of the average relative to one head's, and its distance from the formula."""
        outputs = self._outputs(self._lengths(numbers, shared), MIXED)
        off = outputs - outputs.mean(axis=0)
        covariances = np.tensordot(off, off, axes=([0, 2], [0, 2])) / len(off)
        each = float(np.trace(covariances)) / self.heads
        between = float(covariances.sum() - np.trace(covariances))
        correlation = between / (self.heads * (self.heads - 1)) / each
        part = _variance(outputs.mean(axis=1)) / each
        return part, abs(part - (1 + (self.heads - 1) * correlation) / self.heads)

    def _pair(
        self, length: Array, pair: Sequence[Query]
    ) -> tuple[float, float, float | None, float]:
        """The variance of two heads, the correlation of their noise, the variance of the mean."""
        one, two = (self._outputs(length, query) for query in pair)
        first, second, mean = (_variance(out) for out in (one, two, (one + two) / 2))
        sizes = math.sqrt(first * second)
        # a head that reads nothing noisy has no correlation with another
        common = (4 * mean - first - second) / 2 / sizes if sizes > EQUAL else None
        return first, second, common, mean

    def _picture(self, numbers: Array) -> Plot:
        steps = np.linspace(0, 1, 11).tolist()
        limit = [2 / math.pi * math.asin(step) for step in steps]
        return Plot(
            title=f"Variance of the average of {self.heads} heads, of one head's",
            x="correlation between heads of the length of key a",
            y="part of the variance",
            series=[
                Series(
                    name=f"measured, {len(numbers)} samples",
                    x=steps,
                    y=[self._average_variance(numbers, step)[0] for step in steps],
                ),
                Series(
                    name="coins: ρ = (2/π) arcsin r",
                    x=steps,
                    y=[(1 + (self.heads - 1) * one) / self.heads for one in limit],
                ),
                Series(name="1/H", x=[0.0, 1.0], y=[1 / self.heads] * 2),
            ],
            note=f"β = {self.beta:g}, variance of γ {self.stretch:g}.",
        )


def _variance(outputs: Array) -> float:
    """Variance summed over the weights; below rounding it is 0."""
    found = float(outputs.var(axis=0).sum())
    return found if found > EQUAL**2 else 0.0
