"""Makes files of the key index, in a process of its own that gives way to everything else.

``python -m mq.store.key_index.builder`` reads a list of jobs, as JSON, from standard input (`IndexJob`). It writes the
path of each file that is there, a line each, as soon as it is, and ends with its parent. The argument says how nice it
is. A job that meets a damaged entry makes no file; then the line is `DAMAGED` and the physical offset of the entry.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from mq.store.key_index.file import build_key_file
from mq.store.key_index.record_keys import Damaged
from raftlog.segment.errors import FrameCorrupt

DAMAGED: Final = "damaged "
"""Begins a line that reports a damaged entry."""


class IndexJob(msgspec.Struct, frozen=True):
    """The entries ``begin`` to ``end`` of the segment that begins at ``segment_start``; all are physical offsets.

    ``segment`` is the path of that, ``target`` of the file to make.
    """

    segment: str
    segment_start: int
    begin: int
    end: int
    target: str


def make_index(job: IndexJob) -> None:
    """Make one file: complete or absent, also after a crash. Raises FrameCorrupt, Damaged, OSError."""
    fd = os.open(job.segment, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = build_key_file(lambda pos, nbytes: os.pread(fd, nbytes, pos - job.segment_start), job.begin, job.end)
    finally:
        os.close(fd)
    temporary = job.target + ".tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    # What a power loss takes away again is made again: the directory need not be synced.
    os.rename(temporary, job.target)


def main() -> None:
    """Do the jobs given on standard input. Exit code 1 when one of them failed."""
    os.nice(int(sys.argv[1]))
    parent = os.getppid()
    failed = False
    for job in msgspec.json.decode(sys.stdin.buffer.read(), type=list[IndexJob]):
        if os.getppid() != parent:
            break
        try:
            make_index(job)
        except (FrameCorrupt, Damaged, OSError) as error:
            failed = True
            sys.stderr.write(f"{job.target}: {error}\n")
            if isinstance(error, FrameCorrupt):
                sys.stdout.write(f"{DAMAGED}{error.physical_offset}\n")
                sys.stdout.flush()
        else:
            sys.stdout.write(f"{job.target}\n")
            sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
