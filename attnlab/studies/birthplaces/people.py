"""People to ask about: known ones, and names that belong to nobody.

A model that has stored facts under names should be sure of those it has read about and unsure of
the others. What it answers for a name without a document is made up, however plausible.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import TypedDict

from attnlab import counter_rng
from attnlab.data.corpora import Corpus, Question
from attnlab.data.tokens import Tokenizer
from attnlab.evaluate import Answer, answer_questions
from attnlab.models.model import LanguageModel
from attnlab.statistics import auroc

_BEFORE, _AFTER = "Where was ", " born?"

GROUPS = {
    "asked": "asked about in training",
    "read": "read about, never asked",
    "recombined": "not seen: a known first name with a known last name",
    "invented": "invented letter by letter",
}


def name_in(question: Question) -> str:
    return question.text.removeprefix(_BEFORE).removesuffix(_AFTER)


def groups(corpus: Corpus, most: int, seed: int) -> dict[str, list[Question]]:
    """Up to `most` questions of each group; those of the last two have no answer."""
    known = [name_in(question) for table in corpus.questions.values() for question in table]
    recombined = _distinct(_recombined(known, seed), most, set(known))
    invented = _distinct(_invented(known, seed), most, set(known))
    return {
        "asked": corpus.questions["train"][:most],
        "read": corpus.questions["dev"][:most],
        "recombined": [Question(f"{_BEFORE}{name}{_AFTER}", None) for name in recombined],
        "invented": [Question(f"{_BEFORE}{name}{_AFTER}", None) for name in invented],
    }


def _distinct(names: Iterable[str], most: int, taken: set[str]) -> list[str]:
    """Up to `most` names that nobody has; of a handful of people there may be fewer."""
    new = dict.fromkeys(name for name in islice(names, 20 * most) if name not in taken)
    return list(new)[:most]


def _recombined(known: Sequence[str], seed: int) -> Iterator[str]:
    for number in count():
        first = known[counter_rng.number(seed, "first name of", number) % len(known)]
        last = known[counter_rng.number(seed, "last name of", number) % len(known)]
        yield f"{first.split()[0]} {last.split()[-1]}"


def _invented(known: Sequence[str], seed: int) -> Iterator[str]:
    """Letters as often as the known names have them, consonants and vowels in turn."""
    capitals = [name[0] for name in known if name[0].isupper()] or ["A"]
    small = [letter for name in known for letter in name if letter.islower()]
    pools = [[letter for letter in small if (letter in "aeiou") == vowel] for vowel in (0, 1)]
    for number in count():
        draws = counter_rng.bits(seed, "letters of an invented name", number, range(12)).tolist()
        words = []
        for first, *rest in (draws[:6], draws[6:]):
            inner = [pools[n % 2][draw % len(pools[n % 2])] for n, draw in enumerate(rest, 1)]
            words.append("".join([capitals[first % len(capitals)], *inner]))
        yield " ".join(words)


class Confidence(TypedDict):
    mean: float
    percentiles: list[float]  # each 5 %, enough to draw the distribution from


class Example(TypedDict):
    question: str
    given: str
    expected: str | None
    confidence: float


class Group(TypedDict):
    people: int
    right: float | None  # None: nobody knows the answers
    confidence: Confidence | None
    examples: list[Example]


class Interview(TypedDict):
    groups: dict[str, Group]
    auroc: dict[str, float | None]


def interview(
    model: LanguageModel, tokenizer: Tokenizer, asked: dict[str, list[Question]]
) -> Interview:
    """The model's answers for each group, how sure it is, and what its confidence tells."""
    answers = {name: answer_questions(model, tokenizer, asked[name], batch=256) for name in asked}
    sure = {name: [answer.confidence for answer in found] for name, found in answers.items()}
    right = [a.confidence for a in answers["read"] if a.given == a.expected]
    wrong = [a.confidence for a in answers["read"] if a.given != a.expected]
    return {
        "groups": {name: _summary(found) for name, found in answers.items()},
        "auroc": {
            "right or wrong, of people read about": auroc(right, wrong),
            "read about or recombined": auroc(sure["read"], sure["recombined"]),
            "read about or invented": auroc(sure["read"], sure["invented"]),
            "right or made up, of all": auroc(right, wrong + sure["recombined"] + sure["invented"]),
        },
    }


def _summary(answers: list[Answer]) -> Group:
    known = [answer for answer in answers if answer.expected is not None]
    confidences = sorted(answer.confidence for answer in answers)
    people = len(confidences)
    return {
        "people": people,
        "right": sum(a.given == a.expected for a in known) / len(known) if known else None,
        "confidence": {
            "mean": sum(confidences) / people,
            "percentiles": [confidences[round(p / 20 * (people - 1))] for p in range(21)],
        }
        if people
        else None,
        "examples": [
            {
                "question": answer.question,
                "given": answer.given,
                "expected": answer.expected,
                "confidence": answer.confidence,
            }
            for answer in answers[:6]
        ],
    }
