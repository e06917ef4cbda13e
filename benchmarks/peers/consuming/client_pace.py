"""Runs the program of a Python client. The body of a message contains when it is due, the result is JSON."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from benchmarks.load.do_job import do_job
from benchmarks.load.report import buckets, monotonic_seconds, process_cpu_seconds
from benchmarks.peers.consuming.job import DRAIN, ConsumerJob, ConsumerResult
from benchmarks.wires.consumer import DUE, DueSlots, stamp
from mq.monitoring.cpu_time import cpu_seconds


class Tally:
    """Counts the messages of a job, and measures time and CPU since `begin`."""

    def __init__(self, job: ConsumerJob) -> None:
        self._job = job
        self._body = DueSlots(1, 1, job.body_bytes).body(1)
        self._samples = array("d")
        self.count = 0
        self.begin()

    def begin(self) -> None:
        """Start the measurement."""
        self._begin = monotonic_seconds()
        self._servers, self._own = self._server_seconds(), process_cpu_seconds()
        self._samples = array("d")
        self.count = 0

    def _server_seconds(self) -> float:
        return sum(map(cpu_seconds, self._job.pids))

    def take(self, body: bytes) -> None:
        """Count a received message."""
        match = DUE.match(body)
        assert match is not None, "every message says when it was due"
        self.count += 1
        due = int(match[1]) / 1e9
        if due >= self._begin:
            self._samples.append(monotonic_seconds() - due)

    def body(self, due: float) -> bytes:
        """Return the body of a message that is due at ``due``."""
        return stamp(self._body, due)

    def due_times(self) -> Iterator[float]:
        """Yield the times at which messages are due: first of the warm-up; then, after calling `begin`, of the job."""
        job, now = self._job, monotonic_seconds()
        for number in range(round(job.rate * job.warm_up)):
            yield now + number / job.rate
        self.begin()
        for number in range(round(job.rate * job.warm_up), round(job.rate * (job.warm_up + job.seconds))):
            yield now + number / job.rate

    def result(self) -> ConsumerResult:
        """Return the figures of the messages received so far: of all, or of those sent since `begin`."""
        return ConsumerResult(
            self.count if self._job.kind == DRAIN else len(self._samples),
            monotonic_seconds() - self._begin,
            self._server_seconds() - self._servers,
            process_cpu_seconds() - self._own,
            buckets(self._samples),
        )


def run(generate: Callable[[ConsumerJob], ConsumerResult]) -> None:
    """Read a job, do it, and write the result. After an error of a library, exit with the last line of it."""
    do_job(ConsumerJob, generate, Exception)
