"""Messages by key that only the archive has: found by kept index files, bounded, refused clearly without the store."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq.broker.broker import Broker
from mq.broker.query import archived_keys
from mq.broker.query.archived_keys import ArchivedKeys, ArchivedMatches
from mq.protocol.codes import RequestCode, ResponseCode
from mq.store.key_index.archived_parts import Fetch, copy_part
from mq.store.key_index.index import KeyIndex
from mq.store.key_index.search import KeyQuery, KeySearch, SearchResult
from tests.support.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, object_storage
from tests.support.running_broker import Answer, Client, broker_client, limited, properties, running, send_ext
from tests.support.short_logs import COUNT, MIB, SMALL, body
from tests.support.waiting import until, wait_until

LIMITS = limited(
    archive={"look_seconds": 0.05, "retry_seconds": 0.05, "retry_seconds_max": 0.2, "check_seconds": 0.2},
    upkeep={"raise_level_seconds": 0.01},
)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("mq.broker.query.by_key.SCHEDULING", "normal")  # a test must not wait for a machine to be idle
    with object_storage() as found:
        yield found


def settings(storage: ObjectStorage) -> dict[str, Any]:
    return SMALL | {
        "retention_bytes": None,
        "archive_url": f"s3://{BUCKET}/broker-a",
        "archive_endpoint_url": storage.url,
        "archive_bytes_per_second": 0,
        "archive_cache_bytes": 0,
        "local_retention_bytes": MIB,
        "key_index_poll_seconds": 0.01,
    }


async def fill(client: Client, first: int = 0) -> None:
    """COUNT messages, each with a key of its own and one in common."""
    assert (await client.create_topic("T", 1)).code == 0
    for start in range(first, first + COUNT, 20):
        frames = [
            client.frame(
                RequestCode.SEND_MESSAGE_V2,
                send_ext(i=properties(KEYS=f"order{n} every", UNIQ_KEY=f"{n:032X}")),
                body(n),
            )
            for n in range(start, start + 20)
        ]
        await client.stream.send_all(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            assert (await client.answer(opaque)).code == 0


async def ask(client: Client, key: str, **given: Any) -> Answer:
    ext = {"topic": "T", "key": key, "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    return await client.request(RequestCode.QUERY_MESSAGE, ext | given)


def numbers(answer: Answer) -> list[int]:
    return [int(record.body[:6]) for record in answer.records]


async def found(client: Client, key: str, expected: list[int]) -> None:
    async def is_found() -> bool:
        answer = await ask(client, key)
        if answer.code == ResponseCode.SYSTEM_BUSY:
            return False
        assert answer.code == ResponseCode.SUCCESS, answer
        assert numbers(answer) == expected
        return True

    await until(is_found)


async def shortened(client: Client) -> None:
    async def is_shorter() -> bool:
        return int((await client.info())["raftmq.baseIndex"]) >= 8

    await until(is_shorter)


async def test_query_finds_archived_messages_by_key(tmp_path: Path, storage: ObjectStorage) -> None:
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await fill(client)
        await shortened(client)
        await found(client, "order3", [3])
        await found(client, f"{5:032X}", [5])
        assert numbers(await ask(client, f"{5:032X}", _UNIQUE_KEY_QUERY="true")) == [5]
        # Of more than are wanted, the newest ones; the local log has them.
        assert numbers(await ask(client, "every")) == [*range(COUNT - 8, COUNT)]
        absent = await ask(client, "order-that-nobody-sent")
        assert absent.code == ResponseCode.QUERY_NOT_FOUND, absent
        storage.fault = lambda method, path: 503
        refused = await ask(client, "order3")
        assert refused.code == ResponseCode.SYSTEM_BUSY, refused
        assert refused.remark is not None
        assert "the archive cannot be read now" in refused.remark
        # What the local log has, and what no index file has, needs no store.
        assert numbers(await ask(client, f"order{COUNT - 1}")) == [COUNT - 1]
        assert (await ask(client, "order-that-nobody-sent")).code == ResponseCode.QUERY_NOT_FOUND
        storage.come_back()
        await found(client, "order3", [3])
    # A restart keeps the files of the index.
    before = sorted((tmp_path / "index").glob("*.hashes"))
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        assert numbers(await ask(client, "order3")) == [3]
        assert set(before) <= set((tmp_path / "index").glob("*.hashes"))


@pytest.mark.slow
async def test_missing_index_is_built_again_from_the_archive(tmp_path: Path, storage: ObjectStorage) -> None:
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await fill(client)
        await shortened(client)
    shutil.rmtree(tmp_path / "index")
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await found(client, "order3", [3])
        await found(client, "order17", [17])

        async def is_complete() -> bool:
            return (await ask(client, "order-that-nobody-sent")).code == ResponseCode.QUERY_NOT_FOUND

        await until(is_complete)
        assert not list((tmp_path / "index").glob("*.copy"))


async def test_stuck_store_does_not_delay_queries_for_local_messages(tmp_path: Path, storage: ObjectStorage) -> None:
    archive = replace(LIMITS.archive, key_search_seconds=0.05)
    async with running(tmp_path, limits=replace(LIMITS, archive=archive), **settings(storage)) as broker:
        client, other = await broker.connect(), await broker.connect()
        await fill(client)
        await shortened(client)
        answers = threading.Event()

        def stuck(method: str, path: str) -> int | None:
            answers.wait(60)
            return None

        storage.fault = stuck
        posted = [
            await client.post(
                RequestCode.QUERY_MESSAGE,
                {"topic": "T", "key": f"order{n}", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**63 - 1},
            )
            for n in range(6)
        ]
        for _ in range(20):
            assert numbers(await ask(other, f"order{COUNT - 1}")) == [COUNT - 1]
        refused = [await client.answer(opaque) for opaque in posted]
        assert {each.code for each in refused} == {ResponseCode.SYSTEM_BUSY}
        assert any("did not answer within" in str(each.remark) for each in refused)
        assert any("are under way; try again" in str(each.remark) for each in refused)
        answers.set()


@pytest.mark.slow
async def test_unindexable_part_is_copied_once(
    tmp_path: Path, storage: ObjectStorage, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await fill(client)
        await shortened(client)
    shutil.rmtree(tmp_path / "index")
    copied: list[int] = []

    def first_one_is_no_log(fetch: Fetch, part: int, behind: int, path: str) -> tuple[int, int]:
        copied.append(part)
        begin, end = copy_part(fetch, part, behind, path)
        if part == copied[0]:
            Path(path).write_bytes(bytes(end - begin))
        return begin, end

    monkeypatch.setattr(archived_keys, "copy_part", first_one_is_no_log)
    limits = replace(LIMITS, archive=replace(LIMITS.archive, index_retry_seconds=0.01))
    async with broker_client(tmp_path, limits=limits, **settings(storage)) as client:
        await found(client, "order3", [3])
        keys = brokers[0].services.keys._archive
        assert keys is not None
        await until(lambda: not keys.lacks_files())
        assert copied.count(copied[0]) == 1
        assert await keys.copy_next() is None, "nothing else is missing"
        absent = await ask(client, "order-that-nobody-sent")
        assert absent.code == ResponseCode.SYSTEM_BUSY, absent
        assert "has not indexed all of the archive" in str(absent.remark)


@pytest.mark.slow
async def test_query_finds_a_message_once_if_its_file_is_deleted(
    tmp_path: Path, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, limits=LIMITS, **settings(storage)) as broker:
        client, other = await broker.connect(), await broker.connect()
        await fill(client)
        await shortened(client)
        last = int((await client.info())["raftmq.lastIndex"])
        find = ArchivedKeys.find

        async def later(keys: ArchivedKeys, query: KeyQuery) -> ArchivedMatches:
            await fill(other, first=COUNT)
            await other.wait_for(lambda info: int(info["raftmq.baseIndex"]) >= last)
            await until(lambda: keys._index.archived_missing(keys._archived_pos) == 0)
            return await find(keys, query)

        monkeypatch.setattr(ArchivedKeys, "find", later)
        assert numbers(await ask(client, f"order{COUNT - 1}")) == [COUNT - 1]


@pytest.mark.slow
async def test_search_finds_messages_of_an_index_built_meanwhile(
    tmp_path: Path, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, archive=replace(LIMITS.archive, key_search_seconds=60))
    async with broker_client(tmp_path, limits=limits, **settings(storage)) as client:
        await fill(client)
        await shortened(client)
    shutil.rmtree(tmp_path / "index")
    search_archived = KeyIndex.search_archived

    class Late:
        """A search that runs only when all files are there."""

        def __init__(self, index: KeyIndex, search: KeySearch) -> None:
            self._index = index
            self._search = search

        def run(self) -> SearchResult:
            wait_until(lambda: self._index.archived_missing(2**62) == 0)
            return self._search.run()

    monkeypatch.setattr(KeyIndex, "search_archived", lambda index, *given: Late(index, search_archived(index, *given)))
    async with broker_client(tmp_path, limits=limits, **settings(storage)) as client:
        early = await ask(client, "order3")
        assert early.code == ResponseCode.SYSTEM_BUSY, early
        await found(client, "order3", [3])
