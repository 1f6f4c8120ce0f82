"""Scores: what a score of key and query can express, such as the angle between them.

Axes in the formulas: n tokens, width d of keys and queries, d_s units inside an additive score;
A are attention weights, without a mask. Attention is that of our modules.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attnlab.attention.heads import (
    AttentionOptions,
    Grouped,
    HeadedAttention,
    HeadSettings,
    Layer,
    head_width,
)
from attnlab.attention.scores import Additive, Concatenated, Multiplicative, ScaledDot
from attnlab.config import setting, settings
from attnlab.kernels import Request
from attnlab.reports.report import Picture, Plot, Series
from attnlab.theory.angle import STEP, TINY, angle_fits, cosines, log_weights_off
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
from attnlab.theory.draw import Array, largest, normal, orthonormal, random_module

CLOSE = 0.05  # what "approximates cos θ" means here, for a number between −1 and 1
# What "approximates θ" means. It has a kink where key and query point the same or opposite ways,
# and between fitted directions, STEP apart, nothing tells where; so no more than STEP is asked.
CLOSE_ANGLE = STEP


def random_attention(
    heads: HeadSettings, score: Multiplicative | ScaledDot, width: int, seed: int, purpose: str
) -> HeadedAttention:
    compare = score.build(heads.heads, head_width(heads, width))
    return random_module(lambda: HeadedAttention(heads, compare, Layer(width=width)), seed, purpose)


def attend(module: HeadedAttention, tokens: Array) -> tuple[Array, Array]:
    """Attention maps [head, query, key] and outputs [token, width]."""
    request = module.request(torch.from_numpy(tokens)[None], AttentionOptions(causal=False))
    maps = module.score.weights(request)
    out = module.join(maps @ request.v.repeat_interleave(request.group, dim=1))
    return maps[0].numpy(), out[0].numpy()


def projections(module: HeadedAttention) -> tuple[Tensor, ...]:
    """W_q, W_k and W_v as [head, head width, width], to read and to write."""
    heads = module.project.weight.unflatten(0, (-1, module.head_width))
    return heads.split([module.heads, module.kv_heads, module.kv_heads])


def series(name: str, x: np.ndarray, y: Array) -> Series:
    return Series(name=name, x=x.ravel().tolist(), y=y.ravel().tolist())


@settings
class MultiplicativeAddsNothing(Claim):
    tied: bool = setting(False, about="keys and queries share one projection")
    cases: int = setting(
        5, low=1, high=50, about="random weights for each shape", metadata={"live": 5}
    )

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
        questions=("CMU 2.1(a)",),
        answers=[
            Answer(
                document="004 student",
                part="2.1(a)",
                line=412,
                quote="No because … if $\\mathbf{W}_s \\mathbf{q}_t$ is thought of as a linear "
                "transformation of $\\mathbf{q}_t$",
                conclusion="multiplicative attention learns no other functions",
                reason="W_s q is a linear transformation of q; that W_q takes it up is not said",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(a)",
                line=416,
                quote="是的 … 乘法注意力 … 的函数类更广泛,因为查询 $q_t$ … 先经过了线性变换 $W_s$",
                conclusion="multiplicative attention learns other functions",
                reason="the query goes through a further trainable matrix",
            ),
        ],
        knob=Knob("keys and queries share one projection", {"tied": True}),
    )

    def run(self) -> Evidence:
        # tokens, width, heads, key/value heads, head width; a tie is one key head to a query head
        shapes = [(1, 1, 1, 1, 1), (3, 5, 1, 1, 2), (13, 8, 2, 2, 7), (5, 12, 3, 3, 4)]
        shapes += [] if self.tied else [(7, 4, 2, 1, 9), (11, 6, 4, 2, 3)]
        cases = range(self.cases)
        rows = [_compare(self.seed, shape, case, self.tied) for case in cases for shape in shapes]
        there, back = max(row[0] for row in rows), max(row[1] for row in rows)
        what = "log-weight that no tied dot product reaches" if self.tied else "with W_s absorbed"
        # the documents speak of free projections, and what they leave out shows when tied
        free, tied = (_compare(self.seed, (3, 5, 1, 1, 2), 0, tied)[0] for tied in (False, True))
        with_matrix, absorbed, without = rows[3][2]
        fits = [] if self.tied else [series("W_s absorbed by W_q", with_matrix, absorbed)]
        return Evidence(
            kind="construction",
            trials=len(rows),
            measures=[
                Measure(f"|multiplicative − dot product|, {what}", there, "≤", EQUAL),
                Measure("|dot product − multiplicative|, with W_s = I", back, "≤", EQUAL),
            ],
            judgements={
                "004 student 2.1(a)": Judgement(
                    mark(free <= EQUAL), mark(free <= EQUAL, complete=tied <= EQUAL)
                ),
                # there is a further matrix; that it makes a difference does not follow
                "004 GPT-4 2.1(a)": Judgement(
                    mark(free > EQUAL), mark(_more_parameters() > 0, complete=free > EQUAL)
                ),
            },
            picture=Plot(
                title="Every attention weight, computed twice"
                + (", with W_q = W_k" if self.tied else ""),
                x="by multiplicative attention",
                y="by dot-product attention",
                kind="points",
                series=[*fits, series("W_s left out", with_matrix, without)],
            ),
        )


def _more_parameters() -> int:
    """How many more parameters a multiplicative score has than a dot product."""
    scores = (Multiplicative().build(1, 2), ScaledDot().build(1, 2))
    more, fewer = (sum(one.numel() for one in score.parameters()) for score in scores)
    return more - fewer


def _compare(
    seed: int, shape: tuple[int, ...], case: int, tied: bool
) -> tuple[float, float, list[Array]]:
    """Distance with W_s absorbed, distance with W_s = I, and attention maps for the picture."""
    count, width, heads, kv_heads, size = shape
    tokens, purpose = normal(seed, "tokens", count, width), f"{shape}, case {case}"
    settings = Grouped(heads=heads, kv_heads=kv_heads, head_width=size)
    multiplicative = random_attention(settings, Multiplicative(), width, seed, purpose)
    dot = random_attention(settings, ScaledDot(), width, seed, purpose)
    for module in (multiplicative, dot) if tied else ():
        projections(module)[0].copy_(projections(module)[1])
    matrix = multiplicative.score.get_parameter("matrix")
    found, plain = attend(multiplicative, tokens), attend(dot, tokens)
    projections(dot)[0].copy_(matrix @ projections(dot)[0])
    absorbed = attend(dot, tokens)
    matrix.copy_(torch.eye(size).expand_as(matrix))
    identity = attend(multiplicative, tokens)
    there = max(largest(a - b) for a, b in zip(found, absorbed, strict=True))
    back = max(largest(a - b) for a, b in zip(plain, identity, strict=True))
    shown = [found[0], absorbed[0], plain[0]]
    return _irreversibility(found[0]) if tied else there, back, shown


def _irreversibility(maps: Array) -> float:
    """A sixth of the difference of log-weights around three tokens in the two directions."""
    turn = np.log(maps) - np.log(maps).transpose(0, 2, 1)  # and the way back is minus this
    return largest(turn[:, :, :, None] + turn[:, None] + turn.transpose(0, 2, 1)[:, :, None]) / 6


@settings
class ConcatenatedIgnoresTheQuery(Claim):
    tanh: bool = setting(False, about="put a hidden layer with tanh inside")
    width: int = setting(8, low=1, high=32, about="coordinates of a query or key")
    cases: int = setting(20, low=1, high=200, about="random cases to try", metadata={"live": 60})

    about = About(
        statement="With the score wᵀ[k; q] all queries attend alike, and no w makes it follow "
        "the angle θ of key and query, or cos θ: the best fit is a constant.",
        formula="wᵀ[kⱼ; qᵢ] = a·kⱼ + b·qᵢ   ⇒   Aᵢⱼ = e^(a·kⱼ) / Σ e^(a·k)   for every i\n"
        "|wᵀ[k; q] − cos θ| ≥ |cos θ|   and   |wᵀ[k; q] − θ| ≥ |θ − π/2|   at one of (±k, ±q)",
        derivation="""The score is a part of the key plus a part of the query. In row i of the
            softmax e^(b·qᵢ) stands in the numerator and in every term of the denominator, and
            cancels. What is left depends on the key alone.

            For the angle, take the pairs (k, q), (−k, q), (k, −q), (−k, −q), where cos θ is c, −c,
            −c, c. Of any score a·k + b·q + constant, the first and the last add up to the same as
            the other two. So the four errors, added with the signs +, −, −, +, leave 4c, and one
            of them is at least |c|: in the worst case no w is better than the constant 0.

            The angle is no easier: −q has the angle π − θ with k, so θ − π/2 changes its sign as
            cos θ does, and all that is said of one goes for the other.

            Nor is it on average. Over a set that has all four with every pair, cos θ has mean 0
            and no correlation with the coordinates, so least squares returns 0, and R² = 0. What
            remains is the variance of cos θ. With queries both ways along the d axes of a basis
            this is the mean of a unit vector's squared coordinates: 1/d.

            Linearity is not the point. Let a(k) and b(q) be any functions, and measure the best
            sum a(k) + b(q): by least squares these are the means of a key's row and of a query's
            column, less the mean of all. As q and −q cancel, each of them is the same constant.
            What a sum of two parts cannot have is that key and query meet.""",
        expected="holds",
        questions=("CMU 2.1(b)",),
        answers=[
            Answer(
                document="004 student",
                part="2.1(b)",
                line=468,
                quote="There does not exist parameters … no way for a scalar dot product to "
                "approximate the non-linear cosine function",
                conclusion="no w makes the score approximate θ or cos θ",
                reason="a product with a vector is linear, and the cosine is not",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(b)",
                line=472,
                quote="**不存在**这样的固定参数 … 只能表示线性关系,而无法捕捉 … 非线性相似性",
                conclusion="no w makes the score approximate θ or cos θ",
                reason="the score is linear, and the angle is not",
            ),
        ],
        knob=Knob("tanh inside: wᵀ tanh(W[k; q])", {"tanh": True}),
        remark="""That the query drops out altogether, neither document says. That the score is
            linear is true, but not enough of a reason: any a(k) + b(q), however far from linear,
            explains as little.""",
    )

    def run(self) -> Evidence:
        maps = [self._map(case) for case in range(self.cases)]
        spread = max(float(np.ptp(one, axis=-2).max()) for one in maps)
        keys, queries = self._pairs()
        cosine = cosines(keys, queries)
        angle = np.arccos(np.clip(cosine, -1, 1))
        targets = {"cos θ": cosine, "θ": angle}
        fits = {name: self._fit(one, keys, queries, self.tanh) for name, one in targets.items()}
        sums = max(_explained_variance(one, one - _sum_of_parts(one)) for one in targets.values())
        # the documents' score, whatever the setting; at worst a constant is off by 1 and by π/2
        linear = [self._fit(one, keys, queries, tanh=False) for one in (cosine, angle)]
        none_fits = all(explained <= EQUAL for explained, *_ in linear)
        far = linear[0][2] >= 1 - EQUAL and linear[1][2] >= math.pi / 2 - EQUAL
        theirs = Judgement(
            # if linearity was all, other parts a(k) and b(q) would do
            mark(none_fits and far),
            mark(none_fits, complete=sums > EQUAL),
        )
        left = fits["cos θ"][1]
        return Evidence(
            kind="construction",
            trials=self.cases,
            measures=[
                Measure("difference of the weights of two queries", spread, "≤", EQUAL),
                *(
                    Measure(f"share of {name} that the best fit explains, R²", one[0], "≤", EQUAL)
                    for name, one in fits.items()
                ),
                Measure("share that any a(k) + b(q) explains, R²", sums, "≤", EQUAL),
                Measure("|variance left of cos θ − 1/d|", abs(left - 1 / self.width), "≤", EQUAL),
            ],
            judgements={"004 student 2.1(b)": theirs, "004 GPT-4 2.1(b)": theirs},
            picture=Picture(
                title=f"Attention weights with {'wᵀ tanh(W[k; q])' if self.tanh else 'wᵀ[k; q]'}: "
                "do all queries look at the same keys?",
                rows=maps[-1][0].tolist(),
                x="key",
                y="query",
            ),
        )

    def _map(self, case: int) -> Array:
        """Weights [head, query, key] of random vectors; the shape changes with the case."""
        heads, score = 1 + case % 3, Additive() if self.tanh else Concatenated()
        module = random_module(lambda: score.build(heads, self.width), self.seed, f"score {case}")
        q = normal(self.seed, f"queries {case}", 1, heads, 5 + case % 7, self.width)
        k = torch.from_numpy(normal(self.seed, f"keys {case}", 1, heads, 11 + case % 5, self.width))
        return module.weights(Request(q=torch.from_numpy(q), k=k, v=k, causal=False))[0].numpy()

    def _pairs(self) -> tuple[Array, Array]:
        """Keys and queries, each with its opposite."""
        axes = orthonormal(self.seed, "axes", self.width, self.width)
        keys = np.concatenate([axes, normal(self.seed, "keys", 5, self.width)])
        queries = axes * np.exp(normal(self.seed, "lengths", self.width, 1))
        return np.concatenate([keys, -keys]), np.concatenate([queries, -queries])

    def _fit(
        self, target: Array, keys: Array, queries: Array, tanh: bool
    ) -> tuple[float, float, float]:
        """A least-squares fit with a constant: R², mean squared and largest residual."""
        inputs = np.hstack([keys.repeat(len(queries), 0), np.tile(queries, (len(keys), 1))])
        if tanh:
            inputs = np.tanh(inputs @ normal(self.seed, "inside", 2 * self.width, 2 * self.width))
        design = np.hstack([inputs, np.ones((len(inputs), 1))])
        residual = target.ravel() - design @ np.linalg.lstsq(design, target.ravel())[0]
        return _explained_variance(target, residual), float(np.mean(residual**2)), largest(residual)


def _explained_variance(target: Array, residual: Array) -> float:
    return 1 - float(np.mean(residual**2)) / float(np.var(target))


def _sum_of_parts(target: Array) -> Array:
    """The best a(k) + b(q) for a [key, query] of numbers, whatever the functions a and b are."""
    return target.mean(axis=1, keepdims=True) + target.mean(axis=0) - target.mean()


@settings
class AdditiveReachesTheAngle(Claim):
    units: int = setting(
        256, low=1, high=1024, about="d_s, units inside the score", metadata={"live": 256}
    )
    spread: float = setting(
        45.0, low=0, high=180, about="degrees by which keys lie off the first axis"
    )
    shortest: float = setting(
        0.75, low=0.01, high=1, about="shortest length of keys and queries; the longest is 1"
    )

    about = About(
        statement="With enough units the additive score wᵀ tanh(W[k; q]) comes as close as one "
        "likes to cos θ, and to the angle θ: with 256 units to 0.05, and to 15 degrees.",
        formula="max |wᵀ tanh(W[k; q]) − cos θ| → 0   and   max |wᵀ tanh(W[k; q]) − θ| → 0   as   "
        "d_s → ∞\ns(−k, −q) = −s(k, q)   but   θ(−k, −q) = θ(k, q)",
        derivation="""What the score can do: tanh is odd, and each odd power occurs in its power
            series. The derivatives of tanh(λ a·z) by λ at 0 are limits of sums of units, so odd
            powers (a·z)ᵐ are within reach, with them the odd polynomials of z = (k, q), and with
            these all odd continuous functions on compact sets. cos θ and θ are continuous where
            k ≠ 0 and q ≠ 0. On a compact set that never holds both z and −z they have an odd
            continuation. θ takes more units: it has a kink where k and q are parallel, as |x| has
            at 0, which smooth units round off.

            What it cannot do, first: without a bias the score is odd, and cos θ and θ are even. At
            z and −z the errors are s − cos θ and −s − cos θ, so one is at least |cos θ|, which is
            1 for k = q, whatever w, W and d_s are; for θ it is π, at k = −q. A coordinate that is
            the same in all keys acts as a bias and mends this, as z and −z then never both occur.

            Second: the scores of q and −q differ by at most 2 L ‖q‖ with L = Σ |wᵤ| ‖W_q,ᵤ‖, while
            cos θ goes from 1 to −1, and θ from 0 to π. One of the errors is at least 1 − L ‖q‖, or
            π/2 − L ‖q‖: near q = 0 that is 1, or π/2.""",
        expected="holds with a condition",
        condition="on a compact set of pairs (k, q) that keeps away from k = 0 and q = 0 and never "
        "holds both (k, q) and (−k, −q); a constant coordinate ensures the latter",
        questions=("CMU 2.1(c)",),
        answers=[
            Answer(
                document="004 student",
                part="2.1(c)",
                line=520,
                quote="can be used to approximate $\\cos(\\theta)$ … a hidden layer … can be "
                "thought of as a universal function approximator",
                conclusion="with the right parameters the score approximates cos θ",
                reason="a hidden layer approximates any function",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(c) cosine",
                line=524,
                quote="近似表示 … 余弦相似度 … 通用函数逼近器 … 神经网络可以近似任意的连续函数",
                conclusion="with the right parameters the score approximates cos θ",
                reason="a network with enough parameters approximates any continuous function",
            ),
            Answer(
                document="004 GPT-4",
                part="2.1(c) angle",
                line=543,
                quote="可以近似表示查询 $q_t$ 和键 $k_j$ 之间的角度或余弦相似度",
                conclusion="with the right parameters the score approximates θ",
            ),
        ],
        knob=Knob("a single unit: d_s = 1", {"units": 1}),
        remark="""The theorem that both documents lean on is about layers with a bias, continuous
            functions and compact sets. This score has no bias, and they limit nothing: over all
            directions every fit is off by 1 or more somewhere, and the constant 0 by just 1.""",
    )

    def run(self) -> Evidence:
        inside = f"keys within {self.spread:g}°, lengths {self.shortest:g} to 1"
        sets = {
            inside: (self.spread, self.shortest, 0.0),
            "all directions": (180.0, self.shortest, 0.0),
            "queries near 0": (self.spread, TINY, 0.0),
            "all directions, a constant in the keys": (180.0, self.shortest, 1.0),
        }
        steps = tuple(n for n in (self.units // 16, self.units // 4, self.units) if n)
        fits = {
            name: angle_fits(self.seed, self.shortest, steps, where) for name, where in sets.items()
        }
        best, everywhere, near, _ = (rows[-1] for rows in fits.values())
        off = log_weights_off(self.seed, self.shortest, sets[inside], best.outer)
        cosine, angle = best.error <= CLOSE, best.angle_error <= CLOSE_ANGLE
        # what neither says: only where no pair comes with its opposite, and away from 0
        anywhere = max(everywhere.error, near.error) <= CLOSE
        reached = mark(cosine, complete=anywhere)
        theorem = mark(cosine, complete=everywhere.error <= CLOSE)  # compact, and continuous there
        lines = {name: [one.error for one in rows] for name, rows in fits.items()}
        lines |= {f"θ, {name}": [one.angle_error for one in fits[name]] for name in (inside,)}
        return Evidence(
            kind="construction",
            trials=2 * len(sets) * len(steps),
            measures=[
                Measure(f"worst error of cos θ, d_s = {self.units}", best.error, "≤", CLOSE),
                Measure(
                    f"worst error of θ, in radians, d_s = {self.units}",
                    best.angle_error,
                    "≤",
                    CLOSE_ANGLE,
                ),
                Measure("what four times the units leave of cos θ's", _left(lines[inside]), "<", 1),
                Measure(
                    "what four times the units leave of θ's", _left(lines[f"θ, {inside}"]), "<", 1
                ),
                Measure("|log A − log softmax(cos θ)|", off, "≤", 2 * best.error),
            ],
            outside=[
                Measure("cos θ, all directions", everywhere.error, "≥", 1 - everywhere.slack),
                Measure("cos θ, queries near 0", near.error, "≥", 1 - near.slack),
                Measure(
                    "θ, all directions",
                    everywhere.angle_error,
                    "≥",
                    math.pi - everywhere.angle_slack,
                ),
                Measure("θ, queries near 0", near.angle_error, "≥", math.pi / 2 - near.angle_slack),
            ],
            judgements={
                "004 student 2.1(c)": Judgement(reached, theorem),
                "004 GPT-4 2.1(c) cosine": Judgement(reached, theorem),
                "004 GPT-4 2.1(c) angle": Judgement(
                    mark(
                        angle,
                        complete=max(everywhere.angle_error, near.angle_error) <= CLOSE_ANGLE,
                    )
                ),
            },
            picture=Plot(
                title="How close an additive score comes to cos θ, and to θ",
                x="units d_s",
                y="worst error, of θ in radians",
                log_x=True,
                log_y=True,
                series=[
                    series(name, np.array(steps), np.array(row)) for name, row in lines.items()
                ],
            ),
        )


def _left(errors: Sequence[float]) -> float:
    """The largest ratio of an error to that with fewer units; 1 for a single number of units."""
    return max((b / a for a, b in pairwise(errors)), default=1.0)
