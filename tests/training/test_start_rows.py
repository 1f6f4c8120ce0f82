"""`start=RUN` in shards: each process has its rows of the weights, and reads no more."""

import dataclasses
import json
import shutil

import pytest
import torch
from training.recipes import HERE, begin, small, text_recipe

from attnlab import config
from attnlab.interop import exporting
from attnlab.interop.parity import Parity
from attnlab.training import checkpoint, opened, weights
from attnlab.training.average import weights_to_use
from attnlab.training.recipe import Recipe
from attnlab.training.saved import open_saved
from attnlab.training.shard_files import ShardFiles
from attnlab.training.shards import Cut
from attnlab.training.start_rows import open_rows

LLAMA = ["model.norm=rms", "model.feedforward=swiglu", "model.norm_heads=false"]
PROVED = Parity("Llama", 1e-15, 1e-7, True, True, True, True, 96, 64, (), "5", "2")
LARGE = ["model.width=128", "model.depth=1"]
WORDS = [*LARGE, "average=0.9", "steps=2", "evaluate_every=none", "model.dropout=0"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    text = root / "text.txt"
    text.write_text("The sun rises. It's morning again, and the birds sing.\n" * 40)
    run, _ = begin(root, small(*WORDS))
    llama = begin(root, text_recipe(text, *LLAMA, *LARGE, "steps=2"), "llama")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "compare", lambda *args, **named: PROVED)
        exporting.export(open_saved(str(llama.folder), root, "cpu"), root / "exported")
    return {"run": run.folder, "folder": root / "exported"}


def recipe_of(place):
    return config.from_dict(Recipe, opened.open_weights(str(place), place.parent).kept.config)


def halves(place, recipe):
    """The model as both processes begin with it, and the names of the weights that are cut."""
    whole, rows = {}, []
    for shard in range(2):
        cut = Cut(2, shard)
        found = open_rows(str(place), place.parent, HERE)
        made, mine = weights.build_shards(recipe, cut, local=2, fill=False, note=pytest.fail)
        found.put(HERE, made, mine, cut)
        rows.append(mine)
        whole |= {name: one for name, one in made.named_parameters() if not one.is_meta}
    assert rows[0].keys() == rows[1].keys() and rows[0]
    return whole | {name: torch.cat([one[name] for one in rows]) for name in rows[0]}, rows


@pytest.mark.parametrize("kind", ["run", "folder"])
def test_the_rows_of_all_processes_are_the_weights_to_start_from(places, kind):
    there = opened.open_weights(str(places[kind]), places[kind].parent)
    found, rows = halves(places[kind], recipe_of(places[kind]))
    right = weights_to_use(there.kept)
    assert found.keys() == right.keys()
    for name, one in right.items():
        assert torch.equal(found[name].detach(), one.float()), name
    assert all(2 * len(one) <= len(right[name]) + 1 for name, one in rows[0].items())
    if kind == "run":
        assert not all(torch.equal(found[name], one) for name, one in there.kept.model.items())


def test_nothing_else_is_read_than_what_a_process_keeps(places, monkeypatch):
    recipe = recipe_of(places["run"])
    plain, read = ShardFiles.read, []

    def noted(self, kind, wanted=None):
        found = plain(self, kind, wanted)
        read.append({name: one.shape for name, one in found.items()})
        return found

    monkeypatch.setattr(ShardFiles, "read", noted)
    monkeypatch.setattr(checkpoint, "load", None)
    monkeypatch.setattr(checkpoint, "read_verified", None)
    rows = halves(places["run"], recipe)[1]
    sizes = {name: one.shape for name, one in rows[0].items()}
    assert sizes == {
        name.removesuffix("/average"): shape
        for name, shape in read[1].items()
        if name.removesuffix("/average") in sizes
    }


def test_a_damaged_start_is_refused_and_an_older_checkpoint_is_used(places, tmp_path):
    run, _ = begin(tmp_path, small(*WORDS, "save_every=1"))
    newest, older = checkpoint.all_in(run.checkpoints)[:2]
    path = newest / "optimiser.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = open_rows(str(run.folder), tmp_path, HERE)
    assert found.folder == older and "is damaged" in found.skipped[0]
    with pytest.raises(ValueError, match="is damaged"):
        open_rows(str(newest), tmp_path, HERE)


class Told:
    """The first of some processes; what it tells the others is kept."""

    first = True

    def __init__(self):
        self.said = []

    def gather(self, said):
        self.said.append(json.loads(said))
        return [said]


@pytest.mark.parametrize("kind", ["run", "folder"])
def test_what_one_process_cannot_read_the_others_are_told(places, tmp_path, monkeypatch, kind):
    place = shutil.copytree(places[kind], tmp_path / kind)
    if kind == "folder":
        (place / "tokenizer.json").unlink()
    else:
        whole = opened.find  # when it is looked for it is there; later a file is not

        def find(word, root):
            found = whole(word, root)
            (found[0] / "config.json").unlink()
            return found

        monkeypatch.setattr(opened, "find", find)
    world = Told()
    with pytest.raises(ValueError, match="is missing"):
        open_rows(str(place), tmp_path, world)
    assert "is missing" in world.said[-1]["error"] and len(world.said) == 2


def test_another_model_is_refused_by_name(places):
    recipe = recipe_of(places["run"])
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, depth=2))
    with pytest.raises(ValueError, match=r"weight blocks\.1.* is missing in the checkpoint"):
        halves(places["run"], recipe)
