"""Questions for the ends of many topics at once, asked of real replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.topic_ends import ENDS_TOPICS_MAX, decode_ends, encode_topics
from tests.support.bulk_reading import plan
from tests.support.running_broker import Client, broker_client, limited
from tests.support.sent_messages import sent


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
async def test_bad_requests_are_refused(client: Client, topics: list[str], code: ResponseCode, remark: str) -> None:
    await client.create_topic("T", 2)
    await client.create_topic("Written", 1, perm=2)
    answer = await client.request(RequestCode.ASK_TOPIC_ENDS, {}, encode_topics(topics))
    assert (answer.code, answer.body) == (code, b"")
    assert remark in (answer.remark or "")


async def test_truth_value_that_is_none_is_refused(client: Client) -> None:
    answer = await client.request(RequestCode.ASK_TOPIC_ENDS, {"current": "maybe"}, encode_topics(["T"]))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "current" in (answer.remark or "")
