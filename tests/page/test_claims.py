"""Claims on the page: quick answers that agree with the record, settings within their bounds."""

import gc

import pytest
from page.pages import client, post, serving
from page.sliders import moves

from attnlab import registry
from attnlab.page.claims import KEPT, Claims, Experiment, controls, fold, live, run
from attnlab.page.guard import Refused
from attnlab.theory import catalogue, record

QUICK = catalogue.names(quick=True)


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Claims that are warm, and what they know then: later questions push the first answers out."""
    made = Claims(tmp_path_factory.mktemp("runs"))
    for _ in made.warm_up():
        pass
    known = {
        (name, knob): made.known(made.experiment(name, {"knob": knob}))
        for name in QUICK
        for knob in (False, True)
    }
    gc.freeze()  # as the page does
    return made, known


@pytest.fixture
def claims(warm):
    return warm[0]


@pytest.mark.parametrize("name", QUICK)
def test_with_fewer_cases_the_verdict_is_the_recorded_one_and_the_knob_still_turns_it(warm, name):
    kept, turned = warm[1][name, False], warm[1][name, True]
    assert kept["verdict"] == kept["expected"]
    assert turned["verdict"] != kept["verdict"] and turned["turned"]
    assert bool(kept["note"]) == bool(live(registry.load("claim", name)))


@pytest.mark.parametrize("name", QUICK)
def test_every_end_of_every_slider_is_answered_or_refused_in_a_line(claims, name):
    """How long each takes is measured by sliders.py: a test has no stopwatch."""
    for move in moves(name):
        try:
            found = claims.answer(claims.experiment(name, move))
        except ValueError as refusal:  # such as more keys than the width has room for
            assert str(refusal) and "\n" not in str(refusal)
        else:
            assert found["verdict"] and found["measures"]
            assert claims.answer(claims.experiment(name, move)) is found  # kept, not run again


def test_the_list_has_every_claim_and_runs_nothing(tmp_path, monkeypatch):
    made = Claims(tmp_path)
    monkeypatch.setattr("attnlab.page.claims.run", pytest.fail)
    listed = made.list_all()
    assert [one["name"] for one in listed] == catalogue.names()
    for one in listed:
        assert one["statement"] and one["formula"] and one["knob"]["words"]
        assert set(one["knob"]["changes"]) <= {it["name"] for it in one["settings"]}


def test_all_that_is_shown_of_a_claim_can_be_searched(tmp_path):
    for one in Claims(tmp_path).list_all():
        about, words = catalogue.about(one["name"]), one["words"]
        outcome = next(it for it in record.read()["outcomes"] if it["name"] == one["name"])
        shown = [one["title"], about.formula, about.derivation, about.remark, about.knob.words]
        shown += [it["what"] for it in outcome["measures"]] + [outcome["picture"]["title"]]
        shown += [it.quote for it in about.answers] + [one["settings"][0]["about"]]
        assert all(fold(text) in words for text in shown), one["name"]
        assert all(it["name"].lower() in words for it in one["questions"])
    assert fold("αᵢ  of `GQA`") == "αi of gqa"


def test_a_setting_comes_with_its_kind_and_the_bounds_of_the_page():
    known = {one["name"]: one for one in controls(registry.load("claim", "noisy-keys"))}
    assert known["samples"]["kind"] == "int" and known["beta"]["kind"] == "float"
    assert known["samples"]["value"] == known["samples"]["high"] == 3_000
    assert known["samples"]["record"] == 20_000
    kinds = {
        one["kind"] for name in catalogue.names() for one in controls(registry.load("claim", name))
    }
    assert kinds == {"int", "float", "bool", "text", "int?", "ints"}


@pytest.mark.parametrize("name", catalogue.names())
def test_no_setting_of_the_page_is_a_path_or_free_text(name):
    for one in controls(registry.load("claim", name)):
        assert one["name"] not in ("runs", "data")
        assert one["kind"] != "text" or one["choices"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"settings": {"leads": 3}}, "did you mean 'lead'"),
        ({"settings": {"lead": 1e9}}, "on the page use 0 to 40"),
        ({"settings": {"lead": float("inf")}}, "on the page use 0 to 40"),
        ({"settings": {"lead": "3"}}, "lead is '3'; it must be a number"),
        ({"settings": {"keys": 2.5}}, "keys is 2.5"),
        ({"settings": {"keys": True}}, "keys is True"),
        ({"settings": {"cases": 5000}}, "on the page use 1 to 100"),
        ({"settings": []}, "settings"),
        ({"knob": 1}, "knob"),
    ],
)
def test_a_wrong_setting_is_one_line(claims, body, reason):
    with pytest.raises(ValueError, match=reason):
        claims.experiment("copy", body)


def test_a_path_cannot_be_set(claims):
    with pytest.raises(ValueError, match="'runs' is no setting"):
        claims.experiment("made-up-answers", {"settings": {"runs": "/tmp"}})
    experiment = claims.experiment("made-up-answers", {})
    assert experiment.claim.runs == claims.root


def test_a_long_list_is_refused(claims):
    with pytest.raises(ValueError, match="8 or fewer"):
        claims.experiment("sinusoid-unique", {"settings": {"periods": list(range(1, 100))}})
    experiment = claims.experiment("sinusoid-unique", {"settings": {"periods": [6, 10]}})
    assert run(experiment)["verdict"] == "refuted"


def test_an_unknown_claim_is_404(claims):
    with pytest.raises(Refused) as refused:
        claims.experiment("coppy", {})
    assert refused.value.status == 404 and "did you mean 'copy'" in refused.value.reason


def test_the_documents_answer_for_the_claim_as_it_stands_on_the_page_too(claims):
    assert claims.answer(claims.experiment("copy", {}))["answers"]
    assert claims.answer(claims.experiment("copy", {"knob": True}))["answers"] == []
    assert run(claims.experiment("copy", {"settings": {"lead": 3.0}}))["answers"] == []


def test_every_question_of_the_courses_leads_to_its_claims(claims):
    found = {one["name"]: one for one in claims.questions()}
    assert "copy" in found["A4 1(a)"]["claims"] and not found["A4 1(a)"]["unsettled"]
    assert found["CMU 1.1"]["course"] == "CMU 10-423/623, homework 1"
    assert not found["A4 4(b)"]["claims"] and "cannot be tested" in found["A4 4(b)"]["unsettled"]


def test_so_many_answers_are_kept_and_no_more(tmp_path):
    made = Claims(tmp_path)
    for seed in range(KEPT + 10):
        made._keep(made.experiment("copy", {"settings": {"seed": seed}}), {"seed": seed})
    assert len(made._answers) == KEPT
    assert made.known(made.experiment("copy", {"settings": {"seed": 0}})) is None
    assert made.known(made.experiment("copy", {"settings": {"seed": KEPT}})) == {"seed": KEPT}


TRAINED = sorted(set(catalogue.names()) - set(QUICK))


@pytest.mark.parametrize("name", TRAINED)
def test_a_claim_that_trains_shows_its_recorded_result(server, name):
    (outcome,) = [one for one in record.read()["outcomes"] if one["name"] == name]
    with client(server) as opened:
        status, found = post(opened, f"/api/claims/{name}")
        listed = opened.get("/api/claims").json()
    assert status == 200 and found["recorded"] is True and found["seconds"] is None
    for key in ("verdict", "measures", "answers", "picture", "details", "trials"):
        assert found[key] == outcome[key] and found[key], key
    assert "at most" in found["error_rates"] and "runs" not in found["settings"]
    assert {one["name"] for one in listed if one["recorded"]} == set(TRAINED)


@pytest.mark.parametrize("name", TRAINED)
def test_with_its_knob_a_claim_that_trains_shows_the_recorded_measures_of_that_run(server, name):
    (outcome,) = [one for one in record.read()["outcomes"] if one["name"] == name]
    with client(server) as opened:
        status, found = post(opened, f"/api/claims/{name}", knob=True)
    assert status == 200 and found["recorded"] and found["turned"]
    assert found["verdict"] == outcome["knob_verdict"] != outcome["verdict"]
    assert found["measures"] == outcome["knob_measures"]
    assert found["measured"] == outcome["knob_measures"][0]["value"]
    changes = found["knob"]["changes"]
    assert found["settings"].items() >= changes.items()
    # these were not recorded, and those of the other run are not shown in their place
    assert found["picture"] is found["trials"] is None
    assert found["answers"] == found["details"] == [] and found["error_rates"] == ""


def test_other_settings_of_a_claim_that_trains_are_not_recorded(server):
    with client(server) as opened:
        status, found = post(opened, "/api/claims/made-up-answers", settings={"steps": 20})
    assert status == 409 and "nothing is recorded for these settings" in found["error"]


def test_without_the_documents_nothing_is_recorded(tmp_path):
    made = Claims(tmp_path, docs=tmp_path)
    assert made.recorded(made.experiment("made-up-answers", {})) is None
    assert not any(one["recorded"] for one in made.list_all())


def test_training_happens_in_a_process_of_its_own(claims, monkeypatch):
    """Shown with a claim that is quick: what comes back is what is answered here."""
    import asyncio

    from attnlab.page import claims as module

    experiment = Experiment("copy", claims.experiment("copy", {}).settings, True)
    found = asyncio.run(module._in_child(experiment))
    here = run(experiment)
    assert {**found, "seconds": 0} == {**here, "seconds": 0}


def test_the_answer_of_a_request_is_complete(server):
    with client(server) as opened:
        status, found = post(opened, "/api/claims/copy", settings={"lead": 3.0}, knob=False)
    assert status == 200 and found["verdict"] == "refuted" and found["expected"] == "holds"
    assert found["settings"]["lead"] == 3.0 and found["picture"]["type"] in ("Plot", "Picture")
    assert found["measures"][0].keys() >= {"what", "value", "rule", "bound", "met"}
    assert found["derivation"] and found["seconds"] > 0
