"""What was given up is asked about again when an operator says so (request code 323), each once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.broker.broker import Broker
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.names import HALF_TOPIC, UNENDED_TOPIC
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.transactions import CheckTransactionState
from tests.support.check_backs import FAST, grows, produce
from tests.support.half_messages import COMMIT, send_half
from tests.support.replies import three_replicas
from tests.support.running_broker import Answer, Client, broker_client, running
from tests.support.stored_messages import stored

CODE = RequestCode.RESUME_CHECK_HALF_MESSAGE
ONE_CHECK = FAST | {"transaction_checks_max": 1}


async def resume(client: Client, message_id: str, *, serialization: int = JSON, **more: str) -> Answer:
    return await client.request(CODE, {"msgId": message_id} | more, serialization=serialization)


async def given_up(client: Client, count: int = 1) -> list[str]:
    """The ids of what was given up, once there is so much."""
    await grows(client, "transactionsGivenUp", count)
    return [record.offset_message_id for record in await stored(client, UNENDED_TOPIC)]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_resumed_message_is_asked_about_again_and_can_be_committed(tmp_path: Path, serialization: int) -> None:
    async with running(tmp_path, **ONE_CHECK) as broker:
        client = await broker.connect()
        await client.create_topic("T", 1)
        await send_half(client, b"resumed", own="\u20ac", KEYS="k")
        [message_id] = await given_up(client)
        [half] = await stored(client, HALF_TOPIC)
        producer = await broker.connect()
        await produce(producer)
        answer = await resume(client, message_id, serialization=serialization, topic="T")
        assert (answer.code, answer.remark, answer.serialization) == (0, None, serialization)
        assert answer.ext in (None, {})
        assert answer.body == b""
        question, _ = await producer.question()
        assert isinstance(question, CheckTransactionState)
        assert question.ext.half_queue_offset == 1
        again = (await stored(client, HALF_TOPIC))[1]
        assert again.properties == half.properties | {props.TRANSACTION_CHECK_TIMES: "0"}
        for name in ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times"):
            assert getattr(again, name) == getattr(half, name), name
        ext = {
            "producerGroup": "P",
            "tranStateTableOffset": question.ext.half_queue_offset,
            "commitLogOffset": question.ext.half_physical_offset,
            "commitOrRollback": COMMIT,
            "fromTransactionCheck": True,
            "msgId": "0A0B",
        }
        assert (await producer.request(RequestCode.END_TRANSACTION, ext)).code == 0
        [seen] = await stored(client)
        assert (seen.body, seen.properties["own"]) == (b"resumed", "\u20ac")


async def test_check_is_resumed_once_even_after_a_restart(tmp_path: Path) -> None:
    async with broker_client(tmp_path, **ONE_CHECK) as client:
        for body in (b"one", b"two"):
            await send_half(client, body)
        first, second = await given_up(client, 2)
        frames = [client.frame(CODE, {"msgId": second}) for _ in range(5)]
        await client.stream.send_all(b"".join(data for _, data in frames))
        answers = [await client.answer(opaque) for opaque, _ in frames]
        assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert answers[0].code == ResponseCode.SUCCESS
        repeated = await resume(client, second)
        assert (repeated.code, bool(repeated.remark)) == (ResponseCode.SUCCESS, True)
        assert [record.body for record in await stored(client, HALF_TOPIC)] == [b"one", b"two", b"two"]
        assert (await client.info())["raftmq.transactionsResumed"] == "1"
    async with broker_client(tmp_path, **ONE_CHECK) as client:
        assert (await resume(client, second)).remark
        assert len(await stored(client, HALF_TOPIC)) == 3
        assert (await resume(client, first)).remark is None
        await grows(client, "transactionsGivenUp", 2)
        # What was given up once more is another message, and can be resumed as well.
        assert [record.body for record in await stored(client, UNENDED_TOPIC)] == [b"one", b"two", b"two", b"one"]
        assert (await resume(client, (await given_up(client))[3])).remark is None


async def test_broker_refuses_to_resume_other_messages(tmp_path: Path) -> None:
    async with broker_client(tmp_path, **ONE_CHECK) as client:
        plain = await client.send("T", b"plain")
        await send_half(client)
        [message_id] = await given_up(client)
        [half] = await stored(client, HALF_TOPIC)
        behind = message_id[:16] + "7" + message_id[17:]
        within = f"{message_id[:-1]}{(int(message_id[-1], 16) + 1) % 16:X}"
        for wrong in (plain.ext["msgId"], half.offset_message_id, behind, within, "", "nothing", "Z" * 32):
            answer = await resume(client, wrong)
            assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True), wrong
        assert (await client.request(CODE, {})).code == ResponseCode.SYSTEM_ERROR
        assert len(await stored(client, HALF_TOPIC)) == 1
    async with running(tmp_path, transactions=False, **ONE_CHECK) as broker:
        refused = await resume(await broker.connect(), message_id)
        assert refused.code == ResponseCode.NO_PERMISSION


async def test_marks_of_unreadable_half_messages_are_removed(tmp_path: Path, brokers: list[Broker]) -> None:
    async with broker_client(tmp_path, **ONE_CHECK) as client:
        for number in range(20):
            await send_half(client, b"%d" % number)
        ids = await given_up(client, 20)
        queue = brokers[0]._store.get(UNENDED_TOPIC, 0)
        assert queue is not None
        queue.min_offset = QueueOffset(17)
        assert (await resume(client, ids[19])).code == 0
        marks = brokers[0]._metadata.marks.get(UNENDED_TOPIC, 0)
        assert (marks.low, len(marks.bits)) == (17, 1)
        assert not marks.is_done(QueueOffset(18))


async def test_any_replica_accepts_a_resume_request(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, **ONE_CHECK) as group:
        clients = [await broker.connect() for broker in group]
        await send_half(clients[0])
        [message_id] = await given_up(clients[0])
        assert (await resume(clients[1], message_id)).code == 0
        assert (await resume(clients[2], message_id)).remark
        assert len(await stored(clients[0], HALF_TOPIC)) == 2
