"""Weights as a distribution, against small cases worked out by hand."""

import math

import numpy as np
import pytest

from attnlab.theory import distribution
from attnlab.theory.distribution import WeightsAreADistribution


def measures(claim):
    return {measure.what: measure for measure in claim.run().measures}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_verdict_does_not_hang_on_the_seed(seed):
    claim = WeightsAreADistribution(seed=seed)
    assert claim.run().verdict == "holds" and claim.with_knob().run().verdict == "refuted"
    said = {key: (one.conclusion, one.reason) for key, one in claim.run().judgements.items()}
    assert said == {"002 1(a)i": ("right", None), "002 1(a)iv": ("right", "right")}


@pytest.mark.parametrize("changes", [{"keys": 2}, {"spread": 3.0}, {"spread": 0.1}, {"width": 1}])
def test_it_holds_at_the_ends_of_the_settings(changes):
    assert WeightsAreADistribution(**changes).run().verdict == "holds"


def test_sigmoids_do_not_add_up_and_scores_over_their_sum_are_not_in_order():
    by_sigmoid = measures(WeightsAreADistribution(rule="sigmoid"))
    assert not by_sigmoid["largest |Σ α − 1|"].met and by_sigmoid["smallest weight"].met
    assert by_sigmoid["keys that are not in the order of their scores"].met
    assert not by_sigmoid["farthest that c is outside the values' hull"].met
    divided = measures(WeightsAreADistribution(rule="divided by their sum"))
    assert divided["largest |Σ α − 1|"].met and not divided["smallest weight"].met


def test_two_keys_by_hand():
    """Scores 0 and ln 3: weights ¼ and ¾; values 0 and 4: the output is 3."""
    claim = WeightsAreADistribution(keys=2, width=1)
    weights = claim._weights(np.array([[0.0, math.log(3)]]))
    assert weights[0] == pytest.approx([0.25, 0.75])
    values = np.array([[[0.0], [4.0]]])
    assert claim._rest(np.array([[0.0, 1.0]]), values) == pytest.approx(4.0)
    assert claim._nearest_is_heaviest(weights, values) == 1
    assert claim._beyond(weights, values) == 0
    assert claim._beyond(np.array([[-0.5, 1.5]]), values) == pytest.approx(2)


def test_the_output_need_not_be_nearest_to_the_value_of_the_heaviest_key():
    values = np.array([[[0.0], [10.0], [10.1]]])
    assert WeightsAreADistribution._nearest_is_heaviest(np.array([[0.4, 0.3, 0.3]]), values) == 0


def test_a_softmax_that_forgets_to_divide_is_noticed(monkeypatch):
    monkeypatch.setattr(distribution, "softmax", np.exp)
    assert WeightsAreADistribution().run().verdict == "refuted"
