"""The front door: short, the same in both languages, and no dead link in any page.

Its examples: tests/cli/test_readme.py.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
FILE = re.compile(r"`((?:attnlab|tests|docs|examples)/[a-z0-9_/.]*)`")  # NAME.svg is no file
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page):
    """A page without its code: what stands there is no heading and no link."""
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", page.read_text()))


def anchors(page):
    """The headings as a link names them: lower case, hyphens for spaces, other signs left out."""
    titles = [title for _, title in HEADING.findall(FENCE.sub("", page.read_text()))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(page):
    """Lines of code without their comments: a translation keeps these."""
    lines = [line for block in FENCE.findall(page.read_text()) for line in block.splitlines()]
    return [" ".join(line.split("#")[0].split()) for line in lines]


def test_it_opens_with_the_two_commands():
    opening = ENGLISH.read_text()[:1500]
    assert "make lab" in opening and "make test" in opening


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda page: page.name)
def test_it_is_read_in_one_go(page):
    assert len(page.read_text().splitlines()) <= 180


def test_both_languages_have_the_same_sections_commands_and_links():
    levels = [[marks for marks, _ in HEADING.findall(prose(page))] for page in (ENGLISH, CHINESE)]
    assert levels[0] == levels[1]
    assert commands(ENGLISH) == commands(CHINESE)
    targets = [
        sorted(link for link in LINK.findall(prose(page)) if link[0] != "#")
        for page in (ENGLISH, CHINESE)
    ]
    assert [link.replace("README.zh.md", "README.md") for link in targets[0]] == targets[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(prose(page)):
        if not re.match(r"https?://", link):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            if anchor:
                assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page):
    for name in FILE.findall(FENCE.sub("", page.read_text())):
        assert (ROOT / name).exists(), name
