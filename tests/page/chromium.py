"""A Chromium for the browser tests: one that is there, or Debian's where it may be installed."""

import os
import shutil
import subprocess
from functools import cache

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
HOW = (
    "no Chromium, so the page is not tested in a browser: install one (Debian: apt-get install "
    "chromium), or name it in ATTNLAB_CHROMIUM"
)
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


@cache
def found() -> str | None:
    """The path of a Chromium; it is installed if none is there and we may."""
    return _there() or (_there() if _installed() else None)


def _there() -> str | None:
    named = os.environ.get("ATTNLAB_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _installed() -> bool:
    """Whether Debian's was installed now; a refusal is no error, it only leaves us without."""
    if "ATTNLAB_CHROMIUM" in os.environ or os.getuid() != 0 or not shutil.which("apt-get"):
        return False
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    try:
        for command in (["apt-get", "update"], install):
            subprocess.run(command, env=quiet, capture_output=True, check=True, timeout=240)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
