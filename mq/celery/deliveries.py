"""The messages that a channel has delivered and that are not settled yet.

They are hidden from others until they are settled: their invisible time is renewed before it ends, so a task may run
for any time. If the process dies, they are delivered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from mq.celery.acknowledgements import Acknowledgements
from mq.celery.broadcasts import TransientQueue
from mq.celery.envelope import decode, is_expired
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.consume.renewals import Renewals
from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import ReceivedMessage
from mq.tasks.queue_calls import QueueCalls, Source

FLUSH_SECONDS: Final = 5.0
"""Seconds for the acknowledgements, and the messages to give back, of a closed channel."""


_FOREIGN: Final = "not a message of kombu"
_EXPIRED: Final = "expired"


class Delivery:
    """A message that is on its way to the application, or not settled yet."""

    __slots__ = ("message", "payload", "queue", "transient")

    def __init__(
        self, queue: str, message: ReceivedMessage, payload: dict[str, Any], transient: TransientQueue | None = None
    ) -> None:
        self.queue = queue
        self.message = message
        self.payload = payload
        self.transient = transient
        """The queue in memory from which it comes; None if it was popped."""

    @property
    def tag(self) -> str:
        """The delivery tag."""
        tag: str = self.payload["properties"]["delivery_tag"]
        return tag


class Deliveries:
    """The deliveries of one channel; belongs to one event loop. `on_unwanted` is called with unwanted messages and the
    reason; it returns whether that is all. `on_settled` is called when there is room for another one.
    """

    def __init__(
        self,
        calls: QueueCalls,
        *,
        invisible: float,
        redeliveries_max: int | None,
        on_unwanted: Callable[[Delivery, str], Awaitable[bool]],
        on_settled: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._invisible = invisible
        self._redeliveries_max = redeliveries_max
        self._on_unwanted = on_unwanted
        self._on_settled = on_settled
        self._renewals = Renewals(invisible, lambda message: calls.extend(message, invisible))
        self._acknowledgements = Acknowledgements(calls, invisible=invisible, release=self._renewals.release)
        self.open: dict[str, Delivery] = {}
        """Those that are not settled, by tag."""

    async def run(self) -> None:
        """Renew invisible times and send acknowledgements until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renewals.run)
            tasks.start_soon(self._acknowledgements.run)

    async def close(self) -> None:
        """Put the open deliveries back after `run` has ended, and wait for acknowledgements."""
        self._renewals.close()
        with anyio.move_on_after(FLUSH_SECONDS):
            async with anyio.create_task_group() as tasks:
                for tag in reversed(list(self.open)):
                    tasks.start_soon(self.give_back, tag)
                tasks.start_soon(self._acknowledgements.finish)

    def acknowledge(self, tag: str) -> None:
        """Settle a message as done. The acknowledgement is sent soon, together with others."""
        delivery = self._settle(tag)
        if delivery is not None and isinstance(message := delivery.message, PoppedMessage):
            self._acknowledgements.add(message)

    async def give_back(self, tag: str) -> None:
        """Put a message back into its queue. It is delivered again at once, to any consumer."""
        delivery = self._settle(tag)
        if delivery is None:
            return
        if delivery.transient is not None:
            delivery.transient.put_back(delivery.message)
        elif isinstance(message := delivery.message, PoppedMessage):
            await self._renewals.release(message)
            try:
                await self._calls.change(Source.from_message(message), message.receipt, 0.0)
            except ClientError as error:
                log.warning("not_given_back", queue=delivery.queue, reason=str(error))

    async def refuse(self, tag: str, reason: str) -> None:
        """Make the message a dead letter; if that fails, it is delivered again."""
        delivery = self.open.get(tag)
        if delivery is not None and await self._bury(delivery, reason):
            self.acknowledge(tag)
        else:
            await self.give_back(tag)

    async def _bury(self, delivery: Delivery, reason: str) -> bool:
        try:
            if not await self._on_unwanted(delivery, reason) and isinstance(delivery.message, PoppedMessage):
                await self._calls.bury(Source.from_message(delivery.message), delivery.message, reason)
        except ClientError as error:
            log.warning("no_dead_letter", queue=delivery.queue, reason=str(error))
            return False
        return True

    def judge(self, queue: str, message: PoppedMessage) -> tuple[Delivery, str]:
        """Decode a message into a delivery. Also returns why it is unwanted: foreign, expired, or delivered too often.

        The reason is empty for a message that is wanted. The delivery is not kept yet.
        """
        reason = ""
        try:
            payload = decode(message, redelivered=message.reconsume_times > 0)
        except ValueError as error:
            payload, reason = {"properties": {"delivery_tag": message.message_id}}, f"{_FOREIGN}: {error}"
        else:
            most = self._redeliveries_max
            if is_expired(message, message.receipt.pop_time_ms):
                reason = _EXPIRED
            elif most is not None and message.reconsume_times > most:
                reason = f"delivered {message.reconsume_times} times before"
        return Delivery(queue, message, payload), reason

    async def accept(self, queue: str, message: PoppedMessage) -> Delivery | None:
        """Decode a message into a delivery, which `keep` must still add.

        None for an unwanted message, which is acknowledged or sent to the dead letters.
        """
        delivery, reason = self.judge(queue, message)
        if not reason:
            return delivery
        if reason.startswith(_FOREIGN):
            log.error("foreign_message", queue=queue, message_id=message.message_id, reason=reason)
        self.keep(delivery)
        if reason == _EXPIRED:
            try:
                await self._on_unwanted(delivery, reason)
            except ClientError as error:
                log.warning("no_dead_letter", queue=queue, reason=str(error))
                await self.give_back(delivery.tag)
            else:
                self.acknowledge(delivery.tag)
        else:
            await self.refuse(delivery.tag, reason)
        return None

    def _settle(self, tag: str) -> Delivery | None:
        delivery = self.open.pop(tag, None)
        self._on_settled()
        return delivery

    def keep(self, delivery: Delivery) -> Delivery:
        """Keep a delivery hidden from other consumers until it is settled."""
        self.open[delivery.tag] = delivery
        if isinstance(delivery.message, PoppedMessage):
            self._renewals.hold([delivery.message])
        return delivery
