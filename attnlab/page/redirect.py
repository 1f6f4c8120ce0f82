"""The way from a terminal into a browser: a file that redirects with a one-time token.

Every user of a machine can read the command line of a browser, so no token stands there. The
browser is opened on a file that only its owner can read; the file sends it to the page with a token
that is good for one visit. It is there until that visit, however long a browser takes to start, or
until the page is closed.
"""

import html
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnlab import files
from attnlab.page.guard import Pass

DOCUMENT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>attnlab</title>
<p><a href="{address}">Open the page</a>
"""


@contextmanager
def redirect_file(known: Pass) -> Iterator[Path]:
    """A file to open a browser on; gone once it was used, and at the latest afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="attnlab-page-", dir=_readable_folder()))  # mode 0700
    try:
        token = known.once.issue(lambda: files.remove_folder(folder))
        path = folder / "open.html"
        content = DOCUMENT.format(address=html.escape(known.address_once(token)))
        path.touch(mode=0o600, exist_ok=False)
        files.append(path, content.encode())
        yield path
    finally:
        files.remove_folder(folder)


def _readable_folder() -> Path | None:
    """Where a browser can read: None for the folder of temporary files. A browser that is a snap
    sees neither that nor hidden folders; who uses snaps has a folder of that name at home."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home if (home / "snap").is_dir() else None
