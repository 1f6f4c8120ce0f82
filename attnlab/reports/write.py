"""A report into a folder: to look at, to put into a repository, to compute with, to take home."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from attnlab import files, json_files
from attnlab.reports import downloads
from attnlab.reports.html import as_html
from attnlab.reports.markdown import with_downloads
from attnlab.reports.report import Report


def write(report: Report, results: Any, folder: Path) -> None:
    """Write results.json, tables/, pictures/, report.md and report.html.

    All are made before any is written. The page comes last: where it is, the rest is too. Then the
    files of an earlier report that are not of this one are removed.
    """
    made = downloads.make(report)
    contents = {"results.json": json_files.as_json(results)}
    contents |= {one.path: one.content for several in made.values() for one in several}
    contents["report.md"] = with_downloads(report, made).encode()
    contents["report.html"] = as_html(report, made).encode()
    paths = {folder / name: content for name, content in contents.items()}
    for parent in dict.fromkeys(path.parent for path in paths):
        files.make_folder(parent)  # refuses a link before anything is written
    for path, content in paths.items():
        files.write_whole(path, content)
    for inside in (downloads.PICTURES, downloads.TABLES):
        _remove_others(folder / inside, set(paths))


def _remove_others(folder: Path, ours: set[Path]) -> None:
    """Files of a report that this one has not written; a stranger's kind of file stays."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        left = path.suffix in downloads.KINDS or (path.name[:1] == "." and path.suffix == ".tmp")
        if path not in ours and left and (path.is_symlink() or path.is_file()):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # something is in it
        folder.rmdir()
