"""A Chromium for the browser tests: looked for, never installed. Run this file to see which it is.

`make browser` installs one.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
HOW = (
    "no Chromium, so the page is not tested in a browser: run `make browser`, or install one "
    "(Debian: apt-get install chromium), or name it in ATTNLAB_CHROMIUM"
)
NO_PLAYWRIGHT = "no playwright, so the page is not tested in a browser: pip install playwright"
# nothing of it reaches for the network; as root it has no sandbox
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
]


def find(own: str) -> str | None:
    """The path of a Chromium: named in ATTNLAB_CHROMIUM, else on the PATH, else playwright's own.

    One that is named and not there is not replaced by another.
    """
    named = os.environ.get("ATTNLAB_CHROMIUM")
    if named:
        return shutil.which(named)
    known = next((path for name in NAMES if (path := shutil.which(name))), None)
    return known or (own if Path(own).is_file() else None)


def main() -> int:
    """Exit code 1 if there is none."""
    if importlib.util.find_spec("playwright") is None:
        print(NO_PLAYWRIGHT)
        return 1
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        path = find(tools.chromium.executable_path)
    print(f"the page is tested in {path}" if path else HOW)
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
