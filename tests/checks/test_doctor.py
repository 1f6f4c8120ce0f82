"""The check of the doctor: it passes where it should, and its control can fail it."""

from dataclasses import replace

from attnlab.checks import doctor
from attnlab.checks.doctor import DoctorCheck
from attnlab.doctor.pairs.pairs import ALONE, SAME

GELU = next(pair for pair in ALONE if pair.name == "gelu by tanh")


def short(monkeypatch, pairs):
    monkeypatch.setattr(doctor, "FAMILIES", {"alone": pairs})
    return DoctorCheck(family="alone", controls=1).run(lambda text: None)


def test_right_answers_pass(monkeypatch):
    report = short(monkeypatch, (GELU, SAME[0]))
    assert report["passed"] and report["score"] == 1 and report["controls"] == 1


def test_a_wrong_expectation_fails_it(monkeypatch):
    report = short(monkeypatch, (replace(GELU, causes=frozenset({"window"})),))
    assert not report["passed"]
    assert report["wrong"] == [{"pair": GELU.name, "expected": "window", "found": "gelu"}]


def test_something_named_in_the_control_fails_it(monkeypatch):
    """As by a doctor that guesses: here the true cause was not taken away."""
    monkeypatch.setattr(doctor, "without", lambda names: doctor.all_causes())
    report = short(monkeypatch, (GELU,))
    assert not report["passed"] and len(report["controls_guessed"]) == 1
