"""`attnlab check fuzz`: whatever is sent to the page, it answers, refuses or hangs up; never fails.

A page is started on a small folder of runs made on the spot. First every route of the table is
asked by somebody with a foreign Host, without the token, and from a foreign Origin: each must be
refused. Then come requests that are made from right ones by breaking them: methods, paths, headers,
lengths, JSON of other shapes, numbers no machine has, letters that are none, bodies that never end.
The control is the same page without its guard and with a handler that breaks: both must be found.
`strangers.py` has what else is tried, each with its control.
"""

import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from attnlab import config, counter_rng, files, stop
from attnlab.checks import Tick, strangers
from attnlab.checks.strangers import HANG_UP, PATIENCE, ask
from attnlab.checks.strangers import is_whole as is_whole
from attnlab.checks.strangers import request as request
from attnlab.config import setting, settings
from attnlab.data.biographies import Biographies
from attnlab.data.objectives import Questions
from attnlab.models.transformer import TransformerSettings
from attnlab.page.guard import App, log
from attnlab.page.routes import ROUTES, Call, Page, Route
from attnlab.page.server import Server, ServerSettings
from attnlab.printable import distinct
from attnlab.stop import stoppable
from attnlab.training import launch, runs
from attnlab.training.recipe import Recipe
from attnlab.training.report import Report

CLIENTS = 4  # requests under way at once
# seconds that the page waits for what many broken requests never send; a right one may be hung up
# on too where a machine is slow, so what must be answered is asked of a page that waits longer
SLOWEST = 0.3
TRIES = 200  # of a right request after all the broken ones; one answer will do

JUNK: list[Any] = [
    None, True, False, 0, -1, 3, 2**31, -(2**63), 10**30, 0.5, -0.0, 1e-300, 1e308, "", " ", "x",
    "x" * 5000, "../../etc/passwd", "<script>alert(1)</script>", "\u202e☃\U0001f600", "\x00\x1b[3m",
    "none", "NaN", [], [[]], [0] * 300, {}, {"": ""}, {"run": "."}, {"mechanism": {"heads": 0}},
]  # fmt: skip
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "BREW"]
PATHS = [
    "/", "//", "/static/", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/x.py", "/static/x.js",
    "/api", "/api/", "/api/runs/..", "/api/runs/../curve", "/api/runs/%00", "/api/runs/%ff/curve",
    "/api/claims/copy/", "/api/claims/%F0%9F%98%80", "/report/..", "/report/%2fetc%2fpasswd",
    "/api/launches/../stop", "/api/launches/%00/stop", "/api/launches/x/stop",
    "/report/study-fuzz-0/x/", "/report/study-fuzz-0/x/..%2f..", "/report/%00/%00/%00",
    "/favicon.ico", "/?token=", "/?token=x", "/" + "a" * 9000, "/api/runs?" + "a=b&" * 900, "*",
]  # fmt: skip
QUERIES = ["", "?after=-1", "?after=5&points=3", "?points=0", "?after=x", "?points=999999999999999",
           "?after=1&after=2", "?%ff=%fe", "?points=1e3"]  # fmt: skip


@settings
class FuzzCheck:
    requests: int = setting(10_000, low=1, about="random requests to send")
    seed: int = setting(0, about="random seed of the requests")

    def run(self, tick: Tick) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="attnlab-fuzz-") as place:
            root = Path(place)
            tick("making runs")
            names = make_runs(root)
            strangers.make_reports(root)
            settings = ServerSettings(root=root, port=0, slowest=SLOWEST, warm=False)
            with make_server(settings).running() as server, Failures() as errors:
                statuses, slowest = self._ask(server, names, tick)
                right = request(server, "GET", "/api/about")
                alive = any(ask(server, right) == 200 for _ in range(TRIES))
            tick("strangers")
            patient = replace(settings, slowest=PATIENCE)
            with make_server(patient).running() as server, Failures() as more_errors:
                doors = open_doors(server, names)
                tried = strangers.try_all(root)
            errors += more_errors
            bare = make_server(patient, [*ROUTES, BROKEN], unguarded)
            with bare.running() as control, Failures():
                found = open_doors(control, names)
                broken = ask(control, request(control, "GET", BROKEN.path))
                controls = strangers.try_controls(root)
        failed = sum(count for status, count in statuses.items() if status >= 500)
        return {
            "requests": self.requests,
            "by_status": {str(status): statuses[status] for status in sorted(statuses)},
            "hung_up_on": statuses[HANG_UP],
            "server_errors": failed,
            "logged_errors": errors,
            "slowest_answer_seconds": round(slowest, 2),
            "routes": len(ROUTES),
            "open_doors": doors,
            **tried,
            "still_answers": alive,
            "control_open_doors_found": f"{len(found)} of {3 * len(ROUTES)}",
            "control_broken_route_found": broken == 500,
            **{f"control_{name}_found": bool(problems) for name, problems in controls.items()},
            "passed": not failed
            and not errors
            and not doors
            and not any(tried.values())
            and all(controls.values())
            and alive
            and len(found) == 3 * len(ROUTES)
            and broken == 500,
        }

    def _ask(self, server: Server, names: Sequence[str], tick: Tick) -> tuple[Counter[int], float]:
        statuses: Counter[int] = Counter()
        slowest, done = 0.0, 0

        def one(number: int) -> tuple[int, float]:
            rng = random.Random(counter_rng.number(self.seed, "request", number))
            began = time.monotonic()
            return ask(server, broken_request(server, names, rng)), time.monotonic() - began

        def counts() -> dict[str, Any]:
            return {"by_status": {str(status): statuses[status] for status in sorted(statuses)}}

        clients = ThreadPoolExecutor(CLIENTS)
        try:
            with stoppable(lambda: f"{done} of {self.requests} requests", counts):
                for status, seconds in clients.map(one, range(self.requests)):
                    done += 1
                    statuses[status] += 1
                    slowest = max(slowest, seconds)
                    if done % 50 == 0:
                        tick(f"{done} of {self.requests} requests")
        finally:
            clients.shutdown(cancel_futures=True)  # all are asked for at once
        return statuses, slowest


def make_server(settings: ServerSettings, *more: Any) -> Server:
    """A page that starts processes as any does, but such as end at once instead of trainings."""
    server = Server(settings, *more)
    server.page.launcher.program = (sys.executable, "-S", "-c", "pass")
    return server


class Failures(logging.Handler):
    """Collects what the page says of its own failures."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self.found.append(f"{record.getMessage()[:200]}: {cause!r}"[:400])

    def __enter__(self) -> list[str]:
        log.addHandler(self)
        return self.found

    def __exit__(self, *_: Any) -> None:
        log.removeHandler(self)


def train_small(run: runs.Run) -> None:
    """A model that answers questions, in a second."""
    model = config.override(
        TransformerSettings(context=48, width=8, depth=1), ["attention.heads=2"]
    )
    recipe = Recipe(
        corpus=Biographies(people=8, wordings=1),
        objective=Questions(),
        model=model,
        batch=2,
        steps=2,
        save_every=2,
        evaluate_every=2,
        device="cpu",
    )
    stop.pass_on(launch.train_in(run, recipe, report=Report()).ending)


def make_runs(root: Path) -> list[str]:
    """A run that answers questions, the same within a study, and folders that are none."""
    run = runs.create(root, "fuzz")
    train_small(run)
    study = root / "study-fuzz-0"
    (study / "runs").mkdir(parents=True)
    (study / "runs" / "inside").symlink_to(run.folder.absolute(), target_is_directory=True)
    broken = root / "20200101-000000-broken-abcdef"
    broken.mkdir()
    files.write_whole(broken / "config.json", b'{"steps": 1e999, "model": [[]]}')
    files.write_whole(broken / "metrics.jsonl", b'{"step": 1, "loss": NaN}\n\xff\xfe\n{"step"')
    hostile = root / "study-line\nbreak-\x1b[3m-\udcff"
    hostile.mkdir()
    files.write_whole(hostile / "config.json", b'{"steps": 3}')
    for name in ("report.html", "report.md", "eval.jsonl"):
        os.mkfifo(hostile / name)  # reading one would wait for ever
    (hostile / "metrics.jsonl").symlink_to(broken / "metrics.jsonl")
    return [run.folder.name, "study-fuzz-0/inside", broken.name, quote(distinct(hostile.name))]


async def _breaks(page: Page, call: Call) -> NoReturn:
    raise TypeError("a handler that breaks, as a control")


BROKEN = Route("GET", "/api/broken", _breaks)


def unguarded(app: App, known: object, slowest: float) -> App:
    return app


def open_doors(server: Server, names: Sequence[str]) -> list[str]:
    """The routes that somebody gets through who should not."""
    foreign = f"attacker.example:{server.known.port}"
    strangers: dict[str, dict[str, str | None]] = {
        # as after a foreign name was pointed at this machine: Host and Origin agree
        "a foreign Host": {"Host": foreign, "Origin": f"http://{foreign}"},
        "no token": {"Cookie": None},
        "a foreign Origin": {"Origin": "http://attacker.example"},
    }
    found = []
    for route in ROUTES:
        path, body = fill_route(route, names)
        for who, headers in strangers.items():
            status = ask(server, request(server, route.method, path, body, headers))
            if status not in (401, 403):
                found.append(f"{route.method} {route.path}: {who} gets {status}")
    return found


def fill_route(route: Route, names: Sequence[str]) -> tuple[str, Any]:
    """A right request of a route."""
    path = route.path.replace("{run:path}", names[0]).replace("{report}", "study-fuzz-0")
    path = path.replace("{launch}", "20200101-000000-abcdef")
    body = BODIES.get(route.path, {})
    filled_body = {key: names[0] if it == "RUN" else it for key, it in body.items()}
    if "source" in filled_body and filled_body["source"] == {"run": "RUN"}:
        filled_body["source"] = {"run": names[0]}
    return path.replace("{name}", "copy" if "claims" in path else "index.html"), filled_body


BODIES: dict[str, dict[str, Any]] = {
    "/api/launches": {
        "kind": "train", "preset": "tiny", "text": "", "start": "", "settings": {"steps": "3"},
    },
    "/api/launches/plan": {
        "kind": "compare", "preset": "tiny", "settings": {"steps": "3", "model.width": "16"},
        "comparison": {"seeds": "2", "match": "steps"},
        "variants": [{"label": "a", "settings": {}},
                     {"label": "b", "settings": {"model.positions": "alibi"}}],
    },
    "/api/claims/{name}": {"settings": {"lead": 3.0, "keys": 4, "seed": 1}, "knob": False},
    "/api/look": {"source": {"run": "RUN"}, "text": "Where was", "layer": 0, "head": 1},
    "/api/look/heads": {"source": {"run": "RUN"}, "text": "Where was Ann born"},
    "/api/generate": {
        "run": "RUN", "prompt": "Wh", "tokens": 3, "temperature": 0.8, "top_k": 5, "seed": 1,
    },
    "/api/ask": {"run": "RUN", "question": "Where"},
    "/api/audit": {"target": "nothing-like-it", "declare": {"causal": True, "window": 8}},
    "/api/audit/certificate": {
        "certificate": {
            "target": "t",
            "checks": [{"name": "causality", "verdict": "pass", "measured": [1, {"a": 2.5}],
                        "declared": True, "detail": "d"}],
            "influence": [[1.0, 0.0], [0.5, 1.0]],
            "contract": {"causal": True},
            "examples": [{"name": "causality", "sentence": "s", "sizes": {"batch": 1}}],
        }
    },
}  # fmt: skip
MECHANISMS = {"heads": 2, "kv_heads": 1, "width": 8, "depth": 1, "window": 3, "positions": "alibi",
              "score": "additive", "seed": 1}  # fmt: skip


def broken_request(server: Server, names: Sequence[str], rng: random.Random) -> bytes:
    """A request that was right before one, two or three things were done to it."""
    route = rng.choice(ROUTES)
    path, body = fill_route(route, [rng.choice(names)])
    if route.path.startswith("/api/look") and rng.random() < 0.6:
        body = {**body, "source": {"mechanism": dict(MECHANISMS)}}
    method, headers, raw = route.method, dict[str, str | None](), None
    body = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 3)):
        kind = rng.random() if route.method == "POST" else rng.uniform(0.5, 1)
        if kind < 0.5:
            body = other_shape(body, rng)
        elif kind < 0.6:
            path = rng.choice(PATHS) if rng.random() < 0.5 else path + rng.choice(QUERIES)
        elif kind < 0.65:
            method = rng.choice(METHODS)
        elif kind < 0.8:
            headers |= rng.choice(_headers(server, rng))
        else:
            raw = rng.choice(RAW)
    whole = request(server, method, path, body, headers)
    return whole if raw is None else raw(whole, rng)


def other_shape(value: object, rng: random.Random) -> object:
    """Something in it is replaced, lost, or there twice."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = {**value, key: other_shape(value[key], rng)}
        if rng.random() < 0.15:
            del changed[key]
        if rng.random() < 0.1:
            changed[str(rng.choice(JUNK))[:50]] = rng.choice(JUNK)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], other_shape(value[place], rng), *value[place + 1 :]]
    return rng.choice(JUNK)


def _headers(server: Server, rng: random.Random) -> list[dict[str, str | None]]:
    port, cookie = server.known.port, server.known.cookie
    return [
        {
            "Host": rng.choice(
                ["", "localhost", f"localhost:{port}", f"127.0.0.1:{port}@x", "[::1]"]
            )
        },
        {"Host": None},
        {
            "Origin": rng.choice(
                ["null", "", f"https://127.0.0.1:{port}", "http://attacker.example"]
            )
        },
        {"Origin": None},
        {"Cookie": rng.choice(["", "=", f"{cookie}=", f"{cookie}=x", "a=b; " * 500, "\xff\xfe;;"])},
        {"Cookie": None},
        {
            "Content-Type": rng.choice(
                ["", "text/plain", "application/json; charset=latin-1", "\xff"]
            )
        },
        {"Content-Length": rng.choice(["-1", "x", "9" * 30, "2000000"])},
        {"Transfer-Encoding": rng.choice(["chunked", "gzip", "chunked, chunked"])},
        {"Expect": "100-continue"},
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"X-" + "y" * rng.randint(1, 40): "z" * rng.choice([1, 1000, 20_000, 40_000])},
        {"Range": "bytes=0-1,5-"},
    ]


def _garble(whole: bytes, rng: random.Random) -> bytes:
    changed = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _in_the_body(junk: bytes) -> Callable[[bytes, random.Random], bytes]:
    def put(whole: bytes, rng: random.Random) -> bytes:
        """Of the same length, so that it is read as a body."""
        head, gap, body = whole.partition(b"\r\n\r\n")
        return head + gap + (junk * (1 + len(body) // len(junk)))[: len(body)]

    return put


RAW: list[Callable[[bytes, random.Random], bytes]] = [
    _garble,
    _garble,
    _in_the_body(b"\xff\xfe"),
    _in_the_body(b"["),
    _in_the_body(b'{"a":'),
    _in_the_body(b'{"text":"\\ud800","seed":1e999}'),
    lambda whole, rng: whole[: rng.randrange(len(whole))] if rng.random() < 0.1 else whole,
    lambda whole, rng: whole + b"GET / HTTP/1.1\r\n\r\n",
    lambda whole, rng: bytes(rng.randrange(256) for _ in range(50)) + b"\r\n\r\n",
]
