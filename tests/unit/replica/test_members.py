"""Members come, go, hand over and come back, with real sockets and files."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path

import cbor2
import msgspec
import pytest
import trio
from structlog.testing import capture_logs
from typer.testing import CliRunner

from mq.cli.app import app
from raftlog import ConfChange, ConfChangeKind, NodeId, Refusal, Role
from raftlog.log_numbers import LogIndex
from raftlog.node_limits import NodeLimits
from raftlog.repair_mode import members_in
from raftlog.segment import RealDisk
from raftlog.segment.errors import StorageCorrupt
from raftlog.segment.meta import MetaFile
from raftlog.segment.note_names import ABSTAINING
from raftlog.segment.running_log import RunningLog
from tests.support.waiting import until
from tests.unit.replica.members import CONFIG, SEGMENT_BYTES, Member, led_group

BODIES = [b"%03d" % number * 100 for number in range(100)]


def add(member: Member) -> ConfChange:
    return ConfChange(ConfChangeKind.ADD_LEARNER, member.name, member.address)


def promote(member: Member) -> ConfChange:
    return ConfChange(ConfChangeKind.PROMOTE, member.name)


def remove(member: Member) -> ConfChange:
    return ConfChange(ConfChangeKind.REMOVE, member.name)


async def test_add_learner_promote_and_remove_the_leader(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        new = nodes.make("n3", {})
        await nodes.start(new)
        assert not new.conf.members
        await leader.change(add(new))
        await new.until(lambda member: member.application.bodies == BODIES)
        await new.until(lambda member: member.conf.learners == (new.name,))
        await leader.change(promote(new))
        await leader.change(remove(leader))
        survivor = await nodes.leader(leader)
        await survivor.append_all([b"after"])
        for member in nodes.others(leader):
            await member.until(lambda member: member.application.bodies == [*BODIES, b"after"])
            assert set(member.conf.voters) == {other.name for other in nodes.others(leader)}
        assert leader.append(b"late") in (Refusal.NOT_LEADER, Refusal.TRANSFERRING)


async def test_members_are_remembered_over_restarts(tmp_path: Path) -> None:
    """The node that joined knows its group from the log alone; the others know it although their settings do not."""
    async with led_group(tmp_path, ["n0"]) as (nodes, leader):
        new = nodes.make("n1", {})
        await nodes.start(new)
        await leader.change(add(new))
        await leader.change(promote(new))
        await new.until(lambda member: set(member.conf.voters) == {"n0", "n1"} and not member.conf.is_joint)
        for member in (leader, new):
            await member.stop()
        for member in (leader, new):
            await nodes.start(member)
        leader = await nodes.leader()
        await leader.append_all(BODIES[:3])
        for member in (leader, new):
            await member.until(lambda member: member.application.bodies == BODIES[:3])
            assert set(member.conf.voters) == {"n0", "n1"}


async def test_transfer_elects_the_target_in_the_next_term(tmp_path: Path) -> None:
    async with led_group(tmp_path) as (nodes, leader):
        target = nodes.others(leader)[0]
        await leader.append_all(BODIES[:10])
        term = leader.replica.core.term

        def is_transferring() -> bool:
            refusal = leader.replica.transfer(target.name)
            assert refusal in (None, Refusal.NOT_CAUGHT_UP)
            return refusal is None

        await until(is_transferring)
        await target.until(lambda member: member.replica.core.ready)
        assert target.replica.core.term == term + 1
        assert leader.replica.transfer(NodeId("n0")) is Refusal.NOT_LEADER
        await target.append_all([b"x"])


async def test_follower_read_applied_wait(tmp_path: Path) -> None:
    """A read at a follower sees everything that was acknowledged before, although nobody waited for the follower."""
    async with led_group(tmp_path) as (nodes, leader):
        for number in range(20):
            await leader.append_all([b"%d" % number])
            for follower in nodes.others(leader):
                assert await follower.read()
                assert follower.application.bodies[-1] == b"%d" % number
        assert await leader.read()
        for member in nodes.others(leader):
            await member.stop()
        assert not await leader.read(), "a leader without majority cannot tell"


async def test_wiped_voter_is_refused_on_both_sides(tmp_path: Path) -> None:
    async with led_group(tmp_path) as (nodes, leader):
        wiped = nodes.others(leader)[0]
        others = nodes.others(wiped)
        await leader.append_all(BODIES[:5])
        for member in others:
            await member.until(lambda member: wiped.name in member.run.admission.stores)
        await wiped.stop()
        shutil.rmtree(wiped.directory)
        with capture_logs() as log:
            await nodes.start(wiped)
            words = f"{wiped.name} came back with another directory"
            for member in others:
                await member.until(lambda member: any(words in text for text in member.run.transport.refusals))
            await wiped.until(lambda member: any(words in text for text in member.run.transport.refusals))
        assert any(line["event"] == "peer_unreachable" and words in line["error"] for line in log)
        assert wiped.replica.log.last_index == 0, "it was heard"
        await leader.append_all([b"two of three go on"])
        # Removed and added anew it is welcome, with the directory that it has now.
        leader = await nodes.leader()
        await leader.change(remove(wiped))
        await leader.change(add(wiped))
        await wiped.until(lambda member: member.application.bodies[-1:] == [b"two of three go on"])
        await leader.change(promote(wiped))


async def test_bit_flip_committed_is_repaired_from_peers(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        hurt = nodes.others(leader)[0]
        await hurt.until(lambda member: member.application.bodies == BODIES)
        await hurt.stop()
        path = hurt.directory / f"{SEGMENT_BYTES:020d}"
        good = path.read_bytes()
        path.write_bytes(good[:5000] + bytes([good[5000] ^ 4]) + good[5001:])
        for sidecar in hurt.directory.glob("*.index"):
            sidecar.unlink()
        with capture_logs() as log:
            await nodes.start(hurt)
            await hurt.until(lambda member: member.runs == 2 and member.application.bodies == BODIES)
        assert [line["event"] for line in log if line["event"] == "log_damaged"], "the damage was not noticed"
        assert path.read_bytes() == good
        assert len(good) == SEGMENT_BYTES


async def test_damage_found_by_a_read_is_repaired_in_place(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        hurt = nodes.others(leader)[0]
        await hurt.until(lambda member: member.application.bodies == BODIES)
        path = hurt.directory / f"{0:020d}"
        good = path.read_bytes()
        path.write_bytes(good[:5000] + bytes([good[5000] ^ 4]) + good[5001:])

        for sidecar in hurt.directory.glob("*.index"):
            sidecar.unlink()

        def find() -> None:
            raise StorageCorrupt(str(path), 5000, "as a scrub would say")

        hurt.run.reactor.at_turn_end(find)
        hurt.run.reactor.wake()
        await hurt.until(lambda member: member.runs == 2 and member.application.bodies == BODIES)
        assert path.read_bytes() == good
        await leader.append_all([b"after"])
        await hurt.until(lambda member: member.application.bodies[-1] == b"after")


def flip_bit(path: Path, at: int) -> bytes:
    """Damage a file in place; returns what it was."""
    good = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([good[at] ^ 4]))
    return good


async def test_leader_reading_a_damaged_entry_hands_over_and_repairs_itself(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        for member in nodes.others(leader):
            await member.until(lambda member: member.application.bodies == BODIES)
        entry = leader.replica.log.locate(LogIndex(5))
        await leader.stop()
        await nodes.start(leader)
        await leader.until(lambda member: member.application.bodies == BODIES)
        other = await nodes.leader()

        async def leads_again() -> bool:
            if not leader.replica.is_leader:
                (await nodes.leader()).replica.transfer(leader.name)
            return leader.replica.is_leader

        await until(leads_again)
        hurt, run = leader, leader.run
        path = hurt.directory / f"{0:020d}"
        good = flip_bit(path, entry.pos + 60)
        for _ in range(2):
            with pytest.raises(StorageCorrupt):
                run.segment_log.pread(entry.pos + 48, entry.size - 48)
        # It gives leadership up before it goes: no time-out passes in which nobody leads.
        await hurt.until(lambda member: member.run is not run and member.application.bodies == BODIES)
        assert path.read_bytes() == good
        assert hurt.replica.log.pread(entry.pos + 48, entry.size - 48) == BODIES[entry.index - other_entries(hurt)]
        await (await nodes.leader()).append_all([b"after"])
        assert other.application.bodies[: len(BODIES)] == BODIES


def other_entries(member: Member) -> int:
    """How many entries of the log's beginning are not bodies, plus one: the index of the first body."""
    log = member.replica.log
    return next(
        index
        for index in range(1, 10)
        if log.pread((ref := log.locate(LogIndex(index))).pos + 48, ref.size - 48) == BODIES[0]
    )


async def test_group_of_one_serves_with_a_damaged_entry(tmp_path: Path) -> None:
    async with led_group(tmp_path, ["n0"], bodies=BODIES) as (nodes, leader):
        await leader.stop()
        await nodes.start(leader)
        leader = await nodes.leader()
        await leader.until(lambda member: member.application.bodies == BODIES)
        log = leader.replica.log
        damaged, intact = log.locate(LogIndex(5)), log.locate(LogIndex(9))
        flip_bit(leader.directory / f"{0:020d}", damaged.pos + 60)
        log.load(SEGMENT_BYTES, 10)
        with capture_logs() as lines:
            with pytest.raises(StorageCorrupt):
                log.pread(damaged.pos + 48, 10)
            await leader.append_all([b"more"])
            await until(lambda: any(line["event"] == "damage_not_repairable" for line in lines))
        assert intact.pos < SEGMENT_BYTES
        assert log.pread(SEGMENT_BYTES, 10)
        assert leader.runs == 2


async def test_relaxed_replica_abstains_after_power_loss_until_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relaxed = dataclasses.replace(CONFIG, durable_commit=False)
    async with led_group(tmp_path, config=relaxed, bodies=BODIES[:10]) as (nodes, leader):
        lost = nodes.others(leader)[0]
        await lost.until(lambda member: member.application.bodies == BODIES[:10])
        await lost.stop(clean=False)
        for member in nodes.others(lost):
            await member.stop()
        monkeypatch.setattr("raftlog.segment.disk.RealDisk.boot_id", lambda disk: "another")
        await nodes.start(lost)
        assert lost.replica.core.abstaining
        assert ABSTAINING in lost.replica.log.notes
        await lost.stop(clean=False)
        await nodes.start(lost)
        assert lost.replica.core.abstaining, "the second start must not forget what the first one noticed"
        for member in nodes.others(lost):
            await nodes.start(member)
        await lost.until(lambda member: not member.replica.core.abstaining)
        await lost.until(lambda member: ABSTAINING not in member.replica.log.notes)


@pytest.mark.slow
async def test_majority_killed_in_relaxed_mode_waits_for_an_operator(tmp_path: Path) -> None:
    """Also after starts in order: who may lack what it acknowledged forgets that only when it has caught up."""
    relaxed = dataclasses.replace(CONFIG, durable_commit=False)
    async with led_group(tmp_path, config=relaxed, bodies=BODIES[:10]) as (nodes, leader):
        for member in nodes.others():
            await member.until(lambda member: member.application.bodies == BODIES[:10])
        orderly, *killed = nodes.others()
        await orderly.stop()
        for member in killed:
            await member.stop(clean=False)
        for _ in range(2):
            for member in nodes.others():
                await nodes.start(member)
            assert [member.replica.core.abstaining for member in nodes.others()] == [False, True, True]
            # All have had time to stand for election, and to be denied a vote.
            await orderly.until(lambda member: member.replica.core.role is Role.PRE_CANDIDATE)
            await trio.sleep(1.5 * CONFIG.election_timeout_seconds_max)
            assert all(member.replica.core.leader_id is None for member in nodes.others())
            for member in nodes.others():
                await member.stop()

        # One more voter makes a majority, so one of those who abstain is trusted, and no more.
        trusted, other = killed
        result = CliRunner().invoke(app, ["log", "allow-vote", str(trusted.directory), "--accept-loss"])
        assert result.output.endswith("it votes again\n")
        for member in nodes.others():
            await nodes.start(member)
        assert [member.replica.core.abstaining for member in (orderly, trusted, other)] == [False, False, True]
        leader = await nodes.leader()
        await leader.append_all([b"after"])
        for member in nodes.others():
            await member.until(lambda member: member.application.bodies == [*BODIES[:10], b"after"])
            await member.until(lambda member: ABSTAINING not in member.replica.log.notes)


async def test_full_disk_refuses_proposals_and_recovers(tmp_path: Path) -> None:
    async with led_group(tmp_path, ["n0"]) as (_, leader):
        leader.replica.disk_usage(10, 100, 0.9, 0.95)
        assert leader.append(b"x") is Refusal.DISK_FULL
        leader.replica.disk_usage(11, 100, 0.9, 0.95)
        assert leader.append(b"x") is Refusal.DISK_FULL, "a little room is no reason to begin anew"
        leader.replica.disk_usage(13, 100, 0.9, 0.95)
        await leader.append_all([b"x"])


async def test_follower_with_a_full_disk_refuses_entries_and_catches_up_later(tmp_path: Path) -> None:
    async with led_group(tmp_path, limits=NodeLimits(disk_poll_seconds=1000.0), bodies=[b"before"]) as (nodes, leader):
        full = nodes.others(leader)[0]
        await full.until(lambda member: member.application.bodies == [b"before"])
        full.replica.disk_usage(4, 100, 0.9, 0.95)
        end = full.replica.log.end_pos
        await leader.append_all(BODIES[:20])
        assert full.replica.log.end_pos == end
        full.replica.disk_usage(50, 100, 0.9, 0.95)
        await full.until(lambda member: member.application.bodies == [b"before", *BODIES[:20]])


async def test_disk_without_room_for_a_file_refuses_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SEGMENT_BYTES - 1
    monkeypatch.setattr(RealDisk, "usage", lambda disk, path: (free, 5 * SEGMENT_BYTES))
    async with led_group(tmp_path, ["n0"], limits=NodeLimits(disk_poll_seconds=0.01)) as (_, leader):
        await leader.until(lambda member: member.append(b"x") is Refusal.DISK_FULL)
        free = 3 * SEGMENT_BYTES
        await leader.until(lambda member: isinstance(member.append(b"x"), int))


async def test_node_that_cannot_make_a_file_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full: set[str] = set()

    def allocate(disk: RealDisk, fd: int, nbytes: int) -> None:
        if any(os.readlink(f"/proc/self/fd/{fd}").startswith(directory) for directory in full):
            raise OSError(errno.ENOSPC, "no room")

    def usage(disk: RealDisk, path: str) -> tuple[int, int]:
        return (0 if path in full else 50 * SEGMENT_BYTES), 100 * SEGMENT_BYTES

    monkeypatch.setattr(RealDisk, "allocate", allocate)
    monkeypatch.setattr(RealDisk, "usage", usage)
    async with led_group(tmp_path) as (nodes, leader):
        full.add(str(leader.directory))
        for body in BODIES:
            leader.append(body)
        await leader.until(lambda member: member.runs == 2)
        nodes.members.pop(leader.name)
        other = await nodes.leader()
        await other.append_all(BODIES)
        assert leader.runs == 2
        assert leader.replica.log.end_pos < SEGMENT_BYTES
        full.clear()
        await leader.until(lambda member: member.application.bodies == other.application.bodies)
        assert leader.runs == 2


async def test_applied_entries_are_committed_after_a_restart(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        alone = nodes.others(leader)[0]
        await alone.until(lambda member: member.application.bodies == BODIES)
        applied = alone.replica.applied_index
        content = cbor2.dumps([applied, alone.application.bodies])
        for member in list(nodes.members.values()):
            await member.stop(clean=False)
        # The application has noted how far it is, the log has not: it does so once a second.
        meta = MetaFile(RealDisk(), str(alone.directory / "meta"))
        assert meta.state is not None
        for _ in range(2):
            meta.write(msgspec.structs.replace(meta.state, commit_hint=1))
        meta.close()
        (alone.directory / "snapshot").write_bytes(content)
        await nodes.start(alone)
        assert alone.replica.commit_index == applied
        await alone.drop_files()
        assert alone.replica.log.base[0] > 1


async def test_vote_files_record_commit_hint_and_members(tmp_path: Path) -> None:
    """For a backup, which reads the files of a replica that runs, and for a group that lost its majority."""
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        committed = leader.replica.commit_index
        for member in nodes.members.values():
            source = RunningLog(RealDisk(), str(tmp_path / member.name))
            await until(lambda: source.refresh().commit_hint >= committed)
            noted = members_in(source.state.notes)
            assert noted is not None
            assert noted[0] == 0
            assert noted[1] == member.conf
