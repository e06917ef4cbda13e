"""Archives the log of a broker, in a separate process with low priority.

``python -m mq.store.archive.worker`` reads one `ArchiveJob` from standard input, and writes an `ArchiveStep` for each
line of its answer, as JSON. It ends with its job, and when standard input ends, since then the broker has ended. The
broker may kill it at any moment; signals that a terminal or systemd sends to all processes of a broker do not end it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from mq.store.archive.archiver import archive
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble
from raftlog import SegmentError
from raftlog.segment.backup_store import BackupRefused
from raftlog.segment.copy_rate import CopyRate
from raftlog.segment.disk import ReadOnlyDisk
from raftlog.segment.freed_memory import keep_freed_memory
from raftlog.segment.running_log import RunningLog
from raftlog.segment.s3_storage import open_s3

NICE = 10
"""The niceness of the process."""
ALIVE_SECONDS = 5.0
"""A step at least this often while bytes are copied, so that the broker knows that the store answers."""


def run(job: ArchiveJob) -> Iterator[ArchiveStep]:
    """The answer to a job, without the steps that only say that it is still running."""
    alive_at = time.monotonic()

    def lives() -> None:
        nonlocal alive_at
        if time.monotonic() >= alive_at + ALIVE_SECONDS:
            alive_at = time.monotonic()
            write_step(ArchiveStep())

    def sleep(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, ALIVE_SECONDS))
            lives()

    rate = CopyRate(job.bytes_per_second, sleep=sleep)

    def on_copy(nbytes: int) -> None:
        rate.throttle(nbytes)
        lives()

    try:
        store = open_s3(job.url, job.endpoint_url)
        source = RunningLog(ReadOnlyDisk(), job.log_dir)
    except SegmentError as error:
        trouble = Trouble.REFUSED if isinstance(error, BackupRefused) else Trouble.REPLICA
        yield ArchiveStep(is_last=True, trouble=trouble, reason=str(error))
        return
    try:
        yield from archive(
            store,
            source,
            job,
            now_ms=lambda: time.time_ns() // 1_000_000,
            on_copy=on_copy,
        )
    finally:
        source.close()


def write_step(step: ArchiveStep) -> None:
    """Write a line of the answer. Raises BrokenPipeError."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(step) + b"\n")


def main() -> None:
    """Do the job from standard input."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    os.nice(NICE)
    keep_freed_memory()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the broker was killed
    threading.Thread(target=_end_with_broker, daemon=True).start()
    try:
        for step in run(msgspec.json.decode(line, type=ArchiveJob)):
            write_step(step)
    except BrokenPipeError:
        return  # the broker was killed


def _end_with_broker() -> None:
    """End this process when the broker has ended: it may be waiting for a store that does not answer."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
