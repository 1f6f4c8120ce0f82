"""`attnlab claims` as a person meets it."""

import json
import signal

import pytest

from attnlab import json_files


def test_one_claim_is_explained_at_length(attnlab):
    code, out, _ = attnlab("claims", "average-of-two")
    assert code == 0
    for part in ("holds", "e^β / (2e^β + n − 2)", "Knob: a query of length 1", "wrong: "):
        assert part in out


def test_several_are_a_table_with_who_was_right(attnlab):
    code, out, _ = attnlab("claims", "copy", "symmetric-attention")
    assert code == 0 and "2 claims; all as recorded" in out
    assert "✓ A4 Chinese, A4 program ◐ A4 earlier ✗ A4 ChatGPT" in out and "refuted" in out
    assert "A4 Chinese  CS224N, assignment 4, parts 1 and 2, in Chinese" in out


def test_as_json(attnlab):
    code, out, _ = attnlab("claims", "copy", "elman_remembers_both", "--json")
    first, second = json.loads(out)
    assert code == 0 and second["name"] == "elman-remembers-both"
    assert (first["verdict"], first["knob_verdict"]) == ("holds", "refuted")
    assert first["measured"] <= first["bound"] and first["evidence"] == "construction"
    marks = [one["marks"]["conclusion"] for one in first["answers"]]
    assert marks == ["wrong", "right", "incomplete", "right"]


def test_the_knob_breaks_it_and_the_exit_code_says_so(attnlab):
    code, out, _ = attnlab("claims", "copy", "--knob", "--json")
    (found,) = json.loads(out)
    assert code == 1 and found["verdict"] == "refuted" and found["settings"]["lead"] == 0


def test_settings_change_the_run_and_may_change_the_verdict(attnlab):
    code, out, _ = attnlab("claims", "copy", "--set", "lead=20", "--set", "keys=3", "--json")
    (found,) = json.loads(out)
    assert code == 0 and (found["settings"]["lead"], found["settings"]["keys"]) == (20, 3)
    code, out, _ = attnlab("claims", "copy", "--set", "lead=0.1")
    assert code == 1 and "(recorded: holds)" in out
    assert "✗" not in out and "marked for the default settings only: attnlab claims copy" in out


def test_a_question_is_answered_in_words(attnlab):
    code, out, _ = attnlab("claims", "--question", "A4 1c")
    assert code == 0 and "A4 1(c)i: Which query averages two values when keys are noisy?" in out
    assert "Keys that scatter a little" in out and "✓ right, ◐ incomplete, ✗ wrong" in out


def test_a_quotation_is_not_cut(attnlab):
    """Columns stand side by side, so a word may be in two lines; none of its letters is lost."""
    _, out, _ = attnlab("claims", "noisy-keys")
    assert all(letter in out for letter in "由于协方差矩阵对称故有")


def test_what_was_set_is_said(attnlab):
    _, out, _ = attnlab("claims", "noisy-keys", "--set", "noise=1")
    assert "Run with noise=1.0 (recorded: 1e-08)" in out


def test_the_claims_of_a_question(attnlab):
    code, out, _ = attnlab("claims", "--question", "CMU 2.2(a)", "--json")
    assert code == 0 and "symmetric-attention" in [one["name"] for one in json.loads(out)]


def test_a_picture(attnlab, tmp_path):
    code, _, _ = attnlab("claims", "copy", "--plot", "copy.svg")
    assert code == 0 and (tmp_path / "copy.svg").read_text().startswith("<svg")


def test_what_is_recorded_becomes_a_page_without_a_server_and_nothing_is_run(
    attnlab, tmp_path, monkeypatch
):
    monkeypatch.setattr("attnlab.theory.result.run_claim", pytest.fail)
    code, out, _ = attnlab("claims", "--question", "A4 1(a)", "--export", str(tmp_path / "a"))
    assert code == 0 and "index.html" in out
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        *("index.html", "style.css", "record.js", "claims.js"),
    }
    code, _, err = attnlab("claims", "copy", "--knob", "--export", str(tmp_path / "b"))
    assert code == 2 and "runs nothing" in err and not (tmp_path / "b").exists()
    code, _, err = attnlab("claims", "copy", "--export", str(tmp_path))
    assert code == 2 and "name a new folder" in err


def test_the_document_of_some_claims(attnlab, tmp_path):
    code, _, _ = attnlab("claims", "copy", "rope-relative", "--docs", "docs")
    text = (tmp_path / "docs" / "theory.md").read_text()
    assert code == 0 and "## copy" in text and "## rope-relative" in text
    pictures = sorted(path.name for path in (tmp_path / "docs" / "theory").glob("*.svg"))
    assert pictures == ["copy.svg", "rope-relative.svg"] and all(name in text for name in pictures)


def test_a_claim_that_is_recorded_again_touches_its_own_files_only(attnlab, tmp_path):
    docs = tmp_path / "docs"
    attnlab("claims", "copy", "rope-relative", "--docs", "docs")
    before = {path: path.stat().st_mtime_ns for path in (docs / "theory").glob("*.svg")}
    copy, rope = json.loads((docs / "theory" / "outcomes.json").read_text())["outcomes"]
    code, _, _ = attnlab("claims", "average-of-two", "--docs", "docs")
    assert code == 0
    text, recorded = (
        (docs / "theory.md").read_text(),
        json.loads((docs / "theory" / "outcomes.json").read_text()),
    )
    first, added, last = recorded["outcomes"]  # in the order of the theory
    assert (first, last) == (copy, rope) and added["name"] == "average-of-two"
    assert all(f"## {one['name']}" in text for one in recorded["outcomes"])
    after = {path: path.stat().st_mtime_ns for path in (docs / "theory").glob("*.svg")}
    assert after.keys() - before.keys() == {docs / "theory" / "average-of-two.svg"}
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cpoy"], "unknown claim 'cpoy'; did you mean 'copy'?"),
        (["copy", "--question", "A4 1(a)"], "give names or --question, not both: copy"),
        (["--question", "A5 1(a)"], "unknown question 'A5 1(a)'; did you mean 'A4 1(a)'"),
        (["made-up-answers", "--quick"], "--quick leaves out made-up-answers: it trains models"),
        (["--question", "A4 4(b)"], "no claim settles A4 4(b): it cannot be tested here"),
        (
            ["copy", "--set", "lead=3", "--docs", "docs"],
            "--docs records claims with their default settings; leave out --set",
        ),
        (["copy", "--set", "laed=3"], "laed: no such setting; did you mean 'lead'?"),
        (["copy", "--set", "lead=50"], "lead is 50.0; use 0 to 40, such as 12.0"),
        (["copy", "--set", "keys=2.5"], "keys is '2.5'; it must be a whole number"),
        (["copy", "--set", "lead"], "'lead' is not a setting; write lead=value"),
        (["average-of-two", "--set", "keys=20"], "20 vectors of width 16 cannot all be"),
        (["copy", "--plot", "no/such/folder.svg"], "name a file in an existing folder"),
        (["copy", "=3"], "'=3' is no claim; change a setting with --set"),
        (["copy", "--set", "lead=3", "--knob"], "copy: --knob changes lead itself; leave out"),
        (
            ["copy", "elman-remembers-both", "--set", "lead=3"],
            "elman-remembers-both: lead: no such",
        ),
        (["copy", "--plot", "picture.png"], "--plot writes SVG; use picture.svg"),
        (["copy", "rope-relative", "--plot", "x.svg"], "--plot draws one claim, not 2"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_2(attnlab, words, message):
    code, _, err = attnlab("claims", *words)
    assert code == 2 and message in err and err.count("\n") == 1


def test_what_is_settled_when_it_is_stopped_is_printed_and_kept(attnlab, tmp_path, monkeypatch):
    from attnlab.theory import result

    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    plain, ran = result.run_claim, []

    def stopped(name, claim, progress=None):
        ran.append(name)
        if len(ran) == 2:
            signal.raise_signal(signal.SIGINT)
        return plain(name, claim)

    monkeypatch.setattr(result, "run_claim", stopped)
    words = ["claims", "copy", "elman_remembers_both", "rope-relative"]
    code, out, err = attnlab(*words)
    assert code == 130 and out.startswith("copy ") and "holds" in out and "claims;" not in out
    assert err.endswith("1 of 3 claims are settled; the same command goes on from there\n")
    assert err.startswith("stopped by Ctrl-C; it was at: claim 2 of 3: elman-remembers-both")
    (kept,) = tmp_path.rglob("*.jsonl")
    with kept.open("ab") as file:
        file.write(json_files.sealed_json({"name": "of-another"}, indent=None))
    code, out, err = attnlab(*words)
    assert code == 0 and "3 claims; all as recorded" in out and "--again starts afresh" in err
    assert err.startswith("a kept result is damaged or not of these claims: settled anew\n")
    assert ran == ["copy", "elman-remembers-both", "elman-remembers-both", "rope-relative"]
    assert attnlab(*words)[2] == "" and len(ran) == 7, "a whole run settles everything"
