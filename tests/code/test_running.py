"""What own code raises is one sentence with its line; what stops the laboratory passes through."""

from pathlib import Path

import pytest

from attnlab.code.places import InputError
from attnlab.code.running import defined_at, running
from attnlab.stop import StopNow

HERE = frozenset({Path(__file__).resolve()})


def line(of):
    return of.__code__.co_firstlineno + 1


def fail(error):
    raise error


@pytest.mark.parametrize(
    "error", [KeyError("x"), SystemExit(0), GeneratorExit(), type("Odd", (BaseException,), {})()]
)
def test_whatever_is_raised_is_said_with_its_line(error):
    with pytest.raises(InputError) as said, running("mine.py:X failed", HERE):
        fail(error)
    text = f"mine.py:X failed: {type(error).__name__}"
    assert str(said.value).startswith(text)
    assert str(said.value).endswith(f"(test_running.py, line {line(fail)})")


@pytest.mark.parametrize("error", [StopNow(), KeyboardInterrupt(), MemoryError(), InputError("x")])
def test_signals_memory_and_sentences_of_ours_pass_through(error):
    with pytest.raises(type(error)) as raised, running("mine.py:X failed", HERE):
        fail(error)
    assert raised.value is error


def test_of_several_lines_the_innermost_of_theirs_counts():
    def outer():
        Path("no such file").read_text()

    with pytest.raises(InputError, match="one line") as said, running("one line", HERE):
        outer()
    assert f"line {line(outer)})" in str(said.value)


def test_a_long_message_of_many_lines_is_one_short_line():
    with pytest.raises(InputError) as said, running("x", frozenset()):
        fail(ValueError("many\nlines " * 200))
    assert len(str(said.value)) < 320 and "\n" not in str(said.value)


def test_a_function_is_known_by_where_it_begins():
    assert defined_at(fail) == f" (test_running.py, line {line(fail) - 1})"
    assert defined_at(len) == ""
