"""Files of a format version that only newer software understands: refused with both numbers, and nothing is changed.

A flipped bit in a version number is damage, as everywhere else.
"""

from __future__ import annotations

import struct
import zlib

import pytest

from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import FormatTooNew, MetaCorrupt
from raftlog.segment.codec import FLAGS, HEADER, HEADER_BYTES, NORMAL, EntryRef, frame, scan_entries
from raftlog.segment.errors import EntryTooNew, FrameCorrupt
from raftlog.segment.meta import SLOT_BYTES, MetaState, encode_slot
from raftlog.segment.snapshot_install import DIRECTORY_NAME, Manifest, decode_manifest, encode_manifest
from raftlog.segment.verify import StoppedLog
from raftlog.segment_size import stored_segment_bytes
from tests.unit.segment.log_home import CLUSTER_ID, DIRECTORY, LogHome, all_bodies

META = f"{DIRECTORY}/meta"
NEWER = 3


def content(home: LogHome) -> dict[str, bytes]:
    return {name: home.disk.content(f"{DIRECTORY}/{name}") for name in home.disk.listdir(DIRECTORY) if name != "LOCK"}


def refusal(home: LogHome) -> FormatTooNew:
    """Why opening is refused, twice, with every file as it was."""
    home.close_all()
    before = content(home)
    for _ in range(2):
        with pytest.raises(FormatTooNew) as refused:
            home.open()
        assert content(home) == before
    return refused.value


def newer_entry(index: int, term: int, pos: int, body: bytes, chain: int, version: int = NEWER) -> tuple[bytes, int]:
    """An entry as newer software may write it: with another version, and both checksums in their places."""
    fields = struct.pack(">IIQQQI", NORMAL, HEADER_BYTES + len(body), index, term, pos, version)
    body_crc = zlib.crc32(body)
    chain = zlib.crc32(body_crc.to_bytes(4, "big"), zlib.crc32(fields, chain))
    return fields + struct.pack(">III", chain, body_crc, len(body)) + body, chain


def add_newer_entry(home: LogHome, body: bytes = b"newer") -> EntryRef:
    """Append an entry of a newer version to a log with a few entries, and close it."""
    log = home.open()
    home.put(log, b"one", b"two")
    last = log.locate(log.last_index)
    home.close_all()
    pos = last.pos + last.size
    data, chain = newer_entry(last.index + 1, last.term, pos, body, last.chain)
    home.disk.overwrite(home.segment(), pos, data)
    return EntryRef(last.index + 1, last.term, NORMAL, pos, len(data), chain)


def newer_slot(home: LogHome, slot: int, version: int = NEWER) -> None:
    data = bytearray(encode_slot(MetaState(CLUSTER_ID, "n1", home.segment_bytes, term=Term(9), voted_for="n2"), 99))
    struct.pack_into(">I", data, 8, version)
    length = struct.unpack_from(">I", data, 20)[0]
    crc = zlib.crc32(data[28 : 28 + length], zlib.crc32(data[:24]))
    struct.pack_into(">I", data, 24, crc)
    home.disk.overwrite(META, slot * SLOT_BYTES, bytes(data))


# -- the vote file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [(0,), (1,), (0, 1)])
def test_newer_vote_file_is_refused(home: LogHome, slots: tuple[int, ...]) -> None:
    home.put(home.open(), b"one")
    home.close_all()
    for slot in slots:
        newer_slot(home, slot)
    error = refusal(home)
    assert (error.path, error.found, error.newest) == (META, NEWER, 1)
    assert str(error).startswith(f"{META}: the vote file has format version 3, and this version of the software ")
    assert "none above 1; nothing was changed" in str(error)
    for look in (lambda: stored_segment_bytes(DIRECTORY, home.disk), lambda: StoppedLog(home.disk, DIRECTORY)):
        with pytest.raises(FormatTooNew):
            look()


def test_flipped_bit_in_the_version_of_the_vote_file_is_damage(home: LogHome) -> None:
    home.put(home.open(), b"one")
    home.close_all()
    for slot in (0, 1):
        home.disk.flip_bit(META, slot * SLOT_BYTES + 11, 1)
    with pytest.raises(MetaCorrupt):
        home.open()


# -- entries -----------------------------------------------------------------------------------------------------------


def test_newer_entry_at_the_end_is_not_cut_off(home: LogHome) -> None:
    """Without checksums that prove it, the same bytes would be a torn write."""
    entry = add_newer_entry(home)
    error = refusal(home)
    assert (error.path, error.found, error.newest) == (home.segment(), NEWER, FLAGS)
    assert f"the entry at physical offset {entry.pos}" in str(error)


@pytest.mark.parametrize("offset", [35, 40, 47, HEADER_BYTES])
def test_torn_write_of_a_newer_entry_is_cut_off(home: LogHome, offset: int) -> None:
    entry = add_newer_entry(home)
    home.disk.flip_bit(home.segment(), entry.pos + offset, 2)
    assert all_bodies(home.open()) == [b"one", b"two"]


def test_newer_entry_in_a_closed_file(home: LogHome) -> None:
    """Its sidecar, if it is of a version that is known, must not hide it."""
    log = home.open()
    home.put(log, bytes(1500), bytes(1500), bytes(1500))
    assert log.last_index == 3
    last = log.locate(LogIndex(2))
    before = log.locate(LogIndex(1))
    log.close()
    home.opened.clear()
    data, chain = newer_entry(2, last.term, last.pos, bytes(1500), before.chain)
    home.disk.overwrite(home.segment(), last.pos, data)
    # The newer software chained what follows to it.
    header, _ = frame(NORMAL, LogIndex(3), last.term, home.segment_bytes, bytes(1500), chain)
    home.disk.overwrite(home.segment(home.segment_bytes), 0, header)
    assert refusal(home).path == home.segment()


def test_looking_at_a_log_with_a_newer_entry(home: LogHome) -> None:
    entry = add_newer_entry(home)
    before = content(home)
    log = StoppedLog(home.disk, DIRECTORY)
    with pytest.raises(FormatTooNew, match=f"physical offset {entry.pos} has format version 3"):
        log.report()
    log.close()
    assert content(home) == before


def test_entries_of_a_newer_peer_are_refused_with_both_numbers() -> None:
    data, _ = newer_entry(1, 1, 0, b"newer", 7)
    with pytest.raises(EntryTooNew, match="format version is too new: expected 1, found 3"):
        scan_entries(memoryview(data), 7)
    with pytest.raises(FrameCorrupt, match="unknown format"):
        scan_entries(memoryview(data), 8)  # not what the predecessor's chain leads to


def test_unknown_checksum_algorithm_is_refused_as_newer_format() -> None:
    data = bytearray(newer_entry(1, 1, 0, b"newer", 7, version=FLAGS | 0x100)[0])
    assert HEADER.unpack_from(data)[5] == 0x101
    with pytest.raises(FrameCorrupt, match="unknown format"):
        scan_entries(memoryview(data), 7)


# -- what was fetched from a peer, and sidecars ------------------------------------------------------------------------


def newer_manifest(home: LogHome, base_index: int = 0) -> bytes:
    log = home.open()
    manifest = Manifest(log.meta.starts_at, log.meta.starts_at.ref, b"", home.segment_bytes, format=2)
    home.close_all()
    return encode_manifest(manifest)


def test_newer_manifest_is_refused(home: LogHome) -> None:
    data = newer_manifest(home)
    with pytest.raises(ValueError, match="a manifest of format version 2, and none above 1 is understood here"):
        decode_manifest(data)
    root = f"{DIRECTORY}/{DIRECTORY_NAME}"
    home.disk.mkdir(root)
    for name, written in (("manifest", data), ("READY", b"")):
        fd = home.disk.open(f"{root}/{name}", create=True)
        home.disk.pwritev(fd, [written], 0)
        home.disk.close(fd)
    error = refusal(home)
    assert (error.path, error.found, error.newest) == (f"{root}/manifest", 2, 1)


def test_sidecar_of_another_version_is_rebuilt(home: LogHome) -> None:
    """It says what the entries say, so a downgrade needs no permission for that."""
    log = home.open()
    home.put(log, bytes(1500), bytes(1500), bytes(1500))
    log.close()
    home.opened.clear()
    home.open().close()
    home.opened.clear()
    sidecar = f"{home.segment()[:-20]}{0:020d}.index"
    written = home.disk.content(sidecar)
    home.disk.overwrite(sidecar, 7, b"2")
    assert all_bodies(home.open()) == [bytes(1500)] * 3
    assert home.disk.content(sidecar) == written
