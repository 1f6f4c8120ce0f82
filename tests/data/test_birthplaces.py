"""Birthplaces: a folder as the course lays it out, built here in small."""

import pytest

from attnlab.data.birthplaces import Birthplaces, most_frequent_answer, share_of
from attnlab.data.corpora import Question
from attnlab.data.tokens import MASK, PAD, Characters

PEOPLE = ["Ann Oak", "Bo Elm", "Cy\u2028Ash", "Di Fir", "Ed Yew"]
PLACES = ["Rome", "Oslo", "Rome", "Bern", "Kyiv"]


@pytest.fixture
def folder(tmp_path):
    alphabet = "".join(map(chr, range(0x100, 0x100 + 300)))
    lines = [f"{p}. {p} was born in {q} ." for p, q in zip(PEOPLE, PLACES, strict=True)]
    lines[0] += alphabet
    rows = [f"Where was {p} born?\t{q}\n" for p, q in zip(PEOPLE, PLACES, strict=True)]
    (tmp_path / "wiki.txt").write_text("\n".join(lines))
    (tmp_path / "birth_places_train.tsv").write_text("".join(rows[:3]))
    (tmp_path / "birth_dev.tsv").write_text(rows[3])
    (tmp_path / "birth_test_inputs.tsv").write_text(rows[4].split("\t")[0] + "\n")
    return tmp_path


def load(folder):
    return Birthplaces(path=str(folder)).load()


def refused(folder):
    with pytest.raises(ValueError) as caught:
        load(folder)
    return str(caught.value)


def test_a_person_is_a_line_and_questions_keep_their_split(folder):
    corpus = load(folder)
    pieces = list(corpus.pieces("train"))
    assert corpus.documents and len(pieces) == len(PEOPLE)
    assert pieces[2] == "Cy\u2028Ash. Cy\u2028Ash was born in Rome ."
    assert list(corpus.pieces("validation")) == []
    assert [len(corpus.questions[split]) for split in ("train", "dev", "test")] == [3, 1, 1]
    assert corpus.questions["dev"] == [Question("Where was Di Fir born?", "Bern")]
    assert corpus.questions["test"] == [Question("Where was Ed Yew born?", None)]


def test_the_vocabulary_is_two_marks_and_the_sorted_characters_of_the_text(folder):
    wiki = (folder / "wiki.txt").read_text()
    for text in (wiki, wiki + "\n"):  # the course's file has no newline at its end
        (folder / "wiki.txt").write_text(text)
        tokenizer = Characters().train(load(folder).alphabet(), special=True)
        assert tokenizer.decode(range(tokenizer.size)) == PAD + MASK + "".join(sorted(set(wiki)))


def test_the_test_questions_may_be_missing(folder):
    before = load(folder).fingerprint
    (folder / "birth_test_inputs.tsv").unlink()
    assert load(folder).questions["test"] == []
    assert load(folder).fingerprint != before


@pytest.mark.parametrize("name", ["wiki.txt", "birth_dev.tsv", "birth_places_train.tsv"])
def test_a_missing_or_empty_file_is_named(folder, name):
    (folder / name).write_text("\n")
    assert name in refused(folder) and "is empty" in refused(folder)
    (folder / name).unlink()
    assert f"has no {name}; birthplaces needs wiki.txt" in refused(folder)


def test_a_folder_must_be_named():
    assert "write data=PATH" in refused("")
    assert "does not exist" in refused("no/such/folder")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("birth_dev.tsv", "Where was X born?"),
        ("birth_dev.tsv", "Where was X born?\tRome\tItaly"),
        ("birth_dev.tsv", "Where was X born?\t"),
        ("birth_places_train.tsv", "\tRome"),
        ("birth_test_inputs.tsv", "Where was X born?\tRome"),
    ],
)
def test_a_row_with_wrong_columns_is_named_by_file_and_line(folder, name, line):
    with (folder / name).open("a") as file:
        file.write(line + "\n")
    number = 4 if "train" in name else 2
    assert f"{name}, line {number} has" in refused(folder)


def test_always_giving_the_most_frequent_answer_is_the_baseline(folder):
    questions = load(folder).questions["train"]
    assert most_frequent_answer(questions) == "Rome"
    assert share_of("Rome", questions) == 2 / 3 and share_of("Rome", []) == 0
    assert most_frequent_answer([Question("?", "b"), Question("?", "a")]) == "a"
    with pytest.raises(ValueError, match="no question has an answer"):
        most_frequent_answer([Question("?", None)])


def crowd(folder, train=20, dev=6, test=4):
    """Many people, in the order train, dev, test."""
    names = [f"P{number} Elm" for number in range(train + dev + test)]
    rows = [f"Where was {name} born?\tRome\n" for name in names]
    (folder / "wiki.txt").write_text("\n".join(f"{name}. Born in Rome ." for name in names))
    (folder / "birth_places_train.tsv").write_text("".join(rows[:train]))
    (folder / "birth_dev.tsv").write_text("".join(rows[train : train + dev]))
    asked = [row.split("\t")[0] + "\n" for row in rows[train + dev :]]
    (folder / "birth_test_inputs.tsv").write_text("".join(asked))
    return folder


def test_fewer_people_keep_their_lines_and_their_share_of_each_split(folder):
    corpus = Birthplaces(path=str(crowd(folder)), people=15).load()
    sizes = [len(corpus.questions[split]) for split in ("train", "dev", "test")]
    assert sizes == [10, 3, 2]
    asked = {q.text[10:-6] for table in corpus.questions.values() for q in table}
    assert {line.split(".")[0] for line in corpus.pieces("train")} == asked
    assert corpus.fingerprint != Birthplaces(path=str(folder)).load().fingerprint


def test_tuning_takes_training_questions_and_leaves_dev_alone(folder):
    corpus = Birthplaces(path=str(crowd(folder)), tuning=5).load()
    whole = Birthplaces(path=str(folder)).load()
    dev, train = corpus.questions["dev"], corpus.questions["train"]
    assert len(dev) == 5 and len(train) == 15
    assert {*dev, *train} == set(whole.questions["train"])
    assert not set(dev) & set(whole.questions["dev"])
    assert list(corpus.pieces("train")) == list(whole.pieces("train"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"people": 31}, r"wiki\.txt has 30 lines, one a person; use 30 or fewer"),
        ({"people": 2}, "people is 2"),
        ({"tuning": 20}, r"birth_places_train\.tsv has 20 questions; use 19 or fewer"),
        ({"tuning": -1}, "tuning is -1"),
    ],
)
def test_more_people_than_there_are_is_refused(folder, settings, message):
    crowd(folder)
    with pytest.raises(ValueError, match=message):
        Birthplaces(path=str(folder), **settings).load()


def test_people_need_a_line_each(folder):
    crowd(folder)
    with (folder / "wiki.txt").open("a") as file:
        file.write("\nSomebody else. Born in Oslo .")
    with pytest.raises(ValueError, match="31 lines and the tables 30 questions"):
        Birthplaces(path=str(folder), people=10).load()
