"""Sliding windows are counted, and one key more or less is found."""

from dataclasses import replace

import pytest
import torch
from audit.properties.masks import masked

from attnlab.audit import Contract
from attnlab.audit.probe.probe import Probe
from attnlab.audit.probe.tools import Tools
from attnlab.audit.properties.window import Window, width_of
from attnlab.audit.subject.adapters import subject_for
from attnlab.kernels import attention


def found(code, **declared):
    return Window().examine(Probe(subject_for(code, {}, "code"), Contract(**declared)))


def test_full_causal_attention_passes_and_sees_all_that_came_before():
    code = masked(lambda i, j: j <= i)
    assert found(code).measured is None


@pytest.mark.parametrize("window", [1, 2, 7, 20, 37])
def test_a_window_is_counted_and_one_more_or_less_is_found(window):
    def attend(q, k, v):
        return attention(q, k, v, window=window)

    assert found(attend).measured == window
    assert found(attend, window=window).verdict == "pass"
    for wrong in {window - 1, window + 1} - {0}:
        finding = found(attend, window=wrong)
        assert finding.verdict == "fail" and finding.measured == window


def test_a_window_that_is_wrong_far_in_only():
    """Right up to position 18, then a key too many: as where a ring has wrapped."""
    code = masked(lambda i, j: (j <= i) & (i - j < torch.where(i > 18, 10, 9)))
    finding = found(code, window=9)
    assert finding.verdict == "fail" and finding.detail.startswith("output 19 moves")
    assert found(masked(lambda i, j: (j <= i) & (i - j < 9)), window=9).verdict == "pass"


@pytest.mark.parametrize("reach", [24, 50, 64])
def test_a_window_that_short_texts_do_not_show_is_measured_in_a_long_one(reach):
    assert found(masked(lambda i, j: (j <= i) & (i - j < reach))).measured == reach
    # chunks end at other distances from every query
    assert found(masked(lambda i, j: (j <= i) & (i // reach == j // reach))).measured is None


def test_full_attention_has_not_one_key_too_many():
    full = masked(lambda i, j: j <= i)
    example = found(full, window=4).example
    for length in (5, 6, 23):
        case = replace(example, sizes={**example.sizes, "length": length})
        wrong, text, _ = case.run(Tools(Probe(subject_for(full, {}, "code"), Contract())))
        assert wrong and "too many" not in text
    assert "one key too many" in found(masked(lambda i, j: (j <= i) & (i - j < 5)), window=4).detail


def test_rows_that_are_mixed_make_no_window():
    """Each row sees those before it: influence is then measured row by row."""

    def attend(q, k, v):
        return attention(q, k, v, window=5).cumsum(0)

    assert found(attend, window=5).verdict == "pass"


def test_a_window_is_measured_within_what_the_code_takes():
    def attend(q, k, v):
        if q.shape[2] > 9:
            raise ValueError("no more than 9")
        return attention(q, k, v, window=5)

    assert found(attend, window=5).verdict == "pass" and found(attend).measured == 5
    finding = found(attend, window=9)
    assert finding.verdict == "cannot tell" and "at length 10: no more than 9" in finding.detail


def test_keys_are_counted_from_the_earliest_that_is_seen():
    seen = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
    assert width_of(seen) == 3 and width_of(seen[:2, :2]) == 1


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("dilated", lambda i, j: (j <= i) & (i - j < 7) & ((i - j) % 2 == 0)),
        ("sinks", lambda i, j: (j <= i) & ((i - j < 7) | (j < 2))),
        ("blind to its own", lambda i, j: (j == i) & (i == 0) | (j < i) & (i - j < 7)),
    ],
)
def test_what_is_no_band_is_no_window(name, seen):
    assert found(masked(seen), window=7).verdict == "fail"
    undeclared = found(masked(seen))
    assert undeclared.verdict == "pass" and undeclared.measured is None
    assert "no window" in undeclared.detail
