"""People who are known, and names that belong to nobody."""

import pytest
import torch

from attnlab.data.biographies import Biographies
from attnlab.data.tokens import Characters
from attnlab.evaluate import Answer
from attnlab.models.model import LanguageModel
from attnlab.models.transformer import TransformerSettings
from attnlab.studies.birthplaces import people
from attnlab.studies.birthplaces.people import GROUPS, groups, interview, name_in

CORPUS = Biographies(people=60, attributes=1).load()
TOKENS = Characters().train(CORPUS.alphabet(), special=True)


def test_names_without_a_document_belong_to_nobody():
    found = groups(CORPUS, 25, seed=1)
    assert list(found) == list(GROUPS)
    known = {person.name for person in CORPUS.people}
    first = {name.split()[0] for name in known}
    last = {name.split()[-1] for name in known}
    for group in ("recombined", "invented"):
        names = [name_in(question) for question in found[group]]
        assert len(set(names)) == 25 and not set(names) & known
        assert all(question.answer is None for question in found[group])
    recombined = [name_in(question).split() for question in found["recombined"]]
    assert all(a in first and b in last for a, b in recombined)
    invented = [name_in(question).split() for question in found["invented"]]
    assert not any(a in first or b in last for a, b in invented)


def test_known_people_keep_their_split():
    found = groups(CORPUS, 10, seed=1)
    assert found["asked"] == CORPUS.questions["train"][:10]
    assert found["read"] == CORPUS.questions["dev"][:10]


def test_names_are_the_same_every_time_and_differ_by_seed():
    assert groups(CORPUS, 9, seed=1) == groups(CORPUS, 9, seed=1)
    assert groups(CORPUS, 9, seed=1)["invented"] != groups(CORPUS, 9, seed=2)["invented"]


def test_every_invented_name_can_be_written_with_the_tokens():
    for questions in groups(CORPUS, 100, seed=3).values():
        for question in questions:
            TOKENS.encode(question.text)


def test_a_handful_of_people_gives_fewer_names():
    few = Biographies(people=2, attributes=1).load()
    assert len(groups(few, 50, seed=0)["recombined"]) <= 2


def test_confidence_tells_the_groups_apart_when_it_does(monkeypatch):
    """Answers made here: sure of what is right, less so of what is wrong, unsure of nobody."""

    def answers(model, tokenizer, questions, batch):
        sure = {None: 0.1}
        return [
            Answer(
                question=q.text,
                expected=q.answer,
                given=(q.answer or "Rome") if n % 4 else "nowhere",
                confidence=sure.get(q.answer, 0.9 if n % 4 else 0.3),
            )
            for n, q in enumerate(questions)
        ]

    monkeypatch.setattr(people, "answer_questions", answers)
    found = interview(LanguageModel(), TOKENS, groups(CORPUS, 20, seed=1))
    assert found["groups"]["read"]["right"] == 0.75
    assert found["groups"]["invented"]["right"] is None
    assert found["groups"]["invented"]["confidence"]["mean"] == pytest.approx(0.1)
    assert set(found["auroc"].values()) == {1.0}
    percentiles = found["groups"]["read"]["confidence"]["percentiles"]
    assert len(percentiles) == 21 and percentiles == sorted(percentiles)


def test_a_model_that_knows_nothing_tells_nobody_apart():
    torch.manual_seed(0)
    model = TransformerSettings(vocabulary=TOKENS.size, context=96, width=16, depth=1).build()
    found = interview(model, TOKENS, groups(CORPUS, 12, seed=1))
    assert found["groups"]["read"]["right"] == 0.0
    assert found["auroc"]["right or wrong, of people read about"] is None
    assert all(one["people"] == 12 for one in found["groups"].values())
