"""The sources of the claims: the questions of two university assignments, and five documents with
answers to them.

Documents 000, 001 and 003 answer one assignment, 002 an earlier year's questions on the same
subject, 004 those of another course. They often contradict each other. A claim names a document by
its number.
"""

import difflib
import unicodedata

DOCUMENTS = {
    "000": "000_7264c0d847ce2ea0.txt: CS224N, assignment 4, in Chinese; proofs partly by ChatGPT",
    "001": "001_98e5ea6d9b2b9f47.txt: CS224N, assignment 4, parts 1 and 2, in Chinese",
    "002": "002_3752ab1b8acd2a0a.txt: CS224N, the questions on attention of an earlier year",
    "003": "003_208c69dc545de60d.txt: CS224N, assignment 4, with results of its program",
    "004": "004_84dacfa645a4c68c.txt: CMU 10-423, homework 1, with two answers to each question",
}
VOICES = {
    "student": "a student of the course",
    "GPT-4": "GPT-4",
    "notes": "the person who put both together",
}
SHORT = {  # what a document is, in a word or two
    "000": "A4 ChatGPT",
    "001": "A4 Chinese",
    "002": "A4 earlier",
    "003": "A4 program",
    "004": "CMU",
}


def short(document: str) -> str:
    """A name to read, from the document's own: "A4 Chinese", or with a voice "CMU student"."""
    number, space, voice = document.partition(" ")
    return f"{SHORT[number]}{space}{voice}"


def describe(document: str) -> str:
    """What a document is, from its name: "001", or with a voice "004 student"."""
    number, _, voice = document.partition(" ")
    return f"{DOCUMENTS[number]} ({VOICES[voice]})" if voice else DOCUMENTS[number]


# numbered as in the documents, in our words
QUESTIONS = {
    "A4 1(a)": "When does attention copy one value?",
    "A4 1(b)": "Which query averages two values?",
    "A4 1(c)i": "Which query averages two values when keys are noisy?",
    "A4 1(c)ii": "What does a single head do when one key varies in length?",
    "A4 1(d)i": "Which queries let two heads average two values?",
    "A4 1(d)ii": "What do two heads do when one key varies in length?",
    "A4 1(e)": "How do several heads overcome the drawback of one?",
    "A4 2(a)i": "What does a permutation of the input do to a transformer block?",
    "A4 2(a)ii": "Why is that a problem for text?",
    "A4 2(b)i": "Do position embeddings solve it?",
    "A4 2(b)ii": "Can two positions have the same sinusoidal embedding?",
    "A4 3(d)": "How good is finetuning without pretraining, and always answering London?",
    "A4 3(f)": "How good is finetuning after pretraining?",
    "A4 3(g)i": "Is the block form of RoPE the product of complex numbers?",
    "A4 3(g)ii": "Does the RoPE score depend on relative positions only?",
    "A4 3(g)iii": "How good is pretraining with RoPE?",
    "A4 4(a)": "Why does pretraining help?",
    "A4 4(b)": "Why does it matter that made-up answers look like true ones?",
    "A4 4(c)": "How does a model answer about a person it has never met?",
    "earlier 1(a)i": "Why are attention weights a probability distribution?",
    "earlier 1(a)ii-iii": "When does attention copy one value?",
    "earlier 1(a)iv": "What does it mean that the weight follows the score?",
    "earlier 1(b)i": "Which matrix takes one of two added values out of their sum?",
    "earlier 1(b)ii": "Which query averages two values?",
    "earlier 1(c)": "What does a single head do with noisy keys?",
    "earlier 1(d)": "What do two heads do with noisy keys?",
    "CMU 1.1": "Which Elman network remembers that it has seen both inputs?",
    "CMU 1.2(a)": "Does a bidirectional RNN give an autoregressive language model?",
    "CMU 1.2(b)": "Does one over each prefix?",
    "CMU 2.1(a)": "Does multiplicative attention learn other functions than scaled dot products?",
    "CMU 2.1(b)": "Can a concatenated score approximate the angle, or its cosine?",
    "CMU 2.1(c)": "Can an additive score approximate the angle, or its cosine?",
    "CMU 2.2(a)": "Is the attention matrix symmetric, and when?",
    "CMU 2.2(b)": "Are two heads one head with their projections side by side?",
    "CMU 3(a)": "How long does a window take, computed as the formula is written?",
    "CMU 3(b)": "How much memory does it take?",
    "CMU 3(c)": "Write a sliding window that is cheaper.",
    "CMU 3(d)": "How much memory does yours take?",
    "CMU 3(e)": "How long does yours take?",
    "CMU programming": "Implement RoPE and grouped-query attention; what do they cost and save?",
}
COURSES = {
    "A4": "Stanford CS224N, assignment 4",
    "earlier": "CS224N, the questions of an earlier year (document 002)",
    "CMU": "CMU 10-423/623, homework 1",
}
# the questions that no claim settles, and why
UNSETTLED = {
    "A4 3(g)iii": "a measurement on the course's own data: attnlab study birthplaces, "
    "docs/studies.md.",
    "A4 4(b)": "it cannot be tested here. 003 (line 87) answers that people lose trust and that "
    "misinformation spreads: that is about people, not about models, and nothing computed here can "
    "support or refute it.",
}


def find_questions(text: str) -> list[str]:
    """The question with this name, else all that start with it: "A4 1(c)" gives both its parts.

    Only letters and digits count, so "A4 1c", "a4 1(c)" and "A4 1（c）" are the same question.
    """
    wanted = _letters(text).removeprefix("cs224n").replace("assignment4", "a4")
    exact = [key for key in QUESTIONS if _letters(key) == wanted]
    found = exact or [key for key in QUESTIONS if wanted and _letters(key).startswith(wanted)]
    if not found:
        spelled = {_letters(key): key for key in QUESTIONS}
        near = difflib.get_close_matches(wanted, spelled, n=3, cutoff=0.5)
        likely = " or ".join(repr(spelled[one]) for one in near)
        hint = f"did you mean {likely}?" if near else f"choose from {', '.join(QUESTIONS)}"
        raise ValueError(f"unknown question {text!r}; {hint}")
    return found


def _letters(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).lower()
    return "".join(letter for letter in plain if letter.isalnum())
