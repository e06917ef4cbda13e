"""To which broker group a task is sent."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.client.errors import ClientError, NoRoute, SendOutcomeUnknown
from mq.client.message import Message, MessageQueue, SendResult
from mq.client.produce.producer import Producer
from mq.tasks.sending import send_by_level

MESSAGE = Message("T", b"task")


class _Groups:
    """A producer: each broker group answers after ``answer_at`` seconds; before that, a send ends with an error."""

    def __init__(
        self, error: type[ClientError], answer_at: dict[str, float], in_route: list[str] | None = None
    ) -> None:
        self._error = error
        self._answer_at = answer_at
        self._in_route = list(answer_at) if in_route is None else in_route
        self.sent: list[str] = []

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, name, 0) for name in self._in_route]

    async def send(self, message: Message[bytes], *, queue: MessageQueue, timeout: float) -> Any:
        self.sent.append(queue.broker_name)
        waits = self._answer_at[queue.broker_name] - trio.current_time()
        await trio.sleep(min(max(waits, 0.0), timeout))  # virtual
        if waits > timeout:
            raise SendOutcomeUnknown("lost", queue, 1) if self._error is SendOutcomeUnknown else NoRoute("T", "lost")
        return queue.broker_name


async def sent_to(groups: _Groups, *, may_be_in: MessageQueue | None = None) -> SendResult:
    producer = cast("Producer[bytes]", groups)
    return await send_by_level(producer, MESSAGE, turn=0, priority=0, seconds=30, may_be_in=may_be_in)


async def test_possibly_stored_message_is_retried_at_its_group_until_timeout(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    groups = _Groups(SendOutcomeUnknown, {"a": began + 20, "b": began})
    assert cast("Any", await sent_to(groups)) == "a"
    assert groups.sent == ["a", "a"]
    began = trio.current_time()
    with pytest.raises(SendOutcomeUnknown):
        await sent_to(_Groups(SendOutcomeUnknown, {"a": began + 40, "b": began}))
    assert trio.current_time() == pytest.approx(began + 30)


async def test_message_certainly_not_stored_by_a_lost_group_goes_elsewhere(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    groups = _Groups(NoRoute, {"a": began + 20, "b": began})
    assert cast("Any", await sent_to(groups)) == "b"
    assert groups.sent == ["a", "b"]


async def test_message_maybe_stored_earlier_goes_to_no_other_group(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    groups = _Groups(NoRoute, {"a": began + 40, "b": began})
    with pytest.raises(SendOutcomeUnknown, match=r"earlier attempt may have stored it; the last one: .*lost"):
        await sent_to(groups, may_be_in=MessageQueue("T", "a", 0))
    assert groups.sent == ["a"]


async def test_maybe_stored_message_goes_nowhere_else_if_its_group_is_unrouted(autojump_clock: MockClock) -> None:
    """Name servers forget a group that is away; the turn of the message would mean another one then."""
    began = trio.current_time()
    groups = _Groups(NoRoute, {"a": began + 40, "b": began}, in_route=["b"])
    with pytest.raises(SendOutcomeUnknown, match="earlier attempt may have stored it"):
        await sent_to(groups, may_be_in=MessageQueue("T", "a", 0))
    assert groups.sent == ["a"]
