"""What a stopped run has settled is used by the same run only, and only if it is whole."""

import dataclasses
import json

import pytest

from attnlab import json_files
from attnlab.theory import catalogue, result_cache
from attnlab.theory.result import run_claim
from attnlab.theory.result_cache import ResultCache

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
        ResultCache(claims).add(result)


def drawn(evidence):
    """Its picture and its details, as they are written."""
    return json.dumps([dataclasses.asdict(one) for one in (evidence.picture, *evidence.details)])


def test_a_result_comes_back_as_it_was(claims, results):
    first, second = results
    evidence = dataclasses.replace(first.evidence, outside=first.evidence.measures)
    results = [dataclasses.replace(first, evidence=evidence), second]
    keep(claims, results)
    found = ResultCache(claims).found
    assert list(found) == list(NAMES[:2])
    for before in results:
        after = found[before.name]
        assert after.plain() == before.plain() and after.claim == before.claim
        assert after.with_knob().plain() == before.with_knob().plain()
        assert drawn(after.evidence) == drawn(before.evidence)


def test_other_settings_other_claims_code_or_machine_begin_anew(claims, results, monkeypatch):
    keep(claims, results)
    other = {**claims, "copy": dataclasses.replace(claims["copy"], lead=3.0)}
    assert not ResultCache(other).found
    assert not ResultCache({name: claims[name] for name in NAMES[:2]}).found
    with monkeypatch.context() as patch:
        patch.setattr(result_cache, "_our_code", lambda: "changed")
        assert not ResultCache(claims).found
    with monkeypatch.context() as patch:
        patch.setattr(result_cache, "machine", lambda device: {"cpu": "another"})
        assert not ResultCache(claims).found
    assert ResultCache(claims).found


def test_a_damaged_line_is_left_out_and_the_others_count(claims, results, tmp_path):
    keep(claims, results)
    (path,) = tmp_path.rglob("*.jsonl")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"trials": ', b'"trials": 1', 1) + b"torn {")
    found = ResultCache(claims)
    assert list(found.found) == [NAMES[1]] and found.unusable == 2


@pytest.mark.parametrize(
    "row",
    [{}, {"name": "of-another"}, {"name": ["copy"]}, {"name": "copy", "evidence": 7}],
    ids=str,
)
def test_a_whole_line_of_something_else_is_left_out_too(claims, results, tmp_path, row):
    keep(claims, results)
    (path,) = tmp_path.rglob("*.jsonl")
    with path.open("ab") as file:
        file.write(json_files.sealed_json(row, indent=None))
    found = ResultCache(claims)
    assert list(found.found) == list(NAMES[:2]) and found.unusable == 1


def test_a_run_that_ends_and_one_that_starts_afresh_leave_nothing(claims, results, tmp_path):
    keep(claims, results)
    assert not ResultCache(claims, again=True).found and not list(tmp_path.rglob("*.jsonl"))
    keep(claims, results)
    ResultCache(claims).remove()
    assert not list(tmp_path.rglob("*.jsonl"))


def test_where_nothing_can_be_kept_the_claims_are_settled_all_the_same(claims, results, tmp_path):
    (tmp_path / "attnlab").mkdir()
    (tmp_path / "attnlab" / "claims").symlink_to("/")
    found = ResultCache(claims)
    found.add(results[0])
    assert "is a link" in found.reason and not found.found
