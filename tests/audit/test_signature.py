"""What a function takes, also where its annotations cannot be evaluated."""

import inspect
import sys
from types import SimpleNamespace

import pytest

from attnlab.audit.signature import signature


def test_an_annotation_without_a_meaning_here_hides_no_parameter():
    here = {}
    code = "class Code:\n    def forward(self, x: 'OnlyForTypeCheckers', scale: float = 1.0): pass"
    exec(code if sys.version_info < (3, 14) else code.replace("'", ""), here)
    assert list(signature(here["Code"].forward).parameters) == ["self", "x", "scale"]


def test_where_annotations_are_evaluated_lazily_they_are_not_needed(monkeypatch):
    """As Python 3.14 has it, played on any version."""
    later = SimpleNamespace(Format=SimpleNamespace(FORWARDREF="forward"))

    def lazy(code, *, annotation_format=None):
        if annotation_format != "forward":
            raise NameError("name 'OnlyForTypeCheckers' is not defined")
        return inspect.Signature()

    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    monkeypatch.setitem(sys.modules, "annotationlib", later)
    monkeypatch.setattr(inspect, "signature", lazy)
    with pytest.raises(NameError):
        inspect.signature(len)
    assert signature(len) == inspect.Signature()
