"""The bench of clusters: other results than those of local processes are found, and said."""

from contextlib import contextmanager

import pytest

from attnlab.bench.cluster import ClusterBench, lines
from attnlab.cluster import Cluster
from attnlab.config import ConfigError, override

pytest.importorskip("ray")


@pytest.fixture
def started(monkeypatch):
    """Clusters that are not: work is done here, and each says how many workers it would have."""
    found = []

    @contextmanager
    def connected(self, processors=None, **options):
        found.append(processors)
        yield

    monkeypatch.setattr(Cluster, "connected", connected)
    return found


def measured(monkeypatch, *words):
    given = override(ClusterBench(), ["parts=prepare", "bytes=3KB", "workers=1,2", *words])
    here = ClusterBench._prepare
    monkeypatch.setattr(
        ClusterBench, "_prepare", lambda self, place, cluster: here(self, place, None)
    )
    return given, given.run()


def test_the_same_bytes_pass(started, monkeypatch):
    bench, report = measured(monkeypatch)
    assert bench.passed(report) and started == [1, 2]
    assert [one["same"] for one in report["parts"]["prepare"]["on_ray"].values()] == [True] * 2
    said = lines(report)
    assert said[0].startswith(f"{report['cores']} cores; load") and len(said) == 5
    assert said[3].endswith("1.00 times as fast as the first; the same results")


def test_other_bytes_do_not(started, monkeypatch):
    monkeypatch.setattr(ClusterBench, "_prepare", lambda self, place, cluster: place.name)
    bench = ClusterBench(parts=("prepare",), workers=(1,), bytes="3KB")
    report = bench.run()
    assert not bench.passed(report) and "OTHER RESULTS" in lines(report)[-1]


def test_a_size_that_is_none_is_one_line():
    with pytest.raises(ConfigError, match="bytes is 'much'; a size is"):
        override(ClusterBench(), ["bytes=much"])
