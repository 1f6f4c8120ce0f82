"""The query that subtracts the other keys, against its closed form."""

import math

import numpy as np
import pytest

from attnlab.theory import opposite
from attnlab.theory.opposite import OppositeOfTheOtherKeys


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_verdict_does_not_hang_on_the_seed(seed):
    claim = OppositeOfTheOtherKeys(seed=seed)
    assert claim.run().verdict == "holds with a condition"
    assert claim.with_knob().run().verdict == "refuted"
    said = {key: (one.conclusion, one.reason) for key, one in claim.run().judgements.items()}
    assert said == {"003 1(a)ii": ("wrong", "wrong"), "003 1(b) (signs)": ("wrong", None)}


def test_scores_are_one_and_minus_one_however_many_keys():
    for keys in (2, 5, 40):
        assert opposite._scores(np.eye(keys), 1) == pytest.approx([1, *[-1] * (keys - 1)])
    assert opposite._scores(np.eye(4), 2) == pytest.approx([1, 1, -1, -1])


def test_weights_by_hand():
    claim = OppositeOfTheOtherKeys()
    square = math.e**2
    assert claim._formula(1.0, 1, 2) == pytest.approx(square / (square + 1))
    assert claim._formula(1.0, 1, 10) == pytest.approx(0.4509, abs=1e-4)
    assert claim._formula(0.0, 2, 10) == pytest.approx(0.1)


@pytest.mark.parametrize("keys", [3, 16])
@pytest.mark.parametrize("beta", [0.0, 0.5, 3.0, 40.0])
def test_the_formulas_hold_for_every_length_of_the_query(keys, beta):
    for measure in OppositeOfTheOtherKeys(keys=keys, beta=beta).run().measures[1:]:
        assert measure.met, measure


def test_for_more_than_four_keys_the_plain_query_of_equal_length_leads_by_more():
    for keys, better in ((3, True), (4, None), (5, False), (16, False)):
        minus, alone = OppositeOfTheOtherKeys(keys=keys).run().picture.series
        gain = minus.y[-1] - alone.y[-1]
        assert gain == pytest.approx(0, abs=1e-12) if better is None else (gain > 0) == better


def test_keys_that_are_not_at_right_angles_are_noticed(monkeypatch):
    """Key 2 leans towards key 1 and scores β(½ − 1) with it, not −β."""
    leaning = np.eye(10)
    leaning[1, 0] = 0.5
    monkeypatch.setattr(opposite, "orthonormal", lambda *drawn: leaning)
    lead = OppositeOfTheOtherKeys().run().measures[2]
    assert not lead.met and OppositeOfTheOtherKeys().run().verdict == "refuted"
