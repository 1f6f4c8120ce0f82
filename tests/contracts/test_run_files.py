"""Every value of every JSON file of a run, replaced by nonsense: an answer or a plain refusal."""

import json
import shutil
import sys

import pytest
from training.recipes import begin, text_recipe

from attnlab import cli
from attnlab.training import checkpoint, runs
from attnlab.training.listing import summaries
from attnlab.training.saved import open_saved
from attnlab.training.state import State

NONSENSE = [None, "\ud800", {}, [[]], 10**40, -1e300]
BESIDE = ["config.json", "manifest.json", "result.json", "tokenizer.json"]
STEP = 2
SOME = 5  # values of a file that are tried with whole verbs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 30)
    return begin(root, text_recipe(root / "text.txt", f"steps={STEP}", "evaluate_every=2"))[0]


@pytest.fixture
def copy(run, tmp_path):
    return runs.Run(shutil.copytree(run.folder, tmp_path / "20260101-000000-tiny-abc123"))


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


def some(value):
    """A few, from everywhere in it, each another kind of nonsense: a verb takes its time."""
    there = list(places(value))
    for number, path in enumerate(there[:: -(-len(there) // SOME)]):
        yield replaced(value, path, NONSENSE[number % len(NONSENSE)])


def forge(folder, name, wrong):
    """Put a file into a checkpoint whose hashes are right all the same."""
    contents = {n: (folder / n).read_bytes() for n in (*checkpoint._TENSORS, *checkpoint.PLAIN)}
    contents[name] = json.dumps(wrong).encode()
    (folder / name).write_bytes(contents[name])
    (folder / "manifest.json").write_bytes(checkpoint._manifest(STEP, contents))


def use(run, *more):
    """What the verbs do with a run before they compute; refusals are of these two kinds."""
    for act in (run.manifest, run.result, lambda: run.recipe(note=lambda line: None), *more):
        try:
            act()
        except (ValueError, OSError) as error:
            assert str(error)


@pytest.mark.parametrize("name", BESIDE)
def test_files_beside_the_checkpoints(copy, tmp_path, name):
    value = json.loads((copy.folder / name).read_text())
    for _, _, wrong in variants(value):
        (copy.folder / name).write_text(json.dumps(wrong))
        use(copy)
        json.dumps(summaries(tmp_path), allow_nan=False)


@pytest.mark.parametrize("name", ["config.json", "state.json", "tokenizer.json"])
def test_files_of_a_checkpoint_whose_hashes_are_right(copy, tmp_path, name):
    folder = checkpoint.all_in(copy.checkpoints)[0]
    value = json.loads((folder / name).read_bytes())
    for _, _, wrong in variants(value):
        forge(folder, name, wrong)
        opened = [lambda: open_saved(str(copy.folder), tmp_path, "cpu")]
        use(copy, *(opened if name != "config.json" else []))  # building a model takes long
        if name == "state.json" and isinstance(wrong, dict):
            try:
                State.from_json(wrong)
            except ValueError as error:
                assert str(error)


def test_a_manifest_of_a_checkpoint_with_nonsense_in_it_is_passed_over(copy):
    """Also where nonsense is sealed with a hash that is right."""
    newest = checkpoint.all_in(copy.checkpoints)[0]
    older = shutil.copytree(newest, newest.with_name("step_000001"))
    forged = json.loads((older / "manifest.json").read_bytes())["body"] | {"step": 1}
    (older / "manifest.json").write_bytes(checkpoint._serialize(forged))
    good = json.loads((newest / "manifest.json").read_bytes())
    for path, new, wrong in variants(good):
        (newest / "manifest.json").write_text(json.dumps(wrong))
        found, broken = checkpoint.newest_good(copy.checkpoints)
        assert found == older and len(broken) == 1 and "\n" not in broken[0], (path, new)
    for path, new, body in variants(good["body"]):
        if new == "\ud800" or not path:  # which has no spelling
            continue
        (newest / "manifest.json").write_bytes(checkpoint._serialize(body))
        found, broken = checkpoint.newest_good(copy.checkpoints)
        assert found == older and len(broken) == 1, (path, new)


@pytest.fixture
def command(copy, monkeypatch, capsys):
    """A verb on the copy: it goes on, or says why not in a line; never a traceback."""
    monkeypatch.chdir(copy.folder.parent)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["attnlab", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capsys.readouterr().err.splitlines()
        code = stop.value.code or 0
        assert code in (0, 2), said
        assert code == 0 or (len(said) >= 1 and said[-1].startswith("error: ")), said
        return code

    return call


RESUME = ("train", "tiny", "--runs", ".", f"steps={STEP}")


def verbs(copy):
    yield (*RESUME, "--resume", copy.folder)
    yield ("generate", copy.folder, "--runs", ".", "--prompt", "the ", "--tokens", "2")


@pytest.mark.parametrize("name", BESIDE)
def test_verbs_on_a_run_with_nonsense_beside_its_checkpoints(copy, command, name):
    good = (copy.folder / name).read_bytes()
    for wrong in some(json.loads(good)):
        for words in verbs(copy):
            (copy.folder / name).write_text(json.dumps(wrong))
            command(*words)
    (copy.folder / name).write_bytes(good)
    assert [command(*words) for words in verbs(copy)] == [0, 0], "the control"


@pytest.mark.parametrize("name", ["config.json", "state.json", "tokenizer.json", "manifest.json"])
def test_verbs_on_a_run_with_nonsense_in_its_checkpoint(copy, command, name):
    folder = checkpoint.all_in(copy.checkpoints)[0]
    value = json.loads((folder / name).read_bytes())
    for wrong in some(value):
        for words in verbs(copy):
            if name == "manifest.json":
                (folder / name).write_text(json.dumps(wrong))
            else:
                forge(folder, name, wrong)
            command(*words)
