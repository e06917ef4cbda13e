"""Moves the offsets of consumer groups from one cluster to the other, by the map of the mirror. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mq.cli.mirror.state import MirroredQueue
from mq.client.message import MessageQueue


class Move(NamedTuple):
    """The offsets of a group in one queue, at the source and at the target."""

    group: str
    origin: MessageQueue
    offset: int
    goal: MessageQueue
    goal_offset: int


def moves(
    queues: Iterable[MirroredQueue], group: str, offsets: Mapping[MessageQueue, int], *, back: bool = False
) -> list[Move]:
    """Translate the offsets of a group in mirrored queues; with ``back`` from the target to the source.

    A group in a queue without copied messages begins with the first message there.
    """
    all_moves: list[Move] = []
    for queue in queues:
        ends = [
            MessageQueue(queue.topic, queue.broker, queue.queue_id),
            MessageQueue(queue.target_topic, queue.target_broker, queue.target_queue),
        ]
        origin, goal = reversed(ends) if back else ends
        offset = offsets.get(origin)
        if offset is None:
            continue
        offset_map = queue.map()
        new_offset = offset_map.to_source(offset) if back else offset_map.to_target(offset)
        all_moves.append(Move(group, origin, offset, goal, new_offset or 0))
    return all_moves
