"""Messages by key over real sockets: in both header encodings, bounded, and with an index made by a process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.query.by_key import QUERIES_MAX, QUERIES_PER_CONNECTION_MAX
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.store.key_index.search import KeySearch, SearchResult
from tests.support.running_broker import SECONDS_MAX, Answer, Client, broker_client, properties, running
from tests.support.waiting import until

QUERY = RequestCode.QUERY_MESSAGE
TERM_SECONDS = 5.0
"""How long trio waits for a process that it has asked to end."""
SMALL = {"segment_bytes": 128 * 1024, "message_bytes_max": 32 * 1024, "entry_bytes_max": 4096}


def by_key(key: str, **given: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": 2**63 - 1,
        **given,
    }


async def keyed(client: Client, count: int, *, nbytes: int = 10) -> None:
    """Messages 0 to ``count``, each with two keys of its own, one in common, and its number as the body."""
    posted = []
    for number in range(count):
        ext = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": number % 4, "f": 0, "g": 0, "h": 0, "j": 0}
        ext |= {"k": False, "m": False, "i": properties(KEYS=f"order{number} all", UNIQ_KEY=f"{number:032X}")}
        body = (b"%d" % number).ljust(nbytes)
        posted.append(await client.post(RequestCode.SEND_MESSAGE_V2, ext, body))
    for opaque in posted:
        assert (await client.answer(opaque)).code == ResponseCode.SUCCESS


def numbers(answer: Answer) -> list[int]:
    return [int(record.body) for record in answer.records]


def failures(logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    """What was logged about parts whose files could not be made."""
    return [entry for entry in logs if entry["event"] == "key_index_failed"]


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_query_finds_messages_by_key(client: Client, serialization: int) -> None:
    await keyed(client, 100)

    async def ask(key: str, **given: Any) -> Answer:
        return await client.request(QUERY, by_key(key, **given), serialization=serialization)

    answer = await ask("order7")
    assert (answer.code, answer.remark, answer.serialization) == (ResponseCode.SUCCESS, None, serialization)
    assert numbers(answer) == [7]
    (record,) = answer.records
    assert set(answer.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    assert int(answer.ext["indexLastUpdatePhyoffset"]) >= record.physical_offset + record.size
    assert int(answer.ext["indexLastUpdateTimestamp"]) >= record.store_timestamp_ms
    assert numbers(await ask("all")) == [*range(36, 100)]
    assert numbers(await ask("all", maxNum=2**31 - 1)) == [*range(36, 100)]
    assert numbers(await ask("all", maxNum=3)) == [97, 98, 99]
    assert numbers(await ask(f"{5:032X}")) == [5]
    unique = {"_UNIQUE_KEY_QUERY": "true"}
    assert numbers(await ask(f"{5:032X}", maxNum=0, **unique)) == [5]
    for key, given in (
        ("order7", unique),
        ("order", {}),
        ("order7 all", {}),
        ("", {}),
        (" ", {}),
        ("KEYS", {}),
        ("x" * 40_000, {}),
        ("all", {"topic": "U"}),
        ("all", {"topic": "rmq_sys_raftmq_meta"}),
        ("all", {"topic": "../T"}),
        ("all", {"maxNum": 0}),
        ("all", {"maxNum": -5}),
        ("all", {"endTimestamp": 0}),
        ("all", {"beginTimestamp": 2**62}),
        ("all", {"beginTimestamp": -(2**63), "endTimestamp": -1}),
    ):
        if serialization == BINARY and not 0 < len(key) <= 32767:
            continue
        answer = await ask(key, **given)
        assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b""), (key, given)
        assert set(answer.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


async def test_index_is_built_in_background_and_survives_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "index"
    monkeypatch.setattr("mq.broker.query.by_key.SCHEDULING", "normal")  # a test must not wait for a machine to be idle
    async with broker_client(tmp_path, key_index_poll_seconds=0.01, **SMALL) as client:
        await keyed(client, 300, nbytes=1500)

        async def indexed() -> bool:
            return await client.alive() and len([*files.glob("*.hashes")]) >= 3

        await until(indexed)
        for number in (0, 150, 299):
            assert numbers(await client.request(QUERY, by_key(f"order{number}"))) == [number]
    unfinished = files / "00000000000000000000.hashes.tmp"  # as a stop in the middle leaves it
    unfinished.write_bytes(b"half")
    searches: list[KeySearch] = []
    run = KeySearch.run

    def note_and_run(search: KeySearch) -> Any:
        searches.append(search)
        return run(search)

    monkeypatch.setattr(KeySearch, "run", note_and_run)
    made = sorted(files.glob("*.hashes"))
    broken = made[1]
    broken.write_bytes(broken.read_bytes()[:-1])
    async with broker_client(tmp_path, **SMALL) as client:
        # The first search goes through all files, so it finds out that one is broken.
        for number in (3, 150, 100):
            assert numbers(await client.request(QUERY, by_key(f"order{number}"))) == [number]
        assert [len(search.indexed) for search in searches] == [len(made), len(made) - 1, len(made) - 1]
        assert not broken.exists()
        assert not unfinished.exists()


def builders() -> list[int]:
    """The processes of this one that build index files."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"mq.store.key_index.builder" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


async def test_broker_stops_while_its_index_builder_is_starved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a thread of idle priority may not run for half a minute, not even to end."""
    monkeypatch.setattr("mq.broker.query.by_key.SCHEDULING", "normal")
    async with running(tmp_path, key_index_poll_seconds=0.01, **SMALL) as broker:
        await keyed(await broker.connect(), 300, nbytes=1500)
        await until(lambda: [*(tmp_path / "index").glob("*.hashes")])
        (builder,) = builders()
        os.kill(builder, signal.SIGSTOP)
        began = trio.current_time()
    assert trio.current_time() < began + TERM_SECONDS, "it was asked to end first"
    assert not builders()


@pytest.mark.slow
async def test_part_with_a_damaged_key_is_indexed_after_log_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.query.by_key.SCHEDULING", "normal")
    files = tmp_path / "index"
    first, second = files / f"{0:020d}.hashes", files / f"{SMALL['segment_bytes']:020d}.hashes"
    async with running(tmp_path, key_index_poll_seconds=3600, **SMALL) as broker:
        await keyed(await broker.connect(), 300, nbytes=1500)
    segment = tmp_path / "commitlog" / f"{0:020d}"
    whole = segment.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(b"order7 ") + 5] ^= 1
    segment.write_bytes(damaged)
    with capture_logs() as logs:
        async with broker_client(tmp_path, key_index_poll_seconds=0.01, **SMALL) as client:

            async def tried() -> bool:
                return await client.alive() and (len(failures(logs)) >= 2 or first.exists())

            await until(tried)
            assert not first.exists(), "a file was made from damaged records"
            assert second.exists(), "no file was made for an undamaged part"
    by_process, by_log = failures(logs)
    assert "checksum of the body differs" in by_process["reason"]
    assert "checksum of the body differs" in by_log["error"], "the log does not know that it must be repaired"
    segment.write_bytes(whole)
    async with broker_client(tmp_path, key_index_poll_seconds=0.01, **SMALL) as client:

        async def indexed() -> bool:
            return await client.alive() and first.exists()

        await until(indexed)
        assert numbers(await client.request(QUERY, by_key("order7"))) == [7]


async def test_excess_queries_are_answered_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def run(search: KeySearch) -> SearchResult:
        assert go.wait(SECONDS_MAX)
        return SearchResult()

    monkeypatch.setattr(KeySearch, "run", run)
    async with running(tmp_path) as broker:
        other = await broker.connect()
        await keyed(other, 1)
        clients = [await broker.connect() for _ in range(QUERIES_MAX // QUERIES_PER_CONNECTION_MAX)]
        asked: list[tuple[Client, int]] = []
        for client in clients:
            asked += [(client, await client.post(QUERY, by_key("all"))) for _ in range(QUERIES_PER_CONNECTION_MAX)]
            # One client keeps no other one from asking.
            busy = await client.request(QUERY, by_key("all"))
            assert (busy.code, "queries of this connection" in str(busy.remark)) == (ResponseCode.SYSTEM_BUSY, True)
        busy = await other.request(QUERY, by_key("all"))
        assert (busy.code, "64 queries are waiting" in str(busy.remark)) == (ResponseCode.SYSTEM_BUSY, True)
        assert (await other.send()).code == ResponseCode.SUCCESS  # nothing else has to wait
        go.set()
        for client, opaque in asked:
            assert (await client.answer(opaque)).code == ResponseCode.QUERY_NOT_FOUND
        for client in (*clients, other):
            assert (await client.request(QUERY, by_key("all"))).code == ResponseCode.QUERY_NOT_FOUND


async def test_incomplete_search_is_answered_with_system_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeySearch, "run", lambda search: SearchResult(is_complete=False))
    async with broker_client(tmp_path) as client:
        await keyed(client, 1)
        assert (await client.request(QUERY, by_key("all"))).code == ResponseCode.SYSTEM_BUSY


async def test_search_stops_when_its_client_disconnects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[KeySearch] = []
    first, go = threading.Event(), threading.Event()

    def run(search: KeySearch) -> SearchResult:
        searches.append(search)
        first.set()
        assert go.wait(SECONDS_MAX)
        return SearchResult()

    monkeypatch.setattr(KeySearch, "run", run)
    async with running(tmp_path) as broker:
        client, gone = await broker.connect(), await broker.connect()
        await keyed(client, 1)
        waiting = await client.post(QUERY, by_key("all"))
        assert await trio.to_thread.run_sync(first.wait, SECONDS_MAX)
        for _ in range(10):
            await gone.post(QUERY, by_key("all"))
        assert await gone.alive()
        await trio.aclose_forcefully(gone.stream)
        await client.wait_for(lambda info: info["raftmq.connections"] == "1")
        go.set()
        assert (await client.answer(waiting)).code == ResponseCode.QUERY_NOT_FOUND
        assert (await client.request(QUERY, by_key("all"))).code == ResponseCode.QUERY_NOT_FOUND
        assert len(searches) == 2
