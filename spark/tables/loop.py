"""Runs the loop of a pipeline: plans, checks and commits, in this order. Needs neither Spark nor brokers.

For each commit:

1. the table tells where the last commit ended, and the topic where it ends now;
2. the range between is read and decoded, and each of its messages is accounted for;
3. messages that do not decode are sent to the dead-letter topic, under numbers by which brokers store them once;
4. rows and the new position become part of the table in one step, which fails if another process was faster.

A process that is killed anywhere begins again at 1: messages that are not in the table were not committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mq.inspection.formatting import time_of
from spark.option_table import QueueName
from spark.positions import Position, parse_position
from spark.tables.column_types import Schema, merge_schemas, parse_schema, written_schema
from spark.tables.commits import (
    Commit,
    CommitRefused,
    Overtaken,
    check_owner,
    identity,
    messages_between,
    shown_position,
)
from spark.tables.pipeline import Pipeline

OVERTAKEN_MAX: Final = 5
FEW: Final = 10
"""The number of dead letters that never stops a pipeline, whatever their share."""
RULES: Final = 2
"""Counts the changes of this program by which other messages became dead letters: a commit that was begun by another
version numbers its dead letters anew.
"""
Range = Mapping[QueueName, tuple[int, int]]


class Stopped(Exception):
    """The pipeline must not continue. The text has the offset, the reason and the remedy. Earlier commits stay."""


@dataclass(frozen=True, slots=True)
class CommitRange:
    """The range of a commit: from ``start`` to ``end``, or, to fill a table backward, from ``begin`` to where the table
    begins.
    """

    start: Mapping[str, Any]
    end: Mapping[str, Any]
    begin: Mapping[str, Any]


class Source(Protocol):
    """The topic as the loop uses it."""

    def beginning(self) -> dict[str, Any]:
        """Return the position at which a table without commits begins."""
        ...

    def earliest(self) -> dict[str, Any]:
        """Return the position of the first message that each queue of the topic still has."""
        ...

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the position where the next commit ends; ``start`` if nothing is left. Raises DataLoss and others."""
        ...


@dataclass(frozen=True, slots=True)
class RangeCounts:
    """Counts of a range: for each queue messages, first and last offset; and messages that do not decode.

    ``example`` is the first bad message and its reason.
    """

    queues: Mapping[tuple[str, int], tuple[int, int, int]]
    dead: int
    example: str | None = None


class Batch(Protocol):
    """The messages of one range after they were read and decoded."""

    schema: Schema
    """The columns of the bodies."""

    def count(self) -> RangeCounts:
        """Count the messages. Raises errors of Spark."""
        ...

    def send_dead(self, app_id: str, version: int) -> None:
        """Send the bad messages to the dead-letter topic. A repeated call does not duplicate them."""
        ...

    def close(self) -> None:
        """Release the cached messages of the batch."""
        ...


class Target(Protocol):
    """The table as the loop uses it."""

    def open(self) -> Commit | None:
        """Prepare the table, and return its last commit. Raises if another process writes the table."""
        ...

    def last(self) -> Commit | None:
        """Return the last commit."""
        ...

    def prepare(self, schema: Schema) -> None:
        """Add missing columns of bodies to the table. Raises SchemaInvalid, naming the columns that would break."""
        ...

    def create(self, schema: Schema, commit: Commit) -> None:
        """Create the table with these columns of bodies and a first commit without rows. Raises Overtaken."""
        ...

    def commit(self, batch: Any, commit: Commit) -> None:
        """Add the good rows and the commit in one step. Raises Overtaken."""
        ...


class Plans(Protocol):
    """Stores the range of a commit that has dead letters."""

    def plan(self) -> Commit | None:
        """Return the stored plan; None if there is none."""
        ...

    def keep_plan(self, commit: Commit) -> None:
        """Store the plan of a commit."""
        ...


@dataclass(slots=True)
class PipelineCounters:
    """The counters of a running pipeline."""

    commits: int = 0
    messages: int = 0
    dead: int = 0
    seconds: float = 0.0
    overtaken: int = 0


class Loop:
    """Runs the commits of one pipeline.

    Args:
        read: reads and decodes the messages of a range, with the columns of the last commit.
        run: identifies this process.
        clock: monotonic seconds. wall_clock_ms: epoch milliseconds.
        on_commit: told each commit, and the seconds that it took.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: Source,
        target: Target,
        plans: Plans,
        read: Callable[[Range, Schema], Batch],
        *,
        run: str,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        on_commit: Callable[[Commit, float], None] = lambda *_: None,
    ) -> None:
        self._pipeline = pipeline
        self._source = source
        self._target = target
        self._plans = plans
        self._read = read
        self._run = run
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._on_commit = on_commit
        self._identity = identity(pipeline.name, pipeline.topic)
        self._last: Commit | None = None
        self.figures = PipelineCounters()

    @property
    def last(self) -> Commit:
        """Return the last commit of the table."""
        assert self._last is not None, "`open` was called"
        return self._last

    def open(self) -> Commit:
        """Open the table, and create it if there is none: its first commit has no messages, only the position where it
        begins, so that a pipeline that is killed before its second commit begins there again.

        Returns the last commit. Raises CommitRefused if the table belongs to another pipeline, or a new one would begin
        in the future.
        """
        self._last = self._target.open()
        if self._last is None:
            start = self._pipeline.start
            if isinstance(start, int) and start > self._wall_clock_ms():
                raise CommitRefused(
                    f"start is in the future, at {time_of(start)}; to begin with the next message, set start to latest"
                )
            position = self._source.beginning()
            columns = self._pipeline.decode.columns
            schema = written_schema(columns)
            commit = Commit(
                self._identity, 0, position, position, 0, 0, self._wall_clock_ms(), self._run, schema, position
            )
            try:
                self._target.create(columns, commit)
                self._last = commit
            except Overtaken:
                self._last = self._there(self._target.last())
        check_owner(self._last, self._identity, self._pipeline.table.where)
        return self.last

    def status(self) -> str:
        """Describe for people how far the table has read the topic."""
        if self._last is None:
            return "The table has no messages."
        return f"The table has the messages before {shown_position(self._last.end)}."

    def step(self) -> bool:
        """Make the next commit; False if there is nothing to read.

        Raises:
            Stopped: messages do not decode, or were not all read; with the offset.
            DataLoss, ClusterChanged: the topic has changed; from the source.
        """
        return self._tried(self._next)

    def backfill_step(self) -> bool:
        """Commit messages that are older than the table, the newest of them first; False if there are none.

        Raises as `step`.
        """
        return self._tried(self._before)

    def _tried(self, plan: Callable[[], CommitRange]) -> bool:
        for _ in range(OVERTAKEN_MAX):
            try:
                return self._commit_next(plan())
            except Overtaken:
                self.figures.overtaken += 1
                self._last = self._there(self._target.last())
                check_owner(self._last, self._identity, self._pipeline.table.where)
        raise Stopped(
            f"another process committed to the table {self._pipeline.table.where} {OVERTAKEN_MAX} times before this "
            f"pipeline could: nothing of this commit is in the table. {self.status()} Run only one process of a "
            f"pipeline, and pause other writers of the table meanwhile"
        )

    def _there(self, commit: Commit | None) -> Commit:
        """Return the commit. Raises Stopped if the table has lost its commits."""
        if commit is None:
            raise Stopped(
                f"the table {self._pipeline.table.where}, or its commits, were removed while this pipeline ran: "
                f"nothing of this commit is in it. {self.status()} Restore it and run again, or write to a new table"
            )
        return commit

    def _commit_next(self, span: CommitRange) -> bool:
        began = self._clock()
        ranges = {**messages_between(span.start, span.end), **messages_between(span.begin, self.last.begin)}
        if not ranges:
            return False
        table_schema = parse_schema(self.last.schema)
        batch = self._read(ranges, table_schema)
        try:
            counts = batch.count()
            messages = self._check_complete(ranges, counts)
            schema = written_schema(merge_schemas(table_schema, batch.schema))
            commit = Commit(
                self._identity,
                self.last.number + 1,
                span.start,
                span.end,
                messages,
                counts.dead,
                self._wall_clock_ms(),
                self._run,
                schema,
                span.begin,
            )
            if counts.dead:
                self._check_share(commit, counts)
            self._target.prepare(batch.schema)
            if counts.dead:
                self._plans.keep_plan(commit)
                batch.send_dead(self._dead_letter_id(commit, ranges), commit.number)
            self._source.latest(dict(commit.end))  # the topic that was read is still the one that was planned
            self._target.commit(batch, commit)
        finally:
            batch.close()
        self._last = commit
        seconds = self._clock() - began
        self.figures.commits += 1
        self.figures.messages += messages
        self.figures.dead += counts.dead
        self.figures.seconds += seconds
        self._on_commit(commit, seconds)
        return True

    def _next(self) -> CommitRange:
        """The range behind the last commit; nothing if its start is its end."""
        start = dict(self.last.end)
        plan = self._repeated_plan()
        if plan is not None and plan.begin == self.last.begin:
            return CommitRange(plan.start, plan.end, plan.begin)
        return CommitRange(start, self._source.latest(start), self.last.begin)

    def _before(self) -> CommitRange:
        """The messages before the beginning of the table."""
        end, plan = self.last.end, self._repeated_plan()
        if plan is not None and plan.begin != self.last.begin:
            return CommitRange(end, end, plan.begin)
        begin = parse_position(self.last.begin)
        first = parse_position(self._source.earliest())
        older = messages_between(first.to_json(), self.last.begin)
        share = min(1.0, self._pipeline.messages_per_commit / max(1, sum(high - low for low, high in older.values())))
        offsets = dict(begin.offsets)
        for queue, (low, high) in older.items():
            offsets[queue] = high - max(1, int((high - low) * share))
        return CommitRange(end, end, Position(begin.cluster, begin.topic_ids, offsets).to_json())

    def _repeated_plan(self) -> Commit | None:
        """The plan of the next commit, if its dead letters may be in their topic already: then it must have the same
        messages again.
        """
        plan = self._plans.plan()
        next_commit = (self._identity, self.last.number + 1, self.last.end)
        return plan if plan is not None and (plan.pipeline, plan.number, plan.start) == next_commit else None

    def _check_complete(self, ranges: Range, counts: RangeCounts) -> int:
        """Return the number of messages in the ranges. Raises Stopped unless each was read exactly once."""
        for (topic, broker_name, queue_id), (low, high) in ranges.items():
            queue_count = counts.queues.get((broker_name, queue_id))
            if queue_count != (high - low, low, high - 1):
                text = "none" if queue_count is None else f"{queue_count[0]} from {queue_count[1]} to {queue_count[2]}"
                raise Stopped(
                    f"topic {topic!r}, queue {broker_name}:{queue_id}: offsets {low} to {high - 1} were planned "
                    f"({high - low} messages), and {text} were read. Nothing of them was committed"
                )
        if len(counts.queues) != len(ranges):
            raise Stopped("messages of unplanned queues were read. None of them was committed")
        return sum(high - low for low, high in ranges.values())

    def _check_share(self, commit: Commit, counts: RangeCounts) -> None:
        where = self._pipeline.dead_letters
        example = f"; the first is {counts.example}" if counts.example else ""
        text = f"{counts.dead} of {commit.messages} messages do not decode{example}."
        if where is None:
            raise Stopped(
                f"{text} None of them was committed. {self.status()} Correct decode, or set dead_letters.topic, the "
                f"topic for such messages"
            )
        if counts.dead >= FEW and counts.dead * 100 > commit.messages * where.stop_above_percent:
            raise Stopped(
                f"{text} That is more than dead_letters.stop_above_percent ({where.stop_above_percent}): probably "
                f"decode is wrong instead of the messages. None of them was committed. {self.status()} Correct "
                f"decode, or set stop_above_percent to 100"
            )

    def _dead_letter_id(self, commit: Commit, ranges: Range) -> str:
        """The id of a dead letter: equal for a repeated commit; another one if the rules for bad messages changed."""
        rules = repr((RULES, self._identity, self._pipeline.decode, commit.schema, ranges))
        return f"table-{self._pipeline.name}-{hashlib.sha256(rules.encode()).hexdigest()[:16]}"
