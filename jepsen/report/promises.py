"""Lists the workloads that check each promise of docs/promises.md, and the number of runs that did. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Promise(NamedTuple):
    """A promise of docs/promises.md in short, and the workloads that check it; empty: all workloads do."""

    what: str
    workloads: tuple[str, ...]


PROMISES = (
    Promise("acknowledged means synced", ()),
    Promise("one order per queue", ("log", "bulk", "assigned", "order", "queue", "queries", "archive")),
    Promise("at least once", ("queue", "filtered", "assigned", "retries", "recreated")),
    Promise("one member at a time, in order", ("order", "ordered-pop", "lite")),
    Promise("committed offsets and settings", ("offsets", "register")),
    Promise("stored once by number", ("numbered",)),
    Promise("delayed and recalled messages", ("delays",)),
    Promise("transactional messages", ("transactions", "late-ends")),
    Promise("popped messages", ("pop", "ordered-pop", "lite", "grpc")),
    Promise("stored or not", ()),
    Promise("damage is repaired, and neither served nor copied", ()),
    Promise("a replica that lost data does not vote", ()),
)
"""The promises in the order of docs/promises.md."""


class CheckedRun(Protocol):
    """A run, as its report describes it."""

    @property
    def workload(self) -> str:
        """The name of the workload."""

    @property
    def faults(self) -> str:
        """The faults, separated by commas, or the name of a scenario."""

    @property
    def verdict(self) -> str:
        """The verdict as text. Only a `valid` run confirms a promise."""

    @property
    def operations(self) -> int:
        """The number of checked operations."""

    @property
    def compiled(self) -> int:
        """The number of messages that took the compiled send path. A run that sends is invalid without any."""


FAULTS = {
    "damage is repaired, and neither served nor copied": (
        "damage",
        "rot",
        "bit-errors",
        "helix",
        "every-file",
        "store-rot",
    ),
    "a replica that lost data does not vote": (
        "power-loss",
        "part-kill",
        "pause-kill",
        "power-loss-of-all",
        "staggered-power-loss",
        "peer-remove",
        "members-under-faults",
        "wrong-start",
        "members",
    ),
}
"""The kinds of faults that a run needs to check a promise about faults."""


def promise_lines(rows: Sequence[CheckedRun], valid: str) -> Iterable[str]:
    """Yield a Markdown table: for each promise its workloads, the runs and operations that confirmed it, and the
    messages on the compiled send path.
    """
    yield "| promise | workloads | valid runs | operations checked | messages by the compiled send path |"
    yield "|---|---|---:|---:|---:|"
    for promise in PROMISES:
        due = FAULTS.get(promise.what)
        valid_rows = [
            row
            for row in rows
            if row.verdict == valid
            and (not promise.workloads or row.workload in promise.workloads)
            and (due is None or any(fault in due for fault in row.faults.split(", ")))
        ]
        workloads = ", ".join(f"*{each}*" for each in promise.workloads) or "all"
        if due is not None:
            workloads += f" under {', '.join(due)}"
        operations = sum(row.operations for row in valid_rows)
        compiled_count = sum(row.compiled for row in valid_rows)
        yield f"| {promise.what} | {workloads} | {len(valid_rows) or 'none'} | {operations:,} | {compiled_count:,} |"
