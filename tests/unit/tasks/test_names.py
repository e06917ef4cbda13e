"""Names of queues and exchanges as names of topics, and to which broker group a task is sent."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from mq.client.errors import ClientError, NoRoute, SendOutcomeUnknown
from mq.client.message import Message, MessageQueue, SendResult
from mq.client.produce.producer import Producer
from mq.protocol.names import check_group, check_topic, dead_letter_topic, pop_retry_topic
from mq.tasks.names import broadcast_group, exchange_topic, is_queue_topic, queue_topic
from mq.tasks.sending import send_by_level

NAMES = st.text(st.characters(codec="utf-8"), max_size=200)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_no_two_queues_share_a_topic(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (queue_topic(*one) == queue_topic(*other)) is (one == other)
    assert queue_topic(*one) != exchange_topic(*other)
    assert broadcast_group(one[0]) != queue_topic(*other)


@given(NAMES, NAMES)
def test_every_name_is_valid(prefix: str, name: str) -> None:
    for topic in (queue_topic(prefix, name), exchange_topic(prefix, name), broadcast_group(prefix)):
        check_topic(topic)
        check_group(topic)
        check_topic(dead_letter_topic(topic))
        check_topic(pop_retry_topic(topic, topic))


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery%q_celery"),
        ("a.b", "celery%q_a%2Eb"),
        ("a-b", "celery%q_a-b"),
        ("a%2Eb", "celery%q_a%252Eb"),
        ("celery@host.celery.pidbox", "celery%q_celery%40host%2Ecelery%2Epidbox"),
        ("grün", "celery%q_gr%C3%BCn"),
    ],
)
def test_topics_are_readable(queue: str, topic: str) -> None:
    assert queue_topic("celery", queue) == topic


def test_long_names_differ_at_their_ends() -> None:
    one, other = queue_topic("celery", "a" * 150 + "b"), queue_topic("celery", "a" * 150 + "c")
    assert one != other
    assert one.startswith("celery%q_aaa")
    assert len(one) == 100


def test_prefixes_separate_applications() -> None:
    assert is_queue_topic("a", queue_topic("a", "b%q_c"))
    assert not is_queue_topic("a%q_b", queue_topic("a", "b%q_c"))


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


async def test_unstored_message_is_sent_to_another_group(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    groups = _Groups(NoRoute, {"a": began + 20, "b": began})
    assert cast("Any", await sent_to(groups)) == "b"
    assert groups.sent == ["a", "b"]


async def test_message_maybe_stored_earlier_is_sent_to_no_other_group(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    groups = _Groups(NoRoute, {"a": began + 40, "b": began})
    with pytest.raises(SendOutcomeUnknown, match=r"earlier attempt may have stored it; the last one: .*lost"):
        await sent_to(groups, may_be_in=MessageQueue("T", "a", 0))
    assert groups.sent == ["a"]


async def test_maybe_stored_message_is_sent_to_no_other_group_if_unrouted(autojump_clock: MockClock) -> None:
    """Name servers forget a group that is away; the turn of the message would mean another one then."""
    began = trio.current_time()
    groups = _Groups(NoRoute, {"a": began + 40, "b": began}, in_route=["b"])
    with pytest.raises(SendOutcomeUnknown, match="earlier attempt may have stored it"):
        await sent_to(groups, may_be_in=MessageQueue("T", "a", 0))
    assert groups.sent == ["a"]
