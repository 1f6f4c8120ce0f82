"""Scores: what a score of key and query can express, and what the softmax makes of it.

Axes in the formulas: n tokens, width d of keys and queries, d_s units inside an additive score;
S are scores and A = softmax(S), row by row, without a mask. Attention is that of our modules.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnlab.attention.heads import Grouped, HeadedAttention, HeadSettings, MultiHead, head_width
from attnlab.attention.scores import Additive, Concatenated, Multiplicative, ScaledDot
from attnlab.reports.report import Picture, Plot, Series, Table
from attnlab.theory.angle import TINY, angle_fits, cosines, fan, log_weights_off
from attnlab.theory.claim import EQUAL, About, Answer, Claim, Evidence, Knob, Measure, setting
from attnlab.theory.draw import Array, built, largest, normal, orthonormal

CLOSE = 0.05  # what "approximates cos θ" means here, for a number between −1 and 1


def _headed(
    heads: HeadSettings, score: Multiplicative | ScaledDot, width: int, seed: int, purpose: str
) -> HeadedAttention:
    compare = score.build(heads.heads, head_width(heads, width))
    return built(lambda: HeadedAttention(heads, compare, width=width), seed, purpose)


def _attended(module: HeadedAttention, tokens: Array) -> tuple[Array, Array]:
    """Attention maps [head, query, key] and outputs [token, width]."""
    out, maps = module(torch.from_numpy(tokens)[None], causal=False, return_weights=True)
    return maps[0].numpy(), out[0].numpy()


def _projections(module: HeadedAttention) -> tuple[Tensor, ...]:
    """W_q, W_k and W_v as [head, head width, width], to read and to write."""
    heads = module.project.weight.unflatten(0, (-1, module.head_width))
    return heads.split([module.heads, module.kv_heads, module.kv_heads])


def _series(name: str, x: np.ndarray, y: Array) -> Series:
    return Series(name=name, x=x.ravel().tolist(), y=y.ravel().tolist())


@dataclass(frozen=True, kw_only=True)
class MultiplicativeAddsNothing(Claim):
    tied: bool = setting(False, about="keys and queries share one projection")
    cases: int = setting(5, low=1, high=50, live=5, about="drawn weights for each shape")

    about = About(
        statement="With free projections of the same width, the matrix of multiplicative "
        "attention adds nothing: what it computes, dot-product attention computes too.",
        formula="kⱼᵀ W_s qᵢ = kⱼᵀ q′ᵢ with W_q′ = W_s W_q;   kⱼᵀ qᵢ = kⱼᵀ W_s qᵢ with W_s = I",
        derivation="""qᵢ = W_q xᵢ is linear in the token, and so is W_s qᵢ, by the matrix W_s W_q.
            It has the shape of W_q, so dot-product attention may choose it. Then every score is
            the same number, and with the scores the maps and outputs. The other way round, W_s = I
            gives the plain dot product. More parameters are not more functions.

            This needs a W_q that is free. If keys and queries share one projection W, the scores
            xⱼᵀWᵀW xᵢ are symmetric, whereas xⱼᵀWᵀW_s W xᵢ need not be, and the maps show it. For
            symmetric S, log Aᵢⱼ − log Aⱼᵢ is a difference cⱼ − cᵢ, so log A₁₂ + log A₂₃ + log A₃₁
            is the same in both directions around. If in some map the two sums differ by D, every
            map of tied dot products is D/6 or more away from it in one of the six logarithms.""",
        expected="holds",
        answers=[
            Answer("004 student", "2.1(a)", "no new functions: W_s q is a query as well"),
            Answer("004 GPT-4", "2.1(a)", "a larger class of functions: W_s adds freedom"),
        ],
        knob=Knob("keys and queries share one projection", {"tied": True}),
    )

    def run(self) -> Evidence:
        # tokens, width, heads, key/value heads, head width; a tie is one key head to a query head
        shapes = [(1, 1, 1, 1, 1), (3, 5, 1, 1, 2), (13, 8, 2, 2, 7), (5, 12, 3, 3, 4)]
        shapes += [] if self.tied else [(7, 4, 2, 1, 9), (11, 6, 4, 2, 3)]
        rows = [self._compared(shape, case) for case in range(self.cases) for shape in shapes]
        there, back = max(row[0] for row in rows), max(row[1] for row in rows)
        what = "log-weight that no tied dot product reaches" if self.tied else "with W_s absorbed"
        with_matrix, absorbed, without = rows[3][2]
        fits = [] if self.tied else [_series("W_s absorbed by W_q", with_matrix, absorbed)]
        return Evidence(
            kind="construction",
            trials=len(rows),
            measures=[
                Measure(f"|multiplicative − dot product|, {what}", there, "≤", EQUAL),
                Measure("|dot product − multiplicative|, with W_s = I", back, "≤", EQUAL),
            ],
            right={"004 student": there <= EQUAL, "004 GPT-4": there > EQUAL},
            picture=Plot(
                title="Every attention weight, computed twice",
                x="by multiplicative attention",
                y="by dot-product attention",
                kind="points",
                series=[*fits, _series("W_s left out", with_matrix, without)],
            ),
        )

    def _compared(self, shape: tuple[int, ...], case: int) -> tuple[float, float, list[Array]]:
        """How far dot products stay away, how far W_s = I does, and maps to show."""
        count, width, heads, kv_heads, size = shape
        tokens, purpose = normal(self.seed, "tokens", count, width), f"{shape}, case {case}"
        settings = Grouped(heads=heads, kv_heads=kv_heads, head_width=size)
        multiplicative = _headed(settings, Multiplicative(), width, self.seed, purpose)
        dot = _headed(settings, ScaledDot(), width, self.seed, purpose)
        for module in (multiplicative, dot) if self.tied else ():
            _projections(module)[0].copy_(_projections(module)[1])
        matrix = multiplicative.score.get_parameter("matrix")
        found, plain = _attended(multiplicative, tokens), _attended(dot, tokens)
        _projections(dot)[0].copy_(matrix @ _projections(dot)[0])
        absorbed = _attended(dot, tokens)
        matrix.copy_(torch.eye(size).expand_as(matrix))
        identity = _attended(multiplicative, tokens)
        there = max(largest(a - b) for a, b in zip(found, absorbed, strict=True))
        back = max(largest(a - b) for a, b in zip(plain, identity, strict=True))
        shown = [found[0], absorbed[0], plain[0]]
        return _irreversible(found[0]) if self.tied else there, back, shown


def _irreversible(maps: Array) -> float:
    """A sixth of what the logarithms around three tokens differ by in the two directions."""
    turn = np.log(maps) - np.log(maps).transpose(0, 2, 1)  # and the way back is minus this
    return largest(turn[:, :, :, None] + turn[:, None] + turn.transpose(0, 2, 1)[:, :, None]) / 6


@dataclass(frozen=True, kw_only=True)
class ConcatenatedIgnoresTheQuery(Claim):
    tanh: bool = setting(False, about="put a hidden layer with tanh inside")
    width: int = setting(8, low=1, high=32)
    cases: int = setting(20, low=1, high=200, live=60)

    about = About(
        statement="With the score wᵀ[k; q] all queries attend alike, and no w makes it follow "
        "cos θ: the best fit is a constant.",
        formula="wᵀ[kⱼ; qᵢ] = a·kⱼ + b·qᵢ   ⇒   Aᵢⱼ = e^(a·kⱼ) / Σ e^(a·k)   for every i\n"
        "|wᵀ[k; q] − cos θ| ≥ |cos θ|   at one of (±k, ±q)",
        derivation="""The score is a part of the key plus a part of the query. In row i of the
            softmax e^(b·qᵢ) stands in the numerator and in every term of the denominator, and
            cancels. What is left depends on the key alone.

            For the angle, take the pairs (k, q), (−k, q), (k, −q), (−k, −q), where cos θ is c, −c,
            −c, c. Of any score a·k + b·q + constant, the first and the last add up to the same as
            the other two. So the four errors, added with the signs +, −, −, +, leave 4c, and one
            of them is at least |c|: in the worst case no w is better than the constant 0.

            Nor is it on average. Over a set that has all four with every pair, cos θ has mean 0
            and no correlation with the coordinates, so least squares returns 0, and R² = 0. What
            remains is the variance of cos θ. With queries both ways along the d axes of a basis
            this is the mean of a unit vector's squared coordinates: 1/d.""",
        expected="holds",
        answers=[
            Answer("004 student", "2.1(b)", "no w: a product with a vector is linear, cos is not"),
            Answer("004 GPT-4", "2.1(b)", "no w: cos θ is not linear and needs the lengths"),
        ],
        knob=Knob("tanh inside: wᵀ tanh(W[k; q])", {"tanh": True}),
        remark="""Right as far as it goes: that the query drops out altogether, neither document
            says. Nor is “not linear” the reason: wᵀ tanh(W[k; q]) explains nothing on these
            pairs either, being odd where cos θ is even (see additive-reaches-the-angle).""",
    )

    def run(self) -> Evidence:
        maps = [self._map(case) for case in range(self.cases)]
        spread = max(float(np.ptp(one, axis=-2).max()) for one in maps)
        explained, left, _ = self._fit(self.tanh)
        linear = self._fit(False)  # the documents' score, whatever the setting
        none_fits = linear[0] <= EQUAL and linear[2] >= 1 - EQUAL
        return Evidence(
            kind="construction",
            trials=self.cases,
            measures=[
                Measure("difference of the weights of two queries", spread, "≤", EQUAL),
                Measure("share of cos θ that the best fit explains, R²", explained, "≤", EQUAL),
                Measure("|variance left − 1/d|", abs(left - 1 / self.width), "≤", EQUAL),
            ],
            right={"004 student": none_fits, "004 GPT-4": none_fits},
            picture=Picture(
                title="Attention weights: do all queries look at the same keys?",
                rows=maps[-1][0].tolist(),
                x="key",
                y="query",
            ),
        )

    def _map(self, case: int) -> Array:
        """Weights [head, query, key] of drawn vectors, in shapes that change with the case."""
        heads, score = 1 + case % 3, Additive() if self.tanh else Concatenated()
        module = built(lambda: score.build(heads, self.width), self.seed, f"score {case}")
        q = normal(self.seed, f"queries {case}", 1, heads, 5 + case % 7, self.width)
        k = torch.from_numpy(normal(self.seed, f"keys {case}", 1, heads, 11 + case % 5, self.width))
        return module(torch.from_numpy(q), k, k, causal=False, return_weights=True)[1][0].numpy()

    def _fit(self, tanh: bool) -> tuple[float, float, float]:
        """R², mean square and largest of the residuals of least squares, with a constant."""
        axes = orthonormal(self.seed, "axes", self.width, self.width)
        keys = np.concatenate([axes, normal(self.seed, "keys", 5, self.width)])
        queries = axes * np.exp(normal(self.seed, "lengths", self.width, 1))
        keys, queries = np.concatenate([keys, -keys]), np.concatenate([queries, -queries])
        cosine = cosines(keys, queries).ravel()
        inputs = np.hstack([keys.repeat(len(queries), 0), np.tile(queries, (len(keys), 1))])
        if tanh:
            inputs = np.tanh(inputs @ normal(self.seed, "inside", 2 * self.width, 2 * self.width))
        design = np.hstack([inputs, np.ones((len(inputs), 1))])
        residual = cosine - design @ np.linalg.lstsq(design, cosine)[0]
        left = float(np.mean(residual**2))
        return 1 - left / float(np.var(cosine)), left, largest(residual)


@dataclass(frozen=True, kw_only=True)
class AdditiveReachesTheAngle(Claim):
    units: int = setting(256, low=1, high=1024, live=192, about="d_s, units inside the score")
    spread: float = setting(45.0, low=0, high=180, about="degrees of the keys off the first axis")
    shortest: float = setting(0.75, low=0.01, high=1, about="of keys and queries; the longest is 1")

    about = About(
        statement="The additive score wᵀ tanh(W[k; q]) comes as close to cos θ as one likes, "
        "with enough units.",
        formula="max |wᵀ tanh(W[k; q]) − cos θ| → 0   as   d_s → ∞\n"
        "s(−k, −q) = −s(k, q)   but   cos θ(−k, −q) = cos θ(k, q)",
        derivation="""What the score can do: tanh is odd, and each odd power occurs in its power
            series. The derivatives of tanh(λ a·z) by λ at 0 are limits of sums of units, so odd
            powers (a·z)ᵐ are within reach, with them the odd polynomials of z = (k, q), and with
            these all odd continuous functions on compact sets. cos θ is continuous where k ≠ 0 and
            q ≠ 0. On a compact set that never holds both z and −z it has an odd continuation.

            What it cannot do, first: without a bias the score is odd, and cos θ is even. At z and
            −z the errors are s − cos θ and −s − cos θ, so one is at least |cos θ|, which is 1 for
            k = q, whatever w, W and d_s are. A coordinate that is the same in all keys acts as a
            bias and mends this, as z and −z then never both occur.

            Second: the scores of q and −q differ by at most 2 L ‖q‖ with L = Σ |wᵤ| ‖W_q,ᵤ‖, while
            cos θ goes from 1 to −1. One of the errors is at least 1 − L ‖q‖, so 1 near q = 0.""",
        expected="holds with a condition",
        condition="on a compact set of pairs (k, q) that keeps away from k = 0 and q = 0 and never "
        "holds both (k, q) and (−k, −q); a constant coordinate ensures the latter",
        answers=[
            Answer("004 student", "2.1(c)", "yes: a hidden layer approximates any function"),
            Answer("004 GPT-4", "2.1(c)", "yes: tanh makes it a universal approximator"),
        ],
        knob=Knob("a single unit: d_s = 1", {"units": 1}),
        remark="""The theorem that both documents lean on is about layers with a bias, continuous
            functions and compact sets. This score has no bias, and they limit nothing: over all
            directions every fit is off by 1 or more somewhere, and the constant 0 by just 1.""",
    )

    def run(self) -> Evidence:
        sets = {
            "keys on one side, nothing near 0": (self.spread, self.shortest, 0.0),
            "all directions": (180.0, self.shortest, 0.0),
            "queries near 0": (self.spread, TINY, 0.0),
            "all directions, a constant in the keys": (180.0, self.shortest, 1.0),
        }
        steps = tuple(n for n in (self.units // 16, self.units // 4, self.units) if n)
        fits = [angle_fits(self.seed, self.shortest, steps, where) for where in sets.values()]
        inside, everywhere, near, _ = (rows[-1] for rows in fits)
        off = log_weights_off(self.seed, self.shortest, next(iter(sets.values())), inside.outer)
        errors = [np.array([one.error for one in rows]) for rows in fits]
        slowest = max((float(b / a) for a, b in pairwise(errors[0])), default=1.0)
        anywhere = max(everywhere.error, near.error) <= CLOSE
        return Evidence(
            kind="construction",
            trials=len(sets) * len(steps),
            measures=[
                Measure(f"worst error, d_s = {self.units}", inside.error, "≤", CLOSE),
                Measure("what four times the units leave of the error", slowest, "<", 1),
                Measure("|log A − log softmax(cos θ)|", off, "≤", 2 * inside.error),
            ],
            outside=[
                Measure(
                    "worst error, all directions", everywhere.error, "≥", 1 - everywhere.excused
                ),
                Measure("worst error, queries near 0", near.error, "≥", 1 - near.excused),
            ],
            right={"004 student": anywhere, "004 GPT-4": anywhere},
            picture=Plot(
                title="How close an additive score comes to cos θ",
                x="units d_s",
                y="worst error",
                log_x=True,
                log_y=True,
                series=[
                    _series(name, np.array(steps), row)
                    for name, row in zip(sets, errors, strict=True)
                ],
            ),
        )


@dataclass(frozen=True, kw_only=True)
class SymmetricAttention(Claim):
    alike: bool = setting(False, about="tokens on a circle, so that all rows have the same sum")
    tokens: int = setting(6, low=2, high=32)
    width: int = setting(4, low=2, high=64)
    cases: int = setting(20, low=1, high=200, live=60)

    about = About(
        statement="W_q = W_k makes the attention matrix symmetric.",
        formula="S = QQᵀ/√d = Sᵀ,   Aᵢⱼ = e^(sᵢⱼ)/rᵢ,   rᵢ = Σⱼ e^(sᵢⱼ)\n"
        "A = Aᵀ   ⇔   r₁ = r₂ = … = rₙ",
        derivation="""W_q = W_k makes the scores symmetric, but the softmax divides each row by its
            own sum. The tokens 1 and 0 with W_q = W_k = 1 give S = [[1, 0], [0, 0]]. Its rows are
            divided by e + 1 and by 2, so A₁₂ = 1/(e + 1) = 0.269 and A₂₁ = 1/2.

            When is it symmetric? With S = Sᵀ we have rᵢ Aᵢⱼ = e^(sᵢⱼ) = rⱼ Aⱼᵢ, all of it
            positive. If all rᵢ are equal, they cancel and A = Aᵀ. If A = Aᵀ, divide by Aᵢⱼ = Aⱼᵢ
            and get rᵢ = rⱼ. So besides a symmetric S every row needs the same sum of exponentials,
            as with tokens at equal steps on a circle, where a turn takes each row to each.""",
        expected="refuted",
        answers=[
            Answer("004 student", "2.2(a)", "W_q = W_k ensures it"),
            Answer("004 GPT-4", "2.2(a)", "symmetric when W_q = W_k, and only then"),
        ],
        knob=Knob("tokens whose rows have equal sums", {"alike": True}),
        remark="""W_q = W_k is not needed either: W_q = −W_k makes S symmetric too, as every
            symmetric W_qᵀW_k does, and for tokens on a circle A is symmetric with it.""",
    )

    def run(self) -> Evidence:
        smallest = (np.array([[1.0], [0.0]]), np.ones((1, 1)))
        circles = [self._circle(count) for count in range(2, self.tokens + 2)]
        random = [self._random(case) for case in range(self.cases)]
        maps = [_tied(*pair) for pair in (circles if self.alike else [smallest, *random])]
        flows = [sums[:, None] * one for one, sums in maps]
        balance = max(largest(flow / flow.T - 1) for flow in flows)
        example = _tied(*smallest)[0]
        enough = largest(example - example.T) <= EQUAL
        opposite = _tied(*circles[-1], sign=-1)[0]  # W_q = −W_k
        needed = largest(opposite - opposite.T) > EQUAL
        points = {"drawn tokens": _tied(*random[0])[0], "on a circle": _tied(*circles[-1])[0]}
        return Evidence(
            kind="counterexample",
            trials=len(maps),
            measures=[
                Measure("largest |A − Aᵀ|", max(largest(a - a.T) for a, _ in maps), "≤", EQUAL),
                Measure("largest |rᵢAᵢⱼ / rⱼAⱼᵢ − 1|", balance, "≤", EQUAL),
            ],
            right={"004 student": enough, "004 GPT-4": enough and needed},
            picture=Plot(
                title="W_q = W_k: each weight and its mirror image; symmetric is on the diagonal",
                x="Aᵢⱼ",
                y="Aⱼᵢ",
                kind="points",
                series=[_series(name, one, one.T) for name, one in points.items()],
            ),
            details=[
                Table(
                    title="A for the tokens 1 and 0, W_q = W_k = 1: S = [[1, 0], [0, 0]]",
                    columns=["query", "weight of token 1", "weight of token 0"],
                    rows=[["token 1", *example[0].tolist()], ["token 0", *example[1].tolist()]],
                )
            ],
        )

    def _random(self, case: int) -> tuple[Array, Array]:
        tokens = normal(self.seed, f"tokens {case}", self.tokens, self.width)
        shape = (1 + case % (2 * self.width), self.width)
        return tokens, normal(self.seed, f"projection {case}", *shape) / math.sqrt(self.width)

    def _circle(self, count: int) -> tuple[Array, Array]:
        turn = orthonormal(self.seed, f"turn {count}", 2, 2)
        size = np.exp(normal(self.seed, f"size {count}", 1))
        return fan(180.0, count + 1, 1.0, 1)[1:], turn * size  # both ends are the same direction


def _tied(tokens: Array, projection: Array, sign: int = 1) -> tuple[Array, Array]:
    """The map [query, key] with W_q = ± W_k, and the sums of its rows before the softmax."""
    size, width = projection.shape
    module = _headed(MultiHead(heads=1, head_width=size), ScaledDot(), width, 0, "head")
    for part, factor in zip(_projections(module), (sign, 1), strict=False):
        part.copy_(torch.from_numpy(factor * projection))
    projected = tokens @ projection.T
    sums = np.exp(sign * projected @ projected.T / math.sqrt(size)).sum(axis=1)
    return _attended(module, tokens)[0][0], sums


@dataclass(frozen=True, kw_only=True)
class HeadsAreNotOneHead(Claim):
    equal: bool = setting(False, about="all heads with the same W_q and W_k")
    heads: int = setting(2, low=2, high=8)
    width: int = setting(6, low=2, high=32, about="of a head")
    cases: int = setting(5, low=1, high=50, live=5)

    about = About(
        statement="Several heads are not one head with their projections side by side: the "
        "outputs X′ and X″ differ, whatever the scale.",
        formula="X′ = [A⁽¹⁾V⁽¹⁾ … A⁽ʰ⁾V⁽ʰ⁾],   X″ = A″[V⁽¹⁾ … V⁽ʰ⁾],   S″ = c Σ Q⁽ⁱ⁾K⁽ⁱ⁾ᵀ\n"
        "‖X″ − X′‖ ≥ σ ‖A⁽¹⁾ − A⁽²⁾‖ / √2,   σ the least singular value of V⁽¹⁾ and V⁽²⁾",
        derivation="""The product of two rows of h parts each is the sum of the h products of the
            parts. So one head with the projections side by side adds the scores of all heads
            before the softmax, and has one map A″ for everything where they have h.

            Its scale is 1/√(h d) instead of 1/√d: a factor that W_q can hold, tried here from
            small to large. But no factor makes one map two. For n ≤ d tokens the n rows of V⁽ⁱ⁾
            are independent, so ‖(A″ − A⁽ⁱ⁾)V⁽ⁱ⁾‖ ≥ σ ‖A″ − A⁽ⁱ⁾‖ in the Euclidean norm. Squared and
            added for two heads this is at least σ² ‖A⁽¹⁾ − A⁽²⁾‖² / 2, as A″ is never nearer to
            both than their middle. The bound holds for any single map, however it came about.

            Only equal maps can be one: with equal W_q and W_k in all heads the scores add up to h
            times those of a head, and c = 1/(h√d) brings them back.""",
        expected="holds",
        answers=[
            Answer("004 student", "2.2(b)", "not equal, because of the scale √d_k (incomplete)"),
            Answer("004 GPT-4", "2.2(b)", "not equal: one head attends once, not once a head"),
        ],
        knob=Knob("all heads with equal maps", {"equal": True}),
        remark="""The student's answer is right, its reason incomplete: with the scale matched the
            outputs still differ.""",
    )

    def run(self) -> Evidence:
        # scales of 1/√(h d) as it is, 1/√d as in the heads, and 1/(h√d)
        matched = [1.0, math.sqrt(self.heads), 1 / math.sqrt(self.heads)]
        factors = np.sort([*np.geomspace(0.1, 10, 21), *matched])
        rows = [self._differences(case, factors, self.equal) for case in range(self.cases)]
        apart = np.array([differences for differences, _ in rows])
        free, same = (self._differences(0, factors, equal)[0] for equal in (False, True))
        bound = min(low for _, low in rows)
        best, plain = float(apart.min()), float(apart[:, factors == 1].min())
        return Evidence(
            kind="construction",
            trials=apart.size,
            measures=[
                Measure("smallest ‖X″ − X′‖ at any scale", best, ">", EQUAL),
                Measure("least ‖X″ − X′‖ of any single map", bound, ">", EQUAL),
            ],
            right={"004 student": plain > EQUAL, "004 GPT-4": best > EQUAL},
            picture=Plot(
                title=f"{self.heads} heads against one with their projections side by side",
                x="scores of the one head, times",
                y="‖X″ − X′‖",
                log_x=True,
                series=[_series("drawn heads", factors, free), _series("equal", factors, same)],
            ),
        )

    def _differences(self, case: int, factors: Array, equal: bool) -> tuple[Array, float]:
        """‖X″ − X′‖ for each factor on the scores of the one head, and the bound below it."""
        count = 2 + case % (self.width - 1)  # no more tokens than the width of a head
        tokens = normal(self.seed, f"tokens {case}", count, self.heads * self.width)
        several, one = (self._module(case, heads, equal) for heads in (self.heads, 1))
        maps, wanted = _attended(several, tokens)
        values = tokens @ _projections(several)[2].numpy().transpose(0, 2, 1)
        least = float(np.linalg.svd(values[:2], compute_uv=False).min())
        queries, plain, found = _projections(one)[0], _projections(one)[0].clone(), []
        for factor in factors:
            queries.copy_(plain * factor)
            found.append(float(np.linalg.norm(_attended(one, tokens)[1] - wanted)))
        return np.array(found), least * float(np.linalg.norm(maps[0] - maps[1])) / math.sqrt(2)

    def _module(self, case: int, heads: int, equal: bool) -> HeadedAttention:
        """The same weights in any number of heads, and nothing after them."""
        width = self.heads * self.width
        module = _headed(MultiHead(heads=heads), ScaledDot(), width, self.seed, f"weights {case}")
        module.merge.weight.copy_(torch.eye(width))
        if equal:
            parts = module.project.weight.view(3, self.heads, self.width, width)
            parts[:2] = parts[:2, :1].clone()  # all of W_q and W_k like their first head
        return module
