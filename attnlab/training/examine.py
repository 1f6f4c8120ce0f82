"""What a trained model can do: what `attnlab evaluate` measures."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab import config, files
from attnlab.data.corpora import Corpus, CorpusSettings, Question
from attnlab.evaluate import accuracy, answer_questions, validation_loss
from attnlab.training.launch import with_data
from attnlab.training.saved import Saved, open_saved
from attnlab.training.setup import evaluated_together
from attnlab.training.text import file_of, names_text


def examine(
    word: str,
    overrides: list[str],
    *,
    root: Path,
    device: str,
    predict: Path | None,
    tick: Callable[[str], None],
) -> dict[str, Any]:
    """Loss over the whole validation split; for a corpus of questions also the accuracy."""
    tick("opening")
    _refuse_other_settings(overrides)
    saved = open_saved(word, root, device)
    recipe = config.override(saved.recipe, with_data(saved.recipe, overrides))
    corpus = _text(saved, recipe.corpus, overrides)
    found: dict[str, Any] = {}
    source = recipe.objective.source(
        corpus, saved.tokenizer, context=recipe.length, seed=recipe.seed
    )
    if source.validation_count:
        size = evaluated_together(recipe, next(saved.model.parameters()).device)
        batches = source.validation(size)
        result = validation_loss(
            saved.model, batches, tick=lambda done: tick(f"{done:,} tokens evaluated")
        )
        if not math.isfinite(result.loss):
            raise ValueError(
                f"the loss of {saved.folder} on this text is {result.loss}, not finite; the model "
                "has diverged: use an earlier checkpoint"
            )
        found |= {
            "loss": result.loss,
            "perplexity": result.perplexity if math.isfinite(result.perplexity) else None,
            "bits_per_token": result.bits,
            "tokens": result.tokens,
        }
    if saved.tokenizer.mask is not None and any(corpus.questions.values()):
        found |= _answer(saved, corpus.questions, predict, tick)
    elif predict is not None:
        raise ValueError("--predict needs a model and a corpus with questions")
    if not found:
        raise ValueError(f"{word} has nothing to be evaluated on: no validation text, no questions")
    skipped: dict[str, Any] = {"skipped": saved.broken} if saved.broken else {}
    return {"checkpoint": str(saved.folder), **skipped, **found}


def _text(saved: Saved, wanted: CorpusSettings, overrides: list[str]) -> Corpus:
    """What to evaluate on: a file that the checkpoint names is read if it is the one it had."""
    if not file_of(wanted) or file_of(wanted) != file_of(saved.recipe.corpus):
        return wanted.load()
    if names_text(overrides):
        return wanted.load()
    own = saved.load_text()
    return own if wanted == saved.recipe.corpus else wanted.load()


def _refuse_other_settings(overrides: list[str]) -> None:
    """What decides the model is in its checkpoint; saying it anew would change nothing."""
    for key, _ in map(config.split_override, overrides):
        if key[0] not in ABOUT_TEXT:
            raise ValueError(
                f"{'.'.join(key)} has no meaning for a trained model; evaluate takes "
                f"{', '.join(ABOUT_TEXT)}"
            )


ABOUT_TEXT = ("data", "corpus", "objective", "context", "seed")


def _answer(
    saved: Saved,
    questions: dict[str, list[Question]],
    predict: Path | None,
    tick: Callable[[str], None],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in ("train", "dev"):
        if questions.get(split):
            tick(f"answering the {split} questions")
            answers = answer_questions(saved.model, saved.tokenizer, questions[split])
            found[f"{split}_accuracy"] = accuracy(answers)
            found[f"{split}_questions"] = len(answers)
    if predict is not None:
        if not questions.get("test"):
            raise ValueError("--predict needs unlabelled questions, and this corpus has none")
        answers = answer_questions(saved.model, saved.tokenizer, questions["test"])
        files.write_named(predict, "".join(answer.given + "\n" for answer in answers).encode())
        found["predicted"] = len(answers)
    return found
