"""Connections: how long a client may take, how much it may say, and who goes when there is no room.

Three things are waited for: a whole head, a body (the guard does that), and an answer to be taken.
Each has a deadline. A connection that waits for its client can also be closed before: when a new
one comes and all places are taken, the one that has waited longest makes room. So connections that
do nothing lock nobody out. One that is being answered is never closed for another; without the
token nobody is answered for longer than it takes to refuse them.
"""

import re
from typing import TYPE_CHECKING, Any

from attnlab.page.guard import HEADERS, Refused, refusal

if TYPE_CHECKING:
    import asyncio

    import h11

    Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]

LARGEST_HEAD = 16 << 10  # bytes of a request before its body: the request line and all headers
TOO_LARGE = Refused(431, f"the head of a request has at most {LARGEST_HEAD:,} bytes; send less")


class Places:
    """The connections that are open, in the order in which they began to wait."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: dict[Any, None] = {}

    def take(self, new: Any) -> None:
        self.taken[new] = None
        if len(self.taken) > self.most:
            oldest = next((one for one in self.taken if one.waits and one is not new), None)
            if oldest is not None:
                self.leave(oldest)
                oldest.transport.abort()

    def leave(self, one: object) -> None:
        self.taken.pop(one, None)

    def move_to_end(self, one: object) -> None:
        if one in self.taken:
            self.leave(one)
            self.taken[one] = None


def head_size(received: bytes) -> int:
    """Bytes up to the empty line that ends a head, or of what is there of it."""
    end = re.search(rb"\n\r?\n", received)
    return end.end() if end else len(received)


def strict_parser() -> Any:
    """h11's parser for one connection, with a limit for every head. Its own limit is only for what
    is incomplete: a head that comes in one piece is never measured."""
    import h11

    class Strict(h11.Connection):
        too_large = False

        def next_event(self) -> "Event":
            if self.their_state is h11.IDLE and head_size(self.trailing_data[0]) > LARGEST_HEAD:
                self.too_large = True
                raise h11.RemoteProtocolError(TOO_LARGE.reason, error_status_hint=TOO_LARGE.status)
            return super().next_event()

    return Strict(h11.SERVER, LARGEST_HEAD)


def deadline_protocol(seconds: float, most: int) -> "type[asyncio.Protocol]":
    """uvicorn's protocol, with a deadline for what a client does: from its coming, and from when an
    answer is written, until the answer is taken and the head of the next request is there."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    places = Places(most)

    class DeadlineProtocol(H11Protocol):
        deadline: Any = None
        stuck = False  # the client does not take what is written
        refused = False  # what it still sends is not read

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.conn = self.parser = strict_parser()

        @property
        def waits(self) -> bool:
            """For its client."""
            return self.stuck or self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            places.take(self)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            places.leave(self)
            self._stop_waiting()

        def data_received(self, data: bytes) -> None:
            if not self.refused:
                super().data_received(data)
            if not self.waits:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.waits:
                self._wait()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.stuck = True
            self._wait()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.stuck = False
            if not self.waits:
                self._stop_waiting()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:  # nonsense after a good head: that request has its answer
                self.cycle.disconnected = True
            if not self.parser.too_large:
                super().send_400_response(msg)
                return
            # closing while there is something to read would take the answer back
            self.refused = True
            headers, body = refusal(TOO_LARGE)
            every = {**HEADERS, **headers, "connection": "close"}
            head = h11.Response(status_code=TOO_LARGE.status, headers=list(every.items()))
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write_eof()

        def _wait(self) -> None:
            self._stop_waiting()
            places.move_to_end(self)
            self.deadline = self.loop.call_later(seconds, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return DeadlineProtocol
