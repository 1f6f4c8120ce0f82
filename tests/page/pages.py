"""What tests of the page share: a few small runs, a page that shows them, a client that may ask."""

import atexit
import json
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path

import httpx
from training.recipes import begin, small, text_recipe

from attnlab.page import launch
from attnlab.page.server import Server, ServerSettings


@cache
def folder():
    """A language model and one that answers questions, trained once for all tests."""
    root = Path(tempfile.mkdtemp(prefix="attnlab-page-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    text = root / "text.txt"
    text.write_text("The list holds the items in the order in which they came. " * 40)
    begin(root, text_recipe(text, "steps=10", "save_every=10", "sample_every=10"), "text")
    begin(root, small("steps=10"), "people")
    return root


def name_of(part):
    """The run of a name."""
    return next(path.name for path in folder().iterdir() if part in path.name and path.is_dir())


def serving(root=None, **settings):
    """A page in a thread, as a context."""
    return Server(ServerSettings(root=root or folder(), port=0, warm=False, **settings)).running()


def end_children(root):
    """What a page has started there, however a test went; only what has the page's lock."""
    for path in root.glob(f"**/{launch.PLACE}/*/started.json"):
        pid = json.loads(path.read_text()).get("pid")
        if pid and launch._has_open(pid, path.parents[1] / "lock"):
            os.kill(pid, signal.SIGKILL)


def client(server, **headers):
    """As a browser that has opened the printed address."""
    host = f"127.0.0.1:{server.known.port}"
    return httpx.Client(
        base_url=f"http://{host}",
        headers={"Origin": f"http://{host}", **headers},
        cookies={server.known.cookie: server.known.token},
        timeout=60,
        follow_redirects=True,
    )


def post(opened, path, **body):
    answer = opened.post(path, json=body)
    return answer.status_code, answer.json()


def events(answer):
    """Of a stream: what each event says."""
    return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
