"""Refuses requests for other hosts, and adds the headers that every response has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mq.console import safety
from mq.console.settings import ConsoleSettings

Log = structlog.stdlib.BoundLogger


class Guard:
    """Wraps an application: refuses requests for other hosts, and adds headers to every response."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings, log: Log) -> None:
        self._app = app
        self._loopback_only = not settings.login
        self._headers = [(name.encode(), value.encode()) for name, value in safety.HEADERS.items()]
        if settings.is_secure:
            self._headers.append((b"strict-transport-security", b"max-age=31536000"))
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; requests of other protocols than HTTP are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in self._headers}
                other_headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in own]
                message = {**message, "headers": [*other_headers, *self._headers]}
            await send(message)

        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        fault = safety.host_fault(host, loopback_only=self._loopback_only)
        app: Callable[[Scope, Receive, Send], Awaitable[None]] = self._app
        if fault is not None:
            app = Response(fault + "\n", 421, media_type="text/plain")
        try:
            await app(scope, receive, send_safely)
        except Exception as error:  # a page has answered with status 500, or its answer stays incomplete
            self._log.exception("console_request_failed", path=scope["path"], error=repr(error))
            raise
