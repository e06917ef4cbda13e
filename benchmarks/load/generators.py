"""Runs load generators as separate processes, and measures the CPU use of the servers meanwhile.

A generator is a module that calls `do_job`; callers that want its report call `run_generator`.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import msgspec
import trio

from benchmarks.load.do_job import STARTED_LATE
from benchmarks.load.job import Job
from benchmarks.load.report import Report, StartedLate
from mq.monitoring.cpu_time import cpu_seconds

R = TypeVar("R")

ROOT = Path(__file__).parent.parent.parent
CLOSED_LOOP = "benchmarks.load.closed_loop"
WORKERS_MAX = 2


ATTEMPTS_MAX = 3
AHEAD_SECONDS_MIN = 1.0
"""The least seconds from a restart of load generators to their first window."""
_LATE_SHARE = 0.1
"""A window that is read later than by this share of it is measured again."""


class GeneratorFailed(Exception):
    """A load generator ended too early. The message has its last output."""


async def run_generator(module: str, job: object, report: type[R], environment: Mapping[str, str] | None = None) -> R:
    """Run a job in a separate process. ``environment`` extends ours. Raises GeneratorFailed, StartedLate."""
    process = await trio.run_process(
        [sys.executable, "-m", module],
        stdin=msgspec.json.encode(job),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    if process.returncode == STARTED_LATE:
        raise StartedLate
    if process.returncode:
        raise GeneratorFailed(process.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    return msgspec.json.decode(process.stdout, type=report)


def share_out(job: Job, workers: int = WORKERS_MAX) -> list[Job]:
    """Divide the connections of ``job`` among at most ``workers`` jobs."""
    workers = min(workers, job.connections)
    jobs, first = list[Job](), 0
    for worker in range(workers):
        connections = job.connections // workers + (worker < job.connections % workers)
        jobs.append(replace(job, connections=connections, first_slot=job.first_slot + first * job.in_flight))
        first += connections
    return jobs


Meter = Callable[[], float]
"""The amount used so far."""


def cpu_meters(pids: Sequence[int]) -> list[Meter]:
    """Return a meter of CPU seconds for each process and its children."""
    return [partial(cpu_seconds, pid) for pid in pids]


class JobWindows(Protocol):
    """The windows of a job, of equal length; the first one begins at ``begin``, in seconds on CLOCK_MONOTONIC."""

    @property
    def begin(self) -> float: ...
    @property
    def window_seconds(self) -> float: ...
    @property
    def windows(self) -> int: ...


class WindowedJob(JobWindows, Protocol):
    """A job of a load generator: a dataclass whose windows can be moved."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def at(self, begin: float) -> Self: ...


async def drive(
    jobs: Sequence[WindowedJob],
    meters: Sequence[Meter],
    generator: str = CLOSED_LOOP,
    *,
    ahead_seconds_min: float = AHEAD_SECONDS_MIN,
) -> tuple[list[Report], list[list[float]]]:
    """Run all jobs at once, with the same windows. Also returns the counts of each meter in each window.

    ``generator`` is a module that reads a job and writes a `Report`, both as JSON; exit code `STARTED_LATE` says that
    the first window began before it. If the machine is so busy that this happens, or that this process notices the end
    of a window far too late, all windows are measured again, with twice the time before the first one.

    Raises GeneratorFailed, also if that happens each of `ATTEMPTS_MAX` times.
    """
    jobs = [replace(job, must_be_in_time=True) if isinstance(job, Job) else job for job in jobs]
    ahead = max(jobs[0].begin - time.clock_gettime(time.CLOCK_MONOTONIC), ahead_seconds_min)
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            begin = time.clock_gettime(time.CLOCK_MONOTONIC) + ahead * 2**attempt
            jobs = [job.at(begin) for job in jobs]
        try:
            return await _drive(jobs, meters, generator)
        except* StartedLate:
            pass
    raise GeneratorFailed(
        f"a window began before its load, or its end was noticed late, {ATTEMPTS_MAX} times: this machine is too busy"
    )


async def _drive(
    jobs: Sequence[WindowedJob], meters: Sequence[Meter], generator: str
) -> tuple[list[Report], list[list[float]]]:
    reports = list[Report]()
    marks = list[list[float]]()
    failures = list[str]()

    async def work(job: WindowedJob) -> None:
        try:
            reports.append(await run_generator(generator, job, Report))
        except GeneratorFailed as error:
            failures.append(str(error))
            nursery.cancel_scope.cancel()

    async def mark_windows() -> None:
        first = jobs[0]
        for window in range(first.windows + 1):
            end = first.begin + window * first.window_seconds
            await trio.sleep(max(0.0, end - time.clock_gettime(time.CLOCK_MONOTONIC)))
            if time.clock_gettime(time.CLOCK_MONOTONIC) - end > _LATE_SHARE * first.window_seconds:
                raise StartedLate
            marks.append([read() for read in meters])

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(work, job)
        nursery.start_soon(mark_windows)
    if failures:
        raise GeneratorFailed(failures[0])
    return reports, [
        [after - before for before, after in zip(start, end, strict=True)] for start, end in itertools.pairwise(marks)
    ]
