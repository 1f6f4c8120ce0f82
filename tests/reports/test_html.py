"""One page: whole in itself, safe with any text, in order for those who listen to it."""

import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from reports.samples import SCRIPT, report

from attnlab.reports.html import as_html
from attnlab.reports.report import Report, Sample, Section, Table

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Page(HTMLParser):
    """Elements in order with their attributes and text; complains of what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")
        if tag not in VOID:
            self.open.append((tag, len(self.texts) - 1))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, place in self.open:
            self.texts[place] += data

    def all(self, tag):
        pairs = zip(self.elements, self.texts, strict=True)
        return [(attributes, text) for (name, attributes), text in pairs if name == tag]


@pytest.fixture(scope="module")
def hostile():
    return as_html(report(SCRIPT))


def test_no_text_of_a_person_becomes_markup(hostile):
    page = Page(hostile)
    tags = {tag for tag, _ in page.elements}
    assert tags == {tag for tag, _ in Page(as_html(report("x"))).elements} and "script" not in tags
    handlers = [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
    assert not handlers
    places = ["title", "h1", "h2", "caption", "th", "figcaption", "pre", "dt", "dd", "text"]
    for place in places:
        assert any(SCRIPT in text for _, text in page.all(place)), place
    assert sum(SCRIPT in text for _, text in page.all("p")) >= 6, "question, answer, text, notes"


def test_nothing_is_loaded_and_nothing_could_be(hostile):
    page = Page(hostile)
    (policy,) = (a for a, _ in page.all("meta") if "http-equiv" in a)
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    for _, attributes in page.elements:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                assert value.startswith(("#", "data:image/png;base64,")), (name, value)
    for styles in [text for _, text in page.all("style")]:
        assert "url(" not in styles and "@import" not in styles
    rest = hostile.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("http-equiv", "")
    assert "http" not in rest


def test_every_name_in_a_page_is_there_once_and_every_reference_is_answered(hostile):
    page = Page(hostile)
    names = Counter(a["id"] for _, a in page.elements if "id" in a)
    assert len(names) > 10 and set(names.values()) == {1}
    links = set(re.findall(r'(?:url\(#|href="#|aria-labelledby=")([^")]+)', hostile))
    assert links and links <= set(names)


def test_the_same_report_gives_the_same_bytes(hostile):
    assert as_html(report(SCRIPT)) == hostile


def test_the_first_screen_has_the_question_and_the_answer():
    page = as_html(
        Report(title="T", question="Is it?", answer="It is.", sections=[Section(heading="Why")])
    )
    order = [page.index(part) for part in ("<h1>T<", ">Is it?<", ">It is.<", "<h2>Why<")]
    assert order == sorted(order)
    assert "How this was made" not in page, "nothing is said of what is not known"


def test_a_reader_of_screens_finds_its_way(hostile):
    page = Page(hostile)
    assert page.elements[0] == ("html", {"lang": "en"})
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    assert {a["scope"] for a, _ in page.all("th")} == {"col", "row"}
    for attributes, _ in page.all("svg"):
        assert attributes["role"] == "img" and attributes["aria-labelledby"]
    (scroll,) = (a for a, _ in page.all("div") if a.get("class") == "scroll")
    assert scroll["tabindex"] == "0", "what scrolls is reached by the keyboard"


def test_the_end_tells_how_to_get_the_same_again():
    page = as_html(report("attnlab study x"))
    for part in ("<summary>Settings</summary>", "model=small\nmodel.width=64\nmodel.window=8,none"):
        assert part in page
    assert "<pre" in page and "It took 12 min 34 s." in page


def test_the_page_is_made_for_light_dark_narrow_and_paper(hostile):
    for part in ("prefers-color-scheme: dark", "@media print", "width=device-width"):
        assert part in hostile
    assert re.search(r"\.scroll {[^}]*overflow-x: auto", hostile), "tables scroll in their own box"
    assert re.search(r"\nsvg {[^}]*width: 100%", hostile)


def test_numbers_stand_to_the_right_and_nothing_is_a_dash():
    table = Table(title="t", columns=["who", "loss"], rows=[["a", 1.23456], ["b", None]])
    sections = [Section(heading="h", blocks=[table])]
    page = as_html(Report(title="t", question="q", answer="a", sections=sections))
    assert '<td class="number">1.235</td>' in page and '<td class="number">–</td>' in page
    assert '<th scope="row" class="short">a</th>' in page


@pytest.mark.parametrize("text", ["\n\n  two lines down\n", "中文\x00 ␀ \ud800"])
def test_a_sample_is_shown_line_for_line(text):
    sections = [Section(heading="h", blocks=[Sample(title="s", text=text)])]
    page = as_html(Report(title="t", question="q", answer="a", sections=sections))
    page.encode()
    (shown,) = (text for _, text in Page(page).all("pre"))
    # a browser drops the first newline
    assert shown[1:] == text.replace("\x00", "␀").replace("\ud800", "\ufffd")
