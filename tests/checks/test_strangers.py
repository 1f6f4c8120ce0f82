"""What strangers try on the page: nothing is found there, and each control is."""

import pytest

from attnlab.checks import strangers
from attnlab.page.server import Server, ServerSettings

FAMILIES = {"idle_connections", "one_time_tokens", "report_keys", "sandbox"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("strangers")
    strangers.make_reports(made)
    return made


def test_no_family_finds_anything_on_the_page(root):
    assert strangers.try_all(root) == {name: [] for name in FAMILIES}


def test_every_family_finds_a_page_without_its_protection(root):
    found = strangers.try_controls(root)
    assert set(found) == FAMILIES
    kept = 4 * strangers.ROOM
    assert found["idle_connections"] == [
        f"{kept} connections {kind} are kept open, {strangers.ROOM} have room"
        for kind in strangers.IDLE
    ]
    assert found["one_time_tokens"] == [
        f"visit {visit} with a one-time token gets 200, not 401" for visit in (9, 10)
    ]
    opened = [line for line in found["report_keys"] if "gets 200" in line]
    assert len(opened) == 0 and len(found["report_keys"]) == len(strangers.BESIDE) + 4
    assert len(found["sandbox"]) == 2 * len(strangers.BESIDE) - 1


def test_a_page_that_does_not_answer_is_found(root, monkeypatch):
    """It is not waited for for ever, and is no success."""
    monkeypatch.setattr(strangers, "PATIENCE", 0.05)
    bound = Server(ServerSettings(root=root, port=0))  # it listens, and does not run
    try:
        asked = strangers.request(bound, "GET", "/")
        assert strangers.ask(bound, asked) == strangers.NO_ANSWER >= 500
    finally:
        bound.page.close()
        bound.socket.close()
