"""The guard around every route: who may ask, how much, how slowly; and what every answer carries.

A page on a loopback port can be reached by every website that the same browser has open. So a
request must name this host exactly (no other name can be pointed here), come from this page if it
says where from, and hold the token that only the printed address has. The token is moved into a
cookie that scripts cannot read and other sites cannot make the browser send. A one-time token gets
the same cookie, once. An address with the key of a report opens that report without a cookie.

The guard speaks ASGI and needs no package.
"""

import asyncio
import hmac
import html
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 1 << 20  # bytes: a certificate with its influence matrix is some 50 kB
SLOWEST = 10.0  # seconds a client may take to send what it asks
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
KEYED = re.compile(r"/report/([^/]+)/([^/]+)/.*", re.DOTALL)
NO_TOKEN = (
    "open the address that attnlab page has printed: it has the token; "
    "the link that a browser was opened with works once"
)
OURS = "this went wrong on our side; the terminal of attnlab page says how"
log = logging.getLogger("attnlab.page")


class Refused(Exception):
    """An answer that is not what was asked for: a status, and a line that says what to do."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class OneTimeTokens:
    """Each is good for one visit."""

    def __init__(self) -> None:
        self._unused: dict[str, Callable[[], None]] = {}

    def issue(self, used: Callable[[], None]) -> str:
        """A new token; `used` is called when somebody comes with it."""
        token = secrets.token_urlsafe(32)
        self._unused[token] = used
        return token

    def spend(self, token: str) -> bool:
        found = [one for one in self._unused if _equal(one, token)]
        for one in found:
            self._unused.pop(one)()
        return bool(found)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a request must know of this page."""

    port: int
    token: str
    once: OneTimeTokens = field(default_factory=OneTimeTokens)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    @property
    def cookie(self) -> str:
        """Pages on other ports have theirs: a browser does not tell ports apart."""
        return f"attnlab-{self.port}"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def address_once(self, token: str) -> str:
        return f"http://127.0.0.1:{self.port}/?once={token}"

    def holds(self, token: str) -> bool:
        return _equal(self.token, token)

    def report_key(self, name: str) -> str:
        """What opens the files of this report, and says nothing of the token."""
        given = f"report {name}".encode(errors="surrogatepass")
        return hmac.digest(self.token.encode(), given, "sha256").hex()

    def opens(self, path: str) -> bool:
        """Whether an address has the key of the report that it names."""
        found = KEYED.fullmatch(path)
        return found is not None and _equal(self.report_key(found[1]), found[2])


def _equal(ours: str, theirs: str) -> bool:
    """In a time that does not say how much of it is right."""
    return hmac.compare_digest(theirs.encode(errors="replace"), ours.encode())


def onward(address: str) -> bytes:
    """A document that leads to another of ours. A browser that comes from a file or a sandbox sends
    no SameSite=Strict cookie, after a redirect neither; it does from a document of ours."""
    escaped = html.escape(address)
    return (
        f'<!doctype html><meta http-equiv="refresh" content="0; url={escaped}">'
        f'<title>attnlab</title><a href="{escaped}">Go on</a>'
    ).encode()


class Guard:
    def __init__(self, app: App, known: Pass, slowest: float = SLOWEST) -> None:
        self.app, self.known, self.slowest = app, known, slowest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server is told to speak nothing else"
        started = False

        async def add_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _with_ours(message.get("headers", ()))
            await send(message)

        try:
            if (welcome := self._arrives(scope)) is not None:
                for message in welcome:
                    await add_headers(message)
                return
            if scope["method"] == "POST":
                receive = await self._whole_body(scope, receive)
            await self.app(scope, receive, add_headers)
        except Refused as refused:
            await refuse(add_headers, refused)
        except Exception:  # a mistake of ours: logged, and the server goes on with other requests
            log.exception("%s %r failed", scope["method"], scope["path"])
            if started:
                raise
            await refuse(add_headers, Refused(500, OURS))

    def _arrives(self, scope: Scope) -> list[Message] | None:
        """The answer to who comes with a token; None for who has the cookie or a report's key, else
        Refused."""
        headers = scope["headers"]
        host = _only(headers, b"host")
        if host not in self.known.hosts:
            raise Refused(403, f"this page answers to {self.known.hosts[0]} only; open that")
        origins = _values(headers, b"origin")
        if origins not in ([f"http://{host}"], []) or (
            not origins and scope["method"] not in ("GET", "HEAD")
        ):
            raise Refused(403, "this page answers only what it has asked itself")
        if scope["method"] == "GET" and scope["path"] == "/" and scope["query_string"]:
            asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=None)
            if any(self.known.holds(token) for token in asked.get("token", ())[:1]):
                return self._answer_with_cookie(303, {"location": "/"})
            if any(self.known.once.spend(token) for token in asked.get("once", ())[:1]):
                return self._answer_with_cookie(200, {"content-type": "text/html"}, onward("/"))
        if scope["method"] in ("GET", "HEAD") and self.known.opens(scope["path"]):
            return None
        if not any(map(self.known.holds, _cookies(headers, self.known.cookie))):
            raise Refused(401, NO_TOKEN)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise Refused(405, f"{scope['method']} does nothing here; use GET or POST")
        return None

    def _answer_with_cookie(
        self, status: int, headers: dict[str, str], body: bytes = b""
    ) -> list[Message]:
        known = self.known
        cookie = f"{known.cookie}={known.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = {**headers, "set-cookie": cookie, "content-length": str(len(body))}
        return [
            {
                "type": "http.response.start",
                "status": status,
                "headers": _encode_headers(headers),
            },
            {"type": "http.response.body", "body": body},
        ]

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """The body read to its end, so that nothing behind the guard waits for a client."""
        kind = _only(scope["headers"], b"content-type") or ""
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "send JSON, with content-type application/json")
        length = _only(scope["headers"], b"content-length") or "0"
        if not length.isdigit() or int(length[:20]) > LARGEST_BODY:
            raise Refused(413, f"send at most {LARGEST_BODY:,} bytes")
        body = bytearray()
        try:
            async with asyncio.timeout(self.slowest):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the request ended before its body")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > LARGEST_BODY:
                        raise Refused(413, f"send at most {LARGEST_BODY:,} bytes")
        except TimeoutError:
            reason = f"the body took more than {self.slowest:g} s; send it again"
            raise Refused(408, reason) from None
        return _replay_body(bytes(body), receive)


def refusal(refused: Refused) -> tuple[dict[str, str], bytes]:
    """Headers and body of an answer that refuses."""
    body = json.dumps({"error": refused.reason}).encode()
    return {"content-type": "application/json", "content-length": str(len(body))}, body


async def refuse(send: Send, refused: Refused) -> None:
    headers, body = refusal(refused)
    if refused.status == 408:
        headers["connection"] = "close"  # the rest of the body is not waited for
    start = {
        "type": "http.response.start",
        "status": refused.status,
        "headers": _encode_headers(headers),
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, then what the client does next: going away."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _values(headers: Any, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def _only(headers: Any, name: bytes) -> str | None:
    """A header's value, if it is there once; two of them are two readings of one request."""
    found = _values(headers, name)
    return found[0] if len(found) == 1 else None


def _cookies(headers: Any, name: str) -> list[str]:
    pairs = [part.strip() for line in _values(headers, b"cookie") for part in line.split(";")]
    return [pair.partition("=")[2] for pair in pairs if pair.partition("=")[0] == name]


def _encode_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def _with_ours(headers: Any) -> list[tuple[bytes, bytes]]:
    """A route's own header, such as another policy, stays."""
    given = {name.lower() for name, _ in headers}
    ours = _encode_headers(HEADERS)
    return [*headers, *((name, value) for name, value in ours if name not in given)]
