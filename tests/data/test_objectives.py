"""Objectives: what is asked of a model, token by token."""

import numpy as np
import pytest
import torch

from attnlab import registry
from attnlab.data import shards
from attnlab.data.batches import IGNORE, batch_of
from attnlab.data.biographies import Biographies
from attnlab.data.corpora import Corpus, Question, TextCorpus
from attnlab.data.objectives import Causal, Questions, SpanCorruption
from attnlab.data.tokens import MASK, PAD, Characters

TEXT = "".join(chr(0x100 + i) for i in range(1000))  # a token says where it stands


class Documents(Corpus):
    name, fingerprint, documents = "documents", "0", True

    def __init__(self, train, validation=(), questions=(), dev=()):
        self._pieces = {"train": list(train), "validation": list(validation)}
        self.questions = {"train": list(questions), "dev": list(dev), "test": []}

    def pieces(self, split):
        return iter(self._pieces[split])

    def alphabet(self):
        yield from [*self._pieces["train"], *self._pieces["validation"], "\n"]
        for question in self.questions["train"] + self.questions["dev"]:
            yield question.text + (question.answer or "")


def text_of(count, validation=0.1):
    return TextCorpus(
        "text", lambda: iter([TEXT[: count // 2], TEXT[count // 2 : count]]), validation
    )


def source_of(objective, corpus, context, seed=0):
    tokenizer = Characters().train(corpus.alphabet(), special=objective.special)
    return objective.source(corpus, tokenizer, context=context, seed=seed), tokenizer


def epoch_of(source, epoch):
    return source.batch(np.full(source.count, epoch), np.arange(source.count))


@pytest.mark.parametrize("option", registry.options("objective"), ids=lambda o: o.name)
def test_every_objective_gives_batches_of_the_context(option):
    objective = registry.load("objective", option.name)()
    source, _ = source_of(objective, Biographies(people=20).load(), 48)
    batch = batch_of(source, seed=0, step=3, size=6)
    assert batch.tokens.shape == batch.targets.shape == (6, 48)
    asked = batch.targets != IGNORE
    assert asked.any(1).all() and source.tokens > 0
    follows = batch.targets[:, :-1] == batch.tokens[:, 1:]
    assert follows[asked[:, :-1]].all()
    assert torch.equal(batch.targets, batch_of(source, seed=0, step=3, size=6).targets)


@pytest.mark.parametrize("count", [17, 18, 31, 32, 33, 48, 49, 500])
@pytest.mark.parametrize("context", [1, 2, 16])
def test_windows_of_an_epoch_follow_each_other_and_stay_in_the_text(count, context):
    source, _ = source_of(Causal(), text_of(count, validation=0), context)
    offsets = set()
    for epoch in range(60):
        batch = epoch_of(source, epoch)
        stream = torch.cat([batch.tokens.flatten(), batch.targets[-1, -1:]])
        assert torch.equal(stream, torch.arange(len(stream)) + stream[0]) and stream[-1] < count
        assert torch.equal(batch.targets, batch.tokens + 1)
        offsets.add(int(stream[0]))
    assert len(stream) == source.tokens + 1 and count - source.tokens <= 2 * context
    assert len(offsets) > 1 or context == 1 or count == context + 1
    assert offsets <= set(range(context))


@pytest.mark.parametrize("validation", [0.1, 0.33, 0.5])
@pytest.mark.parametrize(("context", "size"), [(1, 7), (16, 3), (7, 100), (300, 2)])
def test_validation_predicts_every_token_but_the_first_once(validation, context, size):
    corpus = text_of(700, validation)
    source, tokenizer = source_of(Causal(), corpus, context)
    held = tokenizer.encode("".join(corpus.pieces("validation")))
    batches = list(source.validation(size))
    assert all(batch.tokens.shape[1] == context for batch in batches)
    tokens = torch.cat([batch.tokens for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    asked = targets != IGNORE
    assert len(tokens) == source.validation_count
    assert targets[asked].tolist() == held[1:].tolist()
    assert tokens[asked].tolist() == held[:-1].tolist()


def test_documents_are_joined_by_newlines_for_causal():
    corpus = Documents(["abc", "de", "fgh"] * 700)  # more than are joined at once
    source, tokenizer = source_of(Causal(), corpus, 4)
    stream = shards.stream_of(corpus, tokenizer, "train")
    assert tokenizer.decode(stream.take(np.array([0]), stream.count)[0]) == "\n".join(
        corpus.pieces("train")
    )
    assert source.validation_count == 0 and list(source.validation(3)) == []


def test_a_text_shorter_than_the_context_is_counted():
    with pytest.raises(ValueError, match=r"context is 16, but .* has 16 tokens; use 15 or less"):
        source_of(Causal(), text_of(16, validation=0), 16)
    with pytest.raises(ValueError, match="context is 0; use 1 or more"):
        source_of(Causal(), text_of(16, validation=0), 0)


def test_one_token_of_validation_is_too_few():
    with pytest.raises(ValueError, match="validation text of documents has 1 token"):
        source_of(Causal(), Documents(["abcdef"], ["x"]), 2)


def test_span_corruption_asks_for_everything_but_padding():
    corpus = Documents(["", "abcdefghij" * 30, "x", "klm", "nopqrst", ""])
    source, tokenizer = source_of(SpanCorruption(), corpus, 16)
    assert source.count == 4 and source.validation_count == 0
    assert source.tokens == 14 + 1 + 3 + 7
    for epoch in range(30):
        batch = epoch_of(source, epoch)
        rows = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
        rows[rows == IGNORE] = 0
        for row, document in zip(rows, [d for d in corpus.pieces("train") if d], strict=True):
            prefix, suffix, span = tokenizer.decode(row).rstrip(PAD).split(MASK)
            whole = prefix + span + suffix
            assert document.startswith(whole) and len(whole) >= min(4, len(document))
        assert torch.equal(batch.targets == IGNORE, rows[:, 1:] == 0)


def test_span_corruption_cuts_a_long_text_into_documents_and_validates():
    corpus = text_of(200, 0.25)
    source, tokenizer = source_of(SpanCorruption(), corpus, 16)
    room = 14
    assert (source.count, source.validation_count) == (11, 4) and source.tokens == 150
    batch = epoch_of(source, 0)
    text = "".join(corpus.pieces("train"))
    for number, row in enumerate(batch.tokens):
        first = tokenizer.decode(row)
        prefix = first.split(MASK)[0]
        assert text[number * room :].startswith(prefix)
    once, twice = (list(source.validation(3)) for _ in range(2))
    assert [len(batch.tokens) for batch in once] == [3, 1]
    assert torch.equal(once[0].tokens, twice[0].tokens)
    held = "".join(corpus.pieces("validation"))
    for number, row in enumerate(torch.cat([batch.tokens for batch in once])):
        shown = tokenizer.decode(row)
        assert shown.strip(MASK)[0] in held[number * room : (number + 1) * room]


def test_questions_ask_for_the_answer_and_its_end_only():
    corpus = Documents(
        ["a"],
        questions=[Question("Who?", "I"), Question("Where was X born?", "Bern")],
        dev=[Question("When?", "now")],
    )
    source, tokenizer = source_of(Questions(), corpus, 30)
    batch = source.batch(np.array([0, 4]), np.array([1, 0]))
    shown = f"Where was X born?{MASK}Bern{MASK}"
    assert tokenizer.decode(batch.tokens[0]) == shown + PAD * (30 - len(shown))
    asked = batch.targets != IGNORE
    assert [tokenizer.decode(t[a]) for t, a in zip(batch.targets, asked, strict=True)] == [
        "Bern" + MASK,
        "I" + MASK,
    ]
    # the answer begins where the MASK is read
    assert batch.tokens[0][asked[0]][0] == tokenizer.mask
    (held,) = source.validation(5)
    assert tokenizer.decode(held.targets[held.targets != IGNORE]) == "now" + MASK
    assert (source.count, source.validation_count) == (2, 1)


@pytest.mark.parametrize(("context", "shown"), [(9, f"Who?{MASK}I{MASK}□□"), (6, f"Who?{MASK}I")])
def test_a_question_may_fill_the_context(context, shown):
    corpus = Documents(["a"], questions=[Question("Who?", "I")])
    source, tokenizer = source_of(Questions(), corpus, context)
    batch = source.batch(np.array([0]), np.array([0]))
    assert tokenizer.decode(batch.tokens[0]) == shown
    assert tokenizer.decode(batch.targets[batch.targets != IGNORE]) == "I" + MASK


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (Documents(["a"]), "documents has no questions to train on"),
        (Documents(["a"], questions=[Question("Who?", None)]), "'Who.' has no answer"),
        (
            Documents(["a"], questions=[Question("Who are you?", "me")]),
            "'Who are you.' and its answer need a context of 15; context is 14",
        ),
    ],
)
def test_questions_that_cannot_be_asked_are_named(corpus, message):
    with pytest.raises(ValueError, match=message):
        source_of(Questions(), corpus, 14)


def test_a_question_with_a_mark_in_it_is_named():
    corpus = Documents(["a"], questions=[Question("Who", "me")])
    tokenizer = Characters().train(corpus.alphabet(), special=True)
    corpus.questions["train"] = [Question(f"Who{MASK}", "me")]
    with pytest.raises(ValueError, match="holds a mark"):
        Questions().source(corpus, tokenizer, context=9, seed=0)


def test_span_corruption_needs_text_and_marks():
    with pytest.raises(ValueError, match="documents has no text to train on"):
        source_of(SpanCorruption(), Documents(["", ""]), 16)
    tokenizer = Characters().train(["abc"], special=False)
    with pytest.raises(ValueError, match="needs PAD and MASK"):
        SpanCorruption().source(Documents(["abc"]), tokenizer, context=16, seed=0)
