"""Tokenizers: back and forth without loss, and nothing foreign gets in by JSON."""

import copy
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab import registry
from attnlab.data.tokens import MASK, PAD, Bytes, Characters, tokenizer_from_json

TEXT = "Zoë läuft,\n\x00 日本 🙂 nach Hause. Zoë läuft heim.\n"
# one comes with a model and learns nothing: tests/interop/test_tokens.py
NAMES = [option.name for option in registry.options("tokenizer") if option.name != "huggingface"]


def trained(name, special=True, text=TEXT):
    if name == "bpe":
        pytest.importorskip("tokenizers")
    return registry.load("tokenizer", name)().train([text[:7], text[7:]], special)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_gives_the_text_back(name, special):
    tokenizer = trained(name, special)
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int64 and ids.min() >= (2 if special else 0)
    assert ids.max() < tokenizer.size
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.encode("").shape == (0,) and tokenizer.decode([]) == ""


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_texts_encoded_together_are_as_each_alone(name, special):
    tokenizer = trained(name, special)
    texts = [TEXT[:5], "", TEXT, TEXT[3:9]]
    found = tokenizer.encode_each(texts)
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text).tolist() for text in texts]
    with pytest.raises(ValueError, match=r"surrogate|unknown"):
        tokenizer.encode_each(["a", "\ud800"])


@pytest.mark.parametrize("name", NAMES)
def test_marks_come_first_and_decode_to_their_text(name):
    tokenizer = trained(name)
    assert (tokenizer.pad, tokenizer.mask) == (0, 1)
    shown = tokenizer.decode([1, *tokenizer.encode("Zoë"), 0])
    assert shown == f"{MASK}Zoë{PAD}"
    assert tokenizer.encode(shown).tolist() == [1, *tokenizer.encode("Zoë"), 0]
    assert trained(name, special=False).pad is None


@pytest.mark.parametrize("mark", [PAD, MASK])
@pytest.mark.parametrize("name", NAMES)
def test_text_with_a_mark_is_refused_only_when_marks_are_wanted(name, mark):
    with pytest.raises(ValueError, match=f"the text holds '{mark}'"):
        trained(name, text=TEXT + mark)
    assert trained(name, special=False, text=TEXT + mark).decode([5])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_survives_json(name, special):
    tokenizer = trained(name, special)
    assert tokenizer.to_json()["name"] == name
    again = tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert type(again) is type(tokenizer) and again.to_json() == tokenizer.to_json()
    assert (again.size, again.mask) == (tokenizer.size, tokenizer.mask)
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_characters_are_sorted_after_the_marks():
    tokenizer = Characters().train(["cab", "ad"], True)
    assert tokenizer.decode(range(tokenizer.size)) == PAD + MASK + "abcd"
    assert Characters().train(["ba"], False).encode("ab").tolist() == [0, 1]


@pytest.mark.parametrize("wrong", ["x", "\U0010ffff", "\ud800", PAD])
def test_an_unknown_character_is_named_with_its_place(wrong):
    tokenizer = Characters().train(["abc"], False)
    with pytest.raises(ValueError) as caught:
        tokenizer.encode(f"ab{wrong}{wrong}")
    assert f"character {wrong!r} at position 2 is unknown" in str(caught.value)


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_half_a_surrogate_pair_is_refused(name):
    with pytest.raises(ValueError, match="at position 1 is half of a surrogate pair"):
        trained(name).encode("a\udc80")


def test_cut_bytes_decode_to_a_replacement():
    tokenizer = Bytes().train([], False)
    assert tokenizer.size == 256 and Bytes().train([], True).size == 258
    assert tokenizer.decode(tokenizer.encode("aé")[:2]) == "a\ufffd"


@pytest.mark.parametrize("wrong", [-1, 10_000])
@pytest.mark.parametrize("name", NAMES)
def test_a_token_that_does_not_exist_is_named(name, wrong):
    with pytest.raises(ValueError, match=f"token {wrong} does not exist; this tokenizer has 0 to"):
        trained(name).decode([2, wrong])


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=PAD + MASK), min_size=1))
def test_any_text_comes_back(text):
    assert Bytes().train([text], True).decode(Bytes().train([text], True).encode(text)) == text
    tokenizer = Characters().train(text, True)  # characters are pieces too
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.size == 2 + len(set(text))


def test_bpe_makes_text_shorter_the_same_way_each_time():
    one, two = (trained("bpe", text=TEXT * 20) for _ in range(2))
    assert one.to_json() == two.to_json()
    assert len(one.encode(TEXT)) < len(TEXT.encode()) / 2 and one.size > 258


def test_bpe_has_room_for_every_byte():
    with pytest.raises(ValueError, match=r"vocabulary is 257; .* use 258 or more"):
        registry.load("tokenizer", "bpe")(vocabulary=257)


def test_bpe_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'attnlab\[hf\]'"):
        registry.load("tokenizer", "bpe")().train([TEXT], True)


GOOD = {"name": "characters", "special": True, "alphabet": ["a", "b"]}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "saved as a JSON object"),
        ({}, "the name of a saved tokenizer is None; it must be a text"),
        ({**GOOD, "name": ["characters"]}, "the name of a saved tokenizer is"),
        ({**GOOD, "name": "character"}, "did you mean 'characters'"),
        ({**GOOD, "special": 1}, "special is 1"),
        ({**GOOD, "extra": 1}, "has the fields name, special, alphabet"),
        ({"name": "characters", "special": True}, "has the fields name, special, alphabet"),
        ({**GOOD, "alphabet": "ab"}, "must be a list of characters"),
        ({**GOOD, "alphabet": ["a", "a"]}, "holds 'a' twice"),
        ({**GOOD, "alphabet": ["a", PAD]}, "twice"),
        ({**GOOD, "alphabet": ["ab"]}, "must be one character"),
        ({**GOOD, "alphabet": [["a"]]}, "must be one character"),
        ({**GOOD, "alphabet": [""]}, "must be one character"),
        ({**GOOD, "alphabet": ["\ud800"]}, "half of a surrogate pair"),
        ({"name": "characters", "special": False, "alphabet": []}, "empty"),
        ({"name": "bpe", "special": True, "tokenizers": "x"}, "must hold byte-level BPE"),
    ],
)
def test_foreign_json_is_told_the_rule(plain, message):
    with pytest.raises(ValueError) as caught:
        tokenizer_from_json(plain)
    assert message in str(caught.value)
    assert tokenizer_from_json(GOOD).size == 4  # the rule is not too strict


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["model"], None),
        (["model", "type"], "WordPiece"),
        (["pre_tokenizer", "type"], "Whitespace"),
        (["decoder"], None),
        (["model", "vocab"], ["a"]),
        (["model", "vocab", "a"], 0),
        (["model", "vocab", "a"], -1),
        (["model", "vocab", "a"], True),
        (["model", "vocab", "a"], 10**30),
        (["model", "vocab", "new"], 10**6),
        (["model", "vocab"], {PAD: 0, MASK: 1}),
        (["model", "merges"], {}),
        (["model", "merges"], ["a b"]),
        (["model", "merges"], [["a"]]),
        (["model", "merges"], [["a", 1]]),
        (["model", "merges"], [["a", "b", "c"]]),
        (["model", "merges"], [["no such", "words"]]),
    ],
)
def test_foreign_bpe_is_refused(path, value):
    plain = copy.deepcopy(trained("bpe").to_json())
    inner = plain["tokenizers"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=r"^tokenizers"):
        tokenizer_from_json(plain)


def test_bpe_that_lacks_bytes_is_refused():
    plain = copy.deepcopy(trained("bpe").to_json())
    plain["tokenizers"]["model"].update(vocab={PAD: 0, MASK: 1}, merges=[])
    with pytest.raises(ValueError, match="lacks 256 of the 256 bytes"):
        tokenizer_from_json(plain)
