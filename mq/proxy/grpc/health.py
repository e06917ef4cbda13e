"""The service ``grpc.health.v1.Health``, which load balancers and probes call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import trio

from mq.proxy.grpc.call import Call
from mq.proxy.grpc.served_connection import Method
from mq.proxy.grpc.status import CallRefused, Status

_LOOK_SECONDS: Final = 1.0
_SERVICE_FIELD: Final = b"\x0a"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"


def health_methods(services: Collection[str], is_ready: Callable[[], bool]) -> dict[str, Method]:
    """Return the methods of the health service, by path.

    Args:
        services: full names of services, ``package.Service``; the empty name, for all of them, is always known.
        is_ready: whether clients should come here. A server that drains never is.
    """

    def state(call: Call) -> bytes:
        return _SERVING if is_ready() and not call.drain_event.is_set() else _NOT_SERVING

    async def check(call: Call) -> None:
        """One answer; NOT_FOUND for an unknown service."""
        if await _is_known(call):
            await call.send(state(call))
        else:
            raise CallRefused(Status.NOT_FOUND, "the service is not known here")

    async def watch(call: Call) -> None:
        """An answer at once and for each change, until the client leaves or the server stops."""
        is_known, last_sent = await _is_known(call), b""
        while True:
            if (now := state(call) if is_known else _SERVICE_UNKNOWN) != last_sent:
                await call.send(now)
                last_sent = now
            if call.drain_event.is_set():
                return
            with trio.move_on_after(_LOOK_SECONDS):
                await call.drain_event.wait()

    async def _is_known(call: Call) -> bool:
        # The message has one field, a string of less than 128 bytes.
        message = await call.receive() or b""
        name = message[2:].decode("utf-8", "replace") if message.startswith(_SERVICE_FIELD) else ""
        return not name or name in services

    return {"/grpc.health.v1.Health/Check": check, "/grpc.health.v1.Health/Watch": watch}
