"""A notebook shows a certificate as HTML that stands by itself, on light pages and on dark ones."""

import re
from xml.etree import ElementTree

from torch import nn

from attnlab.audit import audit
from attnlab.audit.contract import Certificate, Contract, Finding

BAD = Finding(name="causality", verdict="fail", detail="output 0 moves <sub> & more")
GOOD = Finding(name="batch", verdict="pass", detail="rows are the same")
NO = Finding(name="cache", verdict="not applicable", detail="none")


def certificate(influence=(), **declared):
    return Certificate(
        target="Leaky<b>",
        contract=Contract(**declared),
        findings=(GOOD, NO, BAD),
        influence=influence,
    )


def test_what_fails_comes_first_and_nothing_of_theirs_is_markup():
    shown = certificate(causal=True, window=3)._repr_html_()
    parsed = ElementTree.fromstring(shown)  # every tag is closed, every text escaped
    text = "".join(parsed.itertext())
    assert text.startswith("Leaky<b>: fail") and "declared: causal=true, window=3" in text
    assert [row[0].text for row in parsed.iter("tr")] == ["causality", "batch", "cache"]
    assert "output 0 moves <sub> & more" in text


def test_no_colour_is_set_behind_the_text_and_nothing_is_loaded():
    shown = certificate(((1.0, 0.5), (0.0, 2.0)), causal=True)._repr_html_()
    assert not re.search(r"<(script|link|style|img)|url\(|https?:|background:(?!none)", shown)
    assert "currentColor" in shown and "color:inherit" in shown


def test_the_picture_marks_what_moves_and_must_not():
    found = certificate(((1.0, 0.5), (0.0, 2e-4)), causal=True)
    drawn = ElementTree.fromstring(found._repr_html_()).iter("path")
    squares = {one.get("fill"): one.get("d") for one in drawn if one.get("fill") != "currentColor"}
    assert list(squares.values()) == ["M1 0h1v1h-1z"]  # output 0 with input 1
    free = certificate(((1.0, 0.5), (0.0, 2e-4)))
    kinds = [one.get("fill") for one in ElementTree.fromstring(free._repr_html_()).iter("path")]
    assert set(kinds) == {"currentColor"} and len(kinds) == 2  # two shades
    assert "<svg" not in certificate()._repr_html_()


def test_an_audit_shows_itself():
    found = audit(nn.Linear(5, 5), causal=True)
    assert ElementTree.fromstring(found._repr_html_()).find(".//svg") is not None
    assert repr(found).startswith("Linear: pass\n")
