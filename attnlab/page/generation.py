"""Texts that a trained model writes, and its answers to questions.

Models are opened from the runs in the list and nowhere else, every bit of a checkpoint checked, and
the two used last stay open. A text comes token by token, so that it can be stopped in between.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from attnlab.data.corpora import Question
from attnlab.data.tokens import Tokenizer
from attnlab.evaluate import answer_questions
from attnlab.generate import Picked, Sampling, evaluating, precise, steps
from attnlab.models.model import LanguageModel
from attnlab.page.runs import Runs
from attnlab.page.validation import number, text, whole
from attnlab.training import checkpoint
from attnlab.training.saved import Saved, open_saved

Version = tuple[int, list[str]]  # of a run's model: changes when another is written
OPEN = 2
LONGEST_PROMPT, MOST_TOKENS = 2_000, 512
LONGEST_QUESTION, LONGEST_ANSWER = 300, 40
ALTERNATIVES = 5


class OpenModels:
    """The models that are open."""

    def __init__(self, known: Runs) -> None:
        self.runs = known
        self._open: OrderedDict[str, tuple[Version, Saved]] = OrderedDict()

    def take(self, name: str) -> Saved:
        """The best model of a run; opened anew when the run has written another."""
        folder = self.runs.folder(name)
        state = _state(folder)
        known = self._open.pop(name, None)
        if known is None or known[0] != state:
            while len(self._open) >= OPEN:
                self._open.popitem(last=False)
            known = (state, open_saved(str(folder.absolute()), self.runs.root))
        self._open[name] = known
        return known[1]

    def version(self, name: str) -> tuple[str, Version]:
        """Changes with the model that `take` gives."""
        return name, _state(self.runs.folder(name))


def _state(folder: Path) -> Version:
    evaluations = folder / "eval.jsonl"
    size = evaluations.stat().st_size if evaluations.is_file() else 0
    return size, [one.name for one in checkpoint.all_in(folder / "checkpoints")]


def prepare(models: OpenModels, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything that can be wrong is found now; what is given back then writes, a token a step."""
    name, prompt = text(body, "run", 300), text(body, "prompt", LONGEST_PROMPT)
    count = whole(body, "tokens", 1, MOST_TOKENS, default=200)
    top_k = None if body.get("top_k") is None else whole(body, "top_k", 1, 1 << 20)
    sampling = Sampling(
        temperature=number(body, "temperature", 0, 5, default=0.8),
        top_k=top_k,
        seed=whole(body, "seed", 0, 2**53, default=0),
    )
    saved = models.take(name)
    ids = saved.tokenizer.prompt(prompt).tolist()
    taken = steps(saved.model, [ids], tokens=count, sampling=sampling)
    return _stream_text(taken, saved.tokenizer, ids)


def _stream_text(
    taken: Generator[list[Picked], None, None], tokenizer: Tokenizer, ids: list[int]
) -> Iterator[dict[str, Any]]:
    """The text as it comes; a character of several bytes once it is whole."""
    began, before, known = time.perf_counter(), len(ids), tokenizer.decode(ids)
    with closing(taken):
        for step in taken:
            ids.append(step[0].token)
            now = tokenizer.decode(ids)
            if not now.endswith("\ufffd"):
                known, new = now, now[len(known) :]
                yield {"text": new}
    now = tokenizer.decode(ids)
    if len(now) > len(known):
        yield {"text": now[len(known) :]}
    count, seconds = len(ids) - before, time.perf_counter() - began
    yield {"done": True, "tokens": count, "tokens_per_second": count / max(seconds, 1e-9)}


def parse_question(body: Mapping[str, Any]) -> tuple[str, str]:
    """The run and the question; a name alone stands for the question where they were born."""
    if body.get("question") is not None:
        return text(body, "run", 300), text(body, "question", LONGEST_QUESTION)
    name = text(body, "name", LONGEST_QUESTION)
    return text(body, "run", 300), f"Where was {name} born?"


def answer(models: OpenModels, name: str, question: str) -> dict[str, Any]:
    """What the model answers, how sure it is, and what it would have said instead.

    Confidence is the probability of the whole answer, its end included.
    """
    saved = models.take(name)
    if saved.tokenizer.mask is None:
        raise ValueError(
            f"{name} was not trained on questions; choose a run that was, such as one of "
            "attnlab study birthplaces"
        )
    exact = precise(saved.model)
    asked_for = [Question(question, None)]
    found = answer_questions(exact, saved.tokenizer, asked_for, longest=LONGEST_ANSWER)[0]
    others = [
        one for one in _others(exact, saved.tokenizer, question) if one["answer"] != found.given
    ]
    return {
        "question": question,
        "answer": found.given,
        "confidence": found.confidence,
        "alternatives": others[: ALTERNATIVES - 1],
    }


def _others(model: LanguageModel, tokenizer: Tokenizer, question: str) -> list[dict[str, Any]]:
    """The likeliest answers that begin with each of the likeliest tokens."""
    mask = tokenizer.mask
    prompt = [*tokenizer.encode(question).tolist(), mask]
    longest = getattr(getattr(model, "positions", None), "longest", None)
    device = next(model.parameters()).device
    with torch.inference_mode(), evaluating(model):
        logits = model(
            torch.tensor([prompt if longest is None else prompt[-longest:]], device=device)
        )
    likely = logits[0, -1].log_softmax(-1).topk(min(ALTERNATIVES, logits.shape[-1]))
    first = [token for token in likely.indices.tolist() if token != mask]
    logs = dict(zip(likely.indices.tolist(), likely.values.tolist(), strict=True))
    given, sure = [[token] for token in first], [logs[token] for token in first]
    greedy = Sampling(temperature=0)
    taken = steps(
        model,
        [[*prompt, token] for token in first],
        tokens=LONGEST_ANSWER - 1,
        sampling=greedy,
        stop=mask,
    )
    with closing(taken):
        for row, token, log in (picked for step in taken for picked in step):
            sure[row] += log
            if token != mask:
                given[row].append(token)
    found = [
        {"answer": tokenizer.decode(ids), "confidence": math.exp(log)}
        for ids, log in zip(given, sure, strict=True)
    ]
    return sorted(found, key=lambda one: -one["confidence"])
