"""Our tokenizers as files that `AutoTokenizer` loads: the same ids and the same text.

Characters are words of one character, bytes are byte-level BPE without merges, and our BPE is one
already. The marks □ and ⁇ are special tokens there as they are here.
"""

from typing import Any

from attnlab.data.bpe import library
from attnlab.data.huggingface import HuggingFaceTokenizer
from attnlab.data.tokens import MASK, PAD, ByteTokenizer, CharacterTokenizer, Tokenizer

ANY = r"[\s\S]"  # one character, a newline too


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of a tokenizer.json."""
    import json

    if isinstance(tokenizer, CharacterTokenizer):
        found: dict[str, Any] = json.loads(_of_characters(tokenizer).to_str())
    elif isinstance(tokenizer, ByteTokenizer):
        found = json.loads(_of_bytes(tokenizer).to_str())
    else:
        found = tokenizer.to_json()["tokenizers"]
    return found


def tokenizer_config(tokenizer: Tokenizer, context: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    return made | ({"pad_token": PAD, "mask_token": MASK} if tokenizer.special else {})


def from_json(plain: dict[str, Any], size: int) -> HuggingFaceTokenizer:
    """Of a folder's tokenizer.json."""
    return HuggingFaceTokenizer(plain, size)


def samples(tokenizer: Tokenizer) -> list[str]:
    """Texts that show whether two tokenizers agree: its own tokens, and what people write."""
    step = max(1, tokenizer.size // 400)
    every = tokenizer.decode(list(range(0, tokenizer.size, step)))
    texts = [every.replace("\ufffd", ""), "The sun.\n\n  It's 42 déjà-vu — 日本 🙂\t\x00end "]
    return [one for one in texts if _encodes(tokenizer, one)]


def _encodes(tokenizer: Tokenizer, text: str) -> bool:
    try:
        tokenizer.encode(text)
    except ValueError:
        return False
    return True


def _marks(tokenizer: Tokenizer) -> list[str]:
    return [PAD, MASK] if tokenizer.special else []


def _of_characters(tokenizer: CharacterTokenizer) -> Any:
    parts = library()
    words = {one: n for n, one in enumerate([*_marks(tokenizer), *tokenizer.alphabet])}
    # a character that is no word raises, as ours does, since the unknown token is none either
    made = parts.Tokenizer(parts.models.WordLevel(vocab=words, unk_token="<unknown>"))
    made.pre_tokenizer = parts.pre_tokenizers.Split(parts.Regex(ANY), behavior="isolated")
    made.decoder = parts.decoders.Fuse()
    made.add_special_tokens(_marks(tokenizer))
    return made


def _of_bytes(tokenizer: ByteTokenizer) -> Any:
    parts = library()
    marks = _marks(tokenizer)
    words = {mark: n for n, mark in enumerate(marks)}
    words |= {letter: byte + len(marks) for byte, letter in enumerate(byte_letters())}
    made = parts.Tokenizer(parts.models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = parts.decoders.ByteLevel()
    made.add_special_tokens(marks)
    return made


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level BPE.

    Printable bytes of Latin-1 stand for themselves; the others are given the letters from 256 on.
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, hidden = [], 0
    for byte in range(256):
        letters.append(chr(byte if byte in shown else 256 + hidden))
        hidden += byte not in shown
    return letters
