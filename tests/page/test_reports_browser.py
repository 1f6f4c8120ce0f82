"""In a real browser: the links of a report work from its sandbox, and give a stranger nothing; a
certificate fits a telephone."""

import dataclasses

import pytest
from page.conftest import PATIENCE
from page.pages import serving
from reports.samples import report

from attnlab.audit import certificate
from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.page import routes
from attnlab.reports.write import write
from attnlab.training import runs

HOSTILE = """<!doctype html><title>before</title><p id="here">shown</p>
<meta name="referrer" content="unsafe-url">
<meta http-equiv="refresh" content="0; url=results.json">
<a id="other" href="/report/study-sample/results.json">a</a>
<a id="api" href="/api/runs">a</a>
<a id="page" href="/#/generate">a</a>
<a id="up" href="../../study-sample">a</a>
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "study-sample"
    write(dataclasses.replace(report("A sample"), runs=["runs/first"]), {"a": 1}, made)
    run = made / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.json").write_text('{"steps": 3}')
    (run / "metrics.jsonl").write_bytes(runs.line({"step": 3, "loss": 1.5}) + b"damage\n")
    return made


@pytest.fixture
def server(folder):
    with serving(folder.parent) as running:
        yield running


@pytest.fixture
def page(browser, server):
    with browser.new_context() as context:
        opened = context.new_page()
        opened.set_default_timeout(PATIENCE)
        opened.goto(server.known.address)
        yield opened


def address(server, path):
    return f"http://127.0.0.1:{server.known.port}{path}"


def test_a_click_downloads_every_file_beside_a_report(server, folder, page):
    page.goto(address(server, "/report/study-sample"))
    links = page.locator(".files a").all()
    assert {link.inner_text() for link in links} > {"CSV", "LaTeX", "SVG", "PNG"}
    for link in links:
        with page.expect_download() as started:
            link.click()
        beside = folder / link.get_attribute("href")
        assert started.value.failure() is None
        assert started.value.suggested_filename == beside.name
        assert started.value.path().read_bytes() == beside.read_bytes()


def test_without_the_right_to_download_a_click_does_nothing(server, page, monkeypatch):
    """The control: it is this one right of the sandbox that lets a click through."""
    closed = routes.REPORT_POLICY.replace("sandbox allow-downloads", "sandbox")
    headers = {**routes.REPORT_HEADERS, "content-security-policy": closed}
    monkeypatch.setattr(routes, "REPORT_HEADERS", headers)
    started, refused = [], []
    page.on("download", lambda one: started.append(one))
    page.on("console", lambda message: refused.append(message.text))
    page.goto(address(server, "/report/study-sample"))
    page.locator(".files a").first.click()
    page.wait_for_function("document.title === 'A sample'")
    while not refused:
        page.wait_for_timeout(50)
    assert not started and "Download is disallowed" in refused[0]


def test_a_link_to_a_run_shows_it_and_says_what_is_damaged(server, page):
    page.goto(address(server, "/report/study-sample"))
    page.locator("summary", has_text="Runs (1)").click()
    page.locator(".runs a").click()
    page.wait_for_selector(".run-name")
    assert page.url == address(server, "/#/runs?select=study-sample%2Ffirst")
    page.wait_for_selector("text=metrics.jsonl: 1 line is damaged and left out")


def test_links_of_a_hostile_report_open_nothing_but_its_own_files(server, folder, page):
    """A click in it comes as from any other site: without the cookie."""
    hostile = folder.parent / "study-hostile"
    hostile.mkdir()
    (hostile / "report.html").write_text(HOSTILE)
    (hostile / "results.json").write_text("{}")
    started = []
    page.on("download", lambda one: started.append(one))
    for link in ("other", "api", "page", "up"):
        page.goto(address(server, "/report/study-hostile"))
        assert page.title() == "before" and page.locator("#here").inner_text() == "shown"
        with page.expect_navigation() as got:
            page.locator(f"#{link}").click()
        assert got.value.status == 401, link
    assert not started  # nothing happened that nobody clicked


def test_a_certificate_is_read_on_a_narrow_screen_without_moving_it_sideways(browser, tmp_path):
    """Long names are broken into lines."""
    word = "aVeryLongNameOfAModule" * 5
    detail = f"output 0 moves by 0.5 when input 1 of {word} changes"
    findings = tuple(
        Finding(name=name, verdict="fail", detail=detail, measured=False, declared=True)
        for name in ("causality", "left padding")
    )
    moved = tuple((1.0,) * 17 for _ in range(17))
    made = Certificate(
        target=word, contract=Contract(causal=True), findings=findings, influence=moved, layers=1
    )
    path = tmp_path / "certificate.html"
    path.write_text(certificate.page(made, [], f"attnlab audit {word}.py:{word} width=8"))
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        opened = context.new_page()
        opened.goto(path.as_uri())
        assert opened.locator("svg").count() == 2
        assert opened.evaluate("document.documentElement.scrollWidth") == 390
