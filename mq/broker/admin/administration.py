"""Builds the services for operators: topics, groups, members, settings, figures, cleanup."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog

from mq.broker.admin.broker_config import BrokerConfig
from mq.broker.admin.consumer_groups import ConsumerGroups
from mq.broker.admin.group_members import GroupMembers
from mq.broker.admin.group_offsets import GroupOffsets
from mq.broker.admin.replica_status import ReplicaStatus
from mq.broker.admin.runtime_info import RuntimeInfo
from mq.broker.admin.stats import Stats
from mq.broker.admin.topic_queries import TopicQueries
from mq.broker.admin.topics import Topics
from mq.broker.admin.users import UserAdministration
from mq.broker.consume.offsets import Offsets
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.broker.net.service import Periodic, Route, Service
from mq.broker.query.by_offset_and_time import OffsetAndTimeQueries
from mq.broker.settings import BrokerSettings
from mq.protocol.codes import ResponseCode
from mq.protocol.operator_requests import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog
from mq.protocol.registration import DataVersion

Log = structlog.stdlib.BoundLogger


class Administration(Service):
    """All handlers for operators' tools that belong to no other service.

    Args:
        disk_usage: free and total bytes of the log's disk.
        cpu_seconds: CPU time of the process and its children.
        resident_bytes: resident memory of the process.
        delete_expired: deletes expired log files. Raises OSError.
        is_allowed: whether the client at this address and port may change settings.
        on_settings_changed: called after each change.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        stats: Stats,
        offsets: Offsets,
        lookup: OffsetAndTimeQueries,
        disk_usage: Callable[[], tuple[int, int]],
        cpu_seconds: Callable[[], float],
        resident_bytes: Callable[[], int],
        delete_expired: Callable[[], None],
        is_allowed: Callable[[str], bool],
        on_settings_changed: Callable[[BrokerSettings], None],
    ) -> None:
        self._delete_expired = delete_expired

        def version() -> DataVersion:
            return context.metadata.topics_version(context.replica.core.term)

        queries = TopicQueries(context, store_time=lookup.store_time, version=version)
        running = BrokerConfig(
            context,
            leads=lambda: context.appender.is_open,
            version=version,
            is_allowed=is_allowed,
            on_changed=on_settings_changed,
        )
        runtime = RuntimeInfo(context, stats=stats, disk_usage=disk_usage)
        status = ReplicaStatus(
            context,
            runtime=runtime,
            counters=context.counters,
            cpu_seconds=cpu_seconds,
            resident_bytes=resident_bytes,
        )
        self._services: tuple[Service, ...] = (
            Topics(context),
            ConsumerGroups(context, version=version),
            GroupOffsets(context, offsets=offsets, lookup=lookup),
            GroupMembers(context, record_at=lookup.record_at),
            queries,
            running,
            status,
            UserAdministration(context),
        )

    def routes(self) -> Iterator[Route]:
        """The requests that this service handles; see `Service`."""
        yield Route(CleanExpiredConsumequeue, self.handle_nothing_to_clean)
        yield Route(CleanUnusedTopic, self.handle_nothing_to_clean)
        yield Route(DeleteExpiredCommitlog, self.handle_delete_expired)
        for service in self._services:
            yield from service.routes()

    def periodic(self) -> Iterator[Periodic]:
        """Periodic actions, with intervals in seconds; see `Service`."""
        for service in self._services:
            yield from service.periodic()

    def handle_nothing_to_clean(self, call: Call[CleanExpiredConsumequeue | CleanUnusedTopic]) -> bytes:
        """Request codes 306 and 316: nothing to do, since deleted queues and expired data are cleaned up within
        seconds.
        """
        return call.response()

    def handle_delete_expired(self, call: Call[DeleteExpiredCommitlog]) -> bytes:
        """Request code 329: delete expired log files now, by the same rules as the timer."""
        try:
            self._delete_expired()
        except OSError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"files cannot be deleted: {error}") from error
        return call.response()
