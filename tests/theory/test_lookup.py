"""Look-up claims against numbers worked out by hand."""

import math

import numpy as np
import pytest

from attnlab.theory.lookup import AverageOfTwo, Copy, RecoverAPart, _orthogonality_error, _recover


def marks(claim):
    """By answer: what is said of its conclusion and of its reason."""
    return {key: (found.conclusion, found.reason) for key, found in claim.run().judgements.items()}


def values(claim):
    return {measure.what: measure.value for measure in claim.run().measures}


@pytest.mark.parametrize("keys", [2, 3, 50])
@pytest.mark.parametrize("lead", [0.0, 0.3, 5.0, 40.0])
def test_the_bound_of_the_copy_is_never_passed(keys, lead):
    assert values(Copy(keys=keys, lead=lead))["weight lost, of (n−1)e^(−g)"] <= 1 + 1e-12


def test_a_lead_of_five_is_enough_for_two_keys_and_not_for_a_thousand():
    assert Copy(lead=5, keys=2).run().verdict == "holds"
    assert Copy(lead=5, keys=1000, cases=20).run().verdict == "refuted"


def test_a_short_query_leaves_most_of_the_weight_to_the_others():
    claim = AverageOfTwo(keys=10)
    assert claim._formula(1 / math.sqrt(2)) == pytest.approx(0.168, abs=5e-4)
    assert claim._formula(1.0) == pytest.approx(math.e / (2 * math.e + 8))
    assert claim._formula(0.0) == pytest.approx(0.1)


@pytest.mark.parametrize("keys", [3, 7, 16])
def test_the_formula_holds_for_every_length_of_the_query(keys):
    for beta in (0.0, 0.5, 3.0, 30.0):
        found = values(AverageOfTwo(keys=keys, beta=beta))
        assert found["|α_a − formula|"] <= 1e-12 and found["|α_a − α_b|"] <= 1e-12


def test_a_part_comes_back_and_its_error_grows_with_the_overlap():
    errors = [max(values(RecoverAPart(overlap=s)).values()) for s in (0.0, 0.1, 0.5)]
    assert errors[0] <= 1e-12 < 0.05 < errors[1] < errors[2]


def test_the_transpose_gives_coordinates_and_not_the_vector():
    """The answer of 002 has as many numbers as A has columns."""
    for claim in (RecoverAPart(), RecoverAPart(width=5, first=4, second=1), RecoverAPart(seed=3)):
        assert marks(claim) == {
            "002 1(b)i (Mv_a = c)": ("right", "right"),
            "002 1(b)i (Ms = v_a)": ("wrong", "incomplete"),
        }
    assert marks(RecoverAPart(overlap=0.5))["002 1(b)i (Mv_a = c)"] == ("wrong", "wrong")


def test_where_a_is_the_identity_the_transpose_gives_the_vector():
    """So the mark is computed: with A = I coordinates and vector are the same."""
    one, empty = np.eye(3), np.zeros((3, 1))
    assert _recover(one, empty, np.array([1.0, 2.0, 3.0]), np.zeros(1), 0.0) == (0.0, 0.0, True)
    assert _orthogonality_error(one, empty, 0.0) == 0 and _orthogonality_error(one, one, 0.0) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_short_queries_are_wrong_with_one_other_key_already(seed):
    assert marks(AverageOfTwo(seed=seed)) == {
        "000 1(b)": ("wrong", "incomplete"),
        "001 1(b)": ("right", "right"),
        "002 1(b)ii": ("right", "right"),
        "003 1(b)": ("wrong", "incomplete"),
    }
    assert AverageOfTwo(keys=3)._formula(1.0) < 0.49 > AverageOfTwo(keys=3)._formula(0.71)


def test_what_the_documents_say_of_the_copy():
    assert marks(Copy()) == {
        "000 1(a)": ("wrong", None),
        "001 1(a)": ("right", "right"),
        "002 1(a)ii-iii": ("incomplete", None),
        "003 1(a)": ("right", None),
    }
    # with no lead nothing is copied, and whoever says so is contradicted
    assert marks(Copy(lead=0))["001 1(a)"] == ("wrong", "right")


def test_subspaces_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="first \\+ second is 21, more than width 16"):
        RecoverAPart(first=20, second=1).run()


def test_weights_are_a_softmax_of_real_keys():
    """By hand for two keys: α = e^β / (e^β + e^β) = ½ whatever β."""
    claim = AverageOfTwo(keys=3, width=3)
    weights = claim._weights(np.eye(3), 2.0)
    e = math.exp(2)
    assert weights == pytest.approx([e / (2 * e + 1), e / (2 * e + 1), 1 / (2 * e + 1)])
