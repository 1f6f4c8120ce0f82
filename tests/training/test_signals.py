"""Stopping when asked: noted, not obeyed at once; a second Ctrl-C is."""

import os
import signal
import threading

import pytest

from attnlab.training.signals import NUMBERS, StopNow, stopping


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_noted_and_the_work_goes_on(number):
    with stopping() as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number


def test_a_second_interrupt_ends_it_at_once():
    with pytest.raises(KeyboardInterrupt), stopping():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1)


def test_a_second_sigterm_does_not():
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), stopping():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
        _ = 1 / 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_another_thread_leaves_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with stopping() as stop:
            seen.append((stop.signal, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, before)]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_ends_at_once_what_can_be_done_again(number):
    with stopping() as stop:
        with pytest.raises(StopNow), stop.at_once():
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 1)
        assert stop.signal == number
        os.kill(os.getpid(), signal.SIGTERM)  # and is noted only, afterwards
        with pytest.raises(StopNow), stop.at_once():
            pytest.fail("what begins after a signal is not begun")


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        with stopping() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_library_makes_of_the_signal_counts_as_the_signal():
    """A compiler has its own error for whatever ends it."""
    with stopping() as stop:
        with pytest.raises(StopNow), stop.at_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            except StopNow:
                raise RuntimeError("the backend failed") from None
        assert stop.signal == signal.SIGTERM


def test_no_library_can_take_the_signal_for_an_error_of_its_own():
    with stopping() as stop:
        with pytest.raises(StopNow), stop.at_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception:
                pytest.fail("a compiler would go on")


def test_an_error_without_a_signal_stays_one():
    with stopping() as stop, pytest.raises(ZeroDivisionError), stop.at_once():
        _ = 1 / 0
