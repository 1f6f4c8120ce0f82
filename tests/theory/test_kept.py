"""What a stopped run has settled is used by the same run only, and only if it is whole."""

import dataclasses

import pytest

from attnlab.theory import catalogue, kept
from attnlab.theory.result import run_claim

NAMES = ("copy", "noisy-keys", "rope-relative")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def claims():
    return {name: catalogue.load(name) for name in NAMES}


@pytest.fixture(scope="module")
def results(claims):
    return [run_claim(name, claims[name]) for name in NAMES[:2]]


def keep(claims, results):
    for result in results:
        kept.Kept(claims).add(result)


def test_a_result_comes_back_as_it_was(claims, results):
    keep(claims, results)
    found = kept.Kept(claims).found
    assert list(found) == list(NAMES[:2])
    for before in results:
        after = found[before.name]
        assert after.plain() == before.plain() and after.claim == before.claim
        assert after.with_knob().plain() == before.with_knob().plain()
        assert len(after.evidence.details) == len(before.evidence.details)
        assert after.evidence.picture.title == before.evidence.picture.title


def test_other_settings_other_claims_code_or_machine_begin_anew(claims, results, monkeypatch):
    keep(claims, results)
    other = {**claims, "copy": dataclasses.replace(claims["copy"], lead=3.0)}
    assert not kept.Kept(other).found
    assert not kept.Kept({name: claims[name] for name in NAMES[:2]}).found
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_our_code", lambda: "changed")
        assert not kept.Kept(claims).found
    with monkeypatch.context() as patch:
        patch.setattr(kept, "machine", lambda device: {"cpu": "another"})
        assert not kept.Kept(claims).found
    assert kept.Kept(claims).found


def test_a_damaged_line_is_left_out_and_the_others_count(claims, results, tmp_path):
    keep(claims, results)
    (path,) = tmp_path.rglob("*.jsonl")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"trials": ', b'"trials": 1', 1) + b"torn {")
    assert list(kept.Kept(claims).found) == [NAMES[1]]


def test_a_run_that_ends_and_one_that_starts_afresh_leave_nothing(claims, results, tmp_path):
    keep(claims, results)
    assert not kept.Kept(claims, again=True).found and not list(tmp_path.rglob("*.jsonl"))
    keep(claims, results)
    kept.Kept(claims).remove()
    assert not list(tmp_path.rglob("*.jsonl"))


def test_where_nothing_can_be_kept_the_claims_are_settled_all_the_same(claims, results, tmp_path):
    (tmp_path / "attnlab").mkdir()
    (tmp_path / "attnlab" / "claims").symlink_to("/")
    found = kept.Kept(claims)
    found.add(results[0])
    assert "is a link" in found.reason and not found.found
