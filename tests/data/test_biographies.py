"""Invented people: their facts stand in the text, and only the settings decide what they are."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from attnlab.data.biographies import MOST_PEOPLE, Biographies
from attnlab.data.birthplaces import most_frequent_answer, share_of
from attnlab.data.phrases import ATTRIBUTES, TEMPLATES, VALUES
from attnlab.data.tokens import Characters


def documents(**settings):
    return list(Biographies(**settings).load().pieces("train"))


def by_person(texts):
    found = defaultdict(list)
    for text in texts:
        found[text.partition(".")[0]].append(text)
    return found


@pytest.mark.parametrize("attributes", range(1, 7))
def test_every_document_tells_every_attribute_once(attributes):
    settings = Biographies(people=40, attributes=attributes)
    told = by_person(settings.load().pieces("train"))
    for person in settings.truth():
        assert list(person.attributes) == list(ATTRIBUTES[:attributes])
        assert len(told[person.name]) == settings.wordings
        for text in told[person.name]:
            rest = text.removeprefix(f"{person.name}. ")
            assert rest.count(".") == attributes
            for attribute, value in person.attributes.items():
                sentences = {template.format(value) for template in TEMPLATES[attribute]}
                assert sum(sentence in rest for sentence in sentences) >= 1


def test_the_wordings_of_a_person_differ_while_templates_last():
    told = by_person(documents(people=50, attributes=1, wordings=8))
    assert all(len(set(texts)) == 8 for texts in told.values())
    first = Counter(texts[0].split(". ", 1)[1].split()[0] for texts in told.values())
    assert len(first) > 4  # and not in the same order for all


def test_names_are_unique_and_plenty():
    people = Biographies(people=20_000).truth()
    assert len({person.name for person in people}) == 20_000
    assert len({p.name for p in Biographies(people=MOST_PEOPLE).truth()}) == MOST_PEOPLE


def test_the_same_settings_make_the_same_text_and_others_do_not():
    base = {"people": 30, "attributes": 3}
    assert documents(**base) == documents(**base)
    assert documents(**base) != documents(**base, seed=1)
    first = Biographies(**base).load().fingerprint
    assert first == Biographies(**base).load().fingerprint
    assert first != Biographies(**base, seed=1).load().fingerprint
    assert first != Biographies(**base, held_out=0.1).load().fingerprint


def test_more_people_or_wordings_keep_the_facts_of_the_first():
    few, many = Biographies(people=20).truth(), Biographies(people=90, attributes=6).truth()
    for one, other in zip(few, many, strict=False):
        assert one.name == other.name
        assert one.attributes.items() <= other.attributes.items()


def test_shuffle_only_changes_the_order():
    base = {"people": 60, "attributes": 3, "wordings": 4}
    mixed, straight = documents(**base), documents(**base, shuffle=False)
    sentences = [sorted(sorted(t.split(". ")[1:3]) for t in texts) for texts in (mixed, straight)]
    assert len(mixed) == len(straight) and sentences[0] != sentences[1]
    letters = [sorted("".join(sorted(text)) for text in texts) for texts in (mixed, straight)]
    assert letters[0] == letters[1]
    names = [text.partition(".")[0] for text in straight]
    assert all(len(set(names[i : i + 4])) == 1 for i in range(0, len(names), 4))
    mixed_names = [text.partition(".")[0] for text in mixed]
    neighbours = sum(a == b for a, b in pairwise(mixed_names))
    assert neighbours < 12  # of 239; 180 when a person's stay together


def test_without_shuffle_the_birthplace_comes_first():
    places = VALUES["birthplace"]
    for text in documents(people=30, shuffle=False):
        assert any(place in text.split(". ")[1] for place in places)


@pytest.mark.parametrize(("held_out", "dev"), [(0.5, 50), (0.0, 0), (1.0, 100), (0.25, 25)])
def test_questions_of_held_out_people_are_for_dev_and_their_text_is_there(held_out, dev):
    settings = Biographies(people=100, held_out=held_out)
    corpus = settings.load()
    truth = {f"Where was {p.name} born?": p.attributes["birthplace"] for p in settings.truth()}
    asked = corpus.questions["train"] + corpus.questions["dev"]
    assert len(corpus.questions["dev"]) == dev and corpus.questions["test"] == []
    assert len(asked) == 100 and {q.text: q.answer for q in asked} == truth
    assert len(by_person(corpus.pieces("train"))) == 100
    assert list(corpus.pieces("validation")) == []


def test_guessing_the_most_frequent_place_is_visible_and_poor():
    questions = Biographies(people=20_000).load().questions
    answer = most_frequent_answer(questions["train"])
    assert 0.05 < share_of(answer, questions["dev"]) < 0.08
    assert (
        len({question.answer for question in questions["dev"]}) == len(VALUES["birthplace"]) == 60
    )


def test_a_smaller_spread_puts_more_people_in_the_first_place():
    shares = []
    for spread in (0.5, 5.0, 500.0):
        questions = Biographies(people=4000, spread=spread).load().questions
        answer = most_frequent_answer(questions["train"])
        shares.append(share_of(answer, questions["dev"]))
    assert shares[0] > 0.25 and 0.05 < shares[1] < 0.09 and shares[2] < 0.04


def test_documents_of_three_attributes_fit_112_characters():
    assert max(map(len, documents(people=4000, attributes=3, wordings=8))) <= 112


def test_every_attribute_has_eight_templates_and_no_word_twice():
    assert all(len(set(TEMPLATES[attribute])) == 8 for attribute in ATTRIBUTES)
    assert all(len(set(VALUES[attribute])) == len(VALUES[attribute]) for attribute in ATTRIBUTES)
    assert all(t.count("{}") == 1 for templates in TEMPLATES.values() for t in templates)


def test_the_alphabet_covers_text_questions_and_the_newline_between():
    corpus = Biographies(people=3, attributes=1, wordings=1).load()
    tokenizer = Characters().train(corpus.alphabet(), special=True)
    for question in corpus.questions["train"] + corpus.questions["dev"]:
        tokenizer.encode(f"{question.text}\n{question.answer}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"people": 0}, "people is 0; each has a name of their own, so use 1 to"),
        ({"people": 10**6}, "people is 1000000"),
        ({"attributes": 7}, "attributes is 7; the attributes are birthplace, .* so use 1 to 6"),
        ({"wordings": 0}, "wordings is 0"),
        ({"held_out": 1.5}, "held_out is 1.5"),
        ({"spread": 0.0}, "spread is 0.0"),
    ],
)
def test_nonsense_is_told_the_rule(settings, message):
    with pytest.raises(ValueError, match=message):
        Biographies(**settings)
