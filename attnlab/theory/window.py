"""Sliding windows: who sees whom, what the formula costs as written, and what tiles cost.

Axes in the formulas: N positions, width d of a head; w is the width of the window as the course
counts it, so that a query sees w/2 + 1 keys, its own included. Our kernels count these keys.

Costs are counted on operations that really run, never timed. A multiply-add is one multiplication
and one addition.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.kernels import Request, attention, reference, tiled
from attnlab.kernels.band import Band
from attnlab.kernels.request import keys_of_course_width, visible
from attnlab.reports.report import Picture, Plot, Sample, Series, Table
from attnlab.theory.claim import EQUAL, About, Answer, Claim, Evidence, Knob, Measure, setting
from attnlab.theory.draw import Array, drawn, kept, largest, softmax
from attnlab.theory.ledger import Cost, Program, counted
from attnlab.theory.sharing import PATHS

LONGEST = 12  # of the texts of which all windows are tried
PRINTED = (  # document 004, part 3, for N = 6 and w = 4: 1 where it has 0, 0 where it has −∞
    (1, 0, 0, 0, 0, 0),
    (1, 1, 0, 0, 0, 0),
    (1, 1, 1, 0, 0, 0),
    (0, 1, 1, 1, 0, 0),
    (0, 0, 1, 1, 1, 0),
    (0, 0, 0, 1, 1, 1),
)

Rows = Float[Tensor, "N d"]


def check_even(width: int | None) -> None:
    if width is not None and width % 2:
        near = f"use {width - 1} or {width + 1}"
        raise ValueError(f"width is {width}; half of it lies before the query, so {near}")


def rule(length: int, width: int) -> Array:
    """1 where i − w/2 ≤ j ≤ i, in whole numbers and one pair at a time."""
    at, half = range(length), width // 2
    return np.array([[float(i - half <= j <= i) for j in at] for i in at])


def definition(q: Rows, k: Rows, v: Rows, width: int) -> Array:
    """softmax(QKᵀ/√d + M) V with the matrix M written out."""
    with np.errstate(divide="ignore"):
        added = np.log(rule(len(q), width))  # log 1 = 0 and log 0 = −∞
    scores = q.numpy() @ k.numpy().T / math.sqrt(q.shape[1])
    return np.asarray(softmax(scores + added) @ v.numpy())


def mask(length: int, width: int) -> Array:
    """Ours: 1 where a key is seen."""
    at = torch.arange(length)
    return visible(at, at, True, keys_of_course_width(width)).double().numpy()


def kernel(q: Rows, k: Rows, v: Float[Tensor, "N e"], width: int, path: str) -> Tensor:
    keys = keys_of_course_width(width)
    return attention(q[None, None], k[None, None], v[None, None], window=keys, path=path)[0, 0]


def weights(q: Rows, k: Rows, width: int, path: str) -> Array:
    """With the unit vectors for values, what comes out is the weights, whatever the path."""
    return kernel(q, k, torch.eye(len(q), dtype=q.dtype), width, path).numpy()


def program_of_gpt4(q: Rows, k: Rows, v: Rows, width: int) -> Rows:
    """Document 004, 3.1(c): cuts out the right keys, then opens the mask from the last one on."""
    out = torch.zeros_like(v)
    for i in range(len(q)):
        first = max(0, i - width // 2)
        scores = q[i : i + 1] @ k[first : i + 1].T / math.sqrt(q.shape[1])
        added = torch.full_like(scores, -math.inf)
        added[:, i - first :] = 0  # counted within the cut, that is only the query's own key
        out[i : i + 1] = (scores + added).softmax(-1) @ v[first : i + 1]
    return out


def program_of_student(
    q: Rows, k: Rows, v: Rows, width: int, *, reach: int = 1, matched: bool = False
) -> Rows:
    """Document 004, 3(c): a row of slots for each query, filled from the newest key backwards.

    As written it goes back w/2 + `reach` keys with a reach of 1, which needs a slot more than its
    array has; and it lays the weights, newest first, on values that come oldest first. A reach of
    0 and `matched` are kinder readings. Slots that were never filled are 0.
    """
    back = width // 2 + reach
    slots = q.new_zeros(len(q), back + 1)
    for i in range(len(q)):
        first = max(0, i - back)
        scores = q[i : i + 1] @ k[first : i + 1].T / math.sqrt(q.shape[1])
        slots[i, : i - first + 1] = scores[0].flip(0)
    shares, out = slots.softmax(-1), torch.zeros_like(v)
    for i in range(len(q)):
        first = max(0, i - back)
        row = shares[i : i + 1, : i - first + 1]
        out[i : i + 1] = (row.flip(1) if matched else row) @ v[first : i + 1]
    return out


GPT4 = "GPT-4's program"
PROGRAMS: dict[str, Program] = {
    GPT4: program_of_gpt4,
    "the student's, as written": program_of_student,
    "… each weight on its own value": partial(program_of_student, matched=True),
    "… and w/2 + 1 keys": partial(program_of_student, matched=True, reach=0),
}


@dataclass(frozen=True, kw_only=True)
class WindowMask(Claim):
    width: int = setting(4, low=0, high=128, about="of the window, as the course counts it")
    length: int = setting(6, low=1, high=64, about="positions of the text")

    about = About(
        statement="A window of width w shows a query its own key and the w/2 before it: w/2 + 1 "
        "keys, and no longer all that came before.",
        formula="i sees j   ⇔   i − w/2 ≤ j ≤ i\n"
        "keys that i sees, counted from i = 0:   min(i + 1, w/2 + 1)",
        derivation="""The whole numbers from i − w/2 to i are w/2 + 1, and i itself is the last of
            them. The first w/2 queries have fewer keys before them and see all they have, so the
            count is the smaller one of i + 1 and w/2 + 1.

            Adding −∞ to a score makes its weight exp(−∞) = 0, and the others share the weight as
            if the key was not there. Which keys a kernel really uses shows in its output when the
            values are the unit vectors: then the output is the matrix of weights, exactly 0 where
            a key is hidden and above 0 where it is seen.

            Only from queries with more than w/2 keys before them is something hidden. With w = 2N
            there is none, and what is left is full causal attention.""",
        expected="holds",
        answers=[
            Answer("004 student", "3(c)", "loops over i − (w/2 + 1) … i, softmax over its slots"),
            Answer("004 GPT-4", "3.1(c)", "cuts out w/2 + 1 keys, masks what precedes the query"),
        ],
        knob=Knob("a window over everything: w = 2N", {"width": 12, "length": 6}),
        remark="""GPT-4 describes the window rightly, but its program opens the mask from the
            query's own place on, not up to it: all weight is on that key, and the output is V,
            bit for bit.

            The student's loop has three faults. It takes a key too many (and so needs a slot more
            than its array has); slots that stay empty hold a score of 0 and take their part of
            the softmax; and weights stored newest first meet values that come oldest first. The
            last of these is easily missed: it is wrong even where the window is full.""",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even(self.width)

    def run(self) -> Evidence:
        cases = [(n, w) for n in range(1, LONGEST + 1) for w in range(0, 2 * n + 1, 2)]
        pairs, rows, used = np.sum(
            [unlike_rule(self.seed, *case) for case in cases], axis=0
        ).tolist()
        every = [errors_of(self.seed, *case) for case in cases]
        worst = {name: max(errors[name] for errors in every) for name in every[0]}
        here, seen = (
            errors_of(self.seed, self.length, self.width),
            mask(self.length, self.width)[-1].sum(),
        )
        q, k, v = drawn(self.seed, self.length, 3)
        from_values = {n: largest((PROGRAMS[n](q, k, v, self.width) - v).numpy()) for n in PROGRAMS}
        signs = [[" 0" if one else "−∞" for one in row] for row in rule(self.length, self.width)]
        printed = np.abs(mask(6, 4) - np.array(PRINTED)).sum()
        return Evidence(
            kind="exact",
            trials=len(cases),
            measures=[
                Measure("keys hidden from the last query", self.length - float(seen), "≥", 1),
                Measure("keys the last query sees", float(seen), "=", self.width / 2 + 1),
                Measure("pairs unlike those printed in 004", float(printed), "=", 0),
                Measure(f"pairs unlike the rule, all N ≤ {LONGEST}", pairs, "=", 0),
                Measure(f"rows of another sum, all N ≤ {LONGEST}", rows, "=", 0),
                Measure("pairs our kernels see unlike the rule", used, "=", 0),
                Measure(
                    "|kernel − softmax(QKᵀ/√d + M)V|", max(worst[p] for p in PATHS), "≤", EQUAL
                ),
            ],
            right={
                # the kindest reading decides
                "004 student": min(worst[name] for name in PROGRAMS if name != GPT4) <= EQUAL,
                "004 GPT-4": worst[GPT4] <= EQUAL,
            },
            picture=self._picture(),
            details=[
                Sample(title="The matrix M", text="\n".join(map(" ".join, signs))),
                Table(
                    title=f"The programs of document 004, N = {self.length}, w = {self.width}",
                    columns=["program", "from the definition", f"worst, N ≤ {LONGEST}", "from V"],
                    rows=[[n, here[n], worst[n], from_values[n]] for n in PROGRAMS],
                    note="Largest differences of an output.",
                ),
            ],
        )

    def _picture(self) -> Picture:
        q, k, _ = drawn(self.seed, self.length, 3)
        shown, seen = weights(q, k, self.width, "auto"), mask(self.length, self.width)
        rows = np.where(seen > 0, shown.astype(object), np.array(None)).tolist()
        title = f"Weights of our kernel, N = {self.length}, w = {self.width}"
        return Picture(title=title, rows=rows, x="key j", y="query i", note="Empty: not seen.")


@kept
def unlike_rule(seed: int, length: int, width: int) -> tuple[float, float, float]:
    """Pairs and row sums of the mask, and pairs that the kernels use, that are not as said."""
    wanted, ours = rule(length, width), mask(length, width)
    sums = [min(i + 1, width // 2 + 1) for i in range(length)]
    q, k, _ = drawn(seed, length, 3)
    used = [weights(q, k, width, path) > 0 for path in PATHS]
    return (
        float(np.abs(ours - wanted).sum()),
        float((ours.sum(axis=1) != sums).sum()),
        float(sum((one != (wanted > 0)).sum() for one in used)),
    )


@kept
def errors_of(seed: int, length: int, width: int) -> dict[str, float]:
    """How far the kernels' paths and the programs are from the definition."""
    q, k, v = drawn(seed, length, 3)
    true = definition(q, k, v, width)
    outs = {path: kernel(q, k, v, width, path) for path in PATHS}
    outs |= {name: program(q, k, v, width) for name, program in PROGRAMS.items()}
    return {name: largest(out.numpy() - true) for name, out in outs.items()}


def dense(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    return reference.attend(_request(q, k, v, width))[0, 0]


def in_tiles(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """The engine behind path="tiled", called directly: within an operation nothing is counted."""
    asked = _request(q, k, v, width)
    band = Band(asked.q, asked.k, asked.v, None, None, *asked.band, asked.factor)
    return tiled.forward(band)[0][0, 0]


def _request(q: Tensor, k: Tensor, v: Tensor, width: int) -> Request:
    keys = keys_of_course_width(width)
    return Request(q=q[None, None], k=k[None, None], v=v[None, None], window=keys)


def growth(title: str, y: str, lengths: Sequence[int], lines: Mapping[str, Sequence[int]]) -> Plot:
    """Numbers over the length of the text, both axes logarithmic: a power is a straight line."""
    series = [Series(name=name, x=lengths, y=line) for name, line in lines.items()]
    return Plot(title=title, x="positions N", y=y, series=series, log_x=True, log_y=True)


@dataclass(frozen=True, kw_only=True)
class DenseCost(Claim):
    path: Literal["dense", "tiled"] = setting("dense", about="which of our paths is counted")
    width: int = setting(8, low=0, high=128, about="of the window, as the course counts it")
    length: int = setting(257, low=9, high=513, live=65, about="positions of the longest text")

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
        answers=[
            Answer("004 student", "3(a), (b)", "O(N²) time, O(N) space"),
            Answer("004 notes", "3(b)", "O(N²) space, against the student"),
            Answer("004 GPT-4", "3.1(a), (b)", "O(N²d) time, O(N²) space"),
        ],
        knob=Knob("count our tiled path", {"path": "tiled", "width": 8, "length": 257}),
        remark="""At its worst moment our reference holds five such matrices. A text no longer
            than a tile costs the same in tiles: at length = 33 the knob changes nothing.""",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even(self.width)
        if self.path not in ("dense", "tiled"):
            raise ValueError(f"path is {self.path!r}; choose dense or tiled")

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
            right=self._right(),
            picture=growth("Largest intermediate result", "numbers in it", lengths, lines),
            details=[Table(title=f"The {self.path} path, {named}", columns=columns, rows=rows)],
        )

    def _costs(self, n: int, d: int) -> list[Cost]:
        """With the window, with the narrowest and with the widest."""
        program = dense if self.path == "dense" else in_tiles
        return [counted(program, n, width, d) for width in (self.width, 0, 2 * n)]

    def _right(self) -> dict[str, bool]:
        """Double N, or d, of the formula as written: what grows with N² must grow 4 times."""
        shapes = [(33, self.width, 3), (66, self.width, 3), (33, self.width, 6)]
        one, long, deep = (counted(dense, *shape) for shape in shapes)
        square_time = long.multiply_adds == 4 * one.multiply_adds
        square_space = long.largest == 4 * one.largest
        linear_in_d = deep.multiply_adds == 2 * one.multiply_adds and deep.largest == one.largest
        return {
            "004 student": square_time and long.largest == 2 * one.largest,
            "004 notes": square_space,
            "004 GPT-4": square_time and linear_in_d and square_space,
        }


# The shortest text has 32 half windows or more. Then the first tiles, which have fewer keys to
# see, lack at most 1/32 of the pairs, and the slope in N is at most 1/(1 − 1/32): derivation below.
HALF_WINDOWS = 32
EDGE = HALF_WINDOWS / (HALF_WINDOWS - 1)
WIDTHS = (128, 256, 512, 1024)  # for the slope in w
TENSORS = 8  # of the size of a tile, at once: scores, weights, their mask, and what makes these


@dataclass(frozen=True, kw_only=True)
class TiledCost(Claim):
    width: int | None = setting(
        32, low=2, high=128, live=8, about="of the window, as the course counts it; none: the text"
    )
    tiles: int = setting(8, low=2, high=32, live=2, about="of the shortest text; longest: 8 times")
    head_width: int = setting(3, low=1, high=16, live=8)

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
        answers=[
            Answer("004 student", "3(d), (e)", "O(N) space and O(N·w) time for its loop"),
            Answer("004 GPT-4", "3.1(d), (e)", "O(N·d + w) space and O(N·w·d) time for its loop"),
        ],
        knob=Knob("a window as long as the text: w = N", {"width": None}),
        remark="""The student's time is right, its space is not: asked for N and w, it counts the
            result (N·d) and forgets its own array of N (w/2 + 1) scores. GPT-4's loop is as cheap
            as it says, though what it computes is something else (window-mask).

            Counted is the engine in PyTorch; the compiled one works in tiles too, but from
            outside it is one operation.""",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even(self.width)
        fits = self.tiles * tiled.TILE // HALF_WINDOWS * 2
        if self.width is not None and self.width > fits:
            raise ValueError(
                f"width is {self.width}; {self.tiles} tiles must hold {HALF_WINDOWS} half "
                f"windows, so use {fits} or less, or more tiles"
            )

    def run(self) -> Evidence:
        d, lengths = self.head_width, [self.tiles * tiled.TILE * times for times in (1, 2, 4, 8)]
        texts = [(n, n if self.width is None else self.width) for n in lengths]
        windows = [(lengths[-1], width) for width in WIDTHS]
        costs = {case: counted(in_tiles, *case, d) for case in (*texts, *windows)}
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
            right=self._right(),
            picture=growth("What a window costs", "multiply-adds", lengths, lines),
            details=[Table(title=f"Tiles of {tiled.TILE}, d = {d}", columns=columns, rows=rows)],
        )

    def _right(self) -> dict[str, bool]:
        """Counts both loops, then again with N, w or d doubled."""
        shapes = [(32, 8, 3), (64, 8, 3), (32, 16, 3), (32, 8, 6)]
        student, gpt4 = (
            [counted(program, *shape) for shape in shapes]
            for program in (program_of_student, program_of_gpt4)
        )

        def fast(costs: list[Cost]) -> bool:
            # w/2 + 2 keys, the most that either takes, are no more than w; each costs 2d
            most = [2 * n * w * d for n, w, d in shapes]
            return all(c.multiply_adds <= m for c, m in zip(costs, most, strict=True))

        one, long, wide, _ = student
        # O(N), in N and w: a text twice as long may take twice the room, a wider window no more
        small = long.largest <= 2 * one.largest and wide.largest == one.largest
        # beside the N·d numbers of its result, this one may hold rows of the order w
        smaller = all(cost.largest <= w for cost, (_, w, _) in zip(gpt4, shapes, strict=True))
        return {"004 student": fast(student) and small, "004 GPT-4": fast(gpt4) and smaller}


def seen_pairs(length: int, width: int) -> int:
    return sum(min(i + 1, width // 2 + 1) for i in range(length))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the line through the logarithms, fitted by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
