"""Stores consumer offsets (request codes 14 and 15), and returns first and last offsets of queues (30 and 31).

Consumer offsets are replicated like messages. One-way commits are batched for a moment into one command of the log. A
commit that wants an answer, and a query of an offset that is in flight, are answered when it is committed. So an offset
that a client has seen never decreases by itself, whichever replica leads next. It goes back when an operator resets it,
or when the reader of the queue has gone back (`Offsets.record_pull`); both are commands in the log.

An offset beyond the end of its queue is refused, since its consumers would get nothing until the queue has passed it.
The leader compares with the end that its log gives the queue (`QueueTails.end`). A consumer has read a message only
after it was committed, so a valid commit is never refused, however far this replica has applied its log.

Followers answer queries, too, once they have applied everything that was committed when the query arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.consume.fencing import Fencing
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.state.commands import CommitOffsets, ResetOffset, encode_command
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Outcome, Stored, Unknown, answer_outcome
from mq.broker.write_path.pending import PendingCommand, PendingGroup
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.transaction_sets import ConsumedRange
from mq.protocol.names import NameRefused, check_group, check_topic
from mq.protocol.numbers import FIRST_OFFSET, NO_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError

COMMAND_ROWS_MAX = 200
"""Offsets in one command: even with the longest names it fits the smallest log file."""

Key = tuple[str, str, int]


class Offsets(Service):
    """Stores and returns consumer offsets. On the leader, batches commits until they are replicated.

    Args:
        fencing: decides whose commits are ignored.
        in_memory: whether the log can be read at a physical offset without waiting for the disk.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        fencing: Fencing,
        in_memory: Callable[[PhysicalOffset], bool],
    ) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._end = context.queue_tails.end_offset
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._read = context.reads.read
        self._beginning = context.beginning
        self._fencing = fencing
        self._client_id = context.client_id
        self._clients = context.clients
        self._commit_seconds = context.settings.offset_commit_seconds
        self._pending_max = context.limits.consume.commits_pending_max
        self._in_memory = in_memory
        # Readers that have sought back below the offset of a queue, with the offset that they sought.
        self._rereaders: dict[Key, tuple[str | ClientConnection, QueueOffset]] = {}
        self._resets: dict[Key, object] = {}
        self._restarted_keys: set[Key] = set()
        self._to_commit: dict[Key, QueueOffset] = {}
        self._in_flight: dict[Key, QueueOffset] = {}
        self._refused_beyond = 0

    def routes(self) -> Iterator[Route]:
        yield Route(QueryConsumerOffset, self.handle_query)
        yield Route(GetMaxOffset, self.handle_max)
        yield Route(GetMinOffset, self.handle_min)
        yield Route(UpdateConsumerOffset, self.handle_update, leader_only=True, repeatable=True)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._commit_seconds, self.replicate_gathered, lambda: now_if(self._to_commit))

    def resign(self) -> None:
        """Drop the batched commits, since this replica stops leading. Consumers repeat them."""
        self._to_commit.clear()
        self._in_flight.clear()
        self._resets.clear()
        self._restarted_keys.clear()
        self._rereaders.clear()

    def topic_changed(self, topic: str) -> None:
        """Drop batched commits that are not above the offsets with which a topic was restored: they change nothing."""
        for table in (self._to_commit, self._in_flight):
            for key in [key for key, offset in table.items() if key[1] == topic and offset <= self._offset(key)]:
                del table[key]

    def check_invariants(self) -> None:
        """Assert the following, for tests:

        - Only a leader has commits, resets and transactions in flight: what stays from an earlier leadership would hide
          later commits.
        - Gathered offsets are higher than stored ones, and offsets in flight are not lower: a commit never moves an
          offset back, and one that ended is forgotten.
        """
        if not self._appender.is_open:
            in_flight_count = len(self._to_commit) + len(self._in_flight) + len(self._resets)
            assert not in_flight_count, f"{in_flight_count} offsets are in flight, and this replica does not lead"
        for key, offset in self._to_commit.items():
            assert offset > self._offset(key), f"{key}: offset {offset} is committed after {self._offset(key)}"
            in_flight = self._in_flight.get(key, NO_OFFSET)
            assert offset > in_flight, f"{key}: offset {offset} is committed after {in_flight}, which is in flight"
        if self._appender.is_idle:
            counts = len(self._in_flight), len(self._resets)
            assert counts == (0, 0), f"commits and resets are in flight: {counts}, and nothing is pending"
        overlap = [key for key in self._resets if key in self._to_commit or key in self._rereaders]
        assert not overlap, f"offsets of {overlap} are reset, and commits to them are gathered"
        count, count_max = max(len(self._to_commit), len(self._rereaders)), self._pending_max
        assert count <= count_max, f"{count} commits are gathered, or readers are back; maximum: {count_max}"
        for key, offset in self._in_flight.items():
            assert offset >= self._offset(key), f"{key}: offset {offset} is in flight behind {self._offset(key)}"

    def commit(self, connection: ClientConnection, group: str, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Batch a commit that needs no response, such as one in a pull. Ignores a negative offset."""
        if offset < 0 or not self._appender.is_open:
            return
        if (group, topic) in self._metadata.queue_locks and self._fencing.fences(connection, group, topic, queue_id):
            return
        key = (group, topic, queue_id)
        if self._rereaders and self._rereads(connection, key, offset) and not self._awaits_restart(key):
            self._move_back(key, offset, lambda _: None)
            return
        self.gather(group, topic, queue_id, offset)

    def record_pull(
        self,
        connection: ClientConnection,
        group: str,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        forward_only: bool = False,
    ) -> None:
        """Record a client's pull at ``offset``. Below the group's offset, the client has gone back, for example by
        `seek`.

        Until another client reads the queue, this client's commits from there on take effect although they are lower.
        Not with ``forward_only``: then the client has not gone back; the former owner of the queue committed late.
        """
        if not self._appender.is_open:
            return
        key = (group, topic, queue_id)
        if offset < self._highest(key) and not forward_only:
            if key not in self._resets and (key in self._rereaders or len(self._rereaders) < self._pending_max):
                self._rereaders[key] = self._sender(connection, group), offset
        elif self._rereaders and (reader := self._rereaders.get(key)) and reader[0] != self._sender(connection, group):
            del self._rereaders[key]

    def reset_to(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> QueueOffset | None:
        """Return the offset to which a reset moves a consumer that pulls at ``offset``; None if it need not move.

        Once the consumer has begun there, its commits take effect again. Call only if there are resets; followers do
        not know them.
        """
        target = self._metadata.offset_resets.get((group, topic), {}).get(queue_id)
        key = (group, topic, queue_id)
        if target is None or not self._appender.is_open or key in self._restarted_keys:
            return None
        assert target >= FIRST_OFFSET, f"{key} is reset to {target}"
        if offset != target:
            return target
        self._restarted_keys.add(key)
        return None

    def reset(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, QueueOffset],
        on_outcome: OnOutcome,
        *,
        restart: bool,
        before: PendingGroup | None = None,
    ) -> None:
        """Replicate new offsets of a group in queues of a topic, even lower ones.

        With ``before``, all is stored in one entry behind these items. With ``restart``, running consumers have to
        begin there. If the disk is full, some of the queues may be reset
        all the same; if leadership is lost, the outcome is unknown, since there are several commands. Raises
        CommandInvalid for an invalid offset; then nothing has changed.
        """
        keys = [(group, topic, queue_id) for queue_id in offsets]
        # Encode before registering: a registered reset that is never appended would block all later commits.
        commands = [
            encode_command(ResetOffset(group=group, topic=topic, queue_id=queue_id, offset=offset, restart=restart))
            for queue_id, offset in offsets.items()
        ]
        for queue_id, offset in offsets.items():
            assert offset >= FIRST_OFFSET, f"{group} is reset to {offset} of {topic}/{queue_id}"
        this = object()
        self._resets.update(dict.fromkeys(keys, this))
        self._restarted_keys.difference_update(keys)

        def finish(outcome: Outcome) -> None:
            # A later reset of the same queue may be in flight; then consumers have restarted elsewhere.
            own_keys = [key for key in keys if self._resets.get(key) is this]
            for key in own_keys:
                del self._resets[key]
            self._restarted_keys.difference_update(own_keys)

            on_outcome(Unknown() if isinstance(outcome, LeadershipLost) else outcome)

        for key in keys:
            self._to_commit.pop(key, None)
            self._rereaders.pop(key, None)
        last = encode_command(CommitOffsets(offsets=[]))
        if before is not None:
            resets = map(PendingCommand, commands)
            self._appender.add_atomically([*before, *resets, PendingCommand(last, finish)])
            return
        for command in commands:
            self._appender.add_command(command)
        self._appender.add_command(last, finish)

    def newest(self, group: str, topic: str, queue_id: int) -> QueueOffset:
        """Return the group's offset including commits in flight; -1 for none. Raises RequestRefused during a reset."""
        key = (group, topic, queue_id)
        if key in self._resets:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"the offset of {group} in queue {queue_id} of {topic} is being reset"
            )
        return self._highest(key)

    def check_consumed(self, ranges: Iterable[ConsumedRange]) -> None:
        """Raise RequestRefused unless a transaction that consumed these messages may advance the offsets.

        A group that has stored an offset behind the first of them has consumed it otherwise, so the transaction is
        refused for ever (PULL_OFFSET_MOVED). While such an offset is in flight, it is refused for now.
        """
        for each in ranges:
            group, topic, queue_id = key = each.group, each.topic, each.queue_id
            if (obstacle := self._obstacle(*key)) is not None:
                raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, obstacle)
            if each.end > (end := self._end(topic, queue_id)):
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, beyond_end(topic, queue_id, each.end, end))
            if (self._metadata.offset_resets or self._resets) and self._awaits_restart(key):
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"[REJECTREQUEST]the offset of {group} in queue {queue_id} of {topic} was reset, and no consumer "
                    "has continued from there yet",
                )
            if (offset := self._offset(key)) > each.first:
                raise RequestRefused(
                    ResponseCode.PULL_OFFSET_MOVED,
                    f"group {group} has consumed queue {queue_id} of {topic} up to offset {offset}: a transaction "
                    f"from offset {each.first} on would consume messages a second time",
                )
            if (highest := self._highest(key)) > each.first:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    f"[REJECTREQUEST]offset {highest} of {group} in queue {queue_id} of {topic} is being stored",
                )

    def advance(self, ranges: Sequence[ConsumedRange]) -> tuple[bytes, Callable[[], None]]:
        """Return a command that advances offsets with a transaction, and a function to call once its outcome is known.

        Append the command at once: later commits count on it. Raises RequestRefused, see `check_consumed`.
        """
        self.check_consumed(ranges)
        ends: dict[Key, QueueOffset] = {(each.group, each.topic, each.queue_id): each.end for each in ranges}
        assert len(ends) == len(ranges), f"a transaction consumes {len(ranges)} ranges of {len(ends)} queues"
        command = encode_command(CommitOffsets(offsets=[(*key, end) for key, end in ends.items()]))
        for key in ends:
            self._to_commit.pop(key, None)  # lower ones, which would hide this one while it is in flight
        self._in_flight.update(ends)

        def finish() -> None:
            for key, end in ends.items():
                if self._in_flight.get(key) == end:
                    del self._in_flight[key]

        return command, finish

    def gather(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Add a commit to the batch."""
        if not self._appender.is_open or self._obstacle(group, topic, queue_id) is not None:
            return
        key = (group, topic, queue_id)
        if (self._metadata.offset_resets or self._resets) and self._awaits_restart(key):
            return
        if len(self._to_commit) >= self._pending_max and key not in self._to_commit:
            return
        if offset <= self._highest(key):
            return
        if offset > (end := self._end(topic, queue_id)):
            self._refused_beyond += 1
            self._log.warning(
                "offset_commit_beyond_end",
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                offset=offset,
                end=end,
                refused=self._refused_beyond,
            )
            return
        assert offset >= 0, f"{key}: offset {offset} is committed"
        self._to_commit[key] = offset

    def replicate(self, on_outcome: OnOutcome | None = None) -> None:
        """Append the batched commits to the log. ``on_outcome`` gets the common outcome.

        Commits that are not stored are dropped, and consumers repeat them.
        """
        if not self._appender.is_open:
            if on_outcome is not None:
                on_outcome(Unknown())
            return
        # A queue ends earlier than before if its topic was deleted in the meantime.
        offsets = {key: offset for key, offset in self._to_commit.items() if offset <= self._end(*key[1:])}
        self._to_commit = {}
        if not offsets and on_outcome is None:
            return
        self._in_flight.update(offsets)

        def finish(outcome: Outcome) -> None:
            for key, offset in offsets.items():
                if self._in_flight.get(key) == offset:
                    del self._in_flight[key]

            if on_outcome is not None:
                on_outcome(outcome)

        rows = [(*key, offset) for key, offset in offsets.items()]
        while len(rows) > COMMAND_ROWS_MAX:
            self._appender.add_command(encode_command(CommitOffsets(offsets=rows[:COMMAND_ROWS_MAX])))
            rows = rows[COMMAND_ROWS_MAX:]
        self._appender.add_command(encode_command(CommitOffsets(offsets=rows)), finish)

    def replicate_gathered(self) -> None:
        """Call `replicate` if commits are batched. A timer calls this."""
        if self._to_commit:
            self.replicate()

    def handle_update(self, call: Call[UpdateConsumerOffset]) -> bytes | None:
        """Request code 15: commit an offset."""
        ext = call.request.ext
        try:
            check_group(ext.consumer_group)
            check_topic(ext.topic)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if (obstacle := self._obstacle(ext.consumer_group, ext.topic, ext.queue_id)) is not None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, obstacle)
        if call.request.flag & 2:
            self.commit(call.connection, ext.consumer_group, ext.topic, ext.queue_id, ext.commit_offset)
            return None
        if ext.commit_offset < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"commitOffset is {ext.commit_offset}; allowed: 0 or more"
            )
        if self._fencing.fences(call.connection, ext.consumer_group, ext.topic, ext.queue_id, only_known=True):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"another client of {ext.consumer_group} has locked queue {ext.queue_id}"
            )
        if ext.commit_offset > (end := self._end(ext.topic, ext.queue_id)):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, beyond_end(ext.topic, ext.queue_id, ext.commit_offset, end)
            )
        self._appender.check_room()
        key = (ext.consumer_group, ext.topic, ext.queue_id)
        if (self._metadata.offset_resets or self._resets) and self._awaits_restart(key):
            # A reset, or a commit of the reader that has sought back.
            what = (
                "is being reset right now: commit again"
                if key in self._resets
                else "was reset, and no consumer has continued from there yet"
            )
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the offset of {ext.consumer_group} in queue {ext.queue_id} of {ext.topic} {what}",
            )

        def respond(_: Stored) -> bytes:
            return call.response()

        on_outcome = partial(answer_outcome, call, "an offset was being stored", respond)
        if not ext.forward_only and ext.commit_offset < (highest := self._highest(key)):
            self._check_may_move_back(call.connection, key, ext.commit_offset, highest)
            self._move_back(key, ext.commit_offset, on_outcome)
            return None
        if len(self._to_commit) >= self._pending_max:
            self.replicate()  # a commit that wants an answer is not ignored
        self.gather(*key, ext.commit_offset)
        self.replicate(on_outcome)
        return None

    def _check_may_move_back(
        self, connection: ClientConnection, key: Key, offset: QueueOffset, last: QueueOffset
    ) -> None:
        """Raise RequestRefused unless the sender reads the queue, or the group has no known consumers.

        A member that does not read from there has lost the queue to another one, and its commit is late.
        """
        group, topic, queue_id = key
        if self._rereads(connection, key, offset):
            return
        if self._client_id(connection, group) is not None or self._clients.consumer_group(group) is not None:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the offset of {group} in queue {queue_id} of {topic} is {last}; while the group has members, only a"
                f" client that reads the queue from {offset} or before can move it back to {offset}. A reset can, too",
            )

    def _rereads(self, connection: ClientConnection, key: Key, offset: QueueOffset) -> bool:
        """Return whether a commit below the current offset comes from the queue's reader, which has gone back."""
        reader = self._rereaders.get(key)
        if reader is None or not reader[1] <= offset < self._highest(key):
            return False
        return reader[0] == self._sender(connection, key[0])

    def _sender(self, connection: ClientConnection, group: str) -> str | ClientConnection:
        """Identify a sender by its client id, or by its connection if that is unknown."""
        return self._client_id(connection, group) or connection

    def _move_back(
        self,
        key: Key,
        offset: QueueOffset,
        on_outcome: OnOutcome,
    ) -> None:
        group, topic, queue_id = key
        self.reset(group, topic, {queue_id: offset}, on_outcome, restart=False)

    def handle_query(self, call: Call[QueryConsumerOffset]) -> bytes | None:
        """Request code 14: return the offset of a group in a queue.

        A replica that cannot know sends no answer: older clients treat any error as "no offset yet" and would jump.
        """
        ext = call.request.ext
        key = (ext.consumer_group, ext.topic, ext.queue_id)
        call.drop_body()

        def on_confirm(is_known: bool) -> None:
            if not is_known:
                return
            try:
                response = self._answer(call, key)
            except RequestRefused:
                return  # another replica knows whether the group begins at 0
            except (StoreError, OSError) as error:
                call.connection.close(f"the queue cannot be read: {error}")
            else:
                call.connection.send(response)

        def finish(outcome: Outcome) -> None:
            match outcome:
                case Stored():
                    on_confirm(True)
                case DiskFull():
                    self._read(on_confirm)  # no room to remember it
                case LeadershipLost():
                    call.dispatch()
                case Unknown():
                    pass

        is_on_its_way = key in self._to_commit or key in self._in_flight or key in self._resets
        if is_on_its_way and self._appender.has_room:
            self.replicate(finish)
        else:
            self._read(on_confirm)
        return None

    def handle_max(self, call: Call[GetMaxOffset]) -> None:
        """Request code 30: return the offset after the last message of a queue."""
        self._answer_end(call, lambda queue: queue.max_offset)

    def handle_min(self, call: Call[GetMinOffset]) -> None:
        """Request code 31: return the offset of the first message of a queue."""

        def first(queue: ConsumeQueue) -> QueueOffset:
            self._beginning.check(queue.min_offset)
            return queue.min_offset

        self._answer_end(call, first)

    def _answer_end(
        self, call: Call[GetMaxOffset | GetMinOffset], end_of: Callable[[ConsumeQueue], QueueOffset]
    ) -> None:
        def respond() -> bytes:
            queue = self._store.get(call.request.ext.topic, call.request.ext.queue_id)
            return _offset_reply(call, FIRST_OFFSET if queue is None else end_of(queue))

        when_current(self._read, call, respond)

    def _answer(self, call: Call[QueryConsumerOffset], key: Key) -> bytes:
        offset = self._offset(key)
        if offset >= 0:
            return _offset_reply(call, offset)
        if (first := self._first_of_younger(*key)) is not None:
            return _offset_reply(call, first)
        if call.request.ext.set_zero_if_not_found is not False and self._begins_at_first(*key[1:]):
            return _offset_reply(call, self._metadata.former_topics.begin(*key[1:]))
        return call.response(ResponseCode.QUERY_NOT_FOUND, remark="Not found, maybe this group consumer boot first")

    def _first_of_younger(self, group: str, topic: str, queue_id: int) -> QueueOffset | None:
        """Return the first offset of a queue that was added after the group had offsets in the topic, else None."""
        config = self._metadata.topics.get(topic)
        if config is None or not 0 <= queue_id < max(config.read_queues, config.write_queues):
            return None
        if not self._metadata.younger_queues.has(group, topic, queue_id):
            return None
        queue = self._store.get(topic, queue_id)
        return self._metadata.former_topics.begin(topic, queue_id) if queue is None else queue.min_offset

    def _begins_at_first(self, topic: str, queue_id: int) -> bool:
        """Whether a group without an offset begins at the first message, as with RocketMQ 4.9: in young queues and in
        empty ones.

        If it asked for the end of an empty queue instead, it would skip a message that arrives in between.
        """
        config = self._metadata.topics.get(topic)
        if config is None or not 0 <= queue_id < max(config.read_queues, config.write_queues):
            return False
        queue = self._store.get(topic, queue_id)
        begin = self._metadata.former_topics.begin(topic, queue_id)
        if queue is None or queue.max_offset == begin:
            return True
        self._beginning.check(queue.min_offset, begin)
        return self.is_young(queue)

    def is_young(self, queue: ConsumeQueue) -> bool:
        """Return whether a group without an offset begins at the first message: if that exists, and is in memory."""
        begin = self._metadata.former_topics.begin(*queue.key)
        if queue.min_offset > begin or queue.max_offset == begin:
            return False
        physical_offset, _, _ = QUEUE_ENTRY.unpack(queue.read(queue.min_offset, 1))
        return self._in_memory(physical_offset)

    def _awaits_restart(self, key: Key) -> bool:
        if key in self._resets:
            return True
        return key not in self._restarted_keys and key[2] in self._metadata.offset_resets.get(key[:2], ())

    def _highest(self, key: Key) -> QueueOffset:
        """Return the group's offset including commits in flight; -1 for none."""
        return max(self._offset(key), self._to_commit.get(key, NO_OFFSET), self._in_flight.get(key, NO_OFFSET))

    def _offset(self, key: Key) -> QueueOffset:
        group, topic, queue_id = key
        return self._metadata.consumer_offsets.get((group, topic), {}).get(queue_id, NO_OFFSET)

    def _obstacle(self, group: str, topic: str, queue_id: int) -> str | None:
        """Return the reason why an offset of this queue cannot be stored; None if it can."""
        config = self._metadata.topics.get(topic)
        if config is None or not 0 <= queue_id < max(config.read_queues, config.write_queues):
            return f"there is no queue {queue_id} of topic {topic}"
        if (group, topic) not in self._metadata.consumer_offsets:
            try:
                check_group(group)  # a pull with a commit may name an invalid group
            except NameRefused as error:
                return str(error)
            if not self._metadata.has_room_for_offsets(group, topic):
                return (
                    f"no room for offsets of {group} in {topic}: {self._metadata.limits.offset_tables_max} pairs of a "
                    "group and a topic have offsets already; delete consumer groups that are no longer used"
                )
        return None


def beyond_end(topic: str, queue_id: int, offset: QueueOffset, end: QueueOffset) -> str:
    """Return the error text for an offset beyond the end of a queue."""
    return (
        f"offset {offset} is beyond the end of queue {queue_id} of {topic}: its next message gets offset {end}, so"
        f" {end} is the highest offset that a group may have"
    )


def _offset_reply(call: Call[Any], offset: QueueOffset) -> bytes:
    return call.response(ext=OffsetReply(offset=offset).fields())
