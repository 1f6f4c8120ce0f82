"""The page in a real browser: every view is driven, and any error in its console fails the test."""

import json
import re
import time
from pathlib import Path

import pytest
from page.conftest import LONG, WIDE
from reports.samples import report

from attnlab.reports.write import write
from attnlab.training import runs

VIEWS = {  # and what is there once a view has its data
    "claims/noisy-keys": ".plot .line",
    "attention": ".view:not(.waiting) .board",
    "runs": ".plot .line",
    "generate": "main select",
    "audit": "main select",
}
PHONE, TALL = (360, 740), (390, 844)


@pytest.mark.parametrize(
    ("size", "scheme"),
    [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (TALL, "dark")],
    ids=str,
)
def test_every_view_fits_the_screen_and_names_what_can_be_touched(tab, tmp_path, size, scheme):
    tab.page.emulate_media(color_scheme=scheme)
    tab.page.set_viewport_size({"width": size[0], "height": size[1]})
    for view, ready in VIEWS.items():
        page = tab.open(view)
        page.wait_for_selector(ready)
        assert tab.sideways() <= 0, view
        assert page.evaluate(NAMELESS) == [], view
        assert page.evaluate(OVERLAPPING) == [], view
        picture = page.screenshot(path=tmp_path / f"{view.partition('/')[0]}.png", full_page=True)
        assert len(picture) > 10_000


NAMELESS = """() => [...document.querySelectorAll("main :is(button, input, select, textarea, a)")]
  .filter((one) => !one.hidden && !one.labels?.length && !one.getAttribute("aria-label")
    && !one.textContent.trim())
  .map((one) => one.outerHTML)"""


OVERLAPPING = """() => [...document.querySelectorAll("main svg")].flatMap((plot) => {
  const boxes = [...plot.querySelectorAll("text")].map((one) => one.getBoundingClientRect());
  return boxes.filter((one, at) => boxes.slice(0, at).some((other) => one.left < other.right
    && other.left < one.right && one.top < other.bottom && other.top < one.bottom));
})"""


def test_the_first_view_is_there_and_how_soon_is_printed(tab):
    began = time.perf_counter()
    tab.open("claims/copy").wait_for_selector(".verdict .word")
    seconds = time.perf_counter() - began
    print(f"first view: {1000 * seconds:.0f} ms")


def test_turning_the_knob_breaks_a_claim_and_the_address_says_so(tab):
    page = tab.open("claims/copy")
    tab.wait("document.querySelector('.why').textContent.includes('Evidence')")
    assert "holds" in tab.text(".verdict .word")
    page.get_by_role("switch", name="Turn the knob").click()
    tab.wait("document.querySelector('.verdict').dataset.kind === 'bad'")
    assert "refuted" in tab.text(".verdict .word")
    assert page.get_by_label("lead", exact=True).is_disabled()
    assert page.url.endswith("#/claims/copy?knob=1")
    page.reload()
    tab.wait("document.querySelector('.verdict')?.dataset.kind === 'bad'")
    page.get_by_role("button", name="As it stands").click()
    tab.wait("document.querySelector('.verdict').dataset.kind === 'good'")
    assert page.url.endswith("#/claims/copy")


def test_a_slider_draws_the_claim_anew_and_how_soon_is_printed(tab):
    page = tab.open("claims/copy")
    page.wait_for_selector(".plot .line")
    before = page.locator(".plot .line").first.get_attribute("d")
    times = [page.evaluate(SLID, 80 - 10 * number) for number in range(5)]
    print(f"slider: {sorted(times)[2]:.0f} ms until drawn; {[round(one) for one in times]}")
    assert page.locator(".plot .line").first.get_attribute("d") != before
    lead = page.get_by_label("lead as a number").input_value()
    assert f"lead={lead}" in page.url


SLID = """(value) => new Promise((resolve) => {
  const slider = document.querySelector("[data-setting=lead] input[type=range]");
  const began = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    resolve(performance.now() - began);
  }).observe(document.querySelector(".plot"), {childList: true});
  slider.value = value;
  slider.dispatchEvent(new Event("input", {bubbles: true}));
})"""


def test_values_of_a_plot_and_cells_of_a_heat_map_are_read_with_arrow_keys(tab):
    page = tab.open("claims/noisy-keys")
    page.wait_for_selector(".plot .line")
    page.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    assert "noise ε" in tab.text(".readout")
    page.get_by_text("Numbers", exact=True).click()
    tab.wait("document.querySelectorAll('.numbers td').length > 10")
    page = tab.open("claims/window-mask")
    page.locator(".board").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert tab.text(".readout").startswith("row 1, column 0: 0.")


def test_the_list_of_claims_is_filtered_by_all_that_is_shown_and_by_course_question(tab):
    page = tab.open("claims")
    page.wait_for_selector("#claims li")
    box, question = page.get_by_label("Filter the claims"), page.get_by_label("Course question")
    for words, least in {"window": 3, "GQA": 2, "A4 1c": 1, "Bernoulli": 1, "αᵢ": 1}.items():
        box.fill(words)
        assert least <= page.locator("#claims li:visible").count() < 20, words
    box.fill("")
    question.select_option("A4 1(c)ii")
    assert page.locator("#claims li:visible").count() == 2
    page.locator("#claims li:visible a").first.click()
    page.wait_for_selector("text=its words")
    assert "question=A4" in page.url and page.locator("#claims li:visible").count() == 2
    page.reload()
    tab.wait("document.querySelectorAll('#claims li:not([hidden])').length === 2")
    page.get_by_role("link", name="A4 1(c)ii", exact=True).click()
    tab.wait("location.hash === '#/claims/one-head-swings?question=A4+1%28c%29ii'")
    question.select_option("A4 4(b)")
    assert page.locator("#claims li:visible").count() == 0
    assert "cannot be tested" in tab.text(".tools")


def test_a_claim_is_typeset_and_a_missing_one_is_said_to_be_missing(tab):
    page = tab.open("claims/rope-is-rotation")
    page.wait_for_selector(".formula mtable")
    assert tab.text(".detail .label") == "RoPE is rotation"
    assert page.locator(".formula math").first.bounding_box()["width"] > 90
    page = tab.open("claims/two-heads-steady")
    page.get_by_text("Why: the derivation").click()
    assert page.locator("details[open] code").inner_text() == "copy"
    page = tab.open("claims/copy")
    page.wait_for_selector(".legend sup")  # right behind what it is an exponent of
    loose = "one => one.getBoundingClientRect().left - Math.max(...[...one.parentNode.childNodes]"
    loose += """.filter((part) => part.nodeType === 3).map((part) => {
      const range = document.createRange(); range.selectNode(part);
      return range.getBoundingClientRect().right; }).filter((right) => right > 0))"""
    assert abs(page.locator(".legend sup").evaluate(loose)) < 1.5
    page = tab.open("claims/<b>coppy")
    page.wait_for_selector("text=There is no such claim")
    assert (
        "<b>coppy" in tab.text(".detail") and page.locator("#claims a[aria-current]").count() == 0
    )


def test_every_claim_that_trains_nothing_is_drawn(tab):
    page = tab.open("claims")
    page.wait_for_selector("#claims li a")
    for link in page.locator("#claims li a").all()[:26]:
        name = link.locator("strong").inner_text()
        link.click()
        tab.wait("document.querySelector('.detail .label').textContent === old", name)
        tab.wait("document.querySelector('.why').textContent.includes('Evidence')")
        assert page.locator(".bench :is(.plot path, .board)").count() > 0, name


def test_a_claim_that_trains_shows_what_is_recorded_and_says_that_sliders_cannot_run_it(tab):
    page = tab.open("claims/made-up-answers")
    tab.wait("document.querySelector('.why').textContent.includes('Evidence')")
    assert "a slider cannot run it again" in tab.text(".why")
    assert page.locator(".plot .line").count() > 0
    assert page.locator(".found table").first.locator("tbody tr").count() == 4
    page.get_by_role("switch", name="Turn the knob").click()
    tab.wait("document.querySelector('.verdict').dataset.kind === 'partly'")
    assert "cannot tell" in tab.text(".verdict .word")
    page.wait_for_selector("text=Recorded without the knob")
    assert page.locator(".plot .line").count() > 0
    assert page.locator(".found table").first.locator("tbody tr").count() == 4
    page.get_by_role("button", name="As it stands").click()
    page.wait_for_selector(".plot .line")
    page.get_by_label("steps as a number").fill("20")
    page.get_by_label("steps as a number").press("Enter")
    tab.wait("document.querySelector('.why').textContent.includes('With these settings')")
    assert page.locator(".plot, .found *").count() == 0


def test_what_was_trained_is_shown_until_the_settings_are_others(tab):
    """The training is played: what comes back is the answer of a claim that trains nothing."""
    asked, held = [], []

    def trained(route):
        asked.append(route.request.post_data_json)
        if asked[-1]["knob"]:
            held.append(route)
        else:
            route.fulfill(response=route.fetch(url=f"{tab.base}api/claims/copy", post_data="{}"))

    page = tab.page
    page.route("**/api/claims/made-up-answers", trained)
    tab.open("claims/made-up-answers?steps=20")
    train = page.get_by_role("button", name="Train it now")
    for _ in range(2):
        train.click()
        page.wait_for_selector(".plot .line")
        assert "Evidence" in tab.text(".why") and train.count() == 0
        page.get_by_role("switch", name="Turn the knob").click()
        assert "takes minutes" in tab.text(".why") and page.locator(".plot, .found *").count() == 0
        train.click()  # it is never answered, and nobody waits for it any more
        page.get_by_role("switch", name="Turn the knob").click()
        assert train.is_enabled()
    for one in held:
        one.abort()
    assert [one["knob"] for one in asked] == [False, True] * 2
    assert all(one["train"] and one["settings"] == {"steps": 20} for one in asked)


def test_a_report_opens_with_its_pictures_and_styles(tab, context, run_folders):
    title = "A sample: 1 < 2 & *more*"
    write(report(title), {}, run_folders / "study-sample")
    page = tab.open("runs")
    with context.expect_page() as opened:
        page.get_by_role("link", name=title).first.click()
    opened.value.close()
    page.goto(opened.value.url)  # again, where problems are heard
    assert page.title() == title and tab.sideways() <= 0
    pictures = page.locator("figure svg").all()
    assert len(pictures) == 4 and all(one.bounding_box()["width"] > 300 for one in pictures)
    font = "one => getComputedStyle(one).fontFamily"
    assert page.locator("h1").evaluate(font).startswith("system-ui")


NONSENSE = {  # what an address may say, and what it is taken for
    "generate?tokens=99999": "tokens=512",
    "generate?tokens=-3&temperature=1e9": "temperature=5&tokens=1",
    "generate?tokens=&temperature=hot&top_k=none&seed=1.5": "",
    "claims/copy?lead=1e9&keys=2.5&cases=none&seed=nan": "lead=40",
    "claims/sinusoid-unique?periods=a,b": "",
    "claims/dense-cost?path=nonsense": "",
    "toString": "",
    "attention?heads=-1&kv_heads=3&layer=99&head=-2&window=0&score=bad": "window=1&layer=1",
    "runs?select=nobody,nothing&range=9-1": None,
    "runs?range=abc": None,
    "audit?target=nobody&window=-4&scale=1e999&causal=maybe": "window=1",
}


@pytest.mark.parametrize("address", NONSENSE)
def test_an_address_that_makes_no_sense_is_brought_to_one_that_does(tab, address):
    page = tab.open(address)
    view = page.locator(".view").get_attribute("class").split()[1]
    ready = {"claims": ".verdict[data-kind=good] .why", "audit": "main select"}
    page.wait_for_selector(ready.get(view, VIEWS.get(view)))
    if view == "generate":
        page.get_by_label("Prompt").fill("The list")
        page.get_by_role("button", name="Write on").click()
        tab.wait("document.querySelector('[role=status].note').textContent.includes('per second')")
    if view == "audit":
        page.get_by_role("button", name="Audit it").click()
        page.wait_for_selector(".verdict", timeout=90_000)
    if view == "claims":
        tab.wait("document.querySelector('.why').textContent.includes('Evidence')")
    assert page.locator("#banner").is_hidden()
    said = re.sub(r"(run|prompt|target|causal)=[^&]*&?", "", page.url.partition("?")[2])
    assert NONSENSE[address] is None or said.rstrip("&") == NONSENSE[address]


def test_a_head_a_window_and_positions_change_the_maps_of_one_text(tab):
    page = tab.open("attention?text=one two one two")
    tab.wait(
        "document.querySelectorAll('.board').length === 2 && !document.querySelector('.waiting')"
    )

    def cells(number=0):
        return page.locator("canvas.cells").nth(number).evaluate("one => one.toDataURL()")

    first = cells()
    page.get_by_role("radio", name="Layer 0, head 2:").click()
    tab.wait(CHANGED, first)
    second = cells()
    page.get_by_label("window").fill("3")
    tab.wait(CHANGED, second)
    third = cells()
    page.get_by_label("positions").select_option("alibi")
    tab.wait(CHANGED, third)
    assert "head=2" in page.url and "window=3" in page.url and "positions=alibi" in page.url
    page.locator(".board").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tab.text(".readout") == "o 0 → n 1: may not attend to it"
    page.keyboard.press("ArrowDown")
    assert re.fullmatch(r"n 1 → n 1: 0\.\d+", tab.text(".readout"))
    assert page.locator(".shares li").count() > 3


CHANGED = "document.querySelector('canvas.cells').toDataURL() !== old"


def test_a_run_is_looked_into_and_spaces_are_made_visible(tab, run_folders):
    name = next(one.name for one in run_folders.iterdir() if "text0" in one.name)
    page = tab.open(f"attention?run={name}&text=The list")
    tab.wait("document.querySelectorAll('.strip-text span').length === 8")
    assert "␣" in page.locator(".over .token").all_text_contents()
    page.get_by_role("radio", name="a mechanism, untrained").check()
    tab.wait("document.querySelectorAll('.heads button').length === 8")


def test_what_somebody_types_is_never_markup(tab):
    page = tab.open("attention?text=" + "<b onclick=alert(1)>x</b>".replace("=", "%3D"))
    tab.wait("document.querySelector('.strip-text')?.textContent.includes('<b')")
    assert page.locator(".strip-text b").count() == 0


def test_two_runs_lie_over_each_other_and_only_what_differs_is_listed(tab):
    page = tab.open("runs")
    page.wait_for_selector("[data-run]")
    page.locator("[data-run]:checked").click()  # the newest is chosen for a beginning
    for name in ("text0", "text1"):
        page.locator(f"[data-run*={name}]").check()
    tab.wait("document.querySelectorAll('.legend > span').length === 2")
    tab.wait("document.body.innerText.includes('What differs')")
    page.wait_for_selector("text=optimiser.rate")
    assert page.locator("section[aria-label='Settings that differ'] tbody tr").count() == 1
    assert "select=" in page.url and "text0" in page.url and "text1" in page.url
    assert page.locator("section[aria-label=Samples] pre").count() == 2


def test_a_run_of_many_steps_is_drawn_and_looked_at_closely(tab):
    began = time.perf_counter()
    page = tab.open("runs?select=20260101-000000-long-000000")
    page.wait_for_selector(".plot .line[d^=M]")
    seconds = time.perf_counter() - began
    drawing = page.evaluate(REDRAWN)
    print(f"{LONG:,} steps: {1000 * seconds:.0f} ms from nothing, {drawing:.0f} ms a redraw")
    box = page.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 560, box["y"] + 100, steps=4)
    page.mouse.up()
    tab.wait("location.hash.includes('range=')")
    low, high = map(int, re.search(r"range=(\d+)-(\d+)", page.url).groups())
    assert 0 < low < high < LONG
    page.get_by_role("button", name="Later steps").click()
    assert int(re.search(r"range=(\d+)", page.url)[1]) > low
    page.get_by_role("button", name="Whole run").click()
    assert "range" not in page.url


REDRAWN = """() => {
  const box = [...document.querySelectorAll(".curves .tick")].at(0).querySelector("input");
  const began = performance.now();
  box.click();
  document.querySelector(".plot").getBoundingClientRect();
  return performance.now() - began;
}"""


def test_a_run_that_trains_is_followed(tab, run_folders):
    folder = next(one for one in run_folders.iterdir() if "text1" in one.name)
    run, row = runs.Run(folder), f"[data-run='{folder.name}']"
    old = run.log("metrics").read_bytes()
    with run.locked():
        page = tab.open(f"runs?select={folder.name}")
        page.wait_for_selector(".mark:has-text('running')")
        with run.log("metrics").open("ab") as log:
            log.write(json.dumps({"step": 77, "loss": 0.5}).encode() + b"\n")
        tab.wait("document.querySelector('.runs-list').innerText.includes('77 of 20')")
        assert page.locator(row).is_checked()
    run.log("metrics").write_bytes(old)


def test_a_module_is_audited_and_its_leak_shown(tab):
    page = tab.open("audit?target=example-leaky")
    page.get_by_role("button", name="Audit it").click()
    page.wait_for_selector(".verdict", timeout=90_000)
    assert "fail" in tab.text(".verdict .word")
    assert page.locator(".board").count() == 2
    assert "causality" in tab.text(".result h3")
    page.locator(".board").first.focus()
    page.keyboard.press("ArrowDown")
    assert tab.text(".readout").startswith("output 0, input 0: moves by")


CERTIFICATE = {
    "target": "mine.py:Attention",
    "verdict": "pass",
    "checks": [{"name": "causality", "verdict": "fail", "detail": "<i>output 0</i> moves"}],
    "contract": {"causal": True},
    "influence": [[1.0, 0.5], [0.25, 1.0]],
}


def test_a_certificate_is_dropped_and_its_verdict_is_that_of_its_checks(tab, tmp_path):
    page = tab.open("audit")
    page.wait_for_selector("form select")
    page.evaluate(DROPPED, json.dumps(CERTIFICATE))
    page.wait_for_selector(".verdict")
    assert "fail" in tab.text(".verdict .word")
    assert "<i>output 0</i> moves" in tab.text(".result table")
    path = tmp_path / "certificate.json"
    passing = {"checks": [{"name": "causality", "verdict": "pass", "detail": "it is"}]}
    path.write_text(
        json.dumps({**CERTIFICATE, **passing, "contract": {"window": 3}, "target": "another"})
    )
    page.get_by_label("A certificate, a JSON file").set_input_files(path)
    tab.wait("document.querySelector('.verdict .label').textContent === 'another'")
    assert "incomplete" in tab.text(".verdict .word")
    assert "declared and not established: window=3" in tab.text(".verdict .why")


DROPPED = """(text) => {
  const carried = new DataTransfer();
  carried.items.add(new File([text], "certificate.json", {type: "application/json"}));
  document.querySelector(".drop").dispatchEvent(
    new DragEvent("drop", {dataTransfer: carried, bubbles: true, cancelable: true}));
}"""


def test_what_the_server_refuses_is_said_in_a_line_that_can_be_closed(tab):
    page = tab.open("audit")
    page.wait_for_selector("form select")
    page.evaluate(DROPPED, "{}")
    page.wait_for_selector("#banner:not([hidden])")
    assert "checks" in tab.text("#banner")
    page.get_by_role("button", name="Close this message").click()
    assert page.locator("#banner").is_hidden()
    assert tab.problems.pop(0).startswith("400") and "400" in tab.problems.pop(0)


def test_a_lost_server_is_told_and_found_again(tab, context):
    page = tab.open("claims/copy")
    tab.wait("document.querySelector('.why')?.textContent.includes('Evidence')")
    try:
        context.set_offline(True)
        page.get_by_role("switch", name="Turn the knob").click()
        page.wait_for_selector("#banner[data-kind=lost]")
        assert "does not answer" in tab.text("#banner")
    finally:
        context.set_offline(False)
    page.wait_for_selector("#banner", state="hidden")
    tab.wait("document.querySelector('.verdict').dataset.kind === 'bad'")
    assert all("DISCONNECTED" in one for one in tab.problems)
    tab.problems.clear()


def test_the_keyboard_reaches_the_content_first_and_then_the_views(tab):
    page = tab.open("claims/copy")
    page.wait_for_selector("#claims li")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("nav a").nth(4).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".view.audit")
    assert page.locator("nav a[aria-current]").inner_text() == "Audit"
    page.go_back()
    page.wait_for_selector(".view.claims")


def test_scripts_make_no_markup_from_text_and_reach_for_nothing_elsewhere():
    folder = Path(runs.__file__).parents[1] / "page" / "static"
    for path in folder.iterdir():
        text = re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", path.read_text())
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), path.name
        assert path.suffix != ".html" or not re.search(r"<style|\sstyle=|\son\w+=|<script>", text)
