"""A trained model opened: the same model, or a plain refusal; nothing in a folder is ever run."""

import json
import os
import pickle
import shutil

import pytest
import safetensors.torch
import torch
from training.recipes import begin, small, text_recipe

from attnlab import config
from attnlab.training import checkpoint
from attnlab.training.saved import open_saved
from attnlab.training.setup import prepare
from attnlab.training.weights import build_model

TEXT = "the quick brown fox jumps over the lazy dog. " * 30


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text(TEXT)
    return begin(root, text_recipe(root / "text.txt", "steps=4", "evaluate_every=none"))[0]


@pytest.fixture
def good(trained):
    return checkpoint.load(trained.checkpoints / "step_000004")


def crafted(tmp_path, kept=None, **contents):
    """A checkpoint whose manifest is right, whatever its files hold: anyone can make one."""
    folder = tmp_path / "runs" / "evil" / "checkpoints" / "step_000004"
    if kept is not None:
        checkpoint.save(folder.parent, 4, kept)
    files = {n: (folder / n).read_bytes() for n in (*checkpoint._TENSORS, *checkpoint.PLAIN)}
    files.update({name.replace("__", "."): content for name, content in contents.items()})
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "manifest.json").write_bytes(checkpoint._manifest(4, files))
    (folder.parent.parent / "config.json").write_bytes(files["config.json"])
    return folder


def changed(plain, path, value):
    plain = json.loads(json.dumps(plain))
    inner = plain
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return plain


class Bomb:
    """What a pickle can do: leave a mark when it is read."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def test_what_was_trained_is_opened(trained, good, tmp_path):
    saved = open_saved(str(trained.folder), tmp_path, "cpu")
    assert all(torch.equal(good.model[n], p) for n, p in saved.model.named_parameters())
    assert not saved.model.training and saved.broken == []
    assert saved.tokenizer.decode(saved.tokenizer.encode("the fox")) == "the fox"


def test_a_broken_checkpoint_is_passed_over_and_named(trained, tmp_path):
    copy = shutil.copytree(trained.folder, tmp_path / "copy")
    shutil.copytree(copy / "checkpoints/step_000004", copy / "checkpoints/step_000009")
    saved = open_saved(str(copy), tmp_path, "cpu")
    assert saved.folder.name == "step_000004"
    assert len(saved.broken) == 1 and "step_000009" in saved.broken[0]


@pytest.mark.parametrize(
    ("device", "message"),
    [("banana", "device is 'banana'; choose from"), ("meta", "choose from"), ("cuda", "no CUDA")],
)
def test_a_device_that_is_not_there_is_refused(trained, tmp_path, device, message):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ValueError, match=message):
        open_saved(str(trained.folder), tmp_path, device)


def test_control_a_crafted_checkpoint_that_is_honest_is_opened(tmp_path, good):
    folder = crafted(tmp_path, good)
    assert open_saved(str(folder), tmp_path, "cpu").folder == folder
    assert open_saved("evil", tmp_path / "runs", "cpu").folder == folder


def pickled(mark):
    return pickle.dumps(Bomb(mark))


def zipped(mark, tmp_path):
    torch.save({"weights": Bomb(mark)}, tmp_path / "zip")
    return (tmp_path / "zip").read_bytes()


FILES = [*checkpoint._TENSORS, *checkpoint.PLAIN, "manifest.json"]


@pytest.mark.parametrize("kind", ["pickle", "torch.save"])
@pytest.mark.parametrize("name", FILES)
def test_a_pickle_under_any_name_is_refused_and_never_run(tmp_path, good, name, kind):
    mark = tmp_path / "mark"
    content = pickled(mark) if kind == "pickle" else zipped(mark, tmp_path)
    folder = crafted(tmp_path, good, **({} if name == "manifest.json" else {name: content}))
    if name == "manifest.json":
        (folder / name).write_bytes(content)
    refuses(tmp_path, folder)
    assert not mark.exists()
    pickle.loads(pickled(mark))
    assert mark.exists(), "the bomb itself works"


@pytest.mark.parametrize("extra", ["x.pkl", "pytorch_model.bin", "__init__.py", "optimizer.pt"])
def test_files_beside_a_checkpoint_are_never_read(tmp_path, good, extra):
    mark = tmp_path / "mark"
    folder = crafted(tmp_path, good)
    text = f"import os; os.mkdir({str(mark)!r})".encode()
    (folder / extra).write_bytes(text if extra.endswith(".py") else pickled(mark))
    open_saved(str(folder), tmp_path, "cpu")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["model", "name"], "../../x"),
        (["model", "name"], "os:system"),
        (["model", "name"], "attnlab.models.transformer:TransformerSettings"),
        (["model", "name"], "__import__('os').system('true')"),
        (["model", "name"], ["transformer"]),
        (["model"], "transformer"),
        (["model"], None),
        (["model", "attention", "name"], "builtins:eval"),
        (["model", "positions", "build"], "x"),
        (["model", "__class__"], "os"),
        (["model", "width"], 10**12),
        (["model", "depth"], 1 << 20),
        (["model", "width"], 16.5),
        (["model", "attention", "head_width"], 10**30),
        (["model", "window"], []),
        (["model", "dropout"], "0.1"),
        (["corpus", "name"], "subprocess:Popen"),
        (["tokenizer", "name"], "pickle"),
        (["optimiser", "name"], "torch.optim:SGD"),
        (["objective", "special"], True),
        (["steps"], -1),
        (["schedule"], [1]),
        (["start"], {"a": 1}),
        (["unknown"], 1),
    ],
)
def test_a_hostile_config_is_refused(tmp_path, good, path, value):
    plain = json.dumps(changed(good.config, path, value)).encode()
    folder = crafted(tmp_path, good, **{"config.json": plain})
    refuses(tmp_path, folder, also_as_start=path[0] == "model" and path[-1] != "dropout")


@pytest.mark.parametrize("content", [b"[]", b"1", b"", b"\xff", b"[" * 99_999, b'{"a":' * 99_999])
@pytest.mark.parametrize("name", checkpoint.PLAIN)
def test_what_is_no_json_object_is_refused(tmp_path, good, name, content):
    refuses(tmp_path, crafted(tmp_path, good, **{name: content}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["name"], "os:system"),
        (["name"], "../../x"),
        (["alphabet"], ["ab"]),
        (["alphabet"], ["\ud800"]),
        (["alphabet"], ["a"]),
        (["alphabet"], {"a": 1}),
        (["special"], True),
        (["special"], "yes"),
        (["extra"], 1),
    ],
)
def test_a_hostile_tokenizer_is_refused(tmp_path, good, path, value):
    plain = json.dumps(changed(good.tokenizer, path, value)).encode()
    refuses(tmp_path, crafted(tmp_path, good, **{"tokenizer.json": plain}))


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}},
        {"a": {"dtype": "os.system", "shape": [1], "data_offsets": [0, 4]}},
        {"../../x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"__metadata__": {"a": "b"}},
    ],
    ids=str,
)
def test_hostile_tensors_are_refused(tmp_path, good, header):
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"\0" * 4
    refuses(tmp_path, crafted(tmp_path, good, **{"model.safetensors": content}))


def test_weights_of_another_model_are_refused(tmp_path, good):
    other = build_model(small("model.width=32"))
    content = safetensors.torch.save({n: p.detach() for n, p in other.named_parameters()})
    refuses(tmp_path, crafted(tmp_path, good, **{"model.safetensors": content}))


def test_a_symlink_out_of_the_folder_is_read_only_for_what_it_must_hold(tmp_path, good):
    secret = tmp_path / "secret"
    secret.write_text("secret text")
    folder = crafted(tmp_path, good)
    (folder / "state.json").unlink()
    (folder / "state.json").symlink_to(secret)
    with pytest.raises(ValueError) as caught:
        open_saved(str(folder), tmp_path, "cpu")
    assert "secret text" not in str(caught.value)


@pytest.mark.parametrize("name", ["step_4", "step_000004/..", "../step_000004", "step_-00004"])
def test_a_name_that_is_no_step_is_no_checkpoint(tmp_path, good, name):
    folder = crafted(tmp_path, good)
    with pytest.raises(ValueError):
        open_saved(str(folder.parent / name), tmp_path / "nowhere", "cpu")


def refuses(root, folder, also_as_start=True):
    """Every way in: by the checkpoint, by its run, and as what another run starts from."""
    for word in (str(folder), str(folder.parent.parent)):
        with pytest.raises(ValueError):
            open_saved(word, root, "cpu")
    if also_as_start:
        (root / "text.txt").write_text(TEXT)
        with pytest.raises(ValueError):
            prepare(text_recipe(root / "text.txt", f"start={folder}"), root)


def test_settings_that_are_kept_are_those_of_the_run(trained, good):
    assert config.from_dict(type(trained.recipe()), good.config) == trained.recipe()
