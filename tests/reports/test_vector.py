"""What matplotlib draws, made fit for a page."""

from xml.etree import ElementTree

import pytest

from attnlab.reports import vector
from attnlab.reports.vector import INK, Line, Words

DRAWN = f"""<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="440pt" height="252pt"
 viewBox="0 0 440 252" xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata>made by</metadata>
 <defs><style type="text/css">*{{stroke-linecap: butt}}</style></defs>
 <g id="figure_1">
  <path id="unused" d="M 1.23456 2 &#10;L 3.10000 -4.999999" clip-path="url(#clip)"
   style="stroke: {INK}"/>
  <use xlink:href="#mark" x="1.005" y="2" style="fill: {INK}; stroke: #0072b2"/>
 </g>
 <g id="class-interval"><path d="M 0 0"/></g>
 <g id="words-0"><text style="font-size: 11px; font-family: 'DejaVu Sans'; fill: {INK}"
   transform="rotate(-0 1 2)" x="1" y="2">@@</text></g>
 <g id="words-1">
  <text style="font: 11px 'DejaVu Sans'" transform="translate(10 20)">one</text>
  <text style="font: 11px 'DejaVu Sans'" transform="translate(15 32)">two</text>
 </g>
 <defs><path id="mark" d="M 0 1"/><clipPath id="clip"><rect x="1" y="1"/></clipPath></defs>
</svg>"""
WORDS = Words(
    {
        "words-0": [Line(text=f"<损> {INK} url(#clip)", width=22, align="left")],
        "words-1": [
            Line(text="eins", width=30, align="right"),
            Line(text="zwei", width=20, align="right"),
        ],
    }
)


@pytest.fixture
def tidied():
    return vector.tidy_svg(DRAWN, WORDS, prefix="p7", title="A <title>", about="More.")


def parts(svg, tag):
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}" + tag))


def test_the_drawing_takes_the_colour_of_the_page_and_the_words_do_not(tidied):
    assert tidied.count(INK) == 1 and INK in parts(tidied, "text")[0].text
    assert parts(tidied, "use")[0].get("style") == "fill: currentColor; stroke: #0072b2"


def test_only_what_is_referred_to_has_a_name_and_it_has_the_prefix(tidied):
    names = {element.get("id") for element in ElementTree.fromstring(tidied).iter()} - {None}
    assert names == {"p7-mark", "p7-clip", "p7-title", "p7-desc"}
    assert parts(tidied, "use")[0].get("href") == "#p7-mark"
    assert parts(tidied, "path")[0].get("clip-path") == "url(#p7-clip)"
    assert parts(tidied, "g")[1].get("class") == "interval"


def test_nothing_reaches_out_of_the_drawing(tidied):
    assert not parts(tidied, "style") and not parts(tidied, "metadata")
    assert tidied.count("http") == 1, "the namespace, which is never loaded"
    assert tidied.startswith("<svg"), "so that it can stand inside a page"


def test_words_come_back_where_their_stand_ins_were_aligned(tidied):
    first, one, two = parts(tidied, "text")
    assert first.text == f"<损> {INK} url(#clip)" and "transform" not in first.attrib
    assert first.get("style") == "font-size: 11px; fill: currentColor", "the page's own font"
    assert [(one.get("x"), one.get("y"), one.text)] == [("40", "20", "eins")]
    assert (two.get("x"), two.get("y"), two.text) == ("35", "32", "zwei")
    assert one.get("style") == "font-size: 11px; text-anchor: end"


def test_coordinates_have_two_decimals(tidied):
    assert parts(tidied, "path")[0].get("d") == "M 1.23 2 L 3.1 -5"


def test_a_reader_of_screens_is_told_what_it_is(tidied):
    root = ElementTree.fromstring(tidied)
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "p7-title")
    assert root[0].text == "A <title>" and root[1].text == "More."
    assert (root.get("width"), root.get("height")) == ("440", "252")


def test_a_file_of_its_own_has_a_colour_for_light_and_one_for_dark(tidied):
    alone = vector.standalone(tidied)
    (style,) = parts(alone, "style")
    assert style.text.startswith(f":root{{color:{vector.LIGHT}}}")
    assert f"@media(prefers-color-scheme:dark){{:root{{color:{vector.DARK}}}}}" in style.text


def test_stand_ins_are_as_long_and_as_wide_as_the_words():
    assert vector.stand_in("a b\n中é$") == "a b\n@nn"
    assert vector.length("a@") == 2 and vector.length("中文") == 4


def test_lines_break_at_words_and_chinese_anywhere():
    assert vector.wrap("one two\n three", 8) == "one two\nthree"
    assert vector.wrap("中" * 12, 10) == "\n".join(["中" * 5, "中" * 5, "中" * 2])
    assert vector.wrap("  ", 8) == ""
