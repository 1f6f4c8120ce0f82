"""Markdown that shows text as it is written, and the SVG files it refers to."""

from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from reports.samples import SCRIPT, line, plot, report

from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Report, Sample, Section, Table

GITHUB = MarkdownIt("commonmark").enable("table").enable("strikethrough")  # comes with rich
HOSTILE = [
    SCRIPT,
    "a | b \\| c",
    "**bold** _em_ __strong__ ~~gone~~ `code`",
    "[link](http://x) ![image](y) <http://z>",
    "# heading",
    "- item",
    "-",
    "_ __a__b__ _",
    "+ item",
    "1. item",
    "1) item",
    "> quote",
    "===",
    "---",
    "&lt; &amp; &#35;",
    "snake_case_name * 2 * 3",
    "ends with \\",
]


def of(*blocks, text="x"):
    sections = [Section(heading="Heading", text=text, blocks=blocks)]
    return Report(title="Title", question="Question?", answer="Answer.", sections=sections)


def tokens(text):
    """Each inline element with its kind, nested ones included."""
    for token in GITHUB.parse(text):
        yield token
        yield from token.children or ()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_shown_as_it_is_written(text):
    table = Table(title="t", columns=["a", text], rows=[["x", text]], note=text)
    markdown, _ = as_markdown(of(table, text=text), "pictures")
    parsed = GITHUB.parse(markdown)
    whole = [
        "".join(child.content for child in token.children or ())
        for token in parsed
        if token.type == "inline"
    ]
    assert whole.count(text) == 4, "a paragraph, a column, a cell, a note"
    kinds = [token.type for token in parsed if token.type.endswith("_open")]
    simple, _ = as_markdown(
        of(Table(title="t", columns=["a", "x"], rows=[["x", "x"]], note="x")), "pictures"
    )
    assert kinds == [t.type for t in GITHUB.parse(simple) if t.type.endswith("_open")]
    assert {token.type for token in tokens(markdown)}.isdisjoint(
        {"html_inline", "html_block", "em_open", "s_open", "code_inline", "link_open", "image"}
    )


def test_a_cell_has_one_line():
    table = Table(title="t", columns=["a", "b"], rows=[["one\ntwo\n\nthree", 1.5], ["x", None]])
    markdown, _ = as_markdown(of(table), "pictures")
    assert "| a | b |\n| --- | ---: |\n| one two three | 1.500 |\n| x | – |\n" in markdown


@pytest.mark.parametrize("text", ["plain", "```\ncode\n```", "`````", "~~~", "\n\n", "中 <b>"])
def test_a_fence_is_longer_than_those_in_its_text(text):
    markdown, _ = as_markdown(of(Sample(title="s", text=text)), "pictures")
    (fence,) = (token for token in GITHUB.parse(markdown) if token.type == "fence")
    assert fence.content == text + "\n"


def test_every_picture_it_refers_to_is_there_and_no_other():
    markdown, files = as_markdown(report("Loss: <a/../b> 损失"), "my pictures")
    images = [token.attrs["src"] for token in tokens(markdown) if token.type == "image"]
    assert images == [f"my%20pictures/{name}" for name in files] and len(files) == 4
    assert next(iter(files)) == "01-loss-a-b.svg"
    for svg in files.values():
        root = ElementTree.fromstring(svg)
        assert "prefers-color-scheme:dark" in root[0].text, "it has no page to take a colour from"


def test_pictures_of_one_title_have_files_of_their_own():
    _, files = as_markdown(of(plot(line()), plot(line("b")), plot(line(), title="损失")), "p")
    assert list(files) == ["01-loss.svg", "02-loss.svg", "03.svg"]


def test_the_same_report_gives_the_same_text_and_files():
    assert as_markdown(report(), "p") == as_markdown(report(), "p")


def test_it_holds_all_that_the_page_holds():
    markdown, _ = as_markdown(report("Words"), "p")
    for part in ("# Words", "> **Words**", "## Words", "It took 12 min 34 s.", "Words Words"):
        assert part in markdown
    assert "<summary>Settings</summary>\n\n```text\nWords=Words\nmodel=small\n" in markdown
