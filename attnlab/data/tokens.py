"""Tokenizers: text to whole numbers and back, saved as plain JSON.

With `special=True` two marks stand in front of all others: PAD "□" is 0 and MASK "⁇" is 1. Text to
train on may not hold them; in `encode` they mean the marks, so that what `decode` shows can be
encoded again.

Cost: a few nanoseconds a character. Byte-pair encoding is in bpe.py.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from numpy.typing import ArrayLike

from attnlab import registry
from attnlab.config import settings

PAD, MASK = "□", "⁇"


class Tokenizer(ABC):
    """What every tokenizer offers: `size` ids, of which `pad` and `mask` may be None."""

    size: int

    def __init__(self, special: bool) -> None:
        self.special = special
        self.pad = 0 if special else None
        self.mask = 1 if special else None

    @abstractmethod
    def encode(self, text: str) -> Int64[np.ndarray, " t"]: ...

    def prompt(self, text: str) -> Int64[np.ndarray, " t"]:
        """The text as the beginning of a longer one."""
        return self.encode(text)

    def encode_each(self, texts: Sequence[str]) -> list[Int64[np.ndarray, " _t"]]:
        """Each text by itself; faster than one after the other where there is a way."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """All there is to it, for `tokenizer_from_json`."""

    def decode(self, ids: ArrayLike) -> str:
        array = np.asarray(ids, dtype=np.int64).reshape(-1)
        wrong = (array < 0) | (array >= self.size)
        if wrong.any():
            raise ValueError(
                f"token {array[wrong][0]} does not exist; this tokenizer has 0 to {self.size - 1}"
            )
        return self._text(array)

    @abstractmethod
    def _text(self, ids: Int64[np.ndarray, " t"]) -> str: ...


@runtime_checkable
class TokenizerSettings(Protocol):
    """What a registered tokenizer's settings offer: it is trained, saved and restored."""

    saved: ClassVar[tuple[str, ...]]  # fields of its JSON besides "name" and "special"

    def train(self, pieces: Iterable[str], special: bool) -> Tokenizer: ...

    @staticmethod
    def restore(plain: dict[str, Any], special: bool) -> Tokenizer:
        """From JSON that has these fields; a ValueError if they do not hold what was saved."""


@settings
class Characters:
    """One token for each distinct character, in the order of Unicode."""

    saved: ClassVar[tuple[str, ...]] = ("alphabet",)

    def train(self, pieces: Iterable[str], special: bool) -> "CharacterTokenizer":
        found: set[str] = set()
        for piece in without_marks(pieces, special):
            found.update(piece)
        return CharacterTokenizer(sorted(found), special)

    @staticmethod
    def restore(plain: dict[str, Any], special: bool) -> "CharacterTokenizer":
        return CharacterTokenizer(_alphabet(plain["alphabet"], special), special)


class CharacterTokenizer(Tokenizer):
    def __init__(self, alphabet: list[str], special: bool) -> None:
        super().__init__(special)
        self.alphabet = alphabet
        all_of_them = "".join([PAD, MASK, *alphabet] if special else alphabet)
        try:
            self._codes = np.frombuffer(all_of_them.encode("utf-32-le"), dtype="<u4")
        except UnicodeEncodeError as error:
            bad = all_of_them[error.start]
            raise ValueError(f"{bad!r} is half of a surrogate pair, not a character") from None
        self.size = len(self._codes)
        if self.size == 0:
            raise ValueError("a tokenizer of characters needs text; this text is empty")
        # the last place stands for every code above the highest known one
        self._table = np.full(int(self._codes.max()) + 2, -1, dtype=np.int64)
        self._table[self._codes] = np.arange(self.size)

    def encode(self, text: str) -> Int64[np.ndarray, " t"]:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        ids = self._table[np.minimum(codes, len(self._table) - 1)]
        if ids.size and ids.min() < 0:
            place = int(np.argmin(ids))
            raise ValueError(
                f"character {text[place]!r} at position {place} is unknown: the model has not "
                f"seen it; use the {self.size} characters of its training text"
            )
        return ids

    def _text(self, ids: Int64[np.ndarray, " t"]) -> str:
        return self._codes[ids].tobytes().decode("utf-32-le")

    def to_json(self) -> dict[str, Any]:
        return {"name": "characters", "special": self.special, "alphabet": list(self.alphabet)}


@settings
class Bytes:
    """One token for each of the 256 bytes of UTF-8: no text is unknown."""

    saved: ClassVar[tuple[str, ...]] = ()

    def train(self, pieces: Iterable[str], special: bool) -> "ByteTokenizer":
        for _ in without_marks(pieces, special):
            pass
        return ByteTokenizer(special)

    @staticmethod
    def restore(plain: dict[str, Any], special: bool) -> "ByteTokenizer":
        return ByteTokenizer(special)


class ByteTokenizer(Tokenizer):
    def __init__(self, special: bool) -> None:
        super().__init__(special)
        self._shift = np.int64(2 if special else 0)
        self.size = 256 + int(self._shift)

    def encode(self, text: str) -> Int64[np.ndarray, " t"]:
        parts = re.split(f"([{PAD}{MASK}])", text) if self.special else [text]
        encoded = [np.frombuffer(utf8(part), dtype=np.uint8) + self._shift for part in parts]
        encoded[1::2] = [np.array([part == MASK], dtype=np.int64) for part in parts[1::2]]
        return np.concatenate(encoded)

    def _text(self, ids: Int64[np.ndarray, " t"]) -> str:
        table = [bytes([byte]) for byte in range(256)]
        if self.special:
            table = [PAD.encode(), MASK.encode(), *table]
        return b"".join(table[token] for token in ids).decode(errors="replace")

    def to_json(self) -> dict[str, Any]:
        return {"name": "bytes", "special": self.special}


def tokenizer_from_json(plain: object) -> Tokenizer:
    """The inverse of `to_json`; a ValueError for anything that is not its work."""
    if not isinstance(plain, dict):
        raise ValueError("a tokenizer is saved as a JSON object; this is something else")
    name, special = plain.get("name"), plain.get("special")
    if not isinstance(name, str):
        raise ValueError(f"the name of a saved tokenizer is {name!r}; it must be a text")
    settings: TokenizerSettings = registry.load("tokenizer", name)()
    if not isinstance(special, bool):
        raise ValueError(f"special is {special!r}; a saved tokenizer has true or false there")
    if set(plain) != {"name", "special", *settings.saved}:
        found = ", ".join(sorted(map(str, plain)))
        wanted = ", ".join(["name", "special", *settings.saved])
        raise ValueError(f"a saved {name} tokenizer has the fields {wanted}; this has {found}")
    return settings.restore(plain, special)


def _alphabet(plain: object, special: bool) -> list[str]:
    if not isinstance(plain, list):
        raise ValueError("alphabet must be a list of characters")
    seen = {PAD, MASK} if special else set()
    for entry in plain:
        if not isinstance(entry, str) or len(entry) != 1:
            raise ValueError(f"alphabet holds {entry!r}; each entry must be one character")
        if entry in seen:
            raise ValueError(f"alphabet holds {entry!r} twice; each character may be there once")
        seen.add(entry)
    return plain


def without_marks(pieces: Iterable[str], special: bool) -> Iterator[str]:
    for piece in pieces:
        for mark in (PAD, MASK) if special else ():
            if mark in piece:
                raise ValueError(
                    f"the text holds {mark!r}, which stands for a mark of the tokenizer; "
                    "take it out of the text"
                )
        yield piece


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {text[error.start]!r} at position {error.start} is half of a surrogate "
            "pair; write whole characters"
        ) from None
