"""All routes in one table, and how a request becomes a call: names, numbers, JSON, each checked.

A handler takes the page and the call, and gives plain data (sent as JSON), a `File`, a `Redirect`
or a `Stream`. A ValueError is an answer too: status 400, with its line. Nothing in a request is
ever part of a path: files, runs and reports are looked up in lists of what is there.
"""

import asyncio
import gc
import hmac
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

from attnlab import __version__
from attnlab.audit.contract import Contract
from attnlab.audit.errors import AuditError, InputError
from attnlab.page import auditing, generation, inspection, overview, runs
from attnlab.page.claims import Claims
from attnlab.page.command import Choices, Commands
from attnlab.page.experiments import Experiments
from attnlab.page.generation import OpenModels
from attnlab.page.guard import OURS, App, Refused, log, onward
from attnlab.page.launch import Launcher
from attnlab.page.reports import Reports
from attnlab.page.runs import Runs
from attnlab.page.validation import shorten, whole
from attnlab.page.work import Work
from attnlab.printable import distinct, one_line

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
STATIC = Path(__file__).parent / "static"
# a report has its style and its pictures inside it, and no script; it may come from a stranger, so
# it runs none, is of no origin, sends nothing, and leads nowhere by itself; a click may download
REPORT_POLICY = (
    "sandbox allow-downloads; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_HEADERS = {
    "content-security-policy": REPORT_POLICY,
    "cross-origin-opener-policy": "unsafe-none",  # browsers may refuse another beside a sandbox
    "x-dns-prefetch-control": "off",
}
VIEWS = ["claims", "attention", "runs", "generate", "audit"]


@dataclass(frozen=True)
class File:
    content: bytes
    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)  # in place of the page's own


@dataclass(frozen=True)
class Redirect:
    address: str  # within the page


@dataclass(frozen=True)
class Stream:
    events: AsyncGenerator[Any, None]


@dataclass(frozen=True, kw_only=True)
class Call:
    names: Mapping[str, str]  # in the path
    query: Mapping[str, str]
    body: Mapping[str, Any]


class Page:
    """What the handlers share."""

    def __init__(
        self,
        root: Path,
        report_key: Callable[[str], str],
        static: Path = STATIC,
        *,
        start: bool = True,
        texts: Sequence[Path] = (),
    ) -> None:
        self.static = {path.name: path for path in static.glob("*") if path.suffix in KINDS}
        self.work = Work()
        self.claims = Claims(root)
        self.runs = Runs(root)
        self.reports = Reports(root, report_key)
        self.experiments = Experiments(root)
        self.commands = Commands(root, texts)
        self.launcher = Launcher(root, start)
        self.models = OpenModels(self.runs)
        self.inspections = inspection.InspectionCache()
        self.overviews = overview.OverviewCache()

    def get_ready(self) -> None:
        """So that the first slider is as quick as the others; whoever asks comes first."""
        self.work.background(self._getting_ready())

    def _getting_ready(self) -> Iterator[None]:
        yield from self.claims.warm_up()
        # what is there now stays: else a full collection looks through it, 0.15 s each time
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        self.work.close()


Json = Mapping[str, Any] | Sequence[Any]  # plain data
Handler = Callable[[Page, Call], Awaitable[Json | File | Redirect | Stream]]


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    handler: Handler


async def index(page: Page, call: Call) -> File:
    return _static(page, "index.html")


async def static(page: Page, call: Call) -> File:
    return _static(page, call.names["name"])


def _static(page: Page, name: str) -> File:
    path = page.static.get(name)
    if path is None or not path.is_file():
        raise Refused(404, f"there is no file {name[:80]!r} here")
    return File(path.read_bytes(), KINDS[path.suffix])


async def about(page: Page, call: Call) -> Json:
    return {
        "version": __version__,
        "runs_folder_name": distinct(page.runs.root.absolute().name),
        "torch": metadata.version("torch"),
        "views": VIEWS,
        "mechanisms": inspection.options(),
    }


async def claims(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(page.claims.list_all)


async def questions(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(page.claims.questions)


async def claim(page: Page, call: Call) -> Json:
    experiment = page.claims.experiment(call.names["name"], call.body)
    known = page.claims.known(experiment)
    if known is not None:
        return known
    if not experiment.claim.trained:
        return await page.work.answer(lambda: page.claims.answer(experiment))
    if call.body.get("train") is True:
        return await page.claims.train(experiment)
    recorded = page.claims.recorded(experiment)
    if recorded is None:
        raise Refused(
            409,
            "this claim trains models, which takes minutes, and nothing is recorded for these "
            f'settings; send "train": true, or run attnlab claims {experiment.name}',
        )
    return recorded


async def all_runs(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(page.runs.list_all)


async def curve(page: Page, call: Call) -> Json:
    after = _from_query(call, "after", -1, 2**53, default=-1)
    points = _from_query(call, "points", 1, runs.MOST_POINTS, default=1_000)
    return await asyncio.to_thread(page.runs.curve, call.names["run"], after, points)


async def run(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(page.runs.details, call.names["run"])


async def reports(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(page.reports.list_all)


async def report(page: Page, call: Call) -> Redirect:
    return Redirect(await asyncio.to_thread(page.reports.address, call.names["report"]))


async def report_file(page: Page, call: Call) -> File | Redirect:
    name, wanted = call.names["report"], call.names["file"]
    if not hmac.compare_digest(call.names["key"].encode(), page.reports.key(name).encode()):
        return await report(page, call)  # of a page that was closed; here is who has the cookie
    if wanted == "":
        content = await asyncio.to_thread(page.reports.report, name)
        return File(content, KINDS[".html"], REPORT_HEADERS)
    if wanted.startswith("runs/"):
        shown = f"{name}/{distinct(wanted.removeprefix('runs/').rstrip('/'))}"
        await asyncio.to_thread(page.runs.folder, shown)
        one = shown.replace("%", "%25").replace(",", "%2C")  # a comma separates two names there
        return File(onward(f"/#/runs?select={quote(one, safe='')}"), KINDS[".html"])
    content, kind = await asyncio.to_thread(page.reports.file, name, wanted)
    saved = quote(wanted.rpartition("/")[2], safe="")
    attached = {"content-disposition": f"attachment; filename*=UTF-8''{saved}"}
    return File(content, kind, {**REPORT_HEADERS, **attached})


async def experiments(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(page.experiments.list_all)


async def launches(page: Page, call: Call) -> Json:
    return {
        "enabled": page.launcher.enabled,
        "started": await asyncio.to_thread(page.launcher.list_all),
    }


async def launch_options(page: Page, call: Call) -> Json:
    starts = await asyncio.to_thread(page.runs.with_weights)
    return {"presets": page.commands.presets(), "texts": page.commands.texts, "starts": starts}


async def plan(page: Page, call: Call) -> Json:
    starts = await asyncio.to_thread(page.runs.with_weights)
    return await asyncio.to_thread(page.commands.plan, call.body, starts)


async def launch(page: Page, call: Call) -> Json:
    starts = await asyncio.to_thread(page.runs.with_weights)
    choices = Choices.read(call.body, page.commands.texts)
    words = await asyncio.to_thread(page.commands.words, choices, starts)
    return {"id": await asyncio.to_thread(page.launcher.start, words)}


async def stop(page: Page, call: Call) -> Json:
    await asyncio.to_thread(page.launcher.stop, call.names["launch"])
    return {"stopping": call.names["launch"]}


async def look(page: Page, call: Call) -> Json:
    body = call.body
    layer, head = whole(body, "layer", 0, 4096, default=0), whole(body, "head", 0, 4096, default=0)
    opening = inspection.open_source(page.models, body)

    def steps() -> Iterator[dict[str, Any] | None]:
        given = opening()
        yield None
        began = time.perf_counter()
        reading = page.inspections.steps(given)
        while (inspected := next(reading)) is None:
            yield None
        seconds = time.perf_counter() - began
        yield inspection.describe_head(inspected, layer, head, seconds, given)

    return await page.work.last(steps())


async def look_at_all_heads(page: Page, call: Call) -> Json:
    opening = inspection.open_source(page.models, call.body)

    def steps() -> Iterator[dict[str, Any] | None]:
        given = opening()
        yield None
        reading = page.inspections.steps(given)
        while (inspected := next(reading)) is None:
            yield None
        yield from page.overviews.steps(inspected, given)

    return await page.work.last(steps())


async def generate(page: Page, call: Call) -> Stream:
    writing_it = await page.work.answer(lambda: generation.prepare(page.models, call.body))
    return Stream(page.work.stream(writing_it))


async def ask(page: Page, call: Call) -> Json:
    name, question = generation.parse_question(call.body)
    return await page.work.answer(lambda: generation.answer(page.models, name, question))


async def audit_targets(page: Page, call: Call) -> Json:
    return await asyncio.to_thread(auditing.target_list)


async def audit(page: Page, call: Call) -> Json:
    target, contract = auditing.parse_request(call.body)
    return await page.work.answer(lambda: _run_audit(target, contract))


def _run_audit(target: auditing.Target, contract: Contract) -> Json:
    """The code is from our own list, so all that a person can mend is the declaration."""
    try:
        return auditing.run_audit(target, contract)
    except InputError:
        raise
    except ValueError as error:
        raise AuditError(f"the audit of {target.name} failed: {error}") from error


async def certificate(page: Page, call: Call) -> Json:
    return auditing.read_certificate(call.body)


def _from_query(call: Call, key: str, low: int, high: int, default: int) -> int:
    given = call.query.get(key)
    if given is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,16}", given):
        raise ValueError(f"{key} is {shorten(given)}; use a whole number")
    return whole({key: int(given)}, key, low, high)


ROUTES = [
    Route("GET", "/", index),
    Route("GET", "/static/{name}", static),
    Route("GET", "/api/about", about),
    Route("GET", "/api/claims", claims),
    Route("GET", "/api/questions", questions),
    Route("POST", "/api/claims/{name}", claim),
    Route("GET", "/api/runs", all_runs),
    Route("GET", "/api/runs/{run:path}/curve", curve),
    Route("GET", "/api/runs/{run:path}", run),
    Route("GET", "/api/reports", reports),
    Route("GET", "/api/experiments", experiments),
    Route("GET", "/api/launches", launches),
    Route("POST", "/api/launches", launch),
    Route("GET", "/api/launches/options", launch_options),
    Route("POST", "/api/launches/plan", plan),
    Route("POST", "/api/launches/{launch}/stop", stop),
    Route("GET", "/report/{report}", report),
    Route("GET", "/report/{report}/", report),
    Route("GET", "/report/{report}/{key}/{file:path}", report_file),
    Route("POST", "/api/look", look),
    Route("POST", "/api/look/heads", look_at_all_heads),
    Route("POST", "/api/generate", generate),
    Route("POST", "/api/ask", ask),
    Route("GET", "/api/audit/targets", audit_targets),
    Route("POST", "/api/audit", audit),
    Route("POST", "/api/audit/certificate", certificate),
]


def application(page: Page, routes: Sequence[Route] = ROUTES) -> App:
    """The routes behind Starlette; the guard goes around it."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route as Path

    def problem(reason: str, status: int) -> Response:
        return Response(_written({"error": reason}), status, media_type="application/json")

    def endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                body = parse_json(await request.body()) if route.method == "POST" else {}
                call = Call(names=request.path_params, query=dict(request.query_params), body=body)
                found = await _unless_gone(route.handler(page, call), request)
            except Refused as refused:
                return problem(refused.reason, refused.status)
            except ValueError as error:
                # a person's, as a rule; where it is ours, the log has the traceback
                log.debug("%s %s answers 400", route.method, route.path, exc_info=True)
                return problem(one_line(error), 400)
            except Exception:  # a mistake of ours: logged, and said to be one
                log.exception("%s %s failed", route.method, route.path)
                return problem(OURS, 500)
            if isinstance(found, File):
                return Response(found.content, media_type=found.kind, headers=found.headers)
            if isinstance(found, Redirect):
                return Response(status_code=303, headers={"location": found.address})
            if isinstance(found, Stream):
                return StreamingResponse(_events(found), media_type="text/event-stream")
            return Response(_written(found), media_type="application/json")

        return answer

    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = f"{request.method} {request.url.path[:80]} is nothing here; begin at /"
        return problem(reason, error.status_code)

    paths = [Path(one.path, endpoint(one), methods=[one.method]) for one in routes]
    app = Starlette(routes=paths, exception_handlers={HTTPException: failed})
    app.router.redirect_slashes = False  # a path is right or wrong
    return app


async def _unless_gone(answer: Awaitable[T], request: "Request") -> T:
    """The answer; whoever goes away before it is there takes the request back."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Refused(400, "nobody waits for this any more")
        return answering.result()
    finally:
        for task in (answering, leaving):
            task.cancel()


async def _left(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(stream: Stream) -> AsyncGenerator[bytes, None]:
    """As server-sent events; what goes wrong on the way is an event too."""
    async with aclosing(stream.events) as events:
        try:
            async for event in events:
                yield b"data: " + _written(event) + b"\n\n"
        except Refused as refused:
            yield b"data: " + _written({"error": refused.reason}) + b"\n\n"
        except ValueError as error:
            log.debug("a stream ends with an error", exc_info=True)
            yield b"data: " + _written({"error": one_line(error)}) + b"\n\n"


def parse_json(body: bytes) -> Mapping[str, Any]:
    """An object of JSON, without what only some readers of JSON take."""
    try:
        text = body.decode()
        found = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise ValueError('the body is not an object; send one, such as {"settings": {}}')
    if re.search(r"\\u[dD][89abAB]", text):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is no letter; send whole ones") from None
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _written(value: object) -> bytes:
    return json.dumps(
        value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_number
    ).encode(errors="replace")


def _number(value: Any) -> int | float:
    """NumPy's numbers are none of JSON's, but near enough."""
    return value.item()
