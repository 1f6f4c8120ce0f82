"""No test gets a cached result of another, which may have broken something on purpose."""

import pytest


@pytest.fixture(autouse=True)
def empty_caches():
    from attnlab.theory import angle, ledger, window

    for function in (window.unlike_rule, window.errors_of, ledger.cost_of, angle.angle_fits):
        function.cache_clear()
