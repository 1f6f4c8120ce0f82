"""Folders of transformers: read with distrust, written in shards."""

import errno
import fcntl
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from attnlab import files
from attnlab.finite import is_finite
from attnlab.interop import folder
from attnlab.interop.folder import FolderError, Tensors
from attnlab.interop.streaming import write_tensors

CONFIG = {"model_type": "llama"}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_folder_is_known_by_its_config(place, tmp_path):
    assert folder.is_one(place)
    assert not folder.is_one(place / "nothing")
    (place / "checkpoints").mkdir()
    assert not folder.is_one(place), "that is a run"
    other = tmp_path / "other"
    other.mkdir()
    for text in ("{}", "not json", "[]"):
        (other / "config.json").write_text(text)
        assert not folder.is_one(other)


@pytest.mark.parametrize("most", [10**9, 100, 1])
def test_tensors_are_the_same_in_one_file_or_in_many(place, most):
    draws = torch.Generator().manual_seed(0)
    tensors = {f"t{n}": torch.randn(n + 1, 3, generator=draws) for n in range(5)}
    tensors["half"] = torch.randn(4, generator=draws).bfloat16()
    write_tensors(place, tensors.items(), most)
    found = Tensors(place)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape)
        assert torch.equal(found.read(name), tensor)
    files = sorted(path.name for path in place.glob("*.safetensors"))
    assert (files == ["model.safetensors"]) == (most == 10**9)
    for path in place.glob("*.safetensors"):
        size = sum(one.numel() * one.element_size() for one in load_file(path).values())
        assert size <= most or len(load_file(path)) == 1
    assert found.total() == sum(path.stat().st_size for path in place.glob("*.safetensors"))


def test_what_was_read_does_not_change_with_the_file(place):
    write_tensors(place, {"one": torch.ones(1000)}.items())
    tensor = Tensors(place).read("one")
    (place / "model.safetensors").write_bytes(b"")
    assert bool((tensor == 1).all())


def header(place, text):
    raw = text.encode()
    (place / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)


def cut(place):
    path = place / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def index(place, names):
    (place / "model.safetensors").rename(place / "a.safetensors")
    plain = {"weight_map": dict.fromkeys(["one"], names)}
    (place / "model.safetensors.index.json").write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: (p / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "no safetensors file, or cut off"),
        (cut, "no safetensors file, or cut off"),
        (lambda p: header(p, "{"), "no safetensors file, or cut off"),
        (lambda p: header(p, "{}"), "has no tensors"),
        (lambda p: index(p, "../a.safetensors"), "which is no file beside it"),
        (lambda p: index(p, "b.safetensors"), "b.safetensors is missing; the index names it"),
        (lambda p: index(p, "/etc/passwd"), "which is no file beside it"),
    ],
)
def test_damage_is_said_with_the_file(place, damage, said):
    write_tensors(place, {"one": torch.ones(7)}.items())
    damage(place)
    with pytest.raises(FolderError, match=said):
        Tensors(place)


def test_a_pickle_is_named_and_not_read(place):
    torch.save({"one": torch.ones(3)}, place / "pytorch_model.bin")
    with pytest.raises(FolderError, match=r"as a pickle \(pytorch_model.bin\), which could run"):
        Tensors(place)


def test_a_tensor_twice_is_refused(place):
    for name in ("a", "b"):
        save_file({"one": torch.ones(3)}, place / f"{name}.safetensors")
    plain = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(plain))
    with pytest.raises(FolderError, match=r"b.safetensors has one, and so has .*a.safetensors"):
        Tensors(place)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.tensor([1.0, float("nan")]), "one holds NaN or Inf"),
        (torch.tensor([1.0, float("inf")]), "one holds NaN or Inf"),
        (torch.tensor([1, 2]), "has dtype int64; weights are floats"),
        (torch.ones(3).to(torch.float8_e4m3fn), "has dtype float8_e4m3fn; weights are floats of 2"),
    ],
)
def test_tensors_that_are_no_weights_are_refused(place, tensor, said):
    write_tensors(place, {"one": tensor}.items())
    with pytest.raises(FolderError, match=said):
        Tensors(place).read("one")


def test_a_config_that_is_no_plain_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert not folder.is_one(tmp_path)
    with pytest.raises(FolderError, match="cannot be read"):
        folder.read_object(tmp_path / "config.json")


def test_links_are_followed_as_caches_of_downloads_have_them(tmp_path, place):
    """The person has named the folder."""
    write_tensors(place, {"one": torch.ones(3)}.items())
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in (place / "config.json", place / "model.safetensors"):
        (snapshot / path.name).symlink_to(path)
    assert folder.is_one(snapshot)
    assert np.array_equal(Tensors(snapshot).read("one").numpy(), np.ones(3))


def test_the_dtype_of_several_is_the_widest():
    half, single = torch.ones(1).bfloat16(), torch.ones(1)
    assert folder.dtype_of([half, half]) == torch.bfloat16
    assert folder.dtype_of([half, single]) == torch.float32


def test_numbers_of_one_byte_are_looked_at_too():
    one, huge = torch.ones(3), torch.tensor([1.0, float("inf")])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):
        assert is_finite(one.to(dtype))
        assert not is_finite(torch.tensor([1.0, float("nan")]).to(dtype))
    assert not is_finite(huge.to(torch.float8_e5m2))
    assert is_finite(one.to(torch.int8))


def test_one_file_is_read_where_an_index_stands_beside_it(place):
    """As transformers does; the index and its shards are left from another time."""
    write_tensors(place, {"one": torch.ones(7), "two": torch.ones(7)}.items(), 30)
    write_tensors(place, {"one": torch.zeros(7)}.items())
    assert len(list(place.iterdir())) == 5
    found = Tensors(place)
    assert list(found) == ["one"] and not found.read("one").any()


def test_a_disk_that_is_full_is_said_with_the_file(place, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"model.safetensors could not be written \(28 bytes\)"):
        write_tensors(place, {"one": torch.ones(7)}.items())


def test_what_a_killed_process_left_is_removed_and_what_another_holds_is_not(tmp_path):
    for name in (".new.1.tmp", ".new.2.tmp", ".other.1.tmp", ".new.x.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    held = os.open(tmp_path / ".new.2.tmp", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as of another process: it has a file of its own
    with folder.new_folder(tmp_path / "new") as made:
        (made / "file").write_text("whole")
        assert files.hold_folder(made) is None, "others leave it alone meanwhile"
    os.close(held)
    left = {".new.2.tmp", ".other.1.tmp", ".new.x.tmp", "new"}
    assert {path.name for path in tmp_path.iterdir()} == left
    with folder.new_folder(tmp_path / "new2"), folder.new_folder(tmp_path / "new3"):
        pass
    assert (tmp_path / "new" / "file").read_text() == "whole"
