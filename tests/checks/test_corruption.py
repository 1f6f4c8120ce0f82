"""`attnlab check corruption` finds all damage, and would notice if it did not."""

import pytest

from attnlab import files, json_files
from attnlab.checks import cached, corruption
from attnlab.checks.corruption import CorruptionCheck
from attnlab.kernels import native
from attnlab.training import checkpoint, verified_file


def silent(text):
    pass


@pytest.mark.parametrize("processes", [1, 3])
def test_all_damage_is_found_and_the_tensor_format_alone_finds_little(processes):
    report = CorruptionCheck(trials=40, caches=30, processes=processes).run(silent)
    assert report["passed"] and report["found"] == 40
    found, of = map(int, report["control_found_by_safetensors_alone"].split(" of "))
    assert found < of


def test_the_check_fails_when_hashes_are_not_compared(monkeypatch):
    plain = checkpoint.read_verified

    def trusting(folder):
        try:
            return plain(folder)
        except checkpoint.BrokenCheckpoint:
            return {path.name: path.read_bytes() for path in folder.iterdir()}

    monkeypatch.setattr(checkpoint, "read_verified", trusting)
    assert not CorruptionCheck(trials=40, caches=30).run(silent)["passed"]


def test_the_check_fails_when_hashes_of_shards_are_not_compared(monkeypatch):
    monkeypatch.setattr(verified_file, "hashlib", Unhashed)
    assert not CorruptionCheck(trials=40, caches=30, processes=2).run(silent)["passed"]


class Unhashed:
    """Every block has the same hash."""

    @staticmethod
    def sha256(content=b""):
        return Unhashed

    @staticmethod
    def update(content):
        pass

    @staticmethod
    def hexdigest():
        return ""


@pytest.mark.parametrize("damaged", ["state.json", "model.safetensors"])
def test_a_control_that_had_nothing_to_miss_is_no_pass(monkeypatch, damaged):
    """Of no tensors damaged, and of damage that the tensor format notices by itself."""

    def always(folder, seed, trial):
        path = folder / damaged
        path.write_bytes(b"")
        return path

    monkeypatch.setattr(corruption, "damage", always)
    report = CorruptionCheck(trials=3, caches=30).run(silent)
    assert report["found"] == report["older_one_used_instead"] == 3
    assert not report["passed"] and "use more trials" in report["proves_nothing"]


def caches_damaged(folder):
    counts = {}
    cached.damage_caches(folder, 60, 0, counts, silent)
    return counts


def test_damaged_caches_are_found_and_made_again_and_a_naive_reader_uses_them(tmp_path):
    counts = caches_damaged(tmp_path)
    assert {"shards", "results of jobs"} <= counts.keys()
    assert all(count.passed and count.trials >= 20 for count in counts.values())
    assert all(count.control_used_it for count in counts.values())


def test_the_check_fails_when_hashes_of_caches_are_not_compared(tmp_path, monkeypatch):
    def trusting(path):
        value = json_files.parse_json(files.read(path), path)
        return {name: inner for name, inner in value.items() if name != json_files.SEAL}

    monkeypatch.setattr(json_files, "read_sealed", trusting)
    monkeypatch.setattr(native, "is_whole", lambda target: target.exists())
    counts = caches_damaged(tmp_path)
    assert not any(counts.pop(name).passed for name in ("shards", "results of jobs"))
    assert not any(count.passed for count in counts.values())


def test_a_damaged_library_that_never_ends_is_not_waited_for(tmp_path, monkeypatch):
    try:
        kernel = cached.Kernel(tmp_path)
    except native.Unavailable as reason:
        pytest.skip(f"no compiled path here: {reason}")
    monkeypatch.setattr(cached, "_LOAD", "import time; time.sleep(600)")
    monkeypatch.setattr(cached, "PATIENCE", 0.2)
    library = next(kernel.folder.glob("*.so"))
    assert kernel.use_unhashed(library) is False


def test_every_kind_of_damage_happens(tmp_path):
    folder = checkpoint.save(tmp_path, 1, corruption.example(0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    kinds = set()
    for trial in range(200):
        path = corruption.damage(folder, 0, trial)
        if not path.exists():
            kinds.add("gone")
        elif not path.read_bytes():
            kinds.add("empty")
        elif len(path.read_bytes()) < len(before[path.name]):
            kinds.add("short")
        else:
            kinds.add("bit")
        path.write_bytes(before[path.name])
    assert kinds == {"gone", "empty", "short", "bit"}


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="trials is 0"):
        CorruptionCheck(trials=0)
