"""The routes: what each gives, and that nothing in a request is part of a path."""

import json
import threading
import time

import pytest
from page.pages import client, folder, name_of, post, serving

from attnlab.checks import fuzz
from attnlab.page.routes import ROUTES, STATIC, parse_json


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def opened(server):
    with client(server) as one:
        yield one


def test_the_table_names_each_route_once():
    assert len({(one.method, one.path) for one in ROUTES}) == len(ROUTES)
    assert {one.method for one in ROUTES} == {"GET", "POST"}


def test_the_page_and_its_files_come_with_their_kinds(opened):
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    assert opened.get("/").headers["content-type"].startswith("text/html")
    names = [path.name for path in STATIC.iterdir() if path.suffix in kinds]
    assert "index.html" in names
    for path in (path for path in STATIC.iterdir() if path.suffix in kinds):
        answer = opened.get(f"/static/{path.name}")
        assert answer.status_code == 200, path.name
        assert answer.headers["content-type"].startswith(kinds[path.suffix])


@pytest.mark.parametrize(
    "path",
    [
        "/static/../routes.py",
        "/static/..%2froutes.py",
        "/static/%2e%2e/%2e%2e/pyproject.toml",
        "/static/.",
        "/static/",
        "/static//etc/passwd",
        "/report/..",
        "/report/%2e%2e%2fetc",
        "/api/runs/..",
        "/api/runs/.",
        "/api/runs/%2fetc",
        "/api/runs/../curve",
        "/api/runs//curve",
        "/nothing",
    ],
)
def test_what_is_not_in_a_list_is_not_there(server, path):
    assert fuzz.ask(server, fuzz.request(server, "GET", path)) == 404


def test_what_is_not_there_is_one_line(opened):
    for path in ("/nothing", "/api/runs/x", "/static/x", "/report/x", "/api/runs/x/curve"):
        answer = opened.get(path)
        assert answer.status_code == 404 and set(answer.json()) == {"error"}


def test_about_names_what_can_be_chosen(opened):
    found = opened.get("/api/about").json()
    assert found["views"] == ["claims", "attention", "runs", "generate", "audit"]
    offered = {one["name"] for one in found["mechanisms"]["score"]}
    assert found["mechanisms"]["defaults"]["score"] in offered


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not an object"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
    ],
)
def test_a_body_that_is_no_object_of_json_is_refused_with_a_reason(opened, body, reason):
    kind = {"Content-Type": "application/json"}
    answer = opened.post("/api/look", content=body, headers=kind)
    assert answer.status_code == 400 and reason in answer.json()["error"]


def test_whole_surrogate_pairs_are_letters():
    assert parse_json(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize("query", ["after=x", "points=0", "points=4001", "after=1e3", "points="])
def test_numbers_in_a_query_are_whole_and_bounded(opened, query):
    name = opened.get("/api/runs").json()[0]["name"]
    assert opened.get(f"/api/runs/{name}/curve?{query}").status_code == 400


def test_a_full_queue_is_429_and_soon_there_is_room_again(server, opened):
    gate = threading.Event()
    answers = []

    def ask():
        with client(server) as one:
            answers.append(post(one, "/api/claims/copy", settings={"lead": 1.0}))

    server.page.claims._answers.clear()
    original = server.page.claims.answer
    server.page.claims.answer = lambda question: (gate.wait(200), original(question))[1]
    try:
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 100
        while len(answers) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.set()
        for thread in threads:
            thread.join(100)
    finally:
        server.page.claims.answer = original
    statuses = [status for status, _ in answers]
    assert statuses.count(429) == 4 and statuses.count(200) == 8
    assert all("try again" in body["error"] for status, body in answers if status == 429)
    assert post(opened, "/api/claims/copy")[0] == 200


def test_a_report_is_served_with_a_policy_of_its_own(opened):
    made = folder() / "study-test-abc123"
    made.mkdir(exist_ok=True)
    (made / "report.html").write_text("<!doctype html><title>Report</title>")
    (made / "report.md").write_text("# A \\*title\\*\n\nIs it so?\n\n> **It is.**\n\n## More\n")
    listed = opened.get("/api/reports").json()
    assert listed == [
        {
            "id": "study-test-abc123",
            "kind": "study",
            "title": "A *title*",
            "question": "Is it so?",
            "answer": "It is.",
        }
    ]
    answer = opened.get("/report/study-test-abc123")
    assert "<title>Report" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "script-src" not in policy and "default-src 'none'" in policy
    assert policy.split("; ")[0] == "sandbox allow-downloads"
    assert answer.headers["cross-origin-opener-policy"] == "unsafe-none"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert opened.get(f"/report/{name_of('people')}").status_code == 404


def test_what_goes_wrong_on_our_side_is_a_line_and_is_logged(server, opened, monkeypatch, caplog):
    monkeypatch.setattr(server.page.reports, "list_all", lambda: 1 / 0)
    answer = opened.get("/api/reports")
    assert answer.status_code == 500 and "terminal" in answer.json()["error"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("kind", [ValueError, OSError, KeyError])
def test_an_error_of_ours_in_an_audit_is_ours(opened, monkeypatch, caplog, kind):
    def broken(*given):
        raise kind("ours")

    monkeypatch.setattr("attnlab.audit.subject.caches.find_decoder", broken)
    asked = {"target": "multi-head-scaled-dot", "declare": {"causal": True}}
    answer = opened.post("/api/audit", json=asked)
    assert answer.status_code == 500 and "terminal" in answer.json()["error"]
    assert f"{kind.__name__}: " in caplog.text


def test_a_declaration_that_cannot_be_kept_is_the_persons(opened):
    asked = {"target": "multi-head-scaled-dot", "declare": {"layout": "bhtd"}}
    answer = opened.post("/api/audit", json=asked)
    assert answer.status_code == 400 and "takes btc or tbc" in answer.json()["error"]


def test_the_traceback_of_every_refusal_can_be_logged(server, opened, monkeypatch, caplog):
    def broken():
        raise ValueError("who knows")

    monkeypatch.setattr(server.page.reports, "list_all", broken)
    with caplog.at_level("DEBUG", logger="attnlab.page"):
        assert opened.get("/api/reports").status_code == 400
    assert "ValueError: who knows" in caplog.text and "Traceback" in caplog.text


def test_answers_are_json_that_every_reader_takes(opened):
    for path in ("/api/about", "/api/claims", "/api/runs", "/api/audit/targets"):
        text = opened.get(path).text
        json.loads(text, parse_constant=pytest.fail)
