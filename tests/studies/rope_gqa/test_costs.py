"""Sentences about time and memory follow the numbers, and faults are explained as they show."""

import pytest

from attnlab.studies.rope_gqa import costs, faults
from attnlab.studies.rope_gqa.sweep import Sweep

ONE_BATCH = faults.Row(fault="one", reported="0", true="1", why="because")


def timing(median, spread=0.1):
    return {"median": median, "fastest": median - spread, "slowest": median + spread, "turns": 3}


def results(two=1.0, six=2.0, spread=0.1):
    times = {"1": two, "2": two, "3": two, "6": six}
    timed = {"kernel": "native, float32", "times": {n: timing(t, spread) for n, t in times.items()}}
    cache = {str(kv): {"counted": 100 * kv, "formula": 100 * kv} for kv in (1, 2, 3, 6)}
    pair = {"shared": two, "six": six}
    return {
        costs.FORWARD: timed,
        costs.BOTH: timed,
        costs.STEP: timed,
        costs.DECODED: {**timed, "tokens": 10, "cache": cache},
        costs.MEMORY: {
            "kernel": "native, float32",
            "bytes": {n: {"median": 1e6 * t, "least": 0.0, "most": 9e9} for n, t in times.items()},
        },
        costs.FLAWED_TIMES: {
            "device": "cpu",
            "kernel": "native, float32",
            "fair": pair,
            "emptying": two,
            "unsynchronised": pair,
            "kernels": {"shared": "reference", "six": "native"},
            "other_kernels": {"shared": 6.0, "six": six},
            "together": {"shared": 6.0, "six": six},
        },
        costs.FLAWED_MEMORY: {
            "peak": {"shared": 2e6, "six": 3e6},
            "left": {"shared": 1e6, "six": 1e6},
            "together": {"shared": 9e6, "six": 1e6},
        },
    }


def costs_of(found):
    return costs.costs_of(found, Sweep())


@pytest.mark.parametrize(
    ("two", "six", "spread", "said"),
    [
        (1.0, 2.0, 0.1, "(attnlab's compiled path, float32), take 0.50 of the time for attention."),
        (3.0, 2.0, 0.1, "(attnlab's compiled path, float32), take 1.50 of the time for attention."),
        (1.0, 1.1, 0.5, "take a time for attention that cannot be told from theirs (0.91 of it)"),
    ],
)
def test_the_answer_follows_the_times(two, six, spread, said):
    answer = costs_of(results(two, six, spread)).answer
    assert answer.startswith("Two key/value heads keep 0.33 of the cache of six")
    assert said in answer


def test_the_flawed_protocol_is_compared_with_the_same_calls_timed_fairly():
    """Not with the sweep, which times captured calls."""
    found = results(two=1.0, six=2.0)
    found[costs.FLAWED_TIMES]["fair"] = {"shared": 4.0, "six": 4.0}
    answer = costs_of(found).answer
    assert "Single calls from Python take 1.00 of the time of six; the flawed protocol" in answer
    assert answer.endswith("reports 3.00.")


def test_the_section_compares_two_heads_with_six():
    text = costs.section(costs_of(results())).text
    assert "0.50 of the time for attention, 0.50 with its backward pass" in text
    assert "0.50 of the memory of a step (no more than it varies by itself)" in text
    assert "2.00 times the tokens decoded in a second" in text
    assert "attnlab's compiled path, float32" in text


def test_what_was_refused_is_named_and_left_out():
    found = results()
    for job in (costs.FORWARD, costs.MEMORY, costs.FLAWED_TIMES, costs.FLAWED_MEMORY):
        found[job] = {"refused": "float32: 2 through math, 6 through flash"}
    refused = costs_of(found)
    assert refused.answer.endswith(
        "times are not reported, since no kernel serves all variants alike."
    )
    section = costs.section(refused)
    assert "Not reported, attention forward: the variants run through different kernels" in (
        section.text
    )
    assert [row[1] for row in section.blocks[0].rows] == ["–"] * 4
    assert refused.summary["sweep"]["compared_with_six"][1][costs.FORWARD] is None
    rows = faults.section(refused.flawed, ONE_BATCH).blocks[0].rows
    assert [row[0] for row in rows] == ["one"]


def test_memory_that_cannot_be_read_is_left_out():
    found = results()
    found[costs.MEMORY]["bytes"] = dict.fromkeys(("1", "2", "3", "6"))
    found[costs.FLAWED_MEMORY]["peak"] = {"shared": None, "six": None}
    section = costs.section(costs_of(found))
    assert [row[4] for row in section.blocks[0].rows] == ["–"] * 4
    rows = faults.section(costs_of(found).flawed, ONE_BATCH).blocks[0].rows
    assert not any("memory" in row[0] for row in rows)


def reasons(found):
    rows = faults.section(costs_of(found).flawed, ONE_BATCH).blocks[0].rows
    return {row[0]: row[3] for row in rows}


def test_a_fault_without_effect_says_so():
    on_cpu = reasons(results())
    for fault in ("the clock is read without waiting", *(f for f in on_cpu if "empty_cache" in f)):
        assert on_cpu[fault].count("so a difference is noise") == 1
    on_gpu = results()
    on_gpu[costs.FLAWED_TIMES]["device"] = "cuda"
    waited = "the clock is read without waiting"
    assert reasons(on_gpu)[waited].endswith("the launch takes as long as the work.")
    on_gpu[costs.FLAWED_TIMES]["unsynchronised"] = {"shared": 0.1, "six": 0.1}
    assert reasons(on_gpu)[waited].endswith("the clock has measured the launch, not the work.")


def test_memory_is_upside_down_only_where_it_is():
    found, fault = results(), "the same, through different kernels"
    assert reasons(found)[fault].endswith("It looks as if sharing needed more memory.")
    found[costs.FLAWED_MEMORY]["together"] = {"shared": 1e6, "six": 9e6}
    assert not reasons(found)[fault].endswith("It looks as if sharing needed more memory.")
