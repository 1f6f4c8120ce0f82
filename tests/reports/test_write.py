"""A report in a folder: all of it, or nothing."""

import html
import sys

import pytest
from reports.samples import line, plot, report

from attnlab import json_files
from attnlab.reports import downloads
from attnlab.reports.html import as_html
from attnlab.reports.markdown import with_downloads
from attnlab.reports.report import Report, Section, Table
from attnlab.reports.write import write


def test_a_folder_has_the_page_the_text_the_results_and_all_that_they_link_to(tmp_path):
    folder, one = tmp_path / "new" / "folder", report("损失")
    write(one, {"loss": [1.5, None]}, folder)
    made = downloads.make(one)
    assert (folder / "report.html").read_text(encoding="utf-8") == as_html(one, made)
    assert (folder / "report.md").read_text(encoding="utf-8") == with_downloads(one, made)
    assert json_files.read_json(folder / "results.json") == {"loss": [1.5, None]}
    beside = {file.path: file.content for several in made.values() for file in several}
    for path, content in beside.items():
        assert (folder / path).read_bytes() == content
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == {"report.html", "report.md", "results.json", *beside}


def test_files_of_an_earlier_report_are_not_left_beside_a_new_one(tmp_path):
    write(report(), 1, tmp_path)
    kept = tmp_path / "pictures" / "mine.txt"
    kept.write_text("a person's own")
    table = Table(title="Other", columns=["a"], rows=[[1]])
    section = Section(heading="h", blocks=[table])
    write(Report(title="t", question="q", answer="a", sections=[section]), 2, tmp_path)
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == {
        "report.html",
        "report.md",
        "results.json",
        "tables/01-other.csv",
        "tables/01-other.tex",
        "pictures/mine.txt",
    }


@pytest.mark.parametrize("inside", ["pictures", "tables"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path, inside):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "report"
    elsewhere.mkdir()
    (elsewhere / "01-old.csv").write_text("stays")
    folder.mkdir()
    (folder / inside).symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a link"):
        write(report(), {}, folder)
    assert [path.name for path in folder.iterdir()].count("report.html") == 0
    write(Report(title="t", question="q", answer="a"), {}, folder)
    assert [path.name for path in elsewhere.iterdir()] == ["01-old.csv"]


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path):
    short = Report(title="t", question="q", answer="a")
    for answer in (1, 2):
        write(short, answer, tmp_path)
    assert json_files.read_json(tmp_path / "results.json") == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "report.md",
        "results.json",
    }


def test_what_cannot_be_made_leaves_no_half(tmp_path):
    sections = [Section(heading="h", blocks=[plot(line())])]
    with pytest.raises(ValueError, match="JSON"):
        whole = Report(title="t", question="q", answer="a", sections=sections)
        write(whole, float("nan"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_tables_and_numbers_are_written_and_a_line_says_what_is_missing(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write(report(), {}, tmp_path)
    there = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert there == {".html", ".md", ".json", ".csv", ".tex"}
    for name in ("report.html", "report.md"):
        text = html.unescape((tmp_path / name).read_text()).replace("\\", "")
        assert text.count("pip install 'attnlab[plots]'") == 4, "at each figure"


def test_a_report_that_has_no_room_is_named_with_path_and_bytes(tmp_path, full_disk):
    with pytest.raises(OSError, match=r"results\.json could not be written \([\d,]+ bytes\): "):
        write(report(), ["x" * 4000], tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
