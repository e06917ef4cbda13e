"""The clients that read lite topics, their subscriptions, and the lite topics that may have messages for them.

Clients send their subscriptions again after a change of leader, and from time to time. News is a hint: whoever serves a
client looks at the queue itself. `LiteClient.ready` are the queues that probably have a message for the client; what
ends a queue's rest (a message, an acknowledgement, the end of an invisible time) puts it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from mq.protocol.names import split_lite_queue

ConnectionT = TypeVar("ConnectionT")

ClientKey = tuple[str, str]
"""Group and client id."""


class LiteClient(Generic[ConnectionT]):
    """A client of a group, with the lite topics that it subscribes to.

    Attributes:
        key: its group and its id.
        parent: the topic whose lite topics it reads.
        queues: those that it subscribes to, by the names of their queues; None for a client that reads all.
        ready: where there may be something for it, the longest waiting first. Clients that read all share one table.
        heard_at: when it was heard last, in monotonic seconds.
        checked_at: when all of its subscriptions were looked at last.
        connection: where it was heard last.
        lost_queues: queues that another client took from it while it was gone: it hears of them when it is back.
        attempt: the id of its last request that got messages, and the queues that they are from.
    """

    __slots__ = ("attempt", "checked_at", "connection", "heard_at", "key", "lost_queues", "parent", "queues", "ready")

    def __init__(self, key: ClientKey, parent: str, queues: set[str] | None, ready: dict[str, None]) -> None:
        self.key = key
        self.parent = parent
        self.queues = queues
        self.ready = ready
        self.heard_at = self.checked_at = float("-inf")
        self.connection: ConnectionT | None = None
        self.lost_queues: set[str] = set()
        self.attempt: tuple[str, list[str]] = ("", [])

    def reads(self, queue: str) -> bool:
        """Whether the client subscribes to the lite topic of this queue."""
        return split_lite_queue(queue)[0] == self.parent if self.queues is None else queue in self.queues


class LiteSubscriptions(Generic[ConnectionT]):
    """The subscriptions of clients to lite topics, by group and client id.

    Attributes:
        count: subscriptions of all clients; one that reads all lite topics counts once.
    """

    def __init__(self) -> None:
        self.clients: dict[ClientKey, LiteClient[ConnectionT]] = {}
        self.count = 0
        self._by_queue: dict[str, dict[ClientKey, LiteClient[ConnectionT]]] = {}
        self._wild: dict[str, dict[str, dict[ClientKey, LiteClient[ConnectionT]]]] = {}
        """Clients that read all, by parent topic and group."""

    def clear(self) -> None:
        """Forget all clients, since this replica stopped leading."""
        self.clients.clear()
        self._by_queue.clear()
        self._wild.clear()
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, key: object) -> bool:
        """Whether any client subscribes to a queue, given as topic and queue id."""
        assert isinstance(key, tuple), key
        queue = key[0]
        return queue in self._by_queue or (bool(self._wild) and split_lite_queue(queue)[0] in self._wild)

    def open(self, key: ClientKey, parent: str, *, wildcard: bool) -> LiteClient[ConnectionT]:
        """Return a client; create it if it is new, or if its parent topic or ``wildcard`` has changed."""
        client = self.clients.get(key)
        if client is not None and client.parent == parent and (client.queues is None) is wildcard:
            return client
        if client is not None:
            self.drop(client)
        if not wildcard:
            client = self.clients[key] = LiteClient(key, parent, set(), {})
            return client
        group = self._wild.setdefault(parent, {}).setdefault(key[0], {})
        ready: dict[str, None] = next(iter(group.values())).ready if group else {}
        assert key not in group, f"{key} reads all lite topics of {parent} already"
        client = self.clients[key] = group[key] = LiteClient(key, parent, None, ready)
        self.count += 1
        return client

    def add(self, client: LiteClient[ConnectionT], queues: Iterable[str]) -> list[str]:
        """Subscribe a client to queues; return those that are new for it."""
        assert client.queues is not None, f"{client.key} reads all lite topics"
        new_queues = [queue for queue in queues if queue not in client.queues]
        client.lost_queues.difference_update(new_queues)
        for queue in new_queues:
            client.queues.add(queue)
            self._by_queue.setdefault(queue, {})[client.key] = client
        self.count += len(new_queues)
        assert self.count >= len(client.queues), f"{self.count} subscriptions, {len(client.queues)} of {client.key}"
        return new_queues

    def remove(self, client: LiteClient[ConnectionT], queues: Iterable[str]) -> list[str]:
        """Unsubscribe a client from queues; return those that it had subscribed to."""
        if client.queues is None:
            return []
        own_queues = [queue for queue in queues if queue in client.queues]
        for queue in own_queues:
            client.queues.discard(queue)
            client.ready.pop(queue, None)
            others = self._by_queue[queue]
            del others[client.key]
            if not others:
                del self._by_queue[queue]
        self.count -= len(own_queues)
        assert self.count >= 0, f"{self.count} subscriptions without {len(own_queues)} of {client.key}"
        return own_queues

    def drop(self, client: LiteClient[ConnectionT]) -> None:
        """Forget a client and its subscriptions."""
        if client.queues is not None:
            self.remove(client, list(client.queues))
        else:
            groups = self._wild[client.parent]
            del groups[client.key[0]][client.key]
            if not groups[client.key[0]]:
                del groups[client.key[0]]
            if not groups:
                del self._wild[client.parent]
            self.count -= 1
        assert self.count >= 0, f"{self.count} subscriptions without client {client.key}"
        del self.clients[client.key]

    def silent(self, before: float) -> list[LiteClient[ConnectionT]]:
        """Return the clients whose last request came before the time ``before``."""
        return [client for client in self.clients.values() if client.heard_at < before]

    def subscribers(self, queue: str, group: str) -> list[LiteClient[ConnectionT]]:
        """Return the clients of a group that subscribe to this lite topic, without those that read all lite topics."""
        return [client for client in self._by_queue.get(queue, {}).values() if client.key[0] == group]

    def all_subscribers(self, queue: str) -> list[ClientKey]:
        """Return the subscribers of a lite topic, sorted; ``*`` stands for a group's clients that read all."""
        clients = sorted(self._by_queue.get(queue, {}))
        return clients + [(group, "*") for group in sorted(self._wild.get(split_lite_queue(queue)[0], {}))]

    def news(self, queue: str, group: str | None = None) -> Iterator[LiteClient[ConnectionT]]:
        """Add a queue to `LiteClient.ready` of its subscribers, in one group or in all, and yield these clients."""
        for client in self._by_queue.get(queue, {}).values():
            if group is None or client.key[0] == group:
                client.ready[queue] = None
                yield client
        if self._wild:
            for name, clients in self._wild.get(split_lite_queue(queue)[0], {}).items():
                if group is None or name == group:
                    for client in clients.values():
                        client.ready[queue] = None
                        yield client

    def forget_news(self, queue: str) -> None:
        """Remove the queue of a deleted lite topic from `LiteClient.ready`. Clients stay subscribed to it."""
        for client in self._by_queue.get(queue, {}).values():
            client.ready.pop(queue, None)
        for clients in self._wild.get(split_lite_queue(queue)[0], {}).values():
            for client in clients.values():
                client.ready.pop(queue, None)

    def wild_groups(self) -> dict[str, dict[str, dict[str, None]]]:
        """Return `LiteClient.ready` of the clients that read all lite topics, by parent topic and group."""
        return {
            parent: {group: next(iter(clients.values())).ready for group, clients in groups.items()}
            for parent, groups in self._wild.items()
        }

    def check_invariants(self) -> None:
        """Assert that clients, queues and the count of subscriptions agree; for tests.

        A subscription is listed with its client and with its queue, or news would miss the client; all are counted.
        """
        by_queue = {(queue, key) for queue, clients in self._by_queue.items() for key in clients}
        own = {(queue, key) for key, client in self.clients.items() for queue in client.queues or ()}
        assert by_queue == own, f"{len(by_queue)} subscriptions are listed by queue, {len(own)} by client"
        wild = [key for groups in self._wild.values() for clients in groups.values() for key in clients]
        of_all = [key for key, client in self.clients.items() if client.queues is None]
        assert sorted(wild) == sorted(of_all), f"{wild} are listed as reading all, {of_all} do"
        assert self.count == len(own) + len(wild), f"{self.count} subscriptions were counted, not {len(own)}, {wild}"
