"""`attnlab check corruption` finds all damage, and would notice if it did not."""

import pytest

from attnlab.checks import corruption
from attnlab.checks.corruption import CorruptionCheck
from attnlab.training import checkpoint


def silent(text):
    pass


def test_all_damage_is_found_and_the_tensor_format_alone_finds_little():
    report = CorruptionCheck(trials=40).run(silent)
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
    assert not CorruptionCheck(trials=40).run(silent)["passed"]


def test_every_kind_of_damage_happens(tmp_path):
    folder = checkpoint.save(tmp_path, 1, corruption.example(0))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    kinds = set()
    for trial in range(200):
        path = corruption.damage(folder, 0, trial)
        if not path.exists():
            kinds.add("gone")
        elif len(path.read_bytes()) < len(before[path.name]):
            kinds.add("short")
        else:
            kinds.add("bit")
        path.write_bytes(before[path.name])
    assert kinds == {"gone", "short", "bit"}


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="trials is 0"):
        CorruptionCheck(trials=0)
