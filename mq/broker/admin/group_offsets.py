"""Shows the progress of consumer groups; sets their offsets by time, or copies those of another group.

A reset takes effect whether or not the group is online. Members are notified at once (request code 220); one that
misses the notice is moved to the new offset by its next pull, see `mq.broker.consume.offsets`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mq.broker.admin.client_group_members import subscribes
from mq.broker.consume.offsets import Offsets, beyond_end
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.consumer_group import BROADCASTING
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps, check_length, join_parts
from mq.broker.query.by_offset_and_time import OffsetAndTimeQueries
from mq.broker.state.commands import ForbidTopic, encode_command
from mq.broker.state.pop_checkpoints import PopQueue
from mq.broker.state.table import CommandInvalid
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Outcome, Stored, Unknown, answer_outcome
from mq.broker.write_path.pending import PendingGroup
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP, NameRefused, check_group
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.consumer_groups import GroupForbidden, UpdateAndGetGroupForbidden
from mq.protocol.requests.group_progress import (
    CloneGroupOffset,
    CorrectionOffsets,
    GetBrokerConsumeStats,
    GetConsumeStats,
    InvokeBrokerToResetOffset,
    OffsetsWereResetExt,
    QueryCorrectionOffset,
    ResetOffsetExt,
)
from mq.protocol.wire.encoding import encode_request
from mq.protocol.wire.queue_tables import QueueRef, offset_table_body, queue_row

END = -1
"""Stands for the end of the queue where a time is expected."""

_BEYOND = 2**63 - 1


@dataclass(slots=True)
class _Behind:
    messages: int = 0
    """Messages that have not been consumed yet."""
    in_flight: int = 0
    """The part of them that consumers have popped."""


def pulled_and_consumed(offset: QueueOffset, open_of: PopQueue) -> tuple[QueueOffset, QueueOffset]:
    """Return the ends of the pulled and of the consumed part of a queue, for a group that committed ``offset``.

    Popped messages that are not acknowledged count as not consumed, wherever in the queue they are.
    """
    order = open_of.ordered
    if order is not None and order.first_open == offset:
        pulled = max(offset, order.next_offset)
        consumed = max(FIRST_OFFSET, pulled - open_of.message_count())
    else:
        # The pop is from before a reset of an ordered group: the group reads on from the stored offset.
        pulled, consumed = offset, max(FIRST_OFFSET, offset - open_of.unordered_count())
    assert consumed <= pulled, f"{consumed} messages are consumed, and {pulled} pulled, with {offset} committed"
    return pulled, consumed


class GroupOffsets(Service):
    """Shows the progress of consumer groups, and resets or copies their offsets."""

    def __init__(self, context: BrokerContext, *, offsets: Offsets, lookup: OffsetAndTimeQueries) -> None:
        self._broker_name = context.settings.group
        self._address = context.address
        self._metadata = context.metadata
        self._store = context.store
        self._clients = context.clients
        self._offsets = offsets
        self._end = context.queue_tails.end_offset
        self._lookup = lookup
        self._appender = context.appender
        self._read = context.reads.read
        self._beginning = context.beginning
        self._gradually = context.slow_responses

    def routes(self) -> Iterator[Route]:
        yield Route(GetConsumeStats, self.handle_stats)
        yield Route(GetBrokerConsumeStats, self.handle_all_stats)
        yield Route(QueryCorrectionOffset, self.handle_correction)
        yield Route(InvokeBrokerToResetOffset, self.handle_reset, leader_only=True)
        yield Route(CloneGroupOffset, self.handle_clone, leader_only=True)
        yield Route(UpdateAndGetGroupForbidden, self.handle_forbidden, leader_only=True)

    # -- progress ------------------------------------------------------------------------------------------------------

    def handle_stats(self, call: Call[GetConsumeStats]) -> None:
        """Request code 208: return the progress of a consumer group."""
        ext = call.request.ext

        def respond() -> ResponseSteps:
            if ext.topic:
                topics: Iterable[str] = [ext.topic]
            elif ext.topic_list:
                topics = dict.fromkeys(filter(None, ext.topic_list.split(";")))
            else:
                topics = self._topics_of(ext.consumer_group)
            rows = yield from join_parts(self._rows(ext.consumer_group, topics))
            return call.response(body=_stats(rows))

        self._gradually.when_current(self._read, call, respond)

    def handle_all_stats(self, call: Call[GetBrokerConsumeStats]) -> None:
        """Request code 317: return the progress of all groups in all topics."""

        behind = _Behind()

        def respond() -> ResponseSteps:
            groups: list[bytes] = []
            nbytes = 0
            for group, topics in self._topics_by_group().items():
                if group not in self._metadata.groups:
                    continue
                tables: list[bytes] = []
                for topic in sorted(topics):
                    yield
                    config = self._metadata.topics.get(topic)
                    if config is not None and config.order == call.request.ext.is_order:
                        rows = yield from join_parts(self._rows(group, [topic], behind))
                        tables.append(_stats(rows))
                        nbytes += len(rows)
                        check_length(nbytes)
                if tables:
                    groups.append(b'{"%s":[%s]}' % (group.encode(), b",".join(tables)))
            text = b'{"brokerAddr":"%s","consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":%d}' % (
                self._address.encode(),
                b",".join(groups),
                behind.messages,
                behind.in_flight,
            )
            return call.response(body=text)

        self._gradually.when_current(self._read, call, respond)

    def _topics_by_group(self) -> dict[str, list[str]]:
        topics: dict[str, list[str]] = {}
        for group, topic in sorted(self._metadata.consumer_offsets):
            topics.setdefault(group, []).append(topic)
        return topics

    def _topics_of(self, group: str) -> list[str]:
        if group == TRANSACTION_GROUP:
            return [HALF_TOPIC, HALF_OP_TOPIC]
        return sorted(topic for name, topic in self._metadata.consumer_offsets if name == group)

    def _offsets_of(self, group: str, topic: str) -> Mapping[int, QueueOffset]:
        """Return the next offset of a group in each queue of a topic. Tools read progress of transactions there."""
        if group == TRANSACTION_GROUP and topic == HALF_TOPIC:
            return {0: self._metadata.marks.get(HALF_TOPIC, 0).low}
        if group == TRANSACTION_GROUP and topic == HALF_OP_TOPIC:
            return {0: self._store.max_offset(HALF_OP_TOPIC, 0)}
        return self._metadata.consumer_offsets.get((group, topic), {})

    def _rows(self, group: str, topics: Iterable[str], behind: _Behind | None = None) -> Iterator[bytes]:
        """Yield the progress of a group in each queue, and add its lag to ``behind``."""
        online = self._clients.consumer_group(group)
        for topic in topics:
            config = self._metadata.topics.get(topic)
            if config is None or not subscribes(online, topic):
                continue
            offsets = self._offsets_of(group, topic)
            for queue_id in range(config.read_queues):
                end, offset = self._store.max_offset(topic, queue_id), offsets.get(queue_id, FIRST_OFFSET)
                pulled, offset = pulled_and_consumed(offset, self._metadata.pops.get((group, topic, queue_id)))
                if behind is not None:
                    behind.messages += max(0, end - offset)
                    behind.in_flight += pulled - offset
                at_ms = max(0, self._lookup.store_time(topic, queue_id, offset - 1)) if offset else 0
                value = b'{"brokerOffset":%d,"consumerOffset":%d,"lastTimestamp":%d,"pullOffset":%d}'
                yield queue_row(QueueRef(topic, self._broker_name, queue_id), value % (end, offset, at_ms, pulled))

    def handle_correction(self, call: Call[QueryCorrectionOffset]) -> bytes:
        """Request code 308: return the lowest offset of all other groups for each queue; the maximum if none lags.

        An offset below the first message of its queue is meaningless and ignored.
        """
        ext = call.request.ext
        left_out = set((ext.filter_groups or "").split(","))
        lowest: dict[int, int] = {}
        for (group, topic), offsets in self._metadata.consumer_offsets.items():
            if topic != ext.topic or group in left_out:
                continue
            for queue_id, offset in offsets.items():
                queue = self._store.get(topic, queue_id)
                if queue is not None:
                    self._beginning.check(queue.min_offset, offset)
                if offset >= (0 if queue is None else queue.min_offset):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, _BEYOND))
        assert all(offset >= FIRST_OFFSET for offset in lowest.values()), f"offsets in {ext.topic}: {lowest}"
        other_offsets = self._metadata.consumer_offsets.get((ext.compare_group, ext.topic), {})
        for queue_id, offset in other_offsets.items():
            if lowest.get(queue_id, _BEYOND) > offset:
                lowest[queue_id] = _BEYOND
        text = CorrectionOffsets(lowest).encode()
        return call.response(body=text)

    # -- resets --------------------------------------------------------------------------------------------------------

    def handle_reset(self, call: Call[InvokeBrokerToResetOffset]) -> None:
        """Request code 222: set a group's offsets to the messages of a store time. Raises RequestRefused."""
        ext = call.request.ext
        self._appender.check_room()
        self._check_group(ext.group)
        queues = self._queues_to_reset(ext)

        def respond() -> Generator[None, None, None]:
            offsets: dict[int, QueueOffset] = {}
            for queue_id in queues:
                offsets[queue_id] = self._wanted_offset(ext, queue_id)
                yield
            if self._appender.is_open:
                self._reset(call, offsets)
            else:  # leadership was lost in the meantime
                call.dispatch()

        self._gradually.work(call, respond())

    def _reset(self, call: Call[InvokeBrokerToResetOffset], offsets: dict[int, QueueOffset]) -> None:
        ext = call.request.ext
        current = self._metadata.consumer_offsets.get((ext.group, ext.topic), {})
        if not ext.force and ext.offset is None:
            offsets = {queue_id: min(offset, current.get(queue_id, offset)) for queue_id, offset in offsets.items()}
        assert all(offset >= FIRST_OFFSET for offset in offsets.values()), (
            f"offsets of {ext.topic} to be set: {offsets}"
        )
        changes = {queue_id: offset for queue_id, offset in offsets.items() if current.get(queue_id) != offset}
        table = {QueueRef(ext.topic, self._broker_name, queue_id): offset for queue_id, offset in offsets.items()}

        def respond(_: Stored) -> bytes:
            self._tell_members(ext, table, as_list=call.request.language == "CPP")
            return call.response(body=offset_table_body(table))

        online = self._clients.consumer_group(ext.group)
        # Members of a broadcast group keep their own offsets and commit none.
        restart = online is None or online.message_model != BROADCASTING
        # Even if the stored offset is right already, members may have consumed further than they have committed.
        self._offsets.reset(
            ext.group,
            ext.topic,
            offsets if ext.force else changes,
            partial(answer_outcome, call, "offsets were being reset", respond),
            restart=restart,
        )

    def move(
        self, group: str, topic: str, queue_id: int, offset: QueueOffset, on_outcome: OnOutcome, *, before: PendingGroup
    ) -> None:
        """Set a group's offset in one queue, in one log entry with the commands in ``before``. Tell its members."""
        assert offset >= FIRST_OFFSET, f"{group} is to stand at {offset} of {topic}/{queue_id}"
        online = self._clients.consumer_group(group)

        def on_stored(outcome: Outcome) -> None:
            if isinstance(outcome, Stored):
                notice = OffsetsWereResetExt(topic=topic, group=group, timestamp_ms=END, force=True)
                self._tell_members(notice, {QueueRef(topic, self._broker_name, queue_id): offset}, as_list=False)
            on_outcome(outcome)

        restart = online is None or online.message_model != BROADCASTING
        self._offsets.reset(group, topic, {queue_id: offset}, on_stored, restart=restart, before=before)

    def _check_group(self, name: str) -> None:
        try:
            check_group(name)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        is_known = name in self._metadata.groups or self._clients.consumer_group(name) is not None
        if not is_known and not self._topics_of(name):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the consumer group <{name}> does not exist")

    def _queues_to_reset(self, ext: ResetOffsetExt) -> Iterable[int]:
        config = self._metadata.topics.get(ext.topic)
        if config is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"[reset-offset] there is no topic {ext.topic}")
        if not self._metadata.has_room_for_offsets(ext.group, ext.topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the maximum number of groups with offsets is reached")
        queues = max(config.read_queues, config.write_queues)
        if ext.queue_id >= queues:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"queue id {ext.queue_id} is illegal, {ext.topic} has {queues} queues"
            )
        if ext.offset is not None and ext.queue_id >= 0 and ext.offset > (end := self._end(ext.topic, ext.queue_id)):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, beyond_end(ext.topic, ext.queue_id, ext.offset, end))
        if ext.timestamp_ms < END:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timestamp is {ext.timestamp_ms}; allowed: milliseconds since 1970, or -1 for the end",
            )
        return [ext.queue_id] if ext.queue_id >= 0 else range(queues)

    def _wanted_offset(self, ext: ResetOffsetExt, queue_id: int) -> QueueOffset:
        queue = self._store.get(ext.topic, queue_id)
        low, high = (FIRST_OFFSET, FIRST_OFFSET) if queue is None else (queue.min_offset, queue.max_offset)
        if ext.offset is not None and ext.offset >= 0:
            self._beginning.check(low, ext.offset)
            return min(max(ext.offset, low), high)
        if ext.timestamp_ms == END:
            return high
        offset = self._lookup.offset_by_time(ext.topic, queue_id, ext.timestamp_ms)
        assert FIRST_OFFSET <= offset <= high, f"a reset to {offset} of {ext.topic}/{queue_id}, which ends at {high}"
        return offset

    def _tell_members(self, ext: OffsetsWereResetExt, table: Mapping[QueueRef, QueueOffset], *, as_list: bool) -> None:
        group = self._clients.consumer_group(ext.group)
        if group is None:
            return
        notice = OffsetsWereResetExt(topic=ext.topic, group=ext.group, timestamp_ms=ext.timestamp_ms, force=ext.force)
        frame = encode_request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            0,
            ext=notice.fields(),
            body=offset_table_body(table, as_list=as_list),
            oneway=True,
        )
        for member in list(group.members):
            if not member.closed:
                member.send(frame)

    def handle_clone(self, call: Call[CloneGroupOffset]) -> None:
        """Request code 314: copy the offsets of one group to another group. Raises RequestRefused."""
        ext = call.request.ext
        self._appender.check_room()
        try:
            check_group(ext.target)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        online = None if ext.offline else self._clients.consumer_group(ext.target)
        topics = [ext.topic] if ext.topic else self._topics_of(ext.source)
        topics_to_clone = [
            topic
            for topic in topics
            if topic in self._metadata.topics
            and subscribes(online, topic)
            and self._metadata.has_room_for_offsets(ext.target, topic)
        ]

        outcomes: list[Outcome] = []

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if any(isinstance(each, LeadershipLost | Unknown) for each in outcomes):
                outcome = Unknown()
            else:
                outcome = next((each for each in outcomes if isinstance(each, DiskFull)), outcome)
            answer_outcome(call, "offsets were being cloned", lambda _: call.response(), outcome)

        def clone() -> Generator[None, None, None]:
            for topic in topics_to_clone:
                if not self._appender.is_open:  # leadership was lost in the meantime; cloning is idempotent
                    call.dispatch()
                    return
                self._appender.check_room()  # there may be 50,000 topics
                offsets = self._metadata.consumer_offsets.get((ext.source, topic), {})
                if topic in self._metadata.topics:
                    # The leader may not have corrected an offset of an earlier release yet.
                    within = {queue_id: min(offset, self._end(topic, queue_id)) for queue_id, offset in offsets.items()}
                    self._offsets.reset(ext.target, topic, within, outcomes.append, restart=False)
                yield
            self._offsets.replicate(on_outcome)

        self._gradually.work(call, clone())

    def handle_forbidden(self, call: Call[UpdateAndGetGroupForbidden]) -> bytes | None:
        """Request code 353: return or set whether a group may read a topic. Raises RequestRefused."""
        ext = call.request.ext

        def respond() -> bytes:
            text = GroupForbidden(ext.group, ext.topic, (ext.group, ext.topic) not in self._metadata.forbidden).encode()
            return call.response(body=text)

        if ext.readable is None:
            when_current(self._read, call, respond)
            return None
        if ext.topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {ext.topic}")
        if not self._metadata.has_room_for_forbidden(ext.group, ext.topic):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "the maximum number of groups with forbidden topics is reached"
            )
        try:
            command = encode_command(ForbidTopic(group=ext.group, topic=ext.topic, forbidden=not ext.readable))
        except CommandInvalid as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._appender.check_room()
        on_outcome = partial(answer_outcome, call, "a permission was being stored", lambda _: respond())
        self._appender.add_command(command, on_outcome)
        return None


def _stats(rows: bytes) -> bytes:
    return b'{"consumeTps":0.0,"offsetTable":{%s}}' % rows
