"""The fuzz check: two thousand broken requests, and controls that it finds."""

import random

import pytest

from attnlab.checks import fuzz
from attnlab.checks.fuzz import FuzzCheck
from attnlab.page.server import Server, ServerSettings


def test_two_thousand_broken_requests_break_nothing_and_the_controls_are_found():
    report = FuzzCheck(requests=2000).run(lambda text: None)
    assert report["passed"], report
    assert report["server_errors"] == 0 and report["open_doors"] == []
    for name in ("idle_connections", "one_time_tokens", "report_keys", "sandbox"):
        assert report[name] == [] and report[f"control_{name}_found"]
    assert sum(report["by_status"].values()) == 2000
    # broken in enough ways, and not so much that nothing gets through
    assert {"200", "400", "401", "403", "404", "405"} <= set(report["by_status"])


def test_a_page_that_hangs_up_on_slow_clients_is_judged_by_one_that_waits(monkeypatch):
    """On a loaded machine a right request may come too late for the short patience."""
    patience = []

    class Noted(Server):
        def __init__(self, settings, *more):
            patience.append(settings.slowest)
            super().__init__(settings, *more)

    def doors(server, names):
        assert server.settings.slowest == fuzz.PATIENCE
        return open_doors(server, names)

    open_doors = fuzz.open_doors
    monkeypatch.setattr(fuzz, "Server", Noted)
    monkeypatch.setattr(fuzz, "open_doors", doors)
    monkeypatch.setattr(fuzz, "SLOWEST", 1e-6)  # hardly anybody is in time
    monkeypatch.setattr(fuzz, "TRIES", 1)
    report = FuzzCheck(requests=3).run(lambda text: None)
    assert patience == [1e-6, fuzz.PATIENCE, fuzz.PATIENCE]
    every = 3 * len(fuzz.ROUTES)
    assert (
        report["open_doors"] == [] and report["control_open_doors_found"] == f"{every} of {every}"
    )


def test_a_request_is_a_function_of_its_number(tmp_path):
    with Server(ServerSettings(root=tmp_path, port=0, warm=False)).running() as server:

        def made(number):
            return fuzz.broken_request(server, ["run"], random.Random(number))

        assert [made(n) for n in range(50)] == [made(n) for n in range(50)]
        assert len({made(n) for n in range(200)}) > 150


def test_nothing_to_do_is_refused():
    with pytest.raises(ValueError, match="requests is 0"):
        FuzzCheck(requests=0)
