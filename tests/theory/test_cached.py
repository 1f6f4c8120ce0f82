"""What is cached for sliders: it changes no result, and the fixed part is computed once."""

import pytest

from attnlab.theory import angle, cost, ledger, window

CACHED = {
    "unlike_rule": (window.unlike_rule, (5, 6, 4)),
    "errors_of": (window.errors_of, (5, 6, 4)),
    "cost_of": (ledger.cost_of, (cost.dense, 9, 4, 8)),
    "angle_fits": (angle.angle_fits, (5, 0.75, (4, 16), (45.0, 0.75, 0.0))),
}


@pytest.mark.parametrize("name", CACHED)
def test_a_cached_result_is_what_would_be_computed(name):
    function, given = CACHED[name]
    assert function(*given) == function(*given) == function.__wrapped__(*given)


def test_the_seed_is_part_of_the_cache_key():
    assert window.errors_of(1, 6, 4) != window.errors_of(2, 6, 4)


def test_a_part_that_no_slider_changes_is_computed_once():
    window.WindowMask(seed=0, length=4).run()
    before = window.errors_of.cache_info()
    window.WindowMask(seed=0, length=7, width=6).run()
    after = window.errors_of.cache_info()
    assert after.misses == before.misses  # N = 7, w = 6 was among all windows of all short texts
