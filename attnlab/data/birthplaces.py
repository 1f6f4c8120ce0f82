"""Birthplaces: a folder of one-line biographies and questions about them (CS224N, assignment 4).

    wiki.txt                one person a line; what to pretrain on
    birth_places_train.tsv  question <TAB> answer; what to finetune on
    birth_dev.tsv           question <TAB> answer; what to be judged by
    birth_test_inputs.tsv   question alone; may be missing

There is no validation split: every line holds a fact that stands nowhere else.
Cost: everything is in memory, under a megabyte.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnlab import counter_rng
from attnlab.config import setting, settings
from attnlab.data.corpora import Corpus, Question, check_exists, check_split, read_text

_TABLES = {"train": "birth_places_train.tsv", "dev": "birth_dev.tsv"}
_TEST = "birth_test_inputs.tsv"
MADE_OF = 3  # splits, each of which keeps at least one person


@settings
class Birthplaces:
    """`people` takes that many, from the beginning of each file; `tuning` plays dev with training
    questions: settings are chosen by those, so that dev is only looked at to report."""

    path: str = setting("", about="the folder of wiki.txt; data=PATH sets it too")
    people: int | None = setting(
        None, low=MADE_OF, none="all", about="people to take from the beginning of each file"
    )
    tuning: int = setting(
        0,
        low=0,
        because="it counts questions",
        about="training questions that stand in for dev while settings are chosen",
    )

    def load(self) -> "BirthplacesCorpus":
        if not self.path:
            raise ValueError("no folder is named; write data=PATH with the folder of wiki.txt")
        folder = check_exists(self.path)
        for name in ("wiki.txt", *_TABLES.values()):
            if not (folder / name).exists():
                needed = ", ".join(["wiki.txt", *_TABLES.values()])
                raise ValueError(f"{folder} has no {name}; birthplaces needs {needed}")
        return BirthplacesCorpus(folder, self)


class BirthplacesCorpus(Corpus):
    documents = True

    def __init__(self, folder: Path, settings: Birthplaces) -> None:
        self.name = "birthplaces"
        wiki = read_text(folder / "wiki.txt")
        # not splitlines(), which also cuts at characters that a sentence may hold
        self._lines = [line for line in wiki.split("\n") if line.strip()]
        if not self._lines:
            raise ValueError(f"{folder / 'wiki.txt'} is empty; it needs one person a line")
        self.questions = {split: _table(folder / name, 2) for split, name in _TABLES.items()}
        self.questions["test"] = _table(folder / _TEST, 1) if (folder / _TEST).exists() else []
        if settings.people is not None:
            self._take(settings.people, folder)
        if settings.tuning:
            self._tune(settings.tuning, folder)
        digest = hashlib.sha256(repr((self._lines, sorted(self.questions.items()))).encode())
        self.fingerprint = digest.hexdigest()

    def _take(self, people: int, folder: Path) -> None:
        """The same part of each table, and the lines of those people."""
        there = {split: len(table) for split, table in self.questions.items()}
        total, lines = sum(there.values()), len(self._lines)
        if people > lines:
            raise ValueError(
                f"people is {people}, but {folder / 'wiki.txt'} has {lines} lines, one a person; "
                f"use {lines} or fewer"
            )
        if total != lines:
            raise ValueError(
                f"{folder / 'wiki.txt'} has {lines} lines and the tables {total} questions; "
                "people= needs one line a question, in the same order"
            )
        kept, first = [], 0
        for split, count in there.items():
            part = -(-count * people // lines)
            kept += self._lines[first : first + part]
            self.questions[split] = self.questions[split][:part]
            first += count
        self._lines = kept

    def _tune(self, count: int, folder: Path) -> None:
        training = self.questions["train"]
        if count >= len(training):
            raise ValueError(
                f"tuning is {count}, but {folder / _TABLES['train']} has {len(training)} "
                f"questions; use {len(training) - 1} or fewer"
            )
        order = counter_rng.permutation(len(training), 0, "tuning").tolist()
        self.questions["dev"] = [training[number] for number in order[:count]]
        self.questions["train"] = [training[number] for number in sorted(order[count:])]

    def pieces(self, split: str) -> Iterator[str]:
        check_split(split)
        return iter(self._lines if split == "train" else [])

    def alphabet(self) -> Iterator[str]:
        """The whole of wiki.txt; documents are joined by newlines, so that one is in it."""
        yield from self._lines
        yield "\n"


def most_frequent_answer(questions: Sequence[Question]) -> str:
    """What a model without knowledge would always say; the first by name of equals."""
    counts = Counter(question.answer for question in questions if question.answer is not None)
    if not counts:
        raise ValueError("no question has an answer, so none is the most frequent")
    return min(counts, key=lambda answer: (-counts[answer], answer))


def share_of(answer: str, questions: Sequence[Question]) -> float:
    """The accuracy of always giving this answer."""
    return sum(question.answer == answer for question in questions) / max(1, len(questions))


def _table(path: Path, columns: int) -> list[Question]:
    wanted = ["question", "question<TAB>answer"][columns - 1]
    found = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line:
            continue
        cells = line.removesuffix("\r").split("\t")
        if len(cells) != columns or not all(cell.strip() for cell in cells):
            raise ValueError(
                f"{path}, line {number} has {len(cells)} columns, some maybe empty; write {wanted}"
            )
        found.append(Question(cells[0], cells[1] if columns == 2 else None))
    if not found:
        raise ValueError(f"{path} is empty; write {wanted}, one a line")
    return found
