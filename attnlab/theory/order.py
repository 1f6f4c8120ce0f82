"""What the order of tokens changes in the outputs of a block, without positions and with them.

Axes in the formulas: N tokens, width d. P is a permutation matrix: row i of PX is row order[i] of
X. X are the token vectors, Z what the block gives, Φ position vectors.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnlab import counter_rng
from attnlab.config import setting, settings
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.block import (
    VISIBLE,
    WIDTH,
    Function,
    Orders,
    course_block,
    differences,
    orders,
    position_ids,
    position_scheme,
    random_block,
    tensor,
    with_positions,
)
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

NEARBY = 5  # inputs around the tokens, to show an open set
READ_OFF = ("the mean", "what a fixed query finds", "the last token's output")


@settings
class OrderInvariantOrEquivariant(Claim):
    causal: bool = setting(False, about="hide later tokens")
    positions: Literal["none", "learned", "sinusoidal", "rotary", "alibi"] = setting(
        "none", about="position encoding of the block"
    )
    length: int = setting(9, low=3, high=64, about="tokens of the text", metadata={"live": 16})
    permutations: int = setting(
        24,
        low=6,
        high=200,
        about="permutations of the tokens; all if there are fewer",
        metadata={"live": 24},
    )

    about = About(
        statement="A block without positions is equivariant to the order of tokens, not invariant: "
        "its outputs move with their tokens. What is invariant is what is read off regardless of "
        "place: their mean, what a fixed query finds, and the output of one token when the others "
        "are permuted.",
        formula="equivariant: Z(PX) = P Z(X)      invariant: f(PX) = f(X)\n"
        "f(X) = (1/N) 𝟏ᵀZ(X):   f(PX) = (1/N) 𝟏ᵀP Z(X) = f(X),   since 𝟏ᵀP = 𝟏ᵀ",
        derivation="""Claim block-equivariant has Z(PX) = P Z(X). If the block were invariant as
            well, P Z(X) = Z(X) would hold for every P, so all rows of Z would be equal. They are
            not, as soon as tokens differ: the first measure says by how much.

            A mean over rows does not depend on their order, since 𝟏ᵀP = 𝟏ᵀ. Neither does a second
            attention with a fixed query r over the outputs: its scores Z r are permuted, its
            weights are permuted alike (claim softmax-permutes), and a sum of weighted rows is the
            same in every order. And a P that leaves a token where it is leaves its output where it
            is, so the output of the last token does not depend on the order of those before it.

            So "order-invariant" is right of a sentence vector, or of the guess that is made at one
            token, and wrong of the outputs as a matrix. Both say that the order is lost: the words
            of two sentences that differ in order only come out with the same vectors.

            A causal mask ends it, for the outputs and for what is read off all of them: a token in
            front is seen by more of the others. (The last token of a single block still sees them
            all.)""",
        expected="holds",
        questions=("A4 2(a)ii",),
        answers=[
            Answer(
                document="000",
                part="2(a)ii (the result)",
                line=82,
                quote="交换顺序不影响最后注意力计算的结果，所以说计算结果是和位置无关的",
                conclusion="another order does not change the result",
                reason="the proof of Z(PX) = P Z(X)",
            ),
            Answer(
                document="000",
                part="2(a)ii (why it matters)",
                line=82,
                quote="这导致在注意力层中句子的位置信息被忽略了",
                conclusion="the places of words are ignored: each comes out with the same vector",
            ),
            Answer(
                document="001",
                part="2(a)ii (the word)",
                line=148,
                quote="顺序不敏感的（Order-invariant）",
                conclusion="the model is order-invariant",
            ),
            Answer(
                document="001",
                part="2(a)ii (what happens)",
                line=148,
                quote="仅仅是相互间排列顺序变了，数值完全一样 … 以打破这种置换等变性",
                conclusion="the outputs change places and keep their values: equivariance",
            ),
            Answer(
                document="003",
                part="2(a)ii",
                line=39,
                quote="Weights don't use permutation in calculation, "
                "so everything after gets shifted by perm & text would be jumbled",
                conclusion="everything that comes after is permuted as the tokens were",
                reason="the weights do not depend on the permutation",
            ),
        ],
        knob=Knob("a causal mask: what is pooled changes with the order", {"causal": True}),
        remark="001 says “order-invariant”, describes equivariance, and calls it by that name two "
        "sentences later.",
    )

    def run(self) -> Evidence:
        x = tensor(self.seed, "tokens", self.length, WIDTH)
        rows = orders(self.seed, self.length, self.permutations)
        rows = rows[(rows != np.arange(self.length)).any(axis=1)]
        scheme = position_scheme(self.positions, self.seed, self.length)
        found = self._changes(with_positions(random_block(self.seed), scheme, self.causal), x, rows)
        # the answers are about the course's block: no mask, no positions
        course = self._changes(course_block(self.seed, causal=False), x, rows)
        masked = self._changes(course_block(self.seed, causal=True), x, rows)
        equivariant = course["P Z(X)"] <= EQUAL
        token = course["the last token's output"] <= EQUAL
        pooled = token and course["the mean"] <= EQUAL
        invariant = course["Z(X), at most"] <= EQUAL
        return Evidence(
            kind="construction",
            trials=len(rows),
            measures=[
                Measure("least ‖Z(PX) − Z(X)‖, of ‖Z‖", found["Z(X)"], "≥", VISIBLE),
                Measure("most ‖Z(PX) − P Z(X)‖, of ‖Z‖", found["P Z(X)"], "≤", EQUAL),
                *(
                    Measure(f"most change of {name}, of its size", found[name], "≤", EQUAL)
                    for name in READ_OFF
                ),
            ],
            judgements={
                # true of what is pooled and of each token's own vector, not of Z
                "000 2(a)ii (the result)": Judgement(
                    mark(pooled, complete=invariant), mark(equivariant)
                ),
                "000 2(a)ii (why it matters)": Judgement(mark(equivariant and token)),
                "001 2(a)ii (the word)": Judgement(mark(pooled, complete=invariant)),
                "001 2(a)ii (what happens)": Judgement(mark(equivariant and not invariant)),
                # with the same weights and a causal mask it fails: there is more to it
                "003 2(a)ii": Judgement(
                    mark(equivariant), mark(equivariant, complete=masked["P Z(X)"] <= EQUAL)
                ),
            },
            picture=self._picture(x, rows),
        )

    def _changes(self, network: Function, x: Tensor, rows: Orders) -> dict[str, float]:
        """Relative changes of Z(PX), and of values read from it, caused by the permutation."""
        permuted, plain = network(x[rows]), network(x[None])[0]
        end = len(x) - 1
        others = np.stack([[*row[row != end], end] for row in rows])
        last = network(x[others])[:, -1]
        query = tensor(self.seed, "fixed query", WIDTH)

        def read_out(z: Tensor) -> Tensor:
            return ((z @ query).softmax(dim=-1)[..., None] * z).sum(dim=-2)

        moved = _parts(permuted, plain[None])
        return {
            "Z(X)": float(moved.min()),
            "Z(X), at most": float(moved.max()),
            "P Z(X)": float(_parts(permuted, plain[rows]).max()),
            "the mean": float(_parts(permuted.mean(dim=1), plain.mean(dim=0)[None]).max()),
            "what a fixed query finds": float(
                _parts(read_out(permuted), read_out(plain)[None]).max()
            ),
            "the last token's output": float(_parts(last, plain[-1:]).max()),
        }

    def _picture(self, x: Tensor, rows: Orders) -> Plot:
        block = random_block(self.seed)
        none = position_scheme("none", self.seed, self.length)
        placing = {
            "nothing": with_positions(block, none),
            "causal mask": with_positions(block, none, causal=True),
        }
        for name in ("learned", "sinusoidal", "rotary", "alibi"):
            scheme = position_scheme(name, self.seed, self.length)
            placing[name] = with_positions(block, scheme)
        found = {name: self._changes(network, x, rows) for name, network in placing.items()}
        return Plot(
            title=f"What changes with the order of {self.length} tokens",
            x="added to a block that sees both ways",
            y="largest change, of its size",
            kind="bars",
            log_y=True,
            series=[
                Series(
                    name=series,
                    x=list(found),
                    # a log axis has no place for 0
                    y=[max(one[name], float(np.finfo(np.float64).eps)) for one in found.values()],
                )
                for series, name in {
                    "Z itself": "Z(X), at most",
                    "Z, moved along": "P Z(X)",
                    "mean of Z": "the mean",
                }.items()
            ],
            note="Below 1e-12 it is rounding: nothing changed.",
        )


def _parts(found: Tensor, want: Tensor) -> Tensor:
    """The distance of each from `want`, relative to the norm of `want`."""
    return (found - want).flatten(1).norm(dim=1) / want[0].norm()


@settings
class PositionsBreakIt(Claim):
    scale: float = setting(1.0, low=0, high=10, about="factor of the position vectors")
    positions: Literal["sinusoidal", "learned"] = setting(
        "sinusoidal", about="position vectors added to the tokens"
    )
    length: int = setting(9, low=2, high=64, about="tokens of the text", metadata={"live": 16})
    blocks: int = setting(
        5,
        low=1,
        high=20,
        about="random blocks, each with its own parameters",
        metadata={"live": 10},
    )

    about = About(
        statement="With position vectors added to the tokens, the order shows: in every block "
        "drawn, Z(PX + Φ) differs from P Z(X + Φ) by more than 2⁻⁸ of its size, which is one "
        "rounding of a bfloat16.",
        formula="Z(P X + Φ) = P Z(X + PᵀΦ) ≠ P Z(X + Φ)\n"
        "‖Z(PX + Φ) − P Z(X + Φ)‖ ≥ 2⁻⁸ ‖Z(X + Φ)‖ for every P ≠ I tried",
        derivation="""Since PX + Φ = P(X + PᵀΦ), equivariance (claim block-equivariant) gives
            Z(PX + Φ) = P Z(X + PᵀΦ). Equality with P Z(X + Φ) would mean that the block does not
            notice when the same words stand at other places. That happens when PᵀΦ = Φ, so when all
            permuted positions have one and the same vector, or when the parameters ignore Φ.

            It can happen for other reasons, so no theorem says "never". With ReLU both sides can
            agree for all X of an open set: where no unit is active, the course's block gives the
            same 𝟏b₂ for every input, positions or not. The second table has such a block. (If all
            parts are analytic, as softmax, layer norm and GELU are, so is the difference of both
            sides as a function of X; it is then 0 everywhere or on a set of measure 0. ReLU is
            not analytic.)

            So it is measured, for blocks with random parameters. The amount is
            ‖Z(PX + Φ) − P Z(X + Φ)‖ as a part of ‖Z(X + Φ)‖, the smallest over all swaps of
            neighbours, where the least moves, and random orders. It has to be more than 2⁻⁸, which
            is one rounding of a bfloat16: then a model sees it in every precision in use. For small
            Φ it grows in proportion to Φ, as the first term of a Taylor series does.""",
        expected="holds",
        questions=("A4 2(b)i",),
        answers=[
            Answer(
                document="000",
                part="2(b)i",
                line=88,
                quote="能够解决 … 因为位置的不同，他们的嵌入表示并不完全相同",
                conclusion="yes, positions make the order visible",
                reason="one word at two places has two embeddings, a difference that can be used",
            ),
            Answer(
                document="001",
                part="2(b)i",
                line=160,
                quote="Yes.",
                conclusion="yes, positions make the order visible",
            ),
            Answer(
                document="003",
                part="2(b)i",
                line=41,
                quote="Yes, since there is delayed step increase in pos. emb., "
                "which correlates with actual text",
                conclusion="yes, positions make the order visible",
                reason="position vectors move on with each step, farther for tokens farther apart",
            ),
        ],
        knob=Knob("position vectors of length 0", {"scale": 0.0}),
    )

    def run(self) -> Evidence:
        rows, codes = self._orders(), self._codes()
        x = tensor(self.seed, "tokens", self.length, WIDTH)
        networks = [self._network(number) for number in range(self.blocks)]
        amounts = np.array([_amounts(one, x, rows, self.scale * codes) for one in networks])
        without = float(np.max([_amounts(one, x, rows, 0 * codes) for one in networks]))
        twins = np.array([_twins(one, x, self.scale * codes) for one in networks])
        broken = float(amounts.min()) >= VISIBLE
        steps = (codes[0] - codes[0, 0]).norm(dim=1).numpy()  # how far each is from the first
        dead = course_block(self.seed, causal=False, dead=True)
        agreed = [
            float(_amounts(dead, x + near, rows, self.scale * codes).max())
            for near in 0.1 * tensor(self.seed, "around", NEARBY, self.length, WIDTH)
        ]

        scales = np.geomspace(1e-4, max(self.scale, 1.0), 13)
        curves = np.array([_amounts(networks[0], x, rows, scale * codes) for scale in scales])
        return Evidence(
            kind="construction",
            trials=amounts.size,
            measures=[
                Measure("least ‖Z(PX+Φ) − P Z(X+Φ)‖, of ‖Z‖", float(amounts.min()), "≥", VISIBLE),
                Measure("most of it without Φ", without, "≤", EQUAL),
            ],
            judgements={
                "000 2(b)i": Judgement(mark(broken), mark(float(twins.min()) >= VISIBLE)),
                "001 2(b)i": Judgement(mark(broken)),
                "003 2(b)i": Judgement(
                    mark(broken), mark(float(steps[1:].min()) > 0, complete=_is_rising(steps))
                ),
            },
            picture=Plot(
                title="How much the order shows",
                x="size of the position vectors",
                y="‖Z(PX + Φ) − P Z(X + Φ)‖ / ‖Z(X + Φ)‖",
                log_x=True,
                log_y=True,
                series=[
                    Series(name="most, of all orders", x=scales.tolist(), y=curves.max(1).tolist()),
                    Series(name="least", x=scales.tolist(), y=curves.min(1).tolist()),
                    Series(
                        name="a rounding of bfloat16",
                        x=[float(scales[0]), float(scales[-1])],
                        y=[VISIBLE, VISIBLE],
                    ),
                ],
                note=f"{self.positions} positions, {self.length} tokens, the first block.",
            ),
            details=[
                Table(
                    title="The order shows, block by block",
                    columns=["block", "least, of ‖Z‖", "mean", "most", "one word at two places"],
                    rows=[
                        [number + 1, *_spread(amounts[number]), float(twins[number])]
                        for number in range(self.blocks)
                    ],
                    note="The last column: how far apart the outputs of one word at the first and "
                    "the last place are, of their size. Without positions they are equal.",
                ),
                Table(
                    title="The course's block where no ReLU unit is active",
                    columns=["X", "most ‖Z(PX+Φ) − P Z(X+Φ)‖, of ‖Z‖"],
                    rows=[
                        [f"tokens, moved a little: {n + 1}", one] for n, one in enumerate(agreed)
                    ],
                    note="0 for every X nearby: an open set on which the order does not show.",
                ),
            ],
        )

    def _orders(self) -> Orders:
        swaps = np.tile(np.arange(self.length), (self.length - 1, 1))
        for first, row in enumerate(swaps):
            row[[first, first + 1]] = first + 1, first
        random = orders(self.seed, self.length, 24)
        moved = (random != np.arange(self.length)).any(axis=1)  # the identity breaks nothing
        return np.concatenate([swaps, random[moved]])

    def _network(self, number: int) -> Function:
        block = random_block(counter_rng.number(self.seed, "block", number))
        return with_positions(block, position_scheme("none", self.seed, self.length))

    def _codes(self) -> Tensor:
        """The position vectors Φ."""
        scheme = position_scheme(self.positions, self.seed, self.length)
        empty = torch.zeros(1, self.length, WIDTH, dtype=torch.float64)
        return scheme.add_to(empty, position_ids(empty))


def _amounts(block: Function, x: Tensor, rows: Orders, codes: Tensor) -> NDArray[np.float64]:
    """‖Z(PX + Φ) − P Z(X + Φ)‖ / ‖Z(X + Φ)‖ for each P."""
    difference, straight = differences(lambda tokens: block(tokens + codes), x, rows)
    return (difference.flatten(1).norm(dim=1) / straight.norm()).numpy()


def _twins(block: Function, x: Tensor, codes: Tensor) -> float:
    """Distance between the outputs of one word at the first and the last position, relative."""
    first, *_, last = block(torch.cat([x[:-1], x[:1]])[None] + codes)[0]
    return float((first - last).norm() / first.norm())


def _spread(amounts: NDArray[np.float64]) -> list[float]:
    return [float(amounts.min()), float(amounts.mean()), float(amounts.max())]


def _is_rising(distances: NDArray[np.float64]) -> bool:
    return bool((np.diff(distances) > 0).all())
