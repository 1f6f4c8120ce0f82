"""Everything a recipe stands for, made before anything is written: text, tokens, model."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from attnlab.data.batches import Source
from attnlab.data.corpora import Corpus
from attnlab.data.tokens import Tokenizer, tokenizer_from_json
from attnlab.training import checkpoint, runs
from attnlab.training.average import weights_to_use
from attnlab.training.recipe import Recipe
from attnlab.training.weights import build_model, load_weights, refuse_other_model


@dataclass(frozen=True)
class Setup:
    recipe: Recipe  # with the vocabulary filled in
    corpus: Corpus
    tokenizer: Tokenizer
    source: Source
    model: nn.Module


def prepare(recipe: Recipe, root: Path) -> Setup:
    """What is wrong with a recipe or its text is found here; `start` is looked up in `root`."""
    corpus = recipe.corpus.load()
    begun = None
    if recipe.start is not None:
        begun = checkpoint.load(runs.open_checkpoint(recipe.start, root, best=True)[0])
        tokenizer = tokenizer_from_json(begun.tokenizer)
    else:
        tokenizer = recipe.tokenizer.train(corpus.alphabet(), special=recipe.objective.special)
    model_settings = dataclasses.replace(recipe.model, vocabulary=tokenizer.size)
    recipe = dataclasses.replace(recipe, model=model_settings)
    if begun is not None:
        refuse_other_model(recipe, begun.config)
    source = recipe.objective.source(corpus, tokenizer, context=recipe.length, seed=recipe.seed)
    model = build_model(recipe)
    if begun is not None:
        load_weights(model, weights_to_use(begun))
    return Setup(recipe, corpus, tokenizer, source, model)
