"""Byte-pair encoding over bytes, by the `tokenizers` package: imported only when it is used.

Cost: about a microsecond a character to encode, a few to train.
"""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64

from attnlab.config import setting, settings
from attnlab.data.tokens import MASK, PAD, Tokenizer, utf8, without_marks
from attnlab.extras import missing


@settings
class Bpe:
    """Byte-pair encoding over bytes: frequent pairs become tokens, no text is unknown."""

    saved: ClassVar[tuple[str, ...]] = ("tokenizers",)
    vocabulary: int = setting(
        1024, low=258, because="256 bytes and 2 marks come first", about="tokens to learn, at most"
    )

    def train(self, pieces: Iterable[str], special: bool) -> "BpeTokenizer":
        parts = library()
        blank = parts.Tokenizer(parts.models.BPE())
        blank.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = parts.trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            special_tokens=[PAD, MASK] if special else [],
            initial_alphabet=sorted(parts.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        texts = without_marks(pieces, special)
        _in_thread(lambda: blank.train_from_iterator(texts, trainer))
        model = json.loads(blank.to_str())["model"]
        merges = [(left, right) for left, right in model["merges"]]
        return BpeTokenizer(model["vocab"], merges, special)

    @staticmethod
    def restore(plain: dict[str, Any], special: bool) -> "BpeTokenizer":
        return bpe_from_json(plain["tokenizers"], special)


class BpeTokenizer(Tokenizer):
    def __init__(
        self, vocabulary: dict[str, int], merges: list[tuple[str, str]], special: bool
    ) -> None:
        super().__init__(special)
        parts = library()
        self._inner = parts.Tokenizer(parts.models.BPE(vocab=vocabulary, merges=merges))
        self._inner.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._inner.decoder = parts.decoders.ByteLevel()
        if special:
            self._inner.add_special_tokens([PAD, MASK])
        self.size = len(vocabulary)

    def encode(self, text: str) -> Int64[np.ndarray, " t"]:
        utf8(text)
        return np.array(self._inner.encode(text).ids, dtype=np.int64)

    def encode_each(self, texts: Sequence[str]) -> list[Int64[np.ndarray, " _t"]]:
        for text in texts:
            utf8(text)
        return ids_of_each(self._inner, texts)

    def _text(self, ids: Int64[np.ndarray, " t"]) -> str:
        return self._inner.decode(ids.tolist(), skip_special_tokens=False)

    def to_json(self) -> dict[str, Any]:
        inner = json.loads(self._inner.to_str())
        return {"name": "bpe", "special": self.special, "tokenizers": inner}


def bpe_from_json(plain: object, special: bool) -> BpeTokenizer:
    """Only words and merges are taken over, so that no foreign pipeline runs."""
    parts = plain if isinstance(plain, dict) else {}
    model = parts.get("model")
    for part in (model, parts.get("pre_tokenizer"), parts.get("decoder")):
        wanted = "BPE" if part is model else "ByteLevel"
        if not isinstance(part, dict) or part.get("type") != wanted:
            raise ValueError("tokenizers must hold byte-level BPE as this package writes it")
    assert isinstance(model, dict)
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise ValueError("tokenizers.model needs vocab (an object) and merges (a list)")
    ids = list(vocabulary.values())
    if any(type(value) is not int for value in ids) or sorted(ids) != list(range(len(ids))):
        raise ValueError("tokenizers.model.vocab must number its words 0, 1, 2, … without a gap")
    if special and (vocabulary.get(PAD), vocabulary.get(MASK)) != (0, 1):
        raise ValueError(f"tokenizers.model.vocab must have {PAD} at 0 and {MASK} at 1")
    missing = set(library().pre_tokenizers.ByteLevel.alphabet()) - set(vocabulary)
    if missing:
        raise ValueError(f"tokenizers.model.vocab lacks {len(missing)} of the 256 bytes")
    for merge in merges:
        pair = merge if isinstance(merge, list) else []
        words = [*pair, "".join(pair)] if all(isinstance(word, str) for word in pair) else []
        if len(words) != 3 or not all(word in vocabulary for word in words):
            raise ValueError(f"tokenizers.model.merges holds {merge!r}; write two known words")
    return BpeTokenizer(vocabulary, [(left, right) for left, right in merges], special)


def ids_of_each(inner: Any, texts: Sequence[str]) -> list[Int64[np.ndarray, " _t"]]:
    """In the package's own threads (TOKENIZERS_PARALLELISM), without the places of tokens."""
    found = inner.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(one.ids, dtype=np.int64) for one in found]


def library() -> ModuleType:
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401
    except ImportError:
        raise ValueError(missing("tokenizers", "BPE")) from None
    return tokenizers


def _in_thread(work: Callable[[], None]) -> None:
    """Signals are heard between Python's own steps, and a call of the package is a single one.

    Ctrl-C ends the wait for it; the thread goes with the process.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # raised again by who waits for it
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if raised:
        raise raised[0]
