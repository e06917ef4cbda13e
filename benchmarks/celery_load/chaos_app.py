"""The application of the chaos run. Each task writes down where and when it begins and ends.

The environment names the broker, the result backend and the directory for these notes.
"""

from __future__ import annotations

import datetime as dt
import os
import time
import uuid
from pathlib import Path
from typing import Any, Final

from celery import Celery, Task

import raftmq.celery  # noqa: F401 - makes the URLs known
from benchmarks.celery_load.chaos_account import VISIBILITY_SECONDS

app = Celery("chaos", broker=os.environ["CHAOS_BROKER"], backend=os.environ["CHAOS_BACKEND"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": VISIBILITY_SECONDS, "publish_timeout": 60},
    result_expires=3600,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
)
_NOTES: Final = Path(os.environ["CHAOS_DIRECTORY"])


class _Noting:
    """Notes the beginning and the end of a run."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._run = uuid.uuid4().hex

    def __enter__(self) -> None:
        eta = self._task.request.eta
        due = "-" if eta is None else dt.datetime.fromisoformat(eta).timestamp()
        _record(f"began {self._run} {self._task.request.id} {os.getpid()} {time.time()} {due}")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            _record(f"ended {self._run} {time.time()}")


def _record(line: str) -> None:
    with open(_NOTES / "notes", "ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


@app.task(bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def work(self: Task[Any, Any], seconds: float) -> None:
    """Sleep for ``seconds``."""
    with _Noting(self):
        if seconds:
            time.sleep(seconds)


@app.task(bind=True)  # type: ignore[untyped-decorator]
def part(self: Task[Any, Any], number: int) -> int:
    """Return the number, as one part of a chord."""
    with _Noting(self):
        return number


@app.task(bind=True, ignore_result=True)  # type: ignore[untyped-decorator]
def body(self: Task[Any, Any], numbers: list[int], expected: int) -> None:
    """End a chord. Raises ValueError if the result of a part is missing, or exists twice."""
    with _Noting(self):
        if sum(numbers) != expected:
            raise ValueError(f"the results {numbers} are not {expected} in all")
