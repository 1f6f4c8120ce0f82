"""Look-up with noisy keys: what one head loses when a key varies in length.

Axes in the formulas: n keys, width d; α are weights, c = Σ αᵢ vᵢ is what comes out.
"""

import math
from statistics import NormalDist

import numpy as np

from attnlab.config import setting, settings
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import (
    About,
    Answer,
    Claim,
    ErrorRates,
    Evidence,
    Judgement,
    Knob,
    Mark,
    Measure,
    mark,
)
from attnlab.theory.draw import Array, largest, normal, orthonormal, softmax, uniform_distance
from attnlab.theory.lookup import NEAR

FALSE_REFUTATION = 1e-6  # how often a sample of the true law is farther from it than the bound


@settings
class Noisy(Claim):
    """Keys drawn around means of length 1 at right angles; key 0 is a, key 1 is b."""

    beta: float = setting(30.0, low=0.1, high=100, about="length of the query along each mean")
    noise: float = setting(1e-8, low=1e-12, high=100, about="variance of each coordinate of a key")
    keys: int = setting(8, low=3, high=32, about="number of keys")
    width: int = setting(
        16,
        low=3,
        high=64,
        about="coordinates of a key; at least as many as keys",
        metadata={"live": 32},
    )
    samples: int = setting(
        20_000, low=100, high=50_000, about="random draws of the keys", metadata={"live": 3_000}
    )

    def means(self) -> Array:
        return orthonormal(self.seed, "means", self.keys, self.width)

    def random_keys(self, stretch: float = 0.0) -> tuple[Array, Array]:
        """The keys [sample, key, width], and γ [sample]: the length of key a, 1 on average."""
        means = self.means()
        gamma = 1 + math.sqrt(stretch) * normal(self.seed, "length of a", self.samples)
        noise = normal(self.seed, "noise", self.samples, self.keys, self.width)
        keys = means + math.sqrt(self.noise) * noise
        keys[:, 0] += (gamma - 1)[:, None] * means[0]
        return keys, gamma


@settings
class NoisyKeys(Noisy):
    about = About(
        statement="Keys that scatter a little around their means do no harm: with a variance of "
        "1e-8 and β = 30, q = β(μ_a + μ_b) weighs v_a and v_b by ½ each, to within 0.01.",
        formula="kᵢ ~ N(μᵢ, εI),  q = β(μ_a + μ_b)   ⇒   "
        "α_a = ½ + r,  r of standard deviation ½β√ε → 0 as ε → 0",
        derivation="""Each score is kᵢ·q = μᵢ·q plus noise of variance ε‖q‖² = 2εβ². The scores of
            a and b are both β plus such noise, the others 0 plus it. For large β only a and b get
            weight, and α_a is the logistic function of the difference of the two scores, which
            has variance 4εβ². The slope of the logistic function at 0 is ¼, so α_a − ½ has
            standard deviation ¼ · 2β√ε = ½β√ε. With β fixed it goes to 0 with ε.

            The order of the limits matters: β has to be large against ln n, and √ε small against
            1/β. A query without the factor β does not give the average, noise or not.

            That keys are near their means is due to the small variance: ‖kᵢ − μᵢ‖² has the mean εd.
            It is not due to the covariance being symmetric, as every covariance matrix is: the
            entry (r, s) is the mean of one product, whichever factor comes first. Σ = I is
            symmetric, too, and there ‖kᵢ − μᵢ‖ is about √d. The table shows both.""",
        expected="holds",
        questions=("A4 1(c)i", "earlier 1(c)"),
        answers=[
            Answer(
                document="000",
                part="1(c)i",
                line=15,
                quote="选择 \\( q = \\mu_a + \\mu_b \\) … 结合正交和 \\( a \\)、\\( b \\) 的答案",
                conclusion="q = μ_a + μ_b, so β = 1, averages the two",
                reason="what (a) and (b) found for the keys carries over to their means",
            ),
            Answer(
                document="001",
                part="1(c)i",
                line=47,
                quote="取 $q = \\beta(\\mu_a + \\mu_b)$ … 因为 α 极小 … 会非常接近其均值 μ_i",
                conclusion="q = β(μ_a + μ_b) averages the two",
                reason="the variance is very small, so every key is very near its mean",
            ),
            Answer(
                document="002",
                part="1(c)i",
                line=61,
                quote="由于协方差矩阵对称, 故有 $k_i \\approx u_i$ … "
                "q = \\beta(u_a + u_b) \\quad \\beta \\gg 0",
                conclusion="q = β(μ_a + μ_b) with β ≫ 0 averages the two",
                reason="the covariance matrix is symmetric, therefore every key is near its mean",
            ),
            Answer(
                document="003",
                part="1(c)i",
                line=19,
                quote="$q = \\frac{\\mu_a + \\mu_b}{\\sqrt{2}}$ "
                "b/c $k_i \\approx \\mu_a$ given small cov.",
                conclusion="q = (μ_a + μ_b)/√2, a query of length 1, averages the two",
                reason="the covariance is small, so every key is near its mean (μᵢ, as we read it)",
            ),
        ],
        knob=Knob("much noise: ε = 1", {"noise": 1.0}),
        remark="All four choose the direction μ_a + μ_b, but its length decides: with β = 1 or "
        "1/√2 the other keys keep most of the weight.",
    )

    def run(self) -> Evidence:
        keys, _ = self.random_keys()
        means = self.means()
        along = keys @ (means[0] + means[1])  # of the keys, all that a query βμ_a + βμ_b sees
        middle = means @ (means[0] + means[1])
        weight = first_weight(self.beta * along)
        spread = float(weight.std())
        closed = self.beta * math.sqrt(self.noise) / 2
        # a standard deviation of N normal numbers scatters by 1/√(2N); five of those to each side
        room = 5 / math.sqrt(2 * self.samples)
        steps = np.geomspace(1e-8, 1, 9)
        # with the same draws, scaled
        scaled = [
            middle + math.sqrt(noise / self.noise) * (along[:2000] - middle) for noise in steps
        ]
        spreads = [float(first_weight(self.beta * one).std()) for one in scaled]

        distances = self._distances()
        near = distances["εI"][1] <= NEAR

        def averages(beta: float, among: Array = along) -> bool:
            return largest(first_weight(beta * among) - 0.5) <= NEAR

        def judge(beta: float) -> Mark:
            """Wrong if it fails with only one other key."""
            return mark(averages(beta, along[:, :3]), complete=averages(beta))

        # with β = 1 the weights are those of the means, which are not ½
        carries = largest(first_weight(along) - first_weight(middle[None])) <= NEAR
        symmetric_is_near = all(far <= NEAR for symmetric, far in distances.values() if symmetric)
        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure("largest |α_a − ½|", largest(weight - 0.5), "≤", NEAR),
                Measure("|standard deviation / ½β√ε − 1|", abs(spread / closed - 1), "≤", room),
            ],
            judgements={
                "000 1(c)i": Judgement(judge(1.0), mark(carries, complete=averages(1.0))),
                "001 1(c)i": Judgement(judge(self.beta), mark(near)),
                "002 1(c)i": Judgement(judge(self.beta), mark(symmetric_is_near)),
                "003 1(c)i": Judgement(judge(1 / math.sqrt(2)), mark(near)),
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
            details=[
                Table(
                    title=f"How far key a is from its mean, ε = {self.noise:g}, d = {self.width}",
                    columns=["covariance Σ", "symmetric", "mean ‖k_a − μ_a‖"],
                    rows=[
                        [name, "yes" if symmetric else "no", far]
                        for name, (symmetric, far) in distances.items()
                    ],
                    note="All are symmetric; the distance follows the variance.",
                )
            ],
            # 5 standard errors of the one measure, and 6.7 deviations of the other in any sample
            error_rates=ErrorRates(false_refutation=2 * FALSE_REFUTATION, false_confirmation=None),
        )

    def _distances(self) -> dict[str, tuple[bool, float]]:
        """For some covariance matrices: is it symmetric, and how far is key a from its mean?"""
        a, one = self.means()[0], np.eye(self.width)
        normals = normal(self.seed, "any covariance", 500, self.width)
        found = {}
        for name, matrix in {
            "εI": self.noise * one,
            "εI + ½μ_aμ_aᵀ": self.noise * one + 0.5 * np.outer(a, a),
            "I": one,
        }.items():
            off = normals @ np.linalg.cholesky(matrix).T
            distance = float(np.linalg.norm(off, axis=1).mean())
            found[name] = bool((matrix == matrix.T).all()), distance
        return found


def first_weight(scores: Array) -> Array:
    return softmax(scores)[:, 0]


@settings
class OneHeadSwings(Noisy):
    stretch: float = setting(0.5, low=0, high=4, about="variance of key a along its own mean")

    about = About(
        statement="When one key varies in length, a single head cannot hold the average: its "
        "output jumps between v_a and v_b. With a variance of ½ in length and β = 30, the weight "
        "of v_a varies by 0.2 or more; a coin that chooses v_a or v_b varies by 0.25.",
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
        questions=("A4 1(c)ii", "earlier 1(c)"),
        answers=[
            Answer(
                document="001",
                part="1(c)ii",
                line=55,
                quote="会在接近 v_a 和接近 v_b 之间剧烈摆动 … 很少会停留在中间的平均值状态 … "
                "k_a \\approx \\gamma \\mu_a",
                conclusion="c swings between v_a and v_b, is rarely in the middle, and varies much",
                reason="k_a ≈ γμ_a, and a large β amplifies how far γ is from 1",
            ),
            Answer(
                document="002",
                part="1(c)ii",
                line=80,
                quote="\\frac{1}{1 + \\exp(\\beta(1-\\gamma))} … \\gamma \\rightarrow 0.5 \\quad "
                "C \\approx v_b … \\gamma \\rightarrow 1.5 \\quad C \\approx v_a",
                conclusion="c ≈ v_b where γ is ½, and c ≈ v_a where it is 1½",
                reason="α_a ≈ 1/(1 + e^(β(1−γ))), where γ ~ N(1, ½)",
            ),
            Answer(
                document="003",
                part="1(c)ii",
                line=19,
                quote="$k_a$ could $\\approx \\frac{1}{2} M a^2$ … could be much larger … "
                "would cause $\\alpha_a \\sim 1$ & var to be wdy. disp.",
                conclusion="α_a could come near 1, and the variance is wide",
                reason="with the variance ½μ_aμ_aᵀ the score of a could be much larger, as we read "
                "the handwriting",
            ),
        ],
        knob=Knob("key a no longer varies in length", {"stretch": 0.0}),
    )

    def run(self) -> Evidence:
        keys, gamma = self.random_keys(self.stretch)
        means = self.means()
        weights = first_weight(keys @ (self.beta * (means[0] + means[1])))
        weight = np.sort(weights)
        law = np.sort(_logistic(self.beta * (gamma - 1)))
        steps = np.linspace(0.01, 0.99, 99)
        closed = np.array([self._below(step) for step in steps])
        measured = np.searchsorted(weight, steps) / self.samples
        room = uniform_distance(self.samples, FALSE_REFUTATION)
        fits = largest(measured - closed) <= room
        swings = float(weight.var()) >= 0.2
        between = float(((weight > 0.25) & (weight < 0.75)).mean())
        short, long = weights[gamma <= 0.5], weights[gamma >= 1.5]
        chosen = bool((short <= NEAR).all() and (long >= 1 - NEAR).all())
        near_one, below_half = float((weight >= 1 - NEAR).mean()), float((weight < 0.5).mean())
        return Evidence(
            kind="statistical",
            trials=self.samples,
            measures=[
                Measure("variance of α_a (a coin has 0.25)", float(weight.var()), "≥", 0.2),
                Measure("distance from the law σ(β(γ−1))", largest(measured - closed), "≤", room),
                Measure("mean |α_a − σ(β(γ−1))|", float(np.abs(weight - law).mean()), "≤", NEAR),
            ],
            judgements={
                # "rarely" is read as one sample in ten or fewer, between ¼ and ¾
                "001 1(c)ii": Judgement(mark(swings and between <= 0.1), mark(fits)),
                "002 1(c)ii": Judgement(mark(chosen), mark(fits)),
                # near 1 and a larger score are half of it: the other half of the time a loses
                "003 1(c)ii": Judgement(
                    mark(near_one > 0 and swings, complete=below_half <= NEAR),
                    mark(bool((gamma >= 1.5).any()), complete=not (gamma < 1).any()),
                ),
            },
            picture=Plot(
                title="How often the weight of v_a is below a value",
                x="α_a",
                y="share of samples at or below",
                series=[
                    Series(name="measured", x=[0, *steps, 1], y=[0, *measured, 1]),
                    Series(name="law σ(β(γ − 1))", x=[0, *steps, 1], y=[0, *closed, 1]),
                ],
                note=f"β = {self.beta:g}, variance of γ {self.stretch:g}: {100 * between:.1f} % of "
                "the samples are between ¼ and ¾.",
            ),
            error_rates=ErrorRates(false_refutation=FALSE_REFUTATION, false_confirmation=None),
        )

    def _below(self, weight: float) -> float:
        """P(σ(β(γ − 1)) ≤ weight)."""
        margin = math.log(weight / (1 - weight))
        spread = self.beta * math.sqrt(self.stretch)
        return NormalDist().cdf(margin / spread) if spread else float(margin >= 0)


def _logistic(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(x / 2))
