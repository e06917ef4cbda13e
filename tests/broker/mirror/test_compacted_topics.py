"""`raftmq mirror` of topics that keep the newest message of each key, and of topics that a target does not keep so."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.cli.mirror.verification import verify
from mq.client import Message, Producer, ReceivedMessage, tombstone
from tests.broker.mirror.mirroring import address, content, copy_all, saved, two_clusters
from tests.support.compaction import shorten_hours
from tests.support.waiting import until


def table(messages: list[ReceivedMessage]) -> dict[str, bytes]:
    """The last value of each key."""
    return {message.keys[0]: bytes(message.body) for message in messages}


async def some_values(namesrv: str, first: int, count: int) -> None:
    async with Producer(namesrv) as producer:
        for number in range(first, first + count):
            await producer.send(Message("Prices", b"%d" % number, keys=[f"k{number % 5}"]))


async def carried(namesrv: str) -> None:
    """Wait until nothing but copies is left."""

    async def are_copies() -> bool:
        messages = (await content(namesrv, "Prices")).get(0, [])  # none while the queue begins further on
        return bool(messages) and all(message.is_carried for message in messages)

    await until(are_copies)


async def test_compacted_topic_is_mirrored_while_both_sides_compact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of the source are copied too, and what the target stores again is no progress of the mirror."""
    shorten_hours(monkeypatch)
    path = tmp_path / "state"
    async with two_clusters(tmp_path) as (source, target):
        await source.create_topic("Prices", 1, compacted=True)
        for first in (0, 20, 40):
            await some_values(address(source), first, 20)
            async with Producer(address(source)) as producer:
                await producer.send(tombstone("Prices", "k0"))
            await copy_all(source, target, path)
            await carried(address(source))
            await carried(address(target))
        path.unlink()  # progress is found out from what the target has
        await some_values(address(source), 60, 4)
        await copy_all(source, target, path)
        monkeypatch.undo()  # nothing gets old any more
        expected = {"k0": b"60", "k1": b"61", "k2": b"62", "k3": b"63", "k4": b"59"}

        async def have_all() -> bool:
            found = [(await content(address(each), "Prices")).get(0, []) for each in (source, target)]
            return all(table(messages) == expected for messages in found)

        await until(have_all)
        state = saved(path)
        assert [each.difference for each in await verify(source, target, state.queues)] == [None] * len(state.queues)


async def test_target_that_lacks_attributes_gets_other_topics(tmp_path: Path) -> None:
    async with two_clusters(tmp_path, format_level_max=5) as (source, target):
        await source.create_topic("Prices", 1, compacted=True)
        await source.create_topic("Readings", 1, retention_bytes=2**20)
        async with Producer(address(source)) as producer:
            await producer.send(Message("Prices", b"1", keys=["k"]))
            await producer.send(Message("Readings", b"2"))
        await copy_all(source, target, tmp_path / "state")
        assert "Prices" not in await target.topics()
        [config] = (await target.topic_config("Readings")).values()
        assert config.attributes == {}
        assert [bytes(each.body) for each in (await content(address(target), "Readings"))[0]] == [b"2"]


async def test_tombstones_arrive_in_a_topic_without_compaction(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as (source, target):
        await source.create_topic("Prices", 1, compacted=True)
        await target.create_topic("Prices", 1)
        async with Producer(address(source)) as producer:
            await producer.send(Message("Prices", b"1", keys=["k"]))
            await producer.send(tombstone("Prices", "k"))
        await copy_all(source, target, tmp_path / "state")
        assert [bytes(each.body) for each in (await content(address(target), "Prices"))[0]] == [b"1", b""]
