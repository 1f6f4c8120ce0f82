"""The settings of a preparation: what is read, how it becomes tokens, what is kept apart."""

import hashlib
import re
from typing import Literal

from attnlab import config
from attnlab.config import choice, refusal, setting, settings
from attnlab.data.prepared.documents import Cut
from attnlab.data.prepared.sources import Kind
from attnlab.data.tokens import TokenizerSettings

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
PARTS = 16  # of a small source: enough for the cores of a machine to share
LARGEST_PART = 10**9  # bytes; a worker holds a part and its tokens


@settings
class Preparation:
    field: str = setting("text", about="where the text is: a key of JSONL, a column of Parquet")
    kind: Kind | None = setting(
        None, none="what the names of its files say", about="what all files of the source are"
    )
    documents: Cut = setting(
        "auto",
        about="of files of text: lines, each a document; auto: a file up to 1 MiB, else what "
        "stands between blank lines",
    )
    separator: str = setting(
        "\n", about="what a document ends with; written after one that does not"
    )
    validation: float = setting(
        0.01,
        low=0,
        below=1,
        because="it is the part of the documents kept from training",
        about="part of the documents that is kept for validation, chosen by their hashes",
    )
    tokenizer: TokenizerSettings = choice("tokenizer", "bpe", about="how text becomes tokens")
    tokenizer_from: str = setting(
        "", about="a run, a prepared folder or a tokenizer.json whose tokenizer is used"
    )
    sample: str = setting("64MB", about="text that a tokenizer learns from, where it learns pairs")
    bad: Literal["refuse", "skip"] = setting(
        "refuse",
        about="documents that are empty, not UTF-8, not JSON or without the field, and files of "
        "no known kind: the first one ends it, or they are counted and left out",
    )
    part: str | None = setting(
        None,
        none="a 16th of the source, 1MB to 64MB",
        about="text that is worked, and kept in a file, together",
    )
    workers: int | None = setting(
        None, low=1, high=4096, none="one a core", about="processes that encode"
    )

    def check(self) -> None:
        for name in ("sample", "part"):
            try:
                given = getattr(self, name)
                size_of("1" if given is None else given)
            except ValueError as error:
                raise refusal(self, name, str(error)) from None
        if self.part is not None and size_of(self.part) > LARGEST_PART:
            raise refusal(self, "part", "a worker holds it in memory; use 1GB or less")

    def part_of(self, source: int) -> int:
        """Bytes of a part of a source of so many bytes."""
        if self.part is not None:
            return size_of(self.part)
        return min(max(source // PARTS, 10**6), 64 * 10**6)

    @property
    def decides(self) -> dict[str, object]:
        """The settings that the bytes of the result depend on."""
        plain = config.flat(config.to_dict(self))
        return {key: value for key, value in plain.items() if key not in ("bad", "workers")}

    def kept_apart(self, content: bytes) -> bool:
        """Whether a document is for validation: its hash alone decides."""
        digest = hashlib.sha256(content).digest()
        return int.from_bytes(digest[:8], "big") < self.validation * 2.0**64


def size_of(text: str) -> int:
    """Bytes: 64MB, 1.5GiB, 4096."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in UNITS or float(found[1]) * UNITS[found[2].upper()] < 1:
        raise ValueError("a size is a number with B, KB, MB, GB or TB, such as 64MB")
    return int(float(found[1]) * UNITS[found[2].upper()])
