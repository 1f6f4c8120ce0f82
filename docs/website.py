"""The documentation as a site: python docs/website.py [FOLDER], or `make docs`.

    docs/*.md, README.md …   the pages that exist, their links led right
    registry                 the catalogue: everything that `attnlab list` shows
    docstrings               a page for each folder of the code (docstrings.py)
    the record               the claims to look at, without a server (`attnlab claims --export`)

A warning is an error. What was built is checked: no dead link, nothing from another host.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from attnlab import config, names, registry
from attnlab.page import export
from attnlab.theory import catalogue as claims
from attnlab.theory import mathml

HERE = Path(__file__).parent
ROOT = HERE.parent
SITE = ROOT / "build" / "site"
ABOVE = {  # pages of the site that stand above docs/
    "README.md": "index.md",
    "README.zh.md": "README.zh.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
CONTENTS = {
    "Begin": ["中文 <README.zh>", "guide", "glossary", "catalogue", "mechanisms"],
    "Training": ["data", "scale"],
    "Theory": ["claims", "theory"],
    "Studies": [
        "studies",
        "studies/birthplaces",
        "Birthplaces at its best <studies/birthplaces-best>",
        "studies/rope-gqa",
        "studies/recurrent",
        "studies/window",
    ],
    "Audit": ["audit", "packages", "diff"],
    "The page": ["page"],
    "In other libraries": ["interop", "transformers"],
    "Measured": ["benchmarks", "machines", "reliability"],
    "Behind it": [
        *("api/index", "map", "notes", "dependencies", "CONTRIBUTING", "CHANGELOG"),
    ],
}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FOREIGN = re.compile(r"(?:url\(|@import)\s*['\"]?((?:\w+:)?//[^)'\"\s]+)")  # in a style sheet
FENCE = "`" * 3


def build(site: Path) -> int:
    """Write the site; its exit code."""
    work = ROOT / "build"
    stage(work / "pages")
    failed = render(work / "pages", site, work / "doctrees")
    if failed:
        return failed
    add_claims(site)
    wrong = problems(site)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"wrote {site}; open {site / 'index.html'}")
    return 1 if wrong else 0


def render(pages: Path, site: Path, cache: Path) -> int:
    """Run Sphinx, for which a warning is an error; its exit code."""
    from sphinx.cmd.build import build_main

    arguments = ["--fail-on-warning", "--keep-going", "--quiet", "--fresh-env"]
    arguments += ["-c", str(HERE), "-d", str(cache), str(pages), str(site)]
    return build_main(arguments)


def add_claims(site: Path) -> None:
    """The claims to look at, which need no server."""
    export.write(site / "claims", home="../claims.html")


def stage(pages: Path) -> None:
    """All pages into one folder, for Sphinx to read."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(HERE, pages, ignore=shutil.ignore_patterns("*.py", "*.json", "__pycache__"))
    (pages / "examples").mkdir()
    for path in (*ROOT.glob("examples/*.ipynb"), *ROOT.glob("examples/*.py")):  # to be downloaded
        shutil.copy(path, pages / "examples")
    for path, text in generated().items():
        (pages / path).parent.mkdir(exist_ok=True)
        (pages / path).write_text(text)
    theory = pages / "theory.md"
    theory.write_text(typeset(theory.read_text()))
    for path in pages.rglob("*.md"):
        path.write_text(LINK.sub(lambda it: f"{it[1]}{_led(it[2])}{it[3]}", path.read_text()))


def _led(link: str) -> str:
    """A link of a page that stands above docs/, or to one of these."""
    page, mark, anchor = link.removeprefix("docs/").partition("#")
    name = page.removeprefix("../")
    if name in ABOVE:
        page = page.replace(name, ABOVE[name]) if page == name else ABOVE[name]
    elif name.startswith("examples/"):
        page = name
    return f"{page}{mark}{anchor}" if page else link


def typeset(text: str) -> str:
    """theory.md with its formulas as MathML; a formula is a paragraph there."""
    known = {
        _shown(line): parts
        for name in claims.names()
        for line, parts in zip(
            claims.about(name).formula.splitlines(),
            mathml.formula(claims.about(name).formula),
            strict=True,
        )
    }
    paragraphs = [
        _formula(known[_shown(one)]) if _shown(one) in known else one for one in text.split("\n\n")
    ]
    return "\n\n".join(paragraphs)


def _shown(paragraph: str) -> str:
    """What a reader sees of a paragraph of Markdown."""
    return " ".join(unescape(paragraph.replace("\\", "")).split())


def _formula(parts: Sequence[Sequence[mathml.Piece]]) -> str:
    written = [
        " ".join(escape(one) if isinstance(one, str) else mathml.markup(one) for one in part)
        for part in parts
    ]
    return f"<p>{' &emsp; '.join(written)}</p>"


def generated() -> dict[str, str]:
    """The pages that no file in docs/ holds, by their path in the site."""
    from docstrings import pages as code  # beside this file

    above = {there: (ROOT / here).read_text() for here, there in ABOVE.items()}
    above["index.md"] += "\n".join(_contents())
    return {
        **above,
        "catalogue.md": catalogue(),
        "claims.md": claims_page(),
        **code(ROOT / "attnlab"),
    }


def _contents() -> list[str]:
    lines = []
    for title, pages in CONTENTS.items():
        lines += ["", f"{FENCE}{{toctree}}", ":hidden:", ":maxdepth: 1", f":caption: {title}", ""]
        lines += [*pages, FENCE]
    return lines


def claims_page() -> str:
    """Where the claims to look at are, one by one and by question."""
    rows = [["claim", "says", "verdict"], ["---"] * 3]
    for name in claims.names():
        about = claims.about(name)
        link = f'<a href="claims/index.html#/claims/{name}">{escape(names.title(name))}</a>'
        rows.append([link, _plain(about.statement), about.expected])
    return "\n\n".join(
        [
            "# Claims to look at",
            '<p><a href="claims/index.html">Open the claims</a>: each with its formula, its '
            "picture, what was measured, and the knob that breaks it.</p>",
            "They show what is recorded in [theory](theory.md), and run nothing. The folder "
            "`claims` of this site works from a disk and on any host; "
            "`attnlab claims --export FOLDER` writes it, of all claims or of some. "
            "With `attnlab page` the settings can be moved.",
            _table(rows),
        ]
    )


def catalogue() -> str:
    """Every option by kind, with its settings, as `attnlab list` shows them."""
    lines = [
        "# Catalogue",
        "Everything that is chosen by name, as `attnlab list` shows it. A setting is changed on "
        "the command line: `attnlab train tiny model.positions=alibi`.",
    ]
    for name, kind in registry.KINDS.items():
        lines += [f"## {name}", f"{_plain(kind.about)}: `{kind.example}`"]
        for option in registry.options(name):
            if option.origin == "attnlab":  # not what else is installed on this machine
                lines += [f"### {name}.{option.name}", _plain(option.summary), *settings_of(option)]
    return "\n\n".join(lines) + "\n"


def settings_of(option: registry.Option) -> list[str]:
    """The table of its settings, if it has any."""
    made = registry.load(option.kind, option.name)()
    fields = config.describe(made, chosen=option.kind == "preset")
    rows = [
        [f"`{one.key}`", f"`{one.default or '(empty)'}`", _plain(one.values), _plain(one.about)]
        for one in fields
    ]
    return (
        [_table([["setting", "default", "values", "meaning"], ["---"] * 4, *rows])] if rows else []
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row).replace("\n", " ") + " |" for row in rows)


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([\\*_<>\[\]#|])", r"\\\1", text)


class _Page(HTMLParser):
    """The links, the assets and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.anchors: set[str] = {""}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.assets.append(given["href"])
        elif "src" in given:
            self.assets.append(given["src"])


def problems(site: Path) -> list[str]:
    """Dead links and anchors of a built site, and what it would fetch from another host."""
    pages = {path: _read(path) for path in sorted(site.resolve().rglob("*.html"))}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site.resolve())
        for link in page.assets:
            parts = urlsplit(link)
            if parts.netloc or parts.scheme not in ("", "data"):
                found.append(f"{here}: {link} is on another host")
        for link in [*page.links, *page.assets]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file():
                found.append(f"{here}: {link} leads nowhere")
            elif target in pages and anchor not in pages[target].anchors and anchor[:1] != "/":
                found.append(f"{here}: {link} names no place there")  # "#/…" is a state of a page
    for style in sorted(site.rglob("*.css")):
        here = style.relative_to(site)
        links = FOREIGN.findall(style.read_text())
        found += [f"{here}: {link} is on another host" for link in links]
    return found


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE))
