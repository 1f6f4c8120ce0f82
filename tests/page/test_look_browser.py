"""Looking and taking along, in a real browser: heads to choose from, links, figures, numbers."""

import csv
import io
import xml.etree.ElementTree as Tree

import pytest

TEXT = "the cat sat on the mat, and then it ran"
SEEN = "!document.querySelector('.waiting') && document.querySelectorAll('.heads button').length"


@pytest.fixture
def names(run_folders):
    """Runs by a part of their names."""
    return lambda part: next(one.name for one in run_folders.iterdir() if part in one.name)


def chosen(page):
    return page.locator(".heads [aria-checked=true]").get_attribute("data-head")


def test_a_head_is_chosen_from_all_and_layers_are_stepped_through_by_keyboard(tab):
    page = tab.open(f"attention?text={TEXT}&depth=3")
    tab.wait(f"{SEEN} === 12")
    assert page.locator(".heads button[tabindex='0']").count() == 1
    page.locator(".heads [aria-checked=true]").focus()
    for key, head in {
        "ArrowRight": "0-1",
        "ArrowDown": "1-1",
        "End": "1-3",
        "PageDown": "2-3",
    }.items():
        page.keyboard.press(key)
        tab.wait("document.querySelector('.which').textContent === old", head_name(head))
        assert chosen(page) == head
        assert page.evaluate("document.activeElement.dataset.head") == head
    page.locator(".large .board").focus()
    for key, head in {"PageUp": "1-3", "[": "1-2", "]": "1-3"}.items():
        page.keyboard.press(key)
        tab.wait("document.querySelector('.which').textContent === old", head_name(head))
    page.get_by_role("button", name="next layer").click()
    tab.wait("document.querySelector('.which').textContent === 'Layer 2, head 3'")
    assert page.get_by_role("button", name="next layer").is_disabled()
    assert "layer=2&head=3" in page.url
    page.reload()
    tab.wait(f"{SEEN} === 12 && document.querySelector('.which').textContent === 'Layer 2, head 3'")
    tab.wait("/clear/.test(document.querySelector('.does-box').textContent)")
    page.get_by_text("How this is measured").click()
    assert page.locator(".how tbody tr").count() == 5
    assert "mean attention weight" in tab.text(".how .note")
    labels = page.locator(".large .over .token").all_text_contents()
    assert labels == [("␣" if letter == " " else letter) for letter in 2 * TEXT]
    for width in (390, 1400):
        page.set_viewport_size({"width": width, "height": 844})
        page.get_by_label("name every token").set_checked(width == 390)
        assert tab.sideways() <= 0


def head_name(head):
    layer, number = head.split("-")
    return f"Layer {layer}, head {number}"


def test_a_head_that_is_clear_says_so_in_words(tab):
    """The scores are played; how they are measured is tested elsewhere."""
    page = tab.page

    def named(route):
        found = route.fetch()
        answer = found.json()
        first = answer["pictures"][0]
        first["does"] = "previous token"
        first["scores"][0] |= {"clear": True, "weight": 0.83, "even": 0.09, "reason": ""}
        route.fulfill(response=found, json=answer)

    page.route("**/api/look/heads", named)
    tab.open("attention")
    tab.wait(f"{SEEN} === 8")
    assert page.get_by_role("radio", name="Layer 0, head 0: previous token, 83 %").count() == 1
    words = "Previous token: 83 % of its attention is on the token before the query"
    tab.wait("document.querySelector('.does-words').textContent.startsWith(old)", words)


def test_what_cannot_be_shown_is_said_in_words(tab, names):
    told = "document.querySelector('.told').textContent.includes(old)"
    page = tab.open("attention?window=0&positions=alibi")
    tab.wait(told, "A window of 0 would hide every key")
    page.get_by_label("window").fill("0")
    tab.wait("document.querySelector('.refused:not(:empty)').textContent.includes('1 or more')")
    page.get_by_label("window").fill("4")
    tab.wait(
        "!document.querySelector('.refused:not(:empty)') && location.hash.includes('window=4')"
    )
    tab.wait("document.querySelector('.told').textContent === ''")
    page.get_by_label("Text", exact=True).fill("")
    tab.wait(told, "The text is empty")
    assert page.locator(".seen").is_hidden()
    page.get_by_label("Text", exact=True).fill("0123456789" * 300)
    tab.wait(told, "The text has 3,000 tokens; shown are the first 256.")
    page.wait_for_selector(".seen .strip-text")

    page = tab.open("attention?run=nobody")
    tab.wait(told, "There is no run nobody here")
    assert page.url.endswith("run=nobody") and page.locator(".seen").is_hidden()
    page.get_by_label("Run", exact=True).select_option(names("text0"))
    tab.wait(told, "is unknown")  # the letter is none of the text that it was trained on
    assert tab.problems.pop(0).startswith("400") and "400" in tab.problems.pop(0)
    page.get_by_label("Text", exact=True).fill("The list")
    tab.wait(f"{SEEN} === 4 && !document.querySelector('.nothing')")

    page.route(
        "**/api/look",
        lambda route: route.fulfill(json={**route.fetch().json(), **WITHOUT_ATTENTION}),
    )
    page.get_by_label("Text", exact=True).fill("The items")
    tab.wait(told, "no attention")
    assert page.locator(".all-heads, .large .board").locator("visible=true").count() == 0
    assert page.locator(".beside .board").is_visible() and tab.text(".strip-text") == "The items"

    page = tab.open("generate?run=nobody&prompt=The")
    page.wait_for_selector("text=There is no run nobody here")
    assert page.get_by_role("button", name="Write on").is_disabled()


WITHOUT_ATTENTION = {
    "layers": 0,
    "heads": 0,
    "weights": None,
    "mask": None,
    "absent": "This model has no attention.",
}


def saved(page, bar, kind):
    """What a button of an export bar downloads."""
    with page.expect_download() as download:
        bar.get_by_role("button", name=f"as {kind}").click()
    assert download.value.suggested_filename.startswith("attnlab-")
    return download.value.path().read_bytes()


def rows_of(content):
    return list(csv.reader(io.StringIO(content.decode())))


def link_of(page, bar):
    bar.get_by_role("button", name="Copy link").click()
    bar.get_by_text("Link copied.").wait_for()
    return page.evaluate("navigator.clipboard.readText()")


def svg_texts(content):
    root = Tree.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and b"class=" not in content
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]


def png_size(content):
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def test_a_map_is_taken_along_as_link_figure_and_numbers(tab, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.open("attention?text==1%2B1, two&layer=1&head=2&window=4")
    tab.wait(f"{SEEN} === 8")
    bar = page.locator(".large .export")
    rows = rows_of(saved(page, bar, "CSV"))
    assert len(rows) == 10 and all(len(row) == 10 for row in rows)
    assert rows[0][1:4] == ["0 =", "1 1", "2 +"] and rows[1][1:3] == ["1", ""]
    shown = [[float(cell or 0) for cell in row[1:]] for row in rows[1:]]
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in shown)
    assert [sum(cell != "" for cell in row[1:]) for row in rows[1:]] == [1, 2, 3] + [4] * 6
    figure = saved(page, bar, "SVG")
    texts = svg_texts(figure)
    assert texts[0] == "Attention, layer 1, head 2" and [*texts].count("=") == 2
    width, height = png_size(saved(page, bar, "PNG"))
    assert width == 2 * int(Tree.fromstring(figure).get("width")) and height > 800
    link = link_of(page, bar)
    assert link.startswith(tab.base) and "token" not in link
    page.goto("about:blank")
    page.goto(link)
    tab.wait(f"{SEEN} === 8 && document.querySelector('.which').textContent === 'Layer 1, head 2'")
    again = rows_of(saved(page, page.locator(".large .export"), "CSV"))
    assert again == rows
    heads = rows_of(saved(page, page.locator(".all-heads .export"), "CSV"))
    assert len(heads) == 1 + 8 * 5 and heads[0][3:5] == ["pattern", "score"]
    assert "layer 1" in svg_texts(saved(page, page.locator(".all-heads .export"), "SVG"))


def test_numbers_are_whole_and_text_is_harmless_in_a_spreadsheet(tab):
    page = tab.open("generate")
    cells = ["=1+1", "@x", "-2.5", 'say "x", y', None, True, "a;=b", 1e-7, 0.1 + 0.2, "two\nlines"]
    written = page.evaluate(CSV, cells)
    assert [row[0] for row in rows_of(written.encode())[1:]] == [
        *("'=1+1", "'@x", "-2.5", 'say "x", y', "", "yes", "a;'=b", "1e-7", "0.30000000000000004"),
        "two\nlines",
    ]


CSV = """async (cells) => (await import("/static/export.js")).csv(
  {columns: ["it", "more"], rows: cells.map((one) => [one, 1])})"""


def test_curves_a_claim_a_text_and_an_audit_are_taken_along(tab, context, names):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = tab.open(f"runs?select={names('text0')}")
    page.wait_for_selector(".plot .line[d^=M]")
    bar = page.locator(".curves .export")
    rows = rows_of(saved(page, bar, "CSV"))
    assert rows[0][:3] == ["series", "step", "loss (lines: training, points: validation)"]
    assert {row[0] for row in rows[1:]} == {names("text0"), "validation"}
    assert names("text0") in link_of(page, bar)
    assert "Loss by step" in svg_texts(saved(page, bar, "SVG"))

    page = tab.open("claims/noisy-keys")
    page.wait_for_selector(".plot .line")
    bar = page.locator(".bench .export")
    assert "How far the weight of va scatters" in svg_texts(saved(page, bar, "SVG"))
    assert png_size(saved(page, bar, "PNG"))[0] > 600
    assert link_of(page, bar).endswith("#/claims/noisy-keys")

    page = tab.open(f"generate?run={names('text0')}&temperature=0.5&seed=3&tokens=30")
    page.get_by_label("Prompt").fill("The list")
    page.get_by_role("button", name="Write on").click()
    tab.wait(WRITTEN)
    text = tab.text(".output")
    bar = page.locator(".bench > div > .export")
    with page.expect_download() as download:
        bar.get_by_role("button", name="Text").click()
    assert download.value.path().read_text() == text
    [heads, row] = rows_of(saved(page, bar, "CSV"))
    found = dict(zip(heads, row, strict=True))
    assert (found["prompt"], found["seed"], found["temperature"]) == ("The list", "3", "0.5")
    assert found["text"].removeprefix("'") == text.removeprefix("The list")
    link = link_of(page, bar)
    page.goto("about:blank")
    page.goto(link)
    tab.wait(WRITTEN)
    assert tab.text(".output") == text and "again" not in page.url

    page = tab.open("audit?target=example-leaky&again=1")
    page.wait_for_selector(".result .verdict")
    rows = rows_of(saved(page, page.locator(".result .export").first, "CSV"))
    assert ["example-leaky", "fail", "causality", "fail"] in [row[:4] for row in rows]
    assert "again=1" in link_of(page, page.locator(".result .export").first)
    assert "output i" in svg_texts(saved(page, page.locator(".result .export").nth(1), "SVG"))


WRITTEN = "document.querySelector('[role=status].note').textContent.includes('per second.')"


def test_another_run_clears_what_belongs_to_the_one_before(tab, names):
    page = tab.open(f"generate?run={names('text0')}&prompt=The list&tokens=512")
    runs = page.get_by_label("Run", exact=True)
    page.get_by_role("button", name="Write on").click()
    tab.wait("document.querySelector('.written').textContent.length > 5")
    runs.select_option(names("text1"))  # while the other one is writing
    page.get_by_label("tokens as a number").fill("20")
    page.wait_for_timeout(200)
    assert tab.text(".output").strip() == "" and page.get_by_label("Prompt").input_value()
    assert tab.text(".row [role=status]") == ""
    page.get_by_role("button", name="Write on").click()
    tab.wait(WRITTEN)
    page.evaluate("name => location.hash = `#/generate?run=${name}`", names("people"))
    tab.wait("document.querySelector('.output').textContent === ''")
    page.get_by_label("Question").fill("Where was Ann Hart born?")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_selector(".ask .shares li")
    runs.select_option(names("text0"))
    assert page.locator(".ask .shares, .bench > div > .export").locator("visible=true").count() == 0
    runs.select_option(names("people"))
    assert page.locator(".ask .shares").count() == 0
