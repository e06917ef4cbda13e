"""Builds files of the key index in a separate low-priority process.

``python -m mq.store.key_index.builder idle`` reads jobs from standard input (`IndexJob`), one JSON object per line, and
answers each with a line (`IndexResult`) when it is done. It ends at the end of its input, for example when its parent
dies. With ``normal`` instead of ``idle`` it has the priority of its parent.

It works in steps of about a millisecond and sleeps in between, so that it uses only the share of a core that a job
allows. The scheduling class ``idle`` is not enough: Linux applies it only within a scheduling group, such as a session
or a container, so the builders of several brokers on one machine compete with these brokers like any other process.

Only the thread that computes has that class. Files are written by a thread of normal priority: on a busy machine an
idle one may not run for half a minute, and it may hold a lock of the file system then, for which the broker waits as
soon as it writes a checkpoint or deletes a file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mq.store.key_index.job import IndexJob, IndexResult
from mq.store.key_index.key_file_build import build_key_file
from mq.store.key_index.record_keys import EntriesDamaged
from raftlog.segment.errors import FrameCorrupt


class Pace:
    """Sleeps between steps of work, so that they use at most ``share`` of a core: 0 < share <= 1."""

    def __init__(
        self,
        share: float,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert 0 < share <= 1, f"{share} of a core is to be used"
        self._rest_per_second = 1 / share - 1
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._since = cpu_clock()

    def rest(self) -> None:
        """Sleep in proportion to the CPU time used since the last call."""
        if self._rest_per_second:
            self._sleep(self._rest_per_second * (self._cpu_clock() - self._since))
            self._since = self._cpu_clock()


Build = Callable[[Callable[[int, int], bytes], int, int], bytes]
"""Builds a file as `build_key_file` does."""


def make_index(job: IndexJob, build: Build = build_key_file) -> None:
    """Build one file: complete or absent, also after a crash. Raises FrameCorrupt, EntriesDamaged, OSError."""
    pace = Pace(job.share)
    fd = os.open(job.segment, os.O_RDONLY | os.O_CLOEXEC)

    def read(pos: int, nbytes: int) -> bytes:
        pace.rest()
        return os.pread(fd, nbytes, pos - job.segment_start)

    try:
        content = build(read, job.begin, job.end)
    finally:
        os.close(fd)
    temporary = job.target + ".tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    # A file lost in a power failure is built again: the directory need not be synced.
    os.rename(temporary, job.target)
    pace.rest()


def run_job(job: IndexJob, build: Build = build_key_file) -> IndexResult:
    """Build one file, and return the result."""
    try:
        make_index(job, build)
    except FrameCorrupt as error:
        return IndexResult(job.target, str(error), error.physical_offset)
    except (EntriesDamaged, OSError) as error:
        return IndexResult(job.target, f"{job.segment}: {error}")
    return IndexResult(job.target)


def main() -> None:
    """Run the jobs from standard input, one after the other."""
    with ThreadPoolExecutor(1, initializer=give_way if sys.argv[1] == "idle" else None) as worker:

        def build(read: Callable[[int, int], bytes], begin: int, end: int) -> bytes:
            return worker.submit(build_key_file, read, begin, end).result()

        for line in sys.stdin.buffer:
            result = run_job(msgspec.json.decode(line, type=IndexJob), build)
            try:
                os.write(sys.stdout.fileno(), msgspec.json.encode(result) + b"\n")
            except BrokenPipeError:
                return  # the broker was killed


def give_way() -> None:
    """Run this thread only while nothing else wants to run."""
    # Nice 19 is not enough: a process that wakes up would wait for the end of this one's time slice.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main()
