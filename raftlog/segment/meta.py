"""The vote file: term, vote, and markers of what was durable, in two slots written alternately.

A slot is 4 KiB: magic, format version, sequence number, payload length, CRC-32 of all that and the payload, then the
payload in CBOR. A write goes to the slot that does not have the newest state, and is synced before the next one begins.
So a crash damages at most one slot, and the other one has the previous state: the state of the last acknowledged write.

Every later format version keeps the first 28 bytes of a slot and its checksum. A file with an intact slot of a newer
version is refused, whatever the other slot contains: that is older, and may have forgotten a vote.

A later bit flip may damage the newest slot. So the writer follows every change of term or vote with a second write
within a tenth of a second, after which both slots are equal.
"""

from __future__ import annotations

import errno
import struct
import zlib
from typing import Final

import cbor2
import msgspec

from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term
from raftlog.segment.codec import EntryRef, initial_chain
from raftlog.segment.disk import Disk, write_fully
from raftlog.segment.errors import FormatTooNew

SLOT_BYTES: Final = 4096
FILE_NAME: Final = "meta"
_MAGIC: Final = b"rfqmeta\n"
_VERSION: Final = 1
_PREFIX = struct.Struct(">8sIQI")
_CRC = struct.Struct(">I")
_PAYLOAD_AT = _PREFIX.size + _CRC.size
_UNREADABLE: Final = b"\xff" * SLOT_BYTES
NOTES_BYTES_MAX: Final = 3072


class Base(msgspec.Struct, frozen=True):
    """The beginning of a log: ``index`` and ``term`` of the entry before its first one, and the chain after that entry.

    ``pos`` is the physical offset at which the first file begins.
    """

    index: LogIndex
    term: Term
    pos: int
    chain: int

    @property
    def ref(self) -> EntryRef:
        """A placeholder for the entry before the first one, as if it ended where the first file begins."""
        return EntryRef(self.index, self.term, 0, self.pos, 0, self.chain)


class MetaState(msgspec.Struct, frozen=True):
    """The state of a node besides its log.

    ``durable_pos`` and ``commit_hint`` may lag, but are never ahead: everything below ``durable_pos`` was synced, and
    the entry ``commit_hint`` was committed and synced here. ``durable_chain`` is the chain after the entry that ends at
    ``durable_pos``; None if a version without it wrote this. ``clean`` says that the log was closed, ``boot_id``
    identifies the boot of the machine. ``cut_end`` is the end of the zeros with which a cut is overwriting removed
    entries; 0 without one. ``base`` is None for a log that has its beginning. ``store_id`` was drawn when the directory
    was created (empty in old directories until they are opened). ``notes`` are small values of the log's user, opaque
    here.
    """

    cluster_id: str
    node_id: str
    segment_bytes: int
    term: Term = NO_TERM
    voted_for: str | None = None
    commit_hint: LogIndex = NO_INDEX
    durable_pos: int = 0
    durable_chain: int | None = None
    clean: bool = False
    boot_id: str = ""
    base: Base | None = None
    cut_end: int = 0
    store_id: str = ""
    notes: dict[str, bytes] = {}

    @property
    def starts_at(self) -> Base:
        """Return the base at which the log begins."""
        return self.base or Base(NO_INDEX, NO_TERM, 0, initial_chain(self.cluster_id))


def encode_slot(state: MetaState, seq: int) -> bytes:
    """Encode one slot, `SLOT_BYTES` long."""
    payload = cbor2.dumps(msgspec.to_builtins(state, builtin_types=(bytes,)))
    assert len(payload) <= SLOT_BYTES - _PAYLOAD_AT, f"meta payload of {len(payload)} bytes does not fit a slot"
    prefix = _PREFIX.pack(_MAGIC, _VERSION, seq, len(payload))
    crc = zlib.crc32(payload, zlib.crc32(prefix))
    return (prefix + _CRC.pack(crc) + payload).ljust(SLOT_BYTES, b"\0")


def decode_slot(data: bytes, path: str = FILE_NAME) -> tuple[int, MetaState] | None:
    """Sequence number and state, or None if the slot is empty or damaged.

    Raises FormatTooNew, which names ``path``, for an intact one of a newer version.
    """
    if len(data) < _PAYLOAD_AT:
        return None
    magic, version, seq, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC or version < _VERSION or length > len(data) - _PAYLOAD_AT:
        return None
    (crc,) = _CRC.unpack_from(data, _PREFIX.size)
    payload = data[_PAYLOAD_AT : _PAYLOAD_AT + length]
    if zlib.crc32(payload, zlib.crc32(data[: _PREFIX.size])) != crc:
        return None
    if version > _VERSION:
        raise FormatTooNew(path, "the vote file", version, _VERSION)
    return seq, msgspec.convert(cbor2.loads(payload), MetaState)


def read_slots(disk: Disk, fd: int) -> list[bytes]:
    """Both slots of an open vote file; an unreadable one counts as damaged.

    Raises OSError.
    """
    slots: list[bytes] = []
    for number in (0, 1):
        try:
            slots.append(disk.pread(fd, SLOT_BYTES, number * SLOT_BYTES))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            slots.append(_UNREADABLE)
    return slots


def newest_state(slots: bytes, path: str = FILE_NAME) -> MetaState | None:
    """The newest state in a vote file; None without a valid slot. Raises the errors of `decode_slot`."""
    slots_read = (decode_slot(slots[at : at + SLOT_BYTES], path) for at in (0, SLOT_BYTES))
    newest = max((slot for slot in slots_read if slot is not None), key=lambda slot: slot[0], default=None)
    return None if newest is None else newest[1]


class MetaFile:
    """The open vote file of a directory. ``state`` is its content, or None without a valid slot.

    Raises FormatTooNew, and OSError; the file is closed then.

    The state read is durable only after the first `write`; before, a power cut may restore the previous one.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._fd = disk.open(path, create=True)
        if disk.size(self._fd) < 2 * SLOT_BYTES:
            # A disk that fills up later must not keep a node from voting.
            disk.allocate(self._fd, 2 * SLOT_BYTES)
        try:
            slots = read_slots(disk, self._fd)
            states = [decode_slot(data, path) for data in slots]
        except BaseException:
            self.close()
            raise
        valid = [slot for slot in states if slot is not None]
        newest = max(valid, key=lambda slot: slot[0], default=None)
        self.state: MetaState | None = None if newest is None else newest[1]
        self._seq = 0 if newest is None else newest[0]
        # The state read may be only in the system's cache, if its sync failed, with an older slot on the disk. The
        # other slot is on the disk, and must not be overwritten before this one is there, too.
        self._undurable = b"" if newest is None else slots[states.index(newest)]
        # Continue with the other slot: after a fault the parity of the sequence is arbitrary.
        self._newest_slot = 1 if newest is None else states.index(newest)
        self.damaged_slots = sum(
            slot is None and data.count(0) != len(data) for slot, data in zip(states, slots, strict=True)
        )

    def write(self, state: MetaState) -> None:
        """Make ``state`` durable. After an `OSError` the object must not be used for writing again."""
        if (old := self.state) is not None:
            was, now = (old.cluster_id, old.segment_bytes), (state.cluster_id, state.segment_bytes)
            assert was == now, f"{self.path}: of {was}, not of {now}"
        assert state.durable_pos >= 0, f"{self.path}: durable up to {state.durable_pos}"
        self.write_again()
        slot = 1 - self._newest_slot
        data = encode_slot(state, self._seq + 1)
        write_fully(self._disk.write_synced, self._fd, [data], slot * SLOT_BYTES)
        self._newest_slot = slot
        self._seq += 1
        self.state = state

    def write_again(self) -> None:
        """Make the content at the opening durable: its sync may have failed. Raises the errors of `write`."""
        if self._undurable:
            write_fully(self._disk.write_synced, self._fd, [self._undurable], self._newest_slot * SLOT_BYTES)
            self._undurable = b""

    def close(self) -> None:
        """Close the file; nothing is written."""
        self._disk.close(self._fd)
