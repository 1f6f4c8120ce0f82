"""The tokenizer of an imported model: what its tokenizer.json says, by the `tokenizers` package.

It is data, no code: a pipeline of the package's own steps. A model may have more rows than its
tokenizer has tokens (Qwen rounds up), so its size is that of the model.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64

from attnlab import json_files
from attnlab.config import settings
from attnlab.data.bpe import ids_of_each, library
from attnlab.data.tokens import Tokenizer, utf8


@contextmanager
def _as_value_error(what: str) -> Iterator[None]:
    """The package raises nothing more special than Exception, and panics with what is none."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise  # it is not of the package
        raise ValueError(f"{what}: {error}") from None


@settings
class HuggingFace:
    """As the model has it that a run starts from; nothing is learned from the text."""

    saved: ClassVar[tuple[str, ...]] = ("size", "tokenizers")

    def train(self, pieces: Iterable[str], special: bool) -> "HuggingFaceTokenizer":
        raise ValueError(
            "tokenizer=huggingface comes with an imported model; give one: start=FOLDER"
        )

    @staticmethod
    def restore(plain: dict[str, Any], special: bool) -> "HuggingFaceTokenizer":
        size = plain["size"]
        if special:
            raise ValueError("special is true; an imported tokenizer has no marks of ours")
        if type(size) is not int or size < 1:
            raise ValueError(f"size is {size!r}; it counts tokens, so it is 1 or more")
        return HuggingFaceTokenizer(plain["tokenizers"], size)


class HuggingFaceTokenizer(Tokenizer):
    def __init__(self, plain: object, size: int) -> None:
        super().__init__(special=False)
        if not isinstance(plain, dict):
            raise ValueError("a tokenizer.json holds a JSON object; this is something else")
        self._plain = plain
        text = json_files.as_json(plain, indent=None).decode()
        with _as_value_error("tokenizer.json is none that can be read"):
            self._inner = library().Tokenizer.from_str(text)
        self._inner.no_padding()
        self._inner.no_truncation()
        self.size, known = size, self._inner.get_vocab_size()
        highest = max(self._inner.get_vocab().values(), default=-1)
        if highest >= size:
            raise ValueError(
                f"the tokenizer has a token {highest} (of {known:,}), and the model {size:,} "
                "tokens; they do not belong together"
            )

    def encode(self, text: str) -> Int64[np.ndarray, " t"]:
        return self._ids(text, marked=False)

    def encode_each(self, texts: Sequence[str]) -> list[Int64[np.ndarray, " _t"]]:
        for text in texts:
            utf8(text)
        with _as_value_error("the tokenizer cannot encode this text"):
            return ids_of_each(self._inner, texts)

    def prompt(self, text: str) -> Int64[np.ndarray, " t"]:
        """With the marks that its texts begin with, such as <s>."""
        return self._ids(text, marked=True)

    def _ids(self, text: str, *, marked: bool) -> Int64[np.ndarray, " t"]:
        utf8(text)
        with _as_value_error("the tokenizer cannot encode this text"):  # an unknown character, say
            found = self._inner.encode(text, add_special_tokens=marked)
        return np.array(found.ids, dtype=np.int64)

    def _text(self, ids: Int64[np.ndarray, " t"]) -> str:
        with _as_value_error("the tokenizer cannot decode these tokens"):
            text: str = self._inner.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "name": "huggingface",
            "special": False,
            "size": self.size,
            "tokenizers": self._plain,
        }
