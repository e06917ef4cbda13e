"""Rows of every kind of message, compared with what was sent, column by column."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.produce.producer import Producer
from mq.client.produce.transactions import TransactionProducer
from mq.protocol.message_ids import parse_offset_message_id
from mq.protocol.messages.compression import CODEC_MASK, COMPRESSED, LZ4, ZLIB, ZSTD
from mq.protocol.properties import RESERVED
from tests.spark.stage import Stage

ROWS_PER_TOPIC: Final = 100_000
QUEUES: Final = 4
SECONDS_MAX: Final = 900
COLUMNS: Final = (
    "topic,broker_name,queue_id,queue_offset,message_id,tags,keys,body,properties,born_timestamp,store_timestamp,"
    "reconsume_times,born_host,store_host,flag,sys_flag,physical_offset"
)
COMMITTED: Final = 8
TRANSACTION_BITS: Final = 12
CODEC_BITS: Final = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """How messages are sent: ``percent`` of all rows."""

    name: str
    percent: int
    codec: Any = None
    is_delayed: bool = False
    is_transactional: bool = False


PLAIN: Final = Kind("plain", 60)
IPV6: Final = Kind("ipv6", 10)
OTHERS: Final = [
    Kind("zlib", 6, codec="zlib"),
    Kind("lz4", 6, codec="lz4"),
    Kind("zstd", 6, codec="zstd"),
    Kind("delayed", 6, codec="zlib", is_delayed=True),
    Kind("transactional", 6, is_transactional=True),
]


def message(topic: str, number: int, kind: Kind) -> Message:
    """Message ``number``: a seventh without tag, keys or properties, bodies of all lengths up to some hundred bytes."""
    bare = number % 7 == 0
    text = f"{topic} {number} ".encode() * (1 + number % 23)
    return Message(
        topic,
        text if number % 5 else text + bytes(range(256)),
        tags=None if bare else ("red", "gr\u00fcn", "blue")[number % 3],
        keys=() if number % 4 == 0 else [f"k{number}", "\u00fc"][: 1 + number % 2],
        properties={} if bare else {"number": str(number), "colour": "\u2713" * (number % 3 + 1)},
        flag=number % 1000,
        delay_level=1 if kind.is_delayed else None,
    )


def send(stage: Stage, topic: str, count: int, kind: Kind) -> list[SendResult]:
    """Send so many messages; returns where each is."""

    async def never(_: ReceivedMessage) -> None:
        raise AssertionError("every transaction is ended by its sender")

    async def in_transactions(producer: TransactionProducer, numbers: Iterator[int], results: list[Any]) -> None:
        for number in numbers:  # one iterator for all tasks
            async with producer.transaction(message(topic, number, kind)) as transaction:
                results[number] = transaction.result

    async def main() -> list[Any]:
        options: dict[str, Any] = {"timeout": 120, "compress": kind.codec, "compress_bytes_min": 64}
        with anyio.fail_after(SECONDS_MAX):
            if not kind.is_transactional:
                async with Producer(stage.namesrv, **options) as producer:
                    pending = [await producer.submit(message(topic, number, kind)) for number in range(count)]
                    return [await each for each in pending]
            results: list[Any] = [None] * count
            numbers = iter(range(count))
            async with (
                TransactionProducer(stage.namesrv, "equal-rows", check=never, **options) as transactions,
                anyio.create_task_group() as tasks,
            ):
                for _ in range(64):
                    tasks.start_soon(in_transactions, transactions, numbers, results)
            return results

    found: list[SendResult] = stage.call(main)
    return found


def read_all(read: Callable[..., Any], topic: str, count: int) -> pa.Table:
    """All rows, in the order of message ids; waits for those that are delivered later."""
    deadline = time.monotonic() + SECONDS_MAX
    while read(subscribe=topic, columns="queue_offset").count() < count:
        assert time.monotonic() < deadline, f"fewer than {count} rows within {SECONDS_MAX} s"
        time.sleep(1)
    return read(subscribe=topic, columns=COLUMNS).toArrow().sort_by("message_id")


def check(table: pa.Table, stage: Stage, topic: str, sent: Sequence[SendResult], kind: Kind, began_ms: int) -> None:
    """Every column is what was sent, or is what a broker may say."""
    order = sorted(range(len(sent)), key=lambda number: sent[number].message_id)
    results = [sent[number] for number in order]
    messages = [message(topic, number, kind) for number in order]
    moves = kind.is_delayed or kind.is_transactional  # the sender knows the place where it waited

    def same(name: str, expected: Sequence[object]) -> None:
        column = table.column(name).combine_chunks()
        wanted = pa.array(expected, column.type)
        if not column.equals(wanted):
            pairs = zip(column.to_pylist(), wanted.to_pylist(), strict=True)
            raise AssertionError(f"{name}: (read, sent) {[pair for pair in pairs if pair[0] != pair[1]][:3]}")

    assert table.num_rows == len(sent)
    same("message_id", [each.message_id for each in results])
    same("topic", [topic] * len(sent))
    same("broker_name", [stage.group] * len(sent))
    same("queue_id", [each.queue.queue_id for each in results])
    same("tags", [each.tags for each in messages])
    same("keys", [" ".join(each.keys) or None for each in messages])
    same("body", [each.body for each in messages])
    same("flag", [each.flag for each in messages])
    same("reconsume_times", [0] * len(sent))
    own = [
        {name: value for name, value in pairs if name not in RESERVED}
        for pairs in table.column("properties").to_pylist()
    ]
    assert own == [dict(each.properties) for each in messages]
    if not moves:
        same("queue_offset", [each.queue_offset for each in results])
        places = [parse_offset_message_id(each.offset_message_id) for each in results]
        same("physical_offset", [place.physical_offset for place in places])
        same("store_host", [f"{place.ip}:{place.port}" for place in places])
    check_order(table)
    check_times(table, kind, began_ms)
    check_flags(table, kind)
    born_at = "0.0.0.0:" if kind is IPV6 else "127.0.0.1:"  # brokers write no IPv6 address down
    assert pc.all(pc.starts_with(table.column("born_host"), born_at)).as_py()
    assert pc.all(pc.starts_with(table.column("store_host"), "127.0.0.")).as_py()


def check_order(table: pa.Table) -> None:
    """Queues have no gaps, and lie in the log in their order."""
    for queue_id in range(QUEUES):
        queue = table.filter(pc.equal(table.column("queue_id"), queue_id)).sort_by("queue_offset")
        assert queue.column("queue_offset").to_pylist() == list(range(queue.num_rows))
        places = queue.column("physical_offset").to_pylist()
        assert places == sorted(set(places))


def check_times(table: pa.Table, kind: Kind, began_ms: int) -> None:
    """Born after the test began, stored later, a delayed one a second later; all clocks are this machine's."""
    born = pc.divide(table.column("born_timestamp").cast(pa.int64()), 1000)
    stored = pc.divide(table.column("store_timestamp").cast(pa.int64()), 1000)
    assert pc.min(born).as_py() >= began_ms
    assert pc.min(pc.subtract(stored, born)).as_py() >= (1000 if kind.is_delayed else 0)
    assert pc.max(stored).as_py() <= time.time() * 1000


def check_flags(table: pa.Table, kind: Kind) -> None:
    """The bits for compression and for transactions."""
    flags = table.column("sys_flag").to_pylist()
    assert {flag & TRANSACTION_BITS for flag in flags} == {COMMITTED if kind.is_transactional else 0}
    compressed = [flag for flag in flags if flag & COMPRESSED]
    if kind.codec is None:
        assert not compressed
        return
    # Short bodies are not compressed, and those that would not become smaller neither.
    assert 0 < len(compressed) <= len(flags)
    assert {flag & CODEC_MASK for flag in compressed} == {CODEC_BITS[kind.codec]}


def compare(read: Callable[..., Any], stage: Stage, kind: Kind, rows: int) -> None:
    """Send so many messages and compare what is read with them."""
    left = rows
    while left:
        count = min(left, ROWS_PER_TOPIC)
        topic = stage.topic(kind.name, QUEUES)
        began = time.time()
        sent = send(stage, topic, count, kind)
        sent_at = time.time()
        table = read_all(read, topic, count)
        read_at = time.time()
        check(table, stage, topic, sent, kind, int(began * 1000))
        left -= count
        seconds = tuple(later - earlier for earlier, later in pairwise((began, sent_at, read_at, time.time())))
        log.info("%d rows %s: sent, read, compared in %.1f, %.1f, %.1f s", count, kind.name, *seconds)
