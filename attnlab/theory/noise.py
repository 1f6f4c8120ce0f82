"""Look-up with noisy keys: what one head loses when a key varies in length, and two heads keep.

Axes in the formulas: n keys, width d; α are weights, c = Σ αᵢ vᵢ is what comes out.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import About, Answer, Claim, Evidence, Knob, Measure, setting
from attnlab.theory.draw import Array, largest, normal, orthonormal, softmax, uniform_distance
from attnlab.theory.lookup import NEAR

FALSE_ALARM = 1e-6


@dataclass(frozen=True, kw_only=True)
class Noisy(Claim):
    """Keys drawn around means of length 1 at right angles; key 0 is a, key 1 is b."""

    beta: float = setting(30.0, low=0.1, high=100, about="length of the query along each mean")
    noise: float = setting(1e-8, low=1e-12, high=100, about="variance of each coordinate of a key")
    keys: int = setting(8, low=3, high=32)
    width: int = setting(16, low=3, high=64, live=32)
    samples: int = setting(20_000, low=100, high=50_000, live=3_000)

    def means(self) -> Array:
        return orthonormal(self.seed, "means", self.keys, self.width)

    def drawn(self, stretch: float = 0.0) -> tuple[Array, Array]:
        """The keys (sample, key, width), and γ: how long each key a came out, 1 on average."""
        means = self.means()
        gamma = 1 + math.sqrt(stretch) * normal(self.seed, "length of a", self.samples)
        noise = normal(self.seed, "noise", self.samples, self.keys, self.width)
        keys = means + math.sqrt(self.noise) * noise
        keys[:, 0] += (gamma - 1)[:, None] * means[0]
        return keys, gamma


@dataclass(frozen=True, kw_only=True)
class NoisyKeys(Noisy):
    about = About(
        statement="Keys that scatter a little around their means do no harm: q = β(μ_a + μ_b) "
        "still averages v_a and v_b.",
        formula="kᵢ ~ N(μᵢ, εI),  q = β(μ_a + μ_b)   ⇒   "
        "α_a = ½ + r,  r of standard deviation ½β√ε → 0 as ε → 0",
        derivation="""Each score is kᵢ·q = μᵢ·q plus noise of variance ε‖q‖² = 2εβ². The scores of
            a and b are both β plus such noise, the others 0 plus it. For large β only a and b get
            weight, and α_a is the logistic function of the difference of the two scores, which
            has variance 4εβ². The slope of the logistic function at 0 is ¼, so α_a − ½ has
            standard deviation ¼ · 2β√ε = ½β√ε. With β fixed it goes to 0 with ε.

            The order of the limits matters: β has to be large against ln n, and √ε small against
            1/β. A query without the factor β does not give the average, noise or not.""",
        expected="holds",
        answers=[
            Answer("000", "1(c)i", "q = μ_a + μ_b"),
            Answer("001", "1(c)i", "q = β(μ_a + μ_b)"),
            Answer("002", "1(c)i", "q = β(μ_a + μ_b), β ≫ 0"),
            Answer("003", "1(c)i", "q = (μ_a + μ_b)/√2"),
        ],
        knob=Knob("much noise: ε = 1", {"noise": 1.0}),
        remark="All four choose the direction μ_a + μ_b, but its length decides: with β = 1 or "
        "1/√2 the other keys keep most of the weight.",
    )

    def run(self) -> Evidence:
        keys, _ = self.drawn()
        means = self.means()
        along = keys @ (means[0] + means[1])  # of the keys, all that a query βμ_a + βμ_b sees
        middle = means @ (means[0] + means[1])
        weight = _first_weight(self.beta * along)
        spread = float(weight.std())
        closed = self.beta * math.sqrt(self.noise) / 2
        # a standard deviation of N normal numbers scatters by 1/√(2N); five of those to each side
        room = 5 / math.sqrt(2 * self.samples)
        steps = np.geomspace(1e-8, 1, 9)
        # with the same draws, scaled
        scaled = [
            middle + math.sqrt(noise / self.noise) * (along[:2000] - middle) for noise in steps
        ]
        spreads = [float(_first_weight(self.beta * one).std()) for one in scaled]

        def averages(beta: float) -> bool:
            return largest(_first_weight(beta * along) - 0.5) <= NEAR

        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure("largest |α_a − ½|", largest(weight - 0.5), "≤", NEAR),
                Measure("|standard deviation / ½β√ε − 1|", abs(spread / closed - 1), "≤", room),
            ],
            right={
                "000": averages(1.0),
                "001": averages(self.beta),
                "002": averages(self.beta),
                "003": averages(1 / math.sqrt(2)),
            },
            picture=Plot(
                title="How far the weight of v_a scatters",
                x="noise ε",
                y="standard deviation of α_a",
                log_x=True,
                log_y=True,
                series=[
                    Series(name="measured", x=steps.tolist(), y=spreads),
                    Series(
                        name="½β√ε",
                        x=steps.tolist(),
                        y=[self.beta * math.sqrt(noise) / 2 for noise in steps],
                    ),
                ],
            ),
            false_alarm=FALSE_ALARM,
        )


def _first_weight(scores: Array) -> Array:
    return softmax(scores)[:, 0]


@dataclass(frozen=True, kw_only=True)
class OneHeadSwings(Noisy):
    stretch: float = setting(0.5, low=0, high=4, about="variance of key a along its own mean")

    about = About(
        statement="When one key varies in length, a single head cannot hold the average: its "
        "output jumps between v_a and v_b.",
        formula="Σ_a = εI + ½μ_aμ_aᵀ,  q = β(μ_a + μ_b)   ⇒   α_a = σ(β(γ − 1)),  γ ~ N(1, ½);   "
        "α_a → Bernoulli(½) as β grows",
        derivation="""Noise of variance ½ along μ_a makes k_a = γμ_a, where γ is normal with mean 1
            and variance ½. The score of a is then βγ, that of b is β, the others are near 0. For
            large β only the two count, and α_a = e^(βγ) / (e^(βγ) + e^β) = σ(β(γ − 1)).

            γ − 1 is positive or negative with equal chance. Multiplied by a large β it is far from
            0 almost always, so σ gives almost 1 or almost 0: the output is v_a or v_b, hardly ever
            their average, and the variance of α_a goes to ¼, that of a coin. The very β that shuts
            out the other keys is what amplifies the noise.""",
        expected="holds",
        answers=[
            Answer("001", "1(c)ii", "c swings between v_a and v_b; its variance is large"),
            Answer("002", "1(c)ii", "α_a = 1/(1 + e^(β(1−γ))): c is near v_b or near v_a"),
            Answer("003", "1(c)ii", "α_a comes near 1, and the variance is wide"),
        ],
        knob=Knob("key a no longer varies in length", {"stretch": 0.0}),
    )

    def run(self) -> Evidence:
        keys, gamma = self.drawn(self.stretch)
        means = self.means()
        weight = np.sort(_first_weight(keys @ (self.beta * (means[0] + means[1]))))
        law = np.sort(_logistic(self.beta * (gamma - 1)))
        steps = np.linspace(0.01, 0.99, 99)
        closed = np.array([self._below(step) for step in steps])
        measured = np.searchsorted(weight, steps) / self.samples
        room = uniform_distance(self.samples, FALSE_ALARM)
        fits = largest(measured - closed) <= room
        swings = float(weight.var()) >= 0.2
        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure("variance of α_a (a coin has 0.25)", float(weight.var()), "≥", 0.2),
                Measure("distance from the law σ(β(γ−1))", largest(measured - closed), "≤", room),
                Measure("mean |α_a − σ(β(γ−1))|", float(np.abs(weight - law).mean()), "≤", NEAR),
            ],
            right={
                "001": swings,
                "002": swings and fits,
                # near 1 is half of the story: near 0 comes as often
                "003": float((weight < 0.5).mean()) <= NEAR,
            },
            picture=Plot(
                title="How often the weight of v_a is below a value",
                x="α_a",
                y="share of samples at or below",
                series=[
                    Series(name="measured", x=[0, *steps, 1], y=[0, *measured, 1]),
                    Series(name="law σ(β(γ − 1))", x=[0, *steps, 1], y=[0, *closed, 1]),
                ],
                note="Flat in the middle: values between the ends hardly occur.",
            ),
            false_alarm=FALSE_ALARM,
        )

    def _below(self, weight: float) -> float:
        """P(σ(β(γ − 1)) ≤ weight)."""
        margin = math.log(weight / (1 - weight))
        spread = self.beta * math.sqrt(self.stretch)
        return NormalDist().cdf(margin / spread) if spread else float(margin >= 0)


@dataclass(frozen=True, kw_only=True)
class TwoHeadsSteady(Noisy):
    stretch: float = setting(0.5, low=0.01, high=4, about="variance of key a along its own mean")
    queries: Literal["one each", "sum and difference"] = "one each"

    about = About(
        statement="Two heads, one for each target, hold the average of v_a and v_b steady where "
        "one head swings.",
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
        answers=[
            Answer("001", "1(d)", "one query for each: c is near the average in all samples"),
            Answer("002", "1(d)", "one query for each: both weights ≈ 1, c ≈ the average"),
            Answer(
                "003", "1(d)", "q₁ = (k_a + k_b)/2 and q₂ = (k_a − k_b)/2; the noise averages out"
            ),
        ],
        knob=Knob("queries (k_a ± k_b)/2 instead", {"queries": "sum and difference"}),
        remark="“Always stable” is refuted by the draws with γ ≤ 0.",
    )

    def run(self) -> Evidence:
        keys, gamma = self.drawn(self.stretch)
        a, b = self.means()[:2]
        pairs = {"one each": [a, b], "sum and difference": [(a + b) / 2, (a - b) / 2]}
        single = self._outputs(keys, [a + b])
        paired = {name: self._outputs(keys, queries) for name, queries in pairs.items()}
        variances = {name: float(out.var(axis=0).sum()) for name, out in paired.items()}
        off = {name: np.abs(out - self._goal()).max(axis=1) for name, out in paired.items()}
        tame = gamma >= 0.5
        always = float(off["one each"].max()) <= NEAR
        # head 1 has less than half of its weight on a where βγ < ln(n − 1)
        first = _first_weight(keys @ (self.beta * pairs[self.queries][0]))
        missed = float((first < 0.5).mean())
        length = NormalDist(1, math.sqrt(self.stretch))
        law = length.cdf(math.log(self.keys - 1) / self.beta)
        steps = np.linspace(-1, 3, 81)
        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure(
                    "variance of c, of one head's (sharply less: at most a quarter)",
                    variances[self.queries] / float(single.var(axis=0).sum()),
                    "≤",
                    0.25,
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
                    "distance of that share from its law Φ((ln(n−1)/β − 1)/√½)",
                    abs(missed - law),
                    "≤",
                    uniform_distance(self.samples, FALSE_ALARM),
                ),
            ],
            right={
                "001": always,
                "002": always,
                "003": float(off["sum and difference"][tame].max(initial=0)) <= NEAR,
            },
            picture=Plot(
                title="What head 1 does for each length of key a",
                x="γ, the length of key a along its mean",
                y="weight on a, and density of γ",
                series=[
                    Series(
                        name="weight of head 1 on a",
                        x=steps.tolist(),
                        y=(1 / (1 + (self.keys - 1) * np.exp(-self.beta * steps))).tolist(),
                    ),
                    Series(
                        name="how often γ occurs (density)",
                        x=steps.tolist(),
                        y=[length.pdf(step) for step in steps],
                    ),
                ],
                note=f"γ is below 0 in {100 * length.cdf(0):.1f} % of draws: head 1 misses there.",
            ),
            details=[
                Table(
                    title="Variance of the output, summed over the weights",
                    columns=["queries", "variance"],
                    rows=[
                        ["one head, β(μ_a + μ_b)", float(single.var(axis=0).sum())],
                        ["two heads, βμ_a and βμ_b", variances["one each"]],
                        ["two heads, β(μ_a ± μ_b)/2", variances["sum and difference"]],
                    ],
                )
            ],
            false_alarm=FALSE_ALARM,
        )

    def _goal(self) -> Array:
        """The average of v_a and v_b, where the values are unit vectors: c shows the weights."""
        return np.array([0.5, 0.5] + [0.0] * (self.keys - 2))

    def _outputs(self, keys: Array, queries: list[Array]) -> Array:
        """The average over heads of what each gives, with the unit vectors as values."""
        return np.mean([softmax(keys @ (self.beta * query)) for query in queries], axis=0)


def _logistic(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))
