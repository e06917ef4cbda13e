"""Replicas of two versions: what they say of themselves, what they speak, and why they do not talk to each other."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from raftlog import NodeId
from raftlog.log_numbers import NO_INDEX
from raftlog.net import frames as wire
from raftlog.net.admission import Admission, Identity
from raftlog.net.frames import Hello, Kind, OtherVersion, Welcome
from raftlog.net.transport import Lane
from raftlog.net.versions import HANDSHAKE_VERSION, NEWEST_VERSION, OLDEST_VERSION, Software, common_version, why_apart
from tests.free_ports import free_ports
from tests.unit.replica.caller import Caller, received
from tests.unit.replica.group import CLUSTER, SEGMENT_BYTES, Node, wait_leader

NAMES = ("n0", "n1", "n2")

ranges = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted)


def speaks(oldest: int, newest: int) -> Software:
    return Software(oldest=oldest, newest=newest)


# -- decisions ---------------------------------------------------------------------------------------------------------


@given(ranges, ranges)
def test_peers_speak_their_newest_common_version(ours: list[int], theirs: list[int]) -> None:
    common = set(range(ours[0], ours[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    assert common_version(speaks(*ours), speaks(*theirs)) == max(common, default=None)
    assert common_version(speaks(*theirs), speaks(*ours)) == max(common, default=None)
    assert (why_apart(speaks(*ours), speaks(*theirs), "n1") is None) == bool(common)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (speaks(5, 6), "replication versions 3 to 4 are supported here, 5 to 6 by 'n1'"),
        (speaks(1, 2), "replication versions 3 to 4 are supported here, 1 to 2 by 'n1'"),
        (speaks(4, 3), "replication versions 4 to 3 are none"),
        (speaks(0, 3), "replication versions 0 to 3 are none"),
        (speaks(3, 256), "replication versions 3 to 256 are none"),
        (Software(level=2, level_newest=1), "the group is at format level 2, 'n1' supports none above 1"),
        (Software(level=4, level_newest=4), "the group is at format level 4 as 'n1' knows, this replica supports "),
        (Software(level=0, level_newest=2), "format levels 0 and 2 are none"),
        (Software("x" * 65, level_newest=2), "at most 64 characters"),
        (Software("1.0\n", level_newest=2), "at most 64 characters"),
    ],
)
def test_log_reports_why_replicas_do_not_connect(theirs: Software, words: str) -> None:
    ours = Software("1.0", 3, 4, level=2, level_newest=3)
    assert words in str(why_apart(ours, theirs, "n1"))


def test_replicas_with_levels_in_between_stay_connected() -> None:
    """Whoever has not applied the switch yet, or understands more than the group uses, is talked to."""
    ours = Software(level=2, level_newest=3)
    for level, newest in ((1, 2), (2, 2), (3, 3), (2, 9)):
        assert why_apart(ours, Software(level=level, level_newest=newest), "n1") is None


def test_incompatible_versions_refuse_each_other() -> None:
    addresses = {"n0": "a:1", "n1": "b:1"}
    sides = []
    for name, newest in (("n0", 1), ("n1", 2)):
        identity = Identity("c", "g", NodeId(name), 4096, name, level_newest=newest)
        side = Admission(identity, {}, lambda stores: None)
        side.configure(NO_INDEX, addresses)
        sides.append(side)
    old, new = sides
    new.level = 2
    assert (
        new.why_not(old.hello(NodeId("n1"), "bulk", "1"))
        == "the group is at format level 2, 'n0' supports none above 1"
    )
    assert "at format level 2 as 'n1' knows, this replica supports none above 1" in str(
        old.why_not(new.hello(NodeId("n0"), "bulk", "1"))
    )
    assert "at format level 2 as 'n1' knows" in str(old.why_not_welcome("n1", new.welcome("1", None, old.software)))


def test_disagreed_version_is_refused() -> None:
    side = Admission(Identity("c", "g", NodeId("n0"), 4096), {}, lambda stores: None)
    side.configure(NO_INDEX, {"n0": "a:1", "n1": "b:1"})
    assert side.why_not_welcome("n1", Welcome("1")) is None
    assert "'n1' chose replication version 7" in str(side.why_not_welcome("n1", Welcome("1", version=7)))


# -- frames ------------------------------------------------------------------------------------------------------------


def test_frames_of_another_version_are_refused() -> None:
    frame = wire.with_version(wire.PING, 4)
    assert wire.split_tagged(memoryview(bytes(frame)), 0, 4)[0][0][0] is Kind.PING
    for data, wanted in ((frame, 3), (wire.PING, 4)):
        with pytest.raises(OtherVersion, match=f"version {data[5]} came, this replica speaks version {wanted}"):
            wire.split_tagged(memoryview(bytes(data)), 0, wanted)


def test_stamping_copies_nothing_that_has_the_version() -> None:
    assert wire.with_version(wire.PING, HANDSHAKE_VERSION) is wire.PING


# -- with sockets ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def group_of(directory: Path, *versions: tuple[int, int]) -> AsyncIterator[list[Node]]:
    """Running replicas that speak these versions."""
    ports = dict(zip(NAMES, free_ports(len(versions)), strict=False))
    nodes = [Node(directory, name, ports, versions=each) for name, each in zip(ports, versions, strict=True)]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        yield nodes
        nursery.cancel_scope.cancel()


def version_between(node: Node, peer: str) -> set[int]:
    return {node.transport._outbound[NodeId(peer), lane].version for lane in Lane}


async def test_group_of_two_versions(tmp_path: Path) -> None:
    """Whatever leads, entries and answers go in the version that both ends speak."""
    newer = NEWEST_VERSION + 1
    versions = [(OLDEST_VERSION, newer), (OLDEST_VERSION, NEWEST_VERSION), (OLDEST_VERSION, newer)]
    async with group_of(tmp_path, *versions) as nodes:
        leader = await wait_leader(nodes)
        for number in range(20):
            leader.append(b"%d" % number)
        for node in nodes:
            await node.wait_until(lambda node: len(node.application.bodies) == 20)
        first, second, third = nodes
        for node in nodes:
            await node.wait_until(lambda node: all(map(node.transport.connected, node.transport.peers)))
        assert version_between(first, "n2") == version_between(third, "n0") == {newer}
        assert version_between(first, "n1") == version_between(second, "n0") == {NEWEST_VERSION}
        assert third.transport.software(NodeId("n1")) == Software(oldest=OLDEST_VERSION, newest=NEWEST_VERSION)
        assert not any(node.failures for node in nodes)


async def test_replicas_without_a_common_version_do_not_connect(tmp_path: Path) -> None:
    async with group_of(tmp_path, (OLDEST_VERSION, NEWEST_VERSION), (NEWEST_VERSION + 1, NEWEST_VERSION + 2)) as nodes:
        words = f"replication versions {NEWEST_VERSION + 1} to {NEWEST_VERSION + 2} are supported here, "
        first, second = nodes
        await first.wait_until(lambda node: words in node.transport.failures.get(NodeId("n1"), ""))
        await second.wait_until(lambda node: "are supported here" in node.transport.failures.get(NodeId("n0"), ""))
        assert first.transport.software(NodeId("n1")) is None
        assert not first.replica.core.ready


def earlier_hello() -> bytes:
    """The hello of a replica that says nothing of its software, as the first release did."""
    addresses = {name: f"127.0.0.1:{number}" for number, name in enumerate(NAMES, 1)}
    hello: dict[str, Any] = msgspec.to_builtins(
        Hello(CLUSTER, "g", "n1", "n0", SEGMENT_BYTES, "control", addresses=addresses)
    )
    del hello["software"]
    payload = cbor2.dumps(hello)
    return wire._frame(Kind.HELLO, payload, 0, zlib.crc32(payload, Kind.HELLO))


async def test_peer_of_an_earlier_release(tmp_path: Path) -> None:
    """It is let in, is answered in its version, and may send frames of that only."""
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    node = Node(tmp_path, "n0", ports, versions=(OLDEST_VERSION, NEWEST_VERSION + 1))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        caller = await Caller.open(ports["n0"], node.secrets.current)
        await caller.stream.send_all(caller.tagged(earlier_hello(), wire.PING))
        with trio.fail_after(60):
            while not (data := await caller.stream.receive_some()):
                pass
        ((kind, frame, _),), _ = wire.split_tagged(memoryview(bytes(data)), 16)
        welcome = wire.decode_cold(kind, frame[8:])
        assert (welcome.refusal, welcome.version) == (None, HANDSHAKE_VERSION)
        newer = bytes(wire.with_version(wire.PING, NEWEST_VERSION + 1))
        await caller.stream.send_all(newer + bytes(16))
        assert await received(caller.stream) == b""
        assert any("version 4 came, this replica speaks version 3" in text for text in node.transport.refusals)
        nursery.cancel_scope.cancel()
