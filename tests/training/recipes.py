"""Small trainings for the tests: seconds at most, with everything that could go wrong in them."""

import dataclasses

import torch

from attnlab import config, files, json_files
from attnlab.data.biographies import Biographies
from attnlab.data.objectives import Questions
from attnlab.models.transformer import TransformerSettings
from attnlab.training import runs
from attnlab.training.loop import train
from attnlab.training.optim import Muon
from attnlab.training.parallel import World
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report
from attnlab.training.setup import prepare

HERE = World(0, 1, torch.device("cpu"))


def small(*words, **changes):
    """Questions about a few people; seven to an epoch, so a batch of four crosses its end."""
    model = TransformerSettings(context=64, width=16, depth=2, dropout=0.1, norm_heads=True)
    recipe = Recipe(
        corpus=Biographies(people=14, wordings=1),
        objective=Questions(),
        model=config.override(model, ["attention.heads=2"]),
        optimiser=Muon(),
        batch=4,
        steps=12,
        evaluate_every=5,
        save_every=4,
        device="cpu",
    )
    return dataclasses.replace(config.override(recipe, words), **changes)


def text_recipe(path, *words):
    """Causal language modelling of a file."""
    return small("corpus=text", f"corpus.path={path}", "objective=causal", *words)


def begin(tmp_path, recipe, name="test", report=None, world=HERE):
    run = runs.create(tmp_path, name)
    return run, go_on(run, recipe, None, report, world)


def go_on(run, recipe, resume, report=None, world=HERE):
    setup = prepare(recipe, run.folder.parent)
    files.write_whole(run.folder / "config.json", json_files.as_json(config.to_dict(setup.recipe)))
    return train(setup, run, world, report or Report(), resume)


def final_bits(run):
    """Bytes of everything that must not depend on interruptions."""
    from attnlab.training import checkpoint

    last = checkpoint.all_in(run.checkpoints)[0]
    names = [last / "model.safetensors", last / "optimiser.safetensors"]
    names += [run.log("metrics"), run.log("eval")]
    return {path.name: path.read_bytes() for path in names}
