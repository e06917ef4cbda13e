"""The data that a pipeline stores in its table with each commit, and the rules of successive commits. Pure.

A commit has the position up to which the topic is in the table, so that rows and offsets cannot disagree: there is no
checkpoint besides. Commits of a table are numbered from 0; the table format ensures that a number is committed once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark.positions import Position, PositionInvalid, parse_position
from spark.tables.column_types import parse_schema

VERSION: Final = 1


class CommitRefused(Exception):
    """The table has commits that this pipeline must not continue. Nothing was written."""


class Overtaken(Exception):
    """Another process committed to the table meanwhile. Nothing of this commit is in the table."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a pipeline to its table.

    Args:
        pipeline: the pipeline's identity in the table, see `identity`.
        number: from 0.
        start, end: positions in the topic, as the data source has them; ``end`` is exclusive.
        messages: between the two positions; each became a row (or a change of one) or a dead letter.
        dead: the number of them that became dead letters.
        run: identifies the process that committed.
        schema: the columns of bodies that this and earlier commits have, with their types.
        begin: where the table begins: it has the messages between this position and ``end``.
    """

    pipeline: str
    number: int
    start: Mapping[str, Any]
    end: Mapping[str, Any]
    messages: int
    dead: int
    at_ms: int
    run: str
    schema: Mapping[str, str]
    begin: Mapping[str, Any]

    @property
    def position(self) -> Position:
        """Return the position at which the next commit begins. Raises PositionInvalid."""
        return parse_position(self.end)

    def to_json(self) -> str:
        """Write the commit as one line of JSON; the inverse of `parse_commit`."""
        document: dict[str, Any] = {
            "v": VERSION,
            "pipeline": self.pipeline,
            "number": self.number,
            "start": self.start,
            "end": self.end,
            "messages": self.messages,
            "dead": self.dead,
            "at_ms": self.at_ms,
            "run": self.run,
            "schema": dict(self.schema),
            "begin": self.begin,
        }
        return json.dumps(document, separators=(",", ":"))


def parse_commit(text: str, where: str) -> Commit:
    """Parse a line of `Commit.to_json` that was found at ``where``. Raises CommitRefused."""
    try:
        document = json.loads(text)
        if document["v"] != VERSION:
            raise CommitRefused(
                f"{where} was written by another version of raftmq (commits of version {document['v']}, this one reads "
                f"{VERSION}): continue with that one"
            )
        commit = Commit(
            str(document["pipeline"]),
            int(document["number"]),
            document["start"],
            document["end"],
            int(document["messages"]),
            int(document["dead"]),
            int(document["at_ms"]),
            str(document["run"]),
            dict(document["schema"]),
            document["begin"],
        )
        parse_position(commit.start)
        parse_position(commit.end)
        parse_position(commit.begin)
        parse_schema(commit.schema)
    except (ValueError, KeyError, TypeError, PositionInvalid) as error:
        raise CommitRefused(
            f"{where} is not a commit of a pipeline ({type(error).__name__}: {error}). Nothing was written; restore "
            f"the table to a state in which it is intact"
        ) from error
    return commit


def lineage(current: int | None, parents: Mapping[int, int | None]) -> list[int]:
    """The snapshots that make up a table, the newest first, by the parent of each: their times are from several clocks.
    The last one is the first whose parent is not known.
    """
    chain: list[int] = []
    while current is not None and current in parents:
        chain.append(current)
        current = parents[current]
    return chain


def identity(name: str, topic: str) -> str:
    """Return the text that identifies the pipeline in its table."""
    return f"{name}/{topic}"


def check_owner(last: Commit | None, pipeline: str, table: str) -> None:
    """Raise CommitRefused if the table belongs to another pipeline."""
    if last is not None and last.pipeline != pipeline:
        name, _, topic = last.pipeline.partition("/")
        raise CommitRefused(
            f"the table {table} belongs to the pipeline {name!r} from the topic {topic!r}. This one is "
            f"{pipeline.partition('/')[0]!r} from {pipeline.partition('/')[2]!r}: two pipelines cannot write one "
            f"table. Nothing was written; choose another table, or set name and topic back"
        )


def messages_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Return the offsets between two positions by queue, as first and end (exclusive), without empty queues.

    The begin of a query in a position is ignored: a commit has its start.
    """
    begin, until = parse_position(start).offsets, parse_position(end).offsets
    ranges = {queue: (begin.get(queue, 0), last) for queue, last in until.items()}
    return {queue: (low, high) for queue, (low, high) in sorted(ranges.items()) if low < high}


def offsets_option(ranges: Mapping[tuple[str, str, int], tuple[int, int]], side: int) -> str:
    """Write ranges as the option startingOffsets (side 0) or endingOffsets (side 1) of the data source."""
    offsets: dict[str, dict[str, int]] = {}
    for (topic, broker_name, queue_id), bounds in ranges.items():
        offsets.setdefault(topic, {})[f"{broker_name}:{queue_id}"] = bounds[side]
    return json.dumps(offsets)


def assign_option(ranges: Mapping[tuple[str, str, int], tuple[int, int]]) -> str:
    """Write the queues of ranges as the option assign."""
    queues: dict[str, list[str]] = {}
    for topic, broker_name, queue_id in ranges:
        queues.setdefault(topic, []).append(f"{broker_name}:{queue_id}")
    return json.dumps(queues)


def shown_position(position: Mapping[str, Any]) -> str:
    """Describe a position for people: the next offset of each queue, at most ten."""
    offsets = parse_position(position).offsets
    texts = [f"{broker_name}:{queue_id} {offset}" for (_, broker_name, queue_id), offset in sorted(offsets.items())]
    return ", ".join(texts[:10]) + (f" and {len(texts) - 10} more queues" if len(texts) > 10 else "")
