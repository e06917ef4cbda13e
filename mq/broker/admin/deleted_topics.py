"""Lists deleted topics (request code 9019), restores them (9023), and drops those without messages.

Retention deletes their messages like messages of other topics. Each replica does so on its own; the leader says when a
topic is forgotten, so that all of them forget it at the same place in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from mq.broker.base.periodic_task import Periodic
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import ForgetTopic, RestoreTopic, encode_command
from mq.broker.write_path.outcome import Outcome
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.names import NameRefused, check_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests import deleted_topics as requests
from mq.protocol.requests.deleted_topics import DeletedTopicInfo, DeletedTopicList
from mq.store.errors import StoreError
from raftlog import SegmentError

_FORGOTTEN_AT_ONCE = 100
_HOUR_MS = 3_600_000

StoreTime = Callable[[str, int, QueueOffset], int]
"""Returns the store time of a message, in ms since 1970; -1 without one. See `mq.broker.query.by_offset_and_time`."""


class DeletedTopics(Service):
    """Lists and restores deleted topics. The leader also drops those without messages."""

    def __init__(self, context: BrokerContext, *, store_time: StoreTime) -> None:
        self._metadata, self._store, self._appender = context.metadata, context.store, context.appender
        self._store_time = store_time
        self._wall_clock_ms = context.wall_clock_ms
        self._look_seconds = context.limits.upkeep.forget_topics_seconds
        self._retention_ms = _retention_ms(context.settings)
        self._leadership = object()
        self._in_flight = 0

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._retention_ms = _retention_ms(settings)

    def routes(self) -> Iterator[Route]:
        yield Route(requests.ListDeletedTopics, self.handle_list, leader_only=True)
        yield Route(requests.RestoreTopic, self.handle_restore, leader_only=True)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._look_seconds, self.forget, self._rests_until)

    def resign(self) -> None:
        """Forget the commands in flight, since this replica stops leading."""
        self._leadership = object()
        self._in_flight = 0

    def check_invariants(self) -> None:
        if self._appender.is_idle:
            assert not self._in_flight, f"{self._in_flight} commands are on their way, and nothing is pending"

    def handle_list(self, call: Call[requests.ListDeletedTopics]) -> bytes:
        """Request code 9019: list the deleted topics that can be restored."""
        topics = [self._info(name) for name in self._metadata.deleted_topics.rows]
        return call.response(body=DeletedTopicList(topics=topics).encode())

    def handle_restore(self, call: Call[requests.RestoreTopic]) -> None:
        """Request code 9023: restore a deleted topic; respond when it is served again. Raises RequestRefused."""
        topic = call.request.ext.topic
        try:
            check_topic(topic)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        self._check(topic)
        command = encode(RestoreTopic(name=topic, timestamp_ms=self._wall_clock_ms()))

        def check() -> None:
            if topic not in self._metadata.topics:
                self._check(topic)
                limit = self._metadata.limits.topics_max
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"there are {len(self._metadata.topics)} topics; maximum: {limit}. The deleted topic {topic} "
                    "was not restored: delete other topics first",
                )

        replicate(self._appender, [command], call, what="a topic's restore", check=check)

    def _check(self, topic: str) -> None:
        """Raise RequestRefused if a topic cannot be restored."""
        if topic in self._metadata.topics:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the topic {topic} exists: it was not deleted, or was created again since, so it cannot be restored",
            )
        row = self._metadata.deleted_topics.rows.get(topic)
        if row is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"there is no deleted topic {topic} to restore: it never existed, was deleted for good, or its "
                "messages have expired",
            )
        if row.along_with:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the topic {topic} was deleted along with {row.along_with}: restore that topic, which restores both",
            )

    def _info(self, topic: str) -> DeletedTopicInfo:
        row = self._metadata.deleted_topics.rows[topic]
        assert row.config.name == topic, f"the deleted topic {row.config.name} is listed as {topic}"
        assert topic not in self._metadata.topics, f"{topic} can be restored, and is there"
        return DeletedTopicInfo(
            topic=topic,
            deleted_ms=row.deleted_ms,
            by=row.by,
            queues=max(row.config.read_queues, row.config.write_queues),
            messages=self._messages(topic),
            groups=[*row.offsets],
            until_ms=max(row.deleted_ms, self._newest_ms(topic)) + self._retention_ms,
            along_with=row.along_with,
        )

    def _messages(self, topic: str) -> int:
        queues = [self._store.get(topic, queue_id) for queue_id in self._store.ends(topic)]
        return sum(queue.max_offset - queue.min_offset for queue in queues if queue is not None)

    def _newest_ms(self, topic: str) -> int:
        newest = -1
        for queue_id, end in self._store.ends(topic).items():
            try:
                newest = max(newest, self._store_time(topic, queue_id, QueueOffset(end - 1)))
            except (StoreError, SegmentError, OSError):
                continue  # it is restored first; the time of the deletion is later than that of most messages
        return newest

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def _rests_until(self) -> float:
        is_busy = self._appender.is_open and self._metadata.deleted_topics.rows
        return float("-inf") if is_busy else float("inf")

    def forget(self) -> None:
        """Drop deleted topics without messages once their retention time is over. A timer calls this."""
        if not self._appender.is_open or not self._appender.has_room or self._in_flight:
            return
        before_ms, rows = self._wall_clock_ms() - self._retention_ms, self._metadata.deleted_topics.rows
        over = (name for name, row in rows.items() if row.deleted_ms < before_ms and not self._messages(name))
        leadership = self._leadership

        def on_outcome(_: Outcome) -> None:
            if leadership is self._leadership:
                self._in_flight -= 1

        for name in islice(over, _FORGOTTEN_AT_ONCE):
            self._in_flight += 1
            ends = sorted(self._store.ends(name).items())
            self._appender.add_command(encode_command(ForgetTopic(name=name, ends=ends)), on_outcome)


def _retention_ms(settings: BrokerSettings) -> int:
    return round(settings.retention_hours * _HOUR_MS)
