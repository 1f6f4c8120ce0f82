"""Windows: the mask by hand, and the documents' programs by hand."""

import functools

import pytest
import torch

from attnlab.kernels import attention
from attnlab.theory import window
from attnlab.theory.claim import Judgement
from attnlab.theory.window import WindowMask


@pytest.fixture
def few(monkeypatch):
    """All windows of texts up to 5: enough to see a fault."""
    monkeypatch.setattr(window, "LONGEST", 5)


def test_documents_are_judged_by_their_own_programs(few):
    assert WindowMask().run().judgements == {
        "004 student 3(c)": Judgement("wrong"),
        "004 GPT-4 3.1(c) program": Judgement("wrong", "wrong"),
        "004 GPT-4 3.1(c) words": Judgement("right"),
    }


def test_a_right_program_would_be_marked_right(few, monkeypatch):
    def right(q, k, v, width):
        return torch.from_numpy(window.definition(q, k, v, width))

    for name in (window.GPT4, "the student's, half-open ranges, as written"):
        monkeypatch.setitem(window.PROGRAMS, name, right)
    monkeypatch.setattr(window, "program_of_gpt4", right)
    marks = WindowMask().run().judgements
    assert marks["004 student 3(c)"] == Judgement("right")
    assert marks["004 GPT-4 3.1(c) program"] == Judgement("right", "right")


@pytest.mark.parametrize(
    ("length", "width", "verdict"),
    [(13, 2, "holds"), (7, 0, "holds"), (64, 60, "holds"), (5, 8, "refuted"), (1, 0, "refuted")],
)
def test_a_window_hides_something_only_in_a_longer_text(few, length, width, verdict):
    assert WindowMask(length=length, width=width).run().verdict == verdict


def test_row_sums_of_the_printed_matrix_are_those_of_three_keys():
    assert [sum(row) for row in window.PRINTED] == [1, 2, 3, 3, 3, 3]
    assert window.rule(6, 4).tolist() == [list(map(float, row)) for row in window.PRINTED]


@pytest.mark.parametrize("keys", [lambda w: w // 2 + 2, lambda w: max(w // 2, 1), lambda w: w + 1])
def test_another_count_of_keys_is_refuted(few, monkeypatch, keys):
    monkeypatch.setattr(window, "keys_of_course_width", keys)
    assert WindowMask().run().verdict == "refuted"


def test_a_mask_with_the_right_sums_over_the_wrong_keys_is_seen(monkeypatch):
    visible = window.visible
    monkeypatch.setattr(window, "visible", lambda *asked: visible(*asked).flip(1))
    pairs, rows, used_by_kernels = window.unlike_rule(0, 5, 2)
    # rows {0} {0,1} {1,2} {2,3} {3,4} against {4} {3,4} {2,3} {1,2} {0,1}
    assert (pairs, rows, used_by_kernels) == (2 + 4 + 2 + 2 + 4, 0, 0)


def test_a_kernel_that_ignores_the_window_is_refuted(few, monkeypatch):
    def careless(q, k, v, window=None, path="auto"):
        return attention(q, k, v, path=path)

    monkeypatch.setattr(window, "attention", careless)
    assert WindowMask().run().verdict == "refuted"


def test_equal_scores_give_means_over_the_window():
    zeros, values = torch.zeros(3, 1).double(), torch.tensor([[2.0], [4.0], [8.0]]).double()
    # w = 2: each query averages its own value and the one before
    assert window.definition(zeros, zeros, values, 2)[:, 0].tolist() == [2, 3, 6]
    student = functools.partial(window.program_of_student, zeros, zeros, values, 2)
    # with half-open ranges there are two slots; the first row shares its weight with an empty one
    assert student(matched=True)[:, 0].tolist() == [1, 3, 6]
    assert student(matched=True, emptied=True)[:, 0].tolist() == [2, 3, 6]
    # with both ends there are three slots, of which the first row fills one and the second two
    both_ends = student(both_ends=True)[:, 0].tolist()
    assert both_ends == pytest.approx([2 / 3, 6 / 3, 14 / 3], abs=1e-12)
    assert torch.equal(window.program_of_gpt4(zeros, zeros, values, 2), values)


@pytest.mark.parametrize(("both_ends", "keys"), [(False, 3), (True, 4)])
def test_the_students_loop_takes_a_key_more_when_both_ends_are_included(both_ends, keys):
    q, k, _ = window.random_qkv(0, 9, 3)
    eye = torch.eye(9).double()
    weights = window.program_of_student(q, k, eye, 4, both_ends=both_ends, emptied=True)
    assert (weights[-1] > 0).sum() == keys
    # for i = 6 and w = 4 by the loop's own words: j from 6 − 3 to 6
    assert len(range(3, 6 + both_ends)) == keys


def test_two_faults_are_there_in_both_readings_and_mending_both_is_right_in_one():
    errors, _ = window.errors_of(3, 9, 4)
    for reading in window.READINGS:
        names = [f"the student's, {reading}, {words}" for words in window.MENDED]
        written, matched, emptied, both = (errors[name] for name in names)
        assert min(written, matched, emptied) > 1e-3
        assert (both <= 1e-12) == (reading == "half-open ranges")


def test_the_students_weights_meet_the_wrong_values_even_in_a_full_window():
    q, k, v = window.random_qkv(1, 9, 3)
    true = torch.from_numpy(window.definition(q, k, v, 4))
    reversed_rows = window.program_of_student(q, k, v, 4) - true
    matched_rows = window.program_of_student(q, k, v, 4, matched=True) - true
    assert (reversed_rows[2:].abs().amax(1) > 1e-3).all()
    assert matched_rows[2:].abs().max() <= 1e-12 < matched_rows[:2].abs().max()


def test_gpt4s_program_with_its_mask_opened_is_the_definition(monkeypatch):
    q, k, v = window.random_qkv(2, 11, 3)
    assert torch.equal(window.program_of_gpt4(q, k, v, 6), v)
    monkeypatch.setattr(torch, "full_like", lambda x, _: torch.zeros_like(x))
    opened = window.program_of_gpt4(q, k, v, 6).numpy()
    assert abs(opened - window.definition(q, k, v, 6)).max() <= 1e-12


def test_settings_that_make_no_sense_are_refused(unchecked_shapes):
    with pytest.raises(ValueError, match=r"width is 5; .* use 4 or 6"):
        WindowMask(width=5)
