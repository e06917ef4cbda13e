"""Messages with the longest properties: each that is accepted can be redelivered; older, longer ones block nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.delay import DELAY_LEVELS_MS
from mq.protocol.messages.records import StoredMessage
from tests.support.half_messages import COMMIT, PREPARED, end, half_text
from tests.support.running_broker import Client, broker_client, properties, send_ext
from tests.support.stored_messages import stored, wait_stored
from tests.support.waiting_messages import WallClock, beats

GROUP = "g" * 120
TOPIC = "t" * 127
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker accepts what earlier releases accepted."""
    monkeypatch.setattr(props, "SENT_PROPERTIES_BYTES_MAX", props.PROPERTIES_BYTES_MAX)


async def give_back(client: Client, message: StoredMessage, **more: object) -> None:
    ext = {"offset": message.physical_offset, "group": GROUP, "delayLevel": 0, "originMsgId": "", "originTopic": TOPIC}
    answer = await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext | more)
    assert (answer.code, answer.remark) == (0, None)


async def longest(client: Client, **more: str) -> StoredMessage:
    """A message in queue 0 of the topic, with properties as long as this broker takes them."""
    room = props.SENT_PROPERTIES_BYTES_MAX - 200
    while (await client.send(TOPIC, i=properties(own="v" * (room + 1), KEYS="k", **more))).code == 0:
        room += 1
    assert room > props.SENT_PROPERTIES_BYTES_MAX - 150
    return (await stored(client, TOPIC))[-1]


async def test_send_without_room_for_a_redelivery_is_refused(client: Client) -> None:
    for more in ({}, {"DELAY": "1"}, {"TRAN_MSG": "true", "PGROUP": "p"}):
        answer = await client.send(i=properties(own="v" * 30_000, **more))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "maximum: 29696" in str(answer.remark)
    reply = await client.request(RequestCode.SEND_REPLY_MESSAGE_V2, send_ext(i=properties(own="v" * 30_000)))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL


async def test_longest_message_is_retried_and_dead_with_all_properties(tmp_path: Path, clock: WallClock) -> None:
    async with broker_client(tmp_path, delay_levels="1s 2d") as client:
        message = await longest(client)
        own = message.properties["own"]
        for times in range(1, 3):
            await give_back(client, message, delayLevel=times)
            await beats(client)
            clock.now_ms += 2 * 86_400_000 + 1000
            message = (await wait_stored(client, times, RETRY))[-1]
            assert (message.properties["own"], message.properties["KEYS"]) == (own, "k")
        await give_back(client, message, delayLevel=-1)
        [dead] = await stored(client, DEAD)
        assert (dead.properties["own"], dead.reconsume_times) == (own, 3)
        assert props.OMITTED not in dead.properties


async def test_older_message_without_room_is_retried_and_dead(client: Client, clock: WallClock, older: None) -> None:
    message = await longest(client)
    await give_back(client, message)
    clock.now_ms += DELAY_LEVELS_MS[2]
    [retried] = await wait_stored(client, 1, RETRY)
    assert (retried.body, retried.properties["KEYS"], retried.properties["RETRY_TOPIC"]) == (b"body", "k", TOPIC)
    assert retried.properties[props.OMITTED].endswith(" bytes: own")
    await give_back(client, message, delayLevel=-1)
    [dead] = await stored(client, DEAD)
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"body", TOPIC)
    assert dead.properties[props.OMITTED].startswith("1 properties of 3")


async def test_copy_of_a_consumer_without_room_is_stored(client: Client, clock: WallClock) -> None:
    text = properties(own="v" * 32_700, UNIQ_KEY="u", RETRY_TOPIC=TOPIC, TAGS="B", MIN_OFFSET="5" * 19) + "x" * 900
    await client.heartbeat("c", GROUP)
    await client.create_topic("Behind")
    assert (await client.send(RETRY, i=text, j=1)).code == 0
    assert (await client.send(RETRY, i=properties(DELAY="1") + text, j=1)).code == 0
    assert (await client.send(RETRY, i=text, j=16)).code == 0
    clock.now_ms += 1000
    for each in [*await wait_stored(client, 2, RETRY), *await stored(client, DEAD)]:
        assert (each.properties["UNIQ_KEY"], each.properties["TAGS"]) == ("u", "B")
        assert "own" in each.properties[props.OMITTED]


@pytest.mark.parametrize("delay", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
async def test_older_half_message_without_room_is_committed(
    client: Client, clock: WallClock, older: None, delay: dict[str, str]
) -> None:
    half = await client.send("T", f=PREPARED, i=half_text(own="v" * 32_400, **delay))
    assert half.code == 0
    assert (await end(client, half, COMMIT)).code == 0
    clock.now_ms += 1000
    [visible] = await wait_stored(client, 1, "T")
    assert visible.properties["UNIQ_KEY"] == "0A0B"
    assert ("own" in visible.properties) != (props.OMITTED in visible.properties)
