"""Responses that are written bit by bit, until they end or the browser disconnects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mq.client.errors import ClientError

Write = Callable[[str], Awaitable[None]]


class StreamedResponse(Response):
    """A response whose body the function ``write_all`` writes.

    The answer begins with the first text: what fails before becomes status 502. What fails later breaks the connection
    off, so that no client takes a part for the whole.
    """

    def __init__(
        self,
        write_all: Callable[[Write], Awaitable[None]],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._write_all = write_all
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the whole answer, unless the browser disconnects."""

        async def until_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_disconnect)
            await self._answer(scope, receive, send)
            nursery.cancel_scope.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(text: str) -> None:
            if not self._has_begun:
                self._has_begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        try:
            await self._write_all(write)
        except ClientError as error:
            if self._has_begun:
                raise
            await Response(f"{error}\n", 502, media_type="text/plain")(scope, receive, send)
            return
        if not self._has_begun:
            await write("")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
