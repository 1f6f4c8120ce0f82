"""Our tokenizers there: the same ids and the same text; and theirs here."""

import json

import pytest

from attnlab.data.bpe import Bpe
from attnlab.data.huggingface import HuggingFace, HuggingFaceTokenizer
from attnlab.data.tokens import Bytes, Characters, tokenizer_from_json
from attnlab.interop import tokens

TEXT = "Hello, wörld! It's 42 日本.\n\n  end 🙂\t" * 3
KINDS = [Characters(), Bytes(), Bpe(vocabulary=300)]


def trained(kind, special):
    return kind.train([TEXT], special)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_they_give_the_same_ids_and_the_same_text(kind, special, tmp_path):
    transformers = pytest.importorskip("transformers", reason="pip install 'attnlab[hf]'")
    ours = trained(kind, special)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens.tokenizer_json(ours)))
    config = tokens.tokenizer_config(ours, 64)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    back = HuggingFaceTokenizer(tokens.tokenizer_json(ours), ours.size)
    texts = [*tokens.samples(ours), TEXT, "", "Hed□lo⁇.□" if special else "Hello."]
    for text in texts:
        ids = ours.encode(text).tolist()
        assert theirs(text).input_ids == back.encode(text).tolist() == ids
        assert theirs.decode(ids) == back.decode(ids) == ours.decode(ids)
    assert theirs.pad_token_id == ours.pad and theirs.mask_token_id == ours.mask
    assert theirs.model_max_length == 64


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_samples_hold_most_tokens(kind):
    ours = trained(kind, False)
    seen = {one for text in tokens.samples(ours) for one in ours.encode(text).tolist()}
    # bytes of half a character cannot stand in a text, and pairs merge with what is beside them
    assert len(seen) > ours.size / 4


def test_a_character_that_is_unknown_here_is_an_error_there_too():
    back = HuggingFaceTokenizer(tokens.tokenizer_json(trained(Characters(), False)), 60)
    with pytest.raises(ValueError, match="cannot encode this text"):
        back.encode("ж")


def marked():
    """As a Llama's: <s> stands before every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"<s>": 0, "a": 1, "b": 2}
    made = Tokenizer(models.WordLevel(vocab=words, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.enable_padding(length=9)
    made.enable_truncation(max_length=2)
    return json.loads(made.to_str())


def test_marks_begin_a_prompt_and_not_a_text_to_train_on():
    made = HuggingFaceTokenizer(marked(), 5)
    assert made.encode("a b a").tolist() == [1, 2, 1], "neither cut nor padded"
    assert made.prompt("a b a").tolist() == [0, 1, 2, 1]


def test_it_is_restored_from_a_checkpoint():
    made = HuggingFaceTokenizer(marked(), 5)
    again = tokenizer_from_json(json.loads(json.dumps(made.to_json())))
    assert again.size == 5 and again.encode("b a").tolist() == [2, 1]


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"size": 2}, "has a token 2 .*, and the model 2 tokens"),
        ({"size": 0}, "size is 0; it counts tokens"),
        ({"size": True}, "size is True"),
        ({"special": True}, "special is true"),
        ({"tokenizers": []}, "a tokenizer.json holds a JSON object"),
        ({"tokenizers": {"model": {"type": "none"}}}, "is none that can be read"),
    ],
)
def test_nonsense_is_refused(plain, said):
    made = HuggingFaceTokenizer(marked(), 5).to_json()
    with pytest.raises(ValueError, match=said):
        tokenizer_from_json(made | plain)


def test_it_is_not_learned_from_a_text():
    with pytest.raises(ValueError, match="comes with an imported model; give one: start=FOLDER"):
        HuggingFace().train([TEXT], special=False)


def test_an_expression_that_takes_for_ever_is_refused():
    plain = tokens.tokenizer_json(Bytes().train([], False))
    rule = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    tokenizer = tokens.from_json({**plain, "pre_tokenizer": {**rule, "invert": False}}, 256)
    with pytest.raises(ValueError, match=r"cannot encode this text: .*retry-limit"):
        tokenizer.encode("a" * 200 + "!")


def test_a_mistake_of_ours_is_not_the_tokenizer_s():
    """The package raises Exception itself; what is more special comes of how it was called."""
    tokenizer = tokens.from_json(tokens.tokenizer_json(trained(Bytes(), False)), 256)
    tokenizer._inner = None
    with pytest.raises(AttributeError):
        tokenizer.encode("a")
