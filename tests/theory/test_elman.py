"""Elman's memory, counted by hand."""

from fractions import Fraction

import pytest

from attnlab.theory import elman
from attnlab.theory.claim import Judgement
from attnlab.theory.elman import ElmanRemembersBoth


def test_both_answers_are_right_whatever_the_bias_that_is_tried():
    right = Judgement("right", "right")
    for claim in (ElmanRemembersBoth(), ElmanRemembersBoth().with_knob()):
        assert claim.run().judgements == {"004 student 1.1": right, "004 GPT-4 1.1": right}


def test_elman_with_no_bias_is_wrong_after_all_inputs_that_show_just_one():
    # of length t there are 2 (2^t − 1): each step none or that one, and not always none
    evidence = ElmanRemembersBoth(bias=0.0, length=5).run()
    assert evidence.trials == sum(4**t for t in range(1, 6))
    assert evidence.measures[0].value == sum(2 * (2**t - 1) for t in range(1, 6))
    assert evidence.measures[1].value == 2  # of the four states


@pytest.mark.parametrize("bias", [-2.0, -1 - 2**-40, -1 + 2**-40, -0.5, 1.0])
def test_no_other_bias_does(bias):
    evidence = ElmanRemembersBoth(bias=bias, length=2).run()
    assert evidence.verdict == "refuted"
    assert evidence.measures[3].met  # our network follows the fractions all the same


def test_elman_answers_once_the_second_input_comes():
    seen, state, outputs = (0, 0), elman.START, []
    for x in [(1, 0), (0, 0), (1, 0), (0, 1), (0, 0)]:
        seen, state = elman._step(seen, state, x)
        outputs.append(elman._output(state, Fraction(-1)))
    assert outputs == [0, 0, 0, 1, 1]


def test_a_network_that_forgets_is_found_out(monkeypatch):
    def forgetful(seen, state, x):
        return (seen[0] | x[0], seen[1] | x[1]), (Fraction(x[0]), Fraction(x[1]))

    monkeypatch.setattr(elman, "_step", forgetful)
    evidence = ElmanRemembersBoth(length=3).run()
    assert not any(measure.met for measure in evidence.measures)
    assert evidence.judgements["004 student 1.1"] == Judgement("wrong", "wrong")
    # its output still is 1 just when both units are
    assert evidence.judgements["004 GPT-4 1.1"] == Judgement("wrong", "right")


def test_a_length_of_no_steps_is_refused():
    with pytest.raises(ValueError, match="length"):
        ElmanRemembersBoth(length=0)
