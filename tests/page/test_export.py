"""The claims without a server: everything that is recorded, in a folder that opens from a disk."""

import json
import re

import pytest

from attnlab.page import export
from attnlab.theory import catalogue, record


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("export") / "claims"
    export.write(made, home="../index.html")
    return made


def data(folder):
    text = (folder / "record.js").read_text()
    return json.loads(text.removeprefix("globalThis.attnlabRecord = ").rstrip(";\n"))


def test_it_holds_every_claim_as_recorded_with_the_knob_and_without(folder):
    found = data(folder)
    assert [one["name"] for one in found["claims"]] == catalogue.names()
    for outcome in record.read()["outcomes"]:
        plain, knob = found["outcomes"][outcome["name"]]
        assert plain["measures"] == outcome["measures"] and plain["recorded"]
        assert plain["picture"] == outcome["picture"] and plain["verdict"] == outcome["verdict"]
        assert knob["verdict"] == outcome["knob_verdict"] and knob["turned"]
        assert "runs" not in plain["settings"]
    for one in found["claims"]:
        assert one["frozen"] and one["evidence"]
        assert all(it["value"] == it["record"] for it in one["settings"])


def test_no_file_of_it_names_a_host_or_a_path_of_this_machine(folder):
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    for path in folder.iterdir():
        text = path.read_text()
        assert set(re.findall(r"https?://[\w./-]+", text)) <= namespaces, path.name
        assert str(record.DOCS.parent) not in text and "/static/" not in text


def test_some_claims_come_with_their_questions_only(tmp_path):
    export.write(tmp_path / "some", ["copy"])
    found = data(tmp_path / "some")
    assert [one["name"] for one in found["claims"]] == ["copy"] == list(found["outcomes"])
    assert {it for one in found["questions"] for it in one["claims"]} == {"copy"}


def test_what_is_there_is_replaced_only_if_it_is_an_export(tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ValueError, match="has other files in it; name a new folder"):
        export.write(tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"
    with pytest.raises(ValueError, match="is a file; name a folder"):
        export.write(tmp_path / "index.html")
    export.write(tmp_path / "claims", ["copy"])
    export.write(tmp_path / "claims", ["average-of-two"])
    assert list(data(tmp_path / "claims")["outcomes"]) == ["average-of-two"]


def test_without_a_record_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="nothing is recorded of copy"):
        export.write(tmp_path / "claims", ["copy"], docs=tmp_path)
    assert not (tmp_path / "claims").exists()


def test_modules_become_one_script_in_which_what_is_imported_comes_first(tmp_path):
    (tmp_path / "a.js").write_text(
        'import * as b from "./b.js";\nimport {one as first,\n  two} from "./b.js";\n'
        "globalThis.said = b.one() + first() + two;\n"
    )
    (tmp_path / "b.js").write_text(
        "export function one() {\n  return 1;\n}\nexport const two = 2;\n"
    )
    text = export.script(tmp_path, "a.js")
    assert text.count("const in_b_js = ") == 1
    assert text.index("const in_b_js = ") < text.index("const in_a_js = ")
    assert "const {one: first,\n  two} = in_b_js;" in text and "const b = in_b_js;" in text
    assert "return {one, two};" in text and "export" not in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export default 3;", "'export default 3;' has no form"),
        ("export {x};", "has no form"),
        ('const x = await import("./b.js");', "has no form"),
        ('import {x} from "./a.js";', "a.js imports itself"),
    ],
)
def test_what_a_plain_script_cannot_say_is_refused(tmp_path, line, said):
    (tmp_path / "a.js").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=re.escape(said)):
        export.script(tmp_path, "a.js")


def test_from_a_disk_and_without_a_network_the_claims_are_shown(browser, folder):
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 844})
    page, problems, asked = context.new_page(), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    start = (folder / "index.html").as_uri()
    page.goto(f"{start}#/claims/copy")
    page.wait_for_selector(".formula math")
    page.wait_for_selector(".plot .line")
    assert "Recorded, not run now." in page.locator(".why").inner_text()
    assert "Nothing runs here" in page.locator(".panel").inner_text()
    assert page.locator(".panel :is(input, select):enabled").count() == 0
    assert page.get_by_label("cases as a number").input_value() == "500"  # as recorded
    page.get_by_role("switch", name="Turn the knob").click()
    page.wait_for_selector(".verdict[data-kind=bad]")
    page.wait_for_selector("text=Recorded without the knob")
    assert page.get_by_label("lead as a number").input_value() == "0"
    page.get_by_role("link", name="A4 1(a)", exact=True).click()  # the list, on a narrow screen
    page.wait_for_selector("#claims li:visible")
    settled = catalogue.by_question()["A4 1(a)"]
    assert page.locator("#claims li:visible").count() == len(settled)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for name in catalogue.names():
        page.goto(f"{start}#/claims/{name}")
        page.wait_for_function(
            "(name) => document.querySelector('.detail .label')?.textContent === name",
            arg=next(one["title"] for one in data(folder)["claims"] if one["name"] == name),
        )
        page.wait_for_selector(".bench :is(.plot path, .board)", state="attached")
        assert page.evaluate(wide) <= 0, name
    page.goto(f"{start}#/claims/coppy")
    page.wait_for_selector("text=There is no such claim")
    assert page.get_by_role("link", name="Documentation").get_attribute("href") == "../index.html"
    assert problems == [] and all(one.startswith(("file:", "data:")) for one in asked)
    context.close()
