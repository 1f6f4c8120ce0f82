"""Checkpoints: whole or not there, every bit checked, the last good one never deleted."""

import dataclasses
import errno
import json
import os
import pickle
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from attnlab import files
from attnlab.checks.corruption import CorruptionCheck, damage, example
from attnlab.training import checkpoint
from attnlab.training.checkpoint import BrokenCheckpoint

FILES = (*checkpoint._TENSORS, *checkpoint.PLAIN, "manifest.json")


def test_what_was_saved_is_loaded(tmp_path):
    saved = example(3)
    folder = checkpoint.save(tmp_path / "checkpoints", 7, saved)
    loaded = checkpoint.load(folder)
    assert folder.name == "step_000007"
    for mine, theirs in ((saved.model, loaded.model), (saved.optimiser, loaded.optimiser)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (loaded.config, loaded.tokenizer, loaded.state) == (
        saved.config,
        saved.tokenizer,
        saved.state,
    )


def test_every_single_bit_of_the_small_files_is_guarded(tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    for path in (folder / "manifest.json", folder / "state.json"):
        content = path.read_bytes()
        for bit in range(len(content) * 8):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert not checkpoint.is_good(folder), f"bit {bit} of {path.name}"
        path.write_bytes(content)
    assert checkpoint.is_good(folder)


def test_damage_anywhere_is_found_and_the_older_one_is_used():
    report = CorruptionCheck(trials=60, caches=30).run(lambda text: None)
    assert report["passed"] and report["found"] == 60


@pytest.mark.parametrize("kind", ["model", "optimiser"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_what_is_not_finite_is_neither_saved_nor_loaded(tmp_path, monkeypatch, kind, value):
    good = checkpoint.save(tmp_path, 1, example(0))
    poisoned = example(1)
    name, tensor = next(iter(getattr(poisoned, kind).items()))
    tensor.view(-1)[-1] = value
    with pytest.raises(checkpoint.NotFinite, match=rf"step 2: {name} of the .* not saved"):
        checkpoint.save(tmp_path, 2, poisoned)
    with monkeypatch.context() as blind:  # as one that was written without a look
        blind.setattr(checkpoint, "_not_finite", lambda tensors: "")
        folder = checkpoint.save(tmp_path, 2, poisoned)
    with pytest.raises(BrokenCheckpoint, match=f"holds NaN or Inf in {name}"):
        checkpoint.load(folder)
    newest, broken = checkpoint.newest_good(tmp_path)
    assert newest == good and len(broken) == 1


def test_control_without_the_hashes_damage_goes_unnoticed(monkeypatch, tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(
        checkpoint,
        "read_verified",
        lambda folder: {path.name: path.read_bytes() for path in folder.iterdir()},
    )
    assert not torch.equal(
        checkpoint.load(folder).model["norm.weight"], example(0).model["norm.weight"]
    )


@pytest.mark.parametrize("kind", ["truncated", "missing", "no manifest", "other name", "file"])
def test_a_checkpoint_that_is_not_whole_is_refused_in_one_line(tmp_path, kind):
    folder = checkpoint.save(tmp_path, 1, example(0))
    if kind == "truncated":
        path = folder / "optimiser.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "missing":
        (folder / "tokenizer.json").unlink()
    elif kind == "no manifest":
        (folder / "manifest.json").unlink()
    elif kind == "other name":
        folder = folder.rename(tmp_path / "step_000002")
    else:
        shutil.rmtree(folder)
        folder.write_text("not a folder")
    with pytest.raises(BrokenCheckpoint) as caught:
        checkpoint.load(folder)
    assert "\n" not in str(caught.value) and folder.name in str(caught.value)


def test_a_pickle_is_refused_and_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'exploded'}",))

    folder = checkpoint.save(tmp_path, 1, example(0))
    for name in ("model.safetensors", "manifest.json", "state.json"):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(BrokenCheckpoint):
            checkpoint.load(folder)
        (folder / name).write_bytes(kept)
    # also where the manifest was made to fit: a file made by someone who knows the format
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    contents["model.safetensors"] = pickle.dumps(Bomb())
    contents.pop("manifest.json")
    (folder / "model.safetensors").write_bytes(contents["model.safetensors"])
    (folder / "manifest.json").write_bytes(checkpoint._manifest(1, contents))
    with pytest.raises(BrokenCheckpoint, match="not safetensors"):
        checkpoint.load(folder)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "body",
    [
        {"schema": 1, "step": 1, "files": []},
        {"schema": 1, "step": 1, "files": {"../../x": {"bytes": 1, "sha256": ""}}},
        {"schema": 9, "step": 1, "files": {}},
        {"schema": 1, "step": "1", "files": {}},
        {
            "schema": 1,
            "step": 1,
            "files": dict.fromkeys([*checkpoint._TENSORS, *checkpoint.PLAIN]),
        },
    ],
)
def test_a_hostile_manifest_is_refused(tmp_path, body):
    folder = checkpoint.save(tmp_path, 1, example(0))
    (folder / "manifest.json").write_bytes(checkpoint._serialize(body))
    with pytest.raises(BrokenCheckpoint):
        checkpoint.load(folder)


def test_deeply_nested_json_is_refused(tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    (folder / "manifest.json").write_bytes(b"[" * 200_000)
    with pytest.raises(BrokenCheckpoint):
        checkpoint.load(folder)


def test_a_fifo_in_place_of_a_file_does_not_hang(tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")
    with pytest.raises(BrokenCheckpoint, match="missing"):
        checkpoint.load(folder)


def test_the_newest_good_one_is_found_and_the_broken_ones_are_named(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, example(step))
    (tmp_path / "step_000003" / "state.json").write_text("{}")
    newest, broken = checkpoint.newest_good(tmp_path)
    assert newest.name == "step_000002"
    assert len(broken) == 1 and "step_000003" in broken[0]
    assert checkpoint.newest_good(tmp_path / "nowhere") == (None, [])


def test_retention_keeps_the_newest_and_the_protected(tmp_path):
    for step in range(1, 7):
        checkpoint.save(tmp_path, step, example(step))
    checkpoint.retain(tmp_path, 2, {3})
    assert [checkpoint.step_of(folder) for folder in checkpoint.all_in(tmp_path)] == [6, 5, 3]


def test_retention_never_deletes_the_last_good_one(tmp_path):
    for step in range(1, 5):
        checkpoint.save(tmp_path, step, example(step))
    for step in (2, 3, 4):
        (tmp_path / checkpoint.name_of(step) / "manifest.json").write_bytes(b"broken")
    checkpoint.retain(tmp_path, 1, set())
    assert checkpoint.newest_good(tmp_path)[0].name == "step_000001"


def test_saving_again_leaves_an_equal_one_and_replaces_a_broken_one(tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    before = (folder / "manifest.json").stat().st_mtime_ns
    checkpoint.save(tmp_path, 1, example(0))
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    damage(folder, 0, 0)
    checkpoint.save(tmp_path, 1, example(0))
    assert checkpoint.is_good(folder)
    checkpoint.save(tmp_path, 1, example(1))
    assert torch.equal(
        checkpoint.load(folder).model["norm.weight"], example(1).model["norm.weight"]
    )


def test_saving_again_with_another_state_replaces_the_old_one(tmp_path):
    """It names the best step; only how long it took makes no difference."""
    first = example(4)
    folder = checkpoint.save(tmp_path, 4, first)
    before = (folder / "manifest.json").stat().st_ino
    slower = dataclasses.replace(first, state={**first.state, "seconds": 1e6, "step_seconds": 1e6})
    checkpoint.save(tmp_path, 4, slower)
    assert (folder / "manifest.json").stat().st_ino == before
    checkpoint.save(tmp_path, 4, dataclasses.replace(first, state={**first.state, "best_step": 4}))
    assert checkpoint.load(folder).state["best_step"] == 4


def test_an_old_one_that_a_person_has_removed_meanwhile_is_gone_too(tmp_path):
    folder = checkpoint.save(tmp_path, 4, example(4))
    shutil.rmtree(folder)
    checkpoint.discard(folder)
    assert not list(tmp_path.iterdir())


def test_leftovers_of_killed_processes_are_swept_and_nothing_else(tmp_path):
    kept = checkpoint.save(tmp_path, 1, example(0))
    for name in (".step_000002.99.tmp", ".step_000001.99.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("half")
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, "notes.txt"}


def test_a_full_disk_leaves_the_old_checkpoint_and_says_path_and_bytes(tmp_path):
    """A limit on the size of files stands in for the end of the disk."""
    first = checkpoint.save(tmp_path, 1, example(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(
            OSError, match=r"step_000002 \([\d,]+ bytes\).*free some space"
        ) as caught:
            checkpoint.save(tmp_path, 2, example(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert checkpoint.is_good(first)


@pytest.mark.parametrize("where", ["mkdir", "_open", "fsync", "rename"])
def test_an_error_anywhere_in_a_save_leaves_the_old_checkpoint(tmp_path, monkeypatch, where):
    first = checkpoint.save(tmp_path, 1, example(0))

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    target = {"fsync": os, "_open": files}.get(where, Path)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Read-only file system"):
        patch.setattr(target, where, refuse)
        checkpoint.save(tmp_path, 2, example(1))
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert checkpoint.is_good(first)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("swaps", [True, False])
def test_a_kill_at_any_moment_of_saving_again_leaves_a_good_checkpoint(
    tmp_path, monkeypatch, swaps
):
    """Of the same step, with other weights: the old one goes when the new one is in its place."""
    plain_swap = checkpoint._swap if swaps else lambda *paths: False
    left = [0]

    def counted(plain):
        def act(*args, **options):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return plain(*args, **options)

        return act

    for call in range(1, 99):
        parent = tmp_path / str(call)
        checkpoint.save(parent, 1, example(0))
        left[0] = call
        with monkeypatch.context() as patch, suppress(Killed):
            for owner, name in ((Path, "rename"), (Path, "mkdir"), (os, "fsync")):
                patch.setattr(owner, name, counted(getattr(owner, name)))
            for name in ("remove_folder", "write_new", "sync_folder"):
                patch.setattr(files, name, counted(getattr(files, name)))
            patch.setattr(checkpoint, "_swap", counted(plain_swap))
            checkpoint.save(parent, 1, example(1))
        found = [*parent.glob("step_000001"), *parent.glob("aside-*/step_000001")]
        good = [folder for folder in found if checkpoint.is_good(folder)]
        assert good, f"killed at call {call}: {sorted(parent.rglob('*'))}"
        assert good[0].parent == parent or not swaps, "in its place at every moment"
        if left[0] > 0:
            break
    assert call > 15, "every call was tried"


def test_a_full_disk_leaves_the_old_checkpoint_of_the_same_step(tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(OSError, match="free some space"):
            checkpoint.save(tmp_path, 1, example(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("swaps", [True, False])
def test_a_checkpoint_that_is_replaced_leaves_nothing_behind(tmp_path, monkeypatch, swaps):
    if not swaps:
        monkeypatch.setattr(checkpoint, "_swap", lambda *paths: False)
    checkpoint.save(tmp_path, 1, example(0))
    folder = checkpoint.save(tmp_path, 1, example(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
    loaded = checkpoint.load(folder).model
    assert all(torch.equal(loaded[name], one) for name, one in example(1).model.items())


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_claims_terabytes_is_refused_before_it_is_read(tmp_path, name):
    """Sparse: it takes no room on the disk, and reading it would take all the memory."""
    folder = checkpoint.save(tmp_path, 1, example(0))
    os.truncate(folder / name, 2**40)
    with pytest.raises(BrokenCheckpoint, match=f"{name} has 1,099,511,627,776 bytes"):
        checkpoint.load(folder)


def test_a_manifest_that_claims_terabytes_too_is_refused(tmp_path):
    folder = checkpoint.save(tmp_path, 1, example(0))
    contents = {name: (folder / name).read_bytes() for name in FILES if name != "manifest.json"}
    body = json.loads(checkpoint._manifest(1, contents))["body"]
    for name in ("model.safetensors", "state.json"):
        before = body["files"][name]["bytes"]
        body["files"][name]["bytes"] = 2**40
        os.truncate(folder / name, 2**40)
        (folder / "manifest.json").write_bytes(checkpoint._serialize(body))
        with pytest.raises(BrokenCheckpoint, match=f"{name} has .* more than can be read"):
            checkpoint.load(folder)
        body["files"][name]["bytes"] = before
        os.truncate(folder / name, before)


def test_the_manifest_is_written_last(tmp_path, monkeypatch):
    """Without it there is no checkpoint, so nothing that comes before it counts."""
    order = []
    plain = os.fsync

    def noted(handle):
        order.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        plain(handle)

    monkeypatch.setattr(os, "fsync", noted)
    checkpoint.save(tmp_path, 1, example(0))
    files = [name.rsplit("/", 1)[1] for name in order if not name.endswith((".tmp", tmp_path.name))]
    assert files[-1] == "manifest.json" and len(files) == 6
    assert order[-1] == str(tmp_path), "the rename itself is forced to the disk"


def test_names_and_steps_agree():
    assert checkpoint.name_of(12) == "step_000012"
    assert json.dumps({"step": 12})  # a step is plain JSON
    with pytest.raises(BrokenCheckpoint, match="not named"):
        checkpoint.step_of(Path("latest"))
