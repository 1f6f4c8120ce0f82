"""What the code under audit raises is a SubjectError that says what, where and when."""

import pytest

from attnlab.audit.errors import OutOfMemory, ScriptError, SubjectError, calling
from attnlab.audit.subject import tensors
from attnlab.audit.subject.tensors import first_tensor, loss_in


def test_no_handler_of_built_in_errors_takes_one_of_the_codes():
    """A ValueError may be ours; what the code under audit raises is never one."""
    assert SubjectError.__mro__ == (SubjectError, Exception, BaseException, object)
    assert not issubclass(ScriptError, ValueError | OSError)


def test_the_sentence_names_type_method_length_and_property():
    with pytest.raises(SubjectError) as caught, calling("forward", 23):
        raise KeyError("x")
    error = caught.value
    assert error.sentence("positions") == (
        "raised KeyError in `forward` at length 23, during positions: 'x'"
    )
    assert str(error) == "raised KeyError in `forward` at length 23: 'x'"
    assert error.reason == "KeyError: 'x'" and isinstance(error.__cause__, KeyError)


def test_an_error_keeps_the_innermost_place():
    with pytest.raises(SubjectError) as caught, calling("run", 7), calling("forward", 3):
        raise RuntimeError("two\nlines")
    assert (caught.value.where, caught.value.length) == ("forward", 3)
    assert str(caught.value).endswith(": two lines")


def test_outputs_that_are_none_have_a_sentence_of_their_own():
    error = SubjectError("the code gave int, not a tensor")
    assert str(error) == error.reason == "the code gave int, not a tensor"
    assert error.sentence("finite") == "the code gave int, not a tensor (during finite)"


def test_what_leaves_the_process_is_left_alone():
    for kind in (SystemExit, KeyboardInterrupt):
        with pytest.raises(kind), calling("forward", 3):
            raise kind


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 80 bytes")],
    ids=lambda one: type(one).__name__,
)
def test_memory_that_runs_out_is_not_the_codes_fault(error):
    with pytest.raises(OutOfMemory, match="in `forward` at length 9"), calling("forward", 9):
        raise error
    with pytest.raises(OutOfMemory), calling("run", 7), calling("forward", 9):
        raise error


def test_a_mistake_of_ours_among_the_outputs_is_not_the_codes(monkeypatch):
    def mistake(found):
        raise ValueError("ours")

    for name, read in (("tensor_in", first_tensor), ("scalar_in", loss_in)):
        with pytest.raises(SubjectError, match="the code"):
            read(object())
        monkeypatch.setattr(tensors, name, mistake)
        with pytest.raises(ValueError, match="ours"):
            read(object())
