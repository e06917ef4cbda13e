"""Queue locks and their fences over real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.broker import Broker
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from tests.support.queue_locks import lock_body, queue
from tests.support.running_broker import (
    SUBSCRIPTION,
    Answer,
    Client,
    broker_client,
    change_limits,
    limited,
    properties,
    running,
)

COMMIT_OFFSET = 1


NO_TIMER = limited(consume={"expire_some_seconds": 3600.0})
"""Nobody takes a lock away but who asks for it: some tests let all be over at once."""


def all_are_over(brokers: list[Broker], are_over: bool = True) -> None:
    """Let all locks be over, or none."""
    change_limits(brokers[-1].services.locks, lock_seconds=0.0 if are_over else 60.0)


async def lock(client: Client, client_id: str, *queue_ids: int, **given: Any) -> list[int]:
    """The ids of those queues that the client has now."""
    answer = await client.request(RequestCode.LOCK_BATCH_MQ, body=lock_body(client_id, *queue_ids, **given))
    assert answer.code == ResponseCode.SUCCESS, answer
    return sorted(ref["queueId"] for ref in json.loads(answer.body)["lockOKMQSet"])


async def unlock(client: Client, client_id: str, *queue_ids: int, **given: Any) -> Answer:
    return await client.request(RequestCode.UNLOCK_BATCH_MQ, body=lock_body(client_id, *queue_ids, **given))


def update_ext(offset: int, queue_id: int = 0) -> dict[str, Any]:
    return {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "commitOffset": offset}


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_answers_to_lock_and_unlock(tmp_path: Path, serialization: int) -> None:
    async with broker_client(tmp_path, queues=2, limits=NO_TIMER) as client:
        answer = await client.request(
            RequestCode.LOCK_BATCH_MQ, body=lock_body("c1", 1, 0), serialization=serialization
        )
        assert (answer.code, answer.ext, answer.serialization) == (ResponseCode.SUCCESS, {}, serialization)
        assert json.loads(answer.body) == {"lockOKMQSet": [queue(1), queue(0)]}
        assert b" " not in answer.body
        answer = await client.request(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c1", 0), serialization=serialization)
        assert (answer.code, answer.ext, answer.body) == (ResponseCode.SUCCESS, {}, b"")
        assert answer.serialization == serialization


async def test_queue_has_one_holder_in_each_group(tmp_path: Path) -> None:
    async with running(tmp_path, limits=NO_TIMER) as broker:
        one, other = await broker.connect(), await broker.connect()
        await one.create_topic("T", 3)
        assert await lock(one, "c1", 0, 1) == [0, 1]
        assert await lock(other, "c2", 0, 1, 2) == [2]
        assert await lock(other, "c2", 0, group="Other") == [0]
        assert (await unlock(other, "c2", 0)).code == ResponseCode.SUCCESS  # not c2's to give back
        assert await lock(other, "c2", 0) == []
        assert (await unlock(one, "c1", 0)).code == ResponseCode.SUCCESS
        assert await lock(other, "c2", 0, 1) == [0]
        await one.post(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c1", 1), oneway=True)
        await one.wait_for(lambda info: info["raftmq.lockedQueues"] == "3")
        assert await lock(other, "c2", 1) == [1]


async def test_of_two_concurrent_lock_requests_only_the_first_succeeds(tmp_path: Path) -> None:
    """The second request arrives while the first one is still on its way to the log."""
    async with broker_client(tmp_path, queues=1, limits=NO_TIMER) as client:
        (first, one), (second, other) = (
            client.frame(RequestCode.LOCK_BATCH_MQ, body=lock_body(client_id, 0)) for client_id in ("c1", "c2")
        )
        await client.stream.send_all(one + other)
        assert json.loads((await client.answer(first)).body)["lockOKMQSet"] == [queue()]
        assert json.loads((await client.answer(second)).body)["lockOKMQSet"] == []


@pytest.mark.parametrize("heir", ["c1", "c2"])
async def test_lock_request_behind_an_unlock_gets_the_queue(tmp_path: Path, heir: str) -> None:
    """Whoever asks while that is still on its way to the log gets the queue, and keeps it."""
    async with broker_client(tmp_path, queues=1, limits=NO_TIMER) as client:
        assert await lock(client, "c1", 0) == [0]
        _, one = client.frame(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c1", 0))
        opaque, other = client.frame(RequestCode.LOCK_BATCH_MQ, body=lock_body(heir, 0))
        await client.stream.send_all(one + other)
        assert json.loads((await client.answer(opaque)).body)["lockOKMQSet"] == [queue()]
        assert await lock(client, "c3", 0) == []


async def test_renewing_a_lock_does_not_write_to_the_log(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=2, limits=NO_TIMER) as client:
        assert await lock(client, "c1", 0, 1) == [0, 1]
        last_index = (await client.info())["raftmq.lastIndex"]
        assert await lock(client, "c1", 0, 1) == [0, 1]
        assert (await client.info())["raftmq.lastIndex"] == last_index


async def test_silent_holder_loses_its_queue(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path, limits=NO_TIMER) as broker:
        one, other = await broker.connect(), await broker.connect()
        await one.create_topic("T", 1)
        assert await lock(one, "c1", 0) == [0]
        assert await lock(other, "c2", 0) == []
        all_are_over(brokers)
        assert await lock(other, "c2", 0) == [0]
        all_are_over(brokers, False)
        assert await lock(one, "c1", 0) == []


async def test_lock_outlives_connection_and_broker(tmp_path: Path) -> None:
    async with running(tmp_path, limits=NO_TIMER) as broker:
        client = await broker.connect()
        await client.create_topic("T", 1)
        await client.heartbeat("c1", "G")
        assert await lock(client, "c1", 0) == [0]
        await client.stream.aclose()
        assert await lock(await broker.connect(), "c2", 0) == []
    async with broker_client(tmp_path, limits=NO_TIMER) as client:
        assert await lock(client, "c2", 0) == []
        assert await lock(client, "c1", 0) == [0]
        assert (await client.info())["raftmq.lockedQueues"] == "1"


async def test_deleting_topic_drops_its_locks(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, limits=NO_TIMER) as client:
        assert await lock(client, "c1", 0) == [0]
        assert await lock(client, "c1", 0, topic="Nothing") == []
        assert await lock(client, "c1", -1, 1, 2**31 - 1) == []


# -- fences ------------------------------------------------------------------------------------------------------------


async def test_commit_after_losing_the_queue_lock_is_ignored(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path, offset_commit_seconds=0.01, limits=NO_TIMER) as broker:
        old, new, asking = [await broker.connect() for _ in range(3)]
        await old.create_topic("T", 2)
        for queue_id in (0, 1):
            await old.fill(10, queue_id=queue_id)
        await old.heartbeat("old", "G")
        await new.heartbeat("new", "G")
        assert await lock(old, "old", 0, 1) == [0, 1]
        assert (await old.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(3))).code == ResponseCode.SUCCESS
        all_are_over(brokers)
        assert await lock(new, "new", 0) == [0]
        all_are_over(brokers, False)

        answer = await old.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(7))
        assert answer.code == ResponseCode.NO_PERMISSION, answer
        await old.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(8), oneway=True)
        stranger = await broker.connect()
        await stranger.post(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(9), oneway=True)
        assert await stranger.alive()
        assert (await old.pull(sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=10)).code == ResponseCode.SUCCESS
        assert await asking.committed(setZeroIfNotFound=False) == 3
        assert (await asking.info())["raftmq.fencedCommits"] == "4"

        # What is still its own goes on, and so does the new holder; and people may do what they want.
        assert (await old.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(5, 1))).code == ResponseCode.SUCCESS
        await new.pull(sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=4)
        assert await asking.committed() == 4
        assert (await asking.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(6))).code == ResponseCode.SUCCESS
        assert await asking.committed() == 6


async def test_expired_lock_does_not_fence_commits(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path, limits=NO_TIMER) as broker:
        one, other = await broker.connect(), await broker.connect()
        await one.create_topic("T", 1)
        await one.fill(1)
        await other.heartbeat("c2", "G")
        assert await lock(one, "c1", 0) == [0]
        assert (await other.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(1))).code != ResponseCode.SUCCESS
        all_are_over(brokers)
        assert (await other.request(RequestCode.UPDATE_CONSUMER_OFFSET, update_ext(1))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_client_without_the_lock_cannot_send_messages_back(
    tmp_path: Path, brokers: list[Broker], serialization: int
) -> None:
    async with running(tmp_path, limits=NO_TIMER) as broker:
        old, new, stranger = [await broker.connect() for _ in range(3)]
        await old.create_topic("T", 2)
        sent = [await old.send(e=queue_id) for queue_id in (0, 1)]
        await old.heartbeat("old", "G")
        await new.heartbeat("new", "G")
        assert await lock(old, "old", 0, 1) == [0, 1]
        all_are_over(brokers)
        assert await lock(new, "new", 0) == [0]
        all_are_over(brokers, False)

        async def back(client: Client, queue_id: int) -> Answer:
            ext = {"offset": int(sent[queue_id].ext["msgId"][16:], 16), "group": "G", "delayLevel": 1}
            return await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext, serialization=serialization)

        async def retry(client: Client) -> int:
            text = properties(RETRY_TOPIC="T")
            return (await client.send("%RETRY%G", e=0, i=text, j=1, l=16, serialization=serialization)).code

        answer = await back(old, 0)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.ext == {}
        assert "has locked queue 0 of T" in str(answer.remark)
        # Who is not known may have the queue, and not have told this leader so far.
        assert (await back(stranger, 0)).code == ResponseCode.SUCCESS
        assert (await back(old, 1)).code == ResponseCode.SUCCESS
        assert (await back(new, 0)).code == ResponseCode.SUCCESS
        # A message to the retry topic does not say which queue it was in: one queue of the topic is enough.
        assert [await retry(client) for client in (old, new)] == [0, 0]
        assert (await unlock(old, "old", 1)).code == ResponseCode.SUCCESS
        assert await retry(old) == ResponseCode.NO_PERMISSION
        assert await retry(stranger) == ResponseCode.SUCCESS
        assert await retry(new) == 0
        assert (await unlock(new, "new", 0)).code == ResponseCode.SUCCESS
        assert await retry(old) == 0
        assert (await back(old, 0)).code == ResponseCode.SUCCESS


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_invalid_lock_requests_are_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, limits=NO_TIMER) as client:
        last_index = (await client.info())["raftmq.lastIndex"]
        for what, body in (
            ("empty", b""),
            ("no JSON", b"\xff\x00{"),
            ("deep", b"[" * 10_000),
            ("an array", b"[]"),
            ("nobody", lock_body("", 0)),
            ("long client id", lock_body("c" * 256, 0)),
            ("client id of megabytes", lock_body("c" * 2_000_000, 0)),
            ("group outside", lock_body("c", 0, group="../G")),
            ("many queues", lock_body("c", *range(100_000))),
            ("huge queue id", lock_body("c", 0).replace(b'"queueId": 0', b'"queueId": "x"')),
        ):
            for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                answer = await client.request(code, body=body)
                assert answer.code == ResponseCode.INVALID_PARAMETER, (what, answer)
                assert len(str(answer.remark)) < 1000, what
        assert (await client.info())["raftmq.lastIndex"] == last_index


async def test_one_host_gets_at_most_half_of_all_locks(tmp_path: Path, brokers: list[Broker]) -> None:
    """Whatever it calls its clients and groups: the other half is for others."""
    async with running(tmp_path, limits=limited(consume={"locks_max": 8, "expire_some_seconds": 3600.0})) as broker:
        client = await broker.connect()
        await client.create_topic("T", 1000)
        assert await lock(client, "c1", 5, 6) == [5, 6]
        assert await lock(client, "c1", *range(10)) == [0, 1, 5, 6]
        assert await lock(client, "c2", 7, 8) == []
        assert await lock(client, "c2", 7, 8, group="H") == []
        stream = await trio.open_tcp_stream(*broker.settings.listen_address, local_address="127.0.0.2")
        broker.streams.append(stream)
        other = Client(stream)
        assert await lock(other, "c3", *range(10, 20)) == [10, 11], "as many as are left then"
        await unlock(client, "c1", 5, 6)
        assert await lock(client, "c1", 7) == [7]
        change_limits(brokers[-1].services.locks, locks_max=10_000)
        assert await lock(client, "c4", *range(20, 1000)) == list(range(20, 1000))  # in several commands
