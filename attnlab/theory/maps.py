"""Maps of attention: when a map is its own mirror image, and why several heads are not one.

Axes in the formulas: n tokens, width d of keys and queries, h heads; S are scores and
A = softmax(S), row by row, without a mask. Attention is that of our modules.
"""

import math

import numpy as np
import torch

from attnlab.attention.heads import HeadedAttention, MultiHead
from attnlab.attention.scores import ScaledDot
from attnlab.config import setting, settings
from attnlab.reports.report import Plot, Table
from attnlab.theory.angle import fan
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
from attnlab.theory.draw import Array, largest, normal, orthonormal
from attnlab.theory.scores import attend, projections, random_attention, series


@settings
class SymmetricAttention(Claim):
    alike: bool = setting(False, about="tokens on a circle, so that all rows have the same sum")
    tokens: int = setting(6, low=2, high=32, about="tokens of the text")
    width: int = setting(4, low=2, high=64, about="coordinates of a token")
    cases: int = setting(20, low=1, high=200, about="random cases to try", metadata={"live": 40})

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
            as with tokens at equal steps on a circle, where a turn takes each row to each.

            Without the tie not even S is symmetric, but for special weights. That A is not always
            symmetric takes one example: W_q = 1 and W_k = 2 on the tokens 1 and 0 give
            S = [[2, 0], [0, 0]], so A₁₂ = 1/(e² + 1) = 0.119 and A₂₁ = 1/2. Of drawn weights, the
            table counts how many give a symmetric A.""",
        expected="refuted",
        questions=("CMU 2.2(a)",),
        answers=[
            Answer(
                document="004 student",
                part="2.2(a) always",
                line=583,
                quote="The attention matrix is not always symmetric.",
                conclusion="A is not always symmetric",
            ),
            Answer(
                document="004 student",
                part="2.2(a) condition",
                line=583,
                quote="enforce the condition $\\mathbf{W}_k^{(i)} = \\mathbf{W}_q^{(i)}$ … "
                "$\\mathbf{Q}^{(i)}(\\mathbf{Q}^{(i)})^T$ which is symmetric",
                conclusion="W_q = W_k makes A symmetric",
                reason="it makes the scores QQᵀ symmetric",
            ),
            Answer(
                document="004 GPT-4",
                part="2.2(a) always",
                line=593,
                quote="并不总是对称的 … $Q^{(i)} \\neq K^{(i)}$ 是常见的情况",
                conclusion="A is not always symmetric",
                reason="Q and K usually differ, so neither S nor A is symmetric",
            ),
            Answer(
                document="004 GPT-4",
                part="2.2(a) condition",
                line=603,
                quote="只有当查询矩阵 … 从而 $A^{(i)}$ 也会对称",
                conclusion="A is symmetric when W_q = W_k, and only then",
                reason="it makes the scores QQᵀ/√d symmetric",
            ),
        ],
        knob=Knob("tokens whose rows have equal sums", {"alike": True}),
        remark="""W_q = W_k is not needed either: W_q = −W_k makes S symmetric too, as every
            symmetric W_qᵀW_k does, and for tokens on a circle A is symmetric with it.""",
    )

    def run(self) -> Evidence:
        smallest = (np.array([[1.0], [0.0]]), np.ones((1, 1)))
        circles = [self._circle(count) for count in range(2, self.tokens + 2)]
        random = [self._random(case) for case in range(self.cases)]
        maps = [_attention_map(*pair) for pair in (circles if self.alike else [smallest, *random])]
        flows = [sums[:, None] * one for one, sums in maps]
        balance = max(largest(flow / flow.T - 1) for flow in flows)
        example = _attention_map(*smallest)[0]
        enough = _asymmetry(example) <= EQUAL
        opposite = _attention_map(*circles[-1], factor=-1)[0]  # W_q = −W_k
        needed = _asymmetry(opposite) > EQUAL
        # W_q = 2 W_k of the smallest, and projections that have nothing to do with each other
        free = [
            _attention_map(*smallest, factor=2)[0],
            *(self._free(case) for case in range(self.cases)),
        ]
        symmetric = sum(_asymmetry(one) <= EQUAL for one in free)
        scores = [tokens @ by.T @ by @ tokens.T for tokens, by in (smallest, *random)]
        scored = max(_asymmetry(one) / largest(one) for one in scores) <= EQUAL
        half = mark(scored, complete=enough)  # symmetric scores are one half of what it takes
        points = {
            "drawn tokens": _attention_map(*random[0])[0],
            "on a circle": _attention_map(*circles[-1])[0],
        }
        return Evidence(
            kind="counterexample",
            trials=len(maps),
            measures=[
                Measure("largest |A − Aᵀ|", max(_asymmetry(a) for a, _ in maps), "≤", EQUAL),
                Measure("largest |rᵢAᵢⱼ / rⱼAⱼᵢ − 1|", balance, "≤", EQUAL),
            ],
            judgements={
                "004 student 2.2(a) always": Judgement(mark(symmetric < len(free))),
                "004 student 2.2(a) condition": Judgement(mark(enough), half),
                "004 GPT-4 2.2(a) always": Judgement(
                    # with Q = K it is not symmetric either, so that they differ is not all
                    mark(symmetric < len(free)),
                    mark(symmetric == 0, complete=enough),
                ),
                "004 GPT-4 2.2(a) condition": Judgement(mark(enough and needed), half),
            },
            picture=Plot(
                title="W_q = W_k: each weight and its mirror image; symmetric is on the diagonal",
                x="Aᵢⱼ",
                y="Aⱼᵢ",
                kind="points",
                series=[series(name, one, one.T) for name, one in points.items()],
            ),
            details=[
                Table(
                    title="A for the tokens 1 and 0, W_q = W_k = 1: S = [[1, 0], [0, 0]]",
                    columns=["query", "weight of token 1", "weight of token 0"],
                    rows=[["token 1", *example[0].tolist()], ["token 0", *example[1].tolist()]],
                ),
                Table(
                    title="How many maps are symmetric",
                    columns=["projections", "maps", "symmetric", "largest |A − Aᵀ| of the first"],
                    rows=[
                        ["W_q and W_k of their own", len(free), symmetric, _asymmetry(free[0])],
                        [
                            "W_q = W_k, tokens on a circle" if self.alike else "W_q = W_k",
                            len(maps),
                            sum(_asymmetry(one) <= EQUAL for one, _ in maps),
                            _asymmetry(maps[0][0]),
                        ],
                    ],
                ),
            ],
        )

    def _random(self, case: int) -> tuple[Array, Array]:
        tokens = normal(self.seed, f"tokens {case}", self.tokens, self.width)
        shape = (1 + case % (2 * self.width), self.width)
        return tokens, normal(self.seed, f"projection {case}", *shape) / math.sqrt(self.width)

    def _free(self, case: int) -> Array:
        """A map with a random W_k and an independent random W_q."""
        tokens, for_keys = self._random(case)
        queries = normal(self.seed, f"queries {case}", *for_keys.shape) / math.sqrt(self.width)
        return _attention_map(tokens, for_keys, queries)[0]

    def _circle(self, count: int) -> tuple[Array, Array]:
        turn = orthonormal(self.seed, f"turn {count}", 2, 2)
        size = np.exp(normal(self.seed, f"size {count}", 1))
        return fan(180.0, count + 1, 1.0, 1)[1:], turn * size  # both ends are the same direction


def _attention_map(
    tokens: Array, for_keys: Array, for_queries: Array | None = None, factor: int = 1
) -> tuple[Array, Array]:
    """The map [query, key], and the sums of its rows before the softmax; W_q is `factor` times W_k
    where none is given."""
    queries = factor * for_keys if for_queries is None else for_queries
    size, width = for_keys.shape
    module = random_attention(MultiHead(heads=1, head_width=size), ScaledDot(), width, 0, "head")
    for part, values in zip(projections(module), (queries, for_keys), strict=False):
        part.copy_(torch.from_numpy(values))
    scores = tokens @ queries.T @ for_keys @ tokens.T / math.sqrt(size)
    return attend(module, tokens)[0][0], np.exp(scores).sum(axis=1)


def _asymmetry(one: Array) -> float:
    return largest(one - one.T)


@settings
class HeadsAreNotOneHead(Claim):
    equal: bool = setting(False, about="give all heads the same W_q and W_k")
    heads: int = setting(2, low=2, high=8, about="heads of the layer")
    width: int = setting(6, low=2, high=32, about="width of a head")
    cases: int = setting(5, low=1, high=50, about="random cases to try", metadata={"live": 5})

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
        questions=("CMU 2.2(b)",),
        answers=[
            Answer(
                document="004 student",
                part="2.2(b)",
                line=587,
                quote="No, because … is scaled by $\\sqrt{d_k}$ … thus $S \\neq S'$",
                conclusion="X″ ≠ X′",
                reason="the scores are divided by √d_k, and one head has a larger d_k",
            ),
            Answer(
                document="004 GPT-4",
                part="2.2(b)",
                line=637,
                quote="单头注意力只进行一次注意力计算,而多头注意力在每个头上进行独立的注意力计算",
                conclusion="X″ ≠ X′",
                reason="one head attends once, several attend each on their own",
            ),
        ],
        knob=Knob("all heads with equal maps", {"equal": True}),
        remark="""The student's reason is a part of it: with the scale matched, the outputs differ
            all the same.""",
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
        same_scale = float(apart[:, factors == matched[1]].min())
        return Evidence(
            kind="construction",
            trials=apart.size,
            measures=[
                Measure("smallest ‖X″ − X′‖ at any scale", best, ">", EQUAL),
                Measure("least ‖X″ − X′‖ of any single map", bound, ">", EQUAL),
            ],
            judgements={
                # if the scale was all, heads and one head of the same scale would be equal
                "004 student 2.2(b)": Judgement(
                    mark(plain > EQUAL), mark(plain > EQUAL, complete=same_scale <= EQUAL)
                ),
                "004 GPT-4 2.2(b)": Judgement(mark(plain > EQUAL), mark(bound > EQUAL)),
            },
            picture=Plot(
                title=f"{self.heads} heads against one with their projections side by side",
                x="scores of the one head, times",
                y="‖X″ − X′‖",
                log_x=True,
                series=[series("drawn heads", factors, free), series("equal", factors, same)],
            ),
        )

    def _differences(self, case: int, factors: Array, equal: bool) -> tuple[Array, float]:
        """‖X″ − X′‖ for each factor on the scores of the one head, and the bound below it."""
        count = 2 + case % (self.width - 1)  # no more tokens than the width of a head
        tokens = normal(self.seed, f"tokens {case}", count, self.heads * self.width)
        several, one = (self._module(case, heads, equal) for heads in (self.heads, 1))
        maps, wanted = attend(several, tokens)
        values = tokens @ projections(several)[2].numpy().transpose(0, 2, 1)
        least = float(np.linalg.svd(values[:2], compute_uv=False).min())
        queries, plain, found = projections(one)[0], projections(one)[0].clone(), []
        for factor in factors:
            queries.copy_(plain * factor)
            found.append(float(np.linalg.norm(attend(one, tokens)[1] - wanted)))
        return np.array(found), least * float(np.linalg.norm(maps[0] - maps[1])) / math.sqrt(2)

    def _module(self, case: int, heads: int, equal: bool) -> HeadedAttention:
        """The same weights for any number of heads; the output projection is the identity."""
        width = self.heads * self.width
        module = random_attention(
            MultiHead(heads=heads), ScaledDot(), width, self.seed, f"weights {case}"
        )
        module.merge.weight.copy_(torch.eye(width))
        if equal:
            parts = module.project.weight.view(3, self.heads, self.width, width)
            parts[:2] = parts[:2, :1].clone()  # all of W_q and W_k like their first head
        return module
