"""Runs changes that take longer than a request. They continue when the page is closed, and report their progress."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from mq.client.errors import ClientError

JOBS_MAX: Final = 100
"""Jobs to remember: when there are more, ended ones are forgotten, the oldest first."""
RUNNING_MAX: Final = 4
FAILURES_MAX: Final = 100


@dataclass(slots=True)
class ChangeInProgress:
    """A change that runs. ``failures`` lists the first `FAILURES_MAX` parts of it that failed."""

    number: int
    user: str
    what: str
    back: str
    done: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    progress: str = ""
    ended: bool = False
    fault: str = ""

    def fail(self, what: str) -> None:
        """Count one part of the change that failed."""
        self.failed += 1
        if len(self.failures) < FAILURES_MAX:
            self.failures.append(what)

    def set_progress(self, what: str) -> None:
        """Replace the text that says what the change waits for."""
        self.progress = what

    def add_note(self, what: str) -> None:
        """Add a text about parts that were not tried."""
        self.notes.append(what)


class TooManyJobs(Exception):
    """The console runs its maximum of changes; one has to end first."""


class Jobs:
    """The changes that a console runs."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, ChangeInProgress] = OrderedDict()
        self._last = 0

    def start(
        self, nursery: trio.Nursery, user: str, what: str, back: str, run: Callable[[ChangeInProgress], Awaitable[None]]
    ) -> ChangeInProgress:
        """Start a change in ``nursery``. Raises TooManyJobs."""
        if sum(not each.ended for each in self._jobs.values()) >= RUNNING_MAX:
            raise TooManyJobs(f"{RUNNING_MAX} changes like this are in progress: wait until one has ended")
        self._last += 1
        job = self._jobs[self._last] = ChangeInProgress(self._last, user, what, back)
        for number in [each.number for each in self._jobs.values() if each.ended][: max(0, len(self._jobs) - JOBS_MAX)]:
            del self._jobs[number]
        nursery.start_soon(_run, job, run)
        return job

    def find(self, number: int, user: str) -> ChangeInProgress | None:
        """Return the change with this number if it is this user's, else None."""
        job = self._jobs.get(number)
        return job if job is not None and job.user == user else None


async def _run(job: ChangeInProgress, run: Callable[[ChangeInProgress], Awaitable[None]]) -> None:
    try:
        await run(job)
    except ClientError as error:
        job.fault = str(error)
    except BaseException:
        job.fault = "it was stopped"
        raise
    finally:
        job.ended = True
