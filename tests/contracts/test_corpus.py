"""Every registered corpus: text by split, a fingerprint, an alphabet, questions."""

import dataclasses

import pytest

from attnlab import config, registry
from attnlab.data.corpora import Corpus
from attnlab.data.prepared.making import prepare
from attnlab.data.prepared.preparation import Preparation
from attnlab.data.tokens import Characters

OPTIONS = registry.options("corpus")
PEOPLE = [f"Person {number}" for number in range(9)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Text files, which are also those of birthplaces."""
    lines = [f"{name}. {name} was born in Oslo ." for name in PEOPLE]
    (tmp_path / "wiki.txt").write_text("\n".join(lines) + "\n")
    tables = {"birth_places_train.tsv": PEOPLE[:5], "birth_dev.tsv": PEOPLE[5:7]}
    for table, names in tables.items():
        rows = [f"Where was {name} born?\tOslo" for name in names]
        (tmp_path / table).write_text("\n".join(rows) + "\n")
    rows = [f"Where was {name} born?" for name in PEOPLE[7:]]
    (tmp_path / "birth_test_inputs.tsv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path.with_name(f"{tmp_path.name}-cache")))
    return tmp_path


def prepared(folder):
    """Its tokens, beside it."""
    count = len(list(folder.parent.glob(f"{folder.name}-tokens*")))
    place = folder.with_name(f"{folder.name}-tokens{count}")
    words = ["tokenizer=characters", "validation=0.3", "documents=lines", "workers=1"]
    prepare(config.override(Preparation(), words), str(folder), place)
    return place


def made(option, folder, *words):
    settings = registry.load("corpus", option.name)()
    if "path" in {field.name for field in dataclasses.fields(settings)}:
        with pytest.raises(ValueError, match="write data=PATH"):
            settings.load()
        place = prepared(folder) if option.name == "prepared" else folder
        words = (f"path={place}", *words)
    return config.override(settings, words)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_it_gives_the_same_text_each_time(option, folder):
    settings = made(option, folder)
    corpus, again = settings.load(), settings.load()
    assert isinstance(corpus, Corpus) and corpus.name
    assert corpus.fingerprint == again.fingerprint
    for split in ("train", "validation"):
        pieces = list(corpus.pieces(split))
        assert pieces == list(corpus.pieces(split)) == list(again.pieces(split))
        assert all(isinstance(piece, str) for piece in pieces)
        assert corpus.characters(split) == sum(map(len, pieces))
    assert corpus.characters("train") > 0
    assert {"train", "dev"} <= set(corpus.questions)
    assert all(one.text for some in corpus.questions.values() for one in some)
    with pytest.raises(ValueError, match="split"):
        list(corpus.pieces("dev"))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_its_alphabet_covers_its_text(option, folder):
    corpus = made(option, folder).load()
    tokenizer = Characters().train(corpus.alphabet(), special=True)
    for split in ("train", "validation"):
        for piece in corpus.pieces(split):
            tokenizer.encode(piece)
    if corpus.documents:
        tokenizer.encode("\n")  # stands between documents that are joined


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_its_settings_survive_json_and_a_changed_text_is_noticed(option, folder):
    settings = made(option, folder)
    cls = type(settings)
    assert config.from_dict(cls, config.to_dict(settings)) == settings
    if hasattr(settings, "path"):
        before = settings.load().fingerprint
        wiki = folder / "wiki.txt"
        wiki.write_text(wiki.read_text().replace("Oslo", "Rome"))
        assert made(option, folder).load().fingerprint != before
