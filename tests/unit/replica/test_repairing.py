"""Several replicas of a group are damaged at once: what can be had comes back, and what cannot is not waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from raftlog import Hosted, NodeRun
from raftlog.node_limits import NodeLimits
from raftlog.range_server import DAMAGED_HERE
from raftlog.segment import LogDamaged, RealDisk, SegmentLog
from raftlog.segment.forced_repair import cut, trust
from raftlog.segment.meta import MetaFile
from raftlog.segment.note_names import ABSTAINING
from tests.unit.replica.group import CLUSTER
from tests.unit.replica.members import SEGMENT_BYTES, Group, Member, group, led_group

BODIES = [b"%04d" % number + bytes(196) for number in range(40)]  # all in one file
IMPATIENT = NodeLimits(repair_patience_seconds=0.3)


async def filled(nodes: Group, *late: Member) -> None:
    """Everybody has the first half of the bodies, and everybody but ``late`` the rest; all are stopped."""
    leader = await nodes.leader()
    await leader.append_all(BODIES[:20])
    for member in nodes.others():
        await member.until(lambda member: member.application.bodies == BODIES[:20])
    for member in late:
        await member.stop()
    leader = next(member for member in nodes.others(*late) if member.replica.is_leader)
    await leader.append_all(BODIES[20:])
    for member in nodes.others(*late):
        await member.until(lambda member: member.application.bodies == BODIES)
    for member in nodes.others(*late):
        await member.stop()


def file_of(member: Member) -> Path:
    return member.directory / f"{0:020d}"


def damage(member: Member, pos: int, *, bits: int = 4) -> None:
    content = bytearray(file_of(member).read_bytes())
    content[pos] ^= bits
    file_of(member).write_bytes(content)


def forget_commits(member: Member) -> None:
    """As after a crash that came before the next marker."""
    meta = MetaFile(RealDisk(), str(member.directory / "meta"))
    assert meta.state is not None
    for _ in range(2):
        meta.write(msgspec.structs.replace(meta.state, commit_hint=0))
    meta.close()


def events(log: list[Any], event: str) -> list[Any]:
    return [line for line in log if line["event"] == event]


def all_damaged(log: list[Any], member: Member, members: list[Member]) -> bool:
    """Whether ``member`` has told that each of the others lacks the same entry."""
    answers = dict.fromkeys((other.name for other in members if other is not member), DAMAGED_HERE)
    return any(waits["answers"] == answers for waits in events(log, "repair_waits"))


@pytest.mark.parametrize("where", ["middle", "end"])
@pytest.mark.parametrize("knows_commit", [True, False])
async def test_third_replica_repairs_two_with_the_same_damage(tmp_path: Path, where: str, knows_commit: bool) -> None:
    async with group(tmp_path, limits=IMPATIENT) as nodes:
        await filled(nodes)
        whole = file_of(nodes.members["n0"]).read_bytes()
        pos = 3000 if where == "middle" else len(whole.rstrip(b"\0")) - 2
        for name in ("n0", "n1"):
            damage(nodes.members[name], pos)
        if not knows_commit:
            forget_commits(nodes.members["n2"])
        for member in nodes.others():
            await nodes.start(member)
        for member in nodes.others():
            await member.until(lambda member: member.runs == 2 and member.application.bodies == BODIES)
            assert ABSTAINING not in member.run.segment_log.notes
            assert file_of(member).read_bytes()[: len(whole.rstrip(b"\0"))] == whole.rstrip(b"\0")


async def test_entries_damaged_at_two_and_absent_at_the_third_are_cut(tmp_path: Path) -> None:
    async with led_group(tmp_path, limits=IMPATIENT) as (nodes, leader):
        short = nodes.others(leader)[0]
        await filled(nodes, short)
        hurt = nodes.others(short)
        for member in hurt:
            damage(member, len(file_of(member).read_bytes().rstrip(b"\0")) - 2)
        with capture_logs() as log:
            for member in hurt:
                await nodes.start(member)
            # Nothing is decided while the third one has not answered.
            await hurt[0].until(lambda member: bool(events(log, "repair_waits")))
            assert not events(log, "log_cut")
            assert all(waits["answers"][short.name] == "not connected" for waits in events(log, "repair_waits"))
            await nodes.start(short)
            for member in hurt:
                await member.until(lambda member: member.runs == 2)
        assert len(events(log, "log_cut")) == 2
        assert all(ABSTAINING in member.run.segment_log.notes for member in hurt)
        told = [tuple(waits["answers"].items()) for waits in events(log, "repair_waits")]
        assert len(told) == len(set(told)), "the same answers are told once"
        # Nobody leads from here on, unless a person decides that what is lost is lost.
        for member in nodes.others():
            await member.stop()
        assert trust(RealDisk(), str(hurt[0].directory))
        for member in nodes.others():
            await nodes.start(member)
        leader = await nodes.leader()
        await leader.append_all([b"goes on"])
        for member in nodes.others():
            await member.until(lambda member: member.application.bodies[-1:] == [b"goes on"])
            await member.until(lambda member: not member.replica.core.abstaining)


async def test_entry_damaged_everywhere_is_not_cut_off_without_consent(
    tmp_path: Path,
) -> None:
    async with group(tmp_path, limits=IMPATIENT) as nodes:
        await filled(nodes)
        members = nodes.others()
        contents = []
        for number, member in enumerate(members):
            damage(member, 3000, bits=1 << number)
            contents.append(file_of(member).read_bytes())
        with capture_logs() as log:
            for member in members:
                await nodes.start(member)
            # What is told first depends on who was reached first; it is told again when the answers change.
            for member in members:
                await member.until(lambda member: all_damaged(log, member, members))
            for member in members:
                await member.stop()
        assert not events(log, "log_cut")
        assert [file_of(member).read_bytes() for member in members] == contents
        for member in members:
            with pytest.raises(LogDamaged) as damaged:
                SegmentLog.open(
                    str(member.directory),
                    cluster_id=CLUSTER,
                    node_id=member.name,
                    segment_bytes=SEGMENT_BYTES,
                    disk=RealDisk(),
                )
            cut(RealDisk(), damaged.value)
        for member in members[:2]:
            assert trust(RealDisk(), str(member.directory))
        for member in members:
            await nodes.start(member)
        leader = await nodes.leader()
        await leader.append_all([b"goes on"])
        for member in members:
            await member.until(lambda member: member.application.bodies[-1:] == [b"goes on"])


@pytest.mark.parametrize("how", ["its first configuration", "what its host reads"])
async def test_start_repairs_damage_after_an_intact_end(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_group(tmp_path, limits=IMPATIENT) as (nodes, leader):
        bodies = [bytes([number]) * 1000 for number in range(60)]  # several files
        await leader.append_all(bodies)
        for member in nodes.others():
            await member.until(lambda member: member.application.bodies == bodies)
        hurt = nodes.others(leader)[0]
        await hurt.stop()
        whole = file_of(hurt).read_bytes()
        damage(hurt, 60 if how == "its first configuration" else 5000)
        hosts: list[NodeRun] = []

        def host(run: NodeRun) -> Hosted:
            hosts.append(run)
            if how == "what its host reads":
                run.segment_log.read_range(0, 10_000)
            return Member.host(hurt, run)

        monkeypatch.setattr(hurt, "host", host)
        await nodes.start(hurt)
        await hurt.until(lambda member: len(hosts) == 2 and member.application.bodies == bodies)
        assert file_of(hurt).read_bytes() == whole
