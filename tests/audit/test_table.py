"""What one sentence tells is told once; the certificate keeps every finding."""

from attnlab.audit.contract import Certificate, Contract, Finding
from attnlab.audit.table import rows, smallest


def unclear(name, detail):
    return Finding(name=name, verdict="cannot tell", detail=detail)


def raised(name, length, message="too long"):
    return unclear(
        name, f"raised KeyError in `forward` at length {length}, during {name}: {message}"
    )


GOOD = Finding(name="batch", verdict="pass", detail="rows are the same")
ALSO = Finding(name="cache", verdict="pass", detail="rows are the same")


def test_findings_that_one_reason_stops_are_one_row():
    found = [raised("heads", 23), GOOD, raised("scale", 7), raised("window", 23), ALSO]
    found += [raised("prefix", 23, "at length 5"), unclear("training", "no loss (during training)")]
    found += [unclear("packing", "no loss (during packing)")]
    told = [(row.names, row.verdict, row.detail) for row in rows(found)]
    assert told == [
        (
            "heads, scale, window",
            "cannot tell",
            "raised KeyError in `forward` at length 7, 23: too long",
        ),
        ("batch", "pass", "rows are the same"),
        ("cache", "pass", "rows are the same"),
        ("prefix", "cannot tell", found[5].detail),
        ("training, packing", "cannot tell", "no loss"),
    ]
    certificate = Certificate(target="Code", contract=Contract(), findings=tuple(found))
    assert len(certificate.plain()["checks"]) == len(found)


def test_a_certificate_shows_itself_in_lines():
    found = (raised("heads", 23), raised("causality", 7), GOOD)
    certificate = Certificate(target="Code", contract=Contract(causal=True), findings=found)
    lines = repr(certificate).splitlines()
    assert lines[0] == "Code: incomplete"
    assert lines[1].split(maxsplit=4)[:4] == ["heads,", "causality", "cannot", "tell"]
    assert lines[2].split() == ["batch", "pass", "rows", "are", "the", "same"]
    assert "declared and not established: causal=true" in lines[3]


def test_the_smallest_example_says_what_became_smaller():
    example = {
        "sentence": "output 0 moves",
        "sizes": {"batch": 1, "length": 2, "pieces": [1, 1], "warm": False, "kv_heads": 1},
        "options": {"width": 4, "heads": 1, "bias": True},
    }
    given = {"width": 32, "heads": 1, "bias": True}
    line = "output 0 moves (batch 1, length 2, kv heads 1, made with width=4)"
    assert smallest(example, given) == line
    bare = {"sentence": "it moves", "sizes": {}, "options": {"width": 4}}
    assert smallest(bare, {"width": 4}) == "it moves"


def test_a_whole_configuration_is_counted_not_listed():
    example = {"sentence": "it moves", "sizes": {}, "options": {f"n{i}": i for i in range(9)}}
    assert smallest(example, {}) == "it moves (made with 9 settings, which its script has)"
    assert smallest(example, {"n0": 0}).endswith("n7=7 n8=8)")
