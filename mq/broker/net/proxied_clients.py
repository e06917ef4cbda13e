"""Registers clients of proxies as members of consumer groups, by the connection of their proxy.

A proxy names all its clients in each heartbeat, and they are members as long as it does. They pop, and take no share of
a group's queues: so they are apart from the members in `mq.broker.net.clients`, which divide the queues among
themselves, and other members are not notified of them. Like those, they are never replicated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic

from mq.broker.net.consumer_group import ConnectionT
from mq.broker.net.heartbeat_limits import HeartbeatLimits
from mq.protocol.names import NameRefused, check_group
from mq.protocol.requests.clients import ClientBehindProxy

_ADDRESS_LENGTH_MAX: Final = 64
_ENUM_LENGTH_MAX: Final = 64


class ProxiedClients(Generic[ConnectionT]):
    """Tracks the clients behind all connected proxies, which the proxies' heartbeats list."""

    def __init__(self, limits: HeartbeatLimits) -> None:
        self._limits = limits
        self._of: dict[ConnectionT, tuple[float, tuple[ClientBehindProxy, ...]]] = {}
        self._groups: dict[str, dict[tuple[ConnectionT, str], ClientBehindProxy]] = {}
        self._count = 0

    def heartbeat(self, now: float, connection: ConnectionT, clients: Sequence[ClientBehindProxy]) -> None:
        """Replace the clients behind a proxy's connection by ``clients``.

        Leaves out clients that exceed a limit, and registers the others.
        """
        entry = self._of.get(connection)
        if not clients and entry is None:
            return
        if entry is not None and entry[1] == tuple(clients):
            self._of[connection] = now, entry[1]
            return
        self.connection_closed(connection)
        room = self._limits.proxied_clients_max - self._count
        valid_clients = {(each.group, each.client_id): each for each in clients if self._fits(each)}
        additions = tuple(valid_clients.values())[: max(room, 0)]
        if not additions:
            return
        self._of[connection] = now, additions
        self._count += len(additions)
        for each in additions:
            self._groups.setdefault(each.group, {})[connection, each.client_id] = each
        count_max = self._limits.proxied_clients_max
        assert self._count <= count_max, f"{self._count} clients behind proxies; maximum: {count_max}"

    def connection_closed(self, connection: ConnectionT) -> None:
        """Remove the clients of a proxy whose connection was closed."""
        _, clients = self._of.pop(connection, (0.0, ()))
        self._count -= len(clients)
        assert self._count >= 0, f"{self._count} clients are left, after {len(clients)} behind one proxy"
        for each in clients:
            members = self._groups[each.group]
            del members[connection, each.client_id]
            if not members:
                del self._groups[each.group]

    def remove(self, group: str, client_id: str) -> bool:
        """Remove a member from all proxies, and return whether it was one. A later heartbeat may add it again."""
        at = [connection for connection, name in self._groups.get(group, {}) if name == client_id]
        for connection in at:
            heard_at, clients = self._of[connection]
            others = [each for each in clients if (each.group, each.client_id) != (group, client_id)]
            self.heartbeat(heard_at, connection, others)
        return bool(at)

    def expire(self, now: float) -> None:
        """Remove the clients of proxies that were silent for `HeartbeatLimits.expiry_seconds`."""
        oldest = now - self._limits.expiry_seconds
        for connection in [each for each, (heard_at, _) in self._of.items() if heard_at < oldest]:
            self.connection_closed(connection)

    def members(self, group: str) -> Iterator[tuple[ConnectionT, ClientBehindProxy]]:
        """Yield the members of a group, each with the connection of its proxy."""
        for (connection, _), client in self._groups.get(group, {}).items():
            yield connection, client

    def connection(self, group: str, client_id: str) -> ConnectionT | None:
        """Return the newest connection of a proxy in front of a member; None if it is not a member."""
        return next((at for at, name in reversed(self._groups.get(group, {})) if name == client_id), None)

    def counts(self) -> Iterable[tuple[str, int]]:
        """Yield each group with members behind proxies, and their number."""
        return ((group, len(members)) for group, members in self._groups.items())

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups with a member behind a proxy that subscribes to a topic."""
        return [
            group
            for group, members in self._groups.items()
            if any(topic == each[0] for client in members.values() for each in client.subscriptions)
        ]

    def check_invariants(self) -> None:
        """Assert that groups and connections list each other, for tests."""
        pairs = {(each.group, at, each.client_id) for at, (_, clients) in self._of.items() for each in clients}
        by_group = {(group, *key) for group, members in self._groups.items() for key in members}
        assert pairs == by_group, f"{len(by_group)} members of groups, connections list {len(pairs)}"
        assert self._count == sum(len(clients) for _, clients in self._of.values()), f"counted {self._count}"
        assert self._count <= self._limits.proxied_clients_max, f"{self._count} clients"

    def _fits(self, client: ClientBehindProxy) -> bool:
        limits = self._limits
        try:
            check_group(client.group)
        except NameRefused:
            return False
        texts = [text for row in client.subscriptions for text in row]
        return (
            0 < len(client.client_id) <= limits.proxied_client_id_length_max
            and len(client.address) <= _ADDRESS_LENGTH_MAX
            and max(len(client.language), len(client.consume_type)) <= _ENUM_LENGTH_MAX
            and sum(map(len, texts)) <= limits.proxied_expressions_length_max
        )
