"""The dot product and the angle, by hand."""

import math

import numpy as np
import pytest

from attnlab.theory import dot
from attnlab.theory.claim import EQUAL, Judgement
from attnlab.theory.dot import DotProductIsNotTheAngle


def test_the_numbers_of_the_table_are_those_of_pencil_and_paper():
    rows = {row[0]: row[1:] for row in DotProductIsNotTheAngle().run().details[0].rows}
    assert rows["(1, 0)"][:3] == [1, 0, 1] and rows["(2, 0)"][:3] == [2, 0, 2]
    assert rows["(1, 1)"][1:3] == pytest.approx([45, 1]) and rows["(3, 3)"][2] == 3
    assert rows["(1, 5)"][1] == pytest.approx(78.69, abs=0.01) and rows["(1, 5)"][2] == 1
    assert sum(row[3] for row in rows.values()) == pytest.approx(1)
    assert rows["(2, 0)"][3] / rows["(1, 0)"][3] == pytest.approx(math.exp(1 / math.sqrt(2)))


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("width", [1, 3, 64])
def test_it_holds_at_other_widths_and_seeds_and_not_for_vectors_of_length_1(seed, width):
    settings = {"seed": seed, "width": width, "cases": 7}
    assert DotProductIsNotTheAngle(**settings).run().verdict == "holds"
    turned = DotProductIsNotTheAngle(**settings, unit=True).run()
    assert turned.verdict == "refuted"
    assert not turned.measures[1].met  # a cosine does not grow with the key


@pytest.mark.parametrize(("longer", "holds"), [(1.3, False), (1.5, True)])
def test_a_key_at_45_degrees_wins_from_the_root_of_2_on(longer, holds):
    assert (DotProductIsNotTheAngle(longer=longer).run().verdict == "holds") == holds


def test_what_gpt4_says_is_marked_for_the_dot_product_as_it_is_whatever_the_setting():
    for claim in (DotProductIsNotTheAngle(), DotProductIsNotTheAngle().with_knob()):
        assert claim.run().judgements == {
            "004 GPT-4 2.1(a) angle": Judgement("wrong"),
            "004 GPT-4 2.1(b) linear": Judgement("incomplete"),
            "004 GPT-4 2.1(b) lengths": Judgement("wrong"),
            "004 GPT-4 2.1(b) fixed": Judgement("wrong"),
        }


def test_the_marks_follow_what_is_measured(monkeypatch):
    """If the dot product was a cosine, and the cosine the mean of the coordinates of k."""

    def other(keys, queries, unit):
        return keys.mean(axis=1) if unit else right(keys, queries, True)

    right = dot._dots
    monkeypatch.setattr(dot, "_dots", other)
    k, other_k, q, other_q = np.random.default_rng(0).normal(size=(4, 9, 5))
    marks = DotProductIsNotTheAngle()._judgements(k, other_k, q, other_q)
    assert marks["004 GPT-4 2.1(a) angle"] == Judgement("right")
    assert marks["004 GPT-4 2.1(b) linear"] == Judgement("wrong")
    assert marks["004 GPT-4 2.1(b) lengths"] == Judgement("right")
    assert marks["004 GPT-4 2.1(b) fixed"] == Judgement("right")


def test_of_vectors_of_length_1_it_is_the_cosine():
    k, q = np.array([[3.0, 4.0]]), np.array([[5.0, 12.0]])
    assert dot._dots(k, q, False)[0] == 63
    assert abs(dot._dots(k, q, True)[0] - 63 / 65) <= EQUAL


def test_pictures_and_tables_say_whether_vectors_were_made_length_1():
    for unit in (False, True):
        found = DotProductIsNotTheAngle(unit=unit, degrees=30.0, longer=5.0).run()
        assert ("length 1" in found.picture.title) == ("length 1" in found.details[0].title) == unit
        line = next(one for one in found.picture.series if one.name.startswith("30°"))
        assert line.x[-1] == 5
        assert (line.y[-1] == pytest.approx(line.y[0])) == unit


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"longer is 0\.5"):
        DotProductIsNotTheAngle(longer=0.5)
