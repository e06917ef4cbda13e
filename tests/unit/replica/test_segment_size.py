"""A node that joins takes the length of log files from its group, and from its own directory afterwards."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import structlog
import trio
from structlog.testing import capture_logs

from raftlog import (
    ConfChange,
    ConfChangeKind,
    ListenRefused,
    SecretMissing,
    SegmentError,
    group_segment_bytes,
    stored_segment_bytes,
)
from raftlog.log_numbers import LogIndex
from raftlog.net.authentication import AuthenticationFailed
from raftlog.net.frames import Hello
from raftlog.net.secret_file import create_secret, new_secret, read_secrets
from raftlog.net.transport import NOT_RECORDED
from raftlog.node_limits import NodeLimits
from raftlog.segment_size import SEGMENT_BYTES_MAX
from tests.free_ports import free_ports
from tests.support.waiting import until
from tests.unit.replica.caller import Caller
from tests.unit.replica.group import CLUSTER
from tests.unit.replica.members import SEGMENT_BYTES, Member, group, led_group

BODIES = [b"%03d" % number * 100 for number in range(100)]
ADDED = {"n0": "127.0.0.1:1", "n3": "127.0.0.1:2"}
HELLO = Hello(CLUSTER, "g", "n0", "n3", 96 * 1024, "control", conf_index=LogIndex(7), addresses=ADDED)


class Waiting:
    """A node that waits for its group; ``told`` is empty until it knows how large log files are."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.told: list[int] = []
        self.done = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        settings, log = self._member.settings, structlog.get_logger("test")
        self.told.append(await group_segment_bytes(settings, log=log, task_status=task_status))
        self.done.set()

    async def answer(self, hello: Hello, secrets: tuple[bytes, ...]) -> str | None:
        """Why a replica that says this is turned away."""
        caller = await Caller.open(self._member.settings.listen[1], secrets)
        refusal = (await caller.greet(hello)).refusal
        await trio.aclose_forcefully(caller.stream)
        return refusal


@asynccontextmanager
async def waiting(member: Member) -> AsyncIterator[Waiting]:
    node = Waiting(member)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        yield node
        nursery.cancel_scope.cancel()


@pytest.fixture
def member(tmp_path: Path) -> Member:
    create_secret(str(tmp_path / "group.secret"))
    return Member(tmp_path, "n3", free_ports(1)[0], {})


async def test_joining_node_takes_the_segment_size_of_its_leader(tmp_path: Path) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        new = nodes.make("n3", {})
        new.settings = dataclasses.replace(new.settings, segment_bytes=2 * SEGMENT_BYTES)
        with capture_logs() as log:
            async with waiting(new) as node:
                await leader.change(ConfChange(ConfChangeKind.ADD_LEARNER, new.name, new.address))
                with trio.fail_after(60):
                    await node.done.wait()
        assert node.told == [SEGMENT_BYTES]
        assert not new.directory.exists()
        assert [line["event"] for line in log if line["event"] in ("group_awaited", "segment_bytes_adopted")] == [
            "group_awaited",
            "segment_bytes_adopted",
        ]
        new.settings = dataclasses.replace(new.settings, segment_bytes=SEGMENT_BYTES)
        await nodes.start(new)
        await new.until(lambda member: member.application.bodies == BODIES)
        assert stored_segment_bytes(str(new.directory)) == SEGMENT_BYTES


async def test_waiting_node_believes_only_members_of_its_group(tmp_path: Path, member: Member) -> None:
    secrets = read_secrets(str(tmp_path / "group.secret"))
    async with waiting(member) as node:
        with pytest.raises(AuthenticationFailed):
            await node.answer(HELLO, (new_secret(),))
        for wrong, words in (
            ({"cluster_id": "other"}, "this is group"),
            ({"group": "other"}, "this is group"),
            ({"target": "n1"}, "this is node"),
            ({"source": "n3"}, "is this node itself"),
            ({"addresses": {"n0": "127.0.0.1:1"}}, "has joined the group"),
            ({"source": "n9"}, "has joined the group"),
            ({"conf_index": 2**62}, "cannot have set a configuration"),
            ({"segment_bytes": -1}, "can be taken"),
            ({"segment_bytes": 0}, "can be taken"),
            ({"segment_bytes": SEGMENT_BYTES_MAX + 1}, "can be taken"),
        ):
            hello = msgspec.structs.replace(HELLO, **wrong)
            assert words in str(await node.answer(hello, secrets)), wrong
        assert not node.told
        assert await node.answer(HELLO, secrets) == NOT_RECORDED
        with trio.fail_after(60):
            await node.done.wait()
    assert node.told == [HELLO.segment_bytes]
    assert not member.directory.exists()


async def test_uncalled_node_repeats_its_waiting_event(member: Member) -> None:
    member.settings = dataclasses.replace(member.settings, limits=NodeLimits(remind_seconds=0.01))
    with capture_logs() as log:
        async with waiting(member):
            await until(lambda: len(log) >= 3)
    assert {(line["event"], line["listen"]) for line in log} == {("group_awaited", member.address)}


async def test_node_cannot_wait_without_secret_or_port(tmp_path: Path, member: Member) -> None:
    async with waiting(member):
        with pytest.raises(ListenRefused):
            await group_segment_bytes(member.settings, log=structlog.get_logger("test"))
    os.unlink(tmp_path / "group.secret")
    with pytest.raises(SecretMissing, match="from a replica of the group"):
        await group_segment_bytes(member.settings, log=structlog.get_logger("test"))


async def test_directory_stores_its_segment_size(tmp_path: Path) -> None:
    async with group(tmp_path, ["n0"]) as nodes:
        path = (await nodes.leader()).directory
        directory = str(path)
        assert stored_segment_bytes(directory) == SEGMENT_BYTES  # also while a process has it open
    assert stored_segment_bytes(directory) == SEGMENT_BYTES
    meta = path / "meta"
    meta.write_bytes(bytes(4096) + meta.read_bytes()[4096:])
    assert stored_segment_bytes(directory) == SEGMENT_BYTES, "the other slot says it, too"
    meta.write_bytes(bytes(8192))
    assert stored_segment_bytes(directory) is None
    assert stored_segment_bytes(str(tmp_path / "none")) is None
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SegmentError, match="file: cannot hold a log"):
        stored_segment_bytes(str(tmp_path / "file"))
