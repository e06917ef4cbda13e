"""Collects the acknowledgements of a channel, and sends them together.

Each request is an entry of the broker's log, which the broker syncs to disk, and it would do so while the next task
waits to be stored. One for several messages costs little more than one for one message. A message that is done waits
for others, but no longer than `GATHER_SECONDS`, also if the channel gets further ones meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.abc

from mq.client.consume.popped_messages import PoppedMessage
from mq.client.errors import ClientError
from mq.client.logs import log
from mq.tasks.queue_calls import CALL_SECONDS, QueueCalls, Source

GATHER_SECONDS: Final = 0.05
GATHERED_MAX: Final = 32


class Acknowledgements:
    """Sends the acknowledgements of one channel. Belongs to one event loop. Before it acknowledges a message, it calls
    `release`, which stops the renewals of the message.
    """

    def __init__(
        self, calls: QueueCalls, *, invisible: float, release: Callable[[PoppedMessage], Awaitable[None]]
    ) -> None:
        self._calls = calls
        self._invisible = invisible
        self._release = release
        self._messages: list[PoppedMessage] = []
        self._in_flight: list[PoppedMessage] = []
        self._wakeup = anyio.Event()
        self._due = anyio.Event()

    def add(self, message: PoppedMessage) -> None:
        """Acknowledge the message with the next batch."""
        self._messages.append(message)
        self._wakeup.set()
        if len(self._messages) >= GATHERED_MAX:
            self._due.set()

    async def run(self) -> None:
        """Send acknowledgements until cancelled; `finish` sends the rest."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._wakeup.wait()
                self._due = anyio.Event()
                if len(self._messages) < GATHERED_MAX:
                    with anyio.move_on_after(GATHER_SECONDS):
                        await self._due.wait()
                self._wakeup = anyio.Event()
                for source, messages in self._take().items():
                    tasks.start_soon(self._send, source, messages)

    async def finish(self) -> None:
        """Send the collected acknowledgements, and again those in flight. Call it after `run` has ended."""
        self._messages = [*self._in_flight, *self._messages]
        self._in_flight = []
        async with anyio.create_task_group() as tasks:
            for source, messages in self._take().items():
                tasks.start_soon(self._send, source, messages)

    def _take(self) -> dict[Source, list[PoppedMessage]]:
        messages, self._messages = self._messages, []
        self._in_flight += messages
        by_source: dict[Source, list[PoppedMessage]] = defaultdict(list)
        for message in messages:
            by_source[Source.from_message(message)].append(message)
        return by_source

    async def _send(self, source: Source, messages: list[PoppedMessage]) -> None:
        for message in messages:
            await self._release(message)
        try:
            # Repeated for as long as they are hidden: afterwards, others get them whatever comes.
            await self._calls.acknowledge(
                source, [message.receipt for message in messages], seconds=max(CALL_SECONDS, self._invisible)
            )
        except ClientError as error:
            log.warning("not_acknowledged", topic=source.topic, messages=len(messages), reason=str(error))
        sent_ids = set(map(id, messages))
        self._in_flight = [message for message in self._in_flight if id(message) not in sent_ids]
