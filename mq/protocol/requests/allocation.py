"""Allocates the queues of a topic to the members of a group. Pure: every member computes the same result.

Members compute it themselves, or ask a broker (request code 400). All members of a group must use the same strategy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

VIRTUAL_NODES: Final = 10


class Queue(Protocol):
    """A queue of a topic in one broker group."""

    @property
    def topic(self) -> str: ...
    @property
    def broker_name(self) -> str: ...
    @property
    def queue_id(self) -> int: ...


Q = TypeVar("Q")
QueueT = TypeVar("QueueT", bound=Queue)


def allocate_averagely(queues: Sequence[Q], client_ids: Sequence[str], client_id: str) -> list[Q]:
    """Return the contiguous share of `client_id`. Sizes differ by at most one; the first members get the larger shares.

    `queues` and `client_ids` must be sorted in the same way on every member, or shares overlap. A member not in
    `client_ids` gets nothing. Source: AllocateMessageQueueAveragely.
    """
    if client_id not in client_ids:
        return []
    position = client_ids.index(client_id)
    share, larger_shares = divmod(len(queues), len(client_ids))
    start = position * share + min(position, larger_shares)
    return list(queues[start : start + share + (position < larger_shares)])


def allocate_in_circle(queues: Sequence[Q], client_ids: Sequence[str], client_id: str) -> list[Q]:
    """Return every n-th queue for a group of n members (round-robin)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def allocate_consistently(queues: Sequence[QueueT], client_ids: Sequence[str], client_id: str) -> list[QueueT]:
    """Return the queues of `client_id` by consistent hashing: few queues move when a member joins or leaves."""
    return _of_members(queues, client_ids, {client_id})


def _of_members(queues: Sequence[QueueT], client_ids: Sequence[str], members: AbstractSet[str]) -> list[QueueT]:
    """The queues that consistent hashing assigns to some of ``client_ids``."""
    if members.isdisjoint(client_ids):
        return []
    places, owners = _ring(tuple(client_ids))

    def owner(queue: QueueT) -> str:
        return owners[bisect_left(places, ring_hash(_java_text(queue))) % len(owners)]

    return [queue for queue in queues if owner(queue) in members]


@lru_cache(maxsize=4)
def _ring(client_ids: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """The positions of the members' nodes, ascending, and their members; cached, since all members of a group need the
    same.
    """
    # If two nodes have the same position, the later one wins, as in a map.
    ring = {ring_hash(f"{each}-{node}"): each for each in client_ids for node in range(VIRTUAL_NODES)}
    places = sorted(ring)
    return places, [ring[place] for place in places]


STRATEGIES: Final[Mapping[str, Callable[[Sequence[Any], Sequence[str], str], list[Any]]]] = MappingProxyType(
    {
        "AVG": allocate_averagely,
        "AVG_BY_CIRCLE": allocate_in_circle,
        "CONSISTENT_HASH": allocate_consistently,
    }
)
"""The strategies by the names that clients use in requests."""


def share_with_next(
    strategy: Callable[[Sequence[QueueT], Sequence[str], str], list[QueueT]],
    queues: Sequence[QueueT],
    client_ids: Sequence[str],
    client_id: str,
    count: int,
) -> list[QueueT]:
    """Return the queues from which a popping member reads: its own, and those of the next ``count`` members.

    With more members than queues, each gets one queue, and several get the same one. Each queue occurs once, in any
    order.
    """
    if client_id not in client_ids:
        return []
    position = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[position % len(queues)]] if queues else []
    sharers = [client_ids[(position + step) % len(client_ids)] for step in range(min(count + 1, len(client_ids)))]
    if strategy is allocate_consistently:
        return _of_members(queues, client_ids, set(sharers))  # hashing everything for each of them would take seconds
    return list(dict.fromkeys(queue for each in sharers for queue in strategy(queues, client_ids, each)))


def ring_hash(text: str) -> int:
    """Return the position of a text on the ring of consistent hashing."""
    import hashlib  # here: with OpenSSL's part it takes half a megabyte of a client's memory

    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: Queue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
