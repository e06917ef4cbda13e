"""Renews the invisible time of messages for as long as a pop consumer handles them.

A message is renewed when half of its invisible time is over, until it is acknowledged or returned. So the invisible
time only says how long the message of a dead consumer waits for another one, and not how long a message may be handled.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import anyio

from mq.client.consume.popped_messages import PoppedMessage
from mq.client.errors import ClientError
from mq.client.logs import log

RETRY_SECONDS = 0.5
TOGETHER = 0.1
"""The part of the invisible time within which renewals that become due are made at once."""


class Renewals:
    """Renews the invisible time of a consumer's messages, every time for `seconds`. `extend` does it for one message:
    it returns False if the message no longer belongs to the consumer, and raises ClientError if that is unknown.
    """

    def __init__(self, seconds: float, extend: Callable[[PoppedMessage], Awaitable[bool]]) -> None:
        self._seconds = seconds
        self._extend = extend
        self._messages: dict[int, PoppedMessage] = {}
        self._in_flight: dict[int, anyio.Event] = {}
        self._retry_at: dict[int, float] = {}
        self._change_event = anyio.Event()

    def hold(self, messages: Iterable[PoppedMessage]) -> None:
        """Start to renew these messages."""
        self._messages.update((id(message), message) for message in messages)
        self._change_event.set()

    def messages(self) -> list[PoppedMessage]:
        """List the messages whose invisible time is renewed."""
        return list(self._messages.values())

    async def release(self, message: PoppedMessage) -> None:
        """Stop renewing this message. Waits for a renewal in flight, so that the receipt is valid afterwards."""
        self._forget(message)
        while (renewal_end := self._in_flight.get(id(message))) is not None:
            await renewal_end.wait()

    @asynccontextmanager
    async def pause(self, message: PoppedMessage) -> AsyncIterator[None]:
        """Do not renew this message within the block: a renewal would make the receipt of another request invalid.

        Waits for a renewal in flight, and for others who have paused them.
        """
        while (renewal_end := self._in_flight.get(id(message))) is not None:
            await renewal_end.wait()
        mine = self._in_flight[id(message)] = anyio.Event()
        try:
            yield
        finally:
            self._end_renewal(message, mine)

    async def run(self) -> None:
        """Renew messages until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._change_event = anyio.Event()
                due = min(map(self._due, self._messages.values()), default=math.inf)
                with anyio.move_on_at(due):
                    await self._change_event.wait()
                now = anyio.current_time()
                if due > now:
                    continue
                for message in self.messages():
                    if self._due(message) <= now + TOGETHER * self._seconds:
                        renewal_end = self._in_flight[id(message)] = anyio.Event()
                        tasks.start_soon(self._renew, message, renewal_end)

    def close(self) -> list[PoppedMessage]:
        """Stop renewing and return the messages. Call it after `run` was cancelled."""
        for renewal_end in self._in_flight.values():
            renewal_end.set()
        self._in_flight.clear()
        messages, self._messages = self.messages(), {}
        return messages

    def _due(self, message: PoppedMessage) -> float:
        if id(message) in self._in_flight:
            return math.inf
        return max(message.hidden_until - self._seconds / 2, self._retry_at.get(id(message), -math.inf))

    async def _renew(self, message: PoppedMessage, renewal_end: anyio.Event) -> None:
        try:
            if not await self._extend(message):
                self._lose(message, "it is no longer hidden for this consumer")
            self._retry_at.pop(id(message), None)
        except ClientError as error:
            if message.hidden_until <= anyio.current_time():
                self._lose(message, str(error))
            elif id(message) in self._messages:
                self._retry_at[id(message)] = anyio.current_time() + RETRY_SECONDS
        finally:
            self._end_renewal(message, renewal_end)

    def _end_renewal(self, message: PoppedMessage, renewal_end: anyio.Event) -> None:
        if self._in_flight.get(id(message)) is renewal_end:
            del self._in_flight[id(message)]
        renewal_end.set()
        self._change_event.set()

    def _lose(self, message: PoppedMessage, reason: str) -> None:
        if id(message) in self._messages:
            self._forget(message)
            message.hidden_until = -math.inf
            log.warning("message_not_renewed", message=message, reason=reason)

    def _forget(self, message: PoppedMessage) -> None:
        self._messages.pop(id(message), None)
        self._retry_at.pop(id(message), None)
