"""What strangers try on the page: idle connections, used tokens, keys of other reports, a report.

Each family is a function that tries things on a page and gives a line for each that went wrong. It
is tried on the page as it is, where nothing may, and on a page with one protection taken away,
where something must. No verdict depends on the clock: the page waits for its clients here longer
than any machine is slow.
"""

import json
import re
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnlab import files
from attnlab.page.guard import Guard, Message, OneTimeTokens, Pass, Scope
from attnlab.page.routes import ROUTES, Call, File, Page, Route
from attnlab.page.server import Server, ServerSettings

PATIENCE = 300.0  # seconds for an answer, or for a client: more than a loaded machine needs
HANG_UP = 0  # the status of a connection that was closed without an answer
NO_ANSWER = 599  # of one that was not answered at all
ROOM = 7  # places for connections, where idle ones are tried
REPORTS = ("study-fuzz-0", "study-fuzz-1")
BESIDE = (
    "",
    "results.json",
    "report.md",
    "tables/01-a.csv",
    "tables/01-a.tex",
    "pictures/01-a.svg",
)
IDLE = {
    "that sends nothing": b"",
    "with half a head": b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "without a token": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",  # refused, and open for the next
}


def request(
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str | None] | None = None,
) -> bytes:
    """A right request, but for the headers that are given (None: left out)."""
    host = f"127.0.0.1:{server.known.port}"
    content = json.dumps(body).encode() if method == "POST" else b""
    every: dict[str, str | None] = {
        "Host": host,
        "Origin": f"http://{host}",
        "Cookie": f"{server.known.cookie}={server.known.token}",
        "Connection": "close",
    }
    if method == "POST":
        every |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    every |= headers or {}
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in every.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + content


def answer(server: Server, data: bytes) -> bytes:
    """What is answered until it is whole, or until the server hangs up."""
    received = b""
    with suppress(ConnectionError):  # hung up on; an answer may have come first
        with socket.create_connection(("127.0.0.1", server.known.port), PATIENCE) as client:
            client.sendall(data)
            while not is_whole(received) and (piece := client.recv(1 << 18)):
                received += piece
                if received.startswith(b"HTTP/1.1 100"):
                    received = received.partition(b"\r\n\r\n")[2]
    return received


def ask(server: Server, data: bytes) -> int:
    """The status of the answer; HANG_UP if the connection was closed without one."""
    try:
        words = answer(server, data)[:20].split()
    except TimeoutError:
        return NO_ANSWER
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else HANG_UP


def is_whole(received: bytes) -> bool:
    """Whether all of an answer is there that says how long it is."""
    head, gap, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    return bool(gap and length) and len(body) >= int(length[1])  # type: ignore[index]


def make_reports(root: Path) -> None:
    """Two, with files beside them."""
    for name in REPORTS:
        for path in ("report.html", *BESIDE[1:]):
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(root / name / path, b"<!doctype html><svg/><script>x</script>")


def idle_connections(server: Server) -> list[str]:
    """Those that do nothing are closed when their places are needed, and lock nobody out."""
    found = []
    for kind, beginning in IDLE.items():
        with ExitStack() as kept:
            every = []
            for _ in range(4 * ROOM):
                one = socket.create_connection(("127.0.0.1", server.known.port), PATIENCE)
                every.append(kept.enter_context(one))
                with suppress(ConnectionError):
                    one.sendall(beginning)
            # whoever comes after them is answered after they were let in
            status = ask(server, request(server, "GET", "/api/about"))
            if status != 200:
                found.append(f"idle connections {kind} lock out: {status}")
            left = sum(map(_open, every))
            if left > ROOM:
                found.append(f"{left} connections {kind} are kept open, {ROOM} have room")
    return found


def _open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def one_time_tokens(server: Server, once: OneTimeTokens) -> list[str]:
    """A token lets in once, whoever comes; what looks like one does not."""
    token = once.issue(lambda: None)
    wrong = ["", "x", token[:-1], f"{token}x", token.swapcase(), server.known.token]
    tried = [(f"once={one}", 401) for one in wrong] + [(f"token={token}", 401)]
    tried += [(f"once={token}", 200), (f"once={token}", 401), (f"once={token}", 401)]
    found = []
    for number, (query, right) in enumerate(tried):
        status = ask(server, request(server, "GET", f"/?{query}", headers={"Cookie": None}))
        if status != right:
            found.append(f"visit {number + 1} with a one-time token gets {status}, not {right}")
    return found


def report_keys(server: Server) -> list[str]:
    """The key of a report opens its own files without a cookie, and nothing else."""
    name, other = REPORTS
    key = server.known.report_key(name)
    tried = [(f"/report/{name}/{key}/{path}", 200) for path in BESIDE]
    tried += [(f"/report/{other}/{key}/{path}", 401) for path in BESIDE]
    tried += [(path, 401) for path in ("/", "/api/runs", "/api/reports", f"/report/{name}")]
    tried += [(f"/report/{name}/{wrong}/", 401) for wrong in ("x", key[:-1], key[::-1])]
    found = []
    for path, right in tried:
        status = ask(server, request(server, "GET", path, headers={"Cookie": None}))
        if status != right:
            found.append(f"{path.replace(key, 'KEY')} gets {status} with a key alone, not {right}")
    return found


def sandboxed(server: Server) -> list[str]:
    """A report and every file beside it are of no origin, run nothing, and are what they say."""
    found = []
    for path in BESIDE:
        address = f"/report/{REPORTS[0]}/{server.known.report_key(REPORTS[0])}/{path}"
        received = answer(server, request(server, "GET", address))
        head = received.partition(b"\r\n\r\n")[0].decode("latin-1").lower()
        policy = re.search(r"\r\ncontent-security-policy: (.*)", head)
        words = policy[1] if policy else ""
        rights = {"allow-scripts", "allow-same-origin", "allow-top-navigation", "script-src"}
        if not words.startswith("sandbox") or "default-src 'none'" not in words:
            found.append(f"{path or 'the report'} is shown without a sandbox")
        elif rights & {*re.findall(r"[\w-]+", words)}:
            found.append(f"{path or 'the report'} has rights: {words}")
        if "x-content-type-options: nosniff" not in head:
            found.append(f"{path or 'the report'} may be taken for another type")
        if path and "content-disposition: attachment" not in head:
            found.append(f"{path} is shown as a page of ours")
    return found


class Reusable(OneTimeTokens):
    """A control: a token that is not taken away."""

    def spend(self, token: str) -> bool:
        known = token in self._unused
        return known


class AnyKey(Guard):
    """A control: whoever names a report gets in."""

    def _arrives(self, scope: Scope) -> list[Message] | None:
        return None if scope["path"].startswith("/report/") else super()._arrives(scope)


async def _bare(page: Page, call: Call) -> File:
    return File(b"<script>x</script>", "text/html")


BARE = [Route("GET", "/report/{report}/{key}/{file:path}", _bare)]  # a control: without headers


def try_all(root: Path) -> dict[str, list[str]]:
    """What each family found on the page as it is."""
    settings = _settings(root)
    with Server(settings).running() as server:
        return {
            "idle_connections": idle_connections(server),
            "one_time_tokens": one_time_tokens(server, server.known.once),
            "report_keys": report_keys(server),
            "sandbox": sandboxed(server),
        }


def try_controls(root: Path) -> dict[str, list[str]]:
    """And on a page without the protection that it is about."""
    once = Reusable()

    def reusable(app: Any, known: Pass, slowest: float) -> Guard:
        return Guard(app, replace(known, once=once), slowest)

    settings = _settings(root)
    found = {}
    with Server(replace(settings, connections=1_000)).running() as server:
        found["idle_connections"] = idle_connections(server)
    with Server(settings, guard=reusable).running() as server:
        found["one_time_tokens"] = one_time_tokens(server, once)
    with Server(settings, guard=AnyKey).running() as server:
        found["report_keys"] = report_keys(server)
    with Server(settings, [*BARE, *ROUTES]).running() as server:
        found["sandbox"] = sandboxed(server)
    return found


def _settings(root: Path) -> ServerSettings:
    return ServerSettings(root=root, port=0, slowest=PATIENCE, connections=ROOM, warm=False)
