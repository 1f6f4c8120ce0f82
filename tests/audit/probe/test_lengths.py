"""The lengths that code takes are found, and everything is examined within them."""

import pytest

from attnlab.audit.errors import SubjectError
from attnlab.audit.probe.lengths import LONGEST, TRIED, Lengths
from attnlab.audit.repro.prelude import CannotTell


def lengths(fits, named=()):
    """Of code that takes the lengths for which `fits` is true; `calls` counts what was tried."""
    calls = []

    def refuse(length):
        calls.append(length)
        return None if fits(length) else SubjectError("no", kind="ValueError", length=length)

    found = Lengths(refuse, named)
    found.calls = calls
    return found


def test_code_that_takes_everything_is_tried_at_all_lengths_and_nothing_is_said():
    found = lengths(lambda t: True)
    assert found.ends == (1, LONGEST) and set(TRIED) <= set(found.tried) and not found.note
    assert {15, 16, 17, 33, 47, 48, 65, 96, 100, 129} <= set(found.tried)


@pytest.mark.parametrize(
    ("least", "most"), [(1, 16), (3, 129), (3, 16), (8, 8), (1, 1), (24, 31), (70, 99), (2, 128)]
)
def test_both_ends_are_found_by_trying(least, most):
    found = lengths(lambda t: least <= t <= most)
    assert found.ends == (least, most)
    assert found.tried[0] == least and found.tried[-1] == most


def test_a_name_is_tried_first_and_never_believed():
    named = lengths(lambda t: t <= 16, named=(16, 512))
    assert named.ends == (1, 16)
    assert len(named.calls) < len(set(_bisected(lambda t: t <= 16)))
    assert lengths(lambda t: t <= 40, named=(16,)).ends == (1, 40)


def _bisected(fits):
    plain = lengths(fits)
    plain.ends  # noqa: B018
    return plain.calls


def test_nothing_is_tried_twice():
    found = lengths(lambda t: 3 <= t <= 20)
    for length in (1, 2, 23, 23, 70, 70):
        found.fit(length)
    assert len(found.calls) == len(set(found.calls)) and found.note


def test_the_nearest_length_stands_for_one_that_is_refused():
    found = lengths(lambda t: 3 <= t <= 20 and t != 11)
    assert [found.fit(one) for one in (1, 5, 11, 23, 70)] == [3, 5, 10, 20, 20]
    assert found.fit(13, low=5, high=9) == 9
    with pytest.raises(CannotTell, match="texts of 21 to 25"):
        found.fit(23, low=21, high=25)


def test_a_length_refused_between_others_is_said():
    found = lengths(lambda t: t != 23)
    assert 23 not in found.tried and found.tried[-1] == LONGEST
    assert "but not 23 (raised ValueError at length 23: no)" in found.note


def test_even_lengths_are_not_cut_at_the_first_odd_one():
    found = lengths(lambda t: t % 2 == 0)
    assert found.ends == (2, 128) and found.fit(23) == 22 and found.fit(7) == 6


def test_code_that_takes_nothing_raises_what_it_raised():
    found = lengths(lambda t: False)
    for ask in (lambda: found.ends, lambda: found.fit(7), lambda: found.tried):
        with pytest.raises(SubjectError) as error:
            ask()
        assert error.value.length == 23


def test_sizes_of_checks_stay_in_their_order():
    found = lengths(lambda t: t <= 9)
    assert found.fit_sizes({"length": 13, "real": 8, "batch": 3}) == {
        "length": 9,
        "real": 8,
        "batch": 3,
    }
    assert lengths(lambda t: t <= 8).fit_sizes({"length": 13, "real": 8})["real"] == 7
    assert found.fit_sizes({"short": 6, "length": 11}) == {"short": 6, "length": 9}
    with pytest.raises(CannotTell, match="needed"):
        lengths(lambda t: t == 8).fit_sizes({"short": 6, "length": 11})


def test_a_check_of_many_positions_is_not_run_on_very_few():
    with pytest.raises(CannotTell, match="texts of 5"):
        lengths(lambda t: t <= 3).fit_sizes({"length": 11})
    assert lengths(lambda t: t <= 3).fit_sizes({"length": 2}) == {"length": 2}


def test_pieces_add_up_to_a_length_that_is_taken():
    found = lengths(lambda t: t <= 16)
    assert found.fit_sizes({"pieces": [4, 4, 4, 4, 1]}) == {"pieces": [4, 4, 4, 4]}
    assert found.fit_sizes({"pieces": [9, 8]}) == {"pieces": [9, 7]}
    assert lengths(lambda t: t > 19).fit_sizes({"pieces": [9, 8]}) == {"pieces": [9, 11]}
    assert found.fit_sizes({"pieces": [3, 20], "text": 1}) == {"pieces": [3, 20], "text": 1}


def test_a_picture_has_patches_and_is_not_called_a_text():
    found = Lengths(lambda length: None, block=9, picture=True)
    assert found.note == "; a picture always has 9 patches: those after the ones drawn are 0"
