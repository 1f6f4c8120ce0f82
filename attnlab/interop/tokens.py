"""Our tokenizers as files that `AutoTokenizer` loads: the same ids and the same text.

Characters are words of one character, bytes are byte-level BPE without merges, and our BPE is one
already. The marks □ and ⁇ are special tokens there as they are here.
"""

import re
from pathlib import Path
from typing import Any

from attnlab.data.bpe import library
from attnlab.data.huggingface import HuggingFaceTokenizer
from attnlab.data.tokens import MASK, PAD, ByteTokenizer, CharacterTokenizer, Tokenizer
from attnlab.interop.folder import read_object

PIECE = 500  # tokens of a sample
BESIDE = ("tokenizer_config.json", "special_tokens_map.json")
ADDED = "added_tokens.json"  # each token with its number
ANY = r"[\s\S]"  # one character, a newline too


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of a tokenizer.json."""
    import json

    if isinstance(tokenizer, CharacterTokenizer):
        found: dict[str, Any] = json.loads(_of_characters(tokenizer))
    elif isinstance(tokenizer, ByteTokenizer):
        found = json.loads(_of_bytes(tokenizer))
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
    """Texts that show whether two tokenizers agree: all of its tokens, and what people write."""
    texts = ["The sun.\n\n  It's 42 déjà-vu — 日本 🙂\t\x00end "]
    for first in range(0, tokenizer.size, PIECE):
        piece = range(first, min(first + PIECE, tokenizer.size))
        texts.append(tokenizer.decode(list(piece)).replace("\ufffd", ""))
    return [one for one in texts if one and _encodes(tokenizer, one)]


def named(folder: Path) -> list[str]:
    """The tokens that files beside a tokenizer.json name, which AutoTokenizer adds or looks for."""
    found: set[str] = set()
    for name in BESIDE:
        if (folder / name).is_file():
            _collect(read_object(folder / name), found)
    if (folder / ADDED).is_file():
        found.update(read_object(folder / ADDED))
    return sorted(found - {""})


def _collect(value: object, found: set[str], of_tokens: bool = False) -> None:
    """Every text that is the value of a token, in any of the forms of several versions."""
    if isinstance(value, str):
        found.update({value} if of_tokens else ())
    elif isinstance(value, list):
        for one in value:
            _collect(one, found, of_tokens)
    elif isinstance(value, dict) and isinstance(value.get("content"), str):
        found.add(value["content"])
    elif isinstance(value, dict):
        for key, one in value.items():
            _collect(one, found, of_tokens or bool(re.search(r"_tokens?(_decoder)?$", key)))


def _encodes(tokenizer: Tokenizer, text: str) -> bool:
    try:
        tokenizer.encode(text)
    except ValueError:
        return False
    return True


def _marks(tokenizer: Tokenizer) -> list[str]:
    return [PAD, MASK] if tokenizer.special else []


def _of_characters(tokenizer: CharacterTokenizer) -> str:
    parts = library()
    words = {one: n for n, one in enumerate([*_marks(tokenizer), *tokenizer.alphabet])}
    # a character that is no word raises, as ours does, since the unknown token is none either
    made = parts.Tokenizer(parts.models.WordLevel(vocab=words, unk_token="<unknown>"))
    made.pre_tokenizer = parts.pre_tokenizers.Split(parts.Regex(ANY), behavior="isolated")
    made.decoder = parts.decoders.Fuse()
    made.add_special_tokens(_marks(tokenizer))
    written: str = made.to_str()
    return written


def _of_bytes(tokenizer: ByteTokenizer) -> str:
    parts = library()
    marks = _marks(tokenizer)
    words = {mark: n for n, mark in enumerate(marks)}
    words |= {letter: byte + len(marks) for byte, letter in enumerate(byte_letters())}
    made = parts.Tokenizer(parts.models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = parts.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = parts.decoders.ByteLevel()
    made.add_special_tokens(marks)
    written: str = made.to_str()
    return written


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
