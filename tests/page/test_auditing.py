"""Audits on the page: what can be audited is a list, and a certificate is checked in every part."""

import pytest

from attnlab import registry
from attnlab.audit.contract import Contract
from attnlab.page import auditing
from attnlab.page.guard import Refused

LEAKY = "example-leaky"


def audited(name, **declared):
    target, contract = auditing.asked(
        {"target": name, **({"declare": declared} if declared else {})}
    )
    return auditing.audited(target, contract)


def test_the_list_has_all_our_attentions_positions_and_known_bugs():
    found = auditing.listed()
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
    again = auditing.read({"certificate": found})
    for part in ("checks", "influence", "allowed", "contract", "verdict", "target"):
        assert again[part] == found[part], part


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
        auditing.asked(body)


@pytest.mark.parametrize("name", ["/etc/passwd", "examples/leaky.py:LeakyAttention", "hf:llama"])
def test_no_file_and_no_model_of_elsewhere_is_taken(name):
    with pytest.raises(Refused) as refused:
        auditing.asked({"target": name})
    assert refused.value.status == 404


def certificate(**changes):
    check = {"name": "causality", "verdict": "pass", "measured": True, "detail": "it is"}
    return {"certificate": {"target": "mine", "verdict": "pass", "checks": [check], **changes}}


def test_the_verdict_is_that_of_the_checks_whatever_is_written():
    failing = [{"name": "x", "verdict": "fail", "detail": ""}]
    assert auditing.read(certificate(checks=failing, verdict="pass"))["verdict"] == "fail"
    assert auditing.read(certificate(checks=[]))["verdict"] == "cannot tell"
    assert auditing.read(certificate(verdict="fail"))["verdict"] == "pass"


def test_what_is_not_ours_is_left_out():
    found = auditing.read(certificate(html="<b>", extra=1))
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
        auditing.read(certificate(**changes))


def test_numbers_that_no_picture_can_hold_are_left_out():
    check = {"name": "a", "verdict": "pass", "detail": "", "measured": [1e300, 10**400, 0.5]}
    assert auditing.read(certificate(checks=[check]))["checks"][0]["measured"] == [None, None, 0.5]


def test_what_may_move_follows_from_the_contract():
    assert auditing._allowed(Contract(causal=True, window=2), 3) == [
        [1, 0, 0],
        [1, 1, 0],
        [0, 1, 1],
    ]
    assert auditing._allowed(Contract(causal=False), 2) == [[1, 1], [1, 1]]
    assert auditing._allowed(Contract(), 2) is None
