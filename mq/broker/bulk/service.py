"""All services for bulk reads: plans, ends, reads and leases (9006 to 9009)."""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.bulk.bulk_read import BulkReads
from mq.broker.bulk.log_lease import LogLeases
from mq.broker.bulk.topic_ends import TopicEndQueries
from mq.broker.bulk.topic_plan import TopicPlans
from mq.broker.context import BrokerContext
from mq.broker.net.service import Periodic, Route, Service

_EXPIRE_SECONDS = 0.02


class Bulk(Service):
    """The handlers. Arguments are those of the four services.

    Attributes:
        reads: bulk reads, including those that wait.
        leases: leases of readers on the log.
    """

    def __init__(self, context: BrokerContext) -> None:
        self.leases = LogLeases(
            settings=context.settings, base_pos=lambda: context.replica.log.base_pos, clock=context.clock
        )
        self.reads = BulkReads(context)
        self._plans = TopicPlans(context)
        self._ends = TopicEndQueries(context)

    def routes(self) -> Iterator[Route]:
        """The requests that this service handles; see `Service`."""
        yield from self.leases.routes()
        yield from self.reads.routes()
        yield from self._plans.routes()
        yield from self._ends.routes()

    def periodic(self) -> Iterator[Periodic]:
        """Periodic actions, with intervals in seconds; see `Service`."""
        yield _EXPIRE_SECONDS, self.reads.expire

    def counters(self) -> dict[str, int]:
        """Figures."""
        return self.leases.counters() | self.reads.counters()
