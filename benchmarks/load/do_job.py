"""The common part of load generators as processes: a job comes in, a report is printed, both dataclasses as JSON.

Imports little: a generator must be ready when its first window begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from benchmarks.load.report import StartedLate

J = TypeVar("J")

STARTED_LATE = 3
"""Exit code: the first window began before all connections were there."""


def do_job(kind: type[J], generate: Callable[[J], object], *failures: type[Exception]) -> None:
    """Run a load generator: read a job, do it, write the report. ``failures`` become the last line of the errors."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    try:
        report = generate(job)
    except StartedLate:
        sys.exit(STARTED_LATE)
    except failures as error:
        print(f"load generator: {str(error) or type(error).__name__}", file=sys.stderr)
        sys.exit(1)
    sys.stdout.buffer.write(msgspec.json.encode(report))
