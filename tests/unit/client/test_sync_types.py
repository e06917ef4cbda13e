"""What a type checker knows of the clients for threads: mypy reads this file as well, and pytest runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, assert_type, get_type_hints

import pytest

from mq.client import (
    ClientError,
    Message,
    MessageQueue,
    PopConsumer,
    PoppedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    TopicRoute,
)
from mq.client.consume.pop_consumer import PopConsumerOptions
from mq.client.consume.pull_consumer import PullConsumerOptions
from mq.client.consume.push_consumer import PushConsumerOptions
from mq.client.produce.producer_options import ProducerOptions
from mq.client.sync import (
    SyncAdmin,
    SyncDelivery,
    SyncPopConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
)


@pytest.mark.parametrize(
    ("client", "options"),
    [
        (Producer, ProducerOptions),
        (PushConsumer, PushConsumerOptions),
        (PullConsumer, PullConsumerOptions),
        (PopConsumer, PopConsumerOptions),
    ],
)
def test_options_are_the_arguments_by_name(client: type, options: type) -> None:
    parameters = inspect.signature(client).parameters.values()
    names = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    hints = get_type_hints(vars(client)["__init__"])
    assert names.count("codec") == 1, "the clients for threads have it as an argument of its own"
    assert get_type_hints(options) == {name: hints[name] for name in names if name != "codec"}


def blocking(producer: SyncProducer, pull: SyncPullConsumer, pop: SyncPopConsumer, admin: SyncAdmin) -> None:
    """Never called: what methods take and return."""
    message = Message("T", b"x")
    assert_type(producer.send(message), SendResult)
    assert_type(producer.submit(message), Future[SendResult])
    assert_type(producer.send_many([message], timeout=1.0), list[SendResult | ClientError])
    assert_type(producer.request(message), ReceivedMessage)
    assert_type(producer.recall("handle"), str)
    assert_type(pull.poll(1, timeout=1.0), list[ReceivedMessage])
    assert_type(pull.committed(MessageQueue("T", "b", 0)), int | None)
    assert_type(next(iter(pop)), PoppedMessage)
    assert_type(pop.ack(next(iter(pop))), None)
    assert_type(admin.create_topic("T", queues=4), TopicRoute)
    assert_type(admin.topics(), list[str])
    producer.send("no message")  # type: ignore[arg-type]
    producer.send(message, within=1.0)  # type: ignore[call-arg]
    pull.poll("1")  # type: ignore[arg-type]
    admin.create_topic(b"T")  # type: ignore[arg-type]


def pushed(consumer: SyncPushConsumer) -> None:
    """Never called: what handlers, streams and deliveries are."""
    assert_type(consumer.receive(timeout=1.0), ReceivedMessage | None)
    assert_type(consumer.deliveries(), Iterator[SyncDelivery])
    assert_type(consumer.wait_assigned(), frozenset[MessageQueue])
    consumer.run("no handler")  # type: ignore[arg-type]


def made(check: Callable[[ReceivedMessage], bool | None]) -> Sequence[Any]:
    """Never called: a wrong option is an error where it is written."""
    return [
        SyncProducer("a:1", "g", timeout=3.0, compress="lz4"),
        SyncProducer("a:1", time_out=3.0),  # type: ignore[call-arg]
        SyncTransactionProducer("a:1", "g", check=check, retries=1),
        SyncTransactionProducer("a:1", "g", check=check, retries="1"),  # type: ignore[arg-type]
        SyncPushConsumer("a:1", "g", consume_from="first", ordered=False),
        SyncPushConsumer("a:1", "g", consume_from="middle"),  # type: ignore[arg-type]
        SyncPullConsumer("a:1", "g", ordered=True),  # type: ignore[call-arg]
        SyncPopConsumer("a:1", "g", "T", "a || b", invisible=5.0),
        SyncPopConsumer("a:1", "g", "T", visible=5.0),  # type: ignore[call-arg]
    ]
