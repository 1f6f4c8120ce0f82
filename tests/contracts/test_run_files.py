"""Every value of every JSON file of a run, replaced by nonsense: an answer or a plain refusal."""

import json
import shutil

import pytest
from training.recipes import begin, text_recipe

from attnlab.training import checkpoint, runs
from attnlab.training.listing import summaries
from attnlab.training.saved import open_saved
from attnlab.training.state import State

NONSENSE = [None, "\ud800", {}, [[]], 10**40, -1e300]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 30)
    return begin(root, text_recipe(root / "text.txt", "steps=2", "evaluate_every=2"))[0]


def places(value, path=()):
    """The path of every value in a JSON value; of a list the first is enough."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def replaced(value, path, new):
    if not path:
        return new
    value = json.loads(json.dumps(value))
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    if new is ...:
        inner.pop(path[-1])
    else:
        inner[path[-1]] = new
    return value


def variants(value):
    for path in places(value):
        for new in [*NONSENSE, ...] if path else NONSENSE:
            yield path, new, replaced(value, path, new)


def use(run, *more):
    """What the verbs do with a run before they compute; refusals are of these two kinds."""
    for act in (run.manifest, run.result, lambda: run.recipe(note=lambda line: None), *more):
        try:
            act()
        except (ValueError, OSError) as error:
            assert str(error)


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "result.json", "tokenizer.json"])
def test_files_beside_the_checkpoints(run, tmp_path, name):
    copy = runs.Run(shutil.copytree(run.folder, tmp_path / "run"))
    value = json.loads((copy.folder / name).read_text())
    for _, _, wrong in variants(value):
        (copy.folder / name).write_text(json.dumps(wrong))
        use(copy)
        json.dumps(summaries(tmp_path), allow_nan=False)


@pytest.mark.parametrize("name", ["config", "state"])
def test_files_of_a_checkpoint_whose_hashes_are_right(run, tmp_path, name):
    copy = runs.Run(shutil.copytree(run.folder, tmp_path / "run"))
    folder = checkpoint.all_in(copy.checkpoints)[0]
    contents = {n: (folder / n).read_bytes() for n in (*checkpoint._TENSORS, *checkpoint._PLAIN)}
    value = json.loads(contents[f"{name}.json"])
    for _, _, wrong in variants(value):
        forged = contents | {f"{name}.json": json.dumps(wrong).encode()}
        (folder / f"{name}.json").write_bytes(forged[f"{name}.json"])
        (folder / "manifest.json").write_bytes(checkpoint._manifest(2, forged))
        opened = [lambda: open_saved(str(copy.folder), tmp_path, "cpu")]
        use(copy, *(opened if name != "config" else []))  # building a model takes long
        if name == "state" and isinstance(wrong, dict):
            try:
                State.from_json(wrong)
            except ValueError as error:
                assert str(error)
