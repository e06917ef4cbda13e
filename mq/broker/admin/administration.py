"""What operators' tools ask of a broker, put together: topics, groups, members, settings, figures, cleaning up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog

from mq.broker.admin.broker_config import RunningSettings
from mq.broker.admin.consumer_groups import SubscriptionGroups
from mq.broker.admin.group_members import Members
from mq.broker.admin.group_offsets import Progress
from mq.broker.admin.replica_status import Status
from mq.broker.admin.runtime_info import RuntimeInfo
from mq.broker.admin.stats import Stats
from mq.broker.admin.topic_queries import TopicQueries
from mq.broker.admin.topics import Topics
from mq.broker.consume.clients import ClientRegistry
from mq.broker.consume.offsets import Offsets
from mq.broker.net.connection import ClientConnection, Handler
from mq.broker.net.errors import RequestRefused
from mq.broker.net.linearizable_reads import Read
from mq.broker.net.slow_answers import SlowAnswers
from mq.broker.query.by_offset_and_time import Lookup
from mq.broker.settings import BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.queue_offsets import QueueOffsets
from mq.protocol.codes import ResponseCode
from mq.protocol.headers import encode_response
from mq.protocol.operator_requests import CleanExpiredConsumequeue, CleanUnusedTopic, DeleteExpiredCommitlog
from mq.protocol.registration import DataVersion
from mq.store.queue_store import QueueStore
from raftlog import Replica

Log = structlog.stdlib.BoundLogger


class _Service(Protocol):
    def handlers(self) -> dict[type[Any], Handler]: ...


class Administration:
    """All handlers for operators' tools that belong to no other service.

    Args:
        address: where clients reach this replica.
        counters: figures of the running process, for people.
        disk_usage: free and total bytes of the log's disk.
        delete_expired: lets files of the log go whose time is over. Raises OSError.
        is_allowed: whether somebody at this address and port may change settings.
        on_settings_changed: told of each change.
        clock: monotonic seconds.
        wall_clock_ms: milliseconds since the epoch.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        replica: Replica,
        metadata: Metadata,
        store: QueueStore,
        appender: Appender,
        tails: QueueOffsets,
        stats: Stats,
        clients: ClientRegistry[ClientConnection],
        offsets: Offsets,
        lookup: Lookup,
        read: Read,
        gradually: SlowAnswers,
        address: str,
        counters: Callable[[], dict[str, int]],
        disk_usage: Callable[[], tuple[int, int]],
        delete_expired: Callable[[], None],
        is_allowed: Callable[[str], bool],
        on_settings_changed: Callable[[BrokerSettings], None],
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        log: Log,
    ) -> None:
        self._delete_expired = delete_expired

        def version() -> DataVersion:
            return metadata.topics_version(replica.core.term)

        self._topics = Topics(metadata=metadata, appender=appender, tails=tails, wall_clock_ms=wall_clock_ms)
        self._groups = SubscriptionGroups(
            metadata=metadata, appender=appender, read=read, version=version, wall_clock_ms=wall_clock_ms
        )
        queries = TopicQueries(
            broker_name=settings.group,
            metadata=metadata,
            store=store,
            read=read,
            gradually=gradually,
            store_time=lookup.store_time,
            version=version,
        )
        running = RunningSettings(
            settings,
            leads=lambda: appender.is_open,
            version=version,
            is_allowed=is_allowed,
            on_changed=on_settings_changed,
            log=log,
        )
        members = Members(
            broker_name=settings.group,
            clients=clients,
            metadata=metadata,
            record_at=lookup.record_at,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
        )
        self._progress = Progress(
            broker_name=settings.group,
            address=address,
            metadata=metadata,
            store=store,
            clients=clients,
            offsets=offsets,
            lookup=lookup,
            appender=appender,
            read=read,
            gradually=gradually,
        )
        runtime = RuntimeInfo(
            settings=settings,
            replica=replica,
            metadata=metadata,
            store=store,
            appender=appender,
            stats=stats,
            disk_usage=disk_usage,
            wall_clock_ms=wall_clock_ms,
        )
        status = Status(settings=settings, replica=replica, runtime=runtime.table, counters=counters)
        self._services: tuple[_Service, ...] = (self._groups, self._progress, members, queries, running, stats, status)

    def handlers(self) -> dict[type[Any], Handler]:
        """What every replica serves."""
        handlers: dict[type[Any], Handler] = {
            CleanExpiredConsumequeue: self.handle_nothing_to_clean,
            CleanUnusedTopic: self.handle_nothing_to_clean,
            DeleteExpiredCommitlog: self.handle_delete_expired,
        }
        for service in self._services:
            handlers |= service.handlers()
        return handlers

    def leader_handlers(self) -> dict[type[Any], Handler]:
        """What only the leader serves."""
        return self._topics.leader_handlers() | self._groups.leader_handlers() | self._progress.leader_handlers()

    def handle_nothing_to_clean(
        self,
        connection: ClientConnection,
        request: CleanExpiredConsumequeue | CleanUnusedTopic,
        body: bytes,
        serialization: int,
    ) -> bytes:
        """Request codes 306 and 316: what is gone from the log and what is deleted leaves no rest, within seconds."""
        return encode_response(request.opaque, ResponseCode.SUCCESS, serialization=serialization)

    def handle_delete_expired(
        self, connection: ClientConnection, request: DeleteExpiredCommitlog, body: bytes, serialization: int
    ) -> bytes:
        """Request code 329: as the timer does it, by the same rules."""
        try:
            self._delete_expired()
        except OSError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"files cannot be deleted: {error}") from error
        return encode_response(request.opaque, ResponseCode.SUCCESS, serialization=serialization)
