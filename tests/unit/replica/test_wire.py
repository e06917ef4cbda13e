"""Frames between replicas: every message comes out as it went in, and no flipped bit gets through unnoticed."""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import ConfState, NodeId
from raftlog.consensus.confchange import encode_conf
from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
    Denial,
    Heartbeat,
    HeartbeatResp,
    Message,
    PreVoteReq,
    PreVoteResp,
    ReadIndexReq,
    ReadIndexResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.types import LogId, Span
from raftlog.log_numbers import LogIndex, Term
from raftlog.net import frames as wire
from raftlog.net.frames import Hello, InstallOffer, Kind, RangeReq, RangeResp, Welcome, WireError
from raftlog.net.versions import HANDSHAKE_VERSION
from raftlog.segment.codec import CONFIG, HEADER_BYTES, NOOP, NORMAL, frame, initial_chain, scan_entries
from raftlog.segment.errors import FrameCorrupt
from tests.support.log_values import log_id

LEADER, FOLLOWER = NodeId("n0"), NodeId("n1")
CHAIN = initial_chain("c")

numbers = st.integers(0, 2**63 - 1)
ids = st.builds(LogId, numbers, numbers)
names = st.text(st.characters(codec="utf-8"), max_size=20)
ends: dict[str, Any] = {"src": names.map(NodeId), "dst": names.map(NodeId), "term": numbers}
tables = st.dictionaries(names, names, max_size=3)
denials = st.none() | st.sampled_from(Denial)

COLD = st.one_of(
    st.builds(Hello, names, names, names, names, numbers, names, names, names, tables, numbers, tables),
    st.builds(Welcome, names, st.none() | names, names, tables, numbers),
    st.builds(ReadIndexReq, **ends, ctx=numbers),
    st.builds(ReadIndexResp, **ends, ctx=numbers, index=st.none() | numbers, last=numbers),
    st.builds(InstallOffer, numbers, st.binary(max_size=50)),
    st.builds(RangeReq, st.sampled_from(["log", "snapshot"]), numbers, numbers, numbers),
    st.builds(
        RangeResp, st.sampled_from(["log", "snapshot"]), numbers, numbers, st.binary(max_size=50), st.none() | names
    ),
    st.builds(PreVoteReq, **ends, next_term=numbers, last=ids),
    st.builds(PreVoteResp, **ends, granted=st.booleans(), last=ids, denial=denials),
    st.builds(VoteReq, **ends, last=ids, force=st.booleans()),
    st.builds(VoteResp, **ends, granted=st.booleans(), denial=denials),
    st.builds(Heartbeat, **ends, seq=numbers, commit=numbers, read_round=numbers),
    st.builds(
        HeartbeatResp,
        **ends,
        seq=numbers,
        read_round=numbers,
        durable=numbers,
        disk_ok=st.booleans(),
        applied=numbers,
    ),
    st.builds(TimeoutNow, **ends),
)


def only_frame(data: bytes | bytearray) -> tuple[Kind, memoryview]:
    frames, consumed = wire.split_frames(memoryview(data))
    assert consumed == len(data)
    (found,) = frames
    return found


@given(COLD)
def test_decoded_cold_message_equals_the_encoded_one(value: Any) -> None:
    kind, payload = only_frame(wire.encode_cold(value))
    decoded = wire.decode_cold(kind, payload)
    assert decoded == value
    assert type(decoded) is type(value)


@given(
    st.builds(
        AppendResp,
        src=st.just(FOLLOWER),
        dst=st.just(LEADER),
        term=numbers,
        seq=numbers,
        ok=st.booleans(),
        accepted=numbers,
        durable=numbers,
        hint=ids,
    )
)
def test_decoded_acknowledgement_equals_the_encoded_one(value: AppendResp) -> None:
    kind, payload = only_frame(wire.encode(value))
    assert kind is Kind.APPENDED
    assert wire.decode_appended(payload, FOLLOWER, LEADER) == value


def append_frame(
    bodies: list[bytes], annotations: list[bytes], *, first: int = 5, term: int = 3, kinds: list[int] | None = None
) -> tuple[AppendReq, bytes, list[bytes]]:
    """A request, its frame, and its entries as they lie in the log."""
    chain, pos = CHAIN, 1000
    entries: list[bytes] = []
    spans: list[Span] = []
    for number, body in enumerate(bodies):
        kind = NORMAL if kinds is None else kinds[number]
        header, chain = frame(kind, LogIndex(first + number), Term(term), pos, body, chain)
        entries.append(header + body)
        pos += len(header) + len(body)
    refs = scan_entries(memoryview(b"".join(entries)), CHAIN) if entries else []
    spans = list(wire.spans_of(refs, bodies.__getitem__))
    request = AppendReq(LEADER, FOLLOWER, Term(term), log_id(first - 1, 2), tuple(spans), commit=LogIndex(4), seq=9)
    buffers = wire.encode_append(request, CHAIN, list(entries), sum(map(len, entries)), annotations)
    return request, b"".join(buffers), entries


@given(st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=20), st.sampled_from([NORMAL, NOOP])), max_size=6))
def test_decoded_entries_equal_the_encoded_ones(items: list[tuple[bytes, bytes, int]]) -> None:
    bodies = [body for body, _, _ in items]
    annotations = [annotation for _, annotation, _ in items]
    kinds = [kind for _, _, kind in items]
    request, data, entries = append_frame(bodies, annotations, kinds=kinds)
    kind, payload = only_frame(data)
    assert kind is Kind.APPEND
    decoded = wire.decode_append(payload, LEADER, FOLLOWER)
    assert decoded.request == request
    assert [bytes(entry) for entry in decoded.entries] == entries
    assert decoded.annotations == annotations
    assert [bytes(entry[HEADER_BYTES:]) for entry in decoded.entries] == bodies
    assert sum(span.last - span.first + 1 for span in decoded.request.spans) == len(items)


def test_each_configuration_entry_is_its_own_span() -> None:
    conf = ConfState((LEADER, FOLLOWER), (), (NodeId("n2"),), ((NodeId("n2"), "h:1"),))
    kinds = [NORMAL, CONFIG, CONFIG, NORMAL]
    _, data, _ = append_frame([b"a", encode_conf(conf), encode_conf(ConfState()), b"b"], [b""] * 4, kinds=kinds)
    spans = wire.decode_append(only_frame(data)[1], LEADER, FOLLOWER).request.spans
    assert [span.kind for span in spans] == kinds
    assert [span.conf for span in spans] == [None, conf, ConfState(), None]


@pytest.mark.parametrize("body", [b"", b"\xff", cbor2.dumps([]), encode_conf(ConfState())[:-1], b"\xf6" * 100_000])
def test_invalid_configuration_is_refused(body: bytes) -> None:
    header, _ = frame(CONFIG, LogIndex(5), Term(3), 1000, body, CHAIN)
    request = AppendReq(LEADER, FOLLOWER, Term(3), log_id(4, 2), (), commit=LogIndex(4), seq=9)
    data = b"".join(wire.encode_append(request, CHAIN, [header + body], len(header) + len(body), [b""]))
    with pytest.raises(WireError, match="entry 5"):
        wire.decode_append(only_frame(data)[1], LEADER, FOLLOWER)


def decode(kind: Kind, payload: memoryview) -> object:
    """What a follower makes of a frame of its leader."""
    if kind is Kind.APPEND:
        decoded = wire.decode_append(payload, LEADER, FOLLOWER)
        return decoded.request, [bytes(entry) for entry in decoded.entries], decoded.annotations
    if kind is Kind.APPENDED:
        return wire.decode_appended(payload, LEADER, FOLLOWER)
    return wire.decode_cold(kind, payload)


@pytest.mark.parametrize(
    ("bodies", "annotations"),
    [([b"first", b"", b"third" * 5], [b"hint", b"", b"x"]), ([b"only"], [b""]), ([], [])],
    ids=["annotated", "plain", "empty"],
)
def test_flipped_bit_in_an_append_frame_is_rejected(bodies: list[bytes], annotations: list[bytes]) -> None:
    """It is refused, or the frame seems longer and the connection waits for bytes that never fit."""
    _, data, _ = append_frame(bodies, annotations)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            frames, _ = wire.split_frames(memoryview(damaged))
            for kind, payload in frames:
                taken = decode(kind, payload)
                pytest.fail(f"bit {bit % 8} of byte {bit // 8} was not noticed: {taken}")
        except (WireError, FrameCorrupt):
            continue
        assert bit < 32, f"bit {bit % 8} of byte {bit // 8} made the frame vanish"


@given(COLD, st.data())
def test_flipped_bit_in_a_cold_frame_is_never_decoded(value: Any, data: st.DataObject) -> None:
    damaged = bytearray(wire.encode_cold(value))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(WireError, FrameCorrupt):
        frames, _ = wire.split_frames(memoryview(damaged))
        assert [decode(kind, payload) for kind, payload in frames if kind is not Kind.PING] == []


def test_vote_does_not_pass_for_another_message() -> None:
    """The kinds differ in one bit, and the fields of one are among those of the other."""
    data = bytearray(wire.encode_cold(VoteReq(LEADER, FOLLOWER, Term(1), last=log_id(1, 1))))
    assert data[4] ^ Kind.TIMEOUT_NOW == 0b10
    data[4] = Kind.TIMEOUT_NOW
    with pytest.raises(WireError, match="checksum"):
        decode(*only_frame(data))


@given(st.binary(max_size=200), st.sampled_from(Kind))
@settings(max_examples=300)
def test_checksummed_frames_decode_or_are_refused(body: bytes, kind: Kind) -> None:
    data = struct.pack(">IBBHI", 8 + len(body), kind, HANDSHAKE_VERSION, 0, zlib.crc32(body, kind)) + body
    found, payload = only_frame(data)
    with contextlib.suppress(WireError, FrameCorrupt):
        decode(found, payload)


@pytest.mark.parametrize(
    "body",
    [
        b"\x81" * 100_000,
        b"\xc1" * 10_000,
        b"\x9b" + b"\x7f" + b"\xff" * 7,
        b"\x5b" + b"\x7f" + b"\xff" * 7,
        b"\xbb" + b"\x00" * 4 + b"\xff" * 4,
        cbor2.dumps(cbor2.CBORTag(30, [1, 0])),
        cbor2.dumps(cbor2.CBORTag(35, "(")),
        cbor2.dumps({"src": "n0"}),
        cbor2.dumps([]),
        b"",
    ],
)
def test_invalid_cbor_is_refused(body: bytes) -> None:
    for kind in (Kind.HELLO, Kind.VOTE, Kind.HEARTBEAT_RESPONSE):
        data = struct.pack(">IBBHI", 8 + len(body), kind, HANDSHAKE_VERSION, 0, zlib.crc32(body, kind)) + body
        with pytest.raises(WireError):
            decode(*only_frame(data))


def test_frames_are_cut_at_every_place() -> None:
    message: Message = Heartbeat(LEADER, FOLLOWER, Term(1), seq=2, commit=LogIndex(3))
    first, second = wire.encode_cold(message), append_frame([b"body"], [b""])[1]
    data = first + wire.PING + second
    complete = [len(first), len(first) + len(wire.PING), len(data)]
    for cut in range(len(data) + 1):
        frames, consumed = wire.split_frames(memoryview(data)[:cut])
        whole = [end for end in complete if end <= cut]
        assert len(frames) == len(whole)
        assert consumed == (whole[-1] if whole else 0)


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        (struct.pack(">IBBHI", 7, 5, HANDSHAKE_VERSION, 0, 0), "the frame has 7 bytes"),
        (struct.pack(">IBBHI", 0, 5, HANDSHAKE_VERSION, 0, 0), "the frame has 0 bytes"),
        (struct.pack(">IBBHI", wire.FRAME_BYTES_MAX + 1, 5, HANDSHAKE_VERSION, 0, 0), "the frame has 33554433 bytes"),
        (struct.pack(">IBBHI", 2**32 - 1, 5, HANDSHAKE_VERSION, 0, 0), "the frame has 4294967295 bytes"),
        (struct.pack(">IBBHI", 8, 0, HANDSHAKE_VERSION, 0, 0), "unknown frame kind 0"),
        (struct.pack(">IBBHI", 8, 255, HANDSHAKE_VERSION, 0, 0), "unknown frame kind 255"),
        (struct.pack(">IBBHI", 8, 5, 1, 0, 0), "version 1 came, this replica speaks version 3"),
        (struct.pack(">IBBHI", 8, 5, HANDSHAKE_VERSION, 9, 0), "reserved field of the frame: expected 0, got 9"),
    ],
)
def test_impossible_frames_are_refused(prefix: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        wire.split_frames(memoryview(prefix))


def test_contradictory_append_frame_is_refused() -> None:
    """With checksums that are right: only a peer with a bug sends these."""
    header, _ = frame(NORMAL, LogIndex(5), Term(3), 1000, b"body", CHAIN)
    entry = header + b"body"

    def refuse(*, prev: int, nbytes: int, count: int, data: bytes, tail: bytes = b"") -> str:
        fixed = struct.pack(">QQQQQIIH", 3, prev, 2, 4, 9, CHAIN, nbytes, count)
        lengths = b"".join(struct.pack(">I", len(tail)) for _ in range(count))
        crc = zlib.crc32(tail, zlib.crc32(fixed + lengths, Kind.APPEND))
        with pytest.raises((WireError, FrameCorrupt)) as refused:
            wire.decode_append(memoryview(struct.pack(">I", crc) + fixed + lengths + data + tail), LEADER, FOLLOWER)
        return str(refused.value)

    assert "announces 2" in refuse(prev=4, nbytes=len(entry), count=2, data=entry)
    assert "announces 0" in refuse(prev=4, nbytes=len(entry), count=0, data=entry)
    assert "announces 1" in refuse(prev=4, nbytes=0, count=1, data=b"")
    assert "after index 7" in refuse(prev=7, nbytes=len(entry), count=1, data=entry)
    assert "entry bytes" in refuse(prev=4, nbytes=2**32 - 1, count=1, data=entry)
    assert "cut off" in refuse(prev=4, nbytes=len(entry) - 1, count=1, data=entry[:-1])
