"""Consume queue files that are damaged under a running broker: nobody gets a wrong answer, and the log mends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from mq.store.queue_blocks import TRAILER
from mq.store.queue_store import QueueStoreSettings
from tests.support.popping import popped
from tests.support.running_broker import Answer, Client, broker_client, limited, properties, pull_ext
from tests.support.waiting import until

FAST_REPAIR = limited(
    consume={"repair_seconds": 0.004, "repair_look_seconds": 0.002, "expire_seconds": 0.002},
    upkeep={"flush_queues_seconds": 0.002},
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three entries that reach files at once, are read from there each time, and are mended at once."""
    settings = partial(QueueStoreSettings, entries_per_file=6, entries_per_block=3, flush_bytes=1)
    monkeypatch.setattr("mq.store.opening.QueueStoreSettings", settings)
    monkeypatch.setattr("mq.store.queue_files.BLOCKS_KEPT", 0)


def queue_file(directory: Path, topic: str = "T", queue_id: int = 0, first: int = 0) -> Path:
    return directory / "queues" / topic / str(queue_id) / f"{first * 20:020d}"


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def entries_of(path: Path) -> int:
    """How many entries the first block of a file has; 0 without a file."""
    block = path.read_bytes()[:76] if path.exists() else b""
    return TRAILER.unpack_from(block, 60)[1] if len(block) == 76 else 0


async def in_file(client: Client, path: Path, entries: int) -> None:
    """Wait until so many entries are in the first block of a file; a block is written whole with fewer of them too."""

    async def is_there() -> bool:
        await client.info()
        return entries_of(path) >= entries

    await until(is_there)


async def final(ask: Callable[[], object]) -> Answer:
    """The first answer that is not a request to ask again."""
    with trio.fail_after(60):
        while True:
            answer = await ask()  # type: ignore[misc]
            assert isinstance(answer, Answer)
            again = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE or answer.remark == "QUEUE_FILE_DAMAGED"
            if not again:
                return answer
            assert answer.ext.get("nextBeginOffset") in (None, "0"), "nobody skips what could not be read"


async def send_three(client: Client) -> None:
    for number, tag in enumerate("ABA"):
        await client.send(body=b"%d" % number, i=properties(TAGS=tag, n=str(number)))


async def restored(client: Client, count: int) -> None:
    await client.wait_for(lambda info: int(info["raftmq.queueBlocksRestored"]) >= count)


def bits(path: Path) -> Iterator[int]:
    yield from range(8 * path.stat().st_size)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.nightly) for first in range(1, 5))])
async def test_every_bit_of_a_queue_file(tmp_path: Path, first: int) -> None:
    """Messages by tag, so that a tag code that is wrong would lose one without a word."""
    path = queue_file(tmp_path)
    async with broker_client(tmp_path, limits=FAST_REPAIR) as client:
        await send_three(client)
        await in_file(client, path, 3)
        whole = path.read_bytes()
        for count, bit in enumerate(islice(bits(path), first, None, 5), 1):
            flip(path, bit)
            answer = await final(partial(client.pull, subscription="A"))
            assert [record.body for record in answer.records] == [b"0", b"2"], bit
            assert answer.ext["nextBeginOffset"] == "3", bit
            await restored(client, count)
            assert path.read_bytes() == whole, bit


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 12, 19, 45, 60, 68, 75])
async def test_readers_of_a_damaged_queue_file_are_asked_to_retry(tmp_path: Path, byte: int) -> None:
    path = queue_file(tmp_path)
    async with broker_client(tmp_path, limits=FAST_REPAIR) as client:
        await send_three(client)
        await in_file(client, path, 3)
        place = {"topic": "T", "queueId": 0}

        async def sql() -> Answer:
            return await client.request(
                RequestCode.PULL_MESSAGE, pull_ext(subscription="n >= 1", expressionType="SQL92")
            )

        async def look() -> Answer:
            ext = place | {"index": 0, "count": 3, "consumerGroup": ""}
            return await client.request(RequestCode.QUERY_CONSUME_QUEUE, ext)

        async def search() -> Answer:
            return await client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place | {"timestamp": 1})

        for count, ask in enumerate((sql, look, search), 1):
            expected = await ask()
            flip(path, 8 * byte)
            found = await final(ask)
            assert (found.code, found.ext, found.body) == (expected.code, expected.ext, expected.body)
            await restored(client, count)


async def test_broker_starts_with_damage_and_takes_messages(tmp_path: Path) -> None:
    async with broker_client(tmp_path, limits=FAST_REPAIR) as client:
        for number in range(8):
            await client.send(body=b"%d" % number)
        await in_file(client, queue_file(tmp_path, first=6), 2)
    for path in (queue_file(tmp_path), queue_file(tmp_path, first=6)):
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
    async with broker_client(tmp_path, limits=FAST_REPAIR) as client:
        await client.send(body=b"8")
        for offset in range(9):
            answer = await final(partial(client.pull, maxMsgNums=1, offset=offset)) if offset == 0 else None
            while answer is None or not answer.records:
                answer = await client.pull(maxMsgNums=1, offset=offset)
            assert [record.body for record in answer.records] == [b"%d" % offset]
        await restored(client, 2)


async def test_delayed_message_with_a_damaged_due_time_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.schedule.level_delivery.DELAY_LEVELS_MS", (500,) * 18)
    path = queue_file(tmp_path, "SCHEDULE_TOPIC_XXXX", 0)
    async with broker_client(tmp_path, queues=1, limits=FAST_REPAIR) as client:
        await client.send(body=b"late", i=properties(DELAY="1"))
        await in_file(client, path, 1)
        flip(path, 8 * 12 + 1)  # as if it were due in centuries

        async def comes() -> bool:
            return [record.body for record in (await client.pull()).records] == [b"late"]

        await until(comes)


async def test_damaged_queue_does_not_delay_pops_of_other_queues(tmp_path: Path) -> None:
    path = queue_file(tmp_path)
    async with broker_client(tmp_path, queues=2, limits=FAST_REPAIR) as client:
        for number in range(6):
            await client.send(body=b"%d" % number, e=number % 2)
        await in_file(client, path, 3)
        flip(path, 3)
        bodies: list[bytes] = []
        with trio.fail_after(60):
            while len(bodies) < 6:
                bodies += [message.body for message in await popped(client)]
        assert sorted(bodies) == [b"%d" % number for number in range(6)]
