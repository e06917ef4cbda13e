"""A replica that needs more than entries: whole files and a snapshot, fetched while the group goes on."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from raftlog import ConfChange, ConfChangeKind, NodeId
from raftlog.log_numbers import LogIndex
from raftlog.net.transport import Lane
from raftlog.node_limits import NodeLimits
from raftlog.segment import EARLY, RealDisk, snapshot_install
from raftlog.segment.disk import write_fully
from raftlog.segment.limits import LogLimits
from tests.free_ports import free_ports
from tests.support.waiting import until
from tests.unit.replica.members import CONFIG, SEGMENT_BYTES, Group, Member, add_learner, led_group, same_files

BODIES = [b"%03d" % number * 100 for number in range(200)]


async def promote(nodes: Group, new: Member) -> Member:
    """Make a voter of it, whoever leads by now; returns who that is."""

    async def is_proposed() -> bool:
        leader = await nodes.leader()
        return isinstance(leader.replica.change(ConfChange(ConfChangeKind.PROMOTE, new.name)), int)

    await until(is_proposed)
    await new.until(lambda member: new.name in member.conf.voters and not member.conf.is_joint)
    return await nodes.leader()


async def test_add_learner_over_reset_with_app_snapshot_and_log_cut(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        await leader.drop_files(keep=3)
        assert leader.replica.log.base[0] > 50
        new = await add_learner(nodes, leader, installs=BODIES)
        assert new.replica.log.base == leader.replica.log.base
        assert same_files(leader, new)
        leader = await promote(nodes, new)
        await leader.append_all([b"after"])
        await new.until(lambda member: member.application.bodies == [*BODIES, b"after"])
        # It can lead, and it comes back by itself.
        await new.stop()
        await nodes.start(new)
        await new.until(lambda member: member.application.bodies == [*BODIES, b"after"])
        leader = await nodes.leader()

        def leads(member: Member) -> bool:
            if not member.replica.core.ready and leader.replica.core.ready:
                leader.replica.transfer(new.name)  # again: a transfer that is not finished in time is given up
            return member.replica.core.ready

        await new.until(leads)
        await new.append_all([b"led by the new one"])


@pytest.mark.parametrize("early", [True, False])
async def test_copied_log_keeps_the_early_beginning_note(tmp_path: Path, early: bool) -> None:
    """If it leads one day, it must not say that entries are gone which the stopped replica has."""
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        whole, other = nodes.others(leader)
        for member in (whole, other):
            await member.until(lambda member: member.application.bodies == BODIES)
        await until(lambda: leader.replica.core.oldest_base == 0)
        await whole.stop()
        await other.drop_files(keep=3, early=early)
        await until(lambda: any(peer.base for peer in leader.replica.core.status().peers))
        await leader.drop_files(keep=3, early=early)
        new = await add_learner(nodes, leader, installs=BODIES)
        assert new.replica.log.base[0] > 50
        assert new.replica.core.began_early is early
        assert (EARLY in new.replica.log.notes) is early


async def test_empty_learner_fetches_files_of_a_complete_log(tmp_path: Path) -> None:
    async with led_group(tmp_path, ["n0"], bodies=BODIES) as (nodes, leader):
        new = await add_learner(nodes, leader, installs=BODIES)
        assert new.replica.log.base == (0, 0)
        assert same_files(leader, new)


async def test_log_of_one_file_is_sent_as_entries(tmp_path: Path) -> None:
    async with led_group(tmp_path, ["n0"]) as (nodes, leader):
        bodies = [b"%d" % number for number in range(100)]  # more than the limit, in one file
        await leader.append_all(bodies)
        assert leader.replica.log.end_pos < SEGMENT_BYTES
        new = await add_learner(nodes, leader)
        await new.until(lambda member: member.application.bodies == bodies)
        assert new.runs == 1


async def test_follower_below_the_base_is_reset_while_the_group_continues(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES[:20]) as (nodes, leader):
        behind = nodes.others(leader)[0]
        await behind.until(lambda member: member.application.bodies == BODIES[:20])
        await behind.stop()
        await leader.append_all(BODIES[20:])
        for member in nodes.others(behind):
            await member.until(lambda member: member.application.bodies == BODIES)
            await member.drop_files()
        with capture_logs() as log:
            await nodes.start(behind)
            more = [b"meanwhile %d" % number for number in range(30)]
            for body in more:
                await leader.append_all([body])
            await behind.until(lambda member: member.application.bodies == [*BODIES, *more])
        assert behind.runs == 3
        assert [line["event"] for line in log].count("install_begun") == 1
        assert behind.replica.log.base == leader.replica.log.base
        assert set(behind.conf.voters) == {"n0", "n1", "n2"}


async def test_reset_survives_a_change_of_leader(tmp_path: Path) -> None:
    """What was fetched from the first leader is not fetched again."""
    limits = NodeLimits(log=LogLimits(piece_bytes=4096))
    async with led_group(tmp_path, limits=limits, bodies=BODIES) as (nodes, leader):
        for member in nodes.members.values():
            await member.until(lambda member: member.application.bodies == BODIES)
            await member.drop_files(keep=3)
        new = await add_learner(nodes, leader)
        staged = new.directory / "reset"
        await new.until(lambda member: bool(list(staged.glob("*.index"))))
        await leader.stop()
        await new.until(lambda member: member.runs == 2 and member.application.bodies == BODIES)


async def test_control_lane_under_bulk(tmp_path: Path) -> None:
    """A lane full of entries that nobody reads delays no heartbeat and no read."""
    async with led_group(tmp_path, bodies=[b"x"]) as (nodes, leader):
        term = leader.replica.core.term
        for follower in nodes.others(leader):
            transport, peer = leader.run.transport, follower.name
            bulk = transport._outbound[peer, Lane.BULK].stream
            port = bulk._sock.getsockname()[1]
            (inbound,) = [caller for caller in follower.run.transport._inbound if caller.stream.peer[1] == port]
            follower.run.reactor.modify(inbound.stream._sock.fileno(), 0)  # it reads no more
            frame = bytes(1024 * 1024)
            while transport.send(NodeId(peer), Lane.BULK, [frame], len(frame)):
                bulk.flush()
            assert bulk.out_bytes > Lane.BULK.queued_bytes_max
        for _ in range(10):
            with trio.fail_after(60):
                assert await leader.read()
            await trio.sleep(0.25)
        assert leader.replica.core.ready
        assert leader.replica.core.term == term


async def test_needed_empty_voter_is_sent_entries(tmp_path: Path) -> None:
    """Nothing of the leader's closed files is committed without it, so there is no file to offer."""
    ports = dict(zip(("n0", "n1", "n2"), free_ports(3), strict=True))
    addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    async with trio.open_nursery() as nursery:
        nodes = Group(tmp_path, nursery, CONFIG, NodeLimits())
        for name in ("n0", "n1"):
            await nodes.start(nodes.make(name, addresses, ports[name]))
        leader = await nodes.leader()
        await leader.append_all(BODIES[:3])
        (other,) = nodes.others(leader)
        await other.stop()
        for body in BODIES[3:]:
            assert isinstance(leader.append(body), int)
        assert leader.replica.log.segments()[0].closed
        assert leader.replica.commit_index < leader.replica.log.segments()[0].last_index
        empty = nodes.make("n2", addresses, ports["n2"])
        await nodes.start(empty)
        await empty.until(lambda member: member.application.bodies == BODIES)
        assert empty.runs == 1
        nursery.cancel_scope.cancel()


async def test_requested_files_may_be_dropped_meanwhile(tmp_path: Path) -> None:
    async with led_group(tmp_path) as (nodes, leader):
        silent = nodes.others(leader)[0]
        await silent.stop()
        await leader.append_all(BODIES)
        await leader.drop_files(keep=3)
        await trio.sleep(4 * CONFIG.heartbeat_seconds)  # the leader finds that the peer is silent
        # The leader asks again whether the peer has the entry at its base; that has not left yet when the base moves.
        for _ in range(4):
            time.sleep(CONFIG.heartbeat_seconds)  # noqa: ASYNC251 - nothing else is to have a turn
            leader.replica.begin_turn()
            leader.replica.tick()
        assert leader.replica.core.has_effects
        await leader.drop_files(keep=1)
        leader.replica.pump()
        await leader.append_all([b"more"])
        await nodes.start(silent)
        await silent.until(lambda member: member.application.bodies == [*BODIES, b"more"])


@pytest.mark.parametrize("told", [True, False])
async def test_reset_waits_until_the_disk_has_room(told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the disk tells beforehand that it has no room, or refuses a write."""
    full = True

    def write(*arguments: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, "no room")
        write_fully(*arguments)

    usage = RealDisk.usage
    async with led_group(tmp_path, limits=NodeLimits(room_seconds=0.05), bodies=BODIES) as (nodes, leader):
        await leader.drop_files(keep=2)
        with capture_logs() as log:
            if told:
                monkeypatch.setattr(
                    RealDisk,
                    "usage",
                    lambda disk, path: (20_000, 100_000) if full and "n3" in path else usage(disk, path),
                )
            else:
                monkeypatch.setattr(snapshot_install, "write_fully", write)
            new = await add_learner(nodes, leader)
            await new.until(lambda member: [line["event"] for line in log].count("install_waits") >= 1)
            assert new.runs == 1
            full = False
            await new.until(lambda member: member.application.bodies == BODIES)


@pytest.mark.parametrize("count", [10, len(BODIES)], ids=["entries", "files"])
async def test_only_voter_continues_when_a_learner_requests_damaged_entries(tmp_path: Path, count: int) -> None:
    """It would be refused at each start from then on, since nobody has its log to repair it from."""
    async with led_group(tmp_path, ["n0"], bodies=BODIES[:count]) as (nodes, leader):
        await leader.stop()
        await nodes.start(leader)
        leader = await nodes.leader()
        await leader.until(lambda member: member.application.bodies == BODIES[:count])
        log, path = leader.replica.log, leader.directory / f"{0:020d}"
        assert log.entry(LogIndex(5)) is None, "it is not in memory"
        with path.open("r+b") as file:
            file.seek(log.locate(LogIndex(5)).pos + 60)
            file.write(b"!!")
        with capture_logs() as lines:
            await add_learner(nodes, leader)
            await until(lambda: any(line["event"] == "damage_not_repairable" for line in lines), seconds=30)
            await leader.append_all([b"more"])
        assert leader.runs == 2
