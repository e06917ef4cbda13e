"""Messages out by pops over real sockets: receipts, acknowledgements, what comes again, and who waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON
from mq.protocol.requests.group_progress import read_progress
from tests.support.popping import (
    MINUTE_MS,
    ack,
    again,
    batch_ack,
    batch_body,
    now_ms,
    pop,
    pop_ext,
    popped,
    read_popped,
)
from tests.support.running_broker import Client, RunningBroker, broker_client, properties
from tests.support.waiting import until
from tests.support.waiting_messages import WallClock

POP, ACK = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE
BATCH, CHANGE = RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME
FOUND, NO_MESSAGE, TIMEOUT, NOT_FOUND = 0, 208, 210, 19
RETRY = "%RETRY%G_T"


async def filled(client: Client, count: int, queues: int = 1, **given: Any) -> None:
    """Create topic T and send it messages with the bodies 0, 1, and so on, to its queues in turn."""
    await client.create_topic("T", queues)
    for number in range(count):
        assert (await client.send(body=b"%d" % number, e=number % queues, **given)).code == 0


async def test_pop_answers_with_receipts_and_hides_the_messages_from_others(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        await filled(client, 5)
        before_ms = now_ms()
        first = await pop(client, queueId=0, maxMsgNums=3)
        assert first.code == FOUND
        assert first.serialization == JSON
        assert before_ms <= int(first.ext.pop("popTime")) <= now_ms()
        assert first.ext == {
            "invisibleTime": "60000",
            "reviveQid": "0",
            "restNum": "2",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": "0 0 0,1,2",
            "orderCountInfo": "",
        }
        assert [record.body for record in first.records] == [b"0", b"1", b"2"]
        pulled = await client.pull()
        assert pulled.body[: len(first.body)] == first.body  # as they are in the log

        second = await pop(client)
        assert second.ext["startOffsetInfo"] == "0 0 3"
        assert [record.body for record in second.records] == [b"3", b"4"]
        nothing = await pop(client)
        assert (nothing.code, nothing.ext["restNum"]) == (NOT_FOUND, "0")
        assert await client.committed() == 5
        assert len(await popped(client, consumerGroup="H")) == 5


async def test_only_unacknowledged_messages_return_from_the_retry_topic(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        await filled(client, 4, i=properties(TAGS="a", KEYS="k", UNIQ_KEY="U"))
        given = await popped(client, invisibleTime=300)
        assert await ack(client, given[0]) == FOUND
        assert (await batch_ack(client, given[1:3])).code == FOUND
        assert given[3].receipt.pop_time_ms == clock.now_ms
        clock.now_ms += 299
        assert await popped(client) == []
        clock.now_ms += 1
        (last,) = await again(client, invisibleTime=60_000)
        assert last.body == b"3"
        assert last.message.topic == "T"
        assert last.message.reconsume_times == 1
        assert last.receipt.mark == "1"
        assert last.receipt.broker == "b-a"
        assert last.message.properties["1ST_POP_TIME"] == str(given[3].receipt.pop_time_ms)
        assert last.message.properties["ORIGIN_GROUP"] == "G"
        assert last.message.properties["UNIQ_KEY"] == "U"
        assert await ack(client, last) == FOUND
        assert await ack(client, last) == NO_MESSAGE
        assert await ack(client, given[3]) == NO_MESSAGE
        assert (await client.info())["raftmq.popCheckpoints"] == "0"
        assert await popped(client) == []


async def test_repeatedly_redelivered_message_stays_in_its_retry_topic(client: Client) -> None:
    await filled(client, 1)
    (message,) = await popped(client, invisibleTime=1)
    for times in (1, 2, 3):
        (message,) = await again(client, invisibleTime=1)
        assert message.message.reconsume_times == times
        assert message.receipt.mark == "1"
    await client.wait_for(lambda info: info["raftmq.popRevived"] == "4")


async def test_answer_has_messages_of_the_topic_or_of_its_retry_topic(client: Client) -> None:
    await filled(client, 3)
    await popped(client, invisibleTime=1)
    await client.wait_for(lambda info: info["raftmq.popRevived"] == "3")
    for number in (3, 4):
        await client.send(body=b"%d" % number)
    marks = []
    for _ in range(2):
        messages = await popped(client)
        marks.append("".join(message.receipt.mark for message in messages))
    assert sorted(marks) == ["00", "111"]


@pytest.mark.parametrize(("level", "times"), [(7, 0), (6, 1)])
async def test_suspended_message_is_uncounted_at_the_needed_format_level(
    tmp_path: Path, level: int, times: int
) -> None:
    async with broker_client(tmp_path, format_level_max=level) as client:
        await client.wait_for(lambda info: info["raftmq.formatLevel"] == str(level))
        await filled(client, 1)
        (message,) = await popped(client)
        change = message.ack_ext() | {"invisibleTime": 1, "suspend": True}
        assert (await client.request(CHANGE, change)).code == FOUND
        (message,) = await again(client, invisibleTime=1)
        assert message.message.reconsume_times == times
        (message,) = await again(client)
        assert message.message.reconsume_times == times + 1, "nobody suspended it a second time"


async def test_changed_time_renews_the_receipt_of_one_message_only(client: Client) -> None:
    await filled(client, 3)
    one, two, three = await popped(client)
    answer = await client.request(CHANGE, one.ack_ext() | {"invisibleTime": 0})
    assert answer.code == FOUND
    assert (answer.ext["invisibleTime"], answer.ext["reviveQid"]) == ("0", "0")
    (back,) = await again(client)
    assert back.body == b"0"

    answer = await client.request(CHANGE, two.ack_ext() | {"invisibleTime": 90_000})
    assert int(answer.ext["popTime"]) >= two.receipt.pop_time_ms
    fresh = two.receipt._replace(start=two.receipt.offset, pop_time_ms=int(answer.ext["popTime"]), invisible_ms=90_000)
    assert await ack(client, two._replace(receipt=fresh)) == FOUND
    assert await ack(client, two) == NO_MESSAGE
    assert await ack(client, three) == FOUND


async def test_unanswered_change_can_be_repeated_with_the_same_receipt(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await filled(client, 3)
    one, two, three = await popped(client)
    for each in (one, two, three):
        assert (await client.request(CHANGE, each.ack_ext() | {"invisibleTime": MINUTE_MS})).code == FOUND  # lost
    answer = await other.request(CHANGE, one.ack_ext() | {"invisibleTime": MINUTE_MS})
    assert answer.code == FOUND
    fresh = one.receipt._replace(start=one.receipt.offset, pop_time_ms=int(answer.ext["popTime"]))
    assert await ack(client, one._replace(receipt=fresh)) == FOUND
    refused = await other.request(CHANGE, one.ack_ext() | {"invisibleTime": MINUTE_MS})
    assert refused.code == NO_MESSAGE, "it is acknowledged"
    assert await ack(client, two) == FOUND
    assert (await batch_ack(client, [three])).code == FOUND
    assert [await ack(client, each) for each in (one, two, three)] == [NO_MESSAGE] * 3


async def test_request_about_a_message_waits_for_its_pending_change(client: Client) -> None:
    await filled(client, 2)
    one, two = await popped(client)
    changes = [await client.post(CHANGE, one.ack_ext() | {"invisibleTime": MINUTE_MS}) for _ in range(3)]
    assert [(await client.answer(each)).code for each in changes] == [FOUND] * 3
    acks = [await client.post(ACK, two.ack_ext()) for _ in range(3)]
    assert sorted([(await client.answer(each)).code for each in acks]) == [FOUND, NO_MESSAGE, NO_MESSAGE]
    assert await ack(client, one) == FOUND


async def test_pop_waits_for_any_queue_and_the_retry_topic(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await filled(client, 0, queues=4)
    waiting = await client.post(POP, pop_ext(pollTime=9000, bornTime=now_ms(), invisibleTime=200))
    await other.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    polling = {"consumerGroup": "G", "topic": "T", "queueId": -1}
    assert (await other.request(RequestCode.POLLING_INFO, polling)).ext == {"pollingNum": "1"}
    await other.send(body=b"here", e=2)
    (got,) = read_popped(await client.answer(waiting))
    assert got.body == b"here"
    waiting = await client.post(POP, pop_ext(pollTime=9000, bornTime=now_ms()))
    (back,) = read_popped(await client.answer(waiting))
    assert (back.body, back.message.reconsume_times) == (b"here", 1)
    assert (await pop(client, pollTime=50, bornTime=now_ms())).code == TIMEOUT


@pytest.mark.parametrize("born", [0, None, 1, now_ms() - 20_000, now_ms() + 20_000, 2**62, -(2**63)])
async def test_clock_of_a_pop_client_is_ignored(broker: RunningBroker, born: int | None) -> None:
    client, other = await broker.connect(), await broker.connect()
    await filled(client, 1)
    given: dict[str, Any] = {"bornTime": born}
    assert [each.body for each in await popped(client, **given)] == [b"0"]
    waiting = await client.post(POP, pop_ext(pollTime=9000, **given))
    await other.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    await other.send(body=b"1")
    assert [each.body for each in read_popped(await client.answer(waiting))] == [b"1"]
    ask = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 9000, **given}
    waiting = await client.post(RequestCode.NOTIFICATION, ask)
    await other.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    await other.send(body=b"2")
    assert (await client.answer(waiting)).ext["hasMsg"] == "true"


async def test_receipts_with_a_physical_offset_appended_are_understood(client: Client) -> None:
    """RocketMQ's proxy appends the message's physical offset to each receipt and sends it back so."""
    await filled(client, 2)
    one, two = await popped(client)
    for message, number in ((one, 4711), (two, -1)):
        ext = message.ack_ext()
        ext["extraInfo"] += f" {number}"
        later = await client.request(CHANGE, ext | {"invisibleTime": MINUTE_MS})
        assert later.code == FOUND
        fields = [message.receipt.offset, later.ext["popTime"], later.ext["invisibleTime"], 0, 0, "broker", 0]
        ext["extraInfo"] = " ".join(map(str, [*fields, message.receipt.offset, number]))
        assert (await client.request(ACK, ext)).code == FOUND
        assert (await client.request(ACK, ext)).code == NO_MESSAGE
    assert (await client.info())["raftmq.popCheckpoints"] == "0"


async def test_waiting_ordered_pop_gets_messages_freed_by_an_acknowledgement(client: Client) -> None:
    await filled(client, 2)
    order: dict[str, Any] = {"order": True, "queueId": 0}
    one, two = await popped(client, **order, invisibleTime=10 * MINUTE_MS)
    changed = await client.request(CHANGE, one.ack_ext() | {"invisibleTime": 300})
    assert changed.code == FOUND
    waiting = await client.post(POP, pop_ext(**order, pollTime=20_000, bornTime=now_ms()))
    await client.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    assert await ack(client, two) == FOUND  # now only the first is open, and that until its own time
    with trio.fail_after(15):  # without that the pop ends after 20 s, with nothing
        assert read_popped(await client.answer(waiting))[0].body == b"0"


async def test_tools_see_a_reset_offset_while_an_ordered_pop_is_open(client: Client) -> None:
    await filled(client, 10)
    await popped(client, order=True, queueId=0)
    stats = {"consumerGroup": "G", "topic": "T"}
    answer = await client.request(RequestCode.GET_CONSUME_STATS, stats)
    assert b'"consumerOffset":0' in answer.body
    assert b'"pullOffset":10' in answer.body
    reset = {"topic": "T", "group": "G", "queueId": 0, "offset": 5, "timestamp": -1, "isForce": True}
    assert (await client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == FOUND
    answer = await client.request(RequestCode.GET_CONSUME_STATS, stats)
    assert b'"consumerOffset":5' in answer.body
    assert b'"pullOffset":5' in answer.body


async def test_one_new_message_wakes_one_consumer_of_each_group(broker: RunningBroker) -> None:
    clients = [await broker.connect() for _ in range(4)]
    sender = await broker.connect()
    await filled(sender, 0)
    waiting = []
    for client, group in zip(clients, "GGHH", strict=True):
        ext = pop_ext(consumerGroup=group, pollTime=9000, bornTime=now_ms())
        waiting.append(await client.post(POP, ext))
    await sender.wait_for(lambda info: info["raftmq.heldPops"] == "4")
    await sender.send()
    assert (await clients[0].answer(waiting[0])).code == FOUND
    assert (await clients[2].answer(waiting[2])).code == FOUND
    assert (await sender.info())["raftmq.heldPops"] == "2"


async def test_pop_skips_messages_that_the_filter_rejects(client: Client) -> None:
    await client.create_topic("T")
    for number in range(40):
        await client.send(body=b"%d" % number, i=properties(TAGS="a" if number % 10 == 5 else "b", n=str(number)))
    got = await pop(client, exp="a", maxMsgNums=2)
    assert got.ext["msgOffsetInfo"] == "0 0 5,15"
    assert await client.committed() == 25  # up to the next one that is wanted
    assert [each.receipt.offset for each in await popped(client, exp="a")] == [25, 35]
    assert await client.committed() == 40
    sql = await pop(client, consumerGroup="H", expType="SQL92", exp="n BETWEEN 7 AND 8 OR n = 30")
    assert sql.ext["msgOffsetInfo"] == "0 0 7,8,30"
    assert await client.committed("H") == 40
    assert (await pop(client, expType="SQL92", exp="n BETWEEN")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_ordered_pop_waits_until_all_messages_of_its_queue_are_acknowledged(client: Client) -> None:
    await filled(client, 4)
    order: dict[str, Any] = {"order": True, "queueId": 0, "maxMsgNums": 2}
    first = await pop(client, **order, attemptId="x")
    assert (first.ext["reviveQid"], first.ext["orderCountInfo"]) == ("999", "")
    one, two = read_popped(first)
    assert (await pop(client, **order, attemptId="y")).code == NOT_FOUND
    repeated = await pop(client, **order, attemptId="x")
    one, two = read_popped(repeated)
    assert (one.body, two.body, repeated.ext["orderCountInfo"]) == (b"0", b"1", "")
    assert await ack(client, two) == FOUND
    assert await client.committed() == 0
    assert await ack(client, one) == FOUND
    assert await client.committed() == 2
    assert [each.body for each in await popped(client, **order)] == [b"2", b"3"]


async def test_redelivery_in_order_starts_at_the_first_unacknowledged_message(client: Client, clock: WallClock) -> None:
    await filled(client, 3)
    order: dict[str, Any] = {"order": True, "queueId": 0, "invisibleTime": 100}
    one, two, _ = await popped(client, **order)
    assert await ack(client, one) == FOUND
    clock.now_ms += 99
    waiting = await client.post(POP, pop_ext(**order, pollTime=9000, bornTime=clock.now_ms))
    await client.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    clock.now_ms += 1
    answer = await client.answer(waiting)
    back = read_popped(answer)
    assert [each.body for each in back] == [b"1", b"2"]
    assert answer.ext["orderCountInfo"] == "0 0 1;0 qo0%1 1;0 qo0%2 1"
    assert await ack(client, two) == NO_MESSAGE
    assert (await batch_ack(client, back)).code == FOUND
    assert await client.committed() == 3
    assert RETRY not in (await client.request(RequestCode.GET_ALL_TOPIC_CONFIG)).body.decode()


async def test_new_group_begins_at_its_initial_offset_mode(client: Client) -> None:
    await filled(client, 3)
    assert len(await popped(client, consumerGroup="MIN", initMode=0)) == 3
    assert len(await popped(client, consumerGroup="MAX", initMode=1)) == 3  # a young queue is read whole
    await client.create_topic("E")
    assert (await pop(client, "E", consumerGroup="MAX", initMode=1)).code == NOT_FOUND
    assert await client.committed("MAX", "E") == 0


async def test_peek_and_notification_leave_messages_visible(broker: RunningBroker) -> None:
    client, other = await broker.connect(), await broker.connect()
    await filled(client, 0)
    ext = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 8}
    assert (await client.request(RequestCode.PEEK_MESSAGE, ext)).code == NOT_FOUND
    ask = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 30, "bornTime": now_ms()}
    no = await client.request(RequestCode.NOTIFICATION, ask)
    assert (no.code, no.ext) == (FOUND, {"hasMsg": "false", "pollingFull": "false"})
    waiting = await client.post(RequestCode.NOTIFICATION, ask | {"pollTime": 9000, "bornTime": now_ms()})
    await other.wait_for(lambda info: info["raftmq.heldPops"] == "1")
    await other.send(body=b"x")
    assert (await client.answer(waiting)).ext == {"hasMsg": "true", "pollingFull": "false"}
    peeked = await client.request(RequestCode.PEEK_MESSAGE, ext)
    assert [record.body for record in peeked.records] == [b"x"]
    assert len(await popped(client)) == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -7}, NOT_FOUND),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": -(2**31)}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -(2**63)}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 2**63 - 1}, NOT_FOUND),
        ({"bornTime": 1}, NOT_FOUND),
        ({"bornTime": -(2**63)}, NOT_FOUND),
        ({"pollTime": -(2**63)}, NOT_FOUND),
        ({"consumerGroup": "with a blank"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": ""}, ResponseCode.INVALID_PARAMETER),
        ({"order": True, "attemptId": "a" * 257}, ResponseCode.INVALID_PARAMETER),
        ({"expType": "SQL92", "exp": "1 +"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"initMode": 77}, NOT_FOUND),
    ],
)
async def test_impossible_pop_is_refused(tmp_path: Path, given: dict[str, Any], code: int) -> None:
    async with broker_client(tmp_path, queues=1) as client:
        assert (await pop(client, **given)).code == code
        assert await client.alive()


async def test_invalid_receipts_are_refused_without_effect(client: Client) -> None:
    await filled(client, 3)
    message, *_ = await popped(client)
    good = message.ack_ext()
    bad: list[tuple[dict[str, Any], int]] = [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 3}, NO_MESSAGE),
        ({"offset": -1}, NO_MESSAGE),
        ({"offset": 2**63 - 1}, NO_MESSAGE),
        ({"consumerGroup": "H"}, NO_MESSAGE),
        ({"extraInfo": ""}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "0 1 2"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "a b c d e f g h"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": f"0 {2**64} 1 0 0 b 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": "-5 1 1 0 0 b 0 0"}, NO_MESSAGE),
        ({"extraInfo": "0 1 1 0 0 b 0 0"}, NO_MESSAGE),
    ]
    for change, code in bad:
        for request, more in ((ACK, {}), (CHANGE, {"invisibleTime": 1000})):
            answer = await client.request(request, good | more | change)
            assert answer.code == code, (request, change, answer)
    refused = await client.request(CHANGE, good | {"invisibleTime": -1})
    assert refused.code == ResponseCode.INVALID_PARAMETER
    for text in (b"", b"[]", b"{", b'{"acks":7}', b'{"acks":[{"c":"G"}]}', batch_body([message])[:-9]):
        assert (await client.request(BATCH, body=text)).code == ResponseCode.MESSAGE_ILLEGAL, text
    for bits in ("*", "AAA", "A" * 400):
        text = batch_body([message]).replace(b'"AQ=="', b'"%s"' % bits.encode())
        assert (await client.request(BATCH, body=text)).code == ResponseCode.MESSAGE_ILLEGAL, bits
    assert (await client.request(BATCH, body=b'{"acks":[]}')).code == NO_MESSAGE
    assert (await client.request(BATCH, body=batch_body([message], group="H"))).code == NO_MESSAGE
    assert (await client.info())["raftmq.popCheckpoints"] == "1"
    assert await ack(client, message) == FOUND


async def test_deleted_topic_or_group_takes_its_checkpoints_along(client: Client) -> None:
    await filled(client, 2)
    assert len(await popped(client)) == len(await popped(client, consumerGroup="H")) == 2
    gone = await client.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "H", "cleanOffset": True})
    assert gone.code == FOUND
    await client.wait_for(lambda info: info["raftmq.popCheckpoints"] == "1")
    assert (await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == FOUND
    await client.wait_for(lambda info: info["raftmq.popCheckpoints"] == "0")


async def test_tools_see_open_messages_as_in_flight(tmp_path: Path) -> None:
    async with broker_client(tmp_path, group="b-a") as client:
        await filled(client, 5)
        messages = await popped(client, maxMsgNums=4)
        await ack(client, messages[1])
        answer = await client.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "T"})
        ((_, row),) = read_progress(answer.body).items()
        assert (row.end, row.offset) == (5, 1)  # four of five are not consumed yet
        assert b'"pullOffset":4' in answer.body


async def test_even_overlong_names_get_a_retry_topic(client: Client) -> None:
    group, topic = "g" * 120, "t" * 127
    await client.create_topic(topic)
    await client.send(topic)
    names = {"consumerGroup": group}
    assert len(await popped(client, topic, **names, invisibleTime=1)) == 1
    found: list[Any] = []

    async def got() -> bool:
        found.extend(await popped(client, topic, **names))
        return bool(found)

    await until(got)
    assert found[0].message.topic == topic
    assert await ack(client, found[0], topic, group) == FOUND
