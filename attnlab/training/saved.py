"""A trained model to use: opened from a run or a checkpoint, every bit checked first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab import config
from attnlab.data.corpora import Corpus
from attnlab.data.tokens import Tokenizer, tokenizer_from_json
from attnlab.generate import Sampling, generate
from attnlab.models.model import LanguageModel
from attnlab.training import runs
from attnlab.training.average import weights_to_use
from attnlab.training.opened import open_weights
from attnlab.training.parallel import torch_device
from attnlab.training.recipe import Recipe
from attnlab.training.state import State
from attnlab.training.text import load_text, recorded
from attnlab.training.weights import build_with


@dataclass(frozen=True)
class Saved:
    model: LanguageModel
    tokenizer: Tokenizer
    recipe: Recipe
    folder: Path  # the checkpoint
    broken: list[str]  # checkpoints that were passed over, and why
    state: State

    def load_text(self) -> Corpus:
        """The text it was trained on; a ValueError if it is another by now."""
        run = runs.Run(self.folder.absolute().parent.parent)
        return load_text(self.recipe.corpus, recorded(run, self.state), self.folder)

    def write(
        self,
        prompts: Sequence[str],
        *,
        tokens: int,
        sampling: Sampling,
        on_token: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """A text for each prompt, without the prompt; `on_token` hears of each as it comes."""
        given = [self.tokenizer.prompt(text).tolist() for text in prompts]
        new = generate(self.model, given, tokens=tokens, sampling=sampling, on_token=on_token)
        return [self.tokenizer.decode(answer) for answer in new]


def open_saved(word: str, root: Path, device: str = "auto", best: bool = True) -> Saved:
    """A run's best model (or its newest, if nothing was evaluated), or a checkpoint by its path."""
    place = torch_device(device)
    opened = open_weights(word, root, best=best)
    folder, kept = opened.folder, opened.kept
    recipe = config.from_dict(Recipe, kept.config)
    state = State.from_json(kept.state)
    tokenizer = tokenizer_from_json(kept.tokenizer)
    model = build_with(recipe, weights_to_use(kept), place)
    if tokenizer.size != recipe.model.vocabulary:
        raise ValueError(
            f"{folder} has a tokenizer of {tokenizer.size} tokens and a model of "
            f"{recipe.model.vocabulary}; they do not belong together"
        )
    return Saved(model.to(place).eval(), tokenizer, recipe, folder, opened.skipped, state)
