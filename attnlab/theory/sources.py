"""The documents the claims come from: five sheets of answers to two university assignments.

They answer the same questions, and contradict each other. A claim names them by their number.
"""

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


def described(document: str) -> str:
    """ "004 student" -> what that is."""
    number, _, voice = document.partition(" ")
    return f"{DOCUMENTS[number]} ({VOICES[voice]})" if voice else DOCUMENTS[number]
