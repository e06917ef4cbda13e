"""Transactions with the SDK: a name server and a broker, real sockets."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import (
    Admin,
    BrokerError,
    ClientClosed,
    Message,
    PullConsumer,
    ReceivedMessage,
    SendRejected,
    TransactionProducer,
    TransactionState,
)
from mq.client.sync import SyncTransactionProducer
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from tests.support.running_broker import running
from tests.support.waiting import until

FAST: dict[str, Any] = {"transaction_timeout_seconds": 0.2, "transaction_check_seconds": 0.2}


@asynccontextmanager
async def cluster(directory: Path, **given: Any) -> AsyncIterator[str]:
    """The address of a name server that knows a broker."""
    settings = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, settings)
        namesrv = f"{host}:{port}"
        async with running(directory, namesrv=namesrv, **given), Admin(namesrv) as admin:
            await admin.create_topic("T", 1)
            yield namesrv
        nursery.cancel_scope.cancel()


async def seen(namesrv: str, count: int) -> list[ReceivedMessage]:
    """What is visible in topic T, once there is so much, and a moment later."""
    async with PullConsumer(namesrv, "G") as consumer:
        await consumer.assign(await consumer.queues("T"))
        for queue in consumer.assignment:
            await consumer.seek(queue, 0)
        found: list[ReceivedMessage] = []
        with trio.fail_after(60):
            while len(found) < count:
                found += await consumer.poll(timeout=0.5)
        return found + list(await consumer.poll(timeout=0.3))


async def never(message: ReceivedMessage) -> bool | None:
    raise AssertionError(f"{message} was ended")


async def test_block_commits_unless_it_raises(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, TransactionProducer(namesrv, "P", check=never) as producer:
        async with producer.transaction(Message("T", b"seen", tags="a", keys=["k"])) as good:
            assert (good.state, good.confirmed) == (TransactionState.OPEN, False)
        assert (good.state, good.confirmed) == (TransactionState.COMMITTED, True)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("T", b"never")) as bad:
                _ = 1 / 0
        assert (bad.state, bad.confirmed) == (TransactionState.ROLLED_BACK, True)
        async with producer.transaction(Message("T", b"neither")) as plain:
            plain.rollback()
        assert (plain.state, plain.confirmed) == (TransactionState.ROLLED_BACK, True)
        await producer.send(Message("T", b"plain"))
        first, second = await seen(namesrv, 2)
        assert (first.body, first.tags, first.keys, first.message_id) == (b"seen", "a", ("k",), good.message_id)
        assert second.body == b"plain"


async def test_transaction_that_has_ended_refuses_another_outcome(tmp_path: Path) -> None:
    """`rollback` after the block changed nothing, without a word, and consumers got the message."""
    async with cluster(tmp_path) as namesrv, TransactionProducer(namesrv, "P", check=never) as producer:
        async with producer.transaction(Message("T", b"seen")) as committed:
            pass
        async with producer.transaction(Message("T", b"never")) as left_open:
            left_open.leave_open()
        async with producer.transaction() as several:
            await several.send(Message("T", b"seen"))
        for ended in (committed, left_open, several):
            for call in (ended.rollback, ended.leave_open):
                with pytest.raises(ValueError, match="has ended: its outcome can be decided only"):
                    call()
        assert committed.state is TransactionState.COMMITTED
        assert several.is_committed


async def test_transaction_does_not_commit_to_the_next_topic_of_its_name(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, TransactionProducer(namesrv, "P", check=never) as producer:
        with pytest.raises(BrokerError, match="topic T of the half message no longer exists"):  # noqa: PT012
            async with producer.transaction(Message("T", b"never")), Admin(namesrv) as admin:
                await admin.delete_topic("T")
                await admin.create_topic("T", 1)
        await producer.send(Message("T", b"plain"))
        assert [message.body for message in await seen(namesrv, 1)] == [b"plain"]


async def test_transaction_begun_twice_with_one_number_is_one_transaction(tmp_path: Path) -> None:
    """With the same sequence number: whoever stores its id with the application's changes is asked by that id."""
    begun: list[str] = []
    async with cluster(tmp_path) as namesrv, TransactionProducer(namesrv, "P", check=never) as producer:
        numbered = {"RAFTMQ_PRODUCER": "p", "RAFTMQ_SEQUENCE": "1"}
        async with producer.transaction(Message("T", b"seen", properties=numbered)) as lost:
            begun.append(lost.message_id)
            lost.leave_open()
        async with producer.transaction(Message("T", b"seen", properties=numbered)) as again:
            begun.append(again.message_id)
        [message] = await seen(namesrv, 1)
        plain = [await producer.send(Message("T", b"x", properties=numbered | {"RAFTMQ_SEQUENCE": "2"})) for _ in "ab"]
    assert begun == [message.message_id] * 2
    assert plain[0] == plain[1]


async def test_cancelled_transaction_is_rolled_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, TransactionProducer(namesrv, "P", check=never) as producer:
        with trio.CancelScope() as scope:
            async with producer.transaction(Message("T", b"never")) as cut:
                scope.cancel()
                await trio.sleep_forever()
        assert (cut.state, cut.confirmed) == (TransactionState.ROLLED_BACK, True)
        await producer.send(Message("T", b"plain"))
        assert [message.body for message in await seen(namesrv, 1)] == [b"plain"]


async def test_check_decides_open_transactions(tmp_path: Path) -> None:
    answers: dict[str, list[bool | Exception | None]] = {}
    asked: list[ReceivedMessage] = []

    async def check(message: ReceivedMessage) -> bool | None:
        asked.append(message)
        if not (left := answers[message.message_id]):
            return None  # it is asked again before what was answered has arrived
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with cluster(tmp_path, **FAST) as namesrv, TransactionProducer(namesrv, "P", check=check) as producer:
        both: list[tuple[bytes, list[bool | Exception | None]]] = [
            (b"yes" * 2000, [None, True]),
            (b"no", [RuntimeError("not now"), False]),
        ]
        for body, given in both:
            async with producer.transaction(Message("T", body, properties={"own": "x"})) as transaction:
                answers[transaction.message_id] = list(given)
                transaction.leave_open()
            assert (transaction.state, transaction.confirmed) == (TransactionState.OPEN, False)
        [message] = await seen(namesrv, 1)
        assert message.body == b"yes" * 2000
        await until(lambda: not any(answers.values()))
        assert len(asked) >= 4
        assert {each.topic for each in asked} == {"T"}
        assert {each.properties["own"] for each in asked} == {"x"}
        assert message.body in {each.body for each in asked}, "inflated"


async def test_check_may_be_a_synchronous_function(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, **FAST) as namesrv,
        TransactionProducer(namesrv, "P", check=lambda message: message.body == b"yes") as producer,
    ):
        for body in (b"no", b"yes"):
            async with producer.transaction(Message("T", body)) as transaction:
                transaction.leave_open()
        [message] = await seen(namesrv, 1)
        assert message.body == b"yes"


async def test_check_back_reaches_a_group_member_that_never_sent(tmp_path: Path) -> None:
    async with cluster(tmp_path, **FAST) as namesrv:
        first = TransactionProducer(namesrv, "P", check=never)
        async with first as producer, producer.transaction(Message("T", b"left")) as transaction:
            transaction.leave_open()

        async def check(message: ReceivedMessage) -> bool | None:
            return message.message_id == transaction.message_id

        async with TransactionProducer(namesrv, "P", check=check):
            assert [message.body for message in await seen(namesrv, 1)] == [b"left"]


async def test_transaction_raises_if_it_cannot_begin_or_end(tmp_path: Path) -> None:
    async with cluster(tmp_path) as namesrv, TransactionProducer(namesrv, "P", check=never) as producer:
        with pytest.raises(SendRejected):
            async with producer.transaction(Message("SCHEDULE_TOPIC_XXXX", b"x")):
                raise AssertionError("entered")
        async with Admin(namesrv) as admin:
            with pytest.raises(BrokerError, match="no longer exists"):
                async with producer.transaction(Message("T", b"x")) as transaction:
                    await admin.delete_topic("T")
        assert not transaction.confirmed


async def test_threads_have_transactions_too(tmp_path: Path) -> None:
    def check(message: ReceivedMessage) -> bool | None:
        return message.body == b"left"

    def work(namesrv: str) -> None:
        producer = SyncTransactionProducer(namesrv, "P", check=check)
        with pytest.raises(ClientClosed):
            producer.transaction(Message("T", b"early"))
        with producer:
            with producer.transaction(Message("T", b"one")) as transaction:
                pass
            assert transaction.confirmed
            with pytest.raises(ZeroDivisionError), producer.transaction(Message("T", b"two")):
                _ = 1 / 0
            with producer.transaction(Message("T", b"left")) as transaction:
                transaction.leave_open()
            trio.from_thread.run(trio.sleep, 1.0)

    async with cluster(tmp_path, **FAST) as namesrv:
        await trio.to_thread.run_sync(functools.partial(work, namesrv))
        assert [message.body for message in await seen(namesrv, 2)] == [b"one", b"left"]
