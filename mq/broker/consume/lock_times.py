"""Tracks when, and from which host, each queue lock was last renewed. Only the leader knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

Table = tuple[str, str]
"""A group and a topic."""


class LockTimes:
    """Maps each locked queue to the time of its last renewal, in monotonic seconds, and the host that sent it."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[int, tuple[float, bytes]]] = {}
        self._of_host: Counter[bytes] = Counter()

    def __iter__(self) -> Iterator[Table]:
        """Yield the groups and topics with renewed locks."""
        return iter(self._tables)

    def clear(self) -> None:
        """Forget the renewals of all queues."""
        self._tables.clear()
        self._of_host.clear()

    def add(self, table: Table, queue_id: int, at: float, host: bytes) -> None:
        """Record a renewal of a queue's lock."""
        self.forget(table, queue_id)
        self._tables.setdefault(table, {})[queue_id] = at, host
        self._of_host[host] += 1

    def at(self, table: Table, queue_id: int) -> float | None:
        """Return when a lock was last renewed; None if it was not since this replica leads."""
        renewal = self._tables.get(table, {}).get(queue_id)
        return None if renewal is None else renewal[0]

    def forget(self, table: Table, queue_id: int) -> None:
        """Remove the renewal of a released lock."""
        queues = self._tables.get(table, {})
        renewal = queues.pop(queue_id, None)
        if renewal is None:
            return
        if not queues:
            del self._tables[table]
        self._of_host[renewal[1]] -= 1
        assert self._of_host[renewal[1]] >= 0, f"{renewal[1]!r} has renewed {self._of_host[renewal[1]]} locks"
        if not self._of_host[renewal[1]]:
            del self._of_host[renewal[1]]

    def keep(self, table: Table, queue_ids: Container[int]) -> None:
        """Remove all queues of a table except ``queue_ids``: their topic or group was deleted."""
        for queue_id in [each for each in self._tables.get(table, {}) if each not in queue_ids]:
            self.forget(table, queue_id)

    def check_invariants(self) -> None:
        """Assert that the locks of each host are counted right, for tests."""
        hosts = Counter(host for queues in self._tables.values() for _, host in queues.values())
        assert hosts == self._of_host, f"locks by host are {dict(hosts)}, counted are {dict(self._of_host)}"
        assert all(self._tables.values()), f"a table without renewed locks: {sorted(self._tables)}"

    def of_host(self, host: bytes) -> int:
        """Return the number of locks that a host has renewed."""
        return self._of_host[host]
