"""Audits on the page: what can be audited is a list, and a certificate is checked in every part."""

import pytest
import torch

from attnlab import config, registry
from attnlab.audit import audit
from attnlab.audit.certificate import report
from attnlab.models.transformer import TransformerSettings
from attnlab.page import auditing
from attnlab.page.guard import Refused

LEAKY = "example-leaky"


def audited(name, **declared):
    target, contract = auditing.parse_request(
        {"target": name, **({"declare": declared} if declared else {})}
    )
    return auditing.run_audit(target, contract)


def test_the_list_has_all_our_attentions_positions_and_known_bugs():
    found = auditing.target_list()
    names = {one["name"] for one in found["targets"]}
    for heads in registry.options("attention"):
        assert f"{heads.name}-scaled-dot" in names
    for score in registry.options("score"):
        assert f"multi-head-{score.name}" in names
    for positions in registry.options("positions"):
        assert f"transformer-{positions.name}" in names
    assert sum(name.startswith("bug-") for name in names) == len(auditing.BUGS)
    properties = [one["name"] for one in found["properties"]]
    assert properties == [one.name for one in registry.options("property")]


def test_ours_passes_and_nothing_moves_that_must_not():
    found = audited("grouped-scaled-dot-window")
    assert found["verdict"] == "pass" and found["contract"] == {"causal": True, "window": 5}
    pairs = zip(found["influence"], found["allowed"], strict=True)
    assert all(
        may or size == 0 for row, allowed in pairs for size, may in zip(row, allowed, strict=True)
    )


@pytest.mark.skipif(LEAKY not in auditing.targets(), reason="examples/ is not beside the package")
def test_the_leaky_example_fails_with_its_smallest_counter_example():
    found = audited(LEAKY)
    assert found["verdict"] == "fail"
    [example] = [one for one in found["examples"] if one["name"] == "causality"]
    assert example["sentence"] and "import torch" in example["script"]
    again = auditing.read_certificate({"certificate": found})
    for part in ("checks", "influence", "allowed", "contract", "verdict", "target"):
        assert again[part] == found[part], part


@pytest.mark.skipif(LEAKY not in auditing.targets(), reason="examples/ is not beside the package")
def test_an_error_on_the_way_to_an_example_leaves_the_certificate(monkeypatch):
    def broken(*given):
        raise KeyError("ours")

    monkeypatch.setattr("attnlab.audit.repro.smallest.script", broken)
    found = audited(LEAKY)
    assert found["verdict"] == "fail" and found["checks"]
    assert "attnlab itself failed: KeyError: 'ours'" in found["detail"]
    assert all("KeyError" in one["reason"] for one in found["examples"])


def test_a_known_bug_is_found():
    name = next(name for name in auditing.targets() if name.startswith("bug-"))
    assert audited(name)["verdict"] == "fail"


def test_another_declaration_is_another_verdict():
    assert audited("multi-head-scaled-dot", causal=True, window=3)["verdict"] == "fail"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "target is None"),
        ({"target": "multi-head-scaled-dot", "declare": []}, "declare is an object"),
        ({"target": "multi-head-scaled-dot", "declare": {"casual": True}}, "did you mean 'causal'"),
        (
            {"target": "multi-head-scaled-dot", "declare": {"window": 0}},
            "window is 0; it counts the query's own key",
        ),
        ({"target": "multi-head-scaled-dot", "declare": {"window": 10**30}}, "up to 1e9"),
        ({"target": "multi-head-scaled-dot", "declare": {"scale": float("inf")}}, "up to 1e9"),
    ],
)
def test_a_wrong_request_is_one_line(body, reason):
    with pytest.raises(ValueError, match=reason):
        auditing.parse_request(body)


@pytest.mark.parametrize("name", ["/etc/passwd", "examples/leaky.py:LeakyAttention", "hf:llama"])
def test_no_file_and_no_model_of_elsewhere_is_taken(name):
    with pytest.raises(Refused) as refused:
        auditing.parse_request({"target": name})
    assert refused.value.status == 404


def certificate(**changes):
    check = {"name": "causality", "verdict": "pass", "measured": True, "detail": "it is"}
    return {"certificate": {"target": "mine", "verdict": "pass", "checks": [check], **changes}}


def test_the_verdict_is_that_of_the_checks_whatever_is_written():
    failing = [{"name": "x", "verdict": "fail", "detail": ""}]
    assert (
        auditing.read_certificate(certificate(checks=failing, verdict="pass"))["verdict"] == "fail"
    )
    assert auditing.read_certificate(certificate(checks=[]))["verdict"] == "incomplete"
    assert auditing.read_certificate(certificate(verdict="fail"))["verdict"] == "pass"
    early = auditing.read_certificate(certificate(unfinished="time ran out"))
    assert (early["verdict"], early["unfinished"]) == ("incomplete", "time ran out")
    unclear = [{"name": "cache", "verdict": "cannot tell", "detail": "none"}]
    assert auditing.read_certificate(certificate(checks=unclear))["verdict"] == "incomplete"


def test_a_declared_field_that_is_not_established_is_no_pass():
    found = auditing.read_certificate(certificate(contract={"causal": True, "cache": True}))
    assert (found["verdict"], found["unestablished"]) == ("incomplete", ["cache"])
    assert "cache=true (cache was not examined)" in found["reason"]
    assert auditing.read_certificate(certificate(contract={"causal": True}))["verdict"] == "pass"
    heard = audited("multi-head-scaled-dot", causal=True, cache=True)
    assert (heard["verdict"], heard["unestablished"]) == ("incomplete", ["cache"])


def test_what_is_not_ours_is_left_out():
    found = auditing.read_certificate(certificate(html="<b>", extra=1))
    assert "html" not in found and "extra" not in found


@pytest.mark.parametrize(
    "changes",
    [
        {"target": 3},
        {"target": "x" * 201},
        {"checks": None},
        {"checks": {}},
        {"checks": [[]]},
        {"checks": [{"name": "a", "verdict": "maybe", "detail": ""}]},
        {"checks": [{"name": "a", "verdict": ["pass"], "detail": ""}]},
        {"checks": [{"name": "a", "verdict": "pass", "detail": "x" * 5000}]},
        {"checks": [{"name": "a", "verdict": "pass", "detail": 3}]},
        {"checks": [{"name": "a", "verdict": "pass", "detail": "", "measured": [0] * 600}]},
        {"checks": [{"name": "a", "verdict": "pass", "detail": "", "measured": [[[[[[[[1]]]]]]]]}]},
        {"checks": [{"name": "a", "verdict": "pass", "detail": ""}] * 65},
        {"influence": [[1, 2]]},
        {"influence": [[-1]]},
        {"influence": [["1"]]},
        {"influence": [[True]]},
        {"influence": [[float("nan")]]},
        {"influence": [[10**400]]},
        {"influence": [[0.0] * 129] * 129},
        {"influence": "x"},
        {"layers": 0},
        {"layers": "2"},
        {"contract": [1]},
        {"contract": {"nothing": 1}},
        {"examples": "x"},
        {"examples": ["x"]},
        {"examples": [{"name": 1}]},
        {"examples": [{"name": "a", "script": "x" * 50_000}]},
    ],
)
def test_a_certificate_is_refused_where_any_part_is_not_as_ours(changes):
    with pytest.raises(ValueError, match=r"."):
        auditing.read_certificate(certificate(**changes))


def test_numbers_that_no_picture_can_hold_are_left_out():
    check = {"name": "a", "verdict": "pass", "detail": "", "measured": [1e300, 10**400, 0.5]}
    assert auditing.read_certificate(certificate(checks=[check]))["checks"][0]["measured"] == [
        None,
        None,
        0.5,
    ]


def test_page_and_html_let_the_same_pairs_move_through_two_layers_with_a_window():
    """A window of 4 reaches 7 inputs through two layers: 54 pairs more of 23 × 23."""
    torch.manual_seed(0)
    settings = TransformerSettings(vocabulary=31, width=16, depth=2, context=128)
    model = config.override(settings, ["window=4"]).build()
    found = audit(model, causal=True, window=4)
    shown = auditing.plain(found)
    [drawn] = [block for block in blocks(report(found, [], "")) if block.title == "Declared"]
    assert shown["allowed"] == [list(row) for row in drawn.rows]
    assert sum(map(sum, shown["allowed"])) == sum(min(i + 1, 7) for i in range(23))
    assert all(
        may or size == 0
        for row, allowed in zip(shown["influence"], shown["allowed"], strict=True)
        for size, may in zip(row, allowed, strict=True)
    )
    assert auditing.read_certificate({"certificate": shown})["allowed"] == shown["allowed"]


def blocks(found):
    return [block for section in found.sections for block in section.blocks]


def test_properties_that_one_sentence_tells_stand_in_one_row():
    reason = "raised KeyError in forward at length {}, during {}"
    names = {"causality": 23, "window": 5, "padding": 23}
    checks = [
        {"name": name, "verdict": "cannot tell", "detail": reason.format(length, name)}
        for name, length in names.items()
    ]
    checks.insert(1, {"name": "heads", "verdict": "pass", "detail": "fine"})
    shown = auditing.read_certificate({"certificate": {"target": "t", "checks": checks}})
    assert [row["checks"] for row in shown["rows"]] == [[0, 2, 3], [1]]
    assert "at length 5, 23" in shown["rows"][0]["detail"] and len(shown["checks"]) == 4
