"""A report in a folder: all of it, or nothing."""

import sys

import pytest
from reports.samples import line, plot, report

from attnlab import files
from attnlab.reports.html import as_html
from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Report, Section
from attnlab.reports.write import write


def test_a_folder_has_the_page_the_text_its_pictures_and_the_results(tmp_path):
    folder = tmp_path / "new" / "folder"
    write(report("损失"), {"loss": [1.5, None]}, folder)
    text, pictures = as_markdown(report("损失"), "pictures")
    assert (folder / "report.html").read_text(encoding="utf-8") == as_html(report("损失"))
    assert (folder / "report.md").read_text(encoding="utf-8") == text
    assert files.read_json(folder / "results.json") == {"loss": [1.5, None]}
    for name, svg in pictures.items():
        assert (folder / "pictures" / name).read_text(encoding="utf-8") == svg
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == {
        "report.html",
        "report.md",
        "results.json",
        *(f"pictures/{name}" for name in pictures),
    }


def test_writing_again_replaces_and_leaves_nothing_else(tmp_path):
    short = Report(title="t", question="q", answer="a")
    for answer in (1, 2):
        write(short, answer, tmp_path)
    assert files.read_json(tmp_path / "results.json") == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "report.md",
        "results.json",
    }


@pytest.mark.parametrize("missing", [True, False])
def test_what_cannot_be_made_leaves_no_half(tmp_path, monkeypatch, missing):
    """A plot without matplotlib; results that are not JSON."""
    if missing:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    sections = [Section(heading="h", blocks=[plot(line())])]
    with pytest.raises(ValueError, match="matplotlib" if missing else "JSON"):
        write(
            Report(title="t", question="q", answer="a", sections=sections),
            float("nan"),
            tmp_path,
        )
    assert not list(tmp_path.iterdir())


def test_a_report_without_plots_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write(Report(title="t", question="q", answer="a"), {}, tmp_path)
    assert (tmp_path / "report.html").exists()
