"""The claims without a server: recorded results in a folder that opens from a disk or any host.

    index.html    the page's own, with other scripts
    style.css     the page's own
    record.js     the claims, the questions and the recorded outcomes
    claims.js     the page's own modules, one after the other

Browsers load no modules from a disk, so the modules of static/recorded.js and what it imports are
written as one plain script. Nothing is run and nothing is asked of any host.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab import __version__, files, registry
from attnlab.page.claims import Claims, Experiment
from attnlab.theory import catalogue, record

STATIC = Path(__file__).parent / "static"
ENTRY = "recorded.js"
RECORD = "record.js"
POLICY = (  # from a disk, not every browser takes a file beside the page for its own
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{([^}]*)\}) from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|const|class) (\w+)", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*|\bimport\(.*", re.MULTILINE)


def write(
    folder: Path, names: Sequence[str] = (), *, docs: Path = record.DOCS, home: str = ""
) -> None:
    """Write the folder; no names: all claims. `home` is the address of a page to go back to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise ValueError(f"{folder} has other files in it; name a new folder")
    data = json.dumps(recorded(names, docs) | {"home": home}, ensure_ascii=False, allow_nan=False)
    page = {
        RECORD: f"globalThis.attnlabRecord = {data};\n",
        "claims.js": script(STATIC, ENTRY),
        "style.css": _text(STATIC / "style.css"),
        "index.html": html(_text(STATIC / "index.html")),
    }
    files.make_folder(folder)
    for name, text in page.items():
        files.write_whole(folder / name, text.encode())


def recorded(names: Sequence[str] = (), docs: Path = record.DOCS) -> dict[str, Any]:
    """What the page asks its server for, as far as it is recorded."""
    claims = Claims(docs, docs)
    chosen = list(names) or catalogue.names()
    outcomes = {name: [_outcome(claims, name, knob) for knob in (False, True)] for name in chosen}
    entries = {str(one["name"]): one for one in claims.list_all()}
    settled = catalogue.by_question()
    questions = [
        {**one, "claims": [name for name in settled[str(one["name"])] if name in outcomes]}
        for one in claims.questions()
    ]
    asked = [one for one in questions if one["claims"] or (one["unsettled"] and not names)]
    return {
        "version": __version__,
        "claims": [_frozen(entries[name], found[0]) for name, found in outcomes.items()],
        "questions": asked,
        "outcomes": outcomes,
    }


def _outcome(claims: Claims, name: str, knob: bool) -> Mapping[str, Any]:
    """As the page answers for the default settings."""
    found = claims.recorded(Experiment(name, registry.load("claim", name)(), knob))
    if found is None:
        raise ValueError(
            f"nothing is recorded of {name} with its default settings; in a checkout, record it: "
            f"attnlab claims {name} --docs docs"
        )
    return found


def _frozen(entry: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """A claim whose settings cannot be changed: they are those of the recorded run."""
    settings = [{**one, "value": one["record"]} for one in entry["settings"]]
    shown = {"verdict": outcome["verdict"], "evidence": outcome["evidence"]}
    return {**entry, **shown, "settings": settings, "recorded": True, "frozen": True}


def html(page: str) -> str:
    """index.html with plain scripts beside it, and a policy of its own: no server sends one."""
    page = re.sub(r' *<link rel="modulepreload"[^>]*>\n', "", page)
    page = re.sub(r' *<link rel="stylesheet" href="/static/(?!style)[^>]*>\n', "", page)
    page = page.replace("/static/style.css", "style.css")
    scripts = "".join(f'<script defer src="{name}"></script>\n  ' for name in (RECORD, "claims.js"))
    page = page.replace('<script type="module" src="/static/main.js"></script>', scripts.rstrip())
    policy = f'<meta http-equiv="content-security-policy" content="{POLICY}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n  {policy}')
    assert "/static/" not in page and policy in page and RECORD in page, "index.html has changed"
    return page


def script(folder: Path, entry: str) -> str:
    """A module and all that it imports as one plain script, each as a function called once."""
    written: dict[str, str] = {}
    _add(folder, entry, written, ())
    return '"use strict";\n(() => {\n' + "\n".join(written.values()) + "})();\n"


def _add(folder: Path, name: str, written: dict[str, str], above: Sequence[str]) -> None:
    """What a module imports stands before it."""
    if name in above:
        raise ValueError(f"{name} imports itself: {' → '.join((*above, name))}")
    if name in written:
        return
    text = _text(folder / name)
    heads = []
    for everything, some, other in _IMPORT.findall(text):
        _add(folder, other, written, (*above, name))
        names = everything or "{" + some.replace(" as ", ": ") + "}"
        heads.append(f"const {names} = {_variable(other)};\n")
    text, public = _IMPORT.sub("", text), [one for _, one in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\1 \2", text)
    if other := _OTHER.search(body):
        raise ValueError(f"{name}: {other[0][:60]!r} has no form in a plain script")
    gives = f"return {{{', '.join(public)}}};\n"
    written[name] = f"const {_variable(name)} = (() => {{\n{''.join(heads)}{body}{gives}}})();\n"


def _variable(name: str) -> str:
    return "in_" + re.sub(r"\W", "_", name)


def _text(path: Path) -> str:
    """Of a file of this package, which an installer may have linked."""
    return files.read_named(path).decode()
