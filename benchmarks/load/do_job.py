"""Runs a load generator as a process: reads a job, and prints a report. Both are dataclasses as JSON.

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
    """Read a job, do it, and print the report. An error of ``failures`` becomes the last line of standard error."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    try:
        report = generate(job)
    except StartedLate:
        sys.exit(STARTED_LATE)
    except failures as error:
        print(f"load generator: {str(error) or type(error).__name__}", file=sys.stderr)
        sys.exit(1)
    sys.stdout.buffer.write(msgspec.json.encode(report))
