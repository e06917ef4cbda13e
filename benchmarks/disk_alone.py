"""Measures the disk without a broker: a program writes in the same way as a group of brokers.

One thread per replica writes to a file of its own, preallocated as a segment is, at fixed times; each write is synced
by the same call (``RWF_DSYNC``). Beside the latency of a broker group at the same rate, it tells the disk's part of
that.

Run as ``python -m benchmarks.disk_alone``: one JSON object on standard input (`DiskJob`), one on standard output: the
number of writes in each bucket of `benchmarks.load.closed_loop`.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.do_job import do_job
from benchmarks.load.generators import run_generator
from benchmarks.load.report import buckets


@dataclass(frozen=True, slots=True)
class DiskJob:
    """A load: ``writers`` write ``nbytes`` each to a file in ``directory``, ``rate`` times a second for ``seconds``.

    ``file_bytes``: size of a file, where a writer begins again; by default the size of a segment.
    """

    directory: str
    writers: int
    nbytes: int
    rate: float
    seconds: float
    file_bytes: int = 1024**3


class _FileWriter(threading.Thread):
    """One file; ``latencies`` in seconds after it has ended."""

    def __init__(self, job: DiskJob, number: int, ready: threading.Barrier) -> None:
        super().__init__()
        self._job = job
        self._path = Path(job.directory) / f"disk-alone-{number}"
        self._ready = ready
        self.latencies = array("d")

    def run(self) -> None:
        """Write at fixed times; writes that are due while one takes long follow at once."""
        job, data = self._job, bytes(self._job.nbytes)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, job.file_bytes)
            os.fsync(fd)
            self._ready.wait()
            begin = time.perf_counter()
            for number in range(int(job.seconds * job.rate)):
                if (wait := begin + number / job.rate - time.perf_counter()) > 0:
                    time.sleep(wait)
                start = time.perf_counter()
                os.pwritev(fd, [data], number * job.nbytes % (job.file_bytes - job.nbytes), os.RWF_DSYNC)
                self.latencies.append(time.perf_counter() - start)
        finally:
            os.close(fd)
            self._path.unlink()


def write_alone(job: DiskJob) -> dict[int, int]:
    """Run the job. Returns the number of writes in each bucket of durations. Raises OSError."""
    ready = threading.Barrier(job.writers)
    writers = [_FileWriter(job, number, ready) for number in range(job.writers)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    latencies = array("d")
    for writer in writers:
        latencies.extend(writer.latencies)
    if not latencies:
        raise OSError(f"no write to {job.directory} was finished")
    return buckets(latencies)


async def measure_disk_alone(job: DiskJob) -> dict[int, int]:
    """Run `write_alone` in a separate process. Raises GeneratorFailed."""
    return await run_generator("benchmarks.disk_alone", job, dict[int, int])


if __name__ == "__main__":
    do_job(DiskJob, write_alone)
