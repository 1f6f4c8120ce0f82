"""What matplotlib draws as SVG, made fit to stand in a page beside others of its kind.

A figure is drawn with stand-ins for a person's words (see `Words`) and in one reserved colour
(`INK`). Here the words come back, that colour becomes the colour of the page, identifiers get a
prefix of their own, and styles that would reach the rest of the page are dropped.
"""

import re
import textwrap
import unicodedata
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from attnlab.reports.report import plain, plain_line

INK = "#010203"  # of all text, axes and grids; nothing else is drawn in it
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Helvetica Neue', sans-serif"
LIGHT, DARK = "#1d2126", "#e4e6e9"  # text on a light page, and on a dark one
ANCHORS = {"left": ("start", 0.0), "center": ("middle", 0.5), "right": ("end", 1.0)}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a label: its words, and how matplotlib aligned and measured the stand-in."""

    text: str
    width: float
    align: str


@dataclass(frozen=True)
class Words:
    """A person's words, kept out of the drawing: there they could be formulas or lack glyphs.

    Drawn are stand-ins of about the same width; their groups carry the names used here as keys.
    """

    said: dict[str, list[Line]] = field(default_factory=dict)

    def put(self, artist: Any, text: str, measure: Any) -> None:
        """Let a text artist stand for these words; `measure(line, font)` is a line's width."""
        font, align = artist.get_fontproperties(), artist.get_horizontalalignment()
        name = f"words-{len(self.said)}"
        self.said[name] = [
            Line(text=line, width=measure(stand_in(line), font), align=align)
            for line in text.split("\n")
        ]
        artist.set_gid(name)
        artist.set_text(stand_in(text))


def stand_in(text: str) -> str:
    """The same length in characters that every font has."""
    return "".join(map(_stand_in, text))


def _stand_in(letter: str) -> str:
    if letter == "\n" or (letter.isascii() and letter.isprintable() and letter != "$"):
        return letter  # a dollar would begin a formula
    return "@" if unicodedata.east_asian_width(letter) in "WF" else "n"  # one em wide, or half


def length(text: str) -> int:
    """In letters of usual width; a Chinese one counts for two."""
    return sum(2 if _stand_in(letter) == "@" != letter else 1 for letter in text)


def wrap(text: str, most: int) -> str:
    """In lines of at most so many letters, as far as its words allow."""
    text = plain_line(text)
    wide = length(text) > 1.5 * len(text)
    return "\n".join(textwrap.wrap(text, most // 2 if wide else most))


def tidy_svg(drawn: str, words: Words, *, prefix: str, title: str, about: str) -> str:
    """The SVG of a figure for a page; its identifiers begin with the prefix."""
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        element.tag = _local(element.tag)
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(_local(name), element.attrib.pop(name))
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in ("style", "metadata")]:
            parent.remove(child)
    for group in root.iter("g"):
        name = group.get("id", "")
        if name in words.said:
            _say(group, words.said[name])
        elif name.startswith("class-"):
            group.set("class", name.removeprefix("class-"))
    for element in root.iter():
        _lighten(element)
        for name, value in element.attrib.items():
            if name in ("style", "fill", "stroke"):
                element.set(name, value.replace(INK, "currentColor"))
    _name_apart(root, prefix)
    _head(root, prefix, title, about)
    return ElementTree.tostring(root, encoding="unicode")


def standalone(svg: str) -> str:
    """For a file of its own, which has no page to take a colour from."""
    style = (
        f"<style>:root{{color:{LIGHT}}}"
        f"@media(prefers-color-scheme:dark){{:root{{color:{DARK}}}}}</style>"
    )
    opening, bracket, rest = svg.partition(">")
    return f"{opening}{bracket}{style}{rest}\n"


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _say(group: ElementTree.Element, lines: list[Line]) -> None:
    """Words in place of stand-ins, anchored where they were aligned: page fonts are narrower."""
    texts = list(group.iter("text"))
    for text, line in zip(texts, lines, strict=True):
        text.text = line.text
        moved = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)$", text.get("transform", ""))
        if moved:  # a line among several; a single one has its anchor already
            anchor, part = ANCHORS[line.align]
            del text.attrib["transform"]
            text.set("x", f"{float(moved[1]) + part * line.width:.2f}")
            text.set("y", moved[2])
            text.set("style", f"{text.get('style', '')}; text-anchor: {anchor}")


def _lighten(element: ElementTree.Element) -> None:
    """Without room between elements, with hundredths of a pixel at most, in the page's font."""
    element.tail = None
    if element.tag == "text":
        style = re.sub(r"font-family: [^;]*(; )?", "", element.get("style", ""))
        element.set("style", re.sub(r"font: (\S+px)[^;]*", r"font-size: \1", style))  # 3.9
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
    elif not (element.text or "").strip():
        element.text = None
    for name in {"d", "x", "y"}.intersection(element.keys()):
        path = " ".join(element.get(name, "").split())
        element.set(name, re.sub(r"-?\d+\.\d+", lambda n: f"{round(float(n[0]), 2):g}", path))


def _name_apart(root: ElementTree.Element, prefix: str) -> None:
    """A prefix on every identifier that something refers to; the others go."""
    links = re.compile(r"(?<=url\(#)[^)]+(?=\))")
    used = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href" and value.startswith("#"):
                used.add(value[1:])
                element.set(name, f"#{prefix}-{value[1:]}")
            elif name in ("style", "clip-path", "fill"):
                used.update(links.findall(value))
                element.set(name, links.sub(lambda found: f"{prefix}-{found[0]}", value))
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", f"{prefix}-{name}")


def _head(root: ElementTree.Element, prefix: str, title: str, about: str) -> None:
    """What a screen reader says, and what all of the drawing shares."""
    for name in ("width", "height"):  # points of matplotlib become pixels: both are units here
        root.set(name, root.get(name, "").removesuffix("pt"))
    root.attrib.pop("version", None)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-title")
    root.set("style", f"font-family: {FONTS}; stroke-linejoin: round; stroke-linecap: butt")
    for place, (tag, text) in enumerate((("title", title), ("desc", about))):
        if text:
            element = ElementTree.Element(tag, {"id": f"{prefix}-{tag}"})
            element.text = plain(text)
            root.insert(place, element)
