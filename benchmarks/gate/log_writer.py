"""Counts the instructions of a log and its writer thread. Each entry is on disk before the next is appended."""

from __future__ import annotations

import os
import random
import select
import sys
from pathlib import Path

from benchmarks.gate.counting import Counting
from raftlog import RealDisk, SegmentLog
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL
from raftlog.segment.writer import threaded_writer

MESSAGES_PER_ENTRY = 32
MESSAGE_BYTES = 1200
SEGMENT_BYTES = 64 * 1024 * 1024
WARM_UP, ROUNDS, ATTEMPTS = 5, 30, 10
"""Entries, and how often they are counted: the smallest count is the one in which the threads waited least."""
_WAIT_MS = 60_000
_NEVER = 3600.0
"""Seconds. A thread that waits for the interpreter counts how long, and asks again: on a busy machine for long."""


def count_log_writer(counter: Counting, directory: Path) -> None:
    """Count the instructions of appending, writing, syncing and reporting entries of 32 messages."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_NEVER)
    done_fd = os.eventfd(0, os.EFD_NONBLOCK)
    failures: list[Exception] = []
    writer = threaded_writer(done_fd, failures.append)
    log = SegmentLog.open(
        str(directory),
        cluster_id="gate",
        node_id="n0",
        segment_bytes=SEGMENT_BYTES,
        disk=RealDisk(),
        writer=writer,
    )
    body = random.Random(1).randbytes(MESSAGES_PER_ENTRY * MESSAGE_BYTES)
    poll = select.poll()
    poll.register(done_fd, select.POLLIN)

    def write(rounds: int) -> None:
        for _ in range(rounds):
            ticket = writer.done_ticket + 1
            log.append(NORMAL, LogIndex(log.last_index + 1), Term(1), body)
            log.submit(ticket)
            while writer.done_ticket < ticket:
                assert poll.poll(_WAIT_MS), f"entry {log.last_index} is not on disk: {failures}"
                os.eventfd_read(done_fd)

    write(WARM_UP)
    for _ in range(ATTEMPTS):
        with counter.count("append, and write by the log's thread", ROUNDS * MESSAGES_PER_ENTRY):
            write(ROUNDS)
    sys.setswitchinterval(interval)
    log.close()
    os.close(done_fd)
