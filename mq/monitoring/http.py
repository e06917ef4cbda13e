"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP.

It shares the event loop with a server that must answer clients within milliseconds: metrics are collected and rendered
in slices, and cached for a second, so that frequent scrapes cost as much as one per second. A thread would not do: it
competes with the event loop for the interpreter, which the event loop then waits for several times per request.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

import h11
import structlog
import trio

from mq.monitoring.families import Collect, Families, LabelTexts, render
from mq.monitoring.step_times import SCRAPES, StepTimes

Log = structlog.stdlib.BoundLogger
Result = TypeVar("Result")

CONNECTIONS_MAX: Final = 32
"""Further connections are closed at once."""
REQUEST_SECONDS_MAX: Final = 10.0
"""Maximum time to receive a request and to send its answer."""
REQUEST_BYTES_MAX: Final = 16 * 1024
SLICE_SECONDS: Final = 0.001
"""Time of a slice, after which all other work that is ready runs. The last step of a slice may begin at its end."""
SENT_AT_ONCE_BYTES: Final = 1024 * 1024
"""The kernel takes them in a fraction of a millisecond."""
KEPT_SECONDS: Final = 1.0
_PLAIN: Final = "text/plain; charset=utf-8"

Ready = Callable[[], Awaitable[str | None]]
"""The reason why the server is not ready; None if it is."""


class HttpResponse(NamedTuple):
    """The response to a GET."""

    status: HTTPStatus
    content_type: str
    body: bytes


class Monitoring:
    """Serves the HTTP endpoints for monitoring of one server process.

    Args:
        collect: returns the metrics of the process.
        ready: returns why the process cannot serve; None if it can.
        giving_way: entered while an answer is made; the server's own event loop, if it has one, then lets other tasks
            run after each of its turns.
        steps: measures for how long requests hold the event loop.
    """

    def __init__(
        self,
        collect: Collect,
        ready: Ready,
        *,
        giving_way: Callable[[], AbstractContextManager[None]] = nullcontext,
        steps: StepTimes = SCRAPES,
    ) -> None:
        self._collect = collect
        self._ready = ready
        self._giving_way = giving_way
        self._steps = steps
        self._labels = LabelTexts()
        self._lock = trio.Lock()
        self._families: Families = ()
        self._texts: dict[str, tuple[str, bytes]] = {}
        self._collected_at = float("-inf")
        self._connections = 0

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serve until cancelled, then close the listeners."""
        await trio.serve_listeners(self._serve_connection, listeners)

    async def respond(self, path: str, accept: str) -> HttpResponse:
        """Return the response to a GET of a path."""
        if path == "/metrics":
            content_type, body = await self._metrics(accept)
            return HttpResponse(HTTPStatus.OK, content_type, body)
        await trio.lowlevel.checkpoint()
        if path == "/healthz":
            return HttpResponse(HTTPStatus.OK, _PLAIN, b"ok\n")
        if path == "/readyz":
            reason = await self._ready()
            status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
            return HttpResponse(status, _PLAIN, f"{reason or 'ok'}\n".encode())
        return HttpResponse(HTTPStatus.NOT_FOUND, _PLAIN, b"there are /metrics, /healthz and /readyz\n")

    async def _metrics(self, accept: str) -> tuple[str, bytes]:
        async with self._lock:
            if trio.current_time() >= self._collected_at + KEPT_SECONDS:
                self._families = await _in_slices(self._collect())
                self._collected_at = trio.current_time()
                self._texts = {}
            key = "openmetrics" if "application/openmetrics-text" in accept else ""
            if key not in self._texts:
                self._texts[key] = await _in_slices(render(self._families, accept, self._labels))
            return self._texts[key]

    async def _serve_connection(self, stream: trio.abc.Stream) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                # A peer that closes the connection, or sends something other than HTTP, is not an error here.
                with contextlib.suppress(trio.BrokenResourceError, h11.ProtocolError):
                    await self._converse(stream)
        finally:
            self._connections -= 1
            with trio.move_on_after(1, shield=True):
                await stream.aclose()

    async def _converse(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        while True:
            with trio.move_on_after(REQUEST_SECONDS_MAX) as scope:
                try:
                    request = await _request(connection, stream)
                except h11.RemoteProtocolError:
                    await _refuse(connection, stream)
                    return
                if request is None:
                    return
                with self._steps.measure():
                    # Not while the answer is sent: the peer may read it slowly.
                    with self._giving_way():
                        response = await self._answer(request)
                    for part in _encode(connection, request, response):
                        for at in range(0, len(part), SENT_AT_ONCE_BYTES):
                            await stream.send_all(part[at : at + SENT_AT_ONCE_BYTES])
            if scope.cancelled_caught or connection.our_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, request: h11.Request) -> HttpResponse:
        if request.method not in (b"GET", b"HEAD"):
            await trio.lowlevel.checkpoint()
            return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, b"only GET and HEAD\n")
        accept = next((value.decode("ascii", "replace") for name, value in request.headers if name == b"accept"), "")
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        return await self.respond(path, accept)


async def _in_slices(steps: Generator[None, None, Result]) -> Result:
    """The result of work in steps, with other work between slices of it."""
    while True:
        begin = trio.current_time()
        try:
            while trio.current_time() < begin + SLICE_SECONDS:
                next(steps)
        except StopIteration as end:
            await trio.lowlevel.checkpoint()
            result: Result = end.value
            return result
        await trio.lowlevel.checkpoint()


async def _request(connection: h11.Connection, stream: trio.abc.Stream) -> h11.Request | None:
    """The next request, without its body; None if the peer closed the connection. Raises h11.RemoteProtocolError."""
    request: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(REQUEST_BYTES_MAX)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None


async def _refuse(connection: h11.Connection, stream: trio.abc.Stream) -> None:
    """Answer bytes that are not an HTTP request, so that a client of another protocol learns what this port is."""
    await trio.lowlevel.checkpoint()
    if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        headers = [("content-length", "0"), ("connection", "close")]
        head = h11.Response(status_code=HTTPStatus.BAD_REQUEST, headers=headers)
        await stream.send_all((connection.send(head) or b"") + (connection.send(h11.EndOfMessage()) or b""))


def _encode(connection: h11.Connection, request: h11.Request, response: HttpResponse) -> list[memoryview]:
    """The response in parts; its body is not copied."""
    head = h11.Response(
        status_code=response.status,
        reason=response.status.phrase.encode(),
        headers=[("content-type", response.content_type), ("content-length", str(len(response.body)))],
    )
    body = b"" if request.method == b"HEAD" else response.body
    parts = connection.send(head), connection.send(h11.Data(data=body)), connection.send(h11.EndOfMessage())
    return [memoryview(part) for part in parts if part]


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen at an address; port 0 picks any free one. Raises OSError."""
    return await trio.open_tcp_listeners(port, host=host)


async def open_metrics_listeners(
    address: tuple[str, int] | None, log: Log, *, is_required: bool
) -> list[trio.SocketListener]:
    """Listen for scrapes of metrics; nowhere without an address. Raises OSError if a required one is unavailable.

    A default address that is not available does not prevent the start.
    """
    await trio.lowlevel.checkpoint()
    if address is None:
        return []
    try:
        listeners = await open_listeners(*address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if is_required:
            code = getattr(error, "errno", None) or errno.EINVAL
            raise OSError(code, reason, f"metrics address {_format_address(*address)}") from error
        log.warning("metrics_not_served", reason=f"{_format_address(*address)}: {reason}")
        return []
    log.info("metrics_served", address=_format_address(*listeners[0].socket.getsockname()[:2]))
    return listeners


def _format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
