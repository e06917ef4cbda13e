"""Lite topics over real sockets: messages in and out, order within a lite topic, what comes again, who is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.properties import LITE_OFFSET, LITE_QUEUE
from mq.protocol.requests.lite import NotifyUnsubscribeLiteExt
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
    receipt,
    send,
    told,
)
from tests.support.running_broker import Answer, Client, broker_client, limited, running
from tests.support.waiting import until


async def test_client_gets_the_messages_of_its_subscribed_lite_topics(client: Client) -> None:
    for lite, body in (("one", b"1"), ("two", b"2"), ("other", b"-"), ("one", b"3")):
        assert (await send(client, lite, body)).code == ResponseCode.SUCCESS
    assert (await control(client, "PARTIAL_ADD", "one", "two", "none")).code == ResponseCode.SUCCESS
    first = await pop(client)
    assert told(first) == [("one", b"1", 0), ("one", b"3", 0), ("two", b"2", 0)]
    assert [message.properties[LITE_QUEUE] for message in first.records] == [
        f"%LMQ%${PARENT}$one",
        f"%LMQ%${PARENT}$one",
        f"%LMQ%${PARENT}$two",
    ]
    assert [int(message.properties[LITE_OFFSET]) for message in first.records] == [0, 1, 0]
    assert first.ext["reviveQid"] == "999"
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT, "they are hidden"
    assert await ack(client, first) == [0, 0, 0]
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT, "they are acknowledged"
    # They are ordinary messages of the topic as well.
    assert [record.body for record in (await client.pull(PARENT)).records] == [b"1", b"2", b"-", b"3"]


async def test_unacknowledged_pop_blocks_only_its_own_lite_topic(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a", "b")
    await send(client, "a", b"1")
    await send(client, "a", b"2")
    first = await pop(client, maxMsgNum=1)
    assert told(first) == [("a", b"1", 0)]
    await send(client, "b", b"3")
    second = await pop(client)
    assert told(second) == [("b", b"3", 0)]
    held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000))
    assert await ack(client, first, RequestCode.ACK_LITE_MESSAGE) == [0]
    assert told(await client.answer(held)) == [("a", b"2", 0)]


async def test_unacknowledged_message_is_redelivered_with_its_number_of_attempts(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"1")
    await send(client, "a", b"2")
    assert told(await pop(client, invisibleTime=1, maxMsgNum=1)) == [("a", b"1", 0)]
    again = await pop(client, pollTime=10_000)
    assert told(again) == [("a", b"1", 1), ("a", b"2", 0)]
    change = receipt(again, again.records[1]) | {"invisibleTime": 1}
    assert await ack(client, again) == [0, 0]
    assert (await client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == ResponseCode.NO_MESSAGE


async def test_too_many_open_pops_wait_until_expired_ones_are_redelivered(tmp_path: Path) -> None:
    async with lite_client(tmp_path, limits=limited(pop={"checkpoints_max": 2})) as client:
        for lite in ("a", "b", "c"):
            await send(client, lite, lite.encode())
        await control(client, "PARTIAL_ADD", "a", "b", "c")
        first = await pop(client, maxMsgNum=2)
        assert told(first) == [("a", b"a", 0), ("b", b"b", 0)]
        assert (await pop(client, pollTime=10_000)).code == ResponseCode.POLLING_FULL
        for message in first.records:
            change = receipt(first, message) | {"invisibleTime": 1}
            assert (await client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == ResponseCode.SUCCESS
        again: list[tuple[str, bytes, int]] = []
        while len(again) < 3:
            answer = await pop(client, pollTime=10_000)
            if answer.code == ResponseCode.POLLING_FULL:
                continue  # the time of neither is over yet
            again += told(answer)
            await ack(client, answer)
        # The time of the other one may be over only when the first one has made room for a new message.
        assert again[0] in (("a", b"a", 1), ("b", b"b", 1))
        assert sorted(again) == [("a", b"a", 1), ("b", b"b", 1), ("c", b"c", 0)]


async def test_shortened_invisible_time_redelivers_a_message_earlier(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"1")
    first = await pop(client)
    held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000))
    change = receipt(first, first.records[0]) | {"invisibleTime": 5}
    answer = await client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    assert answer.code == ResponseCode.SUCCESS
    assert told(await client.answer(held)) == [("a", b"1", 1)]


async def test_suspended_lite_topic_is_redelivered_in_time_and_uncounted(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"1")

    async def suspended(got: Answer, invisible_ms: int, **given: Any) -> Answer:
        held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000, **given))
        change = receipt(got, got.records[0]) | {"invisibleTime": invisible_ms, "suspend": True}
        assert (await client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == ResponseCode.SUCCESS
        return await client.answer(held)

    first = await pop(client)
    assert told(first) == [("a", b"1", 0)]
    second = await suspended(first, 5, invisibleTime=1)
    assert told(second) == [("a", b"1", 0)]
    third = await pop(client, pollTime=10_000)
    assert told(third) == [("a", b"1", 1)], "nobody suspended it before its invisible time was over"
    assert told(await suspended(third, 0)) == [("a", b"1", 1)]


async def test_one_request_waits_for_all_lite_topics_even_nonexistent_ones(client: Client) -> None:
    await control(client, "COMPLETE_ADD", *(f"s{number}" for number in range(50)))
    held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000))
    await send(client, "s37", b"x")
    assert told(await client.answer(held)) == [("s37", b"x", 0)]


async def test_request_with_the_same_attempt_gets_the_same_messages(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"1")
    assert told(await pop(client, attemptId="x")) == [("a", b"1", 0)]
    assert (await pop(client, attemptId="y")).code == ResponseCode.POLLING_TIMEOUT
    assert told(await pop(client, attemptId="x")) == [("a", b"1", 0)]


async def test_exclusive_takeover_of_a_lite_topic_evicts_the_other_client(tmp_path: Path) -> None:
    async with running(tmp_path, group="b-a") as broker:
        former, later = await broker.connect(), await broker.connect()
        await prepared(former, group={"lite.sub.model": "Exclusive"})
        await control(former, "PARTIAL_ADD", "a", "b", client_id="C1")
        await control(later, "PARTIAL_ADD", "a", client_id="C2")
        notice, _ = await former.question()
        assert notice.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
        assert notice.ext == NotifyUnsubscribeLiteExt(lite_topic="a", consumer_group=GROUP, client_id="C1")
        # It says again what it subscribed to before it has heard of that.
        await control(former, "COMPLETE_ADD", "a", "b", client_id="C1")
        await send(former, "a", b"1")
        await send(former, "b", b"2")
        assert told(await pop(former, "C1")) == [("b", b"2", 0)]
        assert told(await pop(later, "C2")) == [("a", b"1", 0)]


async def test_client_claiming_an_evicted_lite_topic_is_notified_again(tmp_path: Path) -> None:
    """The first notice may have been lost: then it would wait for messages that the other one gets."""
    async with running(tmp_path, group="b-a") as broker:
        former, later = await broker.connect(), await broker.connect()
        await prepared(later, group={"lite.sub.model": "Exclusive"})
        await control(later, "PARTIAL_ADD", "a", client_id="C2")
        await control(former, "COMPLETE_ADD", "a", "b", client_id="C1")
        notice, _ = await former.question()
        assert notice.ext == NotifyUnsubscribeLiteExt(lite_topic="a", consumer_group=GROUP, client_id="C1")


async def test_client_takes_over_exclusive_topic_of_disconnected_client(tmp_path: Path) -> None:
    async with running(tmp_path, group="b-a") as broker:
        killed, later = await broker.connect(), await broker.connect()
        await prepared(later, group={"lite.sub.model": "Exclusive"})
        await control(killed, "PARTIAL_ADD", "a", client_id="C1")
        await send(later, "a", b"1")
        await killed.stream.aclose()

        async def is_taken_over() -> bool:
            await control(later, "COMPLETE_ADD", "a", client_id="C2")
            return bool((await pop(later, "C2")).body)

        await until(is_taken_over)


async def test_removed_client_does_not_block_others_from_a_lite_topic(tmp_path: Path) -> None:
    """It goes on saying what it subscribes to, and took the lite topic back, or kept it, without ever popping."""
    async with running(tmp_path, group="b-a") as broker:
        removed, other = await broker.connect(), await broker.connect()
        await prepared(other, group={"lite.sub.model": "Exclusive"})
        await control(removed, "PARTIAL_ADD", "a", client_id="C1")
        ext = {"group": GROUP, "clientId": "C1", "keepOutMs": 60_000}
        assert (await other.request(RequestCode.REMOVE_MEMBER, ext)).code == ResponseCode.SUCCESS
        assert (await control(removed, "COMPLETE_ADD", "a", client_id="C1")).code == ResponseCode.SUCCESS
        await control(other, "COMPLETE_ADD", "a", client_id="C2")
        await control(removed, "PARTIAL_ADD", "a", client_id="C1")
        await send(other, "a", b"1")
        assert told(await pop(other, "C2")) == [("a", b"1", 0)]
        assert (await other.request(RequestCode.REMOVE_MEMBER, ext | {"keepOutMs": 0})).code == ResponseCode.SUCCESS
        says = await pop(removed, "C1", raftmqSaysSubscriptions="true")
        assert says.code == ResponseCode.SUBSCRIPTION_NOT_EXIST, "it is told to say it again"


async def test_client_gets_unsubscribe_notice_on_its_new_connection(tmp_path: Path) -> None:
    async with running(tmp_path, group="b-a") as broker:
        former, later = await broker.connect(), await broker.connect()
        await prepared(later, group={"lite.sub.model": "Exclusive"})
        await control(former, "PARTIAL_ADD", "a", client_id="C1")
        again = await broker.connect()
        await pop(again, "C1")
        await control(later, "PARTIAL_ADD", "a", client_id="C2")
        notice, _ = await again.question()
        assert notice.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE


async def test_clients_share_a_lite_topic_one_at_a_time(client: Client) -> None:
    for name in ("C1", "C2"):
        await control(client, "PARTIAL_ADD", "a", client_id=name)
    await send(client, "a", b"1")
    await send(client, "a", b"2")
    first = await pop(client, "C1", maxMsgNum=1)
    assert told(first) == [("a", b"1", 0)]
    held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext("C2", pollTime=10_000))
    await ack(client, first)
    assert told(await client.answer(held)) == [("a", b"2", 0)]


async def test_clients_of_a_wildcard_group_get_old_and_new_lite_topics(tmp_path: Path) -> None:
    async with lite_client(tmp_path, group={"lite.sub.wildcard": "*"}) as client:
        await send(client, "old", b"1")
        assert (await control(client, "PARTIAL_ADD", "old")).code == ResponseCode.ILLEGAL_OPERATION
        assert (await control(client, "COMPLETE_ADD")).code == ResponseCode.SUCCESS
        assert told(await pop(client, pollTime=10_000)) == [("old", b"1", 0)]
        held = [await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000)) for _ in range(2)]
        await send(client, "new-1", b"2")
        await send(client, "new-2", b"3")
        assert sorted([*told(await client.answer(held[0])), *told(await client.answer(held[1]))]) == [
            ("new-1", b"2", 0),
            ("new-2", b"3", 0),
        ]


async def test_client_chooses_the_first_offset_of_its_group(tmp_path: Path) -> None:
    every = [b"0", b"1", b"2", b"3"]
    cases: list[tuple[dict[str, object] | None, list[bytes]]] = [
        (None, every),
        ({"type": "POLICY", "value": 1}, every),
        ({"type": "POLICY", "value": 2}, []),
        ({"type": "OFFSET", "value": 2}, every[2:]),
        ({"type": "OFFSET", "value": 99}, []),
        ({"type": "TAIL_N", "value": 1}, every[3:]),
        ({"type": "TAIL_N", "value": 99}, every),
        ({"type": "TIMESTAMP", "value": 0}, every),
        ({"type": "TIMESTAMP", "value": 2**62}, []),
    ]
    async with lite_client(tmp_path) as client:
        for number, (option, bodies) in enumerate(cases):
            lite = f"a{number}"
            for body in every:
                await send(client, lite, body)
            assert (await control(client, "PARTIAL_ADD", lite, offsetOption=option)).code == ResponseCode.SUCCESS
            assert [body for _, body, _ in told(await pop(client))] == bodies, option


async def test_reset_ends_earlier_pops(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"1")
    before = await pop(client)
    await control(client, "PARTIAL_ADD", "a", offsetOption={"type": "POLICY", "value": 1})
    after = await pop(client)
    assert told(after) == [("a", b"1", 0)]
    assert await ack(client, before) in ([ResponseCode.NO_MESSAGE], [0]), "popped within one millisecond"
    await ack(client, after)
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("queues_lost", [False, True])
async def test_lite_offsets_and_pops_survive_a_restart(tmp_path: Path, queues_lost: bool) -> None:
    """With ``queues_lost``, the queues of lite topics are derived from the records of the log again."""
    async with broker_client(tmp_path, group="b-a") as client:
        await prepared(client)
        await control(client, "PARTIAL_ADD", "a", "b")
        for body in (b"1", b"2"):
            await send(client, "a", body)
        await ack(client, await pop(client, maxMsgNum=1))
        hidden = await pop(client)
        await send(client, "b", b"3")
    if queues_lost:
        for name in ("checkpoint", "checkpoint.previous"):
            (tmp_path / name).unlink(missing_ok=True)
    async with broker_client(tmp_path, group="b-a") as client:
        says = await pop(client, raftmqSaysSubscriptions="true")
        assert says.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000))
        await control(client, "COMPLETE_ADD", "a", "b")
        assert told(await client.answer(held)) == [("b", b"3", 0)]
        await send(client, "a", b"4")
        assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT
        assert await ack(client, hidden) == [0]
        assert told(await pop(client)) == [("a", b"4", 0)]


async def test_messages_that_no_lite_topic_takes_are_refused(tmp_path: Path) -> None:
    refused: list[tuple[str, dict[str, str]]] = [
        ("a" * 65, {}),
        ("a$b", {}),
        ("../a", {}),
        ("a", {"__SHARDINGKEY": "k"}),
        ("a", {"DELAY": "3"}),
        ("a", {"TIMER_DELAY_SEC": "3"}),
        ("a", {"TRAN_MSG": "true"}),
        ("a", {"_SYS_MSG_PRIORITY_": "3"}),
    ]
    taken: list[dict[str, str]] = [
        {"DELAY": "0", "TRAN_MSG": "false"},
        {"INNER_MULTI_QUEUE_OFFSET": "7", "RAFTMQ_LITE": "0", "INNER_MULTI_DISPATCH": "x"},
    ]
    async with lite_client(tmp_path) as client:
        for lite, named in refused:
            answer = await send(client, lite, b"-", named=named)
            assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER), (lite, named)
        for named in taken:
            assert (await send(client, "a", b"x", named=named)).code == ResponseCode.SUCCESS
        await control(client, "PARTIAL_ADD", "a")
        assert told(await pop(client)) == [("a", b"x", 0), ("a", b"x", 0)]


async def test_topic_of_another_type_refuses_messages_of_lite_topics(client: Client) -> None:
    await client.create_topic("T")
    answer = await client.send("T", i="__LITE_TOPIC\x01a\x02")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "message.type=LITE" in (answer.remark or "")
    changed = await client.create_topic("T", attributes="+message.type=LITE")
    assert changed.code == ResponseCode.SUCCESS, "it had no type"
    back = await client.create_topic("T", attributes="+message.type=NORMAL")
    assert back.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    "attributes",
    [
        {"lite.topic.expiration": "x"},
        {"lite.topic.expiration": "43201"},
        {"lite.topic.expiration": "-2"},
    ],
)
async def test_topics_with_wrong_attributes_are_refused(client: Client, attributes: dict[str, str]) -> None:
    text = ",".join(f"+{name}={value}" for name, value in attributes.items())
    answer = await client.create_topic(PARENT, attributes=text)
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_client_cannot_subscribe_beyond_the_quota_of_its_group(tmp_path: Path) -> None:
    async with lite_client(tmp_path, group={"lite.sub.client.quota": "2"}) as client:
        assert (await control(client, "PARTIAL_ADD", "a", "b")).code == ResponseCode.SUCCESS
        assert (await control(client, "PARTIAL_ADD", "c")).code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        assert (await control(client, "COMPLETE_ADD", "c", "d")).code == ResponseCode.SUCCESS
        assert (await put_group(client, "other", **{"lite.sub.model": "Both"})).code == ResponseCode.INVALID_PARAMETER


async def test_deleting_a_topic_deletes_its_lite_topics(client: Client) -> None:
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"1")
    await pop(client)
    held = await client.post(RequestCode.POP_LITE_MESSAGE, pop_ext(pollTime=10_000))
    deleted = await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PARENT})
    assert deleted.code == ResponseCode.SUCCESS
    assert (await client.answer(held)).code == ResponseCode.TOPIC_NOT_EXIST
    await prepared(client)
    await control(client, "PARTIAL_ADD", "a")
    await send(client, "a", b"2")
    assert told(await pop(client)) == [("a", b"2", 0)]


async def test_lite_requests_with_bad_arguments_are_refused(client: Client) -> None:
    await client.create_topic("T")
    assert (await pop(client, consumerGroup="none")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await pop(client, topic="T")).code == ResponseCode.INVALID_PARAMETER
    assert (await pop(client, topic="absent")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await pop(client, maxMsgNum=33)).code == ResponseCode.INVALID_PARAMETER
    assert (await control(client, "PARTIAL_ADD", "a$")).code == ResponseCode.ILLEGAL_OPERATION
