"""Accounts for each task: it ran once, again after a process died, too early, or never. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

VISIBILITY_SECONDS: Final = 30.0
ACKNOWLEDGED_SECONDS: Final = VISIBILITY_SECONDS
"""A task that had ended before its process was killed may not be acknowledged yet, for at most so long."""
_CLOCK_SECONDS: Final = 0.001


@dataclass(slots=True)
class TaskRun:
    """One run of a task; `ended` is None if it did not end."""

    task: str
    pid: int
    began: float
    due: float | None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """A task that ran again. `killed`: when the process of its earlier run was killed; None if it was not."""

    task: str
    before: TaskRun
    killed: float | None

    @property
    def is_traced(self) -> bool:
        """Whether a kill explains the second run: the first one had not ended, or was not acknowledged yet."""
        if self.killed is None:
            return False
        return self.before.ended is None or self.killed - self.before.ended <= ACKNOWLEDGED_SECONDS


@dataclass(slots=True)
class Account:
    """Compares the tasks that were sent with their runs."""

    sent: int = 0
    chords: int = 0
    lost: list[str] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    early: list[TaskRun] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Tasks that ran although no producer reports that it sent them."""
    delayed: int = 0
    late_seconds: list[float] = field(default_factory=list)
    """Seconds from the time when a delayed task was due to the beginning of its first run."""

    @property
    def untraced_runs(self) -> list[Again]:
        """The tasks that ran again although no process died."""
        return [each for each in self.again if not each.is_traced]

    @property
    def is_good(self) -> bool:
        """Whether every task ran once, or again only because a process was killed."""
        return not (self.lost or self.untraced_runs or self.early or self.unknown)


@dataclass(frozen=True, slots=True)
class Result:
    """The faults that a run injected, and the account of its tasks."""

    account: Account
    errors: list[str]
    broken: dict[str, int]
    seconds: float
    load_average: float
    """Before the run; the lowest and the highest one of several runs are in the report."""


def sum_accounts(results: list[Result]) -> Account:
    """Add the accounts of several runs."""
    total = Account()
    for each in results:
        for slot in Account.__slots__:
            setattr(total, slot, getattr(total, slot) + getattr(each.account, slot))
    return total


def runs_of(notes: Iterable[str]) -> list[TaskRun]:
    """Read the runs that `chaos_app` has written down, in the order of their begin."""
    runs: dict[str, TaskRun] = {}
    for line in notes:
        what, run, *rest = line.split()
        if what == "began":
            task, pid, began, due = rest
            runs[run] = TaskRun(task, int(pid), float(began), None if due == "-" else float(due))
        else:
            runs[run].ended = float(rest[0])
    return sorted(runs.values(), key=lambda each: each.began)


class Progress:
    """Collects the tasks that have ended so far, while tasks write more notes. A task that ends twice counts once."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        """Tasks."""
        self._tasks: dict[str, str] = {}
        self._rest = b""

    def feed(self, chunk: bytes) -> bool:
        """Read further notes. Returns whether a run has ended."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        has_end = False
        for line in lines:
            what, run, *rest = line.decode().split()
            if what == "began":
                self._tasks[run] = rest[0]
            else:
                self.ended.add(self._tasks[run])
                has_end = True
        return has_end


def sent_of(lines: Iterable[str]) -> tuple[dict[str, str | None], int, list[str]]:
    """Parse the output of producers: each task with the chord that it belongs to, the number of chords, and errors."""
    tasks: dict[str, str | None] = {}
    chords, errors = 0, []
    for line in lines:
        what, _, rest = line.partition(" ")
        if what == "error":
            errors.append(rest)
            continue
        names = rest.split()
        tasks |= dict.fromkeys(names, names[0] if what == "chord" else None)
        chords += what == "chord"
    return tasks, chords, errors


def account(
    tasks: Mapping[str, str | None],
    chords: int,
    runs: Iterable[TaskRun],
    kills: Mapping[int, float],
    *,
    may_be_sent: bool,
) -> Account:
    """Account for every task. `kills`: when each process was killed. `may_be_sent`: whether errors may have sent tasks
    that the producers do not know.
    """
    by_task: dict[str, list[TaskRun]] = defaultdict(list)
    for run in runs:
        by_task[run.task].append(run)
    result = Account(len(tasks), chords)
    rerun_chords: dict[str, Again] = {}
    repeats: list[Again] = []
    for task, its_runs in by_task.items():
        for before, later in pairwise(its_runs):
            kill_time = kills.get(before.pid)
            if kill_time is not None and not before.began <= kill_time <= later.began:
                kill_time = None
            repeats.append(again := Again(task, before, kill_time))
            chord = tasks.get(task)
            if chord is not None and chord != task and again.is_traced:
                rerun_chords[chord] = again
    # A part that runs again may send the body of its chord again.
    result.again = [
        Again(each.task, rerun_chords[each.task].before, rerun_chords[each.task].killed)
        if not each.is_traced and each.task in rerun_chords
        else each
        for each in repeats
    ]
    result.lost = [task for task in tasks if all(run.ended is None for run in by_task.get(task, ()))]
    if not may_be_sent:
        result.unknown = [task for task in by_task if task not in tasks]
    for its_runs in by_task.values():
        if (due := its_runs[0].due) is not None:
            result.delayed += 1
            result.late_seconds.append(its_runs[0].began - due)
            result.early += [run for run in its_runs if run.began < due - _CLOCK_SECONDS]
    return result
