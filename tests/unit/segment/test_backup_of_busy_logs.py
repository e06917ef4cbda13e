"""Backups of a log to which everything happens that can happen to one, between runs and in the middle of them."""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random

import pytest

from chaos.disk import MemoryDisk
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, EntryGone, InlineWriter, SegmentLog
from raftlog.segment.backup import Backup, BackupTarget
from raftlog.segment.backup_layouts import Snapshot
from raftlog.segment.backup_store import BackupRefused, DirectoryStore
from raftlog.segment.running_log import RunningLog
from tests.unit.segment.log_home import DIRECTORY, LogHome


class BusyLog:
    """A log that grows, loses entries which were not committed, drops old files, is killed and opened again."""

    def __init__(self, random: Random) -> None:
        self.home = LogHome()
        self.committed: dict[int, bytes] = {}
        self._random = random
        self._term = 1
        self._numbers = count()
        self._log = self._open()

    def _open(self) -> SegmentLog:
        return self.home.open(writer=InlineWriter(clock=partial(next, count())))

    def step(self) -> None:
        """Have one thing happen."""
        log, random = self._log, self._random
        commit = max(self.committed, default=0)
        match random.choices(("append", "commit", "cut", "drop", "reopen"), (10, 6, 3, 1, 1))[0]:
            case "append":
                for _ in range(random.randint(1, 12)):
                    body = b"%08d" % next(self._numbers) * random.randint(1, 60)
                    log.append(NORMAL, log.last_index + 1, Term(self._term), body)
                self.home.submit(log)
            case "commit" if log.last_index > commit:
                for index in range(commit + 1, random.randint(commit + 1, log.last_index) + 1):
                    refs, data = log.read_entries(LogIndex(index), 1)
                    self.committed[index] = bytes(data[48 : refs[0].size])
                self.home.submit(log, commit_hint=max(self.committed))
            case "cut" if log.last_index > commit:
                self._term += 1
                log.truncate(LogIndex(random.randint(commit + 1, log.last_index)))
                self.home.submit(log, term=self._term)
            case "drop":
                files = [each.start for each in log.segments()[1:] if each.first_index <= commit]
                if files and random.random() < 0.5:
                    log.drop_prefix(random.choice(files), b"conf", LogIndex(commit))
                    self.home.submit(log)
            case "reopen":
                self.home.close_all()
                self._log = self._open()
            case _:
                pass


@pytest.mark.parametrize("seed", range(25))
def test_backup_is_always_a_prefix_of_committed_entries(seed: int) -> None:
    random = Random(seed)
    busy = BusyLog(random)
    disk, number, runs = MemoryDisk(), 0, 0
    while runs < 20:
        for _ in range(random.randint(0, 20)):
            busy.step()
        source, target = RunningLog(busy.home.disk, DIRECTORY), BackupTarget(DirectoryStore(disk, f"/backup{number}"))
        state = source.state
        snapshot = Snapshot(state.commit_hint, b"state") if state.commit_hint > state.starts_at.index else None
        try:
            target.extend(source, conf=b"", snapshot=snapshot, now_ms=1, on_copy=lambda nbytes: busy.step())
        except BackupRefused:
            known = target.manifest
            if known is not None and state.starts_at.pos > known.last.pos:
                number += 1  # retention took what the backup does not have yet: begin a new one
            elif state.commit_hint > state.starts_at.index:
                raise
            continue
        except EntryGone:
            continue  # retention was faster
        finally:
            source.close()
            target.close()
        runs += 1
        backup = Backup(DirectoryStore(disk, f"/backup{number}"))
        found = {entry.index: run.body(entry) for run in backup.runs() for entry in run.entries}
        backup.close()
        assert max(found) == state.commit_hint
        assert found == {index: busy.committed[index] for index in found}
