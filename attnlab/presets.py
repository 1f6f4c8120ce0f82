"""Presets: recipes with a name, each a function. `attnlab train NAME key=value …` changes one.

Numbers without a reason beside them are the usual ones of the experiment they stand for.
"""

from typing import Any

from attnlab import config
from attnlab.attention.positions import Rotary
from attnlab.data.birthplaces import Birthplaces
from attnlab.data.corpora import PythonDocs, TextFiles
from attnlab.data.mixed import Mixed
from attnlab.models.recurrent import ElmanSettings
from attnlab.models.transformer import TransformerSettings
from attnlab.training.optim import AdamW, Muon, Schedule
from attnlab.training.recipe import Recipe

# what lets a small model learn fast (docs/notes.md has the numbers)
MODERN: dict[str, Any] = {
    "norm": "unit",
    "norm_heads": True,
    "feedforward": "squared-relu",
    "positions": Rotary(layout="interleaved"),
}
FAST: dict[str, Any] = {
    "optimiser": Muon(rate=0.01, momentum=0.9),
    "schedule": Schedule(warmup=10, hold=0.3, shape="linear", final=0.02),
    "average": 0.98,
}
# whose learning rate was chosen by trainings of this kind of model (docs/notes.md); another kind
# may want another rate, so a comparison searches it for each
TUNED = {
    "tiny": "rotary positions and full attention",
    "shakespeare-cpu": "rotary positions and full attention",
    "shakespeare-gpu": "rotary positions and full attention",
    "birthplaces-best": "rotary positions and full attention",
}
DOCUMENTS = 2937  # in the text of the birthplaces experiment
# the transformer of both courses
CLASSIC: dict[str, Any] = {
    "norm": "layer",
    "bias": True,
    "tied": False,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}


def tiny() -> Recipe:
    """A small model of English about Python: a minute on two cores."""
    return Recipe(
        corpus=PythonDocs(),
        model=transformer(context=64, width=128, depth=2, **MODERN),
        **FAST,
        batch=16,
        steps=800,
        evaluate_every=200,
        save_every=200,
        sample_every=400,
    )


def shakespeare_cpu() -> Recipe:
    """Character Shakespeare in a minute and a half on two cores.

    Two layers: four learn more from a step, but less from a second (docs/notes.md).
    """
    return Recipe(
        corpus=TextFiles(),
        model=transformer(context=64, width=128, depth=2, **MODERN),
        **FAST,
        batch=24,
        steps=1320,
        evaluate_every=110,
        save_every=None,
    )


def shakespeare_gpu() -> Recipe:
    """Character Shakespeare in a few seconds on one GPU."""
    return Recipe(
        corpus=TextFiles(),
        model=transformer(context=256, width=384, depth=6, heads=6, dropout=0.2, **MODERN),
        **{**FAST, "average": 0.99},
        batch=40,
        steps=850,
        dtype="bfloat16",
        compile=True,
        evaluate_every=100,
        save_every=None,
    )


def birthplaces_pretrain() -> Recipe:
    """Span corruption over one sentence a person, rotary positions: the course's recipe."""
    return _course(["objective=span-corruption"], steps=14_950, batch=128, rate=6e-3)


def birthplaces_pretrain_learned() -> Recipe:
    """The same with learned positions."""
    return config.override(birthplaces_pretrain(), ["model.positions=learned"])


def birthplaces_finetune() -> Recipe:
    """Questions after pretraining: give it start=RUN."""
    return _course(["objective=questions"], steps=80, batch=256, rate=6e-4)


def birthplaces_finetune_learned() -> Recipe:
    """The same with learned positions."""
    return config.override(birthplaces_finetune(), ["model.positions=learned"])


def birthplaces_none() -> Recipe:
    """Questions without pretraining: what can be learned from them alone."""
    return config.override(birthplaces_finetune(), ["steps=600"])


def birthplaces_best() -> Recipe:
    """Spans, recall and questions in one go: two questions of three, in a minute on one GPU."""
    return Recipe(
        corpus=Birthplaces(),
        objective=Mixed(),
        model=transformer(context=128, width=256, depth=4, heads=8, tied=False, **MODERN),
        **{**FAST, "optimiser": Muon(rate=0.02, momentum=0.9, weight_decay=0.1), "average": 0.99},
        batch=128,
        steps=10_000,
        dtype="bfloat16",
        compile=True,
        evaluate_every=1000,
        save_every=None,
        save_best=False,
    )


def rope_gqa_absolute() -> Recipe:
    """Learned positions, six heads, block 16; continue with start=RUN context=256."""
    return _rope_gqa(["model.positions=learned"])


def rope_gqa_rotary() -> Recipe:
    """Rotary positions, six heads."""
    return _rope_gqa([])


def rope_gqa_grouped() -> Recipe:
    """Learned positions, six heads sharing two key/value heads."""
    return _rope_gqa(["model.positions=learned", *GROUPED])


def rope_gqa_both() -> Recipe:
    """Rotary positions, six heads sharing two key/value heads."""
    return _rope_gqa(GROUPED)


GROUPED = ["model.attention=grouped", "model.attention.heads=6", "model.attention.kv_heads=2"]


def elman() -> Recipe:
    """A recurrent language model: everything read so far in one vector."""
    return Recipe(
        corpus=PythonDocs(),
        model=ElmanSettings(width=256),
        optimiser=AdamW(rate=2e-3, weight_decay=0.0),
        schedule=Schedule(warmup=20),
        context=64,
        batch=32,
        steps=800,
        evaluate_every=200,
        save_every=200,
        sample_every=800,
    )


def transformer(*, heads: int = 4, **settings: Any) -> TransformerSettings:
    base = TransformerSettings(**settings)
    return config.override(base, [f"attention.heads={heads}"])


def _course(overrides: list[str], *, steps: int, batch: int, rate: float) -> Recipe:
    """The transformer of the birthplaces experiment: 3,290,624 parameters with rotary positions."""
    recipe = Recipe(
        corpus=Birthplaces(),
        model=transformer(context=128, width=256, depth=4, heads=8, initial="flat", **CLASSIC),
        # with learned positions 6e-3 is too high unless the gains of the norms decay as well
        optimiser=AdamW(rate=rate, decay_gains=True),
        # it counts every place of a batch as a token and comes to its lowest after 200 readings of
        # the documents; the 650 of pretraining go past that, up again and down
        schedule=Schedule(warmup=1, shape="waves", wave=200 * DOCUMENTS // batch),
        batch=batch,
        steps=steps,
        evaluate_every=None,
        save_every=1000,
    )
    return config.override(recipe, overrides)


def _rope_gqa(overrides: list[str]) -> Recipe:
    recipe = Recipe(
        corpus=TextFiles(),
        model=transformer(context=256, width=192, depth=6, heads=6, **CLASSIC),
        optimiser=AdamW(rate=5e-4),
        schedule=Schedule(shape="constant"),
        context=16,
        batch=64,
        steps=600,
        seed=3407,
        evaluate_every=200,
        save_every=200,
    )
    return config.override(recipe, overrides)
