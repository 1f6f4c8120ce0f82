"""The server: a socket on this machine, the guard, and clients that are given up on when too slow.

socket (8765 or the next free port) → connections, with their deadlines → guard → routes
"""

import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from attnlab.config import setting, settings
from attnlab.extras import missing
from attnlab.page.connections import LARGEST_HEAD, deadline_protocol
from attnlab.page.guard import SLOWEST, App, Guard, Pass
from attnlab.page.routes import ROUTES, Page, Route, application

HOST, PORT = "127.0.0.1", 8765
TRIED = 50  # ports after the one that was asked for
CONNECTIONS = 64
BACKLOG = 128  # connections that are accepted at once


@settings
class ServerSettings:
    root: Path = setting(Path("runs"), about="folder of run folders")
    port: int = setting(
        PORT, low=0, high=65_535, because="0 takes any free port", about="port to listen on"
    )
    warm: bool = setting(True, about="run every claim once, so that the first slider is quick")
    slowest: float = setting(
        SLOWEST, about="seconds for a request to arrive, or for a piece of an answer to be taken"
    )

    connections: int = setting(
        CONNECTIONS,
        low=1,
        about="connections that are kept open while they wait for their clients",
    )
    start: bool = setting(True, about="whether the page may start trainings and comparisons")
    texts: tuple[Path, ...] = setting((), about="texts to train on that the page offers")

    def check(self) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise ValueError(f"{self.root} is no folder; --runs names the folder of run folders")
        for path in self.texts:
            if not path.exists():
                raise ValueError(f"{path} does not exist; --text needs a file or a folder")


class Server:
    """Bound when it is made, so that the address is known before it runs."""

    def __init__(
        self,
        settings: ServerSettings,
        routes: Sequence[Route] = ROUTES,
        guard: Callable[[App, Pass, float], App] = Guard,
    ) -> None:
        require()
        import uvicorn

        self.settings = settings
        self.socket = bind_socket(settings.port)
        self.known = Pass(port=self.socket.getsockname()[1], token=secrets.token_urlsafe(32))
        self.page = Page(
            settings.root, self.known.report_key, start=settings.start, texts=settings.texts
        )
        guarded = guard(application(self.page, routes), self.known, settings.slowest)
        config = uvicorn.Config(
            guarded,  # type: ignore[arg-type]
            http=deadline_protocol(settings.slowest, settings.connections),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=LARGEST_HEAD,
            timeout_keep_alive=max(1, int(settings.slowest)),
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Until Ctrl-C, or `stop` from another thread."""
        if self.settings.warm:
            self.page.get_ready()
        try:
            self._server.run(sockets=[self.socket])
        finally:
            self.page.close()
            self.socket.close()

    def stop(self) -> None:
        self._server.should_exit = True

    @contextmanager
    def running(self) -> Iterator["Server"]:
        """In a thread beside the caller's, until it is done with it."""
        thread = threading.Thread(target=self.run, name="attnlab-page", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join(timeout=20)


def require() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        package = "uvicorn" if error.name == "uvicorn" else "starlette"
        raise ValueError(missing(package, "the page")) from None


def bind_socket(port: int) -> socket.socket:
    """A socket on this machine only: at the port, or the next free one."""
    last = min(port + TRIED, 65_535)
    for one in range(port, last + 1) if port else [0]:
        # its protocol named: only then asyncio sends small pieces at once, and not 40 ms later
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((HOST, one))
            opened.listen(BACKLOG)  # now, since two may be bound to a port and only one listen
            return opened
        except OSError:
            opened.close()
    raise ValueError(f"the ports {port} to {last} are in use or refused; choose one with --port")


def serve(settings: ServerSettings, say: Callable[[Server], AbstractContextManager[None]]) -> None:
    """Run until Ctrl-C; `say` is entered once the address answers, and left however this ends."""
    server = Server(settings)
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is not signal.SIG_IGN:  # as under nohup, and it stays so
            signal.signal(kind, lambda number, _: sys.exit(128 + number))
    with say(server):
        server.run()
