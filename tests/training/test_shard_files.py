"""Checkpoints in shards: whole or not there, every bit checked, any range of rows readable."""

import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from attnlab.checks.corruption import example, save_in_shards
from attnlab.training import checkpoint, shard_files, verified_file
from attnlab.training.tensor_file import TensorFile
from attnlab.training.verified_file import BrokenCheckpoint, Described, VerifiedFile


@pytest.mark.parametrize("shards", [2, 3, 70])
def test_what_was_saved_in_shards_is_loaded_whole(tmp_path, shards):
    """70 are more than there are rows: some shards hold nothing of a tensor."""
    saved = example(3)
    loaded = checkpoint.load(save_in_shards(tmp_path, 7, saved, shards))
    for mine, theirs in ((saved.model, loaded.model), (saved.optimiser, loaded.optimiser)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (loaded.config, loaded.tokenizer, loaded.state) == (
        saved.config,
        saved.tokenizer,
        saved.state,
    )
    assert checkpoint.newest_good(tmp_path)[0].name == "step_000007"


@pytest.mark.parametrize("shards", [1, 3])
def test_any_rows_are_read_and_no_others(tmp_path, monkeypatch, shards):
    """Of one that is not in shards as well."""
    monkeypatch.setattr(verified_file, "BLOCK", 256)
    saved = example(0)
    save = checkpoint.save if shards == 1 else lambda *args: save_in_shards(*args, shards)
    tensors = checkpoint.open_tensors(save(tmp_path, 1, saved))
    rows = {"embed.weight": (20, 45), "norm.weight": (3, 4), "blocks.0.up.weight": (7, 7)}
    found = tensors.read("model", rows)
    assert found.keys() == rows.keys()
    for name, (start, stop) in rows.items():
        assert torch.equal(found[name], saved.model[name][start:stop])
    assert tensors.read("optimiser", {"norm.weight/step": (0, 1)})["norm.weight/step"] == 3.0


def test_a_reader_of_some_rows_reads_and_checks_the_blocks_around_them(tmp_path, monkeypatch):
    monkeypatch.setattr(verified_file, "BLOCK", 256)
    folder = save_in_shards(tmp_path, 1, example(0), 2)
    path = folder / shard_files.name_of("model", 1, 2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last row of the norm, the last tensor by its name
    path.write_bytes(content)
    tensors = checkpoint.open_tensors(folder)
    assert torch.equal(
        tensors.read("model", {"embed.weight": (40, 50)})["embed.weight"],
        example(0).model["embed.weight"][40:50],
    )
    with pytest.raises(BrokenCheckpoint, match="its hash does not match"):
        tensors.read("model", {"norm.weight": (15, 16)})
    with pytest.raises(BrokenCheckpoint, match="its hash does not match"):
        checkpoint.load(folder)
    assert not checkpoint.is_good(folder)


def test_readers_share_the_files_out(tmp_path):
    folder = save_in_shards(tmp_path, 1, example(0), 2)
    path = folder / shard_files.name_of("optimiser", 1, 2)
    path.write_bytes(path.read_bytes()[:-1])
    complaints = 0
    for reader in range(3):
        try:
            checkpoint.verify(folder, reader, 3)
        except BrokenCheckpoint:
            complaints += 1
    assert complaints == 1


def test_one_hash_for_each_block_of_what_was_written(tmp_path, monkeypatch):
    """However the pieces lie that were written."""
    monkeypatch.setattr(verified_file, "BLOCK", 1000)
    content = Described(TensorFile(example(0).model))
    path = tmp_path / "file"
    path.write_bytes(b"".join(content))
    entry = content.entry()
    assert entry["bytes"] == path.stat().st_size and len(entry["blocks"]) == 9
    with VerifiedFile(path, entry) as file:
        assert file.read(0, file.size) == path.read_bytes()
        assert file.read(995, 2005) == path.read_bytes()[995:2005]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_what_is_not_finite_is_refused(tmp_path, value):
    poisoned = example(1)
    poisoned.model["embed.weight"][-1, -1] = value
    folder = save_in_shards(tmp_path, 1, poisoned, 2)
    with pytest.raises(BrokenCheckpoint, match=r"model-00002.* holds NaN or Inf in embed.weight"):
        checkpoint.verify(folder)
    with pytest.raises(BrokenCheckpoint, match="holds NaN or Inf"):
        checkpoint.open_tensors(folder).read("model", {"embed.weight": (60, 65)})


def rewritten(folder, change):
    """A checkpoint made by someone who knows the format: the manifest fits."""
    path = folder / "shards.json"
    index = json.loads(path.read_bytes())
    change(index)
    path.write_text(json.dumps(index))
    body = json.loads((folder / "manifest.json").read_bytes())["body"]
    body["files"][path.name] = checkpoint.entry_of(path.read_bytes())
    (folder / "manifest.json").write_bytes(checkpoint._serialize(body))
    return folder


def put(kind, name, **fields):
    return lambda index: index[kind][name].update(fields)


def added(**fields):
    """A tensor of no numbers, which no file needs to hold."""
    return lambda index: index["model"].update(more={"dtype": "float32", **fields})


@pytest.mark.parametrize(
    "change",
    [
        put("model", "embed.weight", shape=[65, 2**40]),
        put("model", "embed.weight", shape=[65, 17]),
        put("model", "embed.weight", shape=[-65, 16]),
        put("model", "embed.weight", dtype="float64"),
        put("model", "embed.weight", dtype="object"),
        put("model", "embed.weight", rows=[0, 40, 65]),
        put("model", "embed.weight", rows=[0, 65]),
        put("model", "embed.weight", rows=[33, 0, 65]),
        put("model", "embed.weight", rows=[0, 33, 64]),
        put("model", "embed.weight", rows="0"),
        added(shape=[0, 2**70], rows=[0, 0, 0]),
        added(shape=[0, 2**62, 2**62, 2**62], rows=[0, 0, 0]),
        added(shape=[0, *[2**62] * 20_000], rows=[0, 0, 0]),
        lambda index: index["model"].pop("norm.weight"),
        lambda index: index["model"].update(more=index["model"]["norm.weight"]),
        lambda index: index.pop("optimiser"),
        lambda index: index["model"].update(more=5),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, change):
    folder = rewritten(save_in_shards(tmp_path, 1, example(0), 2), change)
    with pytest.raises(BrokenCheckpoint):
        checkpoint.load(folder)
    assert not checkpoint.is_good(folder)


def all_at_the_beginning(header):
    """Then the file holds bytes that no tensor has, and some that several have."""
    for one in header.values():
        start, stop = one["data_offsets"]
        one["data_offsets"] = [0, stop - start]


def less_than_the_file(header):
    last = max(header.values(), key=lambda one: one["data_offsets"])
    header.pop(next(name for name, one in header.items() if one is last))


def more_numbers_than_can_be_counted(header):
    header["more"] = {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "harm", [all_at_the_beginning, less_than_the_file, more_numbers_than_can_be_counted]
)
def test_tensors_lie_one_after_another_as_the_library_wants_them(tmp_path, harm, shards):
    saved = example(0)
    if shards == 1:
        folder, name = checkpoint.save(tmp_path, 1, saved), "model.safetensors"
    else:
        folder, name = save_in_shards(tmp_path, 1, saved, 2), shard_files.name_of("model", 0, 2)
    path = folder / name
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    harm(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(SafetensorError):
        load_file(path)
    body = json.loads((folder / "manifest.json").read_bytes())["body"]
    body["files"][name] = checkpoint.entry_of(path.read_bytes())
    (folder / "manifest.json").write_bytes(checkpoint._serialize(body))
    with pytest.raises(BrokenCheckpoint, match=r"model.*safetensors"):
        checkpoint.open_tensors(folder).read("model")
    assert not checkpoint.is_good(folder)


@pytest.mark.parametrize(
    ("listed", "shards"),
    [
        (["model.safetensors", "optimiser.safetensors"], 0),
        ([shard_files.name_of(k, s, 2) for k in shard_files.KINDS for s in range(2)], 2),
        ([shard_files.name_of(k, s, 3) for k in shard_files.KINDS for s in range(2)], 0),
        ([shard_files.name_of("model", s, 2) for s in range(2)], 0),
        (["model-00001-of-99999.safetensors"], 0),
        (["../model-00001-of-00001.safetensors"], 0),
    ],
)
def test_files_are_shards_if_all_of_them_are_there(listed, shards):
    assert len(shard_files.names(listed)) == 2 * shards
