"""The delta rule as a memory, against states worked out by hand."""

import numpy as np
import pytest

from attnlab.theory.overwrite import DeltaRuleOverwrites


def values(claim):
    return [measure.value for measure in claim.run().measures]


def test_two_writes_at_one_key_by_hand():
    """A second write replaces: (0, 5) after (3, 1), also by the formula for β = ¼; or is added."""
    key, first, second = np.array([[0.6, 0.8]]), np.array([[3.0, 1.0]]), np.array([[0.0, 5.0]])
    for settings, wanted in (
        ({}, [0.0, 5.0]),
        ({"strength": 0.25}, [0.75 * 0.75, 0.75 * 0.25 + 0.25 * 5]),
        ({"adds": True}, [3.0, 6.0]),
    ):
        claim = DeltaRuleOverwrites(**settings)
        state = claim._write(key, second, claim._write(key, first))
        assert (key @ state)[0] == pytest.approx(wanted)


def test_half_a_strength_leaves_a_part_of_the_old_values():
    last, others, mixed, added = values(DeltaRuleOverwrites(strength=0.5))
    assert last > 0.1 and max(others, mixed, added) <= 1e-12
    assert DeltaRuleOverwrites(strength=0.5).run().verdict == "refuted"


def test_in_the_picture_addition_goes_away_from_the_last_value_and_the_delta_rule_stays():
    rule, addition = DeltaRuleOverwrites().run().picture.series
    assert max(rule.y) <= 1e-12 and addition.y[0] <= 1e-12
    assert addition.y[1] > 0.5 and addition.y[-1] > addition.y[1]
