"""What a trained model can do: what `attnlab evaluate` measures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnlab import config
from attnlab.evaluate import accuracy, answer_questions, validation_loss
from attnlab.training.launch import with_data
from attnlab.training.loop import EVALUATION_TOKENS
from attnlab.training.saved import Saved, open_saved


def examine(
    word: str,
    words: list[str],
    *,
    root: Path,
    device: str,
    predict: Path | None,
    tick: Callable[[str], None],
) -> dict[str, Any]:
    """Loss over the whole validation split; for a corpus of questions also the accuracy."""
    tick("opening")
    saved = open_saved(word, root, device)
    recipe = config.override(saved.recipe, with_data(saved.recipe, words))
    corpus = recipe.corpus.load()
    found: dict[str, Any] = {"checkpoint": str(saved.folder)}
    source = recipe.objective.source(
        corpus, saved.tokenizer, context=recipe.length, seed=recipe.seed
    )
    if source.validation_count:
        size = max(EVALUATION_TOKENS // recipe.length, 1)
        batches = source.validation(size)
        result = validation_loss(
            saved.model, batches, tick=lambda done: tick(f"{done:,} tokens evaluated")
        )
        found |= {
            "loss": result.loss,
            "perplexity": result.perplexity,
            "bits_per_token": result.bits,
            "tokens": result.tokens,
        }
    if saved.tokenizer.mask is not None and corpus.questions:
        found |= _asked(saved, corpus.questions, predict, tick)
    elif predict is not None:
        raise ValueError("--predict needs a model and a corpus with questions")
    if len(found) == 1:
        raise ValueError(f"{word} has nothing to be evaluated on: no validation text, no questions")
    return found


def _asked(
    saved: Saved, questions: dict[str, Any], predict: Path | None, tick: Callable[[str], None]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in ("train", "dev"):
        if questions.get(split):
            tick(f"answering the {split} questions")
            answers = answer_questions(saved.model, saved.tokenizer, questions[split])
            found[f"{split}_accuracy"] = accuracy(answers)
            found[f"{split}_questions"] = len(answers)
    if predict is not None:
        answers = answer_questions(saved.model, saved.tokenizer, questions.get("test") or [])
        predict.write_text("".join(answer.given + "\n" for answer in answers), encoding="utf-8")
        found["predicted"] = len(answers)
    return found
