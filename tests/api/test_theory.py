"""`attnlab.claim` gives the result of `attnlab claims NAME`."""

import pytest

import attnlab


@pytest.mark.parametrize(
    ("settings", "words"),
    [({}, []), ({"lead": 3}, ["--set", "lead=3"]), ({"knob": True}, ["--knob"])],
)
def test_a_result_is_that_of_the_command_line(settings, words, command):
    found = attnlab.claim("copy", **settings)
    assert [found.plain()] == command("claims", "copy", *words, "--json")
    assert found.as_expected == (not settings)


def test_a_claim_shows_its_verdict_and_its_picture():
    found = attnlab.claim("copy")
    assert found.verdict == "holds" and found.name == "copy"
    assert repr(found).startswith("copy: holds") and found.statement[:9] in repr(found)
    html = found._repr_html_()
    assert "<svg" in html and found.picture.title in html and "<script" not in html
    turned = found.with_knob()
    assert turned.verdict == "refuted" and "(recorded: holds)" in repr(turned)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((["cpoy"], {}), ["cpoy"]),
        ((["copy", "laed=3"], {}), ["copy", "--set", "laed=3"]),
        ((["copy"], {"lead": 0.0, "knob": True}), ["copy", "--set", "lead=0.0", "--knob"]),
    ],
)
def test_an_error_is_the_line_of_the_command_line(given, words, command):
    with pytest.raises(attnlab.Error) as raised:
        attnlab.claim(*given[0], **given[1])
    assert str(raised.value) == command("claims", *words)
