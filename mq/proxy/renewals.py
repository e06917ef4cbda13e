"""Renews the invisible time of messages for as long as a client handles them.

A client that asks for it gets messages that are hidden for a minute, and the proxy hides them again shortly before that
is over: until the client settles them, for three hours at most, and while the client is there. If the proxy dies, the
messages become visible within that minute.

What was written to a connection may be lost with it, although the client is there again over another one. So a message
is not hidden again if its connection has ended, and the client sent nothing over it after the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from mq.client.errors import ClientError
from mq.proxy.callers import Call, Fields
from mq.proxy.mapping.handles import Handle
from mq.proxy.mapping.refusals import CodedError
from mq.proxy.wire import messaging_pb2 as pb

HIDDEN_MS: Final = 60_000
_AHEAD_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 1.0
_UNDER_WAY_SECONDS: Final = 1.0
"""A request of a client this soon after it got a message may have been under way before it."""
_HOURS_MAX: Final = 3 * 3600.0
_AT_ONCE: Final = 64
HELD_MAX: Final = 100_000
"""Messages that a proxy keeps hidden: some 1 KiB of memory and a request every 40 s each."""
HELD_BY_CLIENT_MAX: Final = 10_000
"""Official clients have 1,024 at a time unless told otherwise."""

Log = structlog.stdlib.BoundLogger
_Key = tuple[str, str, str]
Defer = Callable[[str, str, Handle, int, Fields], Awaitable[Handle]]


class _HiddenMessage:
    """A message that is kept hidden for a client.

    Attributes:
        lock: held while its receipt is being used.
        written_to: the call, until it is certain that the message has arrived.
    """

    __slots__ = (
        "extra",
        "group",
        "handle",
        "lock",
        "renew_at",
        "settled",
        "topic",
        "until",
        "written_at",
        "written_to",
    )

    def __init__(self, group: str, topic: str, handle: Handle, extra: Fields, call: Call, now: float) -> None:
        self.group = group
        self.topic = topic
        self.handle = handle
        self.extra = extra
        self.lock = trio.Lock()
        self.renew_at = now + HIDDEN_MS / 1000 - _AHEAD_SECONDS
        self.until = now + _HOURS_MAX
        self.settled = False
        self.written_at = now
        self.written_to: Call | None = call

    def may_be_lost(self) -> bool:
        """Return whether the message may never reach the client."""
        if self.written_to is None:
            return False
        if self.written_to.heard_at > self.written_at + _UNDER_WAY_SECONDS:
            self.written_to = None
            return False
        return self.written_to.is_connection_lost


class Renewals:
    """The messages that the proxy keeps hidden, by client, group and the client's receipt handle.

    Args:
        defer: hides a message of a group and topic for a number of milliseconds; returns its new handle.
        is_here: whether a client still is.
        held_max, held_by_client_max: messages of all clients, and of one.
    """

    def __init__(
        self,
        defer: Defer,
        is_here: Callable[[str], bool],
        log: Log,
        *,
        held_max: int = HELD_MAX,
        held_by_client_max: int = HELD_BY_CLIENT_MAX,
    ) -> None:
        self._held_max = held_max
        self._held_by_client_max = held_by_client_max
        self._defer = defer
        self._is_here = is_here
        self._log = log
        self._messages: dict[_Key, _HiddenMessage] = {}
        self._of_client: Counter[str] = Counter()

    def check_room(self, client_id: str) -> None:
        """Raise CodedError if a client has as many messages as may be kept hidden for it, and must acknowledge some
        first.
        """
        own_max = self._held_by_client_max
        if self._of_client[client_id] >= own_max:
            raise CodedError(
                pb.TOO_MANY_REQUESTS,
                f"this client already has {own_max} unacknowledged messages, the maximum: acknowledge some first",
            )
        if len(self._messages) >= self._held_max:
            raise CodedError(
                pb.TOO_MANY_REQUESTS,
                f"clients of this proxy have {self._held_max} unacknowledged messages, which is the maximum: try "
                "again later",
            )

    @property
    def count(self) -> int:
        """The number of messages that are kept hidden."""
        return len(self._messages)

    def hold(self, client_id: str, group: str, topic: str, handle: Handle, extra: Fields, call: Call) -> None:
        """Keep a message hidden that was just popped and sent to the client."""
        key = client_id, group, handle.encode()
        self._drop(key)
        self._messages[key] = _HiddenMessage(group, topic, handle, extra, call, trio.current_time())
        self._of_client[client_id] += 1

    def _drop(self, key: _Key) -> _HiddenMessage | None:
        message = self._messages.pop(key, None)
        if message is not None:
            self._of_client[key[0]] -= 1
            if not self._of_client[key[0]]:
                del self._of_client[key[0]]
        return message

    def forget(self, client_id: str, group: str, handle: Handle) -> None:
        """Stop renewing the invisible time of a message; `handle` is the handle of its pop."""
        if (message := self._drop((client_id, group, handle.encode()))) is not None:
            message.settled = True

    @asynccontextmanager
    async def take(self, client_id: str, group: str, text: str) -> AsyncGenerator[Handle]:
        """Yield the current handle of a message that a client settles. Afterwards the message is not kept hidden.

        If the block fails, it stays as it was. Raises CodedError for an invalid handle.
        """
        key = client_id, group, text
        message = self._messages.get(key)
        if message is None:
            yield Handle.decode(text)
            return
        async with message.lock:
            yield message.handle
            message.settled = True
            if self._messages.get(key) is message:
                self._drop(key)

    async def release(self, client_id: str) -> None:  # noqa: ASYNC910 - a client may have nothing
        """Give the messages of a client that has left back to the brokers."""
        for key, message in [each for each in self._messages.items() if each[0][0] == client_id]:
            self._drop(key)
            await self._give_back(message)

    async def run(self) -> None:
        """Keep messages hidden until cancelled. A broker that does not answer delays only its own messages."""
        busy: set[str] = set()

        async def renew(broker: str, due: list[tuple[_Key, _HiddenMessage]]) -> None:  # noqa: ASYNC910 - something is due
            for at in range(0, len(due), _AT_ONCE):
                async with trio.open_nursery() as nursery:
                    for key, message in due[at : at + _AT_ONCE]:
                        nursery.start_soon(self._renew, key, message)
            busy.discard(broker)

        async with trio.open_nursery() as brokers:
            while True:
                await trio.sleep(_LOOK_SECONDS)
                for broker, due in self._due(trio.current_time()).items():
                    if broker not in busy:
                        busy.add(broker)
                        brokers.start_soon(renew, broker, due)

    def _due(self, now: float) -> dict[str, list[tuple[_Key, _HiddenMessage]]]:
        """Return the messages that would become visible soon, by broker."""
        due: dict[str, list[tuple[_Key, _HiddenMessage]]] = {}
        for key, message in self._messages.items():
            if message.renew_at <= now:
                due.setdefault(message.handle.receipt.broker, []).append((key, message))
        return due

    async def _renew(self, key: _Key, each: _HiddenMessage) -> None:
        if each.lock.locked():
            return  # noqa: ASYNC910 - it is being settled
        async with each.lock:
            if each.settled or self._messages.get(key) is not each:
                return
            now = trio.current_time()
            visible = each.renew_at + _AHEAD_SECONDS <= now
            if visible or each.until <= now or each.may_be_lost() or not self._is_here(key[0]):
                self._drop(key)
                return
            try:
                each.handle = await self._defer(each.group, each.topic, each.handle, HIDDEN_MS, each.extra)
                each.renew_at = trio.current_time() + HIDDEN_MS / 1000 - _AHEAD_SECONDS
            except CodedError as error:
                self._log.info("message_not_hidden_any_more", group=each.group, topic=each.topic, reason=error.reason)
                self._drop(key)
            except ClientError as error:  # asked again a second later
                self._log.warning("message_not_kept_hidden", group=each.group, topic=each.topic, reason=str(error))

    async def _give_back(self, message: _HiddenMessage) -> None:
        async with message.lock:
            if message.settled:
                return
            try:
                await self._defer(message.group, message.topic, message.handle, 0, message.extra)
            except (ClientError, CodedError) as error:
                self._log.info("message_not_given_back", group=message.group, topic=message.topic, reason=str(error))
