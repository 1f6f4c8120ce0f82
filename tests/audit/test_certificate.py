"""The certificate says what was found, what was declared, and what fails, in one page."""

import re
from importlib import metadata

import pytest
from torch import nn

from attnlab.audit.certificate import FAINT, page, report
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.reports.report import Picture, Sample, Table

EXAMPLE = {
    "name": "causality",
    "sentence": "output 0 moves by 0.5 when input 1 changes, of 2",
    "sizes": {"batch": 1, "length": 2, "first": 1, "seed": 0},
    "options": {"width": 4},
    "reason": "",
}


def certificate(*findings, influence=((1.0, 0.5), (0.0, 2.0)), layers=1, **declared):
    return Certificate(
        target="Leaky<b>",
        contract=Contract(**declared),
        findings=findings,
        influence=influence,
        layers=layers,
    )


BAD = Finding(
    name="causality", verdict="fail", detail="output 0 moves <sub>", measured=False, declared=True
)
GOOD = Finding(name="batch", verdict="pass", detail="rows are the same")
NO = Finding(name="cache", verdict="not applicable", detail="none")
UNCLEAR = Finding(name="window", verdict="cannot tell", detail="too wide", declared=99)


def blocks(found, kind):
    return [b for section in found.sections for b in section.blocks if isinstance(b, kind)]


def test_what_fails_comes_first_in_the_answer_and_in_the_table():
    found = report(certificate(GOOD, NO, BAD, causal=True), [EXAMPLE], "attnlab audit …")
    assert found.answer.startswith("It fails 1 property.\n\ncausality: output 0 moves")
    table = blocks(found, Table)[0]
    assert table.rows[0][:3] == ["causality", "✗ fail", "no; declared yes"]
    assert [row[0] for row in table.rows] == ["causality", "batch", "cache"]


def test_a_pass_counts_what_holds_and_what_is_unclear():
    found = report(certificate(GOOD, UNCLEAR), [], "")
    assert found.answer == "It passes: 1 property holds, and 1 could not be established."


def test_an_incomplete_certificate_names_the_fields_and_is_no_pass():
    found = report(certificate(GOOD, UNCLEAR, window=99), [], "")
    assert found.answer == (
        "It is incomplete, which is no pass; declared and not established: window=99 (too wide)."
    )
    assert blocks(found, Table)[1].rows == [["window", "99", "? not established"]]
    nothing = report(certificate(UNCLEAR), [], "").answer
    assert nothing == "It is incomplete, which is no pass; no property passes: too wide."
    both = report(certificate(BAD, UNCLEAR, causal=True, window=99, cache=False), [], "")
    assert both.answer.endswith("Besides: declared and not established: window=99 (too wide).")
    standing = [row[2] for row in blocks(both, Table)[1].rows]
    assert standing == ["✗ broken", "? not established", "– demands nothing"]


def test_the_declared_picture_is_what_the_certificate_allows():
    still = tuple((0.0,) * 7 for _ in range(7))
    for declared in ({"causal": True}, {"window": 2}, {"causal": False}, {"window": 3}):
        for layers in (1, 2):
            made = certificate(influence=still, layers=layers, **declared)
            measured, allowed = blocks(report(made, [], ""), Picture)
            assert {value for row in measured.rows for value in row} == {FAINT}
            assert [list(row) for row in allowed.rows] == [list(row) for row in made.allowed()]
    assert len(blocks(report(certificate(influence=still), [], ""), Picture)) == 1


def test_pairs_beyond_the_contract_are_counted():
    found = report(certificate(BAD, causal=True), [], "")
    assert "1 pair moves that must not, the first output 0 with input 1" in found.sections[2].text
    powers = blocks(found, Picture)[0].rows
    assert powers[1][1] == 0.0 and powers[1][0] == FAINT
    assert powers[0][1] == pytest.approx(-0.602, abs=1e-3)


def test_what_is_no_number_does_not_make_the_rest_look_still():
    found = report(certificate(influence=((1e100, 1.0), (1e100, 0.1))), [], "")
    assert blocks(found, Picture)[0].rows[0] == [0.0, 0.0]
    assert blocks(found, Picture)[0].rows[1][1] == pytest.approx(-1)


def test_counter_examples_are_shown_with_their_sizes():
    found = report(certificate(BAD), [EXAMPLE], "")
    (sample,) = blocks(found, Sample)
    assert sample.text.splitlines() == [
        EXAMPLE["sentence"],
        "sizes: batch 1, length 2",
        "options: width 4",
    ]


def test_the_page_stands_alone_and_shows_code_as_text():
    pytest.importorskip("matplotlib")
    text = page(certificate(BAD, causal=True), [EXAMPLE], "attnlab audit 'a b.py:C'")
    assert "Leaky&lt;b&gt;" in text and "<sub>" not in text
    assert "attnlab audit &#x27;a b.py:C&#x27;" in text
    assert metadata.version("torch") in text
    assert not re.search(r'(src|href)="(?!#|data:)', text) and "<script" not in text
    assert text.count("<svg") == 2


def test_a_real_audit_makes_a_page():
    pytest.importorskip("matplotlib")
    from attnlab.audit import audit

    found = audit(nn.Linear(8, 8), causal=True)
    assert "It passes" in page(found, [], "")
