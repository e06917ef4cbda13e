"""Notifies the members of consumer groups of membership changes (request code 40).

Every member is notified of each change. For a large group with many simultaneous changes that is a lot of notices, so
above a few members they are sent in portions, and changes in the meantime are covered by one further notice.

The client whose heartbeat caused the change is notified a little later than the others. Clients heartbeat one replica
after the other and rebalance at the end by themselves. A 5.x client that rebalances earlier has a subscription newer
than any replica knows, and cannot send it because it is still busy with the heartbeats; its pulls would be refused
until its next rebalance 20 seconds later.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from mq.broker.net.connection import ClientConnection
from mq.protocol.codes import RequestCode
from mq.protocol.requests.clients import ConsumerGroupExt
from mq.protocol.wire.encoding import encode_request

LATER_AT_ONCE = 500
"""For larger groups, members notified per timer tick."""
SENDER_TICKS = 5
"""Timer ticks before the client that caused a change is notified."""


class ChangeNotices:
    """Notifies members of changed groups: at most one notice per member is pending, and one more round per group.

    Args:
        at_once_max: how many members of a group are notified in the turn in which it changes.
    """

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        self._opaque = itertools.count(1)
        self._to_notify: dict[str, deque[ClientConnection]] = {}
        self._again: dict[str, list[ClientConnection]] = {}
        self._senders: dict[tuple[str, ClientConnection], int] = {}

    def notify(
        self, group: str, connections: Iterable[ClientConnection], *, sender: ClientConnection | None = None
    ) -> None:
        """Notify the members of a changed group. ``sender`` is the member whose heartbeat changed it, if any."""
        members = list(connections)
        if sender is not None and sender in members:
            members.remove(sender)
            self._senders[group, sender] = SENDER_TICKS
        if group in self._to_notify:
            self._again[group] = members
        elif len(members) <= self._at_once_max:
            self._send(group, members)
        else:
            self._to_notify[group] = deque(members)

    @property
    def are_pending(self) -> bool:
        """Whether notices are pending, so that `send_some` must be called."""
        return bool(self._senders or self._to_notify)

    def send_some(self) -> None:
        """Send some of the pending notices. A timer calls this."""
        for (group, sender), ticks in list(self._senders.items()):
            if ticks > 1:
                self._senders[group, sender] = ticks - 1
            else:
                del self._senders[group, sender]
                self._send(group, (sender,))
        budget = LATER_AT_ONCE
        for group in list(self._to_notify):
            connections = self._to_notify[group]
            count = min(budget, len(connections))
            self._send(group, [connections.popleft() for _ in range(count)])
            budget -= count
            assert budget >= 0, f"{-budget} members more than {LATER_AT_ONCE} are notified"
            if not connections:
                del self._to_notify[group]
                if (members := self._again.pop(group, None)) is not None:
                    self.notify(group, members)
            if not budget:
                # Rotate, so that no group is always served first.
                if group in self._to_notify:
                    self._to_notify[group] = self._to_notify.pop(group)
                break

    def check_invariants(self) -> None:
        """Assert that every pending notice will be sent, for tests."""
        assert all(self._to_notify.values()), f"no member waits for a notice, of one of {sorted(self._to_notify)}"
        orphans = self._again.keys() - self._to_notify.keys()
        assert not orphans, f"groups {sorted(orphans)} are to be notified again after a notice that nobody sends"
        for (group, _), ticks in self._senders.items():
            assert 1 <= ticks <= SENDER_TICKS, f"the sender of group {group} is notified after {ticks} ticks"

    def _send(self, group: str, connections: Iterable[ClientConnection]) -> None:
        ext = ConsumerGroupExt(consumer_group=group)
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        frame = encode_request(code, next(self._opaque), ext=ext.fields(), oneway=True)
        for connection in connections:
            if not connection.closed:
                connection.send(frame)
