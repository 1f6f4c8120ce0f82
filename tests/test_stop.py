"""A signal ends a command with one line, whatever Python or a library makes of the interrupt; work
that is saved first notes it, and a second Ctrl-C ends that at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from attnlab import stop

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGUSR1: 138}


def ended(work):
    """The exit code with which work ends that a signal stops."""
    before = [signal.getsignal(number) for number in stop.NUMBERS]
    with pytest.raises(SystemExit) as ending, stop.ending():
        work()
    assert [signal.getsignal(number) for number in stop.NUMBERS] == before
    return ending.value.code


@pytest.mark.parametrize("number", stop.NUMBERS)
def test_the_exit_code_and_the_line_say_which_signal(number, capsys):
    assert ended(lambda: signal.raise_signal(number)) == CODES[number]
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert capsys.readouterr().err == f"stopped by {name}\n"


def test_what_the_work_says_of_itself_is_in_the_line(capsys):
    def work():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            error.add_note("3 of 7 are done")
            raise

    assert ended(work) == 130 and capsys.readouterr().err == "stopped by Ctrl-C; 3 of 7 are done\n"


def test_an_exception_that_a_library_makes_of_the_interrupt_counts_as_one(capsys):
    def work():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("a module failed to import") from None

    assert ended(work) == 143 and capsys.readouterr().err == "stopped by SIGTERM\n"


def test_a_mistake_on_the_way_out_is_said(capsys):
    def work():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        raise KeyError("ours")

    assert ended(work) == 143
    assert capsys.readouterr().err == "stopped by SIGTERM; KeyError: 'ours'\n"


def test_to_look_for_children_reaps_none():
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not stop._is_alone()
        assert child.wait() == 3


@pytest.mark.parametrize("number", stop.NUMBERS)
def test_a_signal_that_a_training_has_noted_stops_what_the_training_was_a_part_of(number):
    assert ended(lambda: stop.pass_on(number.name)) == CODES[number]
    stop.pass_on("finished")


@pytest.mark.parametrize("number", stop.NUMBERS)
def test_the_signal_is_known_while_the_work_ends(number):
    known = []

    def work():
        try:
            signal.raise_signal(number)
        finally:
            known.append(stop.received())

    ended(work)
    assert known == [number] and stop.received() == signal.SIGINT, "none is known any more"


def test_an_error_without_a_signal_stays_an_error():
    with pytest.raises(ZeroDivisionError), stop.ending():
        raise ZeroDivisionError


class Drops:
    """Python cannot raise from here: it prints the exception and goes on."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_python_drops_is_raised_again(capsys):
    def work():
        Drops()
        for _ in range(600):
            time.sleep(0.1)

    assert ended(work) == 130 and capsys.readouterr().err == "stopped by Ctrl-C\n"


def test_one_wish_that_comes_in_two_ways_interrupts_the_cleaning_up_once():
    cleaned = []

    def work():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)  # by the terminal, and by the parent
            cleaned.append(True)

    assert ended(work) == 130 and cleaned


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop.ending():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", stop.NUMBERS)
def test_a_signal_is_noted_and_the_work_goes_on(number):
    with stop.stopping() as noted:
        assert noted.signal == 0
        os.kill(os.getpid(), number)
        assert noted.signal == number


def test_a_second_interrupt_ends_it_at_once():
    with pytest.raises(KeyboardInterrupt), stop.stopping():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 1)


def test_a_second_sigterm_does_not():
    with stop.stopping() as noted:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert noted.signal == signal.SIGTERM


def test_one_that_comes_when_the_work_should_have_ended_ends_it(monkeypatch):
    monkeypatch.setattr(stop, "PATIENCE", 0.0)
    with pytest.raises(SystemExit) as end, stop.ending(), stop.stopping():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 1)
    assert end.value.code == 128 + signal.SIGHUP


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), stop.stopping():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
        _ = 1 / 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_another_thread_leaves_the_handlers_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with stop.stopping() as noted:
            seen.append((noted.signal, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, before)]


@pytest.mark.parametrize("number", stop.NUMBERS)
def test_a_signal_ends_at_once_what_can_be_done_again(number):
    with stop.stopping() as noted:
        with pytest.raises(stop.StopNow), noted.at_once():
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 1)
        assert noted.signal == number
        os.kill(os.getpid(), signal.SIGTERM)  # and is noted only, afterwards
        with pytest.raises(stop.StopNow), noted.at_once():
            pytest.fail("what begins after a signal is not begun")


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    try:
        with stop.stopping() as noted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert noted.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_library_makes_of_the_signal_counts_as_the_signal():
    """A compiler has its own error for whatever ends it."""
    with stop.stopping() as noted:
        with pytest.raises(stop.StopNow), noted.at_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            except stop.StopNow:
                raise RuntimeError("the backend failed") from None
        assert noted.signal == signal.SIGTERM


def test_no_library_can_take_the_signal_for_an_error_of_its_own():
    with stop.stopping() as noted:
        with pytest.raises(stop.StopNow), noted.at_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception:
                pytest.fail("a compiler would go on")


def test_an_error_without_a_signal_stays_one():
    with stop.stopping() as noted, pytest.raises(ZeroDivisionError), noted.at_once():
        _ = 1 / 0
