"""The lengths of texts that code takes, found by trying, and sizes of checks brought within them.

Code may need three positions at least, have a table for 16, be made for 8 and nothing else, or
refuse one length between others. Everything is examined within what it takes, and what it refuses
is said. Names of settings (`block_size` …) tell only what to try first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from attnlab.audit.errors import SubjectError
from attnlab.audit.repro.prelude import CannotTell

LONGEST = 129  # of the texts that are tried
# one below, at and one past the sizes that blocks usually have, and half as much again
EDGES = tuple(block + more for block in (16, 32, 48, 64, 96, 128) for more in (-1, 0, 1))
TRIED = tuple(sorted({1, 2, 3, 5, 7, 23, 70, 100, *EDGES}))
# where to look for a length that is taken
STARTS = (*(23, 5, 7, 8, 16, 64), *range(1, 33), *range(48, 129, 16))
FEWEST = 5  # positions below which a check of more would say nothing
SHOWN = 3  # refusals that are told


class Lengths:
    """`refuse` gives the error of the code for a length, or None; `named` are tried first.

    Where texts are filled up to whole blocks, `unfilled` does the same for one as it is. A
    block may be a picture, whose parts are patches.
    """

    def __init__(
        self,
        refuse: Callable[[int], SubjectError | None],
        named: Sequence[int] = (),
        block: int = 1,
        unfilled: Callable[[int], SubjectError | None] = lambda length: None,
        picture: bool = False,
    ) -> None:
        self._refuse, self._named = refuse, tuple(one for one in named if one < LONGEST)
        self._block, self._unfilled, self._picture = block, unfilled, picture
        self._found: dict[int, SubjectError | None] = {}

    def takes(self, length: int) -> bool:
        if length not in self._found:
            self._found[length] = self._refuse(length)
        return self._found[length] is None

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The shortest and the longest, up to 129; what the code raised if it takes none."""
        start = next(filter(self.takes, dict.fromkeys((*STARTS, *self._named))), None)
        if start is None:
            error = self._found[STARTS[0]]
            assert error is not None
            raise error
        return self._shortest(start), self._longest(start)

    def _longest(self, start: int) -> int:
        # one of them may be refused for another reason than that it is long
        last = next(filter(self.takes, (LONGEST, LONGEST - 1, LONGEST - 2)), None)
        if last is not None:
            return last
        for named in self._named:
            if named >= start and self.takes(named) and not self.takes(named + 1):
                return named
        return self._bisect(start, LONGEST - 2)

    def _shortest(self, start: int) -> int:
        first = next(filter(self.takes, range(1, min(start, 3))), None)
        return self._bisect(start, 0) if first is None else first

    def _bisect(self, taken: int, refused: int) -> int:
        """The last that is taken on the way to one that is refused."""
        while abs(taken - refused) > 1:
            middle = (taken + refused) // 2
            if self.takes(middle):
                taken = middle
            else:
                refused = middle
        return taken

    @cached_property
    def tried(self) -> tuple[int, ...]:
        """What texts are tried with: usual lengths, the ends, and what is beside them."""
        least, most = self.ends
        near = {least, least + 1, most - 1, most}
        return tuple(
            one for one in sorted({*TRIED, *near}) if least <= one <= most and self.takes(one)
        )

    @property
    def tried_text(self) -> str:
        """As in a sentence: which lengths were tried."""
        count, most = len(self.tried), self.tried[-1]
        return f"{count} lengths up to {most}" if count > 1 else f"texts of {most}"

    def fit(self, length: int, low: int = 1, high: int | None = None) -> int:
        """The length, or the nearest that is taken, from low to high."""
        high = max(length, LONGEST) if high is None else high
        allowed = (one for one in self._near(length) if low <= one <= high)
        found = next(filter(self.takes, allowed), None)
        if found is None:
            raise CannotTell(f"texts of {low} to {high} positions are needed{self.note}")
        return found

    def _near(self, length: int) -> Iterator[int]:
        yield from dict.fromkeys(length + more for more in (0, -1, 1, -2, 2))
        least, most = self.ends
        within = [*self._found, least, most, *range(most, least - 1, -1)]
        yield from sorted(dict.fromkeys(within), key=lambda one: abs(one - length))

    def fit_sizes(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes of a check, so that every text it runs has a length that is taken."""
        found = dict(sizes)
        if "pieces" in sizes and "text" not in sizes:  # with it they are several texts in a row
            total = sum(sizes["pieces"])
            found["pieces"] = _resize(sizes["pieces"], self.fit(total, min(total, FEWEST)))
        if "length" not in sizes:
            return found
        length = sizes["length"]
        found["length"] = self.fit(length, min(length, FEWEST))
        for name in ("real", "short"):  # parts of it that run alone
            if name in sizes and sizes[name] < length:
                low = 1 + max(1, sizes.get("steps", 0))
                found[name] = self.fit(sizes[name], low, found["length"] - 1)
        return found

    @property
    def refused(self) -> dict[int, SubjectError]:
        """What was tried and refused, so far."""
        return {length: one for length, one in sorted(self._found.items()) if one is not None}

    @property
    def note(self) -> str:
        """Which lengths are taken, and what the code raises at others; empty if it takes all."""
        if self._block > 1:
            return self._block_note
        refused = {length: one for length, one in self.refused.items() if length <= LONGEST}
        if not refused:
            return ""
        least, most = self.ends
        text = f"; it takes texts of {least} to {most}" if least < most else ""
        text = text or f"; it takes texts of {most} only"
        between = [length for length in refused if least < length < most]
        text += f", but not {_list(between)}" if between else ""
        told = [one for one in (*between[:1], least - 1, most + 1) if one in refused]
        return f"{text} ({'; '.join(refused[one].sentence() for one in told)})"

    @cached_property
    def _block_note(self) -> str:
        block, (_, most) = self._block, self.ends
        if self._picture:
            return f"; a picture always has {block} patches: those after the ones drawn are 0"
        text = f"multiples of {block}" if most > block else f"{block}, its only length"
        text = f"; texts are filled up to {text}: it does not take every length"
        error = self._unfilled(FEWEST)
        return text if error is None else f"{text} ({error.sentence()})"


def _list(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths[:SHOWN])) + (" …" if len(lengths) > SHOWN else "")


def _resize(pieces: Sequence[int], total: int) -> list[int]:
    """Pieces that add up to a total: the last ones go, or the last is longer."""
    found: list[int] = []
    for piece in pieces:
        rest = total - sum(found)
        found += [min(piece, rest)] if rest > 0 else []
    found[-1] += total - sum(found)
    return found
