"""Frames between replicas: a checksummed prefix, a message, and log entries in their format on disk.

===========  =====================================================================================================
bytes        field
===========  =====================================================================================================
0-3          length of what follows, unsigned
4            kind (`Kind`)
5            format version: `HANDSHAKE_VERSION` up to the welcome, then the one that both sides agreed on
6-7          zero
8-11         CRC-32, seeded with the kind, of what is behind it; without the entries, which carry their own checksums
12-          the message: packed for what the data path sends, CBOR for the rest
===========  =====================================================================================================

After each frame of an authenticated connection, and not counted in its length, is a tag of 16 bytes
(`raftlog.net.authentication.Seal`). It does not cover the log entries of an append request: that would cost a leader
more than 3 % of its CPU time.

An append request contains, after its fixed part, the length of one *annotation* per entry, the entries back to back,
and the annotations. An annotation is an opaque hint of the application about an entry; it is never written to disk. All
integers are big-endian. The codec is pure: bytes in, values out.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import cbor2
import msgspec
from msgspec import Meta

from raftlog.consensus.confchange import decode_conf
from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
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
from raftlog.consensus.types import NUMBER_MAX, ConfState, EntryKind, LogId, NodeId, Number, Span
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.net.versions import HANDSHAKE_VERSION, Software
from raftlog.safe_cbor import decode_safe
from raftlog.segment.codec import HEADER_BYTES, EntryRef, scan_entries

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest frame: an append message contains at least one entry, whatever its size."""

RANGE_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of the log or of a snapshot in one frame."""
MANIFEST_BYTES_MAX: Final = 64 * 1024
REFUSAL_CHARS_MAX: Final = 1000

_PREFIX = struct.Struct(">IBBHI")
_APPEND = struct.Struct(">QQQQQIIH")
_APPENDED = struct.Struct(">QQ?QQQQ")
_LENGTH = struct.Struct(">I")
_VERSION_AT: Final = 5
_TLS_STARTS = (0x1603, 0x1503)
"""The first two bytes of a TLS connection: a handshake or an alert record of version 3."""


class WireError(Exception):
    """A peer sent an invalid frame. The connection is closed."""


class OtherVersion(WireError):
    """A frame has format version ``theirs`` instead of ``ours``."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(f"frame format version {theirs} came, this replica speaks version {ours}")
        self.theirs = theirs
        self.ours = ours


class Kind(enum.IntEnum):
    """The content of a frame."""

    HELLO = 1
    WELCOME = 2
    APPEND = 3
    APPENDED = 4
    HEARTBEAT = 5
    HEARTBEAT_RESPONSE = 6
    PRE_VOTE = 7
    PRE_VOTE_RESPONSE = 8
    VOTE = 9
    VOTE_RESPONSE = 10
    TIMEOUT_NOW = 11
    PING = 12
    READ_INDEX = 13
    READ_INDEX_RESPONSE = 14
    INSTALL_OFFER = 15
    RANGE = 16
    RANGE_RESPONSE = 17
    CALL = 18
    CHALLENGE = 19


class Hello(msgspec.Struct, frozen=True):
    """The first frame of an authenticated caller: caller, target, and log.

    ``incarnation`` differs for every start of a process, ``store_id`` for every directory. ``stores`` are the members'
    directories known to the caller. ``addresses`` are the members of the configuration set by entry ``conf_index``, and
    their addresses; 0 is the group's initial one. ``software`` includes the supported format versions for frames after
    the welcome.
    """

    cluster_id: str
    group: str
    source: str
    target: str
    segment_bytes: int
    lane: str
    incarnation: str = ""
    store_id: str = ""
    stores: dict[str, str] = {}
    conf_index: LogIndex = NO_INDEX
    addresses: dict[str, str] = {}
    software: Software = Software()


class Welcome(msgspec.Struct, frozen=True):
    """The answer to `Hello`: the listener, and the reason if the caller is refused. Fields as there.

    ``version`` is the version of the following frames.
    """

    incarnation: str
    refusal: str | None = None
    store_id: str = ""
    stores: dict[str, str] = {}
    conf_index: LogIndex = NO_INDEX
    software: Software = Software()
    version: int = HANDSHAKE_VERSION


class InstallOffer(msgspec.Struct, frozen=True):
    """Tells a peer that the log has deleted what it needs. ``manifest`` describes what to fetch instead."""

    term: Number
    manifest: Annotated[bytes, Meta(max_length=MANIFEST_BYTES_MAX)]


RangeSource = Literal["log", "snapshot", "prefix"]
"""The source of a range. Only replicas that tell where their log begins know ``prefix``: it asks for the manifest of
the closed files before ``pos``, of at most ``nbytes`` bytes.
"""


class RangeReq(msgspec.Struct, frozen=True):
    """Requests ``nbytes`` bytes from ``pos`` on of the log, by physical offset, or of the snapshot with this ``crc``.

    Of the log only committed data, unless ``uncommitted``: for a replica that repairs data it had once.
    """

    source: RangeSource
    pos: Number
    nbytes: Number
    crc: Number = 0
    uncommitted: bool = False


class RangeResp(msgspec.Struct, frozen=True):
    """The response to a `RangeReq`. Without ``data`` the request is refused, for the reason ``refusal``."""

    source: RangeSource
    pos: Number
    nbytes: Number
    data: Annotated[bytes, Meta(max_length=RANGE_BYTES_MAX)] = b""
    refusal: Annotated[str, Meta(max_length=REFUSAL_CHARS_MAX)] | None = None


class Append(msgspec.Struct, frozen=True):
    """An append request with the entries of its spans.

    ``entries[i]`` is header and body of ``refs[i]``; the memory belongs to the receive buffer. ``prev_chain`` is the
    sender's chain value before the first one.
    """

    request: AppendReq
    refs: list[EntryRef]
    entries: list[memoryview]
    annotations: list[bytes]
    prev_chain: int = 0


_COLD: dict[Kind, type[Any]] = {
    Kind.HELLO: Hello,
    Kind.WELCOME: Welcome,
    Kind.HEARTBEAT: Heartbeat,
    Kind.HEARTBEAT_RESPONSE: HeartbeatResp,
    Kind.PRE_VOTE: PreVoteReq,
    Kind.PRE_VOTE_RESPONSE: PreVoteResp,
    Kind.VOTE: VoteReq,
    Kind.VOTE_RESPONSE: VoteResp,
    Kind.TIMEOUT_NOW: TimeoutNow,
    Kind.READ_INDEX: ReadIndexReq,
    Kind.READ_INDEX_RESPONSE: ReadIndexResp,
    Kind.INSTALL_OFFER: InstallOffer,
    Kind.RANGE: RangeReq,
    Kind.RANGE_RESPONSE: RangeResp,
}
_KIND_OF: dict[type[Any], Kind] = {cls: kind for kind, cls in _COLD.items()}


def _frame(kind: Kind, payload: bytes, tail_bytes: int, crc: int) -> bytes:
    length = _PREFIX.size - 4 + len(payload) + tail_bytes
    return _PREFIX.pack(length, kind, HANDSHAKE_VERSION, 0, crc) + payload


def with_version(buffer: bytes | memoryview, version: int) -> bytes | memoryview:
    """Return the first buffer of a frame with a format version. Other buffers are the same in all versions."""
    if buffer[_VERSION_AT] == version:
        return buffer
    return b"".join((buffer[:_VERSION_AT], bytes((version,)), buffer[_VERSION_AT + 1 :]))


PING: Final = _frame(Kind.PING, b"", 0, 0)
"""Keeps a lane from being silent."""


def encode_cold(value: object) -> bytes:
    """Frame a handshake, or another message that is not on the data path."""
    payload = cbor2.dumps(msgspec.to_builtins(value, builtin_types=(bytes,)))
    kind = _KIND_OF[type(value)]
    return _frame(kind, payload, 0, zlib.crc32(payload, kind))


def encode_append(
    request: AppendReq,
    prev_chain: int,
    entries: Sequence[bytes | memoryview],
    entries_bytes: int,
    annotations: Sequence[bytes],
) -> list[bytes | memoryview]:
    """Frame an append request as buffers to send in this order. Does not copy the bytes of entries.

    Everything but entries is in the first buffer and, if there are entries, in the last one.
    """
    header = _APPEND.pack(
        request.term,
        request.prev.index,
        request.prev.term,
        request.commit,
        request.seq,
        prev_chain,
        entries_bytes,
        len(annotations),
    )
    hints = b"".join(annotations)
    head = header + b"".join([_LENGTH.pack(len(a)) for a in annotations])
    crc = zlib.crc32(hints, zlib.crc32(head, Kind.APPEND))
    prefix = _frame(Kind.APPEND, head, entries_bytes + len(hints), crc)
    return [prefix, *entries, hints] if entries else [prefix]


def encode_appended(response: AppendResp) -> bytes:
    """Frame the answer to an append request."""
    payload = _APPENDED.pack(
        response.term,
        response.seq,
        response.ok,
        response.accepted,
        response.durable,
        response.hint.index,
        response.hint.term,
    )
    return _frame(Kind.APPENDED, payload, 0, zlib.crc32(payload, Kind.APPENDED))


def encode_opening(kind: Literal[Kind.CALL, Kind.CHALLENGE], payload: bytes) -> bytes:
    """Frame a message from before the authentication; ``payload`` from `raftlog.net.authentication`."""
    return _frame(kind, payload, 0, zlib.crc32(payload, kind))


def decode_opening(expected: Kind, kind: Kind, payload: memoryview) -> bytes:
    """Return the payload of a frame from `encode_opening`. Raises `WireError`, also for a frame of another kind."""
    if kind is not expected:
        raise WireError(f"a {kind.name} frame came, {expected.name} was expected")
    (crc,) = _LENGTH.unpack_from(payload)
    body = bytes(payload[4:])
    if zlib.crc32(body, kind) != crc:
        raise WireError(f"checksum of a {kind.name} frame differs")
    return body


def split_frames(data: memoryview) -> tuple[list[tuple[Kind, memoryview]], int]:
    """Split all complete frames without tags: (kind, crc and the rest), and their total size.

    All must have the version of a handshake.

    Raises the errors of `split_tagged`.
    """
    frames, consumed = split_tagged(data, 0)
    return [(kind, frame[8:]) for kind, frame, _ in frames], consumed


def split_tagged(
    data: memoryview, tag_bytes: int, wanted_version: int = HANDSHAKE_VERSION
) -> tuple[list[tuple[Kind, memoryview, memoryview]], int]:
    """Split all complete frames followed by a tag of this size: (kind, frame, tag), and their total size.

    Raises:
        OtherVersion: a frame has another version than ``wanted_version``.
        WireError: a length or kind that no replica sends.
    """
    frames: list[tuple[Kind, memoryview, memoryview]] = []
    start, size = 0, len(data)
    while size - start >= _PREFIX.size:
        length, kind, version, zero, _ = _PREFIX.unpack_from(data, start)
        if length >> 16 in _TLS_STARTS:
            raise WireError(
                f"frame of {length} bytes: this is the beginning of a TLS handshake. Replicas do not use TLS"
            )
        if length < _PREFIX.size - 4 or length > FRAME_BYTES_MAX:
            raise WireError(f"the frame has {length} bytes; allowed: {_PREFIX.size - 4} to {FRAME_BYTES_MAX}")
        if zero:
            raise WireError(f"reserved field of the frame: expected 0, got {zero}")
        if version != wanted_version:
            raise OtherVersion(version, wanted_version)
        end = start + 4 + length
        if end + tag_bytes > size:
            break
        try:
            frames.append((Kind(kind), data[start:end], data[end : end + tag_bytes]))
        except ValueError:
            raise WireError(f"unknown frame kind {kind}") from None
        start = end + tag_bytes
    return frames, start


def tagged_parts(kind: Kind, frame: memoryview) -> tuple[memoryview, memoryview]:
    """Return the parts of a frame that its tag covers: before the log entries, and after them.

    Raises:
        WireError: an append request is shorter than it says.
    """
    if kind is not Kind.APPEND:
        return frame, frame[:0]
    if len(frame) < _PREFIX.size + _APPEND.size:
        raise WireError(f"APPEND frame of {len(frame)} bytes is too short")
    entries_bytes, count = _APPEND.unpack_from(frame, _PREFIX.size)[-2:]
    start = _PREFIX.size + _APPEND.size + 4 * count
    if start + entries_bytes > len(frame):
        raise WireError(f"APPEND frame announces {entries_bytes} entry bytes, has {len(frame) - start}")
    return frame[:start], frame[start + entries_bytes :]


def decode_cold(kind: Kind, payload: memoryview) -> Any:
    """Return the value in a frame of `encode_cold`. Raises `WireError`."""
    cls = _COLD.get(kind)
    if cls is None:
        raise WireError(f"frame kind {kind.name} is not expected here")
    (crc,) = _LENGTH.unpack_from(payload)
    body = payload[4:]
    if zlib.crc32(body, kind) != crc:
        raise WireError(f"checksum of a {kind.name} frame differs")
    try:
        return msgspec.convert(decode_safe(bytes(body)), cls)
    except (ValueError, msgspec.ValidationError) as error:
        raise WireError(f"unreadable {kind.name} frame: {error}") from error


def decode_appended(payload: memoryview, source: NodeId, target: NodeId) -> AppendResp:
    """Decode the response to an append request. Raises `WireError`."""
    (crc,) = _LENGTH.unpack_from(payload)
    if len(payload) != 4 + _APPENDED.size or zlib.crc32(payload[4:], Kind.APPENDED) != crc:
        raise WireError("the APPENDED frame is damaged")
    term, seq, ok, accepted, durable, hint_index, hint_term = _APPENDED.unpack_from(payload, 4)
    if (term | seq | accepted | durable | hint_index | hint_term) > NUMBER_MAX:
        raise WireError(f"an APPENDED frame has numbers above {NUMBER_MAX}")
    return AppendResp(
        src=source,
        dst=target,
        term=term,
        seq=seq,
        ok=ok,
        accepted=accepted,
        durable=durable,
        hint=LogId(hint_index, hint_term),
    )


def decode_append(payload: memoryview, source: NodeId, target: NodeId) -> Append:
    """Decode an append request, and verify its entries.

    Raises:
        WireError: the frame is inconsistent.
        raftlog.segment.errors.FrameCorrupt: an entry is damaged or does not chain to its predecessor.
    """
    if len(payload) < 4 + _APPEND.size:
        raise WireError(f"APPEND frame of {len(payload)} bytes is too short")
    (crc,) = _LENGTH.unpack_from(payload)
    term, prev_index, prev_term, commit, seq, prev_chain, entries_bytes, count = _APPEND.unpack_from(payload, 4)
    if (term | prev_index | prev_term | commit | seq) > NUMBER_MAX:
        raise WireError(f"an APPEND frame has numbers above {NUMBER_MAX}")
    entries_start = 4 + _APPEND.size + 4 * count
    entries_end = entries_start + entries_bytes
    if entries_end > len(payload):
        raise WireError(f"APPEND frame announces {entries_bytes} entry bytes, has {len(payload) - entries_start}")
    if zlib.crc32(payload[entries_end:], zlib.crc32(payload[4:entries_start], Kind.APPEND)) != crc:
        raise WireError("checksum of an APPEND frame differs")
    refs = scan_entries(payload[entries_start:entries_end], prev_chain) if entries_bytes else []
    if len(refs) != count or (refs and refs[0].index != prev_index + 1):
        raise WireError(f"APPEND frame with {len(refs)} entries after index {prev_index} announces {count}")
    if refs and refs[-1].term > term:
        raise WireError(f"APPEND frame of term {term} has an entry of another term, {refs[-1].term}")
    entries: list[memoryview] = []
    at = entries_start
    for ref in refs:
        entries.append(payload[at : at + ref.size])
        at += ref.size
    annotations: list[bytes] = []
    at = entries_end
    for number in range(count):
        (length,) = _LENGTH.unpack_from(payload, 4 + _APPEND.size + 4 * number)
        annotations.append(bytes(payload[at : at + length]))
        at += length
    if at != len(payload):
        raise WireError(f"APPEND frame has {len(payload) - at} bytes that belong to no entry")
    request = AppendReq(
        src=source,
        dst=target,
        term=term,
        prev=LogId(prev_index, prev_term),
        spans=spans_of(refs, lambda number: entries[number][HEADER_BYTES:]),
        commit=commit,
        seq=seq,
    )
    return Append(request, refs, entries, annotations, prev_chain)


def spans_of(refs: Sequence[EntryRef], body_of: Callable[[int], bytes | memoryview]) -> tuple[Span, ...]:
    """Divide entries into spans of one term and kind. A configuration is a separate span.

    ``body_of(number)`` returns the body of ``refs[number]``; only called for configurations.

    Raises:
        WireError: a configuration cannot be decoded.
    """
    spans: list[Span] = []
    for number, ref in enumerate(refs):
        if ref.kind == EntryKind.CONFIG:
            conf = _conf_of(ref, body_of(number))
            spans.append(Span(ref.index, ref.index, ref.term, ref.size, EntryKind.CONFIG, conf))
        elif spans and spans[-1].term == ref.term and spans[-1].kind == ref.kind:
            run = spans[-1]
            spans[-1] = Span(run.first, ref.index, run.term, run.nbytes + ref.size, run.kind)
        else:
            spans.append(Span(ref.index, ref.index, ref.term, ref.size, EntryKind(ref.kind)))
    return tuple(spans)


def _conf_of(ref: EntryRef, body: bytes | memoryview) -> ConfState:
    try:
        return decode_conf(body)
    except ValueError as error:
        raise WireError(f"entry {ref.index}: {error}") from error


def encode(message: Message) -> bytes:
    """Frame any consensus message without entries."""
    if type(message) is AppendResp:
        return encode_appended(message)
    return encode_cold(message)
