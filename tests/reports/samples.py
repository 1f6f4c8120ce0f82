"""A report with every kind of block, and with the same hostile text in every place for text."""

from attnlab.reports.report import Picture, Plot, Report, Sample, Section, Series, Table

SCRIPT = "<script>alert(\"1\" & '2')</script>"


def line(name="loss", **changes):
    values = {"x": [0, 1, 2, 3], "y": [4.0, 3.0, 2.5, 2.25], **changes}
    return Series(name=name, **values)


def banded(name="loss"):
    return line(name, low=[3.5, 2.5, 2.0, 2.0], high=[4.5, 3.5, 3.0, 2.5])


def plot(*series, **changes):
    values = {"title": "Loss", "x": "step", "y": "nats", **changes}
    return Plot(series=list(series), **values)


def blocks(text):
    """One of each kind, and each kind of plot."""
    names = [text, "b", "c"]
    bars = Series(name=text, x=names, y=[1, 2, 3], low=[0.5, 1, 2], high=[1.5, 3, 4])
    said = {"title": text, "x": text, "y": text}
    return [
        Table(title=text, columns=[text, "loss"], rows=[[text, 1.5], ["b", None]], note=text),
        Plot(**said, series=[banded(text), line("other")], note=text),
        Plot(**said, series=[bars], kind="bars"),
        Plot(**said, series=[bars, bars], kind="points"),
        Picture(**said, rows=[[0.0, 1.0], [None, 0.5]], note=text),
        Sample(title=text, text=text),
    ]


def report(text="plain words"):
    return Report(
        title=text,
        question=text,
        answer=text,
        sections=[
            Section(heading=text, text=f"{text}\n\n{text}", blocks=blocks(text)),
            Section(heading="Without blocks"),
        ],
        settings={text: text, "model": {"name": "small", "width": 64, "window": [8, None]}},
        versions={text: text},
        command=text,
        seconds=754.2,
    )
