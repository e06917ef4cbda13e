"""Pop tests: requests as Java clients send them, and responses parsed as Java clients do."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from mq.protocol.codes import RequestCode
from mq.protocol.messages.records import StoredMessage
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.receipts import Receipt, encode_bits, mark_of
from tests.support.running_broker import Answer, Client
from tests.support.waiting import until

MINUTE_MS = 60_000


class Popped(NamedTuple):
    """A message as a consumer sees it."""

    message: StoredMessage
    receipt: Receipt

    @property
    def body(self) -> bytes:
        return self.message.body

    def ack_ext(self, topic: str = "T", group: str = "G") -> dict[str, Any]:
        """The fields of a request about this message; the receipt's mark identifies its real topic."""
        real = topic if self.receipt.mark == "0" else f"%RETRY%{group}_{topic}"
        return {
            "consumerGroup": group,
            "topic": real,
            "queueId": self.receipt.queue_id,
            "extraInfo": self.receipt.encode(),
            "offset": self.receipt.offset,
        }


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def pop_ext(topic: str = "T", **given: Any) -> dict[str, Any]:
    """The fields of POP_MESSAGE; by default of a pop that is not held and begins at the earliest message."""
    fields: dict[str, Any] = {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": MINUTE_MS,
        "pollTime": 0,
        "bornTime": now_ms(),
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": False,
    }
    return fields | given


async def pop(client: Client, topic: str = "T", **given: Any) -> Answer:
    return await client.request(RequestCode.POP_MESSAGE, pop_ext(topic, **given))


async def popped(client: Client, topic: str = "T", **given: Any) -> list[Popped]:
    """The messages of a pop, possibly none."""
    answer = await pop(client, topic, **given)
    if answer.code != 0:
        assert answer.code in (19, 209, 210), answer
        return []
    return read_popped(answer)


def read_popped(answer: Answer) -> list[Popped]:
    """Pair messages with receipts the way `MQClientAPIImpl` of Java clients does."""
    assert answer.code == 0, answer
    starts = _table(answer.ext["startOffsetInfo"])
    offsets = {
        key: [int(each) for each in text.split(",")] for key, text in _table(answer.ext["msgOffsetInfo"]).items()
    }
    by_queue: dict[str, list[int]] = {}
    for message in answer.records:
        by_queue.setdefault(_key(message), []).append(message.queue_offset)
    result = []
    for message in answer.records:
        key = _key(message)
        assert sorted(by_queue[key]) == offsets[key]
        carried = message.properties.get("POP_CK")
        if carried is None:
            receipt = Receipt(
                QueueOffset(int(starts[key])),
                int(answer.ext["popTime"]),
                int(answer.ext["invisibleTime"]),
                int(answer.ext["reviveQid"]),
                mark_of(message.topic),
                "broker",
                message.queue_id,
                message.queue_offset,
            )
        else:
            receipt = Receipt.decode(carried)
        result.append(Popped(message, receipt))
    return result


async def ack(client: Client, message: Popped, topic: str = "T", group: str = "G") -> int:
    return (await client.request(RequestCode.ACK_MESSAGE, message.ack_ext(topic, group))).code


async def batch_ack(client: Client, messages: list[Popped], topic: str = "T", group: str = "G") -> Answer:
    return await client.request(RequestCode.BATCH_ACK_MESSAGE, body=batch_body(messages, topic, group))


def batch_body(messages: list[Popped], topic: str = "T", group: str = "G") -> bytes:
    gathered: dict[tuple[int, int, str, int], int] = {}
    for _, receipt in messages:
        key = receipt.start, receipt.pop_time_ms, receipt.mark, receipt.queue_id
        gathered[key] = gathered.get(key, 0) | 1 << (receipt.offset - receipt.start)
    rows = [
        {"c": group, "t": topic, "r": mark, "so": start, "q": queue, "rq": 0, "pt": at, "it": 1, "b": encode_bits(bits)}
        for (start, at, mark, queue), bits in gathered.items()
    ]
    return msgspec.json.encode({"brokerName": "broker", "acks": rows})


def _table(text: str) -> dict[str, str]:
    rows = [row.split(" ") for row in text.split(";")]
    table = {f"{mark}@{queue}": value for mark, queue, value in rows}
    assert len(table) == len(rows), f"a queue twice in {text}"
    return table


def _key(message: StoredMessage) -> str:
    carried = message.properties.get("POP_CK")
    mark = Receipt.decode(carried).mark if carried else mark_of(message.topic)
    return f"{mark}@{message.queue_id}"


async def again(client: Client, **given: Any) -> list[Any]:
    """The result of a pop, retried until it has messages."""
    found: list[Any] = []

    async def got() -> bool:
        found.extend(await popped(client, **given))
        return bool(found)

    await until(got)
    return found
