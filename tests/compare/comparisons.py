"""What the tests of comparisons share: small comparisons, results without times."""

import copy
import re

from experiments.small import InProcess, english

from attnlab.compare.comparison import Comparison
from attnlab.compare.parse import parse
from attnlab.compare.report import TIMES

SMALL = (
    "model.width=16",
    "model.depth=1",
    "model.context=16",
    "model.attention.heads=2",
    "batch=2",
    "steps=6",
    "evaluations=2",
    "turns=1",
    "sample=8",
)
FOUR = (
    "learned=tiny:model.positions=learned",
    "rotary=tiny",
    "tiny:model.attention=grouped,model.attention.heads=2,model.attention.kv_heads=1",
    "tiny:model.window=4,none",
)


def small_words(folder, *words):
    """Trainings of a fraction of a second on 5,003 characters, without a search unless asked."""
    path = folder / "text.txt"
    if not path.exists():
        english(path)
    asked = any(word.startswith(("rates=", "tune=")) for word in words)
    return [f"data={path}", *SMALL, *([] if asked else ["tune=none"]), *words]


def comparison(folder, *words, pool=None):
    return Comparison(parse(small_words(folder, *words)), pool or InProcess())


def timeless(results):
    """Without times, and without where and how it was run."""
    kept = copy.deepcopy(results)
    for key in ("measured", "seconds", "versions"):
        kept.pop(key)
    return kept


def timeless_text(markdown):
    """A report without its section of times and the line that says how long it took."""
    return _without(rf"\n## {TIMES}\n.*?(?=\n## )", r"It took .*\n", markdown)


def timeless_page(html):
    """The same of a page: all else of it stays, with pictures and styles."""
    section = rf"<section>\n<h2>{TIMES}</h2>.*?</section>"
    return _without(section, r"<p>It took [^<]*</p>", html)


def _without(section, line, text):
    for part in (section, line):
        text, found = re.subn(part, "", text, flags=re.DOTALL if part == section else 0)
        assert found == 1, part
    return text
