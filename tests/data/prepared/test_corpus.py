"""A prepared text in training: rows read in place are the tokens, with borders of documents."""

import json

import numpy as np
import pytest
import torch

from attnlab import config
from attnlab.data.batches import IGNORE, batch_of
from attnlab.data.corpora import TextFiles
from attnlab.data.objectives import Causal, SpanCorruption
from attnlab.data.prepared import corpus as module
from attnlab.data.prepared.corpus import Prepared, PreparedStream, settings_of
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation
from attnlab.data.tokens import Bytes
from attnlab.models.transformer import TransformerSettings

TEXTS = [f"Document {number}: " + "words " * (number % 9) for number in range(120)]
WORDS = ["tokenizer=bytes", "validation=0.2", "part=700B", "workers=1"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    prepare(config.override(Preparation(), WORDS), str(path), tmp_path / "out")
    return Prepared(path=str(tmp_path / "out")).load()


def test_rows_are_the_tokens_at_their_places_across_files(corpus):
    stream = corpus.stream("train", corpus.tokenizer)
    texts = list(corpus.pieces("train"))
    flat = np.frombuffer("".join(texts).encode(), np.uint8)
    assert stream.count == len(flat) and len(stream._stems) > 5
    for length in (1, 30, 2000):
        starts = np.arange(0, len(flat) - length, 37)
        rows = np.stack([flat[start : start + length] for start in starts])
        assert (stream.take(starts, length) == rows).all()
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    starts = np.arange(0, len(flat) - 400, 101)
    rows = np.stack([owners[start : start + 400] for start in starts])
    assert (stream.numbers(starts, 400) == rows).all()
    with pytest.raises(ValueError, match="are asked for"):
        stream.take(np.array([len(flat) - 3]), 4)


def test_few_files_are_open_at_once(corpus, monkeypatch):
    monkeypatch.setattr(module, "OPEN", 2)
    stream = PreparedStream(corpus._opened, "train")
    whole = stream.take(np.array([0]), stream.count)
    assert stream._file.cache_info().currsize == 2
    assert (stream.take(np.array([5]), 20) == whole[:, 5:25]).all()


def test_a_file_that_is_cut_while_it_is_read_is_noticed(corpus):
    stream = corpus.stream("train", corpus.tokenizer)
    [last] = stream.take(np.array([stream.count - 1]), 1)
    with stream._stems[-1].with_suffix(".tokens").open("r+b") as file:
        file.truncate(3)
    with pytest.raises(ValueError, match="has become shorter while it was read"):
        stream.take(np.array([stream.count - 1]), 1)
    assert last


def test_samples_come_once_an_epoch_without_a_table(corpus, monkeypatch):
    source = Causal().source(corpus, corpus.tokenizer, context=32, seed=1)
    monkeypatch.setattr("attnlab.data.batches._order", None)
    for epoch in (0, 1):
        found = source.arrange(np.arange(source.count), 3, epoch)
        assert sorted(found) == list(range(source.count)) and (found != np.sort(found)).any()
    part = source.arrange(np.array([5, 2]), 3, 1)
    assert part.tolist() == [found[5], found[2]]


def test_the_windows_are_those_of_the_text(corpus):
    source = Causal().source(corpus, corpus.tokenizer, context=32, seed=1)
    flat = "".join(corpus.pieces("train"))
    for step in range(3):
        batch = batch_of(source, seed=1, step=step, size=8)
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
            text = corpus.tokenizer.decode([*tokens.tolist(), int(targets[-1])])
            assert text in flat and torch.equal(tokens[1:], targets[:-1])
    assert batch.segments is None


@pytest.mark.parametrize("split", ["train", "validation"])
def test_documents_that_are_apart_are_as_each_alone(corpus, split):
    """Losses in float64, of rows with several documents and of each of these by itself."""
    source = Causal(apart=True).source(corpus, corpus.tokenizer, context=100, seed=1)
    if split == "train":
        batch = batch_of(source, seed=0, step=0, size=6)
    else:
        batch = source.validation_batch(np.arange(source.validation_count)[-3:])
    settings = TransformerSettings(vocabulary=256, context=100, width=16, depth=2)
    torch.manual_seed(0)
    model = config.override(settings, ["attention.heads=2"]).build().double()
    logits = model(batch.tokens, **batch.options)
    borders = 0
    for row in range(len(batch.tokens)):
        numbers = batch.segments[row]
        assert numbers[0] == 0 and (numbers.diff() >= 0).all()
        for number in numbers.unique():
            here = numbers == number
            alone = model(batch.tokens[row, here][None])[0]
            wanted = batch.targets[row, here] != IGNORE
            assert torch.allclose(logits[row, here][wanted], alone[wanted], atol=1e-12)
            if number < numbers.max():
                assert not wanted[-1], "the next document's first token"
                borders += 1
    assert borders > 3
    apart = Causal().source(corpus, corpus.tokenizer, context=100, seed=1)
    assert torch.equal(batch_of(apart, seed=0, step=0, size=6).tokens, _tokens(source))


def _tokens(source):
    return batch_of(source, seed=0, step=0, size=6).tokens


def test_borders_of_a_text_that_has_none_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text " * 200)
    text = TextFiles(path=str(tmp_path / "a.txt")).load()
    tokenizer = Bytes().train([], False)
    with pytest.raises(ValueError, match=r"objective\.apart: .* keeps no borders of documents"):
        Causal(apart=True).source(text, tokenizer, context=8, seed=0)


def test_another_tokenizer_is_refused(corpus):
    for tokenizer in (Bytes().train([], True),):
        with pytest.raises(ValueError, match="prepared with another tokenizer"):
            Causal().source(corpus, tokenizer, context=8, seed=0)


def test_other_objectives_read_its_documents(corpus, tmp_path):
    with pytest.raises(ValueError, match="needs PAD and MASK"):
        SpanCorruption().source(corpus, corpus.tokenizer, context=32, seed=0)


def test_the_words_that_name_it_are_its_settings(corpus):
    assert settings_of(corpus._opened.folder) == ["corpus=prepared", "tokenizer=bytes"]


def test_a_changed_text_has_another_fingerprint(corpus, tmp_path):
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS[:-1], "other"]))
    prepare(config.override(Preparation(), WORDS), str(path), tmp_path / "other")
    assert Prepared(path=str(tmp_path / "other")).load().fingerprint != corpus.fingerprint
