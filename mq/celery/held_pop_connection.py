"""A separate connection for pops that a broker holds until a message arrives.

A broker forgets a held pop when its connection closes. On the connection that the process shares, a pop of a closed
channel would continue, and hide a message from all consumers until its visibility ends.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio

from mq.client.consume.popped_messages import PoppedMessage
from mq.client.net.connection import Connection
from mq.tasks.queue_calls import QueueCalls, Source

HOLD_SECONDS: Final = 5.0
"""Seconds for which a broker may hold a pop. A dead connection is only noticed then: nothing else uses it."""
RETRY_SECONDS: Final = 0.2


class HeldPopConnection:
    """A channel's connection for one held pop at a time. `start` runs it in a task, and closes it when that ends."""

    def __init__(self, calls: QueueCalls, start: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> None:
        self._calls = calls
        self._start = start
        self._connection: Connection | None = None
        self._pop_end: anyio.Event | None = None
        self._is_over = False

    async def pop(
        self, source: Source, count_max: int, invisible: float, at_once: Callable[[list[PoppedMessage]], None]
    ) -> list[PoppedMessage]:
        """Pop messages of one priority level as soon as there are some; returns none after `HOLD_SECONDS`.

        `at_once` gets them first, in the task that reads the connection; it must not raise. Raises ClientError.
        """
        end_event = self._pop_end = anyio.Event()
        try:
            address = await self._calls.leader(source)
            connection = self._connection
            if connection is None or connection.failure is not None or connection.address != address:
                self.close()
                connection = self._connection = await self._calls.connect(address)
                self._start(connection.run)
            if self._is_over:
                return []
            asked_at = anyio.current_time()
            messages = await self._calls.pop_at(
                connection, source, 0, count_max, invisible, hold_seconds=HOLD_SECONDS, at_once=at_once
            )
        finally:
            self._pop_end = None
            end_event.set()
        if not messages and anyio.current_time() < asked_at + RETRY_SECONDS:
            await anyio.sleep(RETRY_SECONDS)  # not held: the broker is busy
        return messages

    async def finish(self) -> None:
        """Stop popping: the broker drops a held pop. Waits until the last pop has ended: it may have got messages
        before the broker knew, or it fails.
        """
        self._is_over = True
        if self._connection is not None:
            self._connection.end_requests()
        if (end_event := self._pop_end) is not None:
            await end_event.wait()

    def close(self) -> None:
        """Close the connection. A held pop fails, and gets no more messages."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close("closed by this client")
