"""A new replica takes the files that its group has archived from the archive, and all others from the leader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from raftlog import Hosted, NodeRun
from raftlog.log_numbers import LogIndex
from raftlog.log_transfer import Puller
from raftlog.net.frames import RangeReq
from raftlog.node_limits import NodeLimits
from raftlog.segment.errors import SegmentError
from raftlog.segment.limits import LogLimits
from raftlog.segment.meta import Base
from raftlog.segment.note_names import COPIED
from tests.unit.replica.members import SEGMENT_BYTES, Group, Member, add_learner, led_group, same_files

LIMITS = NodeLimits(log=LogLimits(piece_bytes=4096))
HASTY = replace(LIMITS, archive_read_bytes=4096, archive_read_seconds=0.05)
BODIES = [b"%03d" % number * 100 for number in range(200)]


class Archive:
    """The archive of a group whose first files are those of one member, up to the last one but ``lacks``.

    ``fault`` is called before each read.
    """

    def __init__(self, leader: Member, lacks: int = 1) -> None:
        closed = [each for each in leader.replica.log.segments() if each.closed][:-lacks]
        last = leader.replica.log.locate(closed[-1].last_index)
        self.begin = closed[0].start
        self.end = Base(last.index, last.term, closed[-1].end, last.chain)
        self._directory = leader.directory
        self.fault: Callable[[int], None] = lambda pos: None
        self.reads: list[int] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def read(self, pos: int, nbytes: int) -> bytes:
        self.fault(pos)
        self.reads.append(pos)
        assert pos + nbytes <= self.end.pos
        start = pos - pos % SEGMENT_BYTES
        return (self._directory / f"{start:020d}").read_bytes()[pos - start :][:nbytes]


def use(nodes: Group, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let leaders offer the archive, and new members read it; the positions that these request of leaders."""
    for member in nodes.members.values():
        member.run._offers._archive_end = lambda: archive.end
    host = Member.host

    def with_archive(self: Member, run: NodeRun) -> Hosted:
        hosted = host(self, run)
        return replace(hosted, archived=lambda: archive.end, open_archive=lambda archived: archive)

    monkeypatch.setattr(Member, "host", with_archive)
    asked: list[int] = []
    ask = Puller._ask

    def note(self: Puller, request: RangeReq) -> None:
        if request.source == "log":
            asked.append(request.pos)
        ask(self, request)

    monkeypatch.setattr(Puller, "_ask", note)
    return asked


def named(log: list[Any], event: str) -> list[dict[str, Any]]:
    return [line for line in log if line["event"] == event]


@pytest.mark.parametrize("is_shortened", [False, True])
async def test_new_replica_reads_archived_files_without_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shortened: bool
) -> None:
    async with led_group(tmp_path, ["n0"], limits=LIMITS, bodies=BODIES) as (nodes, leader):
        if is_shortened:
            await leader.drop_files(keep=3)
        archive = Archive(leader)
        asked = use(nodes, archive, monkeypatch)
        with capture_logs() as log:
            new = await add_learner(nodes, leader, installs=BODIES)
        assert same_files(leader, new)
        assert new.replica.log.base == leader.replica.log.base
        assert asked, "the newest files are not archived"
        assert min(asked) >= archive.end.pos
        (line,) = named(log, "install_fetched")
        assert line["archived_bytes"] == archive.end.pos - archive.begin
        assert named(log, "install_without_archive") == []
        assert archive.closed == 1


async def test_new_replica_gets_the_note_about_copied_files(tmp_path: Path) -> None:
    async with led_group(tmp_path, ["n0"], limits=LIMITS, bodies=BODIES) as (nodes, leader):
        leader.run._offers._note_for_copies = lambda: b"of these files"
        new = await add_learner(nodes, leader, installs=BODIES)
        assert new.replica.log.notes[COPIED] == b"of these files"


def gone(pos: int) -> None:
    raise SegmentError("the store is gone")


def slow(pos: int) -> None:
    threading.Event().wait(0.2)  # longer than HASTY allows


@pytest.mark.parametrize("fault", [gone, slow])
@pytest.mark.parametrize("goes_well_below", [0, 1, SEGMENT_BYTES])
async def test_leader_sends_the_rest_when_the_archive_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[int], None], goes_well_below: int
) -> None:
    log, archive, asked = await joined(
        tmp_path, monkeypatch, HASTY, lambda pos: fault(pos) if pos >= goes_well_below else None
    )
    assert min(asked) < archive.end.pos
    assert len(named(log, "install_without_archive")) == 1, log


async def joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: NodeLimits, fault: Callable[[int], None]
) -> tuple[list[Any], Archive, list[int]]:
    """A replica that joins with these limits, whose archive does this before each read: its log, and the archive's."""
    async with led_group(tmp_path, ["n0"], limits=limits, bodies=BODIES) as (nodes, leader):
        archive = Archive(leader)
        asked = use(nodes, archive, monkeypatch)
        archive.fault = fault
        with capture_logs() as log:
            new = await add_learner(nodes, leader, installs=BODIES)
        assert same_files(leader, new)
        return log, archive, asked


def takes_a_second(pos: int) -> None:
    threading.Event().wait(1.0)


async def test_leader_faster_than_the_archive_sends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(LIMITS, archive_read_bytes=4096, archive_trial_bytes=4096)
    log, archive, asked = await joined(tmp_path, monkeypatch, limits, takes_a_second)
    (given_up,) = named(log, "install_without_archive")
    assert "from the leader" in given_up["reason"]
    assert given_up["archived_bytes"] == min(asked) == 4096
    assert archive.closed == 1


async def test_archive_faster_than_the_leader_sends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is slow, and the leader is slower: that is found out once."""
    limits = replace(
        LIMITS, archive_read_bytes=4096, archive_trial_bytes=4096, archive_slow_bytes_per_second=float("inf")
    )
    ask = Puller._ask

    async def later(self: Puller, request: RangeReq) -> None:
        await trio.sleep(0.5)  # so slow is the leader
        ask(self, request)

    def slowly(self: Puller, request: RangeReq) -> None:
        trio.lowlevel.spawn_system_task(later, self, request)

    monkeypatch.setattr(Puller, "_ask", slowly)
    log, archive, asked = await joined(tmp_path, monkeypatch, limits, lambda pos: None)
    assert named(log, "install_without_archive") == []
    tried = [pos for pos in asked if pos < archive.end.pos]
    assert len(set(tried)) <= 8, "what was asked of the leader at once"
    assert max(archive.reads) > max(tried)


async def test_leader_serves_while_an_archive_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(LIMITS, archive_open_seconds=0.01)
    async with led_group(tmp_path, ["n0"], limits=limits, bodies=BODIES) as (nodes, leader):
        archive = Archive(leader)
        asked = use(nodes, archive, monkeypatch)
        answers = threading.Event()

        def stuck(pos: int) -> None:
            answers.wait(20)

        archive.fault = stuck
        new = await add_learner(nodes, leader, installs=BODIES)
        assert not answers.is_set()
        answers.set()
        assert min(asked) == 0
        assert same_files(leader, new)


async def test_files_of_another_log_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application proves what it reads; if it does not, the files are verified as those of a peer."""
    async with led_group(tmp_path, ["n0"], limits=LIMITS, bodies=BODIES) as (nodes, leader):
        archive = Archive(leader)
        use(nodes, archive, monkeypatch)
        read = archive.read

        def flipped(pos: int, nbytes: int) -> bytes:
            data = bytearray(read(pos, nbytes))
            data[len(data) // 2] ^= 1
            return bytes(data)

        monkeypatch.setattr(archive, "read", flipped)
        with capture_logs() as log:
            new = await add_learner(nodes, leader, installs=BODIES)
        assert same_files(leader, new)
        assert len(named(log, "install_without_archive")) == 1


async def test_replica_resumes_reading_the_archive_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, archive_read_bytes=4096)
    async with led_group(tmp_path, ["n0"], limits=limits, bodies=BODIES) as (nodes, leader):
        archive = Archive(leader)
        asked = use(nodes, archive, monkeypatch)
        new = await add_learner(nodes, leader)
        files = new.directory / "reset"

        def takes_a_while(pos: int) -> None:
            threading.Event().wait(0.02)

        archive.fault = takes_a_while
        for kills in range(1, 3):
            await new.until(lambda member, kills=kills: len(list(files.glob("*.index"))) >= kills)  # type: ignore[misc]
            await new.stop(clean=False)
            archive.reads.clear()
            await nodes.start(new)
        archive.fault = lambda pos: None
        await new.until(lambda member: member.application.bodies == BODIES and member.replica.log.last_index > 0)
        assert same_files(leader, new)
        assert min(archive.reads) >= SEGMENT_BYTES, "what was verified before is not read again"
        assert not asked or min(asked) >= archive.end.pos
        assert new.replica.commit_index >= LogIndex(1)
