"""A call in a notebook: its progress is a line that changes, and the kernel outlives a stop."""

import os
from pathlib import Path

import pytest

import attnlab
from attnlab.api import calling

ROOT = Path(__file__).parents[2]


class Stream:
    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_replaces_the_last_and_is_not_in_a_log(terminal, monkeypatch):
    stream = Stream(terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(calling, "PAUSE", 0.0)
    with calling.ticking() as tick:
        tick("reading \x1b[2J")
        tick("done")
    assert stream.text == ("\rreading \\x1b[2J\rdone           \r    \r" if terminal else "")


def test_code_in_memory_is_refused_with_what_to_do():
    class Live:
        pass

    with pytest.raises(attnlab.Error, match=r"Live is code in memory.*give 'mine.py:Live'"):
        calling.words_of([], {"model.attention": Live})


def test_what_is_ours_stays_what_it_is():
    with pytest.raises(KeyError), calling.calling():
        raise KeyError("ours")
    with pytest.raises(attnlab.Interrupt, match=r"^stopped by Ctrl-C; it was at: step 3$"):
        with calling.calling():
            stopped = KeyboardInterrupt()
            stopped.add_note("it was at: step 3")
            raise stopped


def test_a_signal_that_ends_processes_is_passed_on(monkeypatch):
    passed = []
    monkeypatch.setattr("attnlab.stop.pass_on", passed.append)
    assert str(calling.interrupt("SIGINT", "saved")) == "stopped by Ctrl-C; saved"
    assert passed == []
    calling.interrupt("SIGTERM", "saved")
    assert passed == ["SIGTERM"]


@pytest.fixture
def kernel(tmp_path):
    """Executes code in a kernel of Jupyter: messages of a cell, by their kind."""
    manager = pytest.importorskip("jupyter_client.manager")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    started, client = manager.start_new_kernel(cwd=str(tmp_path), env=environment)

    def execute(code, stop_at=None):
        sent, found = client.execute(code), {}
        while True:
            message = client.get_iopub_msg(timeout=250)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            found.setdefault(kind, []).append(content)
            text = content.get("text", "")
            if stop_at is not None and stop_at in text:
                started.interrupt_kernel()
                stop_at = None
            if kind == "status" and content["execution_state"] == "idle":
                return found

    yield execute
    client.stop_channels()
    started.shutdown_kernel(now=True)


@pytest.mark.filterwarnings("ignore")  # of the libraries that talk to the kernel
def test_the_stop_button_saves_and_the_kernel_lives_on(small, kernel):
    words = [*small[1], "steps=1000000", "evaluate_every=none", "save_every=none"]
    found = kernel(f"import attnlab\nattnlab.train('shakespeare-cpu', *{words!r})", "loss")
    (error,) = found["error"]
    assert error["ename"] == "Interrupt" and error["evalue"].startswith("stopped by Ctrl-C; step")
    assert error["traceback"] == [f"Interrupt: {error['evalue']}"], "one line, no traceback"
    text = "".join(one["text"] for one in found["stream"] if one["name"] == "stderr")
    assert "\rstep " in text and "of 1,000,000 · loss" in text
    found = kernel(
        "found = attnlab.runs()\nprint(found[0]['state'], found[0]['checkpoints'])\nfound"
    )
    assert found["stream"][0]["text"].startswith("stopped ['step_")
    assert "text/html" in found["execute_result"][0]["data"]
