"""Positions as angles: what rotating queries and keys does.

Axes in the formulas: positions t, width d; pair n of p turns by tθₙ with θₙ = base^(−n/p). A pair
of coordinates (a, b) is the complex number z = a + ib.
"""

from itertools import product
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnlab import registry
from attnlab.attention.heads import takes_scores
from attnlab.attention.mistakes import GrowingRotary, HeadRotary
from attnlab.attention.positions import Rotary, Shape
from attnlab.config import setting, settings
from attnlab.kernels import Rotation, rotate
from attnlab.kernels.rotary import Layout
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory import block
from attnlab.theory.block import spread, units, worst_of
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
from attnlab.theory.draw import Array, largest

# An angle tθ is rounded, and θ before it: at most t·2⁻⁵¹ between two ways to compute it. Vectors of
# length 1 then differ by no more, which is less than EQUAL up to this position.
LONGEST = 2000
LAYOUTS: list[Layout] = ["half-split", "interleaved"]
# widths of heads with the part that turns: one pair, several, some left over, a common one
WIDTHS = {2: 1.0, 4: 1.0, 6: 1.0, 11: 0.7, 64: 1.0}
SHAPES = [(layout, *width) for layout in LAYOUTS for width in WIDTHS.items()]

Whole = NDArray[np.int64]
Times = tuple[Whole, Whole]


def frequencies(pairs: int, base: float = 10_000.0) -> Array:
    return base ** (-np.arange(pairs) / pairs)


def coordinates(layout: Layout, pairs: int) -> tuple[Whole, Whole]:
    """The indices of the real and of the imaginary parts."""
    n = np.arange(pairs)
    return (n, n + pairs) if layout == "half-split" else (2 * n, 2 * n + 1)


def block_form(layout: Layout, width: int, angles: Array) -> Array:
    """The matrix with a block (cos, −sin; sin, cos) for each pair, and 1 for what does not turn.

    The angles [..., pair] give matrices [..., width, width].
    """
    matrix = np.broadcast_to(np.eye(width), (*angles.shape[:-1], width, width)).copy()
    first, second = coordinates(layout, angles.shape[-1])
    matrix[..., first, first] = matrix[..., second, second] = np.cos(angles)
    matrix[..., second, first] = np.sin(angles)
    matrix[..., first, second] = -matrix[..., second, first]
    return matrix


def rotate_at(x: Tensor, times: Whole, settings: Rotary, precision: str = "float64") -> Tensor:
    """x [1, 3, t, d] rotated by our code; `precision` rounds the angles."""
    width, at = x.shape[-1], torch.from_numpy(times)[None]
    if precision == "float64":
        scheme = settings.build(Shape(width=3 * width, heads=3, head_width=width, context=1))
        by = scheme.rotation(at, x.dtype)
        assert by is not None
        return rotate(x, by)
    dtype = getattr(torch, precision)
    (base,) = settings.bases
    assert base is not None
    rates = frequencies(int(width * settings.fraction) // 2, base)
    angles = (at[:, None, :, None].to(dtype) * torch.from_numpy(rates).to(dtype)).double()
    return rotate(x, Rotation(angles.cos(), angles.sin(), settings.layout))


@settings
class RopeIsRotation(Claim):
    pairing: Literal["own", "other"] = setting("own", about="which coordinates are read as pairs")
    longest: int = setting(LONGEST, low=1, high=LONGEST, about="the last position")
    cases: int = setting(40, low=2, high=500, about="positions for each width and layout")

    about = About(
        statement="Rotary positions multiply complex numbers, one for each pair of coordinates, by "
        "e^(itθ), so lengths stay as they are.",
        formula="(cos tθ  −sin tθ; sin tθ  cos tθ) (a; b)   ↔   e^(itθ) (a + ib)\n"
        "‖RoPE(x, t)‖ = ‖x‖",
        derivation="""Multiply out: (cos tθ + i sin tθ)(a + ib) = (a cos tθ − b sin tθ) +
            i (a sin tθ + b cos tθ). Real and imaginary part are the two rows of the 2×2 block times
            (a; b). A d×d matrix with d/2 such blocks does this to every pair on its own, so it is
            an entrywise product in ℂ^(d/2), and no matrix is needed. Since |e^(itθ)| = 1, each pair
            keeps its length, and so does the vector.

            Which coordinates are pairs is an agreement. The course takes neighbours (interleaved);
            n and n + d/2 (half-split) do as well. Our code for both is compared with block matrix
            and complex product, at several widths, also where only some of them turn.""",
        expected="holds",
        questions=("A4 3(g)i",),
        answers=[
            Answer(
                document="000",
                part="3(g)i",
                line=105,
                quote="\\( D \\times D \\) 的矩阵运用一个 \\( D/2 \\times D \\) 的变换矩阵",
                conclusion="a D/2 × D matrix takes the D × D block form to the complex product "
                "(that it has to be complex is left out)",
            ),
            Answer(
                document="003",
                part="3(g)i",
                line=61,
                quote="\\cos \\theta_1 x_t^{(1)} - \\sin \\theta_1 x_t^{(2)} + i "
                "(\\sin \\theta_1 x_t^{(1)} + \\cos \\theta_1 x_t^{(2)})",
                conclusion="multiplied out, pair by pair, the product is the block form; for the "
                "angle tθ it writes θ",
            ),
        ],
        knob=Knob("pairs read in the other layout", {"pairing": "other"}),
        remark="Lengths cannot tell one layout from the other: the wrong pairing keeps them, too. "
        "A permutation of the rows of W_q and W_k takes one to the other, so a model trained from "
        "scratch works with either. Weights that were trained with one and run with the other "
        "compute something else, and nothing reports an error.",
    )

    def run(self) -> Evidence:
        found = np.array([self._differences(*shape) for shape in SHAPES])
        multiplied, matrix, length = found.max(axis=0).tolist()
        return Evidence(
            kind="construction",
            trials=len(SHAPES) * self.cases,
            measures=[
                Measure("largest |RoPE(x, t) − e^(itθ) x|", multiplied, "≤", EQUAL),
                Measure("largest |RoPE(x, t) − block matrix · x|", matrix, "≤", EQUAL),
                Measure("largest change of a length", length, "≤", EQUAL),
            ],
            judgements=self._judgements(),
            picture=self._picture(),
        )

    def _differences(self, layout: Layout, width: int, fraction: float) -> list[float]:
        times = spread(self.seed, "times", self.cases, self.longest)
        x = units(self.seed, f"vectors {width}", 1, 3, self.cases, width)
        after = rotate_at(x, times, Rotary(layout=layout, fraction=fraction)).numpy()
        angles = times[:, None] * frequencies(int(width * fraction) // 2)
        read = self._read(layout)
        first, second = coordinates(read, angles.shape[1])
        z, z_after = (v[..., first] + 1j * v[..., second] for v in (x.numpy(), after))
        blocks = block_form(read, width, angles)
        return [
            float(np.abs(z_after - z * np.exp(1j * angles)).max()),
            largest(after - np.einsum("tij,bhtj->bhti", blocks, x.numpy())),
            largest(np.linalg.norm(after, axis=-1) - 1),
        ]

    def _read(self, layout: Layout) -> Layout:
        return layout if self.pairing == "own" else LAYOUTS[1 - LAYOUTS.index(layout)]

    def _judgements(self) -> dict[str, Judgement]:
        """Judges the documents' formulas; 000's matrix turns pairs into complex numbers."""
        angles, x = self.longest * frequencies(3), units(self.seed, "written out", 6).numpy()
        unit_vectors = torch.eye(6).double().expand(1, 3, 6, 6)
        times = np.full(6, self.longest)
        rotated = rotate_at(unit_vectors, times, Rotary(layout="interleaved"))[0, 0].numpy()
        to_complex = np.kron(np.eye(3), np.array([[1], [1j]]))

        def takes_over(matrix: NDArray[np.inexact]) -> bool:
            off = np.abs(rotated @ matrix - matrix * np.exp(1j * angles)).max()
            return bool(off <= EQUAL)

        def written(by: Array) -> bool:
            cos, sin, one, two = np.cos(by), np.sin(by), x[0::2], x[1::2]
            pairs = np.stack([cos * one - sin * two, sin * one + cos * two], axis=1)
            return largest(x @ rotated - pairs.ravel()) <= EQUAL

        return {
            # by a complex matrix; a real one gives real numbers, which the product is not
            "000 3(g)i": Judgement(
                mark(takes_over(to_complex), complete=takes_over(to_complex.real))
            ),
            # it holds when θ is read as tθ, and not as it is written
            "003 3(g)i": Judgement(mark(written(angles), complete=written(frequencies(3)))),
        }

    def _picture(self) -> Plot:
        first, second = coordinates(self._read("half-split"), 2)
        start = torch.zeros(4, dtype=torch.float64)
        start[first] = torch.tensor([1.0, 0.5]).double()  # circles of different sizes
        path = rotate_at(start.expand(1, 3, 24, 4), np.arange(24), Rotary(base=16.0))[0, 0].numpy()
        return Plot(
            title="Two pairs of coordinates, as they are read, at positions 0 to 23",
            x="first coordinate",
            y="second coordinate",
            kind="points",
            series=[
                Series(name=name, x=path[:, first[n]].tolist(), y=path[:, second[n]].tolist())
                for n, name in enumerate(("θ = 1", "θ = 1/4"))
            ],
            note="Pairs go round in circles; coordinates of different pairs do not.",
        )


@settings
class RopeRelative(Claim):
    precision: Literal["float64", "float32", "bfloat16"] = setting(
        "float64", about="dtype of the angles"
    )
    longest: int = setting(LONGEST, low=1, high=LONGEST, about="the last position")
    cases: int = setting(
        200, low=2, high=2000, about="pairs of positions for each width", metadata={"live": 100}
    )

    about = About(
        statement="The product of a rotated query and a rotated key depends on how far apart they "
        "are, and not on where.",
        formula="⟨RoPE(z₁, t₁), RoPE(z₂, t₂)⟩ = ⟨RoPE(z₁, t₁ − t₂), RoPE(z₂, 0)⟩",
        derivation="""For one pair of coordinates the inner product in ℝ² is Re(z₁ z̄₂). Rotated by
            t₁θ and t₂θ it is Re(z₁ e^(it₁θ) · z̄₂ e^(−it₂θ)) = Re(z₁ z̄₂ e^(i(t₁−t₂)θ)): conjugation
            turned the second angle round, so only the difference is left. The right side has the
            angles (t₁ − t₂)θ and 0, which is the same number. Sums over pairs keep equalities.

            On a machine tθ is rounded, by up to tθ·2⁻⁵³ in float64. The three angles together are
            off by t·2⁻⁵² at most, and so is the product of vectors of length 1: below 10⁻¹² at
            position 2000. A bfloat16 has 8 bits: from 256 on it skips every other whole number, so
            angles are off by up to a radian, and the product depends on where the two stand.""",
        expected="holds",
        questions=("A4 3(g)ii",),
        answers=[
            Answer(
                document="000",
                part="3(g)ii",
                line=148,
                quote="\\text{Re}( z_1 z_2^* e^{i(t_1 - t_2)\\theta} ) … 点积仅取决于相对位置 "
                "\\( t_1 - t_2 \\)",
                conclusion="the product depends on t₁ − t₂ only",
                reason="both sides are Re(z₁ z̄₂ e^(i(t₁−t₂)θ))",
            ),
            Answer(
                document="003",
                part="3(g)ii",
                line=72,
                quote="= \\text{Re} \\left( z_1 \\bar{z}_2 e^{i\\theta(t_1 - t_2)} \\right)",
                conclusion="the two sides are equal",
                reason="both are Re(z₁ z̄₂ e^(i(t₁−t₂)θ))",
            ),
        ],
        knob=Knob("angles kept in bfloat16", {"precision": "bfloat16"}),
        remark="The proof works for any θ. So frequencies that grow, a mistake, have the property "
        "too, and so has a rotation by head index: a test of it finds neither.",
    )

    def run(self) -> Evidence:
        first, second = (spread(self.seed, name, self.cases, self.longest) for name in "ab")
        times = first, second[::-1].copy()  # so that 0 is not paired with 0
        kinds = [(Rotary(layout=layout, fraction=part), width) for layout, width, part in SHAPES]
        worst = worst_of(self._error(*kind, times, self.precision) for kind in kinds)
        # the documents compute with real numbers, so with as many digits as there are
        sides, formula = self._sides(*kinds[-1], times, "float64"), self._formula(*times)
        answered = Judgement(
            mark(largest(sides[0] - sides[1]) <= EQUAL),
            mark(max(largest(side - formula) for side in sides) <= EQUAL),
        )
        return Evidence(
            kind="construction",
            trials=len(kinds) * self.cases,
            measures=[Measure("largest difference of the two sides", worst, "≤", EQUAL)],
            judgements={"000 3(g)ii": answered, "003 3(g)ii": answered},
            picture=self._picture(),
            details=[self._mistakes(times)],
        )

    def _sides(self, by: Rotary, width: int, times: Times, precision: str) -> tuple[Array, Array]:
        (first, second), (z1, z2) = times, self._vectors(len(times[0]), width)
        q, k, apart, still = (
            rotate_at(z, at, by, precision)
            for z, at in ((z1, first), (z2, second), (z1, first - second), (z2, 0 * second))
        )
        return (q * k).sum(-1).numpy(), (apart * still).sum(-1).numpy()

    def _error(self, by: Rotary, width: int, times: Times, precision: str) -> float:
        left, right = self._sides(by, width, times, precision)
        return largest(left - right)

    def _vectors(self, count: int, width: int) -> Tensor:
        return units(self.seed, f"z₁, z₂ {width}", 2, 1, 3, count, width)

    def _formula(self, first: Whole, second: Whole) -> Array:
        """The documents' Re(z₁ z̄₂ e^(i(t₁−t₂)θ)), for the last of SHAPES: neighbours are pairs."""
        vectors = self._vectors(len(first), 64).numpy()
        z1, z2 = vectors[..., 0::2] + 1j * vectors[..., 1::2]
        turn = np.exp(1j * (first - second)[:, None] * frequencies(32))
        return np.asarray((z1 * z2.conj() * turn).real.sum(-1))

    def _mistakes(self, times: Times) -> Table:
        kinds = [
            ("falling frequencies: right", Rotary(), 1.0),
            ("growing frequencies: a mistake", GrowingRotary(), 1 / float(frequencies(32)[-1])),
            ("by head index: a mistake", HeadRotary(), 1.0),
        ]
        return Table(
            title="The property in float64, with the right rotation and two wrong ones",
            columns=["rotation", "largest difference", "rounding explains"],
            rows=[
                (name, self._error(by, 64, times, "float64"), self.longest * fastest * 2.0**-52)
                for name, by, fastest in kinds
            ],
        )

    def _picture(self) -> Plot:
        far = [2**power for power in range(3, 18)]
        times = [(np.full(40, t), np.full(40, t - 5)) for t in far]
        errors = {
            name: [self._error(Rotary(), 64, t, name) or None for t in times]  # no log of 0
            for name in ("bfloat16", "float32", "float64")
        }
        return Plot(
            title="What is left of the equality far out",
            x="position t₁ = t₂ + 5",
            y="largest difference of the two sides",
            log_x=True,
            log_y=True,
            series=[Series(name=f"angles in {name}", x=far, y=y) for name, y in errors.items()],
            note="Vectors of length 1, head width 64.",
        )


@settings
class RopeNeedsTime(Claim):
    rotate_by: Literal["head", "time"] = setting("head", about="what sets the angle of a rotation")
    length: int = setting(9, low=2, high=64, about="tokens of the text", metadata={"live": 16})

    about = About(
        statement="Rotating queries and keys by the index of their head, and not by time, cancels "
        "in their product: a block without a mask has no position information at all.",
        formula="⟨R_h q, R_h k⟩ = qᵀ R_hᵀ R_h k = ⟨q, k⟩",
        derivation="""R_h is a rotation (rope-is-rotation), so R_hᵀR_h = I: the product of a query
            and a key that both turned by R_h is what it was. This happens when code takes the wrong
            axis of [batch, heads, time, width] for time: shapes fit, and nothing reports an error.

            With shared key heads, queries meet keys that turned by another head's angle, and scores
            other than the dot product see the rotation, too. Then scores change, but alike for all
            positions, and the block still commutes with every permutation (block-equivariant).
            That is measured for all heads and scores, the cancelling for the dot product.""",
        expected="holds",
        questions=("CMU programming",),
        knob=Knob("rotate by time", {"rotate_by": "time"}),
    )

    def run(self) -> Evidence:
        name = "rotary-by-head" if self.rotate_by == "head" else "rotary"
        by = registry.load("positions", name)
        changed = [self._change(by(layout=o, fraction=part), width) for o, width, part in SHAPES]
        x = block.tensor(self.seed, "x", self.length, block.WIDTH)
        scheme = block.position_scheme(name, self.seed, self.length)
        rows, moved = block.orders(self.seed, self.length, 24), {}
        every = ([one.name for one in registry.options(kind)] for kind in ("attention", "score"))
        for heads, score in product(*every):
            if not takes_scores(heads):
                continue
            made = block.random_block(self.seed, attention=heads, score=score)
            network = block.with_positions(made, scheme)
            moved[heads, score] = block.farthest(network, x, rows)
        return Evidence(
            kind="construction",
            trials=len(changed) * self.length**2 + len(moved) * len(rows),
            measures=[
                Measure("largest |⟨Rq, Rk⟩ − ⟨q, k⟩|", worst_of(changed), "≤", EQUAL),
                Measure("largest |Z(PX) − P Z(X)|", worst_of(moved.values()), "≤", EQUAL),
            ],
            picture=self._picture(),
            details=[
                Table(
                    title=f"Blocks that rotate by {self.rotate_by}: |Z(PX) − P Z(X)|",
                    columns=["heads", "score", "largest difference"],
                    rows=[(*case, value) for case, value in moved.items()],
                )
            ],
        )

    def _change(self, by: Rotary, width: int) -> float:
        q, k = units(self.seed, f"q, k {width}", 2, 1, 3, self.length, width)
        times = np.arange(self.length)
        scores = rotate_at(q, times, by) @ rotate_at(k, times, by).mT
        return float((scores - q @ k.mT).abs().max())

    def _picture(self) -> Plot:
        x, times = units(self.seed, "one vector", 1, 3, 1, 64).expand(1, 3, 64, 64), np.arange(64)
        kinds = {"by time": Rotary(), "by head": HeadRotary()}
        turns = {name: rotate_at(x, times, by)[0, 2] for name, by in kinds.items()}
        return Plot(
            title="The score of one vector with itself, so far away",
            x="distance in tokens",
            y="⟨Rq, Rk⟩ with q = k",
            series=[
                Series(name=name, x=times.tolist(), y=(keys @ keys[0]).tolist())
                for name, keys in turns.items()
            ],
            note="Head 3 of 3. Without any rotation the score is 1 everywhere.",
        )
