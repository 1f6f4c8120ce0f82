"""The documentation as a site: complete, strict, without a dead link or a foreign host."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from attnlab import registry
from attnlab.theory import catalogue as claims

KINDS = ("claim", "positions", "preset")
DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def website():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("website")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def pages(website, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "pages"
    full = website.settings_of
    website.settings_of = lambda one: full(one) if one.kind in KINDS else []  # less to import
    website.stage(folder)
    website.settings_of = full
    return folder


def test_every_page_stands_in_the_contents_once(website, pages):
    named = [
        re.sub(r".*<(.*)>", r"\1", one) for group in website.CONTENTS.values() for one in group
    ]
    assert len(named) == len(set(named))
    there = {path.relative_to(pages).with_suffix("").as_posix() for path in pages.rglob("*.md")}
    assert {*named, "index"} == {one for one in there if not one.startswith("api/attnlab")}
    assert {path.stem for path in DOCS.glob("*.md")} <= set(named)


def test_the_catalogue_has_every_option_and_its_settings(pages):
    text = (pages / "catalogue.md").read_text()
    for kind in registry.kinds():
        for option in registry.options(kind):
            assert (f"\n### {kind}.{option.name}\n" in text) == (option.origin == "attnlab")
    assert "| `lead` | `12.0` |" in text  # of the claim "copy"


def test_every_formula_of_the_theory_is_typeset(website, pages):
    formulas = [line for name in claims.names() for line in claims.about(name).formula.splitlines()]
    assert (pages / "theory.md").read_text().count("\n\n<p><math") >= 0.8 * len(formulas)
    written = website.typeset(
        "So:\n\nq = β(k_a + k_b) ⇒ α_a = α_b = e^β / (2e^β + n − 2) → ½\n\nDone."
    )
    assert written.startswith("So:\n\n<p><math") and written.endswith("</p>\n\nDone.")


def test_the_code_has_a_page_for_each_folder_with_what_is_public(website, pages):
    folders = {path.parent for path in (DOCS.parent / "attnlab").rglob("*.py")}
    assert len([*(pages / "api").glob("attnlab*.md")]) == len(folders)
    text = (pages / "api" / "attnlab.theory.md").read_text()
    assert "{py:class} Claim\n:module: attnlab.theory.claim" in text
    assert "{py:method} with_knob() -> 'Claim'" in text
    assert "_finite_or_text" not in text


def test_a_docstring_is_text_in_which_only_backticks_and_blocks_are_code(website):
    from docstrings import markdown

    assert markdown("x_a of [i][j] is `a_b[1]`.") == r"x\_a of \[i\]\[j\] is `a_b[1]`."
    assert markdown("So:\n\n    a * b\n") == "So:\n\n    a * b\n"


@pytest.mark.filterwarnings("ignore")  # of Sphinx about its own next version
def test_the_pages_build_without_a_warning_and_lead_nowhere_else(website, pages, capfd):
    """All pages; of the code and of the catalogue one part: the rest is made the same way."""
    pytest.importorskip("sphinx", reason="pip install 'attnlab[docs]'")
    pytest.importorskip("myst_parser", reason="pip install 'attnlab[docs]'")
    pytest.importorskip("furo", reason="pip install 'attnlab[docs]'")
    kept = ["attnlab.attention"]
    for path in (pages / "api").glob("attnlab*.md"):
        if path.stem not in kept:
            path.unlink()
    front = pages / "api" / "index.md"
    front.write_text(
        "\n".join(
            line
            for line in front.read_text().split("\n")
            if not line.startswith("attnlab") or line in kept
        )
    )
    catalogue = pages / "catalogue.md"
    catalogue.write_text(catalogue.read_text().partition("## model")[0])
    site = pages.parent / "site"
    assert website.render(pages, site, pages.parent / "trees") == 0, capfd.readouterr().err
    assert "claims/index.html leads nowhere" in "\n".join(website.problems(site))
    website.add_claims(site)
    assert website.problems(site) == []
    assert (site / "theory.html").is_file() and (site / "searchindex.js").is_file()


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        ('<a href="gone.html">x</a>', "page.html: gone.html leads nowhere"),
        ('<a href="other.html#nowhere">x</a>', "page.html: other.html#nowhere names no place"),
        ('<a href="#nowhere">x</a>', "page.html: #nowhere names no place"),
        ('<img src="gone.svg">', "page.html: gone.svg leads nowhere"),
        ('<script src="https://host.example/a.js"></script>', "is on another host"),
        ('<link rel="stylesheet" href="//host.example/a.css">', "is on another host"),
    ],
)
def test_a_dead_link_and_a_foreign_host_are_found(website, tmp_path, markup, said):
    (tmp_path / "other.html").write_text('<h1 id="place">x</h1>')
    (tmp_path / "page.html").write_text(markup)
    (found,) = [
        line for line in website.problems(tmp_path) if "nowhere" not in line or said in line
    ]
    assert said in found


def test_a_right_link_is_no_problem(website, tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="place">x</h1>')
    (tmp_path / "style.css").write_text("a { background: url(data:image/png;base64,AA) }")
    links = ["other.html#place", "https://host.example/", "other.html#/claims/copy"]
    (tmp_path / "page.html").write_text(" ".join(f'<a href="{one}">x</a>' for one in links))
    assert website.problems(tmp_path) == []
    (tmp_path / "style.css").write_text("@import 'https://host.example/a.css';")
    assert website.problems(tmp_path) == [
        "style.css: https://host.example/a.css is on another host"
    ]
