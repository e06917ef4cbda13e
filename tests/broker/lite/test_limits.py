"""Limits of lite topics, over real sockets: what is refused, and what does not stay for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from mq.broker.broker import Broker
from mq.broker.context import wall_clock_ms
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.lite import NotifyUnsubscribeLiteExt
from tests.support.lite_topics import (
    GROUP,
    PARENT,
    control,
    lite_client,
    pop,
    pop_ext,
    prepared,
    put_group,
    receipt,
    send,
    told,
)
from tests.support.running_broker import Answer, Client, limited, running
from tests.support.waiting import until

QUOTA = ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


async def controls(client: Client, *entries: Mapping[str, object]) -> Answer:
    """One request with several entries."""
    usual = {"group": GROUP, "topic": PARENT, "action": "PARTIAL_ADD"}
    body = json.dumps({"subscriptionSet": [{**usual, **each} for each in entries]}).encode()
    return await client.request(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)


async def test_request_with_many_entries_does_not_pass_the_maximum_of_subscriptions(tmp_path: Path) -> None:
    async with lite_client(tmp_path, limits=limited(lite={"subscriptions_max": 3})) as client:
        many: list[dict[str, object]] = [{"clientId": f"C{number}", "liteTopicSet": ["a"]} for number in range(4)]
        assert (await controls(client, *many)).code == QUOTA
        assert (await client.info())["raftmq.liteSubscriptions"] == "0", "nothing has changed"
        assert (await controls(client, *many[:3])).code == ResponseCode.SUCCESS
        assert (await controls(client, many[3])).code == QUOTA
        # One leaves and another one comes in the same request; who says the same again needs no room.
        leaves: dict[str, object] = {"clientId": "C0", "action": "COMPLETE_REMOVE"}
        assert (await controls(client, leaves, many[3])).code == ResponseCode.SUCCESS
        assert (await controls(client, many[1] | {"action": "COMPLETE_ADD"})).code == ResponseCode.SUCCESS


async def test_quota_of_a_client_counts_all_entries_of_a_request(tmp_path: Path) -> None:
    async with lite_client(tmp_path, group={"lite.sub.client.quota": "2"}) as client:
        some: list[dict[str, object]] = [{"clientId": "C", "liteTopicSet": [name]} for name in "abc"]
        a, b, c = some
        assert (await controls(client, a, b, c)).code == QUOTA
        assert (await controls(client, a, b, a | {"action": "PARTIAL_REMOVE"}, c)).code == ResponseCode.SUCCESS


async def test_wildcard_clients_use_up_the_limit_of_subscriptions(tmp_path: Path) -> None:
    async with lite_client(
        tmp_path, limits=limited(lite={"subscriptions_max": 1}), group={"lite.sub.wildcard": "true"}
    ) as client:
        assert (await control(client, "COMPLETE_ADD", client_id="C1")).code == ResponseCode.SUCCESS
        assert (await control(client, "COMPLETE_ADD", client_id="C1")).code == ResponseCode.SUCCESS
        assert (await control(client, "COMPLETE_ADD", client_id="C2")).code == QUOTA


async def test_message_beyond_the_limit_of_lite_topics_is_refused(tmp_path: Path) -> None:
    async with lite_client(tmp_path, limits=limited(lite={"topics_max": 2})) as client:
        for lite in ("a", "b"):
            assert (await send(client, lite, b"1")).code == ResponseCode.SUCCESS
        refused = await send(client, "c", b"1")
        assert refused.code == ResponseCode.LMQ_QUOTA_EXCEEDED
        assert "maximum: 2" in (refused.remark or "")
        assert (await send(client, "a", b"2")).code == ResponseCode.SUCCESS, "it is there already"
        assert (await client.send(PARENT, b"3")).code == ResponseCode.SUCCESS, "it belongs to no lite topic"
        await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
        await prepared(client)
        assert (await send(client, "c", b"1")).code == ResponseCode.SUCCESS


async def test_client_evicted_while_disconnected_is_notified_after_reconnecting(tmp_path: Path) -> None:
    async with running(tmp_path, group="b-a") as broker:
        former, later = await broker.connect(), await broker.connect()
        await prepared(later, group={"lite.sub.model": "Exclusive"})
        await control(former, "PARTIAL_ADD", "a", "b", client_id="C1")
        await former.stream.aclose()

        async def is_gone() -> bool:
            return (await later.info())["raftmq.connections"] == "1"

        await until(is_gone)
        await control(later, "PARTIAL_ADD", "a", client_id="C2")
        again = await broker.connect()
        await pop(again, "C1")
        notice, _ = await again.question()
        assert notice.ext == NotifyUnsubscribeLiteExt(lite_topic="a", consumer_group=GROUP, client_id="C1")


async def test_start_offset_of_an_unused_lite_topic_is_not_kept(tmp_path: Path) -> None:
    options: list[dict[str, object]] = [
        {"type": "POLICY", "value": 1},
        {"type": "POLICY", "value": 2},
        {"type": "OFFSET", "value": 7},
        {"type": "TAIL_N", "value": 1},
        {"type": "TIMESTAMP", "value": 0},
    ]
    async with lite_client(tmp_path) as client:
        for number, option in enumerate(options):
            assert (await control(client, "PARTIAL_ADD", f"a{number}", offsetOption=option)).code == 0
        answer = await client.request(RequestCode.GET_BROKER_LITE_INFO)
        assert json.loads(answer.body)["offsetTableSize"] == 0
        for number in range(len(options)):
            await send(client, f"a{number}", b"x")
        assert len(told(await pop(client))) == len(options), "a message that comes later is read from all"


async def test_open_pops_of_an_absent_group_make_room_for_others(
    tmp_path: Path, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lite_client(tmp_path, limits=limited(pop={"checkpoints_max": 2})) as client:
        await put_group(client, "others")
        abandoned = brokers[0].services.abandoned_pops
        monkeypatch.setattr(abandoned, "_silent_seconds", 0.0)
        for lite in ("a", "b"):
            for body in (b"1", b"2", b"3"):
                await send(client, lite, body)
        await control(client, "PARTIAL_ADD", "a", "b")
        first = await pop(client)
        assert len(told(first)) == 6
        await control(client, "COMPLETE_ADD", "c", client_id="D", group="others")
        await send(client, "c", b"1")

        async def popped() -> Answer:
            return await pop(client, "D", consumerGroup="others", pollTime=10_000)

        abandoned.run()
        assert (await popped()).code == ResponseCode.POLLING_FULL, "its client is there"
        await control(client, "COMPLETE_REMOVE")
        abandoned.run()
        assert (await popped()).code == ResponseCode.POLLING_FULL, "the messages are hidden"
        for message in first.records:
            change = receipt(first, message) | {"invisibleTime": 1}
            await client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)

        async def is_due() -> bool:
            await client.info()
            states = [brokers[0]._metadata.pops.get(key).ordered for key in brokers[0]._metadata.pops.queues]
            return all(each is not None and each.blocked_until_ms() <= wall_clock_ms() for each in states)

        async def has_room() -> bool:
            abandoned.run()
            return bool((await popped()).body)

        await until(is_due)  # of both: there is room as soon as one is forgotten
        await until(has_room)
        assert abandoned.forget_count == 2
        await control(client, "PARTIAL_ADD", "a", "b")
        again = told(await pop(client, pollTime=10_000))
        assert again[:3] == [("a", b"1", 0), ("a", b"2", 0), ("a", b"3", 0)], "it continues where it was"


async def test_polls_of_an_empty_lite_topic_append_no_entry(client: Client) -> None:
    """Elsewhere a consumer of a subject that gets no messages made its log grow for ever."""
    await control(client, "PARTIAL_ADD", "silent")
    before = (await client.info())["raftmq.lastIndex"]
    for number in range(20):
        assert (await pop(client, attemptId=f"{number}")).code == ResponseCode.POLLING_TIMEOUT
        await control(client, "COMPLETE_ADD", "silent")
    assert (await client.info())["raftmq.lastIndex"] == before


async def test_lite_topic_freed_during_a_pop_is_still_delivered(client: Client) -> None:
    """Elsewhere a lite topic that an acknowledgement freed during a pop was left out: its other messages never came."""
    wanted = sorted((lite, str(number).encode()) for lite in ("a", "b", "c") for number in range(5))
    for lite, body in wanted:
        await send(client, lite, body)
    await control(client, "PARTIAL_ADD", "a", "b", "c")
    got: list[tuple[str, bytes]] = []
    answer = await pop(client, maxMsgNum=1)
    while True:
        got += [(lite, body) for lite, body, _ in told(answer)]
        # The next pop is on its way when the acknowledgement frees the lite topic.
        acks = [await client.post(RequestCode.ACK_MESSAGE, receipt(answer, each)) for each in answer.records]
        if len(got) == len(wanted):
            break
        held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(maxMsgNum=2, pollTime=10_000))
        for each in acks:
            assert (await client.answer(each)).code == ResponseCode.SUCCESS
        answer = await client.answer(held)
    assert sorted(got) == wanted
