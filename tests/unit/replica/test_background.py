"""A leader that reads old entries for a peer from a slow disk goes on leading."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import trio

from raftlog.replica import Job
from raftlog.segment import RealDisk
from raftlog.segment.errors import StorageCorrupt
from tests.unit.replica.members import Group, Member, group

BODIES = [b"%04d" % number + bytes(500) for number in range(60)]  # several files


async def behind(nodes: Group) -> tuple[Member, Member]:
    """A leader that has nothing in memory, and a stopped member that lacks half of the entries, more than one file."""
    leader = await nodes.leader()
    late = nodes.others(leader)[0]
    await leader.append_all(BODIES[:20])
    await late.until(lambda member: member.application.bodies == BODIES[:20])
    await late.stop()
    await leader.append_all(BODIES[20:])
    others = nodes.others(late)
    for member in others:
        await member.until(lambda member: member.application.bodies == BODIES)
    for member in others:
        await member.stop()
    for member in others:
        await nodes.start(member)
    for member in others:
        await member.until(lambda member: member.runs == 2 and member.application.bodies == BODIES)
    return await nodes.leader(), late


async def test_slow_disk_of_a_leader_does_not_stop_heartbeats_or_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group(tmp_path) as nodes:
        leader, late = await behind(nodes)
        term = leader.replica.core.term
        go_on, waits, pread = threading.Event(), threading.Event(), RealDisk.pread
        on_the_loop: list[int] = []

        def slow(self: RealDisk, fd: int, length: int, offset: int) -> bytes:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(leader.directory)):
                if threading.current_thread() is threading.main_thread():
                    on_the_loop.append(offset)
                else:
                    waits.set()
                    go_on.wait(20)
            return pread(self, fd, length, offset)

        monkeypatch.setattr(RealDisk, "pread", slow)
        await nodes.start(late)
        await leader.until(lambda member: waits.is_set())
        began = trio.current_time()
        number = 0
        while trio.current_time() < began + 3:
            await leader.append_all([b"meanwhile %d" % number])
            number += 1
            await trio.sleep(0.05)
        assert late.application.bodies != leader.application.bodies
        go_on.set()
        await late.until(lambda member: member.application.bodies == leader.application.bodies)
        assert late.application.bodies[: len(BODIES)] == BODIES
        assert leader.replica.core.term == term, "it lost its leadership"
        assert not on_the_loop, f"{len(on_the_loop)} reads stopped the event loop"


async def test_reads_for_a_past_leadership_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    async with group(tmp_path) as nodes:
        leader, late = await behind(nodes)
        with monkeypatch.context() as patch:
            patch.setattr(leader.replica, "_in_background", jobs.append)
            await nodes.start(late)
            await leader.until(lambda member: bool(jobs))
        heir = nodes.others(leader, late)[0]
        assert leader.replica.transfer(heir.name) is None
        await heir.until(lambda member: member.replica.core.ready)
        await leader.until(lambda member: not member.replica.is_leader)

        def damaged(*args: object) -> bytes:
            raise StorageCorrupt("path", 0, "as if it had been cut meanwhile")

        with monkeypatch.context() as patch:
            patch.setattr(leader.replica.log.files, "pread", damaged)
            ends = [job() for job in jobs]
        for end in ends:
            end()
        await late.until(lambda member: member.application.bodies == BODIES)
        assert leader.runs == 2, "what nobody needs was taken for damage"


async def test_entries_deleted_meanwhile_are_fetched_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    async with group(tmp_path) as nodes:
        leader, late = await behind(nodes)
        with monkeypatch.context() as patch:
            patch.setattr(leader.replica, "_in_background", jobs.append)
            await nodes.start(late)
            await leader.until(lambda member: bool(jobs))
        await leader.drop_files()
        await leader.append_all([b"the files are gone"])
        for job in jobs:
            job()()
        leader.run.reactor.wake()
        await late.until(lambda member: member.application.bodies[-1:] == [b"the files are gone"])
        assert leader.runs == 2
