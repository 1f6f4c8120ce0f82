"""Which errors are a line for a person, and which stay what they are."""

import pytest

from attnlab import errors


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("steps is 0;\n use 1"), "steps is 0; use 1"),
        (OSError(28, "No space left"), "[Errno 28] No space left"),
        (MemoryError(), errors.MEMORY),
        (RuntimeError("can't allocate memory: 4 TB"), errors.MEMORY),
        (RuntimeError("shapes differ"), None),
        (KeyError("ours"), None),
    ],
)
def test_what_a_person_can_mend_is_explained(error, line):
    assert errors.explain(error) == line


def test_a_notebook_shows_one_harmless_line():
    error = errors.Error("no \x1b[2J run")
    error.add_note("a note")
    assert error._render_traceback_() == ["Error: no \\x1b[2J run", "a note"]
    assert issubclass(errors.Interrupt, KeyboardInterrupt)
