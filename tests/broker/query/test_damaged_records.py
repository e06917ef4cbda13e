"""One bit of an old record is wrong on disk: no altered message reaches a consumer, and none is copied."""

from __future__ import annotations

from pathlib import Path

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.records import StoredMessage
from mq.protocol.names import HALF_TOPIC, UNENDED_TOPIC
from tests.support.check_backs import FAST, grows
from tests.support.damaged_records import FIELDS, File, body_of, close_the_first_file, named, send
from tests.support.half_messages import COMMIT, PREPARED, end, half_text
from tests.support.popping import popped
from tests.support.running_broker import Answer, Client, broker_client, properties
from tests.support.stored_messages import stored, wait_stored
from tests.support.waiting_messages import WallClock, beats


async def give_back(client: Client, sent: Answer) -> Answer:
    ext = {"offset": offset_of(sent), "group": "G", "delayLevel": 1, "unitMode": False}
    return await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def offset_of(sent: Answer) -> int:
    return parse_offset_message_id(sent.ext["msgId"]).physical_offset


async def send_half(client: Client, name: str) -> Answer:
    answer = await client.send("T", body_of(name), f=PREPARED, i=half_text(**named(name)))
    assert answer.code == 0, answer
    return answer


async def test_damaged_messages_are_neither_delivered_nor_copied_before_repair(
    tmp_path: Path, clock: WallClock
) -> None:
    given_back: list[Answer] = []
    halves: list[Answer] = []
    async with broker_client(tmp_path) as client:
        for topic in ("T", "P", "Filler"):
            await client.create_topic(topic, 1)
        await client.heartbeat("c", "G", topics=("T", "P"))
        for field in FIELDS:
            given_back.append(await send(client, "T", f"given-back-{field}"))
            await send(client, "P", f"popped-{field}")
            await send(client, "T", f"delay-{field}", DELAY="1")
            await send(client, "T", f"timer-{field}", TIMER_DELIVER_MS=str(clock.now_ms + 5000))
            halves.append(await send_half(client, f"transaction-{field}"))
        assert len(await popped(client, "P", invisibleTime=5000)) == len(FIELDS)
        await close_the_first_file(client)
    file = File(tmp_path)
    for kind in ("given-back", "popped", "delay", "timer", "transaction"):
        for field in FIELDS:
            file.flip(f"{kind}-{field}", field)
    async with broker_client(tmp_path) as client:
        assert (await client.pull("Filler", 0, 0)).records[0].body == bytes(4_000_000)
        for number, (message, half) in enumerate(zip(given_back, halves, strict=True)):
            for answer in (
                await client.pull("T", 0, number),
                await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset_of(message)}),
                await give_back(client, message),
                await end(client, half, COMMIT),
            ):
                assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b""), answer
        clock.now_ms += 10_000
        await beats(client)
        assert await client.offset(RequestCode.GET_MAX_OFFSET, "T") == len(FIELDS), "an altered message was copied"
        assert await client.offset(RequestCode.GET_MAX_OFFSET, "%RETRY%G_P") == 0
        assert (await client.send("T", b"others", i=properties(DELAY="2"))).code == 0
        clock.now_ms += 5000
        assert (await wait_stored_at(client, len(FIELDS))).body == b"others", "other levels are held up"
        file.restore()
        clock.now_ms += 120_000
        for message, half in zip(given_back, halves, strict=True):
            assert (await give_back(client, message)).code == 0
            assert (await end(client, half, COMMIT)).code == 0
        seen = await wait_stored(client, 4 * len(FIELDS) + 1)
        check(seen, ("given-back", "delay", "timer", "transaction"), b"others")
        check(await wait_stored(client, len(FIELDS), "%RETRY%G_P"), ("popped",))
        clock.now_ms += 2000
        check(await wait_stored(client, len(FIELDS), "%RETRY%G"), ("given-back",))


def check(messages: list[StoredMessage], kinds: tuple[str, ...], *others: bytes) -> None:
    """The messages are those of these kinds, each once and as it was sent."""
    names = [f"{kind}-{field}" for kind in kinds for field in FIELDS]
    assert sorted(message.body for message in messages) == sorted([*map(body_of, names), *others])
    for message in messages:
        if message.body not in others:
            name = message.body.decode().removeprefix("body of ")
            assert {key: message.properties[key] for key in named(name)} == named(name)
            assert message.flag == 0


async def wait_stored_at(client: Client, offset: int) -> StoredMessage:
    """The message of ``T`` at a queue offset, once it is there."""
    while await client.offset(RequestCode.GET_MAX_OFFSET, "T") <= offset:
        pass
    return (await client.pull("T", 0, offset)).records[0]


async def test_damaged_half_message_that_was_given_up_is_not_resumed(tmp_path: Path) -> None:
    one_check = FAST | {"transaction_checks_max": 1}
    async with broker_client(tmp_path, **one_check) as client:
        for topic in ("T", "Filler"):
            await client.create_topic(topic, 1)
        await send_half(client, "resumed")
        await grows(client, "transactionsGivenUp", 1)
        [message_id] = [record.offset_message_id for record in await stored(client, UNENDED_TOPIC)]
        await close_the_first_file(client)
    file = File(tmp_path)
    file.write(file.path.read_bytes().rindex(b"value-of-resumed"), b"w")
    async with broker_client(tmp_path, **one_check) as client:
        halves = await client.offset(RequestCode.GET_MAX_OFFSET, HALF_TOPIC)
        resume = RequestCode.RESUME_CHECK_HALF_MESSAGE
        assert (await client.request(resume, {"msgId": message_id})).code == ResponseCode.SYSTEM_ERROR
        assert await client.offset(RequestCode.GET_MAX_OFFSET, HALF_TOPIC) == halves
        file.restore()
        assert (await client.request(resume, {"msgId": message_id})).code == 0
        [*_, again] = await stored(client, HALF_TOPIC)
        assert again.properties["own"] == "value-of-resumed"
