"""Sliding windows: which keys a query attends to, and which programs compute that.

Axes in the formulas: N positions, width d of a head; w is the width of the window as the course
counts it: a query attends to w/2 + 1 keys, including its own. Our kernels count these keys.
"""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.config import refusal, setting, settings
from attnlab.kernels import attention
from attnlab.kernels.mask import keys_of_course_width, visible
from attnlab.reports.report import Picture, Sample, Table
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
from attnlab.theory.draw import Array, cached, largest, random_qkv, softmax
from attnlab.theory.ledger import Program
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
Values = Float[Tensor, "N e"]


def check_even(claim: Claim, width: int | None) -> None:
    if width is not None and width % 2:
        near = f"use {width - 1} or {width + 1}"
        raise refusal(claim, "width", f"half of it lies before the query, so {near}")


def rule(length: int, width: int) -> Array:
    """1 where i − w/2 ≤ j ≤ i, in whole numbers and one pair at a time."""
    at, half = range(length), width // 2
    return np.array([[float(i - half <= j <= i) for j in at] for i in at])


def definition(q: Rows, k: Rows, v: Values, width: int) -> Array:
    """softmax(QKᵀ/√d + M) V with the matrix M written out."""
    with np.errstate(divide="ignore"):
        added = np.log(rule(len(q), width))  # log 1 = 0 and log 0 = −∞
    scores = q.numpy() @ k.numpy().T / math.sqrt(q.shape[1])
    return np.asarray(softmax(scores + added) @ v.numpy())


def mask(length: int, width: int) -> Array:
    """Our mask: 1 where the query attends to the key."""
    at = torch.arange(length)
    return visible(at, at, True, keys_of_course_width(width)).double().numpy()


def kernel(q: Rows, k: Rows, v: Values, width: int, path: str) -> Tensor:
    keys = keys_of_course_width(width)
    return attention(q[None, None], k[None, None], v[None, None], window=keys, path=path)[0, 0]


def weights(q: Rows, k: Rows, width: int, path: str) -> Array:
    """Weights of any path: with unit vectors as values, the outputs are the weights."""
    return kernel(q, k, torch.eye(len(q), dtype=q.dtype), width, path).numpy()


def program_of_gpt4(q: Rows, k: Rows, v: Values, width: int) -> Values:
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
    q: Rows,
    k: Rows,
    v: Values,
    width: int,
    *,
    both_ends: bool = False,
    matched: bool = False,
    emptied: bool = False,
) -> Values:
    """Document 004, 3(c): a row of slots for each query, filled from the newest key backwards.

    Its loop is `for i = 1 to N`, `for j = max(0, i − (w/2 + 1)) to i`, the slots are i − j and the
    values idx0:i. Read as half-open ranges over keys that count from 0, these are the w/2 + 1 keys
    up to the query's own. With both ends included it is a key more, and a slot more than there is.

    Either way the weights, newest first, are laid on values that come oldest first, and slots that
    were never filled hold a score of 0; `matched` and `emptied` mend these. Where it has the whole
    of QK for a single number, and more slots than values, row i and its filled slots are taken.
    """
    back = width // 2 + both_ends
    slots = q.new_full((len(q), back + 1), -math.inf if emptied else 0.0)
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


GPT4 = "GPT-4's"
READINGS = {"half-open ranges": False, "both ends included": True}  # of the student's loops
MENDED = {  # weights matched to values, and empty slots hidden
    "as written": (False, False),
    "weights matched to values": (True, False),
    "empty slots hidden": (False, True),
    "both mended": (True, True),
}
PROGRAMS: dict[str, Program] = {
    GPT4: program_of_gpt4,
    **{
        f"the student's, {reading}, {words}": partial(
            program_of_student, both_ends=ends, matched=matched, emptied=emptied
        )
        for reading, ends in READINGS.items()
        for words, (matched, emptied) in MENDED.items()
    },
}


@settings
class WindowMask(Claim):
    width: int = setting(
        4, low=0, high=128, about="even width of the window, as the course counts it"
    )
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
        questions=("CMU 3(c)",),
        answers=[
            Answer(
                document="004 student",
                part="3(c)",
                line=687,
                quote="for j = \\max(0, i - (\\frac{w}{2} + 1)) to i do … QK_{\\{i,i-j\\}} … "
                "QK \\leftarrow \\operatorname{softmax}(QK) … QK \\cdot V_{\\{idx0:i,j\\}}",
                conclusion="its program computes softmax(QKᵀ/√d + M)V",
            ),
            Answer(
                document="004 GPT-4",
                part="3.1(c) program",
                line=784,
                quote="mask[i - window_start:] = 0 # 当前位置及其前面的部分设置为有效",
                conclusion="its program computes softmax(QKᵀ/√d + M)V",
                reason="its mask is open for the query's own key and those before it",
            ),
            Answer(
                document="004 GPT-4",
                part="3.1(c) words",
                line=815,
                quote="该窗口确保当前元素 i 只能关注自己和前面 w/2 个元素",
                conclusion="a query sees its own key and the w/2 before it",
            ),
        ],
        knob=Knob("a window over everything: w = 2N", {"width": 12, "length": 6}),
        remark="""GPT-4 describes the window rightly, but its program opens the mask from the
            query's own place on, not up to it: all weight is on that key, and the output is V,
            bit for bit.

            How many keys the student's loop takes is a matter of reading: with half-open ranges
            w/2 + 1, which is right, and with both ends included w/2 + 2. Two faults are there
            either way. Slots that stay empty hold a score of 0 and take their part of the
            softmax, at the beginning of the text. And weights stored newest first meet values
            that come oldest first, which is wrong even where the window is full. With half-open
            ranges and both mended it is the definition.""",
    )

    def check(self) -> None:
        check_even(self, self.width)

    def run(self) -> Evidence:
        cases = [(n, w) for n in range(1, LONGEST + 1) for w in range(0, 2 * n + 1, 2)]
        pairs, rows, used = np.sum(
            [unlike_rule(self.seed, *case) for case in cases], axis=0
        ).tolist()
        every = [errors_of(self.seed, *case) for case in cases]
        worst = {name: max(errors[name] for errors, _ in every) for name in every[0][0]}
        here, from_values = errors_of(self.seed, self.length, self.width)
        seen = mask(self.length, self.width)[-1].sum()
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
            judgements=self._judgements(worst),
            picture=self._picture(),
            details=[
                Sample(title="The matrix M", text="\n".join(map(" ".join, signs))),
                Table(
                    title=f"The programs of document 004, and what mends the student's, "
                    f"N = {self.length}, w = {self.width}",
                    columns=["program", "from the definition", f"worst, N ≤ {LONGEST}", "from V"],
                    rows=[[n, here[n], worst[n], from_values[n]] for n in PROGRAMS],
                    note="Largest differences of an output.",
                ),
            ],
        )

    def _judgements(self, worst: Mapping[str, float]) -> dict[str, Judgement]:
        written = [name for name in PROGRAMS if name.endswith("as written")]
        # the size that both are tried at in the document; with unit vectors for values the
        # output is the weights, so above 0 where the mask is open
        q, k, _ = random_qkv(self.seed, 6, 3)
        opened = program_of_gpt4(q, k, torch.eye(6, dtype=q.dtype), 4).numpy() > 0
        return {
            # the kinder reading decides
            "004 student 3(c)": Judgement(mark(min(worst[name] for name in written) <= EQUAL)),
            "004 GPT-4 3.1(c) program": Judgement(
                mark(worst[GPT4] <= EQUAL), mark(bool((opened == PRINTED).all()))
            ),
            "004 GPT-4 3.1(c) words": Judgement(mark(bool((rule(6, 4) == PRINTED).all()))),
        }

    def _picture(self) -> Picture:
        q, k, _ = random_qkv(self.seed, self.length, 3)
        shown, seen = weights(q, k, self.width, "auto"), mask(self.length, self.width)
        rows = np.where(seen > 0, shown.astype(object), np.array(None)).tolist()
        title = f"Weights of our kernel, N = {self.length}, w = {self.width}"
        return Picture(title=title, rows=rows, x="key j", y="query i", note="Empty: not seen.")


@cached
def unlike_rule(seed: int, length: int, width: int) -> tuple[float, float, float]:
    """How many pairs of the mask, row sums, and pairs used by the kernels break the rule."""
    wanted, ours = rule(length, width), mask(length, width)
    sums = [min(i + 1, width // 2 + 1) for i in range(length)]
    q, k, _ = random_qkv(seed, length, 3)
    used = [weights(q, k, width, path) > 0 for path in PATHS]
    return (
        float(np.abs(ours - wanted).sum()),
        float((ours.sum(axis=1) != sums).sum()),
        float(sum((one != (wanted > 0)).sum() for one in used)),
    )


@cached
def errors_of(seed: int, length: int, width: int) -> tuple[dict[str, float], dict[str, float]]:
    """Largest differences of paths and programs from the definition, and from V."""
    q, k, v = random_qkv(seed, length, 3)
    true = definition(q, k, v, width)
    outs = {path: kernel(q, k, v, width, path).numpy() for path in PATHS}
    outs |= {name: program(q, k, v, width).numpy() for name, program in PROGRAMS.items()}
    return (
        {name: largest(out - true) for name, out in outs.items()},
        {name: largest(out - v.numpy()) for name, out in outs.items()},
    )
