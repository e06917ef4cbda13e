"""Ends of many queues in one request, the bytes of a topic, and who has sent its newest messages: over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.client import Message, Producer
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset
from mq.protocol.requests.many_queues import TOPICS_MAX, QueueQuestion, QueueQuestions, QueueSight, QueueSights
from mq.protocol.requests.topic_use import TopicUse
from mq.protocol.requests.topics import read_topic_stats
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import Answer, Client, broker_client, limited
from tests.support.timed_messages import BEGIN_MS, Clock, by_time, stored


async def ask(client: Client, *topics: QueueQuestion) -> Answer:
    return await client.request(RequestCode.ASK_QUEUES, body=QueueQuestions(topics=topics).encode())


async def told(client: Client, *topics: QueueQuestion) -> list[list[QueueSight]]:
    answer = await ask(client, *topics)
    assert answer.code == ResponseCode.SUCCESS, answer
    return [list(each) for each in QueueSights.decode(answer.body).topics]


async def test_many_queues_are_answered_as_each_alone(client: Client, clock: Clock) -> None:
    await client.create_topic("T", 4)
    await client.create_topic("U", 1)
    for queue_id in range(3):
        await stored(client, clock, 0, queue_id, 10, queue_id=queue_id)
    since_ms = BEGIN_MS + 1500
    whole, gone, some = await told(
        client,
        QueueQuestion(topic="T", since_ms=[since_ms]),
        QueueQuestion(topic="Nowhere", since_ms=[since_ms]),
        QueueQuestion(topic="T", queues=[1, 0, 99], since_ms=[0, since_ms, 0]),
    )
    alone = [int((await by_time(client, since_ms, queueId=each)).ext["offset"]) for each in range(4)]
    assert [each.since_offset for each in whole] == alone == [2, 2, 1, 0]
    assert gone == []
    assert [(each.queue_id, each.since_offset) for each in some] == [(1, 0), (0, 2)]
    answer = await client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    stats = {ref.queue_id: each for ref, each in read_topic_stats(answer.body).items()}
    for each in whole:
        ends = stats[each.queue_id]
        assert (each.min_offset, each.max_offset, each.last_update_ms) == (
            ends.min_offset,
            ends.max_offset,
            ends.last_update_ms,
        )
    assert (await told(client, QueueQuestion(topic="U"))) == [[QueueSight(0, FIRST_OFFSET, FIRST_OFFSET, 0, None)]]


async def test_offset_by_position_belongs_to_the_next_message(client: Client, clock: Clock) -> None:
    await client.create_topic("T", 2)
    first, second, third = await stored(client, clock, 0, 1, 2)

    async def offset(position: int) -> int | None:
        [[sight, empty]] = await told(client, QueueQuestion(topic="T", position=PhysicalOffset(position)))
        assert empty.position_offset == 0
        return sight.position_offset

    assert [await offset(each) for each in (0, first, first + 1, second, third, third + 1)] == [0, 0, 1, 1, 2, 3]


async def test_queues_beyond_the_answer_limit_are_left_for_the_next_request(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(bulk={"ends_queues_max": 5})) as client:
        for topic, queues in (("A", 2), ("B", 3), ("C", 6)):
            await client.create_topic(topic, queues)
        a, b, c = (QueueQuestion(topic=topic) for topic in "ABC")
        assert [len(each) for each in await told(client, a, b, c)] == [2, 3]
        assert [len(each) for each in await told(client, c, a)] == [6], "more than fits, and yet one topic"


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ([], "0 topics"),
        ([QueueQuestion(topic="T")] * (TOPICS_MAX + 1), f"{TOPICS_MAX + 1} topics; allowed: 1 to {TOPICS_MAX}"),
        ([QueueQuestion(topic="T", queues=[1], since_ms=[1, 2])], "since_ms has 2 values for 1 queues of T"),
        ([QueueQuestion(topic="T", queues=[*range(40_000)])], "40000 queues of T; maximum"),
    ],
)
async def test_bad_questions_about_queues_are_refused(client: Client, topics: list[QueueQuestion], words: str) -> None:
    answer = await ask(client, *topics)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert words in (answer.remark or "")
    answer = await client.request(RequestCode.ASK_QUEUES, body=b"{")
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def use_of(client: Client, topic: str = "T") -> TopicUse:
    answer = await client.request(RequestCode.ASK_TOPIC_USE, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer
    return TopicUse.decode(answer.body)


async def test_queue_bytes_equal_the_sum_of_their_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_client(tmp_path, queues=3) as client:
        for number in range(40):
            answer = await client.send(body=b"x" * (7 * number), e=number % 2)
            assert answer.code == 0
        stored = [len((await client.pull(queue_id=queue_id, maxMsgNums=32)).body) for queue_id in range(2)]
        use = await use_of(client)
        assert all(each.is_exact for each in use.queues)
        assert {each.queue_id: each.nbytes for each in use.queues} == {0: stored[0], 1: stored[1], 2: 0}
    async with broker_client(tmp_path, limits=limited(upkeep={"summed_entries_max": 3})) as client:
        sampled = (await use_of(client)).queues[0]
        assert not sampled.is_exact
        assert abs(sampled.nbytes - stored[0]) < stored[0] / 4


async def test_topic_use_names_connected_senders(tmp_path: Path) -> None:
    async with cluster_and_broker(tmp_path) as (namesrv, broker):
        async with Producer(namesrv, group="shop") as producer:
            for _ in range(5):
                await producer.send(Message("T", b"x"))
            client = await broker.connect()
            use = await use_of(client)
            [sender] = use.senders
            assert (sender.client_id, sender.group, sender.language) == (producer.client_id, "shop", "PYTHON")
            assert (sender.address, sender.messages, use.looked_at) == ("127.0.0.1", 5, 5)
            assert sender.last_ms > 0
        use = await use_of(client)
        assert [(each.client_id, each.address, each.messages) for each in use.senders] == [("", "127.0.0.1", 5)]


async def test_topic_use_refuses_an_unknown_topic(client: Client) -> None:
    answer = await client.request(RequestCode.ASK_TOPIC_USE, {"topic": "Nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    await client.create_topic("T", 2)
    use = await use_of(client)
    assert (use.senders, use.looked_at, [each.nbytes for each in use.queues]) == ([], 0, [0, 0])
