"""Sends few messages in the protocol of any server, each when it is due, with the least work that a client can do.

Unlike `benchmarks.load.open_loop`, which looks every millisecond, it wakes up at the microsecond at which a message is
due. Run as ``python -m benchmarks.low_rate.wire_load``: a `LowRateJob` on standard input, a `Report` on standard
output.
"""

from __future__ import annotations

import select
from collections import deque

from benchmarks.load.closed_loop import Connection
from benchmarks.load.do_job import do_job
from benchmarks.load.job import Job
from benchmarks.load.report import Recorder, Report, monotonic_seconds
from benchmarks.low_rate.job import LowRateJob
from benchmarks.wires.wire import LoadFailed

SLOTS = 1024
"""Messages in flight at most; the next one waits for an answer."""


def generate(job: LowRateJob) -> Report:
    """Send until the last window ends. Raises LoadFailed, OSError."""
    connection = Connection(
        Job(
            address=job.address,
            connections=1,
            in_flight=SLOTS,
            body_bytes=job.body_bytes,
            begin=job.begin,
            window_seconds=job.window_seconds,
            windows=job.windows,
            first_slot=1,
            wire=job.wire,
        ),
        0,
    )
    free = deque(connection.wire.idle())
    recorder = Recorder(job.begin, job.window_seconds, job.windows, 1)
    times = job.due_times(monotonic_seconds())
    due = next(times, job.end)
    while True:
        now = monotonic_seconds()
        if (report := recorder.advance(now)) is not None:
            return report
        if now < due or not free:
            wait = recorder.boundary - now if not free else min(due, recorder.boundary) - now
            if select.select([connection.fd], (), (), max(0.0, wait))[0]:
                count = connection.receive(recorder.samples)
                free += count
                connection.sock.sendall(connection.wire.repeat(())[1])
            continue
        keys, data = connection.wire.repeat((free.popleft(),))
        connection.send_times.update(dict.fromkeys(keys, due))
        due = next(times, float("inf"))
        connection.sock.sendall(data)


if __name__ == "__main__":
    do_job(LowRateJob, generate, LoadFailed, OSError)
