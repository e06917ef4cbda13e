"""Planning requests, and questions for the ends of many topics at once, asked of real replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.protocol.bulk import PlannedQueue
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.topic_ends import ENDS_TOPICS_MAX, decode_ends, encode_topics
from tests.support.bulk_reading import plan, read_all
from tests.support.running_broker import Client, RunningBroker, broker_client, limited
from tests.support.sent_messages import sent
from tests.support.short_logs import SMALL_SEGMENT_BYTES


async def test_plan_contains_the_offsets_of_queues(broker: RunningBroker, client: Client) -> None:
    await client.create_topic("T", 4)
    await sent(client, 10, 3)
    for current in (False, True):
        ext, queues, places = await plan(client, current=current)
        assert queues == [(0, 0, 4, 0), (1, 0, 3, 0), (2, 0, 3, 0), (3, 0, 0, 0)]
        assert places == []
        assert (ext["readQueues"], ext["nextQueue"], ext["role"]) == ("4", "-1", "leader")
        config = await client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
        assert ext["topicIdentity"] == config.ext["topicIdentity"] != ""
        assert ext["logIdentity"] == broker.settings.identity


@pytest.mark.slow
async def test_stripes_between_places_equal_the_content_of_files(tmp_path: Path) -> None:
    small = {"segment_bytes": SMALL_SEGMENT_BYTES, "message_bytes_max": 32 * 1024, "entry_bytes_max": 4096}
    async with broker_client(tmp_path, queues=3, **small) as client:
        await sent(client, 600, 3, body_bytes=900)
        _, queues, places = await plan(client, detail=True)
        found = await read_all(client, *((queue_id, 0, 200) for queue_id in range(3)))
        for queue in queues:
            nbytes = sum(record.size for record in found if record.queue_id == queue.queue_id)
            assert abs(queue.nbytes - nbytes) < nbytes / 10
        assert [place.position for place in places] == list(
            range(SMALL_SEGMENT_BYTES, found[-1].physical_offset, SMALL_SEGMENT_BYTES)
        )
        for place in places:
            before = [record for record in found if record.physical_offset < place.position]
            assert list(place.offsets) == [sum(each.queue_id == queue for each in before) for queue in range(3)]


async def test_many_queues_come_in_pages_and_with_fewer_places(tmp_path: Path) -> None:
    limits = limited(bulk={"plan_queues_max": 4, "plan_offsets_max": 8})
    small = {"segment_bytes": SMALL_SEGMENT_BYTES, "message_bytes_max": 32 * 1024}
    async with broker_client(tmp_path, queues=10, limits=limits, **small) as client:
        await sent(client, 500, 10, body_bytes=1800)
        seen: list[PlannedQueue] = []
        positions: set[tuple[int, ...]] = set()
        first = 0
        while first >= 0:
            ext, queues, places = await plan(client, firstQueue=first, detail=True)
            assert 0 < len(places) <= 2
            positions.add(tuple(place.position for place in places))
            seen += queues
            first = int(ext["nextQueue"])
        assert len(positions) == 1, "pages that do not go together"
        assert [(each.queue_id, each.end) for each in seen] == [(queue_id, 50) for queue_id in range(10)]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "Written"}, ResponseCode.NO_PERMISSION),
        ({"topic": "T", "firstQueue": -1}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "firstQueue": 2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "firstQueue": "first"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "T", "firstQueue": 2**31}, ResponseCode.SYSTEM_ERROR),
        ({}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_bad_requests_are_refused(client: Client, ext: dict[str, Any], code: ResponseCode) -> None:
    await client.create_topic("T", 2)
    await client.create_topic("Written", 1, perm=2)
    for detail in (False, True):
        answer = await client.request(RequestCode.PLAN_TOPIC, {**ext, "detail": detail})
        assert (answer.code, answer.body) == (code, b"")
        assert answer.remark


async def told(client: Client, *topics: str, current: bool = False) -> list[tuple[list[int], list[int]]]:
    answer = await client.request(RequestCode.ASK_TOPIC_ENDS, {"current": current}, encode_topics(topics))
    assert answer.code == ResponseCode.SUCCESS, answer
    assert answer.ext["role"] == "leader"
    return [(list(each.firsts), list(each.ends)) for each in decode_ends(answer.body)]


async def test_ends_of_many_topics_equal_the_ends_in_their_plans(client: Client) -> None:
    await client.create_topic("T", 4)
    await client.create_topic("U", 1)
    await sent(client, 10, 3)
    for current in (False, True):
        assert await told(client, "U", "T", current=current) == [([0], [0]), ([0, 0, 0, 0], [4, 3, 3, 0])]
    answer = await client.request(RequestCode.ASK_TOPIC_ENDS, {}, encode_topics(["T", "U"]))
    identities = [(await plan(client, topic))[0]["topicIdentity"] for topic in ("T", "U")]
    assert [each.identity for each in decode_ends(answer.body)] == identities


async def test_ends_beyond_the_limit_take_another_request(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=limited(bulk={"ends_queues_max": 5})) as client:
        for topic, queues in (("A", 2), ("B", 3), ("C", 6)):
            await client.create_topic(topic, queues)
        assert [len(ends) for _, ends in await told(client, "A", "B", "C")] == [2, 3]
        assert [len(ends) for _, ends in await told(client, "C", "A")] == [6], "more than fits, and yet one topic"


@pytest.mark.parametrize(
    ("topics", "code", "remark"),
    [
        (["T", "Nowhere", "Never"], ResponseCode.TOPIC_NOT_EXIST, "no such topic: Nowhere, Never"),
        (["T", "Written"], ResponseCode.NO_PERMISSION, "not readable: Written"),
        ([f"N{number}" for number in range(12)], ResponseCode.TOPIC_NOT_EXIST, "N9 and 2 more"),
        ([], ResponseCode.SYSTEM_ERROR, "0 bytes are not 1 to 4096 different names"),
        (["T", "T"], ResponseCode.SYSTEM_ERROR, "different names of topics"),
        ([str(number) for number in range(ENDS_TOPICS_MAX + 1)], ResponseCode.SYSTEM_ERROR, "different names"),
    ],
)
async def test_bad_questions_for_ends_are_refused(
    client: Client, topics: list[str], code: ResponseCode, remark: str
) -> None:
    await client.create_topic("T", 2)
    await client.create_topic("Written", 1, perm=2)
    answer = await client.request(RequestCode.ASK_TOPIC_ENDS, {}, encode_topics(topics))
    assert (answer.code, answer.body) == (code, b"")
    assert remark in (answer.remark or "")


async def test_invalid_truth_value_is_refused(client: Client) -> None:
    answer = await client.request(RequestCode.ASK_TOPIC_ENDS, {"current": "maybe"}, encode_topics(["T"]))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "current" in (answer.remark or "")
