"""Which queues of a topic belong to which member of a group: pure, the same on every member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Q = TypeVar("Q")


def allocate_averagely(queues: Sequence[Q], client_ids: Sequence[str], client_id: str) -> list[Q]:
    """The contiguous share of `client_id`; sizes differ by at most one, the first members get the larger shares.

    `queues` and `client_ids` must be sorted the same way on every member, else shares overlap. A member that is
    not in `client_ids` gets nothing. Source: AllocateMessageQueueAveragely.
    """
    if client_id not in client_ids:
        return []
    position = client_ids.index(client_id)
    share, larger_shares = divmod(len(queues), len(client_ids))
    start = position * share + min(position, larger_shares)
    return list(queues[start : start + share + (position < larger_shares)])
