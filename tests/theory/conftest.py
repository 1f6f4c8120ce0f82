"""Nothing that one test has kept reaches another, which may have broken something on purpose."""

import pytest


@pytest.fixture(autouse=True)
def nothing_kept():
    from attnlab.theory import angle, ledger, window

    for function in (window.unlike_rule, window.errors_of, ledger.counted, angle.angle_fits):
        function.cache_clear()
