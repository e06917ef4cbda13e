"""What operators ask about lite topics (request codes 200074 to 200079), over real sockets."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from mq.broker.broker import Broker
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.lite import BrokerLiteInfo, LiteClientInfo, LiteGroupInfo, LiteTopicInfo, ParentTopicInfo
from mq.protocol.wire.json_body import Body
from tests.support.lite_topics import (
    GROUP,
    PARENT,
    ack,
    control,
    lite_client,
    pop,
    pop_ext,
    prepared,
    put_group,
    send,
    told,
)
from tests.support.running_broker import Client, running

BodyT = TypeVar("BodyT", bound=Body)


async def asked(client: Client, code: RequestCode, kind: type[BodyT], **fields: object) -> BodyT:
    answer = await client.request(code, fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    return kind.decode(answer.body)


async def lag_of(client: Client, **fields: object) -> LiteGroupInfo:
    return await asked(client, RequestCode.GET_LITE_GROUP_INFO, LiteGroupInfo, group=GROUP, **fields)


async def test_figures_of_all_lite_topics_and_of_one_parent(client: Client) -> None:
    await client.create_topic(PARENT, 2, attributes="+lite.topic.expiration=60")
    await client.create_topic("Other", attributes="+message.type=LITE")
    for lite in ("a", "b", "c"):
        await send(client, lite, b"x")
    await control(client, "PARTIAL_ADD", "a", "b")
    assert told(await pop(client, maxMsgNum=1)) == [("a", b"x", 0)]
    info = await asked(client, RequestCode.GET_BROKER_LITE_INFO, BrokerLiteInfo)
    assert (info.topics_max, info.topic_count, info.subscription_count) == (1_000_000, 3, 2)
    assert (info.open_count, info.offset_count, info.news_count) == (1, 1, 1)
    assert info.expirations == {"Other": -1, PARENT: 60}
    assert info.groups == {PARENT: [GROUP]}
    parent = await asked(client, RequestCode.GET_PARENT_TOPIC_INFO, ParentTopicInfo, topic=PARENT)
    assert parent == ParentTopicInfo(PARENT, 60, [GROUP], 3, 3)
    other = await asked(client, RequestCode.GET_PARENT_TOPIC_INFO, ParentTopicInfo, topic="Other")
    assert other == ParentTopicInfo("Other", -1, [], 3, 0)


async def test_lite_topic_and_its_subscribers(client: Client) -> None:
    await put_group(client, "all", **{"lite.sub.wildcard": "true"})
    await send(client, "a", b"1")
    await send(client, "a", b"2")
    await control(client, "PARTIAL_ADD", "a", client_id="C2")
    await control(client, "PARTIAL_ADD", "a", client_id="C1")
    await control(client, "COMPLETE_ADD", client_id="W", group="all")
    code = RequestCode.GET_LITE_TOPIC_INFO
    info = await asked(client, code, LiteTopicInfo, parentTopic=PARENT, liteTopic="a")
    assert [(each.group, each.client_id) for each in info.subscribers] == [
        (GROUP, "C1"),
        (GROUP, "C2"),
        ("all", "*"),
    ]
    assert (info.ends.min_offset, info.ends.max_offset, info.is_there) == (0, 2, True)
    assert info.ends.last_update_ms > 0
    absent = await asked(client, code, LiteTopicInfo, parentTopic=PARENT, liteTopic="none")
    assert (absent.ends.max_offset, absent.is_there) == (0, False)


async def test_query_returns_lite_topics_of_a_client(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "b", "a", "c")
    code, fields = RequestCode.GET_LITE_CLIENT_INFO, {"parentTopic": PARENT, "group": GROUP, "clientId": "C"}
    info = await asked(client, code, LiteClientInfo, **fields)
    assert (info.topic_count, info.lite_topics) == (3, ["a", "b", "c"])
    assert info.heard_ms > 0
    some = await asked(client, code, LiteClientInfo, **fields, maxCount=2)
    assert (some.topic_count, some.lite_topics) == (3, ["a", "b"])
    unknown = await asked(client, code, LiteClientInfo, **(fields | {"clientId": "X"}))
    assert (unknown.topic_count, unknown.lite_topics, unknown.heard_ms) == (-1, None, 0)


async def test_lite_lag_includes_unacknowledged_messages_and_ranks_topics(client: Client) -> None:
    for lite, count in (("read", 1), ("old", 1), ("long", 4), ("short", 2), ("unread", 9)):
        for _ in range(count):
            await send(client, lite, b"x")
    await control(client, "PARTIAL_ADD", "read", "old", "long", "short")
    first = await pop(client, maxMsgNum=1)
    await ack(client, first)
    [(begun, _, _)] = told(first)
    info = await lag_of(client, topK=2)
    assert info.parent_topic == PARENT
    assert info.lag == 7
    counts = {"read": 1, "old": 1, "long": 4, "short": 2} | {begun: {"long": 3, "short": 1}.get(begun, 0)}
    expected = sorted(counts.values(), reverse=True)[:2]
    assert [each.lag for each in info.longest or []] == expected
    assert all(counts[each.lite_topic] == each.lag for each in info.longest or [])
    oldest = [each.oldest_ms for each in info.oldest or []]
    assert len(oldest) == 2
    assert oldest == sorted(oldest)
    assert info.oldest_ms == oldest[0] > 0
    totals = await lag_of(client, topK=0)
    assert (totals.lag, totals.longest, totals.oldest, totals.oldest_ms) == (info.lag, [], [], info.oldest_ms)


async def test_lag_in_one_lite_topic(client: Client) -> None:
    for body in (b"1", b"2", b"3"):
        await send(client, "a", body)
        await send(client, "b", body)
    await control(client, "PARTIAL_ADD", "a")
    await ack(client, await pop(client, maxMsgNum=1))
    info = await lag_of(client, liteTopic="a")
    assert info.progress is not None
    assert (info.lag, info.progress.offset, info.progress.end) == (2, 1, 3)
    assert info.oldest_ms >= info.progress.last_ms > 0
    nobody = await lag_of(client, liteTopic="b")
    assert (nobody.lag, nobody.progress, nobody.oldest_ms) == (0, None, -1)
    assert (await lag_of(client, liteTopic="none")).lag == -1


async def test_lag_of_a_wildcard_group_counts_unread_lite_topics(tmp_path: Path) -> None:
    async with lite_client(tmp_path, group={"lite.sub.wildcard": "true"}) as client:
        await send(client, "a", b"1")
        await send(client, "b", b"2")
        info = await lag_of(client, topK=10)
        assert (info.lag, sorted(each.lite_topic for each in info.longest or [])) == (2, ["a", "b"])


async def test_dispatch_serves_a_client_without_a_notification(
    tmp_path: Path, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, group="b-a") as broker:
        client, other = await broker.connect(), await broker.connect()
        await prepared(client)
        await control(client, "PARTIAL_ADD", "a")
        assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT, "its subscriptions were looked at just now"
        with monkeypatch.context() as lost:
            lost.setattr(brokers[0].services.lite_pops.subscriptions, "news", lambda queue, group=None: iter(()))
            await send(client, "a", b"1")
            held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000))
            absent = await other.request(RequestCode.TRIGGER_LITE_DISPATCH, {"group": GROUP, "clientId": "X"})
            assert absent.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            done = await other.request(RequestCode.TRIGGER_LITE_DISPATCH, {"group": GROUP})
            assert done.code == ResponseCode.SUCCESS
            assert told(await client.answer(held)) == [("a", b"1", 0)]


async def test_lite_queries_refuse_unknown_names(tmp_path: Path) -> None:
    cases: list[tuple[RequestCode, dict[str, object], ResponseCode]] = [
        (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "T"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": "T", "liteTopic": "a"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": PARENT, "liteTopic": "a$"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": PARENT, "liteTopic": ""}, ResponseCode.INVALID_PARAMETER),
        (
            RequestCode.GET_LITE_CLIENT_INFO,
            {"parentTopic": PARENT, "group": "none", "clientId": "C"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        (
            RequestCode.GET_LITE_CLIENT_INFO,
            {"parentTopic": PARENT, "group": "usual", "clientId": "C"},
            ResponseCode.INVALID_PARAMETER,
        ),
        (
            RequestCode.GET_LITE_CLIENT_INFO,
            {"parentTopic": PARENT, "group": GROUP, "clientId": "C", "maxCount": 0},
            ResponseCode.INVALID_PARAMETER,
        ),
        (RequestCode.GET_LITE_GROUP_INFO, {"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (RequestCode.GET_LITE_GROUP_INFO, {"group": "usual"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_LITE_GROUP_INFO, {"group": GROUP, "topK": 10_001}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_LITE_GROUP_INFO, {"group": GROUP, "topK": -1}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.GET_LITE_GROUP_INFO, {"group": GROUP, "liteTopic": "$"}, ResponseCode.INVALID_PARAMETER),
        (RequestCode.TRIGGER_LITE_DISPATCH, {"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (RequestCode.TRIGGER_LITE_DISPATCH, {"group": "usual"}, ResponseCode.INVALID_PARAMETER),
    ]
    async with lite_client(tmp_path) as client:
        await client.create_topic("T")
        body = b'{"groupName":"usual"}'
        await client.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        for code, fields, refusal in cases:
            assert (await client.request(code, fields)).code == refusal, (code.name, fields)
