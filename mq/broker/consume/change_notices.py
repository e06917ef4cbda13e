"""Tells the members of consumer groups that they are others now (request code 40).

A change of a group is told to all of its members. In a large one of which many come or go at once that is a great many,
so beyond a few members it is done by and by, and what changes meanwhile is told once, afterwards.

Whoever brought the change about by a heartbeat is told a little later than the others. Clients heartbeat one replica
after the other and rebalance by themselves at the end. One of 5.x that rebalances before that has a newer subscription
than any replica knows and cannot tell it, for it is still busy with the heartbeats; its pulls are refused until its
next rebalance, 20 seconds later.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from mq.broker.net.connection import ClientConnection
from mq.protocol.admin_requests import ConsumerGroupExt
from mq.protocol.codes import RequestCode
from mq.protocol.headers import encode_request

AT_ONCE_MAX = 50
"""Members of a group that are told in the turn in which it changes."""
LATER_AT_ONCE = 500
"""Of larger groups, so many are told each time that the timer fires."""
SENDER_TICKS = 5
"""The timer fires so often before the one who brought a change about is told."""


class ChangeNotices:
    """What is still to be told: at most one notice to each member of each group, and one more for all of them."""

    def __init__(self) -> None:
        self._opaque = itertools.count(1)
        self._telling: dict[str, deque[ClientConnection]] = {}
        self._again: dict[str, list[ClientConnection]] = {}
        self._senders: dict[tuple[str, ClientConnection], int] = {}

    def tell(
        self, group: str, connections: Iterable[ClientConnection], *, sender: ClientConnection | None = None
    ) -> None:
        """The members of a group are these now, by a heartbeat of ``sender`` if that is one of them."""
        members = list(connections)
        if sender is not None and sender in members:
            members.remove(sender)
            self._senders[group, sender] = SENDER_TICKS
        if group in self._telling:
            self._again[group] = members
        elif len(members) <= AT_ONCE_MAX:
            self._send(group, members)
        else:
            self._telling[group] = deque(members)

    def go_on(self) -> None:
        """Tell some of those who were not told yet; called by a timer."""
        for (group, sender), ticks in list(self._senders.items()):
            if ticks > 1:
                self._senders[group, sender] = ticks - 1
            else:
                del self._senders[group, sender]
                self._send(group, (sender,))
        left = LATER_AT_ONCE
        for group in list(self._telling):
            waiting = self._telling[group]
            count = min(left, len(waiting))
            self._send(group, [waiting.popleft() for _ in range(count)])
            left -= count
            if not waiting:
                del self._telling[group]
                if (members := self._again.pop(group, None)) is not None:
                    self.tell(group, members)
            if not left:
                # Whoever was served first comes last the next time.
                if group in self._telling:
                    self._telling[group] = self._telling.pop(group)
                break

    def _send(self, group: str, connections: Iterable[ClientConnection]) -> None:
        ext = ConsumerGroupExt(consumer_group=group)
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        frame = encode_request(code, next(self._opaque), ext=ext.fields(), oneway=True)
        for connection in connections:
            if not connection.closed:
                connection.send(frame)
