"""The position of a streaming query: the next offset of each queue. Spark keeps it in the checkpoint. Pure.

    {"v": 1, "cluster": "Default", "topics": {"Orders": {"id": {"broker-a": "12-17..."}, "q": {"broker-a:0": 4}}}}

Spark compares offsets as text, so keys are sorted: another order of equal values would cause an endless series of empty
micro-batches.

Spark records where a micro-batch ends but never where the first one begins. If the first one has to be repeated, Spark
queries its start again, when `startingOffsets=latest` means another position. So the end of the first micro-batch also
carries its start, under ``from``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark.option_table import QueueName

VERSION: Final = 1
TopicInGroup = tuple[str, str]
"""Topic and broker name."""


class PositionInvalid(Exception):
    """An offset in a checkpoint was not written by raftmq, or has an unsupported version."""


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read of each queue.

    ``topic_ids`` distinguish a topic from a later one of the same name; empty where the brokers do not have them.
    ``began`` is where the query began: equal to ``offsets`` at the start, lower at the end of the first micro-batch,
    and None from then on.
    """

    cluster: str
    topic_ids: Mapping[TopicInGroup, str]
    offsets: Mapping[QueueName, int]
    began: Mapping[QueueName, int] | None = field(default=None)

    @property
    def is_beginning(self) -> bool:
        """Whether nothing has been read yet."""
        return self.began is not None and self.began == self.offsets

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON values for Spark; the inverse of `parse_position`."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, broker_name), identity in sorted(self.topic_ids.items()):
            topics.setdefault(topic, {"id": {}, "q": {}})["id"][broker_name] = identity
        if self.began is not None:
            for document in topics.values():
                document["from"] = {}
        for name, offsets in (("q", self.offsets), ("from", self.began or {})):
            for (topic, broker_name, queue_id), offset in sorted(offsets.items()):
                topics[topic][name][f"{broker_name}:{queue_id}"] = offset
        return {"v": VERSION, "cluster": self.cluster, "topics": topics}


def parse_position(offset: Mapping[str, Any]) -> Position:
    """Parse the result of `Position.to_json`. Raises PositionInvalid."""
    version = offset.get("v")
    if version != VERSION:
        raise PositionInvalid(
            f"the checkpoint has an offset of version {version!r}, this program reads version {VERSION}: it was "
            f"written by another version of the data source, or by another data source. Go on with that one, or "
            f"begin with a new checkpointLocation"
        )
    try:
        topics = offset["topics"]
        is_first = any("from" in each for each in topics.values())
        return Position(
            str(offset["cluster"]),
            {(topic, name): str(identity) for topic, each in topics.items() for name, identity in each["id"].items()},
            _queues(topics, "q"),
            _queues(topics, "from") if is_first else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PositionInvalid(
            f"the checkpoint has an offset that cannot be read ({type(error).__name__}: {error}); begin with a new "
            f"checkpointLocation"
        ) from error


def _queues(topics: Mapping[str, Any], name: str) -> dict[QueueName, int]:
    offsets: dict[QueueName, int] = {}
    for topic, each in topics.items():
        for queue, offset in each[name].items():
            broker_name, _, queue_id = queue.rpartition(":")
            offsets[topic, broker_name, int(queue_id)] = int(offset)
    return offsets
