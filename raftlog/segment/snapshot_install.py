"""A replacement for a whole log, collected piece by piece next to the log in use, and installed at an opening.

Theory of operation. A replica whose log ends before another one's begins needs that log: its base, the following closed
files, and a snapshot of the application. A `Manifest` describes them. `SnapshotInstall` collects them in the directory
``reset``: it says which bytes are needed, verifies each entry as soon as it is complete, and keeps everything across
interruptions, even if the next manifest comes from another leader, since files are equal on all replicas. `finish`
marks it as ready, and the next opening calls `install`.

Installing has one point of no return, the renaming of ``READY`` to ``INSTALL``. Before it, the old log is untouched and
may still turn out to be the better one; after it, every step can be repeated.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Container
from typing import Final, Literal

import cbor2
import msgspec

from raftlog.log_numbers import LogIndex
from raftlog.safe_cbor import decode_safe
from raftlog.segment.closed_file_index import ClosedFileIndex, agrees, decode_sidecar, encode_sidecar
from raftlog.segment.codec import (
    BLANK_BYTES_MIN,
    CONFIG,
    HEADER,
    HEADER_BYTES,
    NORMAL,
    EntryRef,
    chain_after,
    is_blank,
    verify_entry,
)
from raftlog.segment.disk import Disk, write_file, write_fully
from raftlog.segment.errors import FormatTooNew, FrameCorrupt, StorageFailed
from raftlog.segment.files import Preallocation, SegmentFiles
from raftlog.segment.index import SparseIndex
from raftlog.segment.limits import DEFAULT, LogLimits
from raftlog.segment.meta import Base, MetaFile, MetaState
from raftlog.segment.note_names import ABSTAINING, CONF, COPIED, DAMAGED

DIRECTORY_NAME: Final = "reset"
SNAPSHOT_NAME: Final = "snapshot"
"""The application's file: in the log's directory after an installation."""

_FORMAT: Final = 1
_NUMBER_MAX: Final = 2**63 - 1
_NOTE_BYTES_MAX: Final = 2048
"""Notes of a log have room for some kilobytes."""
_MANIFEST: Final = "manifest"
READY: Final = "READY"
INSTALL: Final = "INSTALL"
_OLD_NAME = re.compile(r"(\d{20})(\.index)?")

What = Literal["log", "snapshot"]

CheckEntry = Callable[[EntryRef, memoryview], None]
"""Raises ValueError for an entry, passed with its body, that must not get into the log."""


class ManifestTooNew(ValueError):
    """A manifest has a newer format version than this software supports."""

    def __init__(self, version: int) -> None:
        super().__init__(f"a manifest of format version {version}, and none above {_FORMAT} is understood here")
        self.found = version


class Manifest(msgspec.Struct, frozen=True):
    """Describes the files that will replace a log.

    ``last`` is the last entry of its last closed file, or the placeholder for ``base`` if there is none; it must be
    committed. ``conf`` goes into the note `CONF`. ``snapshot_crc`` is the CRC-32 of the snapshot. ``archived`` is how
    much of the log an archive has, as the leader knows it; None if there is none. ``note`` goes into the note `COPIED`;
    empty for none.
    """

    base: Base
    last: EntryRef
    conf: bytes
    segment_bytes: int
    snapshot_bytes: int = 0
    snapshot_crc: int = 0
    format: int = _FORMAT
    archived: Base | None = None
    note: bytes = b""

    @property
    def end_pos(self) -> int:
        """End of the last entry; the base's position without entries."""
        return self.last.pos + self.last.size

    @property
    def end_index(self) -> LogIndex:
        """Index of the last entry."""
        return self.last.index

    @property
    def starts(self) -> range:
        """Return the positions at which the files start."""
        size = self.segment_bytes
        return range(self.base.pos, -(-self.end_pos // size) * size, size)


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest for a file or a peer, as CBOR."""
    return cbor2.dumps(msgspec.to_builtins(manifest, builtin_types=(bytes,)))


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises ValueError for an invalid one; `ManifestTooNew` for one of a newer format."""
    try:
        value = decode_safe(data)
        if isinstance(value, dict) and isinstance(version := value.get("format"), int) and version > _FORMAT:
            raise ManifestTooNew(version)
        manifest = msgspec.convert(value, Manifest)
    except ManifestTooNew:
        raise
    except (ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"this is not a manifest: {error}") from error
    if (reason := why_impossible(manifest)) is not None:
        raise ValueError(f"invalid manifest: {reason}")
    return manifest


def why_impossible(manifest: Manifest) -> str | None:
    """The reason that no log can have this manifest, as text; None if it is consistent."""
    base, last, segment_bytes = manifest.base, manifest.last, manifest.segment_bytes
    numbers = (base.index, base.term, base.pos, last.index, last.term, last.pos, last.size, manifest.snapshot_bytes)
    if min(numbers) < 0 or max(*numbers, segment_bytes) > _NUMBER_MAX or segment_bytes <= HEADER_BYTES:
        return "a number is negative or too large"
    if any(not 0 <= crc < 2**32 for crc in (base.chain, last.chain, manifest.snapshot_crc)):
        return "a checksum has more than 32 bits"
    if base.pos % segment_bytes:
        return f"its base at {base.pos} does not begin a file of {segment_bytes} bytes"
    if (archive_end := manifest.archived) is not None and (
        min(archive_end.index, archive_end.term, archive_end.pos) < 0
        or max(archive_end.index, archive_end.term, archive_end.pos) > _NUMBER_MAX
        or not 0 <= archive_end.chain < 2**32
        or archive_end.pos % segment_bytes
    ):
        return f"its archive ends with entry {archive_end.index} at {archive_end.pos}"
    if len(manifest.note) > _NOTE_BYTES_MAX:
        return f"its note has {len(manifest.note)} bytes"
    if last == base.ref:
        return None
    if last.index <= base.index or last.pos < base.pos or last.term < base.term:
        return f"its last entry {last.index} at {last.pos} is not after its base {base.index} at {base.pos}"
    if not (NORMAL <= last.kind <= CONFIG and last.size >= HEADER_BYTES):
        return f"its last entry is of kind {last.kind} and has {last.size} bytes"
    if last.pos % segment_bytes + last.size + BLANK_BYTES_MIN > segment_bytes:
        return f"its last entry of {last.size} bytes at {last.pos} does not fit its file"
    return None


class SnapshotInstall:
    """Collects a replacement for the log. For one thread at a time, which waits for the disk.

    Attributes:
        manifest: of the replacement.
        piece_bytes: of the pieces of files, from the beginning of each; the last one of a file may be smaller.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        manifest: Manifest,
        check_entry: CheckEntry = lambda ref, body: None,
        *,
        name: str = DIRECTORY_NAME,
        limits: LogLimits = DEFAULT,
    ) -> None:
        """Begin, or continue with matching data of an earlier attempt, which is not requested again.

        ``check_entry`` is called for each received entry. ``name`` is the name of the directory next to the log;
        ``limits`` are those with which the log will be opened.

        Raises:
            StorageFailed: a disk error.
        """
        self.manifest = manifest
        self._check_entry = check_entry
        self._disk = disk
        self.piece_bytes = limits.piece_bytes
        self._root = os.path.join(directory, name)
        self._snapshot_path = os.path.join(self._root, SNAPSHOT_NAME)
        try:
            disk.mkdir(self._root)
            # No longer ready, since parts may be replaced.
            _remove(disk, self._root, [READY, INSTALL])
            self._files = SegmentFiles(disk, self._root, manifest.segment_bytes, Preallocation.NONE, limits)
            self._last = manifest.base.ref
            self._index = SparseIndex(manifest.segment_bytes, limits.anchor_bytes)
            self._pieces: set[int] = set()
            self._start = manifest.base.pos
            self._before = self._last
            self._resume()
            self._got_of_snapshot: set[int] = set()
            self._snapshot_done = self._has_snapshot()
            _write_file(disk, self._root, _MANIFEST, encode_manifest(manifest))
        except OSError as error:
            raise StorageFailed(self._root, error.errno or 0, "staging") from error

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self._log_done and self._snapshot_done

    @property
    def missing_bytes(self) -> int:
        """Return the number of bytes still missing."""
        log = 0 if self._log_done else self.manifest.starts.stop - self._start - len(self._pieces) * self.piece_bytes
        snapshot = self.manifest.snapshot_bytes - len(self._got_of_snapshot) * self.piece_bytes
        return max(0, log) + (0 if self._snapshot_done else max(0, snapshot))

    def next_request(self, in_flight: Container[tuple[What, int]] = ()) -> tuple[What, int, int] | None:
        """The next request: "log" or "snapshot", the position, the number of bytes; None if all is requested or here.

        Args:
            in_flight: earlier requests, as the first two of these.
        """
        if not self._log_done:
            file_end = self._start + self.manifest.segment_bytes
            for pos in range(self._start, file_end, self.piece_bytes):
                if pos not in self._pieces and ("log", pos) not in in_flight:
                    return "log", pos, min(self.piece_bytes, file_end - pos)
        if not self._snapshot_done:
            for pos in range(0, self.manifest.snapshot_bytes, self.piece_bytes):
                if pos not in self._got_of_snapshot and ("snapshot", pos) not in in_flight:
                    return "snapshot", pos, min(self.piece_bytes, self.manifest.snapshot_bytes - pos)
        return None

    def accept(self, what: What, pos: int, data: bytes) -> bool:
        """Accept bytes named by `next_request`.

        Returns:
            Whether they fit so far. If not, they and maybe some before them are needed again, preferably from another
            peer.

        Raises:
            StorageFailed: a disk error.
        """
        try:
            return self._take_log(pos, data) if what == "log" else self._take_snapshot(pos, data)
        except OSError as error:
            raise StorageFailed(self._root, error.errno or 0, "staging") from error

    def finish(self) -> None:
        """Mark the complete replacement as ready, durably: the next opening installs it. Raises `StorageFailed`."""
        assert self.complete, f"{self._root}: {self.missing_bytes} bytes are missing"
        try:
            _write_file(self._disk, self._root, READY, b"")
        except OSError as error:
            raise StorageFailed(self._root, error.errno or 0, "staging") from error
        self.close()

    def close(self) -> None:
        """Close all files; the data stays for another attempt."""
        self._files.close()

    @property
    def _log_done(self) -> bool:
        return self._start >= self.manifest.starts.stop

    def _resume(self) -> None:
        files, segment_bytes = self._files, self.manifest.segment_bytes
        present = set(files.starts)
        for start in self.manifest.starts:
            sidecar = decode_sidecar(files.read_sidecar(start)) if start in present else None
            if sidecar is None or not agrees(files.pread_padded, sidecar, start, segment_bytes, self._last):
                break
            if start + segment_bytes == self.manifest.starts.stop and sidecar.last != self.manifest.last:
                break
            self._last = self._before = sidecar.last
            self._start = start + segment_bytes
        for start in present:
            if not self.manifest.base.pos <= start <= self._start or start >= self.manifest.starts.stop:
                _remove(self._disk, self._root, [os.path.basename(files.path(start))])
        # The set of names has changed.
        files.close()
        self._files = SegmentFiles(self._disk, self._root, segment_bytes, Preallocation.NONE, files.limits)
        if not self._log_done and self._start in present:
            # An unfinished file. Its valid beginning need not be fetched again, but its sync may have failed.
            self._files.write_again(self._start, self._start + segment_bytes)
            self._pieces = set(range(self._start, self._start + segment_bytes, self.piece_bytes))
            self._verify()

    def _take_log(self, pos: int, data: bytes) -> bool:
        file_end = self._start + self.manifest.segment_bytes
        if not self._start <= pos < file_end or pos in self._pieces:
            return True  # of an earlier request, and no longer needed
        if (pos - self._start) % self.piece_bytes or len(data) != min(self.piece_bytes, file_end - pos):
            return False
        # Verified data is never overwritten.
        begin = max(pos, self._last.pos + self._last.size)
        if begin < pos + len(data):
            self._files.write(begin, [memoryview(data)[begin - pos :]])
        self._pieces.add(pos)
        return self._verify()

    def _verify(self) -> bool:
        """Continue verifying the contiguous part; False if some was bad and is dropped."""
        start, file_end = self._start, self._start + self.manifest.segment_bytes
        end = next((pos for pos in range(start, file_end, self.piece_bytes) if pos not in self._pieces), file_end)
        pos = max(start, self._last.pos + self._last.size)
        window = memoryview(self._files.pread_padded(pos, max(0, end - pos)))
        at = 0
        while len(window) - at >= BLANK_BYTES_MIN:
            rest = file_end - pos - at
            if is_blank(window[at : at + BLANK_BYTES_MIN], rest):
                if end < file_end:
                    return True
                if not self._ends_well():
                    return self._forget(start)
                if window[at + BLANK_BYTES_MIN :].tobytes().count(0) != len(window) - at - BLANK_BYTES_MIN:
                    return self._forget(pos + at)
                self._close_file()
                return True
            if len(window) - at < HEADER_BYTES and end < file_end:
                return True
            size = HEADER.unpack_from(window, at)[1] if len(window) - at >= HEADER_BYTES else 0
            if len(window) - at < size <= rest - BLANK_BYTES_MIN:
                return True
            last = self._last
            try:
                ref = verify_entry(window, at, last.index + 1, last.term, pos + at, last.chain)
                self._check_entry(ref, window[at + HEADER_BYTES : at + ref.size])
            except (FrameCorrupt, ValueError):
                return self._forget(pos + at)
            self._last = ref
            self._index.append(self._last.index, self._last.term, pos + at)
            if self._last.kind == CONFIG:
                self._index.add_config(self._last.index, bytes(window[at + HEADER_BYTES : at + size]))
            at += size
        return True if end < file_end else self._forget(pos + at)

    def _ends_well(self) -> bool:
        is_final = self._start + self.manifest.segment_bytes == self.manifest.starts.stop
        return self._last is not self._before and (not is_final or self._last == self.manifest.last)

    def _forget(self, pos: int) -> bool:
        self._pieces = {piece for piece in self._pieces if piece + self.piece_bytes <= pos}
        if not self._pieces:
            # The verified part is fetched again, too: it may be a good file, but not the wanted one.
            self._index.truncate(self._before.index + 1)
            self._last = self._before
        return False

    def _close_file(self) -> None:
        # The sidecar says that the file is complete, so it comes after the sync.
        before, last = self._before, self._last
        assert before.index < last.index, f"the file at {self._start} ends with {last.index}, {before.index} was before"
        assert not self._log_done, f"a file at {self._start}, all end at {self.manifest.starts.stop}"
        self._files.sync(self._start)
        part = self._index.part(self._before.index + 1, self._last.index + 1)
        self._files.write_sidecar(self._start, encode_sidecar(ClosedFileIndex(self._before.chain, self._last, part)))
        self._before = self._last
        self._start += self.manifest.segment_bytes
        self._pieces.clear()

    def _has_snapshot(self) -> bool:
        if SNAPSHOT_NAME in self._disk.listdir(self._root):
            if self._snapshot_is_right(write_again=True):
                return True
            _remove(self._disk, self._root, [SNAPSHOT_NAME])
        return self.manifest.snapshot_bytes == 0

    def _snapshot_is_right(self, *, write_again: bool = False) -> bool:
        """Whether the snapshot is complete, and then durable.

        Data of an earlier attempt may be only in the cache, if its sync failed: it is written again.
        """
        fd = self._disk.open(self._snapshot_path)
        try:
            if self._disk.size(fd) != self.manifest.snapshot_bytes:
                return False
            crc = 0
            for pos in range(0, self.manifest.snapshot_bytes, self.piece_bytes):
                data = self._disk.pread(fd, self.piece_bytes, pos)
                if write_again:
                    write_fully(self._disk.pwritev, fd, [data], pos)
                crc = zlib.crc32(data, crc)
            if crc != self.manifest.snapshot_crc:
                return False
            self._disk.fdatasync(fd)
            return True
        finally:
            self._disk.close(fd)

    def _take_snapshot(self, pos: int, data: bytes) -> bool:
        if self._snapshot_done or pos in self._got_of_snapshot:
            return True
        nbytes = self.manifest.snapshot_bytes
        if not 0 <= pos < nbytes or pos % self.piece_bytes or len(data) != min(self.piece_bytes, nbytes - pos):
            return False
        fd = self._disk.open(self._snapshot_path, create=True)
        try:
            write_fully(self._disk.pwritev, fd, [data], pos)
        finally:
            self._disk.close(fd)
        self._got_of_snapshot.add(pos)
        if len(self._got_of_snapshot) * self.piece_bytes < nbytes:
            return True
        self._snapshot_done = self._snapshot_is_right()
        if not self._snapshot_done:
            self._got_of_snapshot.clear()
        return self._snapshot_done


def install(disk: Disk, directory: str, files: SegmentFiles, meta: MetaFile, disk_state: MetaState) -> bool:
    """Install a ready replacement for the log, if there is one. The directory is locked, with no log open.

    A log that has the replacement's last entry, or is known to have been committed beyond it, is kept, and the
    replacement is removed. Term, vote and notes are kept; only `CONF` and `COPIED` become the replacement's. If the
    replaced log is known to be damaged and had more entries than the replacement, the note `ABSTAINING` is set.

    Whether the last process closed the log is kept, too: the replacement is complete and synced in any case, but a
    process that did not may have acknowledged entries which neither log has.

    Returns:
        Whether the files have changed, so that they must be listed again.

    Raises:
        OSError: a disk error; the next opening continues.
    """
    root = os.path.join(directory, DIRECTORY_NAME)
    try:
        names = set(disk.listdir(root))
    except OSError:
        return False  # there never was one
    if not names & {READY, INSTALL}:
        return False
    manifest = stored_manifest(disk, root)
    is_damaged = DAMAGED in disk_state.notes
    if INSTALL not in names:
        if manifest is None or (not is_damaged and _is_superseded(files, manifest, disk_state)):
            discard(disk, directory)
            return False
        disk.rename(os.path.join(root, READY), os.path.join(root, INSTALL))
        disk.sync_directory(root)
    assert manifest is not None, f"{root}: marked for installing without a manifest"
    assert manifest.segment_bytes == disk_state.segment_bytes, (
        f"{root}: files of {manifest.segment_bytes} bytes for a log of {disk_state.segment_bytes}"
    )
    names_to_install = {f"{start:020d}" for start in manifest.starts}
    for name in disk.listdir(directory):
        match = _OLD_NAME.fullmatch(name)
        if (match and match[1] not in names_to_install) or (name == SNAPSHOT_NAME and not manifest.snapshot_bytes):
            disk.unlink(os.path.join(directory, name))
    for name in sorted(names):
        if name == SNAPSHOT_NAME or ((match := _OLD_NAME.fullmatch(name)) and match[1] in names_to_install):
            disk.rename(os.path.join(root, name), os.path.join(directory, name))
    disk.sync_directory(directory)
    disk.sync_directory(root)
    notes = {key: value for key, value in disk_state.notes.items() if key not in (DAMAGED, COPIED)}
    notes[CONF] = manifest.conf
    if manifest.note:
        notes[COPIED] = manifest.note
    if is_damaged and (disk_state.commit_hint > manifest.end_index or disk_state.durable_pos > manifest.end_pos):
        notes[ABSTAINING] = b"1"
    newer_term = manifest.last.term > disk_state.term
    state = msgspec.structs.replace(
        disk_state,
        term=max(disk_state.term, manifest.last.term),
        voted_for=None if newer_term else disk_state.voted_for,
        base=manifest.base,
        durable_pos=manifest.end_pos,
        durable_chain=manifest.last.chain,
        commit_hint=manifest.end_index,
        cut_end=0,
        notes=notes,
    )
    # Both slots, so that damage to one of them cannot restore the base of the replaced log.
    meta.write(state)
    meta.write(state)
    discard(disk, directory)
    return True


def discard(disk: Disk, directory: str, name: str = DIRECTORY_NAME) -> None:
    """Remove all staged data, ready or not. Raises `OSError`."""
    root = os.path.join(directory, name)
    # The marks are removed first and durably: half of a replacement must not count.
    _remove(disk, root, [READY, INSTALL])
    _remove(disk, root, disk.listdir(root))


def _is_superseded(files: SegmentFiles, manifest: Manifest, state: MetaState) -> bool:
    if state.commit_hint >= manifest.end_index > 0:
        return True
    last = manifest.last
    if files.start_of(last.pos) not in files.starts:
        return False
    kind, size, index, term, pos, _, chain, _, _ = HEADER.unpack(header := files.pread_padded(last.pos, HEADER_BYTES))
    if last.size:
        return EntryRef(index, term, kind, pos, size, chain) == last
    return (index, pos) == (last.index + 1, last.pos) and chain_after(header, last.chain) == chain


def stored_manifest(disk: Disk, root: str) -> Manifest | None:
    """The manifest of staged data; None without a valid one. Raises FormatTooNew."""
    path = os.path.join(root, _MANIFEST)
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return decode_manifest(disk.pread(fd, disk.size(fd), 0))
    except ManifestTooNew as error:
        raise FormatTooNew(path, "the manifest", error.found, _FORMAT) from error
    except ValueError:
        return None
    finally:
        disk.close(fd)


def _write_file(disk: Disk, root: str, name: str, content: bytes) -> None:
    path = os.path.join(root, name)
    write_file(disk, path + ".tmp", content)
    disk.rename(path + ".tmp", path)
    disk.sync_directory(root)


def _remove(disk: Disk, root: str, names: list[str]) -> None:
    present = set(disk.listdir(root))
    if names := [name for name in names if name in present]:
        for name in names:
            disk.unlink(os.path.join(root, name))
        disk.sync_directory(root)
