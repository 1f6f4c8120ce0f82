"""Markup in names and texts: reports, certificates and the page show it and do not obey it."""

from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from typing import Any

from attnlab.audit import certificate as certificates
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.checks.hostile import acts
from attnlab.checks.hostile.trial import EITHER, Act, Family, Place, Plant, Trial, nothing
from attnlab.page.server import Server, ServerSettings
from attnlab.reports.html import as_html
from attnlab.reports.markdown import as_markdown
from attnlab.reports.report import Picture, Plot, Report, Sample, Section, Series, Table

INJECTIONS = {
    "a script": "<script>alert(1)</script>",
    "an image": "<img src=x onerror=alert(1)>",
    "the end of an attribute": "\"' onmouseover=alert(1) x='\"",
    "the end of a style": "</style></title></svg><script>alert(1)</script>",
    "a link": "[x](javascript:alert(1)) <a href=javascript:alert(1)>x</a>",
    "a comment and CDATA": "<!-- --> ]]><script>alert(1)</script>",
    "a fence": "```\n</pre><script>alert(1)</script>\n```",
    "a formula": "$\\href{javascript:alert(1)}{x}$<script>1</script>",
}
FORBIDDEN = {"script", "iframe", "object", "embed", "base", "form", "input", "link", "img", "a"}

HARMLESS = ("#", "data:image/png;")  # within the page


class Finder(HTMLParser):
    """Finds what a browser would run, load or follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        harmful = [name for name, _ in attributes if name.startswith("on")]
        elsewhere = [
            name for name, value in attributes
            if name.endswith(("href", "src")) and not (value or "").startswith(HARMLESS)
        ]  # fmt: skip
        if tag in FORBIDDEN or harmful or elsewhere:
            self.found.append(f"<{tag} {' '.join([*harmful, *elsewhere])}>")


def show(html: str) -> None:
    """Says what a browser would run."""
    finder = Finder()
    finder.feed(html)
    print(f"injected {finder.found[0]}" if finder.found else "nothing but text")


def without_code(markdown: str) -> str:
    """What is not code: between fences and behind a backslash markup is text."""
    import re

    plain = re.sub(r"^(`{3,}).*?^\1`*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(r"\\.", "", plain)
    return re.sub(r"`[^`\n]+`", "", plain)


def report_of(text: str) -> Report:
    """A report with a text in every place that takes one."""
    points: dict[str, Any] = {"x": [1.0, 2.0], "y": [1.0, 2.0]}
    return Report(
        title=text,
        question=text,
        answer=text,
        sections=[
            Section(
                heading=text,
                text=text,
                blocks=[
                    Table(title=text, columns=[text, "b"], rows=[[text, 1]], note=text),
                    Plot(
                        title=text, x=text, y=text, note=text, series=[Series(name=text, **points)]
                    ),
                    Picture(title=text, rows=[[1.0, 2.0]], x=text, y=text, note=text),
                    Sample(title=text, text=text),
                ],
            )
        ],
        settings={text: {text: [text]}},
        versions={text: text},
        command=text,
    )


def report(text: str) -> Act:
    return lambda place: show(as_html(report_of(text)))


def markdown(text: str) -> Act:
    def act(place: Place) -> None:
        page, pictures = as_markdown(report_of(text), "pictures")
        prose = without_code(page)
        # links and pictures of our own are written by us
        assert "](javascript:" not in prose, "a link that runs"
        show(prose.replace("](pictures/", "]("))
        for svg in pictures.values():
            show(svg)

    return act


def certificate_of(text: str) -> Certificate:
    found = Finding(name="causality", verdict="fail", aspect=text, detail=text, measured=text)
    return Certificate(
        target=text, contract=Contract(causal=True), findings=(found,), influence=((1.0,),)
    )


def certificate(text: str) -> Act:
    def act(place: Place) -> None:
        example = {
            "name": text, "aspect": text, "sentence": text, "reason": text,
            "sizes": {text: text}, "options": {text: text},
        }  # fmt: skip
        show(certificates.page(certificate_of(text), [example], text))

    return act


def notebook(text: str) -> Act:
    return lambda place: show(certificate_of(text)._repr_html_())


def named_study(text: str) -> Plant:
    """A folder with a report of the attacker's own."""

    def plant(place: Place) -> None:
        folder = place.copy("study/runs", "runs") / "study-small-000000"
        (folder / "report.html").write_text(f"<!doctype html>{text}")
        (folder / "report.md").write_text(f"# {text}\n\n{text}\n\n{text}\n")

    return plant


def page_report(place: Place) -> None:
    """A report of a stranger's is shown without rights: no script, no origin of ours."""
    head = answer_of(place, "/report/study-small-000000")[0]
    policy = next(line for line in head if line.startswith("content-security-policy:"))
    assert "sandbox" in policy and "allow-scripts" not in policy, "a report with rights"
    print("nothing but text")


def page_json(path: str) -> Act:
    """Names and texts come as JSON, which no browser takes for a page."""

    def act(place: Place) -> None:
        head, body = answer_of(place, path)
        assert any(line.startswith("content-type: application/json") for line in head), head
        assert "x-content-type-options: nosniff" in head, head
        assert "alert" in body, "the text is not there"

    return act


def answer_of(place: Place, path: str) -> tuple[list[str], str]:
    settings = ServerSettings(root=place.runs, port=0, slowest=5.0, warm=False)
    with Server(settings).running() as server:
        head, _, body = acts.ask(server, path).decode().partition("\r\n\r\n")
    return head.lower().split("\r\n"), body


def run_with(text: str) -> Plant:
    import json

    def plant(place: Place) -> None:
        row = {"step": 2, "prompt": text, "text": text}
        (place.run / "samples.jsonl").write_text(json.dumps(row) + "\n")

    return plant


def each(what: str, make: Callable[[str], Act]) -> list[Trial]:
    return [
        Trial(
            name=f"{what}: {name}", plant=nothing, act=make(text), codes=(0,), forbidden="injected"
        )
        for name, text in INJECTIONS.items()
    ]


SCRIPT = INJECTIONS["a script"]
FAMILY = Family(
    name="markup",
    about="markup in reports, certificates and on the page",
    trials=[
        *each("a report", report),
        *each("a report in Markdown", markdown),
        *each("a certificate", certificate),
        *each("a certificate in a notebook", notebook),
        Trial(
            name="a report of the attacker's own, on the page",
            plant=named_study(SCRIPT),
            act=page_report,
            codes=(0,),
        ),
        Trial(
            name="the summary of a report, on the page",
            plant=named_study(SCRIPT),
            act=page_json("/api/reports"),
            codes=EITHER,
        ),
        Trial(
            name="what a model wrote, on the page",
            plant=run_with(SCRIPT),
            act=page_json("/api/runs/20200101-000000-tiny-abcdef"),
            codes=EITHER,
        ),
        *(
            Trial(
                name=f"a page that takes {name} as it is",
                plant=nothing,
                act=lambda place, text=text: show(  # type: ignore[misc]
                    f"<p title='{text}'>{text}</p><style>{text}</style>"
                ),
                codes=(0,),
                forbidden="injected",
                caught="forged",
            )
            for name, text in INJECTIONS.items()
        ),
    ],
)
