"""Biographies: invented people whose facts are known, told in as many wordings as wanted.

A document is "Name. Sentence. Sentence." with one sentence for each attribute, the birthplace among
them; the questions ask for the birthplace. Everything is a pure function of the settings.

Lengths: a name has 8 to 18 characters, a sentence 12 to 32 with its full stop. Documents have on
average 38, 60, 84, 111, 134, 157 characters for 1 to 6 attributes; up to 3 they always fit the 112
that span corruption keeps of a context of 128.
Cost: about 4 microseconds a document to make; the people are in memory, the documents are not.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from attnlab import counter_rng
from attnlab.config import setting, settings
from attnlab.data.corpora import Corpus, Question, check_split
from attnlab.data.phrases import ATTRIBUTES, FAMILY, GIVEN, TEMPLATES, VALUES

MOST_PEOPLE = len(GIVEN) * len(FAMILY)


@dataclass(frozen=True)
class Person:
    name: str
    attributes: dict[str, str]  # the birthplace first


@settings
class Biographies:
    """`wordings` documents for each of `people`; questions of the `held_out` part are for dev.

    With `shuffle` the sentences of a document and the documents of the corpus are in random order;
    without it the attributes keep theirs and the wordings of a person stay together.
    """

    people: int = setting(
        500,
        low=1,
        high=MOST_PEOPLE,
        because="each has a name of their own",
        about="invented people",
    )
    attributes: int = setting(
        4,
        low=1,
        high=len(ATTRIBUTES),
        because=f"the attributes are {', '.join(ATTRIBUTES)}",
        about="facts about each person, the birthplace first",
    )
    wordings: int = setting(
        5, low=1, because="a person needs a document", about="documents about each person"
    )
    shuffle: bool = setting(
        True, about="random order of the sentences of a document and of the documents"
    )
    held_out: float = setting(
        0.5,
        low=0,
        high=1,
        because="it is a part of the people",
        about="part of the people whose questions are kept for dev",
    )
    spread: float = setting(
        5.0,
        above=0,
        high=1e6,
        because="the first value has weight 1 / spread",
        about="how evenly values are given out; if small, most people share the first ones",
    )
    seed: int = setting(0, about="random seed of the people and their documents")

    def load(self) -> "BiographiesCorpus":
        return BiographiesCorpus(self)

    def truth(self) -> list[Person]:
        names = counter_rng.permutation(MOST_PEOPLE, self.seed, "names")[: self.people]
        columns = {
            attribute: _draw_values(attribute, self.people, self.spread, self.seed)
            for attribute in ATTRIBUTES[: self.attributes]
        }
        return [
            Person(
                f"{GIVEN[number // len(FAMILY)]} {FAMILY[number % len(FAMILY)]}",
                {attribute: column[row] for attribute, column in columns.items()},
            )
            for row, number in enumerate(names.tolist())
        ]


def _draw_values(attribute: str, people: int, spread: float, seed: int) -> list[str]:
    """A value for each person, the first most often: rank r has weight 1 / (r + spread).

    With a spread of 5 the most frequent of 60 birthplaces gets about 7 %: what always guessing it
    scores.
    """
    values = VALUES[attribute]
    weights = 1 / (np.arange(len(values)) + spread)
    edges = np.cumsum(weights) / weights.sum()
    draws = counter_rng.uniform(seed, f"value of {attribute}", np.arange(people))
    return [values[rank] for rank in np.searchsorted(edges[:-1], draws, side="right").tolist()]


class BiographiesCorpus(Corpus):
    documents = True

    def __init__(self, settings: Biographies) -> None:
        self.name, self._settings = "biographies", settings
        self.people = settings.truth()
        made_from = (astuple(settings), GIVEN, FAMILY, VALUES, TEMPLATES)
        self.fingerprint = hashlib.sha256(repr(made_from).encode()).hexdigest()
        order = counter_rng.permutation(len(self.people), settings.seed, "held out").tolist()
        held_out = set(order[: round(settings.held_out * len(self.people))])
        self.questions = {"train": [], "dev": [], "test": []}
        for number, person in enumerate(self.people):
            question = Question(f"Where was {person.name} born?", person.attributes["birthplace"])
            self.questions["dev" if number in held_out else "train"].append(question)

    def pieces(self, split: str) -> Iterator[str]:
        check_split(split)
        return self._documents() if split == "train" else iter(())

    def alphabet(self) -> Iterator[str]:
        """Questions too, and the newline that stands between joined documents."""
        yield from self._documents()
        for questions in self.questions.values():
            yield from (f"{question.text}\n{question.answer}" for question in questions)

    def _documents(self) -> Iterator[str]:
        settings, wordings = self._settings, self._settings.wordings
        count = len(self.people) * wordings
        if settings.shuffle:
            order = counter_rng.permutation(count, settings.seed, "documents")
        else:
            order = np.arange(count)
        for start in range(0, count, 4096):  # so that the draws of a large corpus fit in memory
            yield from self._write_documents(
                order[start : start + 4096] // wordings, order[start : start + 4096] % wordings
            )

    def _write_documents(self, persons: np.ndarray, wordings: np.ndarray) -> Iterator[str]:
        """The documents of these persons in these wordings."""
        seed, attributes = self._settings.seed, np.arange(self._settings.attributes)
        choices = np.arange(min(map(len, TEMPLATES.values())))
        # a shuffle of the templates for each person and attribute: wordings differ while they last
        draws = counter_rng.uniform(
            seed, "template", persons[:, None, None], attributes[:, None], choices
        )
        place = (wordings % len(choices))[:, None, None]
        chosen = np.take_along_axis(draws.argsort(axis=-1), place, axis=-1)[..., 0]
        if self._settings.shuffle:
            keys = counter_rng.uniform(
                seed, "sentence order", persons[:, None], wordings[:, None], attributes
            )
            orders = keys.argsort(axis=-1)
        else:
            orders = np.broadcast_to(attributes, chosen.shape)
        for number, templates, order in zip(
            persons.tolist(), chosen.tolist(), orders.tolist(), strict=True
        ):
            person = self.people[number]
            sentences = [
                TEMPLATES[ATTRIBUTES[a]][templates[a]].format(person.attributes[ATTRIBUTES[a]])
                for a in order
            ]
            yield " ".join([f"{person.name}.", *sentences])
