"""All that serves those who read topics as a whole, put together: plans, ends, reads and leases (9006 to 9009)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mq.broker.bulk.bulk_read import BulkReads
from mq.broker.bulk.log_lease import LogLeases
from mq.broker.bulk.topic_ends import AllEnds
from mq.broker.bulk.topic_plan import TopicPlans
from mq.broker.net.connection import Handler
from mq.broker.net.linearizable_reads import Read
from mq.broker.net.slow_answers import SlowAnswers
from mq.broker.settings import BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.store.queue_store import QueueStore
from raftlog import Job, Replica


class Bulk:
    """The handlers. Arguments are those of the four.

    Attributes:
        reads: looks again at requests that wait.
        leases: what of the log readers hold.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        replica: Replica,
        metadata: Metadata,
        store: QueueStore,
        read: Read,
        gradually: SlowAnswers,
        other_replicas: Callable[[], list[str]],
        in_background: Callable[[Job], None],
        clock: Callable[[], float],
    ) -> None:
        self.leases = LogLeases(settings=settings, base_pos=lambda: replica.log.base_pos, clock=clock)
        self.reads = BulkReads(
            settings=settings,
            replica=replica,
            metadata=metadata,
            store=store,
            other_replicas=other_replicas,
            in_background=in_background,
            clock=clock,
        )
        self._plans = TopicPlans(
            settings=settings, replica=replica, metadata=metadata, store=store, read=read, gradually=gradually
        )
        self._ends = AllEnds(replica=replica, metadata=metadata, store=store, read=read, gradually=gradually)

    def handlers(self) -> dict[type[Any], Handler]:
        """What every replica serves."""
        return self.leases.handlers() | self.reads.handlers() | self._plans.handlers() | self._ends.handlers()

    def counters(self) -> dict[str, int]:
        """Figures."""
        return self.leases.counters() | self.reads.counters()
