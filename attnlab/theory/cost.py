"""What a sliding window costs: computed as the formula is written, and in tiles of queries.

Axes in the formulas: N positions, width d of a head; w is the width of the window as the course
counts it: a query attends to w/2 + 1 keys, including its own.

Costs are counted on operations that really run, never timed. A multiply-add is one multiplication
and one addition.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from torch import Tensor

from attnlab.config import refusal, setting, settings
from attnlab.kernels import Request, reference, tiled
from attnlab.kernels.band import band_of
from attnlab.kernels.mask import keys_of_course_width
from attnlab.reports.report import Plot, Series, Table
from attnlab.theory.claim import (
    About,
    Answer,
    Claim,
    Evidence,
    Judgement,
    Knob,
    Measure,
    mark,
)
from attnlab.theory.ledger import Cost, cost_of
from attnlab.theory.window import READINGS, check_even, program_of_gpt4, program_of_student


def dense(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    return reference.attend(_request(q, k, v, width))[0, 0]


def in_tiles(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """The engine of path="tiled", called directly: a custom operation would hide its costs."""
    asked = _request(q, k, v, width)
    return tiled.forward(band_of(asked))[0][0, 0]


def _request(q: Tensor, k: Tensor, v: Tensor, width: int) -> Request:
    keys = keys_of_course_width(width)
    return Request(q=q[None, None], k=k[None, None], v=v[None, None], window=keys)


def growth(title: str, y: str, lengths: Sequence[int], lines: Mapping[str, Sequence[int]]) -> Plot:
    """A plot over the length of the text with log axes, on which a power law is a line."""
    series = [Series(name=name, x=lengths, y=line) for name, line in lines.items()]
    return Plot(title=title, x="positions N", y=y, series=series, log_x=True, log_y=True)


@settings
class DenseCost(Claim):
    path: Literal["dense", "tiled"] = setting("dense", about="which of our paths is counted")
    width: int = setting(
        8, low=0, high=128, about="even width of the window, as the course counts it"
    )
    length: int = setting(
        257, low=9, high=513, about="positions of the longest text", metadata={"live": 65}
    )

    about = About(
        statement="Computed as it is written, the formula takes 2N²d multiply-adds and keeps N² "
        "numbers, whatever the window.",
        formula="softmax(QKᵀ/√d + M) V :   N²d for QKᵀ  +  N²d for AV  =  2N²d\n"
        "QKᵀ, M and A have N² entries each",
        derivation="""QKᵀ has N² entries, and each is a sum of d products: N²d multiply-adds. A is
            N × N and V is N × d, so AV has Nd entries of N products each: N²d again. Scaling,
            adding M and the softmax are a few operations on each of N² entries, of order 1/d.

            M is added after all N² scores are there. It turns weights into zeros, but the product
            AV multiplies by zeros as well: the width of the window appears nowhere in the cost.

            The softmax needs a whole row at a time and QKᵀ is made as a whole, so N² numbers are
            kept at once, more than the Nd of Q, K, V and the result as soon as N > d.""",
        expected="holds",
        questions=("CMU 3(a)", "CMU 3(b)"),
        answers=[
            Answer(
                document="004 student",
                part="3(a) time",
                line=675,
                quote="$O(N^2)$ assuming $d_k$ constant.",
                conclusion="time grows with N², for a constant d",
            ),
            Answer(
                document="004 student",
                part="3(b) space",
                line=677,
                quote="N assuming $d_m$ constant.",
                conclusion="space grows with N, for a constant d",
            ),
            Answer(
                document="004 notes",
                part="3(b) space",
                line=679,
                quote="空间复杂度应该是N^2,因为要存储Q\\*K矩阵的结果维度也就是N^2",
                conclusion="space grows with N²",
                reason="the result of QKᵀ is kept, and has N² entries",
            ),
            Answer(
                document="004 GPT-4",
                part="3.1(a) time",
                line=711,
                quote="计算 $QK^T$ 需要 $N^2$ 次点积 … $$O(N^2 d_k) + O(N^2) = O(N^2 d_k)$$",
                conclusion="time grows with N²d",
                reason="QKᵀ and AV take N²d each, all else N²",
            ),
            Answer(
                document="004 GPT-4",
                part="3.1(b) space",
                line=737,
                quote="$QK^T$ 是一个 $N \\times N$ 的矩阵 … $$O(N^2) + O(Nd_k) = O(N^2)$$",
                conclusion="space grows with N², for a constant d",
                reason="QKᵀ and A are N × N, and Q, K, V and the result N × d",
            ),
        ],
        knob=Knob("count our tiled path", {"path": "tiled", "width": 8, "length": 257}),
        remark="""At its worst moment our reference holds five such matrices. A text no longer
            than a tile costs the same in tiles: at length = 33 the knob changes nothing.""",
    )

    def check(self) -> None:
        check_even(self, self.width)

    def run(self) -> Evidence:
        # odd numbers all, and no text shorter than a head is wide: there Nd exceeds N²
        lengths = [n for n in (5, 9, 17, 33, 65, 129, 257, 513) if n <= self.length]
        shapes = [(n, d) for n in lengths for d in (1, 3, 5)]
        costs = {(n, d): self._costs(n, d) for n, d in shapes}
        times = {s: [cost.multiply_adds for cost in costs[s]] for s in shapes}
        off = max(abs(t - 2 * n * n * d) for n, d in shapes for t in times[n, d])
        kept = max(abs(cost.largest - n * n) for n, d in shapes for cost in costs[n, d])
        spread = max(max(times[s]) - min(times[s]) for s in shapes)
        shown = {n: costs[n, 5][0] for n in lengths}
        lines = {
            f"counted, {self.path}": [cost.largest for cost in shown.values()],
            "N²": [n * n for n in lengths],
            "N·d, d = 5": [5 * n for n in lengths],
        }
        named, columns = (
            f"d = 5, w = {self.width}",
            ["N", "multiply-adds", "largest", "held at once"],
        )
        rows = [[n, cost.multiply_adds, cost.largest, cost.held] for n, cost in shown.items()]
        return Evidence(
            kind="counted",
            trials=3 * len(shapes),
            measures=[
                Measure("multiply-adds more or less than 2N²d", off, "=", 0),
                Measure("numbers kept, more or less than N²", kept, "=", 0),
                Measure("multiply-adds that the window changes", spread, "=", 0),
            ],
            judgements=self._judgements(),
            picture=growth("Largest intermediate result", "numbers in it", lengths, lines),
            details=[Table(title=f"The {self.path} path, {named}", columns=columns, rows=rows)],
        )

    def _costs(self, n: int, d: int) -> list[Cost]:
        """Costs with this window, with the narrowest and with the widest one."""
        program = dense if self.path == "dense" else in_tiles
        return [cost_of(program, n, width, d) for width in (self.width, 0, 2 * n)]

    def _judgements(self) -> dict[str, Judgement]:
        """Doubles N or d in the formula as written: what grows with N² must grow 4 times."""
        shapes = [(33, self.width, 3), (66, self.width, 3), (33, self.width, 6)]
        one, long, deep = (cost_of(dense, *shape) for shape in shapes)
        square_time = long.multiply_adds == 4 * one.multiply_adds
        linear_in_d = deep.multiply_adds == 2 * one.multiply_adds
        square_space = mark(long.largest == 4 * one.largest and deep.largest == one.largest)
        entries = mark(one.largest == 33 * 33)
        return {
            "004 student 3(a) time": Judgement(mark(square_time)),
            "004 student 3(b) space": Judgement(mark(long.largest == 2 * one.largest)),
            "004 notes 3(b) space": Judgement(square_space, entries),
            "004 GPT-4 3.1(a) time": Judgement(
                mark(square_time and linear_in_d), mark(one.multiply_adds == 2 * 33 * 33 * 3)
            ),
            "004 GPT-4 3.1(b) space": Judgement(square_space, entries),
        }


# The shortest text has 32 half windows or more. Then the first tiles, which have fewer keys to
# see, lack at most 1/32 of the pairs, and the slope in N is at most 1/(1 − 1/32): derivation below.
HALF_WINDOWS = 32
EDGE = HALF_WINDOWS / (HALF_WINDOWS - 1)
WIDTHS = (128, 256, 512, 1024)  # for the slope in w
STUDENTS = {  # one program a reading, made once so that its costs are kept
    name: partial(program_of_student, both_ends=ends) for name, ends in READINGS.items()
}
TENSORS = 8  # of the size of a tile, at once: scores, weights, their mask, and what makes these


@settings
class TiledCost(Claim):
    width: int | None = setting(
        32,
        low=2,
        high=128,
        none="the whole text",
        about="even width of the window, as the course counts it",
        metadata={"live": 8},
    )
    tiles: int = setting(
        8,
        low=2,
        high=32,
        about="tiles of the shortest text; the longest has 8 times as many",
        metadata={"live": 2},
    )
    head_width: int = setting(
        3, low=1, high=16, about="coordinates of a query, key or value", metadata={"live": 8}
    )

    about = About(
        statement="In tiles of queries a window takes O(N·w·d) time, and beside the result memory "
        "for a few tiles, however long the text.",
        formula="multiply-adds ≤ 2Nd (T + w/2)   for tiles of T queries\n"
        "slope of log(multiply-adds) in log N ≤ 32/31 once N ≥ 16w,   in log w ≤ 1\n"
        "numbers held = N·d + O(T (T + w/2)),   none of its tensors above T (T + w/2)",
        derivation="""A tile of T queries in a row sees at most T + w/2 keys: its own T positions,
            and the w/2 before the first. Scores and weighted sum are T (T + w/2) d multiply-adds
            each, and there are N/T tiles: 2Nd (T + w/2). Of these the window needs 2Nd (w/2 + 1);
            the rest is the price of working in tiles. No tile is needed after its rows of the
            result are written.

            The first tiles see less. With b = w/2, tile number m lacks b − mT keys for each of
            its T queries, in all E = T Σ max(b − mT, 0) ≤ Tb + b²/2 pairs, since a sum over a
            falling function is at most its first term and the integral. So
            E / (N (T + b)) ≤ b/N, which is at most 1/32 here. The slope of log(N (T + b) − E) in
            log N is 1/(1 − E/(N (T + b))), at most 32/31, and a fitted line is an average of such
            slopes.

            As a function of b the count N (T + b) − E(b) is concave and above 0 at b = 0, so c
            times the window costs at most c times as much: the slope in log w is at most 1, and
            well below it while T is not small against w/2.

            With w = N every text brings its own window, b = N/2, and the pairs are
            NT + 3N²/8: the slope goes to 2.""",
        expected="holds",
        questions=("CMU 3(d)", "CMU 3(e)"),
        answers=[
            Answer(
                document="004 student",
                part="3(d) space",
                line=698,
                quote="$Nd_k \\rightarrow N$ assuming constant $d_k$ .",
                conclusion="its loop takes O(N) space, in N and w",
            ),
            Answer(
                document="004 student",
                part="3(e) time",
                line=700,
                quote="O(Nw) assuming constant $d_k$ .",
                conclusion="its loop takes O(N·w) time",
            ),
            Answer(
                document="004 GPT-4",
                part="3.1(d) space",
                line=839,
                quote="每个位置的注意力分数和权重只涉及窗口内的元素,大小为O(w) … $O(Nd_k + w)$",
                conclusion="its loop takes O(N·d + w) space",
                reason="of scores and weights it keeps those of one position, O(w)",
            ),
            Answer(
                document="004 GPT-4",
                part="3.1(e) time",
                line=829,
                quote="每个序列位置的计算都限制在窗口大小 w 内 … $O(Nwd_k)$",
                conclusion="its loop takes O(N·w·d) time",
                reason="each of the N positions computes within its window",
            ),
        ],
        knob=Knob("a window as long as the text: w = N", {"width": None}),
        remark="""The student's time is right, its space is not: asked for N and w, it counts the
            result (N·d) and not its own array of N (w/2 + 1) scores. GPT-4's loop is as cheap as
            it says, though what it computes is something else (window-mask).

            Counted is the engine in PyTorch; the compiled one works in tiles too, but from
            outside it is one operation.""",
    )

    def check(self) -> None:
        check_even(self, self.width)
        fits = self.tiles * tiled.TILE // HALF_WINDOWS * 2
        if self.width is not None and self.width > fits:
            raise refusal(
                self,
                "width",
                f"{self.tiles} tiles must hold {HALF_WINDOWS} half windows, so use {fits} or "
                "less, or more tiles",
            )

    def run(self) -> Evidence:
        d, lengths = self.head_width, [self.tiles * tiled.TILE * times for times in (1, 2, 4, 8)]
        texts = [(n, n if self.width is None else self.width) for n in lengths]
        windows = [(lengths[-1], width) for width in WIDTHS]
        costs = {case: cost_of(in_tiles, *case, d) for case in (*texts, *windows)}
        times = {case: cost.multiply_adds for case, cost in costs.items()}
        needed = {(n, w): 2 * d * seen_pairs(n, w) for n, w in costs}
        tile = {(n, w): tiled.TILE * (tiled.TILE + w // 2) for n, w in costs}
        spent = max(times[n, w] * tiled.TILE / (2 * n * d * tile[n, w]) for n, w in costs)
        least = min(times[case] / needed[case] for case in costs)
        piece = max(costs[case].largest / tile[case] for case in costs)
        more = (costs[texts[-1]].held - costs[texts[0]].held) / (lengths[-1] - lengths[0])
        beside = max((cost.held - n * d) / tile[n, w] for (n, w), cost in costs.items())
        in_length = slope(lengths, [times[case] for case in texts])
        in_width = slope(WIDTHS, [times[case] for case in windows])
        named = "w = N" if self.width is None else f"w = {self.width}"
        lines = {
            "as written: 2N²d": [2 * n * n * d for n in lengths],
            f"in tiles, {named}, counted": [times[case] for case in texts],
            "what the window needs": [needed[case] for case in texts],
        }
        columns = ["N", "w", "multiply-adds", "needed", "largest", "held − N·d"]
        rows = [
            [n, w, cost.multiply_adds, needed[n, w], cost.largest, cost.held - n * d]
            for (n, w), cost in costs.items()
        ]
        return Evidence(
            kind="counted",
            trials=len(costs),
            measures=[
                Measure("slope of the multiply-adds in N", in_length, "≤", EDGE),
                Measure("slope of the multiply-adds in w", in_width, "≤", 1),
                Measure("multiply-adds, of 2Nd(T + w/2)", spent, "≤", 1),
                Measure("multiply-adds, of those the window needs", least, "≥", 1),
                Measure("largest tensor on the way, of T(T + w/2)", piece, "≤", 1),
                Measure("numbers held, for a position more", more, "=", d),
                Measure("numbers held beside N·d, in tiles of T(T + w/2)", beside, "<", TENSORS),
            ],
            judgements=self._judgements(),
            picture=growth("What a window costs", "multiply-adds", lengths, lines),
            details=[Table(title=f"Tiles of {tiled.TILE}, d = {d}", columns=columns, rows=rows)],
        )

    def _judgements(self) -> dict[str, Judgement]:
        """Counts both programs with N, w or d doubled; the student's in both readings."""
        shapes = [(32, 8, 3), (64, 8, 3), (32, 16, 3), (32, 8, 6)]
        gpt4 = [cost_of(program_of_gpt4, *shape) for shape in shapes]
        students = [[cost_of(STUDENTS[name], *shape) for shape in shapes] for name in STUDENTS]

        def fast(costs: list[Cost]) -> bool:
            # w/2 + 2 keys, the most that either takes, are no more than w; each costs 2d
            most = [2 * n * w * d for n, w, d in shapes]
            return all(c.multiply_adds <= m for c, m in zip(costs, most, strict=True))

        def small(costs: list[Cost]) -> bool:
            # O(N), in N and w: twice as long may take twice the room, a wider window no more
            one, long, wide, _ = costs
            return long.largest <= 2 * one.largest and wide.largest == one.largest

        # beside the N·d numbers of its result, this one may hold rows of the order w
        rows = mark(all(cost.largest <= w for cost, (_, w, _) in zip(gpt4, shapes, strict=True)))
        beside = [cost.held - n * d for cost, (n, _, d) in zip(gpt4, shapes, strict=True)]
        held = mark(all(b <= TENSORS * w for b, (_, w, _) in zip(beside, shapes, strict=True)))
        quick = mark(fast(gpt4))
        return {
            "004 student 3(d) space": Judgement(mark(any(map(small, students)))),
            "004 student 3(e) time": Judgement(mark(all(map(fast, students)))),
            "004 GPT-4 3.1(d) space": Judgement(held, rows),
            "004 GPT-4 3.1(e) time": Judgement(quick, quick),
        }


def seen_pairs(length: int, width: int) -> int:
    return sum(min(i + 1, width // 2 + 1) for i in range(length))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of a power law, by least squares on the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
