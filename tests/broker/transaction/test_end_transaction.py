"""Transactions through a real broker: half messages, their ends, and what is no end of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import Host
from mq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from tests.support.half_messages import COMMIT, PREPARED, ROLLBACK, UNKNOWN, end, end_ext, half_text, send_half
from tests.support.running_broker import ADDED, LONG_NAMES, Client, broker_client, properties, running, send_ext
from tests.support.stored_messages import figure, stored
from tests.support.waiting import until

# -- one transaction ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_committed_message_names_its_half_message(tmp_path: Path, code: int, serialization: int) -> None:
    text = half_text(KEYS="k", TAGS="café", WAIT="true", own="\u20ac")
    async with broker_client(tmp_path, queues=4, cluster="C1") as client:
        ext: dict[str, Any] = send_ext("T", e=2, f=PREPARED | 1, h=-7, i=text)
        if code == RequestCode.SEND_MESSAGE:
            ext = {LONG_NAMES[name]: value for name, value in ext.items()}
        half = await client.request(code, ext, b"body", serialization=serialization)
        place = parse_offset_message_id(half.ext["msgId"])
        assert (half.code, half.serialization) == (0, serialization)
        assert {name: value for name, value in half.ext.items() if name != "msgId"} == {
            "queueId": "2",
            "queueOffset": "0",
            "transactionId": "0A0B",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        [waiting] = await stored(client, HALF_TOPIC)
        expected = props.decode(text) | ADDED | {"REAL_TOPIC": "T", "REAL_QID": "2"}
        assert waiting.physical_offset == place.physical_offset
        assert (waiting.properties, waiting.sys_flag, waiting.queue_offset) == (expected, 1, 0)
        assert await stored(client, "T", 2) == []

        answer = await end(client, half, COMMIT, serialization=serialization)
        assert (answer.code, answer.remark, answer.serialization) == (0, None, serialization)
        assert answer.ext in (None, {})
        [message] = await stored(client, "T", 2)
        born = client.stream.socket.getsockname()
        assert message.properties == expected
        assert (message.body, message.flag, message.sys_flag) == (b"body", -7, 1 | COMMIT)
        assert (message.born_host, message.born_timestamp_ms) == (Host(born[0], born[1]), 1_700_000_000_000)
        assert (message.prepared_offset, message.queue_offset) == (place.physical_offset, 0)
        assert len((await client.pull("T", 2, subscription="café")).records) == 1, "the tag code is that of the tags"
        [ended] = await stored(client, HALF_OP_TOPIC)
        assert (ended.body, ended.properties) == (b"0,", {"TAGS": "d"})
        assert await figure(client, "transactionsCommitted") == 1


async def test_message_that_was_rolled_back_is_never_seen(client: Client) -> None:
    half = await send_half(client)
    assert (await end(client, half, ROLLBACK)).code == 0
    late = await end(client, half, COMMIT)
    assert (late.code, "was rolled back" in str(late.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert (await end(client, half, ROLLBACK)).code == 0
    assert await stored(client) == []
    assert [each.body for each in await stored(client, HALF_OP_TOPIC)] == [b"0,"]
    assert await figure(client, "transactionsRolledBack") == 1
    assert await figure(client, "transactionsEndedAgain") == 1


async def test_broker_refuses_rollback_of_a_committed_message(tmp_path: Path) -> None:
    """Whoever is told that its rollback is stored takes the message for one that nobody sees."""
    async with broker_client(tmp_path) as client:
        half = await send_half(client)
        assert (await end(client, half, COMMIT)).code == 0
        late = await end(client, half, ROLLBACK)
        assert (late.code, "was committed before" in str(late.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await end(client, half, COMMIT)).code == 0
        assert [message.body for message in await stored(client)] == [b"body"]
        assert await figure(client, "transactionsEndedAgain") == 1
    async with running(tmp_path) as broker:
        assert (await end(await broker.connect(), half, ROLLBACK)).code == ResponseCode.SYSTEM_ERROR


async def test_of_two_conflicting_ends_the_later_one_is_refused(tmp_path: Path) -> None:
    """Whoever is told that its commit is stored takes the message for sent."""
    async with broker_client(tmp_path) as client:
        halves = [await send_half(client, b"%d" % number) for number in range(2)]
        frames = [
            client.frame(RequestCode.END_TRANSACTION, end_ext(half, outcome))
            for half, outcomes in zip(halves, ((ROLLBACK, COMMIT), (COMMIT, ROLLBACK)), strict=True)
            for outcome in outcomes
        ]
        await client.stream.send_all(b"".join(data for _, data in frames))
        codes = [(await client.answer(opaque)).code for opaque, _ in frames]
        assert codes == [0, ResponseCode.SYSTEM_ERROR] * 2
        assert [message.body for message in await stored(client)] == [b"1"]
    async with running(tmp_path) as broker:
        assert (await end(await broker.connect(), halves[0], COMMIT)).code == ResponseCode.SYSTEM_ERROR


async def test_ends_without_an_answer_and_twice_make_one_copy(client: Client) -> None:
    half = await send_half(client)
    for _ in range(3):
        await client.post(RequestCode.END_TRANSACTION, end_ext(half, COMMIT), oneway=True)
    assert (await end(client, half, COMMIT)).code == 0, "the second waits for the first"
    assert len(await stored(client)) == 1
    assert await figure(client, "transactionsEndedAgain") == 3


async def test_simultaneous_transaction_ends_share_an_entry(client: Client) -> None:
    halves = [await send_half(client, b"%d" % number) for number in range(100)]
    frames = [
        client.frame(RequestCode.END_TRANSACTION, end_ext(half, ROLLBACK if number % 10 == 3 else COMMIT))
        for number, half in enumerate(halves)
    ]
    await client.stream.send_all(b"".join(data for _, data in frames))
    for opaque, _ in frames:
        assert (await client.answer(opaque)).code == 0
    bodies = [message.body for message in await stored(client)]
    assert bodies == [b"%d" % number for number in range(100) if number % 10 != 3]
    ended = [message.body for message in await stored(client, HALF_OP_TOPIC)]
    assert len(ended) < 20
    assert b"".join(ended) == b"".join(b"%d," % number for number in range(100))


async def test_unknown_outcome_changes_nothing_and_is_not_answered(client: Client) -> None:
    half = await send_half(client)
    opaque = await client.post(RequestCode.END_TRANSACTION, end_ext(half, UNKNOWN))
    assert (await end(client, half, COMMIT)).code == 0
    assert opaque not in client.answers
    assert len(await stored(client)) == 1


@pytest.mark.parametrize(("wanted", "seconds"), [({"DELAY": "1"}, 1), ({"TIMER_DELAY_MS": "1500"}, 1.5)])
async def test_delay_begins_with_the_commit(client: Client, wanted: dict[str, Any], seconds: float) -> None:
    half = await send_half(client, **wanted)
    await trio.sleep(0.3)  # a delay that began with the send would end this much earlier
    assert len(await stored(client, HALF_TOPIC)) == 1
    committed_at = trio.current_time()
    assert (await end(client, half, COMMIT)).code == 0

    async def delivered() -> bool:
        return await client.offset(RequestCode.GET_MAX_OFFSET) == 1

    await until(delivered)
    assert trio.current_time() - committed_at > seconds - 0.1
    [message] = await stored(client)
    assert (message.body, message.sys_flag) == (b"body", COMMIT)
    assert message.prepared_offset == parse_offset_message_id(half.ext["msgId"]).physical_offset


async def test_ended_transaction_stays_ended_after_a_restart(tmp_path: Path) -> None:
    async with broker_client(tmp_path) as client:
        committed, rolled_back, opened = [await send_half(client, body) for body in (b"a", b"b", b"c")]
        assert (await end(client, committed, COMMIT)).code == 0
        assert (await end(client, rolled_back, ROLLBACK)).code == 0
    async with broker_client(tmp_path) as client:
        for half, code in ((committed, 0), (rolled_back, ResponseCode.SYSTEM_ERROR), (opened, 0)):
            assert (await end(client, half, COMMIT)).code == code
        assert [message.body for message in await stored(client)] == [b"a", b"c"]


async def test_consume_stats_show_progress_of_transactions(client: Client) -> None:
    first, second, _ = [await send_half(client) for _ in range(3)]
    for half in (first, second):
        assert (await end(client, half, COMMIT)).code == 0
    answer = await client.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CID_RMQ_SYS_TRANS"})
    assert answer.code == 0
    for topic, at, last in ((HALF_TOPIC, 2, 3), (HALF_OP_TOPIC, 2, 2)):
        row = answer.body.partition(b'"topic":"%s"}:' % topic.encode())[2]
        assert row.startswith(b'{"brokerOffset":%d,"consumerOffset":%d,' % (last, at))


# -- what is none ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"tranStateTableOffset": -1}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": -(2**63)}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 2**63 - 1}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 2}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 1}, ResponseCode.SYSTEM_ERROR),
        ({"commitLogOffset": -1}, ResponseCode.SYSTEM_ERROR),
        ({"commitLogOffset": 2**63 - 1}, ResponseCode.SYSTEM_ERROR),
        ({"producerGroup": "other"}, ResponseCode.SYSTEM_ERROR),
        ({"producerGroup": ""}, ResponseCode.SYSTEM_ERROR),
        ({"commitOrRollback": 4}, ResponseCode.SYSTEM_ERROR),
        ({"commitOrRollback": -8}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_commit_without_its_half_message_is_refused(tmp_path: Path, given: dict[str, Any], code: int) -> None:
    async with broker_client(tmp_path) as client:
        half = await send_half(client)
        await send_half(client, b"another")
        answer = await end(client, half, COMMIT, **given)
        assert (answer.code, bool(answer.remark)) == (code, True)
        assert await stored(client) == []
        assert (await end(client, half, COMMIT)).code == 0
        assert [message.body for message in await stored(client)] == [b"body"]


async def test_commit_of_an_ordinary_message_or_wrong_position_is_refused(client: Client) -> None:
    plain = await client.send(i=properties(PGROUP="P"))
    assert (await end(client, plain, COMMIT)).code == ResponseCode.SYSTEM_ERROR, "there is no half message at all"
    half = await send_half(client)
    position = parse_offset_message_id(half.ext["msgId"]).physical_offset
    for wrong in (parse_offset_message_id(plain.ext["msgId"]).physical_offset, position + 1, position - 1, 0):
        answer = await end(client, half, COMMIT, commitLogOffset=wrong)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    assert len(await stored(client)) == 1


async def test_commit_to_a_deleted_topic_leaves_the_message_open(client: Client) -> None:
    await client.create_topic("T")
    half = await send_half(client)
    await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await end(client, half, COMMIT)).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await end(client, half, ROLLBACK)).code == 0


async def test_missing_queue_is_replaced_by_another(client: Client) -> None:
    await client.create_topic("T", 4)
    half = await send_half(client, queue=3)
    await client.create_topic("T", 2)
    assert (await end(client, half, COMMIT)).code == 0
    assert len(await stored(client, "T", 1)) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (properties(TRAN_MSG="true"), ResponseCode.MESSAGE_ILLEGAL),
        (properties(TRAN_MSG="true", PGROUP="a b"), ResponseCode.MESSAGE_ILLEGAL),
        (half_text(DELAY="soon"), ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_invalid_half_messages_are_refused(client: Client, text: str, code: int) -> None:
    answer = await client.send(f=PREPARED, i=text)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert await stored(client, HALF_TOPIC) == []


@pytest.mark.parametrize("wanted", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1"}, {"DELAY": "2"}])
async def test_accepted_half_message_with_long_properties_can_be_committed(
    tmp_path: Path, wanted: dict[str, str]
) -> None:
    async with broker_client(tmp_path, delay_levels="1s 2d") as client:
        filler = "x" * (props.SENT_PROPERTIES_BYTES_MAX - 100)
        while (half := await client.send(f=PREPARED, i=half_text(**wanted, filler=filler))).code != 0:
            filler = filler[1:]
        assert len(filler) > props.SENT_PROPERTIES_BYTES_MAX - 300
        assert (await end(client, half, COMMIT)).code == 0


async def test_half_messages_to_impossible_topics_are_refused(tmp_path: Path) -> None:
    async with broker_client(tmp_path, auto_create_topics=False) as client:
        assert (await client.send("missing", i=half_text())).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.send(HALF_TOPIC, i=half_text())).code == ResponseCode.NO_PERMISSION


async def test_broker_without_transactions_refuses_half_messages(tmp_path: Path) -> None:
    async with broker_client(tmp_path, transactions=False) as client:
        assert (await client.send(i=half_text())).code == ResponseCode.NO_PERMISSION
        assert (await client.send(i=properties(TRAN_MSG="false"))).code == 0


async def test_redelivered_message_is_not_a_half_message(client: Client) -> None:
    assert (await client.send(i=half_text(DELAY="3"), j=1)).code == 0
    assert await stored(client, HALF_TOPIC) == []
    assert len(await stored(client, "SCHEDULE_TOPIC_XXXX", 2)) == 1
