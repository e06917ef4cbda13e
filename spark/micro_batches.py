"""Plans the next micro-batch of a streaming query, and detects lost messages. Pure: no sockets, no clock.

A micro-batch is the messages between two positions. The ends of queues only grow, since every message below one is
committed; so a repeated batch has the same messages, or fewer if retention was faster, never others.

A queue that is not in the position is new, and begins at 0. A queue in the position stays there for ever, so that its
messages are not read again when it reappears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from mq.protocol.topic_identity import first_offset
from spark.option_table import QueueName
from spark.plan import QueueEnds, QueueRange
from spark.positions import Position, TopicInGroup

ASSUMED_MESSAGE_BYTES: Final = 1024
"""Used where brokers cannot report the message sizes of a queue."""

SHOWN_MAX: Final = 10

LossKind = Literal["deleted", "cut", "gone", "recreated"]
"""Deleted by retention; truncated; the queue does not exist; its topic was recreated."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The ends of the cluster's queues at one moment. Topic ids are empty where brokers do not have them.

    ``cluster`` are the names of clusters, separated by commas.
    """

    cluster: str
    topic_ids: Mapping[TopicInGroup, str]
    ends: Mapping[QueueName, QueueEnds]


class Loss(NamedTuple):
    """Messages of a queue that cannot be read: ``start`` up to but not including ``end``.

    ``end`` is None where their number is unknown. ``now`` is, for "deleted", the first available message, for "cut" the
    end of the queue.
    """

    kind: LossKind
    queue: QueueName
    start: int
    end: int | None
    now: int = 0

    @property
    def key(self) -> tuple[LossKind, QueueName]:
        """Return a key that stays equal for the same loss while more messages are lost."""
        return self.kind, self.queue


class Limits(NamedTuple):
    """The maximum size of a micro-batch; None means no limit."""

    records: int | None = None
    nbytes: int | None = None


class ClusterChanged(Exception):
    """The name servers belong to another cluster than the checkpoint does."""


def check_cluster(position: Position, snapshot: ClusterSnapshot) -> None:
    """Raise ClusterChanged unless the position and the snapshot are from the same cluster."""
    if (
        position.cluster
        and snapshot.cluster
        and not set(position.cluster.split(",")) & set(snapshot.cluster.split(","))
    ):
        raise ClusterChanged(
            f"the checkpoint belongs to the cluster {position.cluster!r}, the name servers lead to "
            f"{snapshot.cluster!r}. Set option namesrv to the cluster of the checkpoint, or begin with "
            "a new checkpointLocation"
        )


def recreated_topics(position: Position, snapshot: ClusterSnapshot) -> set[TopicInGroup]:
    """Return the topics, with their broker groups, that were recreated after the position was saved."""
    return {
        each
        for each, identity in position.topic_ids.items()
        if identity and snapshot.topic_ids.get(each, identity) not in ("", identity)
    }


def losses(position: Position, snapshot: ClusterSnapshot, last_offsets: Mapping[QueueName, int]) -> list[Loss]:
    """Find the messages behind the position that can never be read, by queue.

    Args:
        last_offsets: the end that each queue had when it was last seen by this process.
    """
    losses_found: list[Loss] = []
    again = recreated_topics(position, snapshot)
    for queue, offset in position.offsets.items():
        ends = snapshot.ends.get(queue)
        if ends is not None and ends.first <= offset <= ends.end and not again:
            continue  # nearly always, and there may be thousands of queues
        last = last_offsets.get(queue)
        if queue[:2] in again:
            if last is None or last > offset:
                losses_found.append(Loss("recreated", queue, offset, last))
        elif ends is None:
            if last is None or last > offset:
                losses_found.append(Loss("gone", queue, offset, last))
        elif ends.end < offset:
            losses_found.append(Loss("cut", queue, ends.end, offset, ends.end))
        elif ends.first > offset:
            losses_found.append(Loss("deleted", queue, offset, ends.first, ends.first))
    for queue in snapshot.ends.keys() - position.offsets.keys():
        begin, first = first_offset(snapshot.topic_ids.get(queue[:2], ""), queue[2]), snapshot.ends[queue].first
        if first > begin:
            losses_found.append(Loss("deleted", queue, begin, first, first))
    return sorted(losses_found, key=lambda loss: loss.queue)


def next_position(
    start: Position, snapshot: ClusterSnapshot, limits: Limits, cap: Mapping[QueueName, int] | None = None
) -> Position | None:
    """Return the position at which the micro-batch after ``start`` ends; None if there is nothing to read.

    Args:
        cap: no queue is read beyond this, nor one that is not in it.

    Each queue contributes in proportion to its backlog, and at least one message, so that none starves.
    """
    again = recreated_topics(start, snapshot)
    backlog: dict[QueueName, QueueRange] = {}
    sizes: dict[QueueName, float] = {}
    for queue, ends in snapshot.ends.items():
        begin = max(0 if again and queue[:2] in again else start.offsets.get(queue, 0), ends.first)
        if begin >= ends.end:
            continue
        end = ends.end if cap is None else min(ends.end, cap.get(queue, 0))
        if begin < end:
            backlog[queue] = QueueRange(queue[2], begin, end)
            count = ends.end - ends.first
            sizes[queue] = ends.nbytes / count if ends.nbytes and count else ASSUMED_MESSAGE_BYTES
    if not backlog:
        return None
    offsets: dict[QueueName, int] = dict(start.offsets)
    idle: dict[QueueName, int] = {}
    if again:
        offsets = {queue: offset for queue, offset in start.offsets.items() if queue[:2] not in again}
        idle = {queue: ends.first for queue, ends in snapshot.ends.items() if queue[:2] in again}
    ids = {**start.topic_ids, **snapshot.topic_ids}
    return Position(
        start.cluster or snapshot.cluster,
        {each: identity or start.topic_ids.get(each, "") for each, identity in ids.items()},
        {**offsets, **idle, **limit_batch(backlog, sizes, limits)},
        start.began if start.is_beginning else None,
    )


def limit_batch(
    backlog: Mapping[QueueName, QueueRange], sizes: Mapping[QueueName, float], limits: Limits
) -> dict[QueueName, int]:
    """Return the offset at which each queue ends in a micro-batch within the limits, up to one message per queue.

    Args:
        backlog: the ranges to read; none is empty.
        sizes: the average bytes of a message in each queue.
    """
    share = 1.0
    if limits.records is not None:
        share = min(share, limits.records / max(1, sum(each.message_count for each in backlog.values())))
    if limits.nbytes is not None:
        nbytes = sum(each.message_count * sizes[queue] for queue, each in backlog.items())
        share = min(share, limits.nbytes / max(1.0, nbytes))
    if share >= 1:
        return {queue: each.end for queue, each in backlog.items()}
    return {queue: each.start + max(1, int(each.message_count * share)) for queue, each in backlog.items()}


def message_count(start: Position, snapshot: ClusterSnapshot) -> int:
    """Count the messages behind a position."""
    again = recreated_topics(start, snapshot)
    return sum(
        max(0, ends.end - max(0 if queue[:2] in again else start.offsets.get(queue, 0), ends.first))
        for queue, ends in snapshot.ends.items()
    )


def batch_ranges(
    start: Position, end: Position, snapshot: ClusterSnapshot
) -> tuple[dict[QueueName, QueueRange], list[Loss]]:
    """Return the readable ranges between two positions, and the messages lost between them.

    The beginning in ``end`` takes precedence over ``start``, which may have been queried again.
    """
    begin = end.began if end.began is not None else start.offsets
    changed_topics = {
        each
        for each, identity in end.topic_ids.items()
        if start.topic_ids.get(each, identity) != identity and start.topic_ids[each]
    }
    again = recreated_topics(end, snapshot)
    ranges: dict[QueueName, QueueRange] = {}
    data_losses: list[Loss] = []
    for queue, last in sorted(end.offsets.items()):
        first = 0 if queue[:2] in changed_topics else begin.get(queue, 0)
        if first >= last:
            continue
        ends = snapshot.ends.get(queue)
        if queue[:2] in again:
            data_losses.append(Loss("recreated", queue, first, last))
        elif ends is None:
            data_losses.append(Loss("gone", queue, first, last))
        else:
            if ends.first > first:
                data_losses.append(Loss("deleted", queue, first, min(ends.first, last), ends.first))
            if ends.end < last:
                data_losses.append(Loss("cut", queue, max(first, ends.end), last, ends.end))
            first, last = max(first, ends.first), min(last, ends.end)
            if first < last:
                ranges[queue] = QueueRange(queue[2], first, last)
    return ranges, data_losses


# -- texts -------------------------------------------------------------------------------------------------------------


def loss_text(data_losses: Iterable[Loss]) -> str:
    """Describe lost messages, with numbers and remedies: a paragraph for each kind."""
    paragraphs = []
    for kind, say in _WORDS.items():
        if same_kind := [each for each in data_losses if each.kind == kind]:
            examples = "; ".join(say(each) for each in same_kind[:SHOWN_MAX])
            more = f"; and {len(same_kind) - SHOWN_MAX} more queues" if len(same_kind) > SHOWN_MAX else ""
            paragraphs.append(f"{examples}{more}. {REMEDIES[kind]}")
    return "\n".join(paragraphs)


def _deleted_text(loss: Loss) -> str:
    count = (loss.end or 0) - loss.start
    return (
        f"{_queue_of(loss)}: offsets {loss.start} to {(loss.end or 0) - 1} ({count} messages) were deleted before they "
        f"were read, the queue begins at {loss.now} now"
    )


def _cut_text(loss: Loss) -> str:
    return (
        f"{_queue_of(loss)}: offsets {loss.start} to {(loss.end or 0) - 1} existed before and no longer exist "
        f"({(loss.end or 0) - loss.start} messages), the queue ends at {loss.now} now"
    )


def _gone_text(loss: Loss) -> str:
    return f"{_queue_of(loss)} no longer exists; {_unread_text(loss)}"


def _recreated_text(loss: Loss) -> str:
    return f"{_queue_of(loss)}: the topic was deleted and created again; {_unread_text(loss)}"


def _unread_text(loss: Loss) -> str:
    if loss.end is None:
        return f"it was read up to offset {loss.start}, and may have had more messages"
    return f"offsets {loss.start} to {loss.end - 1} ({loss.end - loss.start} messages) were not read"


def _queue_of(loss: Loss) -> str:
    topic, broker_name, queue_id = loss.queue
    return f"topic {topic!r}, queue {broker_name}:{queue_id}"


_WORDS: Final[dict[LossKind, Callable[[Loss], str]]] = {
    "deleted": _deleted_text,
    "cut": _cut_text,
    "gone": _gone_text,
    "recreated": _recreated_text,
}
REMEDIES: Final[dict[LossKind, str]] = {
    "deleted": "Keep messages longer (fileReservedTime), read sooner, or set failOnDataLoss=false to go on without "
    "them",
    "cut": "The name servers lead to another cluster, or a broker group has lost its log: correct option namesrv, or "
    "begin with a new checkpointLocation. With failOnDataLoss=false such a queue is read on once it has grown past "
    "that offset",
    "gone": "If the broker group comes back, start the query again; set failOnDataLoss=false to go on without the "
    "queue",
    "recreated": "Set failOnDataLoss=false to go on with the new topic from its first message, or begin with a new "
    "checkpointLocation; if the topic was not created again, the name servers lead to another cluster",
}
"""The remedies for a query with a checkpoint, by kind of loss."""
