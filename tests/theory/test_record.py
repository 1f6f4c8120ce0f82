"""The record keeps what was not run again, and says which machine ran what."""

import dataclasses
import json

import pytest

from attnlab.reports.report import Plot
from attnlab.theory import catalogue, document, record
from attnlab.theory.result import run_claim

HERE, THERE = {"cpu": "one", "threads": 2}, {"cpu": "other", "threads": 3}
EMPTY = {"machines": [], "outcomes": []}


@pytest.fixture(scope="module")
def results():
    """In the order of the theory."""
    names = ("copy", "average-of-two", "rope-relative")
    return [run_claim(name, catalogue.load(name)) for name in names]


def test_claims_that_were_not_run_stay_as_recorded_with_their_machine(results):
    copy, average, rope = results
    old = record.merge(EMPTY, [rope, copy], HERE)
    assert old["machines"] == [{"claims": ["copy", "rope-relative"], "machine": HERE}]
    new = record.merge(old, [average, rope], THERE)
    assert new["machines"] == [
        {"claims": ["copy"], "machine": HERE},
        {"claims": ["average-of-two", "rope-relative"], "machine": THERE},
    ]
    assert [one["name"] for one in new["outcomes"]] == ["copy", "average-of-two", "rope-relative"]
    assert new["outcomes"][0] is old["outcomes"][0]
    back = record.merge(new, [copy], THERE)
    (only,) = back["machines"]
    assert only["machine"] == THERE and len(only["claims"]) == 3


def test_a_claim_that_runs_again_replaces_its_outcome(results):
    old = record.merge(EMPTY, results, HERE)
    old["outcomes"][0]["trials"] = -1
    new = record.merge(old, results[:1], HERE)
    assert new["outcomes"][0]["trials"] > 0 and new["machines"] == old["machines"]


def test_a_claim_that_is_not_registered_any_more_leaves_the_record(results):
    gone = dataclasses.replace(results[0], name="gone")
    new = record.merge(record.merge(EMPTY, [gone], HERE), results[1:2], THERE)
    assert new["machines"] == [{"claims": ["average-of-two"], "machine": THERE}]
    assert [one["name"] for one in new["outcomes"]] == ["average-of-two"]


def test_the_document_says_which_machine_ran_what_when_there_are_several(results):
    one = record.merge(EMPTY, results, HERE)
    text, _ = document.document(one)
    assert "Versions: cpu one, threads 2." in text and "## Machines" not in text
    text, _ = document.document(record.merge(one, results[:1], THERE))
    assert "Versions" not in text
    assert "| copy | cpu other, threads 3 |" in text
    assert "| average-of-two, rope-relative | cpu one, threads 2 |" in text


def test_what_is_written_is_read_and_pictures_of_claims_that_are_gone_are_deleted(
    results, tmp_path
):
    assert record.read(tmp_path) == EMPTY
    (tmp_path / "theory").mkdir()
    (tmp_path / "theory" / "01-old-name.svg").write_text("<svg/>")
    made = record.merge(EMPTY, results, HERE)
    document.write(made, tmp_path)
    assert record.read(tmp_path) == json.loads(json.dumps(made))
    names = {path.name for path in (tmp_path / "theory").iterdir()}
    assert names == {"outcomes.json", "copy.svg", "average-of-two.svg", "rope-relative.svg"}


def test_a_second_picture_of_a_claim_is_named_after_it_too(results):
    plot = Plot(title="More", x="x", y="y", series=[])
    evidence = dataclasses.replace(results[0].evidence, details=[plot, plot])
    made = record.merge(EMPTY, [dataclasses.replace(results[0], evidence=evidence)], HERE)
    assert list(document.document(made)[1]) == ["copy.svg", "copy-2.svg", "copy-3.svg"]


@pytest.mark.parametrize("content", ['{"hardware": {}, "outcomes": []}', "[]", "no JSON"])
def test_a_file_that_is_no_record_is_not_overwritten(tmp_path, content):
    path = tmp_path / "theory" / "outcomes.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=r"outcomes\.json is not"):
        record.read(tmp_path)
