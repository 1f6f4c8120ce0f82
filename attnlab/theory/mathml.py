"""Formulas of the claims as MathML, from the plain text in which they are written.

    q = β(k_a + k_b)        letters, explicit indices, brackets
    αᵢ, hₜ₋₁, A⁽¹⁾, Aᵀ, q′    indices and exponents of Unicode
    e^(−g), 2⁻⁸, √d, w/2     exponents, roots, fractions
    (a  b; c  d)             a matrix, where no function stands before the bracket
    for all i ≠ j            words

An element is a list: its name, its text or its children, and its attributes if it has any. It is
plain data, which the page builds elements from: nothing is ever read as markup.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any, Literal

from attnlab import names

Element = list[Any]  # [name, text or children] or [name, text or children, attributes]
Piece = Element | str
Kind = Literal["atom", "operator", "words"]

NAMES = {  # upright, as one word
    *("exp", "log", "ln", "sin", "cos", "tanh", "max", "min", "mod", "softmax", "slide", "repeat"),
    *("AUROC", "Var", "Bernoulli", "accuracy", "mean"),
    *names.WRITTEN.values(),
}
PRODUCTS = {"Nd", "ib", "it", "ds"}  # letters side by side, as those in capitals are
BRACKETS = {"(": ")", "[": "]", "{": "}", "⟨": "⟩", "⌊": "⌋"}
BARS = "|‖"
PRIMES = "′″"
LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱʰᵀ"
BREAKS = set("=≤≥<>≠≈→⇒⇔↔+−±,;:~")  # where a fraction with spaces around its stroke ends
RELATIONS = set("=≤≥<>≠≈→⇒⇔↔")
SIGNS = RELATIONS | {"+"}
LARGE = {"Σ": "∑", "∏": "∏"}
LONG = 20  # letters after which a line may also end before a sum
GAP, THIN, WORD = "2em", "0.17em", "0.33em"

_WORDS = re.compile(r"[A-Za-z]+(?:-[A-Za-z]{2,})+|[a-z]{2,}/[a-z]{2,}|[A-Za-z]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*|½")
_SUB = re.compile(rf"[{LOWERED}]+(?:,[{LOWERED}]+)*|_([A-Za-z]+|\d)(′?)((?:,[{LOWERED}]+)*)")
_SUP = re.compile(rf"[{RAISED}]+|\^([^(\s])")


def formula(text: str) -> list[list[list[Piece]]]:
    """A formula line by line, in parts that several spaces keep apart, in pieces."""
    return [[pieces(part) for part in _parts(one)] for one in text.splitlines()]


def pieces(text: str) -> list[Piece]:
    """A formula in pieces between which a line may end: words, and before a relation.

    Browsers break no line inside of an element `math`, and screens are narrow.
    """
    found: list[Piece] = []
    row: list[_Item] = []

    def flush() -> None:
        if row:
            found.append(["math", [_row(row)], {"displaystyle": "true"}])
            row.clear()

    for item in _Reader(text).items():
        if item.kind == "words":
            flush()
            found.append(str(item.element[1]))
        elif item.sign and not item.spaced and not row and found and isinstance(found[-1], str):
            found[-1] += item.sign  # a comma behind a word
        else:
            if item.sign in RELATIONS or (item.sign in ("+", "−") and _width(row) > LONG):
                flush()
            row.append(item)
    flush()
    return found


def _parts(text: str) -> list[str]:
    """What several spaces keep apart, outside of brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"(\s{2,}|[()\[\]⟨⟩])", text.strip()):
        if depth <= 0 and piece.isspace() and len(piece) > 1:
            parts.append("")
            continue
        depth += (piece in "([⟨") - (piece in ")]⟩") if len(piece) == 1 else 0
        parts[-1] += piece
    joined = [parts[0]]
    for before, part in pairwise(parts):
        if before in SIGNS:  # a sign alone begins what it leads to
            joined[-1] += f" {part}"
        else:
            joined.append(part)
    return joined


@dataclass(frozen=True)
class _Item:
    element: Element
    kind: Kind
    spaced: bool  # a space stands before it
    inside: Sequence["_Item"] | None = None  # of round brackets, which a fraction needs no more

    @property
    def sign(self) -> str:
        return str(self.element[1]) if self.kind == "operator" else ""


class _Reader:
    """Reads from left to right; `letters`: every letter is a name of its own."""

    def __init__(self, text: str, letters: bool = False) -> None:
        self.text, self.at, self.letters = text, 0, letters

    def items(self, closing: str = "") -> list[_Item]:
        """Up to the closing bracket, which is passed over, or to the end."""
        found: list[_Item] = []
        while self.at < len(self.text):
            before = self.at
            self.at += len(self.text[before:]) - len(self.text[before:].lstrip())
            if self.at == len(self.text):
                break
            if closing and self.text[self.at] == closing and not self._divides():
                self.at += 1
                break
            spaced = self.at > before
            wide = spaced and self.at - before > 1
            if wide and found:
                found.append(_Item(["mspace", "", {"width": GAP}], "operator", False))
            found.append(replace(self._item(bool(found) and not spaced), spaced=spaced))
        return _fractions(_merge(found))

    def _divides(self) -> bool:
        """A bar with space on both sides: p(x | h)."""
        at = self.at
        return self.text[at] in BARS and self.text[at - 1 : at + 2] in {f" {one} " for one in BARS}

    def _item(self, follows: bool) -> _Item:
        """`follows` something without a space: then a bracket holds arguments."""
        sign = self.text[self.at]
        if found := _NUMBER.match(self.text, self.at):
            self.at = found.end()
            return self._scripts(["mn", found[0]])
        if found := _WORDS.match(self.text, self.at):
            return self._word(found[0])
        if sign in BRACKETS or (sign in BARS and not self._divides() and self._closes(sign)):
            return self._bracket(sign, follows)
        self.at += 1
        if sign == "√":
            inside = self._item(False)
            return _Item(["msqrt", [_row(inside.inside or [inside])]], "atom", False)
        if sign in LARGE and self.text[self.at : self.at + 1] != "_":  # Σ_a is a matrix
            return self._scripts(["mo", LARGE[sign]])
        if sign.isalpha() or sign in "∂∞…":
            return self._scripts(["mi", sign])
        return _Item(["mo", sign], "operator", False)

    def _word(self, word: str) -> _Item:
        self.at += len(word)
        if (
            len(word) == 1
            or self.letters
            or word in PRODUCTS
            or (word.isupper() and word not in NAMES)
        ):
            self.at -= len(word) - 1
            return self._scripts(["mi", word[0]])
        if word in NAMES:
            return self._scripts(["mi", word])
        return _Item(["mtext", word], "words", False)

    def _closes(self, bar: str) -> bool:
        return bar in self.text[self.at + 1 :]

    def _bracket(self, opening: str, follows: bool) -> _Item:
        self.at += 1
        closing = BRACKETS.get(opening, opening)
        inside = self.items(closing)
        rows = _split(inside, ";")
        matrix = opening == "(" and len(rows) > 1 and not follows
        tall = matrix or any(_is_tall(item.element) for item in inside)
        ends = _end(opening, "prefix", tall), _end(closing, "postfix", tall)
        if matrix:
            table = [["mtr", [["mtd", [_row(cell)]] for cell in _cells(row)]] for row in rows]
            return self._scripts(["mrow", [ends[0], ["mtable", table], ends[1]]])
        found = self._scripts(["mrow", [ends[0], _row(inside), ends[1]]])
        plain = found.element[0] == "mrow"
        return replace(found, inside=inside) if opening == "(" and plain else found

    def _scripts(self, base: Element) -> _Item:
        """What follows an atom below and above the line, in any order."""
        low: list[Element] = []
        high: list[Element] = []
        while self.at < len(self.text):
            if self.text.startswith("^(", self.at):
                self.at += 2
                reader = _Reader(self.text, letters=True)
                reader.at = self.at
                high.append(_row(reader.items(")")))
                self.at = reader.at
            elif self.text[self.at] in PRIMES:
                base = _primed(base, self.text[self.at])
                self.at += 1
            elif found := _SUP.match(self.text, self.at):
                self.at = found.end()
                high.append(_raised(found[1] or found[0]))
            elif found := _SUB.match(self.text, self.at):
                self.at = found.end()
                low.append(_lowered(found))
            else:
                break
        if low and high:
            return _Item(["msubsup", [base, _join(low), _join(high)]], "atom", False)
        if low or high:
            base = ["msub" if low else "msup", [base, _join(low or high)]]
        return _Item(base, "atom", False)


def _primed(base: Element, prime: str) -> Element:
    """The sign is a raised one already."""
    return ["mrow", [base, ["mo", prime, {"lspace": "0", "rspace": "0"}]]]


def _raised(text: str) -> Element:
    plain = unicodedata.normalize("NFKC", text)
    if plain == "T" and text == "ᵀ":
        return ["mi", "⊤"]
    return _row(_Reader(plain, letters=True).items())


def _lowered(found: re.Match[str]) -> Element:
    name, prime, more = found[1], found[2], found[3]
    if name is None:
        return _row(_Reader(unicodedata.normalize("NFKC", found[0]), letters=True).items())
    first: Element = ["mn" if name.isdigit() else "mi", name]
    parts = [_primed(first, prime) if prime else first]
    for one in filter(None, more.split(",")):
        parts += [["mo", ","], ["mn", unicodedata.normalize("NFKC", one)]]
    return _join(parts)


def _end(sign: str, form: str, tall: bool) -> Element:
    """A bracket or bar; only around what is tall does it grow: many fonts grow it badly."""
    stretchy = "true" if tall else "false"
    return ["mo", sign, {"form": form, "lspace": "0", "rspace": "0", "stretchy": stretchy}]


def _is_tall(element: Element) -> bool:
    inside = element[1]
    return element[0] in ("mfrac", "mtable") or (
        not isinstance(inside, str) and any(map(_is_tall, inside))
    )


def _merge(items: Sequence[_Item]) -> list[_Item]:
    """Words in a row are one text; an "a" between two of them is a word too."""
    found: list[_Item] = []
    for place, item in enumerate(items):
        after = items[place + 1 : place + 2]
        article = (
            item.element == ["mi", "a"]
            and found
            and found[-1].kind == "words"
            and after
            and after[0].kind == "words"
        )
        if (item.kind == "words" or article) and found and found[-1].kind == "words":
            text = f"{found[-1].element[1]} {item.element[1]}"
            found[-1] = replace(found[-1], element=["mtext", text])
        else:
            found.append(item)
    return found


def _fractions(items: Sequence[_Item]) -> list[_Item]:
    """Strokes as fractions: w/2 takes what touches it, a / b all up to a sum or a relation."""
    found, rest = list[_Item](), list(items)
    while rest:
        item = rest.pop(0)
        if item.sign != "/":
            found.append(item)
            continue
        tight = not item.spaced
        above, below = list[_Item](), list[_Item]()
        while found and not _ends(found[-1], tight):
            above.insert(0, found.pop())
            if tight and above[0].spaced:
                break
        while rest and not _ends(rest[0], tight) and not (tight and rest[0].spaced):
            below.append(rest.pop(0))
        if not above or not below:
            found += [*above, item, *below]
            continue
        halves = [
            _row(part[0].inside or part) if len(part) == 1 else _row(part)
            for part in (above, below)
        ]
        found.append(_Item(["mfrac", halves], "atom", above[0].spaced))
    return found


def _ends(item: _Item, tight: bool) -> bool:
    if item.kind == "words":
        return True
    return item.kind == "operator" and (tight or item.sign in BREAKS or item.sign == "")


def _split(items: Sequence[_Item], sign: str) -> list[list[_Item]]:
    rows: list[list[_Item]] = [[]]
    for item in items:
        if item.sign == sign:
            rows.append([])
        else:
            rows[-1].append(item)
    return rows


def _cells(row: Sequence[_Item]) -> list[list[_Item]]:
    cells: list[list[_Item]] = [[]]
    for item in row:
        if item.element[0] == "mspace":
            cells.append([])
        else:
            cells[-1].append(item)
    return cells


def _row(items: Sequence[_Item]) -> Element:
    """Side by side, with the spaces that a reader expects and MathML does not make."""
    found: list[Element] = []
    before: _Item | None = None
    for item in items:
        apart = before is not None and item.spaced and "operator" not in (before.kind, item.kind)
        worded = before is not None and item.spaced and "words" in (before.kind, item.kind)
        if worded or apart:
            found.append(["mspace", "", {"width": WORD if worded else THIN}])
        leads = before is None and item.sign in SIGNS and len(items) > 1
        found.append([*item.element, {"lspace": "0", "rspace": WORD}] if leads else item.element)
        before = item
    return _join(found)


def _width(items: Sequence[_Item]) -> int:
    """About how many letters stand side by side."""

    def letters(element: Element) -> int:
        inside = element[1]
        return len(inside) if isinstance(inside, str) else sum(map(letters, inside))

    return sum(letters(item.element) for item in items)


def _join(elements: Sequence[Element]) -> Element:
    return elements[0] if len(elements) == 1 else ["mrow", list(elements)]


def markup(element: Element) -> str:
    """An element as MathML to be written into a page."""
    name, inside, attributes = (*element, {})[:3]
    given = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    text = escape(inside) if isinstance(inside, str) else "".join(map(markup, inside))
    return f"<{name}{given}>{text}</{name}>"
