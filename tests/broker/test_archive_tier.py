"""A broker that deletes archived files locally: consumers get all messages, and a store in trouble costs only those."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mq.broker import derived_state
from mq.broker.archive.access import CACHE_DIRECTORY
from mq.broker.base.archive_tier import QUEUES_FROM
from mq.broker.broker import Broker
from mq.broker.security import StartRefused
from mq.protocol.codes import RequestCode, ResponseCode
from mq.store.backup_checkpoint import PENDING_NAME
from mq.store.checkpoint import CHECKPOINT_NAME
from mq.store.queue_floors import FLOORS_NAME, GAP_NAME
from raftlog.segment import REFILLED
from tests.support.archiving_brokers import LIMITS, settings
from tests.support.object_storage import ENVIRONMENT, ObjectStorage, object_storage
from tests.support.popping import popped
from tests.support.running_broker import SUBSCRIPTION, SUSPEND, Client, broker_client, pull_ext, running
from tests.support.short_logs import COUNT, body, fill
from tests.support.waiting import until


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStorage]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with object_storage() as found:
        yield found


async def everything(client: Client, first: int = 0) -> list[bytes]:
    """The bodies of all messages, as a consumer gets them that tries again when it is told to."""
    found: list[bytes] = []
    while True:
        got = await client.request(
            RequestCode.PULL_MESSAGE,
            pull_ext(offset=first + len(found), sysFlag=SUSPEND | SUBSCRIPTION, suspendTimeoutMillis=20),
        )
        if got.code == ResponseCode.PULL_NOT_FOUND:
            return found
        if got.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            assert got.ext["nextBeginOffset"] == str(first + len(found)), got
            continue
        assert got.code == ResponseCode.SUCCESS, got
        assert got.ext["minOffset"] == "0"
        found += [record.body for record in got.records]


async def deleted_locally(client: Client) -> int:
    """Wait until files were deleted locally; up to which entry."""
    base = 0

    async def is_shorter() -> bool:
        nonlocal base
        base = int((await client.info())["raftmq.baseIndex"])
        return base >= 8

    await until(is_shorter)
    return base


async def shortened_broker(directory: Path, given: dict[str, Any]) -> None:
    """Leave the files of a broker whose first messages are only in the archive."""
    async with broker_client(directory, queues=1, limits=LIMITS, **given) as client:
        await fill(client)
        await deleted_locally(client)


async def test_consumers_get_locally_deleted_messages_from_the_archive(tmp_path: Path, storage: ObjectStorage) -> None:
    async with broker_client(tmp_path, queues=1, limits=LIMITS, **settings(storage)) as client:
        await fill(client)
        sent_id = (await client.pull(offset=0)).records[0]
        await deleted_locally(client)
        assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
        assert await everything(client) == [body(number) for number in range(COUNT)]
        # By time: the first message was stored at this time or after it.
        by_time = await client.request(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            {"topic": "T", "queueId": 0, "timestamp": sent_id.store_timestamp_ms},
        )
        assert (by_time.code, by_time.ext["offset"]) == (0, "0")
        earliest = await client.request(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0})
        assert (earliest.code, earliest.ext["timestamp"]) == (0, str(sent_id.store_timestamp_ms))
        viewed = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": sent_id.physical_offset})
        assert (viewed.code, viewed.records[0].body) == (0, body(0))
        odd = await client.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": sent_id.physical_offset + 1})
        assert odd.code == ResponseCode.SYSTEM_ERROR
        info = await client.info()
        assert int(info["raftmq.archiveReadBytes"]) > 0
        assert int(info["commitLogMinOffset"]) == 0 < int(info["raftmq.basePosition"]), "for mqadmin brokerStatus"
        cached = [each for each in (tmp_path / CACHE_DIRECTORY).iterdir() if not each.name.endswith(".new")]
        assert cached
    # After a restart the queues still begin at the first message.
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
        assert await everything(client) == [body(number) for number in range(COUNT)]


async def refilled(client: Client) -> None:
    """Wait until the queues have the entries of all archived messages."""
    await client.wait_for(lambda info: info["raftmq.archiveRefillBytesLeft"] == "0")


@pytest.mark.slow
async def test_missing_queue_files_are_restored_from_the_archive(
    tmp_path: Path, storage: ObjectStorage, brokers: list[Broker]
) -> None:
    await shortened_broker(tmp_path, settings(storage))
    shutil.rmtree(tmp_path / "queues")
    storage.fault = lambda method, path: 503
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        assert (await client.pull(offset=COUNT - 1)).records[0].body == body(COUNT - 1)
        refused = await client.request(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0})
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, "nobody may go on behind the older messages"
        assert int((await client.info())["raftmq.archiveRefillBytesLeft"]) > 0
        storage.come_back()
        await refilled(client)
        assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
        assert await everything(client) == [body(number) for number in range(COUNT)]
        # A checkpoint has them, so a restart reads nothing again.
        await client.wait_for(lambda info: brokers[-1].context.replica.log.notes[QUEUES_FROM] == b"0")
    storage.fault = lambda method, path: 503
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
        assert (await client.info())["raftmq.archiveRefilledEntries"] == "0"


@pytest.mark.slow
async def test_refill_waits_for_restart_if_floors_file_is_missing(
    tmp_path: Path, storage: ObjectStorage, brokers: list[Broker]
) -> None:
    await shortened_broker(tmp_path, settings(storage))
    shutil.rmtree(tmp_path / "queues")
    storage.fault = lambda method, path: 503
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await until((tmp_path / CHECKPOINT_NAME).exists)
    (tmp_path / FLOORS_NAME).unlink()  # a former release knows nothing of it
    storage.come_back()
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await until(lambda: REFILLED in brokers[-1].context.replica.log.notes)
        assert (await client.info())["raftmq.archiveRefilledEntries"] == "0", "some may have expired"
        assert (await client.pull(offset=COUNT - 1)).records[0].body == body(COUNT - 1)
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        await refilled(client)
        assert await everything(client) == [body(number) for number in range(COUNT)]


@pytest.mark.slow
async def test_damaged_queue_file_is_restored_from_the_archive(tmp_path: Path, storage: ObjectStorage) -> None:
    await shortened_broker(tmp_path, settings(storage))
    path = tmp_path / "queues" / "T" / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    async with broker_client(tmp_path, limits=LIMITS, **settings(storage)) as client:
        assert (await client.pull(offset=3)).code != ResponseCode.SUCCESS

        async def is_served() -> bool:
            return (await client.pull(offset=3)).code == ResponseCode.SUCCESS

        await until(is_served)
        assert await everything(client) == [body(number) for number in range(COUNT)]


@pytest.mark.slow
async def test_failing_store_affects_only_old_messages(tmp_path: Path, storage: ObjectStorage) -> None:
    given = settings(storage, archive_cache_bytes=0)
    await shortened_broker(tmp_path, given)
    async with broker_client(tmp_path, limits=LIMITS, **given) as client:
        storage.fault = lambda method, path: 503
        refused = await client.pull(offset=0)
        assert refused.code == ResponseCode.SYSTEM_ERROR, refused
        assert refused.remark is not None
        assert "in the archive, which cannot be read now" in refused.remark
        assert (await client.send()).code == 0
        assert (await client.pull(offset=COUNT - 1)).records[0].body == body(COUNT - 1)
        storage.come_back()

        async def is_served() -> bool:
            return (await client.pull(offset=0)).code == ResponseCode.SUCCESS

        await until(is_served)
        assert (await everything(client))[:COUNT] == [body(number) for number in range(COUNT)]


def flipped(content: bytes) -> bytes:
    at = len(content) // 8
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda content: content[: len(content) // 16]], ids=["rot", "torn"])
@pytest.mark.slow
async def test_damaged_object_is_not_served(
    tmp_path: Path, storage: ObjectStorage, damage: Callable[[bytes], bytes]
) -> None:
    given = settings(storage, archive_cache_bytes=0)
    await shortened_broker(tmp_path, given)
    first = next(name for name in storage.names() if "/log/" in name)
    intact = storage.content(first)
    storage.put(first, damage(intact))
    async with broker_client(tmp_path, limits=LIMITS, **given) as client:
        refused = await client.pull(offset=3)
        assert refused.code == ResponseCode.SYSTEM_ERROR, refused
        assert refused.remark is not None
        assert "damaged" in refused.remark
        storage.put(first, intact)

        async def is_served() -> bool:
            return (await client.pull(offset=3)).code == ResponseCode.SUCCESS

        await until(is_served)


@pytest.mark.slow
async def test_files_are_kept_while_the_archive_manifest_is_outdated(
    tmp_path: Path, storage: ObjectStorage, brokers: list[Broker]
) -> None:
    async with broker_client(tmp_path, queues=1, limits=LIMITS, **settings(storage)) as client:
        await fill(client, 100)

        async def is_archived() -> bool:
            return "broker-a/manifest.json" in storage.names()

        await until(is_archived)
        older = storage.content("broker-a/manifest.json")
        await fill(client, COUNT, 100)
        await deleted_locally(client)
        storage.put("broker-a/manifest.json", older)
        before = set(storage.names())

        async def is_held() -> bool:
            return brokers[-1].context.metadata.archived.is_held

        await until(is_held)
        base = int((await client.info())["raftmq.baseIndex"])
        await fill(client, 100, 100 + COUNT)
        failures = int((await client.info())["raftmq.archiveFailures"])
        await client.wait_for(lambda info: int(info["raftmq.archiveFailures"]) >= failures + 2)  # retention ran, too
        assert int((await client.info())["raftmq.baseIndex"]) == base
        assert before <= set(storage.names()), "objects that only the newer manifest names stay"
        assert (await client.send()).code == 0


@pytest.mark.slow
async def test_popped_messages_come_from_the_archive_and_are_redelivered(
    tmp_path: Path, storage: ObjectStorage
) -> None:
    async with broker_client(tmp_path, queues=1, limits=LIMITS, **settings(storage)) as client:
        await fill(client)
        await deleted_locally(client)

        found: list[bytes] = []

        async def both_came_twice() -> bool:
            """Nothing is acknowledged, so everything comes again, as copies in the retry topic."""
            found.extend(each.body for each in await popped(client, maxMsgNums=2, invisibleTime=1000))
            return min(found.count(body(0)), found.count(body(1))) >= 2

        await until(both_came_twice)
        assert found[:2] == [body(0), body(1)]


@pytest.mark.slow
async def test_power_cut_without_the_archive_keeps_messages_readable(tmp_path: Path, storage: ObjectStorage) -> None:
    given = settings(storage)
    without = {name: value for name, value in given.items() if not name.startswith(("archive_", "local_"))}
    await shortened_broker(tmp_path, given)
    meta = (tmp_path / "commitlog" / "meta").read_bytes()
    cached = tmp_path / CACHE_DIRECTORY / f"{1:016x}.{1:020d}"
    cached.parent.mkdir(exist_ok=True)
    for left in (cached, tmp_path / PENDING_NAME):
        left.write_bytes(b"of an archive")
    async with broker_client(tmp_path, limits=LIMITS, **without) as client:
        assert not cached.parent.exists()
        assert not (tmp_path / PENDING_NAME).exists()
        assert await client.offset(RequestCode.GET_MIN_OFFSET) > 0, "queues begin where the local log does"
    # What a follower of an idle group has on its disk after a power cut: its log has written nothing since.
    (tmp_path / "commitlog" / "meta").write_bytes(meta)
    for _ in range(2):
        async with broker_client(tmp_path, limits=LIMITS, **given) as client:
            await refilled(client)
            assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
            assert await everything(client) == [body(number) for number in range(COUNT)]


@pytest.mark.parametrize("name", [GAP_NAME, FLOORS_NAME])
async def test_full_disk_refuses_the_start_with_the_file(
    tmp_path: Path, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = settings(storage)
    async with running(tmp_path, limits=LIMITS, **given) as broker:
        await broker.connect()
    if name == GAP_NAME:
        given = {key: value for key, value in given.items() if not key.startswith(("archive_", "local_"))}
    else:
        (tmp_path / CHECKPOINT_NAME).unlink()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / name))

    monkeypatch.setattr(derived_state, {GAP_NAME: "note_gap", FLOORS_NAME: "begin_to_note_floors"}[name], full)
    with pytest.raises(ExceptionGroup) as caught:
        async with running(tmp_path, limits=LIMITS, **given):
            pass
    assert caught.group_contains(StartRefused, match=f"{name}: No space left on device")
