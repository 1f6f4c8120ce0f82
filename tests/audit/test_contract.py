"""One rule says what a certificate comes to, and every reader of certificates follows it."""

import dataclasses

import pytest

from attnlab import registry
from attnlab.audit.contract import ESTABLISHED_BY, EXIT_CODES, Certificate, Contract, Finding

FIELDS = [one.name for one in dataclasses.fields(Contract)]
VALUES = {
    "causal": True,
    "window": 5,
    "heads": 3,
    "kv_heads": 1,
    "positions": "rotary",
    "rope_layout": "interleaved",
    "rope_base": 500.0,
    "rope_fraction": 0.5,
    "rope_scaling": "yarn",
    "rope_factor": 4.0,
    "scale": 0.3,
    "soft_cap": 50.0,
    "sink": "learned",
    "dtype": "bfloat16",
    "layout": "tbc",
    "segments": "alone",
    "cache": True,
    "padding": True,
}


def certificate(findings, influence=(), layers=1, **declared):
    return Certificate(
        target="mine",
        contract=Contract(**declared),
        findings=tuple(Finding(name=n, verdict=v, detail=f"why {n}") for n, v in findings.items()),
        influence=influence,
        layers=layers,
    )


def still(side):
    return tuple((0.0,) * side for _ in range(side))


def test_every_field_is_established_by_properties_that_exist():
    known = {option.name for option in registry.options("property")}
    assert list(ESTABLISHED_BY) == FIELDS
    for field, properties in ESTABLISHED_BY.items():
        assert properties and set(properties) <= known, field


@pytest.mark.parametrize("verdict", ["cannot tell", "not applicable", None])
@pytest.mark.parametrize("field", FIELDS)
def test_a_declared_field_that_is_not_established_is_never_a_pass(field, verdict):
    properties = ESTABLISHED_BY[field]
    passing = {"evaluation": "pass", **dict.fromkeys(properties, "pass")}
    declared = {field: VALUES[field]}
    found = certificate(passing, **declared)
    assert (found.verdict, found.exit_code, found.unestablished) == ("pass", 0, ())
    for one in properties:
        others = {name: word for name, word in passing.items() if name != one}
        found = certificate(others if verdict is None else {**others, one: verdict}, **declared)
        assert (found.verdict, found.exit_code) == ("incomplete", 2)
        assert found.unestablished == (field,)
        why = f"{one} was not examined" if verdict is None else f"why {one}"
        assert found.reason.startswith(f"declared and not established: {field}=")
        assert found.reason.endswith(f"({why})")


def test_what_is_not_declared_may_stay_open():
    open_ = {"evaluation": "pass", "cache": "not applicable", "scale": "cannot tell"}
    assert certificate(open_).verdict == "pass" and certificate(open_).reason == ""
    assert certificate({**open_, "causality": "pass"}, causal=True).verdict == "pass"


@pytest.mark.parametrize("field", ["causal", "cache", "padding"])
def test_false_demands_nothing(field):
    found = certificate({"evaluation": "pass"}, **{field: False})
    assert found.verdict == "pass" and found.contract.declared() == {field: False}


def test_without_a_property_that_passes_it_is_incomplete():
    for findings in ({}, {"scale": "cannot tell"}, {"cache": "not applicable"}):
        found = certificate(findings)
        assert (found.verdict, found.exit_code) == ("incomplete", 2)
        assert found.reason.startswith("no property passes: ")
    assert certificate({"scale": "cannot tell"}).reason == "no property passes: why scale"


def test_a_failure_comes_before_all_and_the_rest_is_still_said():
    found = certificate({"causality": "fail", "cache": "cannot tell"}, causal=True, cache=True)
    assert (found.verdict, found.exit_code) == ("fail", EXIT_CODES["fail"]) == ("fail", 1)
    assert found.unestablished == ("cache",)  # causal is broken, which is more
    assert found.reason == (
        "causality: why causality; declared and not established: cache=true (why cache)"
    )
    assert found.plain()["unestablished"] == ["cache"]


@pytest.mark.parametrize(
    ("declared", "layers", "rule"),
    [
        ({"causal": True}, 1, lambda i, j: j <= i),
        ({"causal": True}, 3, lambda i, j: j <= i),
        ({"window": 2}, 1, lambda i, j: i - 2 < j <= i),
        ({"causal": False}, 1, lambda i, j: True),
        ({"causal": False, "window": 3}, 1, lambda i, j: j > i - 3),
        ({"causal": True, "window": 4}, 2, lambda i, j: i - 7 < j <= i),
        ({"window": 1}, 5, lambda i, j: i == j),
    ],
)
def test_what_may_move_follows_from_contract_and_layers(declared, layers, rule):
    side = 23
    found = certificate({}, influence=still(side), layers=layers, **declared)
    wanted = tuple(tuple(rule(i, j) for j in range(side)) for i in range(side))
    assert found.allowed() == wanted


def test_nothing_declared_allows_nothing_in_particular():
    assert certificate({}, influence=still(3)).allowed() is None
    assert certificate({}, influence=still(3), heads=4).allowed() is None
