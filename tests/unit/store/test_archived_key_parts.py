"""Files of the key index for parts of the log that only the archive has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mq.store.key_index.index import KeyIndex
from raftlog.log_numbers import LogIndex
from tests.support.key_indexes import SEGMENT_BYTES, Home, Sent, fill, kept_behind_the_log, search_archived, wanted


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "index"))


def test_file_deleted_after_the_local_search_is_searched_in_the_archive(home: Home) -> None:
    fill(home)
    data = kept_behind_the_log(home)
    assert search_archived(home, "U1", data).records == home.expected(wanted("U1")) != []


def test_search_for_another_time_opens_no_file_that_is_known(home: Home) -> None:
    fill(home)
    data = kept_behind_the_log(home)
    assert search_archived(home, "U1", data).records
    for part in home.index.parts:
        os.rename(home.index.path_of(part), f"{home.index.path_of(part)}.away")
    later = replace(wanted("U1"), begin_ms=2**62, end_ms=2**62)
    found = home.index.search_archived(later, lambda pos, nbytes: data[pos : pos + nbytes], lambda: False).run()
    assert (found.records, found.is_complete, found.damaged) == ([], True, [])
    # What is built anew is looked at again.
    for part in home.index.parts:
        home.index.discard(home.index.path_of(part))
    assert home.index._times == {}


def test_search_detects_key_files_of_another_part(home: Home) -> None:
    fill(home)
    data = kept_behind_the_log(home)
    path, other = home.index.path_of(0), home.index.path_of(SEGMENT_BYTES)
    os.replace(other, path)
    result = search_archived(home, "U1", data)
    assert result.damaged == [other, path]
    assert not result.is_complete
    assert f"the file covers the log from {SEGMENT_BYTES} to" in result.faults[1]
    for each in result.damaged:
        home.index.discard(each)
    assert [part for part, _ in home.index.unindexed_archived(2 * SEGMENT_BYTES)] == [SEGMENT_BYTES, 0]


@pytest.mark.parametrize("entries", [40, 200])
def test_files_about_a_log_that_was_replaced_are_removed(home: Home, tmp_path: Path, entries: int) -> None:
    fill(home, 120)
    home.make()
    assert len(os.listdir(home.directory)) > 10
    other = Home(str(tmp_path / "other"))
    other.put(Sent(unique="other"))
    fill(other, entries)
    other.directory = home.directory
    other.index = KeyIndex(home.directory, other.log, lambda: LogIndex(other.applied), kept_from=lambda: 0)
    assert other.index.parts == ()
    assert os.listdir(home.directory) == []
    other.make()
    again = KeyIndex(home.directory, other.log, lambda: LogIndex(other.applied), kept_from=lambda: 0)
    assert again.parts == other.index.parts != ()


def test_full_disk_does_not_delete_files_of_archived_parts(home: Home) -> None:
    fill(home)
    kept_behind_the_log(home)
    home.index.expire()
    home.index.suspend(True)
    assert home.index.parts == (0, SEGMENT_BYTES)
    assert sorted(os.listdir(home.directory)) == [os.path.basename(home.index.path_of(p)) for p in home.index.parts]
    home.index.suspend(False)
    assert home.make() > 0


def test_failed_archived_part_is_not_recopied_at_once(home: Home) -> None:
    fill(home)
    kept_behind_the_log(home)
    home.index.expire()
    end = 2 * SEGMENT_BYTES
    assert (home.index.archived_missing(end), home.index.archived_jobs(end)) == (0, 0)
    for part in (0, SEGMENT_BYTES):
        home.index.discard(home.index.path_of(part))
    home.index.on_failure(home.index.path_of(SEGMENT_BYTES))
    assert (home.index.archived_missing(end), home.index.archived_jobs(end)) == (2, 1)
    assert [part for part, _ in home.index.unindexed_archived(end)] == [0]
    home.index.retry()
    assert [part for part, _ in home.index.unindexed_archived(end)] == [SEGMENT_BYTES, 0]


def test_archived_parts_with_index_files_are_examined_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home)
    kept_behind_the_log(home)
    home.index.expire()
    end = 2 * SEGMENT_BYTES
    looked_at: list[int] = []
    parts_from = home.index._parts_from

    def noted(start: int, stop: int) -> Iterator[int]:
        looked_at.append(start)
        yield from parts_from(start, stop)

    monkeypatch.setattr(home.index, "_parts_from", noted)
    home.index.discard(home.index.path_of(0))
    assert [part for part, _ in home.index.unindexed_archived(end)] == [0]
    assert looked_at == [0], "the newer one has its file"


@pytest.mark.parametrize("nbytes", [None, 0, 2, 100], ids=["whole", "nothing", "no-size", "no-record"])
def test_search_detects_archived_key_files_of_another_log(tmp_path: Path, nbytes: int | None) -> None:
    one, other = Home(str(tmp_path / "1")), Home(str(tmp_path / "2"))
    fill(one)
    other.put(Sent(unique="other"))
    fill(other)
    other.make()
    data = kept_behind_the_log(one)
    path = one.index.path_of(0)
    if nbytes is None:
        os.replace(other.index.path_of(0), path)

    def read(pos: int, size: int) -> bytes:
        return data[pos : pos + size][:nbytes]

    found = one.index.search_archived(wanted("U1"), read, lambda: False).run()
    assert (found.damaged, found.is_complete, found.records) == ([path], False, [])
    assert "a place without a record" in found.faults[0]
