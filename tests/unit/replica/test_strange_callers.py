"""The replication port hears from strangers and from peers with bugs: they are cut off, the replica goes on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from raftlog import NodeId
from raftlog.consensus.messages import AppendReq, AppendResp, Heartbeat, VoteReq
from raftlog.log_numbers import NO_INDEX, Term
from raftlog.net import authentication, frames
from raftlog.net.authentication import CHALLENGE_BYTES, NONCE_BYTES
from raftlog.net.caller_handshake import PeerRefused
from raftlog.net.frames import Hello, Kind, RangeReq, Welcome, WireError
from raftlog.net.transport import NOT_RECORDED, UNIDENTIFIED_MAX
from raftlog.net.versions import HANDSHAKE_VERSION
from tests.support.log_values import log_id
from tests.support.strange_callers import ADDRESSES, HELLO, check_unharmed, connected_peer, lonely
from tests.unit.replica.caller import Caller, call, received
from tests.unit.replica.group import CLUSTER, SEGMENT_BYTES

N0, N1 = NodeId("n0"), NodeId("n1")

PAIR = {"n0": "x:1", "n1": "x:2"}


def damaged(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


def append(data: bytes = b"") -> bytes:
    request = AppendReq(N1, N0, Term(1), log_id(0, 0), (), NO_INDEX, 1)
    return b"".join(frames.encode_append(request, 0, [data] if data else [], len(data), [b""] if data else []))


CALL = frames.encode_opening(Kind.CALL, authentication.call(bytes(NONCE_BYTES), [bytes(32)]))
VOTE = frames.encode_cold(VoteReq(N1, N0, Term(1), last=log_id(0, 0)))

STRANGERS = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "a length beyond all measure": struct.pack(">IBBHI", 2**32 - 1, Kind.CALL, HANDSHAKE_VERSION, 0, 0),
    "a call that does not end": struct.pack(">IBBHI", 10**6, Kind.CALL, HANDSHAKE_VERSION, 0, 0) + bytes(2000),
    "two calls": 2 * CALL,
    "a damaged call": damaged(CALL, 40),
    "a challenge instead of a call": frames.encode_opening(Kind.CHALLENGE, bytes(CHALLENGE_BYTES)),
    "a length a byte too large": struct.pack(
        ">IBBHI", frames.FRAME_BYTES_MAX + 1, Kind.APPEND, HANDSHAKE_VERSION, 0, 0
    ),
    "an unknown kind": struct.pack(">IBBHI", 8, 77, HANDSHAKE_VERSION, 0, 0),
    "a hello": frames.encode_cold(HELLO),
    "a heartbeat": frames.encode_cold(Heartbeat(N1, N0, Term(2**62), seq=1, commit=NO_INDEX)),
    "a request for the log": frames.encode_cold(RangeReq("log", 0, 1024 * 1024)),
    "a vote": VOTE,
    "entries": append(),
    "an acknowledgement": frames.encode_appended(
        AppendResp(N1, N0, Term(1), 1, True, NO_INDEX, NO_INDEX, log_id(0, 0))
    ),
    "a welcome": frames.encode_cold(Welcome("x")),
}

PEERS_WITH_BUGS = {
    "garbage": b"\xff" * 64,
    "a second hello": frames.encode_cold(HELLO),
    "a welcome": frames.encode_cold(Welcome("x")),
    "a damaged vote": damaged(VOTE, 30),
    "a vote for another node": frames.encode_cold(VoteReq(N1, NodeId("n2"), Term(1), last=log_id(0, 0))),
    "a vote of another node": frames.encode_cold(VoteReq(NodeId("n2"), N0, Term(1), last=log_id(0, 0))),
    "a heartbeat of itself": frames.encode_cold(Heartbeat(N0, N0, Term(1), seq=1, commit=NO_INDEX)),
    "an entry that is none": append(bytes(100)),
    "damaged entries": damaged(append(), 20),
    "a short acknowledgement": struct.pack(">IBBHI", 8, Kind.APPENDED, HANDSHAKE_VERSION, 0, 0),
}


TLS_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)


async def test_log_names_unexpected_tls_of_a_replica(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (_, port):
        with capture_logs() as log:
            assert await received(await call(port, TLS_CLIENT_HELLO)) == b""
        (line,) = [line for line in log if line["event"] == "peer_message_invalid"]
        assert "TLS" in line["error"]


async def test_unknown_callers_are_disconnected(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        last_index = node.log.last_index
        for what, data in STRANGERS.items():
            with capture_logs() as log:
                assert await received(await call(port, data)) == b"", what
            assert [line["event"] for line in log if line["event"] != "peer_unreachable"] == ["peer_message_invalid"], (
                what
            )
            await check_unharmed(node, port, last_index)


async def test_oldest_unidentified_connections_are_closed_first(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        peer = (await connected_peer(node, port)).stream
        strangers = [await call(port) for _ in range(UNIDENTIFIED_MAX + 20)]
        for stranger in strangers[:20]:
            assert await received(stranger) == b""
        await check_unharmed(node, port, node.log.last_index)  # it is let in, whoever waits there
        with trio.move_on_after(0) as looking:
            await peer.receive_some()
        assert looking.cancelled_caught, "the peer was cut off"
        for stream in (peer, *strangers):
            await trio.aclose_forcefully(stream)


async def test_unknown_callers_do_not_interrupt_handshakes_from_another_host(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        member = await Caller.open(port, node.secrets.current)
        strangers = [await call(port, source="127.0.0.2") for _ in range(UNIDENTIFIED_MAX + 20)]
        for stranger in strangers[:20]:
            assert await received(stranger) == b""
        assert (await member.greet(HELLO)).refusal is None
        for stream in (member.stream, *strangers):
            await trio.aclose_forcefully(stream)


async def test_member_recording_its_directory_is_redialled_without_a_warning(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, _):
        refused_twice = trio.Event()
        callers: list[object] = []

        async def refuse(*caller: object, use_tls: bool) -> object:
            if caller in callers:
                refused_twice.set()
            callers.append(caller)
            raise PeerRefused(NOT_RECORDED)

        node.transport._dial = refuse  # type: ignore[assignment, method-assign]
        with capture_logs() as log, trio.fail_after(60):
            await refused_twice.wait()
        assert not [line for line in log if line["event"] == "peer_unreachable" and NOT_RECORDED in line["error"]]
        assert NOT_RECORDED in "".join(node.transport.failures.values())


def as_sent(caller: Caller, data: bytes) -> bytes:
    """With a good tag, if it is a frame at all."""
    try:
        return caller.tagged(data)
    except (WireError, ValueError):
        return data


async def test_peers_that_send_invalid_messages_are_disconnected(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        last_index = node.log.last_index
        for what, data in PEERS_WITH_BUGS.items():
            caller = await connected_peer(node, port)
            with capture_logs() as log:
                await caller.stream.send_all(caller.tagged(frames.PING) + as_sent(caller, data))
                assert await received(caller.stream) == b"", what
            assert [line["event"] for line in log if line["event"] != "peer_unreachable"] == ["peer_message_invalid"], (
                what
            )
            await check_unharmed(node, port, last_index)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (Hello("ff" * 16, "g", "n1", "n0", SEGMENT_BYTES, "bulk", addresses=ADDRESSES), ("'g'", CLUSTER, "ff" * 16)),
        (Hello(CLUSTER, "h", "n1", "n0", SEGMENT_BYTES, "bulk", addresses=ADDRESSES), ("'g'", "'h'")),
        (Hello(CLUSTER, "g", "n1", "n2", SEGMENT_BYTES, "bulk", addresses=ADDRESSES), ("'n0'", "'n2'")),
        (Hello(CLUSTER, "g", "n0", "n0", SEGMENT_BYTES, "bulk", addresses=ADDRESSES), ("'n0' is this node itself",)),
        (Hello(CLUSTER, "g", "n9", "n0", SEGMENT_BYTES, "bulk"), ("'n9' is not a member",)),
        (Hello(CLUSTER, "g", "n1", "n0", 99, "bulk", addresses=ADDRESSES), (str(SEGMENT_BYTES), "99 at 'n1'")),
        (
            Hello(CLUSTER, "g", "n1", "n0", SEGMENT_BYTES, "bulk", addresses={"n0": "x:1", "n1": "x:2"}),
            ("['n0', 'n1'] at 'n1'",),
        ),
    ],
    ids=["cluster", "group", "target", "itself", "stranger", "segments", "members"],
)
async def test_callers_of_another_group_are_refused_with_a_reason(
    tmp_path: Path, hello: Hello, words: tuple[str, ...]
) -> None:
    async with lonely(tmp_path, refusal_log_seconds=60.0) as (node, port):
        refusals: list[str | None] = []
        with capture_logs() as log:
            for _ in range(2):
                caller = await Caller.open(port, node.secrets.current)
                answer = await caller.greet(hello)
                assert await received(caller.stream) == b""
                assert all(word in str(answer.refusal) for word in words), answer.refusal
                refusals.append(answer.refusal)
        (line,) = [line for line in log if line["event"] == "peer_refused"]  # once, however often it calls
        assert [line["error"]] * 2 == refusals
        await check_unharmed(node, port, node.log.last_index)


async def test_frames_after_a_refused_hello_are_ignored(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        term = node.replica.core.term
        wrong = frames.encode_cold(Hello(CLUSTER, "h", "n1", "n0", SEGMENT_BYTES, "control", addresses=ADDRESSES))
        vote = frames.encode_cold(VoteReq(N1, N0, term + 50, last=log_id(10**6, term + 50), force=True))
        caller = await Caller.open(port, node.secrets.current)
        await caller.stream.send_all(caller.tagged(wrong, frames.encode_cold(HELLO), vote))
        await received(caller.stream)
        await check_unharmed(node, port, node.log.last_index)
        assert node.replica.core.term < term + 50


async def test_varied_mistakes_of_strangers_do_not_silence_reports_about_members(tmp_path: Path) -> None:
    async with lonely(tmp_path, refusal_log_seconds=60.0) as (node, port):
        with capture_logs() as log:
            for version in range(256):
                await received(await call(port, struct.pack(">IBBHI", 8, Kind.HELLO, version, 0, 0)))
            caller = await Caller.open(port, node.secrets.current)
            answer = await caller.greet(Hello(CLUSTER, "h", "n1", "n0", SEGMENT_BYTES, "control", addresses=ADDRESSES))
            await received(caller.stream)
        refused = [line["error"] for line in log if line["event"] == "peer_refused"]
        assert refused[-1] == answer.refusal
        assert len(refused) <= 4, "numbers aside, it is the same mistake again and again"


async def test_mixed_version_cluster(tmp_path: Path) -> None:
    """A caller that speaks another version reads our version in the prefix of what it gets, and both are logged."""
    theirs = HANDSHAKE_VERSION + 1
    async with lonely(tmp_path) as (node, port):
        with capture_logs() as log:
            data = await received(await call(port, struct.pack(">IBBHI", 8, Kind.HELLO, theirs, 0, 0)))
        assert data == frames.encode_opening(Kind.CHALLENGE, b"")
        assert data[5] == HANDSHAKE_VERSION
        words = f"version {theirs} came, this replica speaks version {HANDSHAKE_VERSION}"
        assert [words in line["error"] for line in log if line["event"] == "peer_refused"] == [True]
        await check_unharmed(node, port, node.log.last_index)
