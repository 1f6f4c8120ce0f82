"""Reports on the page: the files beside one are served, to who has the cookie or its key alone."""

import os
from urllib.parse import quote

import httpx
import pytest
from page.odd_names import NAMES
from page.pages import client, serving

from attnlab.page import reports as module
from attnlab.page.guard import KEYED, Pass, Refused
from attnlab.page.reports import TYPES, Reports
from attnlab.page.routes import REPORT_POLICY

SECRET = b"do not show this"
BESIDE = {
    "tables/01-a.csv": "text/csv; charset=utf-8",
    "tables/01-a.tex": "application/x-tex",
    "pictures/01-b.svg": "image/svg+xml",
    "pictures/01-b.png": "image/png",
    "pictures/01-b.csv": "text/csv; charset=utf-8",
    "results.json": "application/json",
    "report.md": "text/markdown; charset=utf-8",
}


def make_report(root, name):
    folder = root / name
    for path in ("report.html", *BESIDE):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(f"{name} {path}".encode())
    return folder


@pytest.fixture
def folder(tmp_path):
    made = make_report(tmp_path / "runs", "study-one")
    make_report(tmp_path / "runs", "compare-two")
    (made / "runs" / "first").mkdir(parents=True)
    (made / "runs" / "first" / "config.json").write_text("{}")
    return made


@pytest.fixture
def server(folder):
    with serving(folder.parent) as running:
        yield running


@pytest.fixture
def stranger(server):
    """Without a cookie, as a click in a sandbox comes."""
    with httpx.Client(base_url=f"http://127.0.0.1:{server.known.port}", timeout=60) as opened:
        yield opened


def keyed(server, name):
    return f"/report/{name}/{server.known.report_key(name)}/"


@pytest.mark.parametrize("bare", ["/report/study-one", "/report/study-one/"])
def test_the_bare_address_leads_who_has_the_cookie_to_the_one_with_the_key(server, bare):
    with client(server) as opened:
        answer = opened.get(bare)
        assert answer.history[0].status_code == 303
        assert answer.url.path == keyed(server, "study-one")
        assert answer.text == "study-one report.html"
    assert httpx.get(f"http://127.0.0.1:{server.known.port}{bare}").status_code == 401


def test_a_key_of_a_page_that_was_closed_leads_to_the_new_one(server):
    with client(server) as opened:
        answer = opened.get("/report/study-one/0123abcd/")
        assert answer.url.path == keyed(server, "study-one") and answer.status_code == 200
        assert opened.get("/report/study-three/0123abcd/").status_code == 404


@pytest.mark.parametrize("path", BESIDE)
def test_the_files_beside_a_report_are_downloads_of_their_type_without_rights(
    server, stranger, path
):
    answer = stranger.get(keyed(server, "study-one") + path)
    assert answer.status_code == 200 and answer.text == f"study-one {path}"
    assert answer.headers["content-type"] == BESIDE[path]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == REPORT_POLICY
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    saved = path.rpartition("/")[2]
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{saved}"


def test_a_link_to_a_run_leads_on_to_the_view_of_it(server, stranger):
    answer = stranger.get(keyed(server, "study-one") + "runs/first/")
    assert 'content="0; url=/#/runs?select=study-one%2Ffirst"' in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "set-cookie" not in answer.headers
    assert stranger.get(keyed(server, "study-one") + "runs/second/").status_code == 404


def test_a_key_opens_its_own_report_and_nothing_else(server, stranger):
    key = server.known.report_key("study-one")
    assert stranger.get(f"/report/study-one/{key}/").status_code == 200
    closed = [
        f"/report/compare-two/{key}/",
        f"/report/compare-two/{key}/results.json",
        f"/report/study-one/{key[:-1]}/",
        f"/report/study-one/{key}",
        f"/report/study-one/{key.upper()}/",
        f"/report/study-one/{server.known.token}/",
        "/report/study-one//",
        f"/?token={key}",
        f"/?once={key}",
        "/api/runs",
    ]
    assert {path: stranger.get(path).status_code for path in closed} == dict.fromkeys(closed, 401)
    with_cookie = {"Cookie": f"{server.known.cookie}={key}"}
    assert stranger.get("/api/runs", headers=with_cookie).status_code == 401


def test_a_key_does_not_open_to_a_foreign_host_or_origin_or_for_anything_but_reading(
    server, stranger
):
    path = keyed(server, "study-one") + "results.json"
    for headers in ({"Host": "attacker.example"}, {"Origin": "null"}, {"Origin": "http://x"}):
        assert stranger.get(path, headers=headers).status_code == 403
    ours = {"Origin": f"http://127.0.0.1:{server.known.port}"}
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert stranger.request(method, path, headers=ours).status_code == 401
    assert stranger.head(path).status_code == 200


def test_keys_differ_by_report_and_by_page():
    known = [Pass(port=1, token=token) for token in ("a", "b")]
    names = [*NAMES.values(), "study-one", "study-one ", "report"]
    keys = {one.report_key(name) for one in known for name in names}
    assert len(keys) == 2 * len(names) and all(len(key) == 64 for key in keys)
    assert KEYED.fullmatch("/report/a/b/c/d")[2] == "b"


OTHER = [
    "report.html",
    "config.json",
    "runs/first/config.json",
    "tables",
    "tables/",
    "tables/x.html",
]
OTHER += ["tables/.hidden", "tables/../results.json", "tables/%2e%2e/results.json", "settings.json"]
OTHER += ["../compare-two/results.json", "..%2fcompare-two%2fresults.json", "%2fetc%2fpasswd"]
OTHER += ["lock", "pictures/01-a.csv", "tables/01-a.csv/", "tables//01-a.csv", "tables/%00.csv"]


@pytest.mark.parametrize("path", OTHER)
def test_nothing_else_in_the_folder_is_a_file_beside_the_report(folder, path):
    for name in ("config.json", "lock", "settings.json", "tables/x.html", "tables/.hidden"):
        (folder / name).write_bytes(SECRET)
    with pytest.raises(Refused) as refused:
        Reports(folder.parent, str).file("study-one", path)
    assert refused.value.status == 404


@pytest.mark.parametrize("path", BESIDE)
@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_plain_file_is_neither_served_nor_waited_for(folder, tmp_path, path, kind):
    (folder / path).unlink()
    (tmp_path / "secret").write_bytes(SECRET)
    if kind == "link":
        (folder / path).symlink_to(tmp_path / "secret")
    elif kind == "fifo":
        os.mkfifo(folder / path)
    else:
        (folder / path).mkdir()
    with pytest.raises(Refused, match="is not shown: it is a link, no plain file"):
        Reports(folder.parent, str).file("study-one", path)


@pytest.mark.parametrize("name", ["tables", "pictures"])
def test_a_folder_that_is_a_link_is_not_followed(folder, tmp_path, name):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    for path in BESIDE:
        if path.startswith(name):
            with pytest.raises(Refused, match="there is no file"):
                Reports(folder.parent, str).file("study-one", path)


def test_a_file_that_is_too_large_is_refused(folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_REPORT", 5)
    with pytest.raises(Refused, match="more than 5 bytes"):
        Reports(folder.parent, str).file("study-one", "results.json")


def test_files_of_odd_names_are_reached_and_saved_by_one_line(folder, server, stranger):
    for number, (raw, shown) in enumerate(NAMES.items()):
        (folder / "tables" / os.fsdecode(raw + b".csv")).write_text(str(number))
        answer = stranger.get(keyed(server, "study-one") + f"tables/{quote(shown)}.csv")
        assert answer.text == str(number)
        assert "\n" not in answer.headers["content-disposition"]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "x", "../study-one", "study-one/..", "\x00"])
def test_a_report_is_looked_up_and_never_a_path(folder, name):
    known = Reports(folder.parent, str)
    for look in (known.report, known.address, lambda one: known.file(one, "results.json")):
        with pytest.raises(Refused) as refused:
            look(name)
        assert refused.value.status == 404


def test_every_kind_of_file_that_reports_write_has_a_type():
    from attnlab.reports.downloads import KINDS

    assert {*KINDS, ".json", ".md"} == set(TYPES)
