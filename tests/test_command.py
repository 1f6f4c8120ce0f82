"""The command that a manifest or a report names."""

import sys

from attnlab import command


def test_the_words_given_come_before_those_of_the_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attnlab", "train", "tiny"])
    assert command.line() == "attnlab train tiny"
    assert command.line(["compare", "a b"]) == "attnlab compare 'a b'"
    with command.as_if(["audit", "x.py:X"]):
        assert command.line() == "attnlab audit x.py:X"
    assert command.line() == "attnlab train tiny"
