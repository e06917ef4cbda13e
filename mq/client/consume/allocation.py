"""Allocates a topic's queues to the members of a group. Pure: every member computes the same result.

All members of a group must use the same strategy, including members that use other RocketMQ clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from mq.client.message import MessageQueue
from mq.protocol.requests.allocation import allocate_averagely, allocate_consistently, allocate_in_circle

__all__ = [
    "Strategy",
    "allocate_averagely",
    "allocate_consistently",
    "allocate_fixed",
    "allocate_in_circle",
    "allocate_in_rooms",
    "allocate_nearby",
]

Q = TypeVar("Q")

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]
"""Called with the queues, the client ids of all members, both sorted, and one of these ids; returns that member's
queues.
"""


def allocate_fixed(queues_to_read: Iterable[MessageQueue]) -> Strategy:
    """Allocate the given queues, regardless of other members."""
    all_queues = list(queues_to_read)

    def allocate(queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str) -> list[MessageQueue]:
        return list(all_queues)

    return allocate


def allocate_in_rooms(rooms: Collection[str]) -> Strategy:
    """Allocate only queues of brokers named ``room@name`` with one of these rooms.

    Each member gets a contiguous share; the first members get one more each if queues are left over.
    """

    def allocate(queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        ours = [queue for queue in queues if queue.broker_name.count("@") == 1 and _room_of(queue) in rooms]
        position = client_ids.index(client_id)
        share, left_over = divmod(len(ours), len(client_ids))
        extra = share * len(client_ids) + position
        return ours[share * position : share * (position + 1)] + (
            ours[extra : extra + 1] if position < left_over else []
        )

    return allocate


def _room_of(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def allocate_nearby(
    inner: Strategy, room_of_queue: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """Allocate queues to members in the same room, with `inner`. All members share the queues of rooms without members.

    The strategy raises ValueError for a queue or a member without a room.
    """

    def allocate(queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of, members_of = _by_room(queues, room_of_queue), _by_room(client_ids, room_of_client)
        own = room_of_client(client_id)
        share = list(inner(queues_of.pop(own, []), members_of[own], client_id))
        for room in sorted(queues_of.keys() - members_of.keys()):
            share += inner(queues_of[room], client_ids, client_id)
        return share

    return allocate


def _by_room(members: Iterable[Q], room_of: Callable[[Q], str]) -> dict[str, list[Q]]:
    rooms: dict[str, list[Q]] = {}
    for each in members:
        room = room_of(each)
        if not room:
            raise ValueError(f"{each} belongs to no machine room")
        rooms.setdefault(room, []).append(each)
    return rooms
