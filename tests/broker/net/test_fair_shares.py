"""One client's pipelined or large requests are served a little at a time, and others in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.consume.pull import HeldPull, Pulls
from mq.broker.net.connection import ClientConnection
from mq.broker.net.request_table import RequestTable
from mq.broker.net.slow_responses import SlowResponses
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.chunks import Incoming
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from raftlog import Reactor
from tests.support.running_broker import SUBSCRIPTION, SUSPEND, Client, RunningBroker, broker_client, limited, pull_ext
from tests.support.waiting import until

REQUESTS = 400


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client's share of a turn is used by a few requests."""
    monkeypatch.setattr(Reactor, "share_used", lambda reactor: True)


@pytest.mark.usefixtures("small_shares")
async def test_expired_pulls_are_answered_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of clients that do not read come again twenty times a second."""
    most = 0
    resumed = 0
    resume, expire = Pulls.resume, Pulls.expire

    def counted(pulls: Pulls, pull: HeldPull) -> None:
        nonlocal resumed
        resumed += 1
        resume(pulls, pull)

    def watched(pulls: Pulls) -> None:
        nonlocal most, resumed
        resumed = 0
        expire(pulls)
        most = max(most, resumed)

    monkeypatch.setattr(Pulls, "resume", counted)
    monkeypatch.setattr(Pulls, "expire", watched)
    async with broker_client(tmp_path, queues=1, limits=limited(consume={"expire_seconds_max": 0.0})) as client:
        ext = pull_ext(sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=100)
        asked = [await client.post(RequestCode.PULL_MESSAGE, ext) for _ in range(REQUESTS)]
        for opaque in asked:
            assert (await client.answer(opaque)).code == ResponseCode.PULL_NOT_FOUND
    assert 0 < most <= 32


async def test_pipelined_requests_do_not_starve_other_clients(broker: RunningBroker) -> None:
    greedy, other = await broker.connect(), await broker.connect()
    await other.create_topic("T", 1)
    frames = [greedy.frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}) for _ in range(REQUESTS)]
    await greedy.stream.send_all(b"".join(data for _, data in frames))
    assert (await other.send()).code == ResponseCode.SUCCESS
    last = await greedy.answer(frames[-1][0])
    assert last.code == ResponseCode.SUCCESS
    assert greedy.order == [opaque for opaque, _ in frames]
    assert await greedy.alive()


async def test_requests_of_one_client_are_served_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_shares: None
) -> None:
    stretches: list[int] = []
    serve = RequestTable.serve

    def counted(table: RequestTable, connection: ClientConnection, incoming: list[Incoming]) -> None:
        stretches.append(len(incoming))
        serve(table, connection, incoming)

    async with broker_client(tmp_path, queues=1) as client:
        monkeypatch.setattr(RequestTable, "serve", counted)
        frames = [client.frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}) for _ in range(REQUESTS)]
        await client.stream.send_all(b"".join(data for _, data in frames))
        await client.answer(frames[-1][0])
        assert sum(stretches) == REQUESTS
        assert max(stretches) <= 16


@pytest.mark.usefixtures("small_shares")
async def test_requests_of_a_disconnected_client_are_still_served(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await other.create_topic("T", 1)
    ext = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
           "sysFlag": 0, "bornTimestamp": 0, "flag": 0, "properties": "", "reconsumeTimes": 0}  # fmt: skip
    frames = [client.frame(RequestCode.SEND_MESSAGE, ext, b"x", oneway=True)[1] for _ in range(100)]
    await client.stream.send_all(b"".join(frames))
    await client.stream.aclose()

    async def stored() -> bool:
        return await other.offset(RequestCode.GET_MAX_OFFSET) == 100

    await until(stored)


def heartbeat(topics: int, expression: str = "TagA||TagB") -> bytes:
    subscriptions = [SubscriptionData(topic=f"topic-{number}", expression=expression) for number in range(topics)]
    consumers = [
        ConsumerData(
            group=f"g{first}",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=subscriptions[first : first + 1000],
        )
        for first in range(0, topics, 1000)
    ]
    return HeartbeatData(client_id="C", consumers=consumers).encode()


async def test_heartbeat_larger_than_any_client_needs_is_refused_undecoded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeartbeatData, "decode", lambda body: pytest.fail("it was decoded"))
    answer = await client.request(RequestCode.HEART_BEAT, body=b"x" * (3 * 1024 * 1024))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "heartbeat refused: it has 3145728 bytes; maximum: 2097152"


async def test_heartbeat_above_256_kib_is_not_decoded_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    work = SlowResponses.work

    def noted(gradually: SlowResponses, *given: Any, may_begin: bool = True) -> None:
        begun.append(may_begin)
        work(gradually, *given, may_begin=may_begin)

    monkeypatch.setattr(SlowResponses, "work", noted)
    async with broker_client(tmp_path) as client:
        for topics in (1000, 8000):
            assert (await client.request(RequestCode.HEART_BEAT, body=heartbeat(topics))).code == ResponseCode.SUCCESS
    assert begun == [True, False]


async def test_large_heartbeat_is_taken_between_requests_of_others(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    opaque = await client.post(RequestCode.HEART_BEAT, body=heartbeat(8000))
    while opaque not in client.answers:
        assert await other.alive()
        assert await client.alive()
    assert client.answers[opaque].code == ResponseCode.SUCCESS
    members = await other.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g7000"})
    assert members.body == b'{"consumerIdList":["C"]}'


async def test_large_heartbeat_with_a_fault_is_refused_as_a_whole(client: Client) -> None:
    body = heartbeat(2000).replace(b"topic-1999", b"topic 1999")
    answer = await client.request(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    members = await client.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g0"})
    assert members.code == ResponseCode.SYSTEM_ERROR
