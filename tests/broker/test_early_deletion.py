"""One replica's full disk: its oldest files go as the last resort, and no reader misses a message by that."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.base.retention import EarlyDeletion
from mq.broker.broker import Broker
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.raft_group import GroupAnswer, GroupCommand
from raftlog.segment import EARLY, EARLY_ELSEWHERE
from tests.support.commands import raftmq
from tests.support.name_server_and_broker import name_server
from tests.support.replies import three_replicas
from tests.support.running_broker import Client, RunningBroker, limited
from tests.support.short_logs import DISK_EXPIRES, MIB, SMALL, body, fill
from tests.support.waiting import until

COUNT = 120
REFILLS_SOON = limited(node={"refill_look_seconds": 0.05})
KEPT = SMALL | DISK_EXPIRES | {"retention_bytes": 64 * MIB}

Disks = dict[str, int]
"""The used percentage of each replica's disk; 50 for those that are not named."""


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    """Disks of 8 MiB, of which the log of a test takes about half if they are full; fast checks."""
    used: Disks = {}

    def usage(directory: Path) -> tuple[int, int]:
        return (100 - used.get(directory.name, 50)) * 8 * MIB // 100, 8 * MIB

    monkeypatch.setattr("mq.broker.services.disk_usage", usage)
    return used


async def info(client: Client, name: str) -> str:
    return str((await client.info())[f"raftmq.{name}"])


async def base(client: Client) -> int:
    return int(await info(client, "baseIndex"))


async def bodies_from(client: Client, low: int) -> list[bytes]:
    found: list[bytes] = []
    while (pulled := await client.pull(offset=low + len(found))).code == ResponseCode.SUCCESS:
        found += [record.body for record in pulled.records]
    return found


async def leader_of(clients: list[Client]) -> Client:
    """Wait until one of them leads; on a slow machine the leader may change at any time."""
    found: list[Client] = []

    async def one_leads() -> bool:
        found[:] = [client for client in clients if await info(client, "role") == "leader"]
        return bool(found)

    await until(one_leads)
    return found[0]


async def deleted_early(brokers: list[RunningBroker], disks: Disks) -> tuple[Client, list[Client]]:
    """Fill the leader's disk until it has deleted its oldest files; returns its client, and those of the others."""
    short, *others = [await broker.connect() for broker in brokers]
    assert (await short.create_topic("T", 1)).code == 0
    await fill(short, COUNT)
    disks[brokers[0].settings.data_dir.name] = 82

    async def is_short() -> bool:
        return await base(short) > 0

    await until(is_short)
    return short, others


async def test_leader_with_a_full_disk_transfers_leadership_before_deleting_files(tmp_path: Path, disks: Disks) -> None:
    async with three_replicas(tmp_path, REFILLS_SOON, **KEPT) as brokers:
        with capture_logs() as log:
            short, others = await deleted_early(brokers, disks)
        assert await info(short, "role") == "follower"
        assert [await base(client) for client in others] == [0, 0]
        events = [line for line in log if line["event"] in ("leading", "log_deleted_early")]
        first = [line["event"] for line in events].index("log_deleted_early")
        assert events[first - 1]["event"] == "leading", "another replica leads before the first file goes"
        early = events[first]
        assert early["log_level"] == "error"
        assert (early["from_index"], early["elsewhere_from_index"]) == (1, 1)
        assert early["bytes"] == early["files"] * KEPT["segment_bytes"]


async def test_doctor_names_the_replica_that_deleted_early(tmp_path: Path, disks: Disks) -> None:
    async with name_server() as namesrv, three_replicas(tmp_path, **KEPT, namesrv=namesrv) as brokers:
        await deleted_early(brokers, disks)
        done = await raftmq("doctor", "--json", "--watch", "0", "--namesrv", namesrv)
        findings = json.loads(done.out)["findings"]
        [found] = [each for each in findings if "entries that it deleted early on a full disk" in each["what"]]
        assert brokers[0].settings.listen in found["subject"]
        assert "free space on its disk" in found["remedy"]
        assert done.code == 1


async def test_reader_is_sent_to_the_leader_for_deleted_messages(tmp_path: Path, disks: Disks) -> None:
    async with three_replicas(tmp_path, REFILLS_SOON, **KEPT) as brokers:
        short, others = await deleted_early(brokers, disks)
        gone = await short.pull(offset=0)
        assert (gone.code, gone.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
        assert gone.ext["suggestWhichBrokerId"] == "0"
        leader = await leader_of(others)
        assert await bodies_from(leader, 0) == [body(n) for n in range(COUNT)]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": 0, "timestamp": 0}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    ],
)
async def test_replica_refuses_to_name_its_own_first_message(
    tmp_path: Path, disks: Disks, code: RequestCode, fields: dict[str, Any]
) -> None:
    async with three_replicas(tmp_path, REFILLS_SOON, **KEPT) as brokers:
        short, others = await deleted_early(brokers, disks)
        answer = await short.request(code, fields)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
        assert answer.remark is not None
        assert "begins later than the log of another replica" in answer.remark
        for client in others:
            assert (await client.request(code, fields)).code == 0


@pytest.mark.slow
async def test_leases_on_another_replica_do_not_revive_expired_messages(tmp_path: Path) -> None:
    async with three_replicas(tmp_path, REFILLS_SOON, **SMALL) as brokers:
        leader, holder, other = [await broker.connect() for broker in brokers]
        assert (await leader.create_topic("T", 1)).code == 0
        lease: dict[str, Any] = {"leaseId": "reader", "position": 0, "seconds": 600}
        assert (await holder.request(RequestCode.HOLD_LOG, lease)).code == 0
        await fill(leader)

        async def have_deleted() -> bool:
            return min(await base(leader), await base(other)) > 0

        await until(have_deleted)
        assert await base(holder) == 0
        queue: dict[str, Any] = {"topic": "T", "queueId": 0}
        for client in (leader, other):
            for code, fields in [
                (RequestCode.GET_MIN_OFFSET, queue),
                (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": 0}),
                (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
            ]:
                answer = await client.request(code, fields)
                assert answer.code == 0, (code, answer)


@pytest.mark.slow
async def test_copied_log_notes_when_missing_entries_expire(
    tmp_path: Path, disks: Disks, brokers: list[Broker]
) -> None:
    """Software of the release before, too, must be able to read the note."""
    async with three_replicas(tmp_path, REFILLS_SOON, **KEPT) as running:
        short, _ = await deleted_early(running, disks)
        [replica] = [broker._replica for broker in brokers if broker._replica.core.base.index > 0]
        assert await base(short) > 0
        replica.note_early(EARLY_ELSEWHERE)
        await until(lambda: replica.log.notes[EARLY] != EARLY_ELSEWHERE)
        noted = msgspec.json.decode(replica.log.notes[EARLY], type=EarlyDeletion)
        assert noted.base_index == 0
        assert noted.newest_ms == pytest.approx(time.time() * 1000, abs=600_000)
        assert replica.core.began_early


@pytest.mark.slow
async def test_replica_that_deleted_early_does_not_lead(tmp_path: Path, disks: Disks) -> None:
    async with three_replicas(tmp_path, REFILLS_SOON, **KEPT) as brokers:
        short, others = await deleted_early(brokers, disks)
        command = GroupCommand(action="transfer", node=brokers[0].settings.node_id)

        async def refused() -> bool:
            leader = await leader_of(others)
            answer = await leader.request(RequestCode.MANAGE_GROUP, body=command.encode())
            return GroupAnswer.decode(answer.body).code == "BEGINS_LATER"

        await until(refused)
        assert await info(short, "role") == "follower"


@pytest.mark.slow
async def test_deleted_files_are_refetched_when_the_disk_has_room(tmp_path: Path, disks: Disks) -> None:
    async with three_replicas(tmp_path, REFILLS_SOON, **KEPT) as brokers:
        short, _ = await deleted_early(brokers, disks)
        await short.stream.aclose()
        disks.clear()
        with capture_logs() as log:

            async def is_whole() -> bool:
                try:  # the next run of a broker begins with new connections
                    client = await brokers[0].connect()
                    return await base(client) == 0 and await client.offset(RequestCode.GET_MAX_OFFSET) == COUNT
                except (OSError, trio.BrokenResourceError, AssertionError):
                    return False

            await until(is_whole)
            await until(lambda: any(line["event"] == "early_deletion_over" for line in log))
        client = await brokers[0].connect()
        assert await bodies_from(client, 0) == [body(n) for n in range(COUNT)]
        assert await client.offset(RequestCode.GET_MIN_OFFSET) == 0
        assert {"refill_begun", "refill_fetched", "log_refilled", "early_deletion_over"} <= {
            line["event"] for line in log
        }
