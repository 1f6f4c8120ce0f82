"""The transformer block and the order of tokens: what permutes with them, and what does not.

Axes in the formulas: N tokens, width d. P is a permutation matrix: row i of PX is row order[i] of
X, and P Pᵀ = I. X are the token vectors, A scores, Z what the block gives, Φ position vectors.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnlab import config, counter_rng, registry
from attnlab.attention.heads import AttentionOptions, takes_scores
from attnlab.attention.positions import Positions, Shape
from attnlab.config import setting, settings
from attnlab.kernels import attention
from attnlab.kernels.mask import visible
from attnlab.kernels.reference import masked_softmax
from attnlab.models.transformer import Block, TransformerSettings
from attnlab.reports.report import Plot, Sample, Series, Table
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
from attnlab.theory.draw import largest, normal, random_module

# one rounding of a bfloat16, the coarsest numbers that models compute with: what changes an output
# by less than this part of it, such a model may never notice
VISIBLE = 2.0**-8
EXHAUSTED = 5  # up to this size the formulas are compared for all permutations
HEADS, HEAD_WIDTH = 4, 6  # 6: three pairs for rotary positions, and no power of two
WIDTH = HEADS * HEAD_WIDTH

Function = Callable[[Tensor], Tensor]
Orders = NDArray[np.int64]


def tensor(seed: int, purpose: str, *shape: int) -> Tensor:
    return torch.from_numpy(normal(seed, purpose, *shape))


def units(seed: int, purpose: str, *shape: int) -> Tensor:
    """Random vectors of length 1."""
    x = tensor(seed, purpose, *shape)
    return x / x.norm(dim=-1, keepdim=True)


def spread(seed: int, purpose: str, count: int, last: int) -> NDArray[np.int64]:
    """Random whole numbers from 0 to `last`; the first two are 0 and `last`."""
    numbers = np.floor(counter_rng.uniform(seed, purpose, np.arange(count)) * (last + 1))
    numbers[:2] = 0, last
    return numbers.astype(np.int64)


def orders(seed: int, size: int, count: int) -> Orders:
    """All permutations as rows if there are at most `count`, else `count` random ones."""
    if math.factorial(size) <= count:
        return np.array(list(itertools.permutations(range(size))), dtype=np.int64)
    return np.stack([counter_rng.permutation(size, seed, "orders", size, n) for n in range(count)])


def differences(function: Function, x: Tensor, rows: Orders) -> tuple[Tensor, Tensor]:
    """f(PX) − P f(X) for each permutation, and f(X); f takes a batch of X."""
    out = function(x[np.vstack([np.arange(len(x)), rows])])
    return out[1:] - out[0][rows], out[0]


def farthest(function: Function, x: Tensor, rows: Orders) -> float:
    """The largest |f(PX) − P f(X)| over the permutations."""
    return float(differences(function, x, rows)[0].abs().max())


def worst_of(differences: Iterable[float]) -> float:
    return largest(np.array(list(differences)))  # Python's max would pass over a NaN


@settings
class SoftmaxPermutes(Claim):
    causal: bool = setting(False, about="hide later keys before the softmax")
    size: int = setting(
        33, low=2, high=200, about="rows and columns of the largest matrix", metadata={"live": 80}
    )
    permutations: int = setting(
        50,
        low=24,
        high=500,
        about="permutations tried at each size; all if there are fewer",
        metadata={"live": 50},
    )

    about = About(
        statement="Permuting rows and columns of the scores permutes rows and columns of their "
        "softmax, and ReLU follows every permutation of rows.",
        formula="softmax(P A Pᵀ) = P softmax(A) Pᵀ\nReLU(P A) = P ReLU(A)",
        derivation="""Let row i of PAPᵀ be row o(i) of A with its entries in the order o. Entry
            (i, j) of the left side is exp(A[o(i), o(j)]) over the sum of exp(A[o(i), o(k)]) for all
            k. As k runs over all columns, so does o(k): the sum is the one of row o(i), in another
            order. So the entry is softmax(A)[o(i), o(j)], which is entry (i, j) of the right side.
            ReLU acts on each number alone, wherever it stands.

            The first measure compares formulas, not numbers: of each entry, which place of A is
            above the line and which places are summed below it. Where these agree, they agree for
            every A. The second one runs the softmax of our reference kernel.

            A causal mask does not move with the tokens. It leaves place (i, j) of PAPᵀ to be seen
            for j ≤ i, while on the right side o(j) ≤ o(i) decides, and the sums run over different
            places. (Permuted along with A, as in P(A + M)Pᵀ, a mask M would do no harm.)""",
        expected="holds",
        questions=("A4 2(a)i",),
        answers=[
            Answer(
                document="000",
                part="2(a)i",
                line=46,
                quote="\\(\\text{softmax}(PAP^\\top) = P \\text{softmax}(A) P^\\top \\) 恒成立 … "
                "\\(\\text{ReLU}(PA) = P \\text{ReLU}(A)\\)",
                conclusion="always true, of the softmax and of ReLU",
            ),
            Answer(
                document="001",
                part="2(a)i",
                line=118,
                quote="利用题目给出的 Softmax 性质 … 利用题目给出的 ReLU 性质",
                conclusion="true of the softmax and of ReLU; taken as given",
            ),
            Answer(
                document="003",
                part="2(a)i",
                line=30,
                quote="P Q K^T P^T … = P \\text{softmax} … P^T P V … = P \\text{ReLU}(H W_1",
                conclusion="true of the softmax and of ReLU; used without words",
            ),
        ],
        knob=Knob("a causal mask before the softmax", {"causal": True}),
    )

    def run(self) -> Evidence:
        formulas, cases = 0, 0
        for size in range(1, EXHAUSTED + 1):
            for order in itertools.permutations(range(size)):
                formulas += different_formulas(order, self.causal)
                cases += 1
        sizes = sorted({2, 3, 4, 7, self.size})
        plain = [self._softmax(size, causal=False) for size in sizes]
        masked = [self._softmax(size, causal=True) for size in sizes]
        difference = worst_of(masked if self.causal else plain)
        relu = worst_of(self._relu(size) for size in sizes)
        cases += sum(len(orders(self.seed, size, self.permutations)) for size in sizes)
        agrees = formulas == 0 and difference <= EQUAL and relu == 0
        return Evidence(
            kind="exact",
            trials=cases,
            measures=[
                Measure(f"entries with another formula, N ≤ {EXHAUSTED}", formulas, "=", 0),
                Measure("largest |softmax(PAPᵀ) − P softmax(A) Pᵀ|", difference, "≤", EQUAL),
                Measure("largest |ReLU(PA) − P ReLU(A)|", relu, "=", 0),
            ],
            judgements={
                f"{document} 2(a)i": Judgement(mark(agrees)) for document in ("000", "001", "003")
            },
            picture=Plot(
                title="Softmax of permuted scores, against permuted softmax",
                x="N",
                y="largest difference",
                log_x=True,
                log_y=True,
                series=[
                    Series(name="all keys seen", x=sizes, y=[_on_log_axis(one) for one in plain]),
                    Series(name="causal mask", x=sizes, y=[_on_log_axis(one) for one in masked]),
                ],
                note="What is below the rounding of a float64 is drawn there.",
            ),
            details=[self._example()],
        )

    def _softmax(self, size: int, causal: bool) -> float:
        rows = orders(self.seed, size, self.permutations)
        scores = 4 * tensor(self.seed, f"scores {size}", size, size)  # from even to one-sided
        left = softmax_of(torch.stack([scores[row][:, row] for row in rows]), causal)
        right = softmax_of(scores, causal)
        return float((left - torch.stack([right[row][:, row] for row in rows])).abs().max())

    def _relu(self, size: int) -> float:
        rows = orders(self.seed, size, self.permutations)
        return farthest(torch.relu, tensor(self.seed, f"scores {size}", size, size), rows)

    def _example(self) -> Sample:
        scores = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0], [1.0, 1.0, 0.0]]).double()
        order = [2, 0, 1]
        parts = {
            "A": scores,
            "softmax(PAPᵀ)": softmax_of(scores[order][:, order], self.causal),
            "P softmax(A) Pᵀ": softmax_of(scores, self.causal)[order][:, order],
        }
        return Sample(
            title="Order 3, 1, 2" + (" with a causal mask" if self.causal else ""),
            text="\n\n".join(f"{name}\n{matrix_text(rows)}" for name, rows in parts.items()),
        )


def different_formulas(order: Sequence[int], causal: bool) -> int:
    """How many entries of softmax(PAPᵀ) and P softmax(A) Pᵀ are not the same formula of A."""
    left, right = _formulas(order, causal), _formulas(range(len(order)), causal)
    at = range(len(order))
    return sum(left[i][j] != right[order[i]][order[j]] for i in at for j in at)


def _formulas(order: Sequence[int], causal: bool) -> list[list[object]]:
    """For each entry: its numerator's place in A and the places in its sum; None if masked."""
    table: list[list[object]] = []
    for i, row in enumerate(order):
        seen = [(row, column) for j, column in enumerate(order) if j <= i or not causal]
        summed = frozenset(seen)
        table.append([((row, c), summed) if (row, c) in summed else None for c in order])
    return table


def softmax_of(scores: Tensor, causal: bool) -> Tensor:
    at = torch.arange(scores.shape[-1])
    return masked_softmax(scores, visible(at, at, causal, None))


def matrix_text(rows: Tensor) -> str:
    return "\n".join("  ".join(f"{value:.4f}" for value in row) for row in rows.tolist())


def _on_log_axis(difference: float) -> float:
    """At least the rounding of a float64: a log axis cannot show 0."""
    return max(difference, float(np.finfo(np.float64).eps))


@settings
class BlockEquivariant(Claim):
    causal: bool = setting(False, about="hide later tokens")
    positions: Literal["none", "learned", "sinusoidal", "rotary", "alibi"] = setting(
        "none", about="position encoding of the block"
    )
    length: int = setting(
        9,
        low=2,
        high=64,
        about="tokens of the longer text; 4 tokens are tried in all orders",
        metadata={"live": 12},
    )
    permutations: int = setting(
        24,
        low=24,
        high=200,
        about="permutations tried at each length; all if there are fewer",
        metadata={"live": 24},
    )

    about = About(
        statement="A transformer block that sees both ways and has no positions gives permuted "
        "outputs for permuted tokens, so it cannot know their order.",
        formula="Z(P X) = P Z(X)",
        derivation="""Queries, keys and values are XW, row by row, so PX gives PQ, PK and PV. The
            scores become P QKᵀ Pᵀ, their softmax P softmax(QKᵀ/√d) Pᵀ (claim softmax-permutes), and
            the attended vectors P softmax(QKᵀ/√d) PᵀP V = P H, since PᵀP = I. The other scores
            compare one query with one key, too, so their matrix permutes alike.

            Everything else takes one row at a time: norms, linear maps, activations, and the sum
            with the residual stream. Biases are the same in every row, which is P𝟏 = 𝟏. So the
            block as a whole commutes with P, and a stack of blocks does as well.

            Run with every kind of heads and score that the laboratory has, its norms and
            feed-forward parts in turn, for all 24 orders of 4 tokens and random orders of more; for
            the answers with the block of the course: one head, ReLU, no norms, no residual.""",
        expected="holds",
        questions=("A4 2(a)i",),
        answers=[
            Answer(
                document="000",
                part="2(a)i",
                line=76,
                quote="即：\\[ Z_1 = X_p Z \\]",
                conclusion="Z(PX) = P Z(X), where it writes X_p for P",
                reason="P passes through the softmax and ReLU, PᵀP = I and Pᵀ𝟏 = 𝟏",
            ),
            Answer(
                document="000",
                part="2(a)i (slips)",
                line=52,
                quote="\\[ X_p X = I \\] … 因为 \\(\\mathbf{1} = I\\)",
                conclusion="PX = I, and the 𝟏 that gives each row its biases is the identity",
            ),
            Answer(
                document="001",
                part="2(a)i",
                line=122,
                quote="$\\mathbf{P}^\\top\\mathbf{P} = \\mathbf{I}$ … "
                "$\\mathbf{1} = \\mathbf{P}\\mathbf{1}$ … &= \\mathbf{P}\\mathbf{Z}",
                conclusion="Z(PX) = P Z(X)",
                reason="P passes through the softmax and ReLU, PᵀP = I and P𝟏 = 𝟏",
            ),
            Answer(
                document="003",
                part="2(a)i",
                line=31,
                quote="P^T P V … = P \\text{ReLU}(H W_1 + 1 \\cdot b_1) W_2 … $= P Z$",
                conclusion="Z(PX) = P Z(X)",
                reason="P passes through the softmax and ReLU, and PᵀP = I",
            ),
            Answer(
                document="003",
                part="2(a)i (slip)",
                line=29,
                quote="= \\left(\\frac{P Q (P K)^T}{\\sqrt{d}}\\right) P V",
                conclusion="the scores themselves are multiplied by the values, without a softmax",
            ),
        ],
        knob=Knob("a causal mask", {"causal": True}),
        remark="A causal mask is enough to break it: the i-th token is seen by N − i + 1 of the "
        "N, whichever word it is. Without positions, order is invisible to encoders, not to "
        "decoders. Slips on the way to a right conclusion are marked apart. X_p, taken as 000 "
        "defines it (the permuted inputs), is no permutation: X_p Z is not even a product, unless "
        "N = d.",
    )

    def run(self) -> Evidence:
        kinds = {
            kind: [
                option.name
                for option in registry.options(kind)
                if kind == "score" or takes_scores(option.name)
            ]
            for kind in ("attention", "score")
        }
        kinds |= {"norm": ["layer", "rms", "unit"]}
        kinds |= {"feedforward": ["gelu", "swiglu", "squared-relu"]}
        compared = itertools.product(kinds["attention"], kinds["score"])
        # what acts on each row alone takes turns: all of it occurs, and the run stays short
        rowwise = itertools.cycle(itertools.product(kinds["norm"], kinds["feedforward"]))
        scheme = position_scheme(self.positions, self.seed, self.length)
        cases, found = [self._case(4), self._case(self.length)], {}
        for choices in (one + other for one, other in zip(compared, rowwise, strict=False)):
            words = dict(zip(kinds, choices, strict=True))
            network = with_positions(random_block(self.seed, **words), scheme, self.causal)
            found[choices] = worst_of(farthest(network, *case) for case in cases)
        course = course_block(self.seed, self.causal)
        answered = farthest(lambda x: course(scheme.add_to(x, position_ids(x))), *cases[1])
        return Evidence(
            kind="construction",
            trials=len(found) * sum(len(rows) for _, rows in cases),
            measures=[Measure("largest |Z(PX) − P Z(X)|", worst_of(found.values()), "≤", EQUAL)],
            judgements=self._judgements(course, *cases[1], answered <= EQUAL),
            picture=self._picture(*cases[1]),
            details=[
                Table(
                    title="Blocks with each part, and the worst of them",
                    columns=["part", "kind", "largest |Z(PX) − P Z(X)|"],
                    rows=[
                        *(
                            (part, kind, worst_of(found[c] for c in found if kind in c))
                            for part in kinds
                            for kind in kinds[part]
                        ),
                        ("the course's block", "one head, ReLU", answered),
                    ],
                )
            ],
        )

    def _judgements(
        self, course: Function, x: Tensor, rows: Orders, equal: bool
    ) -> dict[str, Judgement]:
        """Computes each step of the documents' proofs; P is the last of the orders."""
        swap = torch.eye(len(x), dtype=torch.float64)[rows[-1]]
        ones, one = torch.ones(len(x), 1).double(), torch.eye(len(x), dtype=torch.float64)
        scores = x @ x.T
        moved = swap @ softmax_of(scores, self.causal) @ swap.T
        passes = _equal(softmax_of(swap @ scores @ swap.T, self.causal), moved)
        passes &= bool((torch.relu(swap @ x) == swap @ torch.relu(x)).all())
        orthogonal = bool((swap.T @ swap == one).all())
        even = bool((swap @ ones == ones).all())
        # with biases that differ from row to row it fails: P𝟏 = 𝟏 cannot be left out
        uneven = tensor(self.seed, "uneven", len(x), 1)
        spared = farthest(lambda x: course(x) + uneven, x, rows) <= EQUAL
        slips = _equal(swap @ x, one) and _equal(ones, one)
        skipped = _equal(scores @ x, softmax_of(scores, self.causal) @ x)
        return {
            "000 2(a)i": Judgement(mark(equal), mark(passes and orthogonal and even)),
            "000 2(a)i (slips)": Judgement(mark(slips)),
            "001 2(a)i": Judgement(mark(equal), mark(passes and orthogonal and even)),
            "003 2(a)i": Judgement(mark(equal), mark(passes and orthogonal, complete=spared)),
            "003 2(a)i (slip)": Judgement(mark(skipped)),
        }

    def _case(self, size: int) -> tuple[Tensor, Orders]:
        tokens = tensor(self.seed, f"tokens {size}", size, WIDTH)
        return tokens, orders(self.seed, size, self.permutations)

    def _picture(self, x: Tensor, rows: Orders) -> Plot:
        schemes = ["none", "learned", "sinusoidal", "rotary", "alibi"]
        block = random_block(self.seed)
        placing = [position_scheme(name, self.seed, self.length) for name in schemes]
        broken = [farthest(with_positions(block, one), x, rows) for one in placing]
        broken.insert(1, farthest(with_positions(block, placing[0], causal=True), x, rows))
        return Plot(
            title="What breaks Z(PX) = P Z(X)",
            x="added to a block that sees both ways",
            y="largest difference",
            kind="bars",
            log_y=True,
            series=[
                Series(
                    name="multi-head attention, gelu",
                    x=["nothing", "causal mask", *schemes[1:]],
                    y=[_on_log_axis(one) for one in broken],
                )
            ],
            note="Of outputs of size 1 or so. Below 1e-12 it is rounding.",
        )


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= EQUAL


def random_block(seed: int, **words: str) -> Block:
    settings = config.override(
        TransformerSettings(width=WIDTH, bias=True),
        [f"{key}={word}" for key, word in words.items()],
    )
    return random_module(lambda: Block(settings, 0), seed, f"block {sorted(words.items())}")


def with_positions(block: Block, scheme: Positions, causal: bool = False) -> Function:
    """Our block with positions added where the transformer adds them."""

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        at = position_ids(x)
        options = AttentionOptions(
            causal=causal,
            rotary=scheme.rotation(at, x.dtype),
            bias=scheme.bias(at, x.shape[1]),
        )
        return block(scheme.add_to(x, at), options)

    return run


def position_scheme(name: str, seed: int, context: int) -> Positions:
    shape = Shape(width=WIDTH, heads=HEADS, head_width=HEAD_WIDTH, context=max(context, 4))
    return random_module(lambda: registry.load("positions", name)().build(shape), seed, "positions")


def position_ids(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1])[None]


def course_block(seed: int, causal: bool, dead: bool = False) -> Function:
    """ReLU(H W₁ + 𝟏b₁) W₂ + 𝟏b₂ with H = softmax(QKᵀ/√d) V: one head, no norm, no residual.

    With `dead` units, b₁ is so far below 0 that no unit is active for inputs of the usual size.
    """
    projection = tensor(seed, "course q, k, v", 3, WIDTH, WIDTH) / math.sqrt(WIDTH)
    up, down = tensor(seed, "course layers", 2, WIDTH, WIDTH) / math.sqrt(WIDTH)
    first, second = tensor(seed, "course biases", 2, WIDTH)
    first = first - 100 if dead else first

    def run(x: Tensor) -> Tensor:
        q, k, v = (x[:, None] @ part for part in projection)
        attended = attention(q, k, v, causal=causal)[:, 0]
        return torch.relu(attended @ up + first) @ down + second

    return run
