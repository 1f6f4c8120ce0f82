"""Everything a recipe stands for, made before anything is written: text, tokens, model."""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attnlab import config, registry
from attnlab.code.own import refuse_other_code
from attnlab.data.batches import Source
from attnlab.data.corpora import Corpus
from attnlab.data.tokens import Tokenizer, tokenizer_from_json
from attnlab.memory import machine_memory
from attnlab.models.loss import CHUNK, LARGE
from attnlab.models.model import LanguageModel
from attnlab.training import checkpoint
from attnlab.training.average import weights_to_use
from attnlab.training.blocks import refuse_recompute
from attnlab.training.opened import fingerprint, open_weights
from attnlab.training.parallel import World, cut_for, local_processes
from attnlab.training.recipe import Recipe
from attnlab.training.start_rows import OpenedRows, open_rows
from attnlab.training.step import in_chunks
from attnlab.training.weights import build_model, build_shards, load_weights, refuse_other_model

# in a batch of an evaluation: what keeps a GPU busy, and what stays in the caches of a CPU
EVALUATION_TOKENS = {"cuda": 1 << 14, "cpu": 1 << 12}


@dataclass(frozen=True)
class Setup:
    recipe: Recipe  # with the vocabulary filled in
    corpus: Corpus
    tokenizer: Tokenizer
    source: Source
    model: LanguageModel
    start: str = ""  # the fingerprint of the checkpoint whose weights it starts from
    # of weights that this process has in part (FSDP); in the model these are on "meta"
    rows: dict[str, torch.Tensor] = field(default_factory=dict)


def prepare(
    recipe: Recipe,
    root: Path,
    resume: Path | None = None,
    note: Callable[[str], None] = lambda line: None,
    corpus: Corpus | None = None,
    world: World | None = None,
) -> Setup:
    """Everything that training needs; a ValueError for what is wrong with a recipe or its text.

    `start` is looked up in `root`. To resume a run takes nothing but its own checkpoint, which has
    the tokenizer, and from which the loop loads the weights. `corpus`: the text, if it is loaded.
    `world`: the processes that train, where they may share the weights out.
    """
    corpus = corpus or recipe.corpus.load()
    opened, start = None, ""
    cut = None if world is None else cut_for(recipe, world)
    if resume is not None:
        tokenizer = tokenizer_from_json(checkpoint.read_plain(resume, "tokenizer.json"))
    elif recipe.start is not None:
        if world is None or cut is None:
            opened = open_weights(recipe.start, root)
        else:
            opened = open_rows(recipe.start, root, world)
        for line in opened.skipped:
            note(f"skipped: {line}")
        start = fingerprint(opened.folder)
        tokenizer = tokenizer_from_json(opened.kept.tokenizer)
    elif corpus.tokenizer is not None:
        tokenizer = corpus.tokenizer
        refuse_other_tokenizer(recipe, corpus, tokenizer)
    else:
        tokenizer = recipe.tokenizer.train(corpus.alphabet(), special=recipe.objective.special)
    model_settings = dataclasses.replace(recipe.model, vocabulary=tokenizer.size)
    recipe = dataclasses.replace(recipe, model=model_settings)
    if opened is not None:
        refuse_other_code(config.from_dict(Recipe, opened.kept.config), recipe)
        refuse_other_model(recipe, opened.kept.config)
    source = recipe.objective.source(
        corpus, tokenizer, context=recipe.length, seed=recipe.seed, note=note
    )
    rows = dict[str, torch.Tensor]()
    if cut is None:
        model = build_model(recipe)
    else:
        fill, local = resume is None and opened is None, local_processes()
        model, rows = build_shards(recipe, cut, local=local, fill=fill, note=note)
    refuse_apart(recipe, model)
    refuse_recompute(recipe, model)
    if isinstance(opened, OpenedRows):
        assert world is not None and cut is not None
        opened.put(world, model, rows, cut)
    elif opened is not None:
        load_weights(model, weights_to_use(opened.kept))
    return Setup(recipe, corpus, tokenizer, source, model, start, rows)


def refuse_other_tokenizer(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """A text that is tokens already decides what its tokenizer is."""
    name, size = registry.name_of("tokenizer", recipe.tokenizer), tokenizer.size
    known = tokenizer.to_json()["name"]
    if name != known or getattr(recipe.tokenizer, "vocabulary", size) != size:
        raise ValueError(
            f"{corpus.name} was prepared with tokenizer={known} of {size:,} tokens, and the "
            f"settings say another; name it by data={corpus.name} and leave out tokenizer="
        )


def refuse_apart(recipe: Recipe, model: LanguageModel) -> None:
    """Of a model that cannot be told which tokens belong together."""
    takes = "segments" in inspect.signature(model.forward).parameters
    if getattr(recipe.objective, "apart", False) and not takes:
        raise ValueError(
            "objective.apart is true, and this model takes no documents packed in a row; use "
            "model=transformer, or objective.apart=false"
        )


def refuse_large_step(recipe: Recipe, world: World) -> None:
    """Before memory runs out."""
    wanted = step_bytes(recipe, world.size, world.device.type)
    there = memory_of(world.device)
    if wanted > there:
        raise ValueError(
            f"a step needs {wanted / 1e9:,.0f} GB or more and there are {there / 1e9:,.0f}; "
            "use a smaller batch or context, or a larger accumulate"
        )


def step_bytes(recipe: Recipe, processes: int = 1, device: str = "cpu") -> float:
    """What a backward pass must find again, counted low.

    Logits, their softmax and its gradient, perhaps of a chunk; in each layer eight vectors a token.
    """
    model = recipe.model
    tokens = recipe.batch * recipe.length / (recipe.accumulate * processes)
    kept = 8 * model.width * getattr(model, "depth", 1) / (1 if recipe.dtype == "float32" else 2)
    logits = 4 * tokens * model.vocabulary
    if in_chunks(recipe, int(tokens), device):
        logits = min(logits, CHUNK[device])
    return 3 * logits + 4 * tokens * kept


def evaluated_together(recipe: Recipe, device: torch.device) -> int:
    """Samples in a batch of an evaluation, whose logits are there at once."""
    fitting = LARGE[device.type] // (4 * recipe.model.vocabulary)
    return max(min(EVALUATION_TOKENS[device.type], fitting) // recipe.length, 1)


def memory_of(device: torch.device) -> int:
    """Bytes of a GPU, or of this machine."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else machine_memory()
