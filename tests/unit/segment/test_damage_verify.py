"""What is said about a directory that nobody has open: the row of the decision table that opening would take."""

from __future__ import annotations

import pytest

from raftlog.log_numbers import LogIndex
from raftlog.segment.codec import EntryRef, blank
from raftlog.segment.errors import DirectoryLocked, DirectoryUnusable
from raftlog.segment.meta import SLOT_BYTES
from raftlog.segment.verify import DAMAGED_STATE, INTACT, TORN, UNUSABLE, DirectoryReport, StoppedLog
from tests.unit.segment.log_home import DIRECTORY, LogHome

META = f"{DIRECTORY}/meta"


@pytest.fixture
def full(home: LogHome) -> LogHome:
    log = home.open()
    home.put(log, *[b"x" * 52] * 130)
    home.submit(log, commit_hint=130)
    log.close(clean=True)
    return home


def everything(home: LogHome) -> dict[str, bytes]:
    return {name: home.disk.content(f"{DIRECTORY}/{name}") for name in home.disk.listdir(DIRECTORY)}


def report(home: LogHome) -> DirectoryReport:
    before = everything(home)
    stopped = StoppedLog(home.disk, DIRECTORY)
    found = stopped.report()
    stopped.close()
    assert everything(home) == before, "verifying changed something"
    return found


def said(found: DirectoryReport) -> str:
    return "\n".join(found.findings)


def test_verify_reports_an_intact_log_and_its_end(full: LogHome) -> None:
    found = report(full)
    assert found.verdict == INTACT
    assert found.last is not None
    assert (found.first_index, found.last.index) == (1, 130)
    assert "intact: entries are good up to index 130" in said(found)
    assert full.open().opening_state.startswith("closed in order: last index 130")


def test_trailing_blank_is_not_torn(home: LogHome) -> None:
    """A crash between the last write to one file and the first to the next; then a smaller entry comes after all."""
    log = home.open()
    home.put(log, b"x" * 2000, b"x" * 1000)
    end = log.end_pos
    home.close_all()
    home.disk.overwrite(home.segment(), end, blank(4096 - end) + b"torn")
    assert report(home).verdict == TORN
    home.disk.overwrite(home.segment(), end, blank(4096 - end) + bytes(4))
    found = report(home)
    assert found.verdict == INTACT
    assert "intact: entries are good up to index 2" in said(found)
    log = home.open()
    assert log.opening_state.endswith("its file was closed after it, and the next one has no entry")
    assert not any(home.disk.content(home.segment())[end:])
    home.put(log, b"small")
    assert log.locate(LogIndex(3)).pos == end


def test_torn_end_is_reported_and_not_changed(home: LogHome) -> None:
    log = home.open()
    home.put(log, b"x" * 52)
    home.close_all()
    home.disk.overwrite(home.segment(), 100, b"\xa5" * 50)
    found = report(home)
    assert found.verdict == TORN
    assert "torn end: entries are good up to index 1" in said(found)
    assert "would cut off 50 bytes at 100" in said(found)
    assert home.open().opening_state.startswith("torn end")


def test_damaged_range_is_repairable(full: LogHome) -> None:
    full.disk.flip_bit(full.segment(), 360)
    found = report(full)
    assert found.verdict == DAMAGED_STATE
    assert "bytes 300..400 are damaged; repairable from peers, entry 5 after them is intact" in said(found)


def test_damaged_tail_has_unknown_end(full: LogHome) -> None:
    full.disk.flip_bit(full.segment(3 * 4096), 960)
    assert "unknown end" in said(report(full))


def test_gap_between_segments_is_reported(full: LogHome) -> None:
    full.disk.unlink(full.segment(4096))
    found = report(full)
    assert found.verdict == DAMAGED_STATE
    assert f"gap between segments: {4096:020d} to {8192:020d} is missing" in said(found)
    assert "the segment file is missing" in said(found)


def test_report_names_unknown_files(full: LogHome) -> None:
    for name in ("notes.txt", "00000000000000000123"):
        full.disk.open(f"{DIRECTORY}/{name}", create=True)
    found = report(full)
    assert found.verdict == INTACT
    assert "left alone: 00000000000000000123, notes.txt" in said(found)
    assert full.open().opening_state.endswith("left alone: 00000000000000000123, notes.txt")


def test_verify_names_a_truncated_meta_slot(full: LogHome) -> None:
    full.disk.truncate(full.disk.open(META), SLOT_BYTES + 20)
    found = report(full)
    assert "slot 1: truncated to 20 bytes" in said(found)
    assert found.verdict == (INTACT if found.state else UNUSABLE)
    full.open()


@pytest.mark.parametrize("gone", [False, True])
def test_verify_reports_bad_vote_slots_and_missing_vote_files(full: LogHome, gone: bool) -> None:
    if gone:
        full.disk.unlink(META)
    else:
        full.disk.flip_bit(META, 20)
        full.disk.flip_bit(META, SLOT_BYTES + 20)
    found = report(full)
    assert found.verdict == UNUSABLE
    assert "term and vote are lost" in said(found)


def test_verify_refuses_a_locked_or_empty_directory(home: LogHome) -> None:
    home.open()
    with pytest.raises(DirectoryLocked):
        StoppedLog(home.disk, DIRECTORY)
    home.disk.mkdir("/empty")
    with pytest.raises(DirectoryUnusable, match="no log"):
        StoppedLog(home.disk, "/empty")
    with pytest.raises(DirectoryUnusable):
        StoppedLog(home.disk, "/missing")


def test_stopped_log_lists_entries_and_damaged_ranges(full: LogHome) -> None:
    full.disk.flip_bit(full.segment(), 360)
    full.disk.flip_bit(full.segment(8192), 60)
    stopped = StoppedLog(full.disk, DIRECTORY)
    found = [entry.index if isinstance(entry, EntryRef) else (entry.pos, entry.end) for entry in stopped.entries()]
    assert found == [1, 2, 3, (300, 400), *range(5, 81), (4096 + 4000, 8292), *range(82, 131)]
    indexes = [entry.index for entry in stopped.entries(LogIndex(100)) if isinstance(entry, EntryRef)]
    assert indexes == list(range(100, 131))
    first = next(entry for entry in stopped.entries() if isinstance(entry, EntryRef))
    assert stopped.body(first) == b"x" * 52
    stopped.close()
