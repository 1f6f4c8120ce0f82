"""Fewer points, and none of those that matter is missing."""

import numpy as np
import pytest
from reports.samples import line, plot

from attnlab.reports.thin import MOST_IN_CLOUDS, MOST_IN_LINES, thin


def noise(count, seed=0):
    return np.random.default_rng(seed).normal(size=count).cumsum()


def drawn(figure):
    return thin(figure, [np.array(series.x, dtype=float) for series in figure.series])


def long_line(count=10_000, **changes):
    y = noise(count)
    y[1234], y[4321] = 1e4, -1e4
    low, high = y - 1, y + 1
    low[777], high[888] = -2e4, 2e4
    values = {"x": range(count), "y": y.tolist(), "low": low.tolist(), "high": high.tolist()}
    return line(**{**values, **changes})


def test_few_points_stay_as_they_are():
    figure = plot(line(), line("empty", x=[], y=[]))
    assert [points.x.tolist() for points in drawn(figure)] == [[0, 1, 2, 3], []]


@pytest.mark.parametrize("kind", ["lines", "points"])
def test_many_points_keep_their_extremes_and_stay_what_they_were(kind):
    series = long_line()
    (points,) = drawn(plot(series, kind=kind))
    most = MOST_IN_LINES if kind == "lines" else MOST_IN_CLOUDS
    assert 100 < len(points.x) <= most + 8
    assert {0, 9_999, 1234, 4321, 777, 888} <= set(points.x.tolist())
    assert (np.diff(points.x) > 0).all(), "in the order given"
    for column in ("y", "low", "high"):
        whole = np.array(getattr(series, column))
        assert (getattr(points, column) == whole[points.x.astype(int)]).all()


def test_the_extremes_of_every_stretch_are_there_not_only_those_of_all():
    """Else a line would look smoother than it is."""
    y = np.where(np.arange(20_000) % 50 == 37, 1.0, 0.0)
    (points,) = drawn(plot(line(x=range(20_000), y=y.tolist())))
    seen, width = points.x[points.y == 1], 20_000 / (MOST_IN_LINES / 8)
    assert np.diff(seen).max() <= 2 * width


def test_a_gap_stays_a_gap():
    y = noise(10_000).tolist()
    y[5_007:5_010] = [None] * 3  # within a stretch
    (points,) = drawn(plot(line(x=range(10_000), y=y)))
    assert np.isnan(points.y).any() and set(points.x[np.isnan(points.y)]) <= {5007, 5008, 5009}


def test_a_cloud_is_thinned_where_it_is_dense_and_kept_where_it_is_not():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 10_000))
    x[:8] = y[:8] = np.arange(10, 18)  # far outside, each in a place of its own
    (points,) = drawn(plot(line(x=x.tolist(), y=y.tolist()), kind="points"))
    assert len(points.x) <= MOST_IN_CLOUDS + 8
    assert set(range(10, 18)) <= set(points.x.tolist())


@pytest.mark.parametrize("kind", ["lines", "points"])
def test_the_limit_is_for_all_series_together(kind):
    short = line("short", x=[1, 2, 3], y=[1, 2, 3])
    many = (line(x=range(600), y=noise(600, seed).tolist()) for seed in range(10))
    figure = plot(*many, short, kind=kind)
    counts = [len(points.x) for points in drawn(figure)]
    assert sum(counts) <= 1.1 * (MOST_IN_LINES if kind == "lines" else MOST_IN_CLOUDS)
    assert counts[-1] == 3, "a short one beside long ones keeps its points"


def test_a_cloud_on_log_axes_is_thinned_as_it_is_seen():
    x = np.logspace(0, 6, 9_000)
    figure = plot(line(x=x.tolist(), y=x.tolist()), kind="points", log_x=True, log_y=True)
    (points,) = drawn(figure)
    assert np.median(points.x) == pytest.approx(1_000, rel=0.1), "evenly over the decades"


def test_a_cloud_without_extent_or_numbers_is_thinned_too():
    same = line("same", x=[1.0] * 5_000, y=[2.0] * 5_000)
    none = line("none", x=range(5_000), y=[None] * 5_000)
    first, second = drawn(plot(same, none, kind="points"))
    assert len(first.x) >= 1 and not len(second.x)
