"""Parses the routes of topics from answers of name servers (request code 105). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mq.client.message import MessageQueue
from mq.protocol.broker_ids import LEADER_ID
from mq.protocol.codes import PERM_READ, PERM_WRITE
from mq.protocol.requests.namesrv import Route

__all__ = ["LEADER_ID", "TopicRoute"]


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic, sorted, and the addresses of its broker groups.

    A queue is listed whether or not its group has a leader at the moment: the set of queues must not depend on an
    election, or messages with the same sharding key would move between queues.
    """

    topic: str
    read_queues: tuple[MessageQueue, ...]
    write_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    clusters: frozenset[str] = frozenset()
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps a broker group to the filter servers beside its replicas, the leader's first."""

    @classmethod
    def from_body(cls, topic: str, body: Route, *, queues_max: int | None = None) -> TopicRoute:
        """Parse a route. `queues_max` limits the queues per broker, for a topic that does not exist yet."""

        def queues(perm: int, kind: str) -> tuple[MessageQueue, ...]:
            return tuple(
                sorted(
                    MessageQueue(topic, data.broker_name, queue_id)
                    for data in body.queue_datas
                    if data.perm & perm
                    for queue_id in range(
                        min(
                            data.read_queue_nums if kind == "read" else data.write_queue_nums,
                            queues_max if queues_max is not None else 2**31,
                        )
                    )
                )
            )

        return cls(
            topic=topic,
            read_queues=queues(PERM_READ, "read"),
            write_queues=queues(PERM_WRITE, "write"),
            brokers={broker.broker_name: dict(broker.broker_addrs) for broker in body.broker_datas},
            clusters=frozenset(broker.cluster for broker in body.broker_datas),
            filter_servers={
                broker.broker_name: tuple(
                    server
                    for _, address in sorted(broker.broker_addrs.items())
                    for server in body.filter_servers.get(address, ())
                )
                for broker in body.broker_datas
                if body.filter_servers
            },
        )

    def leader_address(self, broker_name: str) -> str | None:
        """Return `host:port` of the group's leader; None while it has none."""
        return self.brokers.get(broker_name, {}).get(LEADER_ID)

    def read_address(self, broker_name: str, broker_id: int = LEADER_ID) -> str | None:
        """Return the address to read from: of that replica, else of the leader, else of any replica of the group."""
        addresses = self.brokers.get(broker_name, {})
        for candidate in (broker_id, LEADER_ID):
            if candidate in addresses:
                return addresses[candidate]
        return addresses[min(addresses)] if addresses else None

    def addresses(self) -> set[str]:
        """Return the addresses of all replicas of the topic's broker groups."""
        return {address for replicas in self.brokers.values() for address in replicas.values()}
