"""Plots as SVG: well-formed, the same every time, with all that belongs to them."""

import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from reports.samples import SCRIPT, banded, blocks, line, plot

from attnlab.reports import plots
from attnlab.reports.marks import PALETTE
from attnlab.reports.report import Picture, Plot, Series

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ["lines", "points", "bars"]


def parsed(figure):
    return ElementTree.fromstring(plots.svg(figure))


def texts(figure):
    return [element.text for element in parsed(figure).iter(f"{SVG}text")]


def marked(figure, name):
    """The paths within groups of a class."""
    groups = (g for g in parsed(figure).iter(f"{SVG}g") if g.get("class") == name)
    return [path for group in groups for path in group.iter(f"{SVG}path") if path.get("d")]


def vertices(path):
    numbers = [float(n) for n in re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", path.get("d"))]
    return np.array(numbers).reshape(-1, 2)


def markers(figure):
    return list(parsed(figure).iter(f"{SVG}use"))


@pytest.mark.parametrize("text", [SCRIPT, "损失 ≤ 1", "_$x^2$ \\frac{", "", "a\x00\ud800b\n\nc"])
def test_any_words_are_shown_as_they_are(text):
    for figure in blocks(text):
        if isinstance(figure, Plot | Picture):
            root = parsed(figure)
            assert not list(root.iter(f"{SVG}script"))
            assert not any(len(element) for element in root.iter(f"{SVG}text")), "nor formulas"
            shown = "\n".join(e.text or "" for e in root.iter(f"{SVG}text"))
            for word in re.sub(r"[\x00\ud800]", " ", text).split():
                assert word in shown, figure


def test_the_same_plot_gives_the_same_bytes_whatever_a_person_has_set(monkeypatch):
    import matplotlib

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # its state is everybody's
    figures = [f for f in blocks("x") if isinstance(f, Plot | Picture)]
    before = [plots.svg(figure) for figure in figures]
    changed = {"lines.linewidth": 9, "font.size": 30, "axes.grid": True, "svg.hashsalt": None}
    with matplotlib.rc_context(changed):
        assert [plots.svg(figure) for figure in figures] == before
        assert {name: matplotlib.rcParams[name] for name in changed} == changed, "left alone"


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for ask in (plots.require, lambda: plots.svg(plot(line()))):
        with pytest.raises(ValueError, match=r"pip install 'attnlab\[plots\]'"):
            ask()


def test_text_axes_and_grid_are_in_the_colour_of_the_page():
    svg = plots.svg(plot(banded(), line("other")))
    styles = [value for e in ElementTree.fromstring(svg).iter() for value in [e.get("style", "")]]
    colours = set(re.findall(r"(?:fill|stroke): ([^;]+)", "; ".join(styles)))
    assert colours == {"none", "currentColor", *PALETTE[:2]}, "and there is no background"


def test_the_palette_is_readable_on_a_light_page_and_on_a_dark_one():
    """WCAG asks for a contrast of 3 to 1 for graphics."""

    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722] + 0.05

    for colour in PALETTE:
        assert luminance("#ffffff") / luminance(colour) >= 3
        assert luminance(colour) / luminance("#15181c") >= 3


def test_an_interval_around_a_line_is_a_band_from_low_to_high():
    (band,) = marked(plot(banded()), "interval")
    (drawn,) = marked(plot(banded()), "line")
    outline, middle = vertices(band), vertices(drawn)
    outline[:, 1] += float(markers(plot(banded()))[0].get("y"))  # drawn once, used at a place
    for x, y in middle:
        above, below = outline[outline[:, 0] == x, 1].min(), outline[outline[:, 0] == x, 1].max()
        assert above < y < below
    assert not marked(plot(line()), "interval")


@pytest.mark.parametrize("names", ["abc", ["a long name of many words " + n for n in "abc"]])
@pytest.mark.parametrize("kind", ["points", "bars"])
def test_intervals_over_names_are_strokes_of_their_length(kind, names):
    """Long names run down the page, and values with them to the right."""
    low, high = [1.0, 2.0, None], [2.0, 4.0, None]
    series = Series(name="s", x=list(names), y=[1.5, 3.0, 2.0], low=low, high=high)
    (path,) = marked(plot(series, kind=kind), "interval")
    first, second = vertices(path).reshape(2, 2, 2)
    along, across = (1, 0) if names == "abc" else (0, 1)
    for stroke in (first, second):
        assert stroke[0, across] == stroke[1, across]
    lengths = [abs(stroke[0, along] - stroke[1, along]) for stroke in (first, second)]
    assert lengths[1] == pytest.approx(2 * lengths[0], abs=0.05)


def test_an_interval_that_leaves_out_its_point_is_drawn_all_the_same():
    off = Series(name="s", x=[1, 2], y=[5, 5], low=[1, 1], high=[2, 2])
    for kind in KINDS:
        assert marked(plot(off, kind=kind), "interval")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "series",
    [
        [],
        [Series(name="empty", x=[], y=[])],
        [Series(name="gone", x=[1, 2], y=[None, None], low=[None] * 2, high=[None] * 2)],
    ],
)
def test_a_plot_without_numbers_says_so(kind, series):
    assert "no data" in texts(plot(*series, kind=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_series_keeps_its_place_in_the_legend(kind):
    figure = plot(line("first", x=[], y=[]), line("second"), kind=kind)
    assert {"first", "second"} <= set(texts(figure)) and "no data" not in texts(figure)
    assert PALETTE[1] in plots.svg(figure), "and its colour is not given to the next"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_one_point_is_seen(kind, log):
    figure = plot(line(x=[3], y=[7.0]), kind=kind, log_x=log and kind != "bars", log_y=log)
    if kind == "bars":
        assert PALETTE[0] in plots.svg(figure)
    else:
        assert len(markers(figure)) == 2, "in the plot and in the legend"


def test_a_point_between_gaps_is_seen_in_a_long_line():
    y = [1.0] * 30 + [None, 2.0, None] + [1.0] * 30
    figure = plot(line("", x=range(63), y=y))
    assert len(markers(figure)) == 1
    (path,) = marked(figure, "line")
    assert path.get("d").count("M") == 3, "and the line is in parts"


def test_log_axes_have_their_ticks_at_the_few_values_that_are_there():
    lengths = [1024, 2048, 4096, 8192]
    shown = texts(plot(line("", x=lengths, y=[0.1, 1, 10, 5000]), log_x=True, log_y=True))
    assert shown[:4] == ["1,024", "2,048", "4,096", "8,192"]
    assert {"0.1", "10", "1,000"} <= set(shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.5, "−0.5"), (12_500, "12,500"), (2.5e6, "2.5M"), (3e9, "3G"), (1e-5, "1e-05")],
)
def test_ticks_are_short(value, text):
    assert plots.tick(value) == text


def test_names_stand_in_the_order_in_which_they_come_up_each_once():
    first = Series(name="", x=["b", "a"], y=[1, 2])
    second = Series(name="", x=["c", "a"], y=[1, 2])
    for kind in KINDS:
        assert texts(plot(first, second, kind=kind))[:3] == ["b", "a", "c"]


def test_bars_over_numbers_stand_apart_even_where_their_names_look_alike():
    figure = plot(Series(name="", x=[0.100001, 0.100002], y=[1, 2]), kind="bars")
    assert texts(figure)[:2] == ["0.1000", "0.1000"]


@pytest.mark.parametrize("kind", ["lines", "points"])
def test_ten_thousand_points_make_a_small_file_that_keeps_the_extremes(kind):
    y = np.random.default_rng(0).normal(size=10_000)
    y[5_000] = 50.0
    series = line(x=range(10_000), y=y.tolist(), low=(y - 1).tolist(), high=(y + 1).tolist())
    figure = plot(series, kind=kind)
    svg = plots.svg(figure)
    assert len(svg) < 300_000
    assert "of 10,000 points are drawn" in ElementTree.fromstring(svg)[1].text
    if kind == "lines":
        (path,) = marked(figure, "line")
        heights = vertices(path)[:, 1]
    else:
        heights = np.array([float(mark.get("y")) for mark in markers(figure)[1:]])
    others = np.partition(heights, 1)[1]
    assert heights.min() < 0.5 * others, "one point far above all others"


def test_a_heat_map_has_a_pixel_for_each_cell_and_a_scale():
    figure = Picture(title="p", x="key", y="query", rows=[[0.0, 0.5, 1.0], [None, 0.25, 1.0]])
    root = parsed(figure)
    images = list(root.iter(f"{SVG}image"))
    sizes = [(image.get("width"), image.get("height")) for image in images]
    assert sizes == [("3", "2"), ("1", "128")]
    assert all(image.get("href").startswith("data:image/png;base64,") for image in images)
    assert {"key", "query", "0", "1", "0.2"} <= set(texts(figure))


@pytest.mark.parametrize("value", [0.0, 5, -1e90, None])
def test_a_heat_map_of_one_value_can_be_drawn(value):
    assert ("no data" in texts(Picture(title="p", x="", y="", rows=[[value]]))) == (value is None)


def test_a_heat_map_with_both_signs_has_zero_in_the_middle():
    shown = texts(Picture(title="p", x="", y="", rows=[[-1.0, 3.0]]))
    assert {"−2", "0", "2"} <= set(shown)
