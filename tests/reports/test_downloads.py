"""Files beside a report: every table and figure, linked from the page and from the Markdown."""

import re
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from reports.samples import SCRIPT, line, plot, report

from attnlab.reports import downloads
from attnlab.reports.html import as_html
from attnlab.reports.markdown import with_downloads
from attnlab.reports.plots import png
from attnlab.reports.report import Report, Section, Table


@pytest.fixture(scope="module")
def made():
    return downloads.make(report(SCRIPT))


def test_every_table_is_there_as_csv_and_latex_and_every_figure_as_svg_png_and_csv(made):
    kinds = [[one.kind for one in several] for several in made.values()]
    assert kinds == [["CSV", "LaTeX"], *[["SVG", "PNG", "CSV"]] * 4]
    paths = [one.path for several in made.values() for one in several]
    assert len(set(paths)) == len(paths)
    safe = r"(tables|pictures)/\d\d(-[a-z0-9]+)*\.(csv|tex|svg|png)"
    assert all(re.fullmatch(safe, path) for path in paths)


def test_page_and_markdown_link_to_each_file_by_a_plain_relative_link(made):
    paths = {one.path for several in made.values() for one in several}
    page, text = as_html(report(SCRIPT), made), with_downloads(report(SCRIPT), made)
    assert set(re.findall(r'href="((?:tables|pictures)/[^"]+)"', page)) == paths
    parsed = [child for token in MarkdownIt().parse(text) for child in token.children or ()]
    linked = {unquote(one.attrs["href"]) for one in parsed if one.type == "link_open"}
    assert paths <= linked
    assert "<script" not in page and "javascript:" not in page
    assert not any(one.type.startswith("html") for one in parsed), "a name stays text"
    assert 'target="' not in page and " download" not in page


def test_the_end_has_the_command_the_rates_and_links_to_the_runs():
    one = Report(
        title="t",
        question="q",
        answer="a",
        command="attnlab compare a 'b=c d'",
        rates="Learning rates were not searched.",
        runs=["runs/a-seed-0", "runs/<b> &c"],
    )
    page, text = as_html(one, {}), with_downloads(one, {})
    assert 'href="runs/a-seed-0/">a-seed-0<' in page and 'href="results.json"' in page
    assert 'href="runs/%3Cb%3E%20%26c/">&lt;b&gt; &amp;c<' in page
    assert "[a-seed-0](runs/a-seed-0/)" in text and "(runs/%3Cb%3E%20%26c/)" in text
    for shown in (page, text):
        assert "Learning rates were not searched." in shown and "attnlab compare a" in shown


def test_tables_without_a_title_are_named_by_their_section():
    table = Table(title=" ", columns=["a"], rows=[[1]])
    section = Section(heading="What is equal?", blocks=[table, plot(line()), table])
    one = Report(title="t", question="q", answer="a", sections=[section])
    names = ["01-what-is-equal", "01-loss", "02-what-is-equal"]
    assert list(downloads.stems(one).values()) == names


@pytest.mark.parametrize("text", [SCRIPT, "$x_1$ \\frac{", "损失", "a\x00\ud800b\n\nc"])
def test_a_png_is_drawn_of_any_words_and_the_same_each_time(text):
    figure = plot(line(text), title=text, x=text, y=text)
    drawn = png(figure)
    assert drawn.startswith(b"\x89PNG") and drawn == png(figure)
    assert int.from_bytes(drawn[16:20]) == 3 * 440, "wide enough for paper"
