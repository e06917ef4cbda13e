"""The replicated metadata of a broker group: topics, consumer groups, their offsets, and the tables of `parts`.

A state machine. Its commands (`mq.broker.state.commands`) are log records, so every replica applies the same ones in
the same order and reaches the same state; `Metadata.snapshot` of two replicas at the same entry is equal byte for byte.
It reads no clock and no settings: commands contain everything that a change needs. Larger tables are separate modules
(`mq.broker.state.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from mq.broker.limits import DEFAULT, StateLimits
from mq.broker.state.archived_log import ArchivedLog
from mq.broker.state.changes import Changes
from mq.broker.state.check_cursors import CheckCursors
from mq.broker.state.commands import (
    AdvanceDelay,
    Command,
    CommitOffsets,
    DataVersion,
    DeleteGroup,
    DeleteTopic,
    ForbidTopic,
    ForgetTopic,
    GroupConfig,
    LockQueues,
    PutGroup,
    PutReplica,
    PutTopic,
    ResetOffset,
    RestoreTopic,
    TopicConfig,
    UnlockQueues,
)
from mq.broker.state.completion_marks import CompletionMarks
from mq.broker.state.deleted_topics import DeletedTopics
from mq.broker.state.expired_messages import ExpireMessages, expired_by
from mq.broker.state.filter_programs import FilterPrograms
from mq.broker.state.format_level import (
    LEVEL_NEWEST,
    LEVEL_OF_TOPIC_BIRTHS,
    LEVEL_OF_YOUNGER_QUEUES,
    FormatLevel,
    RaiseLevel,
)
from mq.broker.state.former_topics import FormerTopics
from mq.broker.state.lite_offsets import ExpireLiteTopics, LiteOffsets, ResetLiteOffsets
from mq.broker.state.metadata_snapshot import (
    SNAPSHOT_FORMAT,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    offset_rows,
    offset_table,
)
from mq.broker.state.nested_tables import NestedTables, in_order
from mq.broker.state.pop_checkpoints import PopCheckpoints
from mq.broker.state.producer_sequences import ProducerSequences
from mq.broker.state.removed_members import ReplicatedRemovals
from mq.broker.state.request_modes import RequestModes
from mq.broker.state.schedules import Schedules
from mq.broker.state.table import CommandInvalid, SnapshotDamaged, StateTable, TableCommand, by_command
from mq.broker.state.topic_births import TopicBirths
from mq.broker.state.topic_deletion import delete_topic, dropped_by, forget_topic, replace_deleted
from mq.broker.state.topic_restore import restore_topic
from mq.broker.state.user_quotas import UserQuotas
from mq.broker.state.users import Users
from mq.broker.state.younger_queues import YoungerQueues
from mq.protocol.names import is_lite_queue, split_lite_queue
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, NO_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests import topics as wire_topics
from mq.protocol.topic_identity import topic_identity
from raftlog.log_numbers import Term


def _no_queues(_: str) -> Mapping[int, QueueOffset]:
    return {}


_PARTS: Final = (
    *("format_level", "marks", "pops", "request_modes", "sequences", "checks", "users"),
    *("former_topics", "younger_queues", "schedules", "lite", "archived", "filters", "deleted_topics", "user_quotas"),
    *("births", "kept_out"),
)
"""Tables with their own commands, by the names of their attributes, which they have in snapshots, too."""


class Metadata:
    """The topics, consumer groups and offsets of a broker group. Readers may read all fields; only `apply` changes
    them.

    Args:
        level_newest: the highest supported format level.
    """

    def __init__(self, level_newest: int = LEVEL_NEWEST, limits: StateLimits = DEFAULT.state) -> None:
        self.limits = limits
        self.topics: dict[str, TopicConfig] = {}
        self.topic_identities: dict[str, str] = {}
        """The identity of each topic: a value that no other topic has, whatever its name; see `topic_identity`. Topics
        created by a release without identities have none before format level 2.
        """
        self.groups: dict[str, GroupConfig] = {}
        self.consumer_offsets: NestedTables[tuple[str, str], int, QueueOffset] = NestedTables()
        """The next offset to consume of each queue id, by (group, topic)."""
        self.offset_resets: NestedTables[tuple[str, str], int, QueueOffset] = NestedTables()
        """The reset offsets from which no consumer has continued and committed yet, by (group, topic)."""
        self.queue_locks: NestedTables[tuple[str, str], int, str] = NestedTables()
        """The client that holds each locked queue id, or held it last, by (group, topic)."""
        self.lock_count = 0
        """Total number of locked queues."""
        self.delay_offsets: dict[int, QueueOffset] = {}
        """The next offset to deliver of each delay level with deliveries, in its queue of the schedule topic."""
        self.forbidden: set[tuple[str, str]] = set()
        """Pairs of a group and a topic that it may not read."""
        self.data_version = DataVersion()
        self.replicas: dict[str, str] = {}
        """Client addresses of replicas that have led, by node id: an IP address and a port."""
        self.marks = CompletionMarks()
        """Finished messages of the broker's internal queues."""
        self.pops = PopCheckpoints(self._move_offset)
        """Popped messages that are not acknowledged."""
        self.request_modes = RequestModes()
        """Whether groups pull or pop the messages of topics."""
        self.sequences = ProducerSequences(limits)
        """Sequence numbers of stored messages."""
        self.checks = CheckCursors()
        """The numbers of checks of half messages."""
        self.format_level = FormatLevel(level_newest)
        """The format level of the log."""
        self.younger_queues = YoungerQueues()
        """Queues that were added after a group had stored offsets in their topic."""
        self.users = Users()
        """Users created by request."""
        self.user_quotas = UserQuotas()
        """The quotas of users."""
        self.former_topics = FormerTopics(limits)
        """The first offsets of queues whose topic's name was used before."""
        self.schedules = Schedules(limits)
        """Messages that the leader sends by a rule."""
        self.archived = ArchivedLog()
        """The extent of the archive."""
        self.filters = FilterPrograms(limits)
        """Programs that filter the messages of consumer groups."""
        self.lite = LiteOffsets()
        """Consumer offsets of lite topics."""
        self.deleted_topics = DeletedTopics()
        """Deleted topics that can be restored."""
        self.births = TopicBirths()
        """The places in the log at which topics were created."""
        self.kept_out = ReplicatedRemovals()
        """Clients that were removed from consumer groups."""
        self.parts: dict[str, StateTable] = {name: getattr(self, name) for name in _PARTS}
        """Parts by their name in snapshots."""
        self._apply_to_table = by_command(self.parts.values())

    @property
    def system_topics(self) -> frozenset[str]:
        """The names of the broker's internal topics."""
        return frozenset(name for name, config in self.topics.items() if config.system)

    def apply(
        self,
        command: Command,
        queue_ends: Callable[[str], Mapping[int, QueueOffset]] = _no_queues,
        position: PhysicalOffset = LOG_BEGIN,
    ) -> Changes:
        """Apply one committed command, and return the changes that it made.

        Args:
            queue_ends: returns the ends of a topic's queues, by queue id, right after the log entry of the command.
            position: the physical offset of that entry.

        Raises CommandUnknown for a command that no correct leader writes; then nothing changed.
        """
        if (apply := self._apply_to_table.get(type(command))) is not None:
            apply(command)
            return Changes()
        match command:
            case CommitOffsets(offsets=offsets):
                return Changes(offsets=sum(self._advance_offset(*row) for row in offsets))
            case PutTopic():
                return self._put_topic(command, position)
            case DeleteTopic():
                return delete_topic(self, command, queue_ends)
            case RestoreTopic():
                return restore_topic(self, command)
            case ForgetTopic():
                return forget_topic(self, command, queue_ends)
            case PutGroup():
                return self._put_group(command)
            case DeleteGroup():
                return self._delete_group(command)
            case ResetOffset():
                return Changes(offsets=int(self._set_offset(command)))
            case ForbidTopic(group=group, topic=topic, forbidden=forbidden):
                (self.forbidden.add if forbidden and topic in self.topics else self.forbidden.discard)((group, topic))
                return Changes()
            case LockQueues():
                self._lock(command)
                return Changes()
            case UnlockQueues():
                self._unlock(command)
                return Changes()
            case AdvanceDelay(level=level, offset=offset):
                self.delay_offsets[level] = max(offset, self.delay_offsets.get(level, FIRST_OFFSET))
                return Changes()
            case PutReplica(node_id=node_id, address=address):
                if self.replicas.get(node_id) == address:
                    return Changes()
                self.replicas[node_id] = address
                return Changes(replicas=(node_id,))
            case RaiseLevel():
                return self._raise_level(command)
            case ResetLiteOffsets():
                return self._reset_lite(command, queue_ends)
            case ExpireLiteTopics():
                return self._expire_lite(command, queue_ends)
            case ExpireMessages():
                return Changes(expired=expired_by(command))
            case TableCommand():
                raise AssertionError(f"{type(command).__name__} belongs to no table")

    def _put_topic(self, command: PutTopic, position: PhysicalOffset) -> Changes:
        topic, timestamp_ms = command.config, command.timestamp_ms
        there = self.topics.get(topic.name)
        if there is not None and (command.unless_there or there == topic):
            return Changes()
        if not self.has_room_for_topic(topic.name):
            return Changes()
        if there is not None:
            self._record_growth(there, topic)
        self.topics[topic.name] = topic
        self.data_version = self.data_version.next(timestamp_ms)
        if there is not None:
            return Changes(topics=(topic.name,))
        companions = replace_deleted(self, topic.name)
        if self.format_level.level >= LEVEL_OF_TOPIC_BIRTHS:
            self.births.record(topic.name, position)
        new_queues = self._begin_after_former(topic)
        begins = self.former_topics.begins.get(topic.name, ())
        self.topic_identities[topic.name] = topic_identity(self.data_version.counter, timestamp_ms, begins)
        return Changes(topics=(topic.name,), begun_queues=new_queues, deleted_topics=companions)

    def _put_group(self, command: PutGroup) -> Changes:
        group = command.config
        old = self.groups.get(group.name)
        if old is not None and (command.unless_there or old == group):
            return Changes()
        if not self.has_room_for_group(group.name):
            return Changes()
        self.groups[group.name] = group
        self.data_version = self.data_version.next(command.timestamp_ms)
        return Changes(groups=(group.name,))

    def _delete_group(self, command: DeleteGroup) -> Changes:
        name, offset_count = command.name, 0
        if command.remove_offsets:
            offset_count = self.remove_offsets(group=name)
            self.former_topics.remove_group(name)
            self.deleted_topics.remove_group(name)
            offset_count += self.lite.remove_group(name)
        self.remove_locks(group=name)
        self.forbidden = {pair for pair in self.forbidden if pair[0] != name}
        for part in self.parts.values():
            part.group_deleted(name)
        if self.groups.pop(name, None) is None:
            return Changes(offsets=offset_count)
        self.data_version = self.data_version.next(command.timestamp_ms)
        return Changes(groups=(name,), offsets=offset_count)

    def _begin_after_former(self, topic: TopicConfig) -> tuple[tuple[str, int, QueueOffset], ...]:
        """Let a new topic's queues begin where the deleted topic's queues ended, with all groups that read that one."""
        former = self.former_topics.create(topic.name)
        begins = {
            queue_id: self.former_topics.begin(topic.name, queue_id)
            for queue_id in range(max(topic.read_queues, topic.write_queues, len(former.ends)))
        }
        for group in former.groups:
            if self.has_room_for_offsets(group, topic.name):
                self.consumer_offsets.to_change((group, topic.name)).update(begins)
        return tuple((topic.name, queue_id, begin) for queue_id, begin in begins.items() if begin)

    def _record_growth(self, before: TopicConfig, after: TopicConfig) -> None:
        queues = max(before.read_queues, before.write_queues)
        if self.format_level.level >= LEVEL_OF_YOUNGER_QUEUES and max(after.read_queues, after.write_queues) > queues:
            groups = [group for group, topic in self.consumer_offsets if topic == before.name]
            self.younger_queues.topic_grew(before.name, queues, groups)

    def _raise_level(self, command: RaiseLevel) -> Changes:
        before = self.format_level.level
        self.format_level.apply(command)
        self.sequences.reach(self.format_level.level)
        if not before < 2 <= self.format_level.level:
            return Changes()
        nameless = sorted(self.topics.keys() - self.topic_identities.keys())
        for name in nameless:
            self.data_version = self.data_version.next(command.timestamp_ms)
            self.topic_identities[name] = topic_identity(self.data_version.counter, command.timestamp_ms)
        return Changes(topics=tuple(nameless))

    def topic_identity(self, name: str) -> str:
        """Return a topic's identity (`mq.protocol.topic_identity`); empty if it does not exist or has none."""
        return self.topic_identities.get(name, "")

    def has_room_for_topic(self, name: str) -> bool:
        """Whether a topic of this name exists, or there is room for it."""
        return name in self.topics or len(self.topics) < self.limits.topics_max

    def has_room_for_group(self, name: str) -> bool:
        """Whether a group of this name exists, or there is room for it and its retry topic."""
        return name in self.groups or (
            len(self.groups) < self.limits.groups_max and len(self.topics) < self.limits.topics_max
        )

    def has_room_for_offsets(self, group: str, topic: str) -> bool:
        """Whether the limits allow ``group`` to store offsets of ``topic``."""
        return (group, topic) in self.consumer_offsets or len(self.consumer_offsets) < self.limits.offset_tables_max

    def has_room_for_forbidden(self, group: str, topic: str) -> bool:
        """Whether there is room to forbid ``group`` to read ``topic``."""
        return (group, topic) in self.forbidden or len(self.forbidden) < self.limits.offset_tables_max

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> QueueOffset | None:
        """Return the next offset that ``group`` consumes from a queue; None if it has not stored one."""
        if is_lite_queue(topic):
            return self.lite.get(group, topic)
        return self.consumer_offsets.get((group, topic), {}).get(queue_id)

    def lock_holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """Return the client that holds the lock of a queue; None without one."""
        return self.queue_locks.get((group, topic), {}).get(queue_id)

    def topic_table(self) -> dict[str, wire_topics.TopicConfig]:
        """Return all topics in the format of a broker registration."""
        return {name: as_registered(config) for name, config in self.topics.items()}

    def topics_version(self, term: Term) -> wire_topics.DataVersion:
        """Return the version of topics and groups that name servers and tools compare; ``term`` is that of the log."""
        version = self.data_version
        return wire_topics.DataVersion(counter=version.counter, timestamp_ms=version.timestamp_ms, state_version=term)

    def snapshot(self) -> bytes:
        """Return the whole state as CBOR. Equal states have equal bytes."""
        return self.capture()()

    def capture(self) -> Callable[[], bytes]:
        """Capture the current state, which is fast. The returned function encodes it as a snapshot; another thread may
        call it later.
        """
        topics, groups, data_version = dict(self.topics), dict(self.groups), self.data_version
        replicas = dict(sorted(self.replicas.items()))
        topic_identities = self.topic_identities.copy()
        consumer_offsets, offset_resets = self.consumer_offsets.capture(), self.offset_resets.capture()
        forbidden, queue_locks = set(self.forbidden), self.queue_locks.capture()
        delay_offsets = dict(sorted(self.delay_offsets.items()))
        parts = [(name, part.capture()) for name, part in sorted(self.parts.items())]

        def encode() -> bytes:
            state = Snapshot(
                format=SNAPSHOT_FORMAT,
                topics=[topics[name] for name in sorted(topics)],
                groups=[groups[name] for name in sorted(groups)],
                consumer_offsets=offset_rows(consumer_offsets),
                data_version=data_version,
                offset_resets=offset_rows(offset_resets),
                queue_locks=[(*key, sorted(queue_locks[key].items())) for key in in_order(queue_locks)],
                delay_offsets=delay_offsets,
                replicas=replicas,
                forbidden=sorted(forbidden),
                parts={name: table for name, encode_part in parts if (table := encode_part()) is not None},
                topic_identities=sorted(topic_identities.items()),
            )
            return encode_snapshot(state)

        return encode

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by that of ``snapshot``; empty bytes are the state before the first command.

        Raises SnapshotDamaged; then the state is unchanged.
        """
        if not snapshot:
            state = Snapshot(SNAPSHOT_FORMAT, [], [], [], DataVersion())
            consumer_offsets = {}
            offset_resets = {}
        else:
            try:
                state = decode_snapshot(snapshot)
                consumer_offsets = offset_table(state.consumer_offsets)
                offset_resets = offset_table(state.offset_resets)
            except (ValueError, msgspec.ValidationError, CommandInvalid) as error:
                raise SnapshotDamaged(f"metadata snapshot of {len(snapshot)} bytes: {error}") from error
        self._restore_parts(state.parts)
        self.topics = {topic.name: topic for topic in state.topics}
        self.topic_identities = dict(state.topic_identities)
        self.groups = {group.name: group for group in state.groups}
        self.consumer_offsets = NestedTables(consumer_offsets)
        self.offset_resets = NestedTables(offset_resets)
        self.queue_locks = NestedTables({(group, topic): dict(locks) for group, topic, locks in state.queue_locks})
        self.forbidden = set(state.forbidden)
        self.lock_count = sum(map(len, self.queue_locks.values()))
        self.delay_offsets = state.delay_offsets
        self.data_version = state.data_version
        self.replicas = dict(state.replicas)

    def _restore_parts(self, tables: dict[str, Any]) -> None:
        if unknown := tables.keys() - self.parts.keys():
            raise SnapshotDamaged(f"metadata snapshot has unknown parts: {', '.join(sorted(unknown))[:200]}")
        before = [(part, part.capture()) for part in self.parts.values()]
        try:
            for name, part in self.parts.items():
                part.restore(tables.get(name))
        except (SnapshotDamaged, msgspec.ValidationError) as error:
            for part, capture in before:
                part.restore(capture())
            raise SnapshotDamaged(f"metadata snapshot: {error}") from error
        finally:
            self.sequences.reach(self.format_level.level)

    def check_invariants(self) -> None:
        """Assert that the tables agree between two commands; for tests, since it reads every table.

        - Every topic and group is listed under its name, and no two topics have one identity: clients take equal ones
          for the same topic.
        - Offsets and permissions are of existing topics: remains of a deleted one would apply to the next of its name.
          No offset lies before the beginning of such a topic, since that would be one of its predecessor.
        - While no consumer has continued from a reset, the group's offset is the one that was set; a commit ends both.
        - There are no more topics and groups than there may be. Offsets may be a few more: commits of one moment are
          accepted together.
        - Locked queues are counted right, for the metrics.
        - What holds for the tables of their own.
        """
        topics_max, groups_max = self.limits.topics_max, self.limits.groups_max
        assert len(self.topics) <= topics_max, f"{len(self.topics)} topics; maximum: {topics_max}"
        assert len(self.groups) <= groups_max, f"{len(self.groups)} groups; maximum: {groups_max}"
        for name, config in self.topics.items():
            assert config.name == name, f"topic {config.name} is listed as {name}"
        for name, group in self.groups.items():
            assert group.name == name, f"group {group.name} is listed as {name}"
        identities = self.topic_identities
        assert identities.keys() <= self.topics.keys(), f"identities of no topic: {identities.keys() - self.topics}"
        assert len(set(identities.values())) == len(identities), f"two topics have one identity: {identities}"
        for (group_name, topic), offsets in self.consumer_offsets.items():
            assert topic in self.topics, f"{group_name} has offsets in {topic}, which does not exist"
            for queue_id, offset in offsets.items():
                begin = self.former_topics.begin(topic, queue_id)
                assert offset >= begin, f"{group_name} is at {offset} of {topic}/{queue_id}, which begins at {begin}"
        for (group_name, topic), resets in self.offset_resets.items():
            assert resets, f"{group_name} has no reset in {topic}, and a table of them"
            for queue_id, offset in resets.items():
                actual = self.consumer_offset(group_name, topic, queue_id)
                assert actual == offset, f"{group_name} was reset to {offset} of {topic}/{queue_id}, and is at {actual}"
        lock_count = sum(map(len, self.queue_locks.values()))
        assert self.lock_count == lock_count, f"{self.lock_count} locks were counted, there are {lock_count}"
        assert all(self.queue_locks.values()), f"a table without locks: {sorted(self.queue_locks)}"
        assert all(topic in self.topics for _, topic in self.forbidden), f"of no topic: {sorted(self.forbidden)}"
        strangers = self.younger_queues.keys() - self.consumer_offsets.keys()
        assert not strangers, f"queues are younger than the offsets of {strangers}, which have none"
        former = self.former_topics
        assert former.begins.keys() <= self.topics.keys(), f"begun, not there: {former.begins.keys() - self.topics}"
        assert former.deleted_topics.keys().isdisjoint(self.topics), (
            f"deleted, and there: {former.deleted_topics.keys() & self.topics}"
        )
        there = self.deleted_topics.rows.keys() & self.topics.keys()
        assert not there, f"there, and to be restored: {there}"
        for part in self.parts.values():
            part.check_invariants()
        unborn = self.births.topics() - self.topics.keys() - self.deleted_topics.rows.keys()
        assert not unborn, f"created, and neither there nor to be restored: {unborn}"
        assert all(parent in self.topics for _, parent, _ in self.lite.tables), f"of no topic: {list(self.lite.tables)}"

    def _advance_offset(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> bool:
        # A commit may be in flight while its topic is deleted; it must not affect a later topic of that name.
        if topic not in self.topics:
            return False
        key = group, topic
        offset = self._not_of_former(topic, queue_id, offset)
        offsets = self.consumer_offsets.get(key)
        if offsets is not None and offset <= offsets.get(queue_id, NO_OFFSET):
            return False
        if offsets is None or key not in self.consumer_offsets.own:
            offsets = self.consumer_offsets.to_change(key)
        offsets[queue_id] = offset
        if self.offset_resets:
            # The leader accepts commits only from consumers that have continued from the reset offset.
            self._drop_reset(group, topic, queue_id)
        return True

    def _not_of_former(self, topic: str, queue_id: int, offset: QueueOffset) -> QueueOffset:
        """Raise an offset to the first one of its queue, if the client means a deleted topic of this name."""
        if topic not in self.former_topics.begins:
            return offset
        return max(offset, self.former_topics.begin(topic, queue_id))

    def _move_offset(self, group: str, topic: str, queue_id: int, before: QueueOffset, after: QueueOffset) -> bool:
        """Advance a group's offset if it is still ``before``; returns whether the topic exists."""
        if is_lite_queue(topic):
            if split_lite_queue(topic)[0] not in self.topics:
                return False
            offset = self.lite.get(group, topic)
            if (NO_OFFSET if offset is None else offset) == before < after:
                self.lite.put(group, topic, after)
            return True
        if topic not in self.topics:
            return False
        if self.consumer_offsets.get((group, topic), {}).get(queue_id, NO_OFFSET) == before:
            self._advance_offset(group, topic, queue_id, after)
        return True

    def _reset_lite(self, command: ResetLiteOffsets, queue_ends: Callable[[str], Mapping[int, QueueOffset]]) -> Changes:
        offsets = 0
        for queue, offset in command.rows:
            # A lite topic that has ended since begins again at its first offset; nothing would ever remove this one.
            end = queue_ends(queue).get(0)
            if end is not None and split_lite_queue(queue)[0] in self.topics:
                self.pops.reset_ordered((command.group, queue, 0))
                self.lite.put(command.group, queue, min(offset, end))
                offsets += 1
        return Changes(offsets=offsets)

    def _expire_lite(
        self, command: ExpireLiteTopics, queue_ends: Callable[[str], Mapping[int, QueueOffset]]
    ) -> Changes:
        lite_queues = dropped_by(command, queue_ends)
        for queue in lite_queues:
            self.lite.forget(queue)
            self.pops.topic_deleted(queue)
        return Changes(deleted_topics=lite_queues)

    def _drop_reset(self, group: str, topic: str, queue_id: int) -> None:
        key = group, topic
        if queue_id in self.offset_resets.get(key, ()):
            resets = self.offset_resets.to_change(key)
            del resets[queue_id]
            if not resets:
                del self.offset_resets[key]

    def _set_offset(self, command: ResetOffset) -> bool:
        if command.topic not in self.topics:
            return False
        key = command.group, command.topic
        offset = self._not_of_former(command.topic, command.queue_id, command.offset)
        self.consumer_offsets.to_change(key)[command.queue_id] = offset
        if command.restart:
            self.offset_resets.to_change(key)[command.queue_id] = offset
        else:
            self._drop_reset(*key, command.queue_id)
        return True

    def remove_offsets(self, *, group: str | None = None, topic: str | None = None) -> int:
        """Remove the offsets of a group, or of all groups in a topic; returns their number."""
        self.younger_queues.offsets_removed(group=group, topic=topic)
        for key in [key for key in self.offset_resets if key[0] == group or key[1] == topic]:
            del self.offset_resets[key]
        keys = [key for key in self.consumer_offsets if key[0] == group or key[1] == topic]
        return sum(len(self.consumer_offsets.pop(key)) for key in keys)

    def _lock(self, command: LockQueues) -> None:
        for topic, queue_id in command.queues:
            if topic in self.topics:
                locks = self.queue_locks.to_change((command.group, topic))
                self.lock_count += queue_id not in locks
                locks[queue_id] = command.client_id

    def _unlock(self, command: UnlockQueues) -> None:
        for topic, queue_id in command.queues:
            key = command.group, topic
            if self.queue_locks.get(key, {}).get(queue_id) == command.client_id:
                locks = self.queue_locks.to_change(key)
                del locks[queue_id]
                self.lock_count -= 1
                assert self.lock_count >= 0, f"{self.lock_count} queues are locked"
                if not locks:
                    del self.queue_locks[key]

    def remove_locks(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Unlock all queues of a group, or of a topic."""
        for key in [key for key in self.queue_locks if key[0] == group or key[1] == topic]:
            self.lock_count -= len(self.queue_locks.pop(key))
        assert self.lock_count >= 0, f"{self.lock_count} queues are locked"


def as_registered(config: TopicConfig) -> wire_topics.TopicConfig:
    """Return a topic in the format of a broker registration."""
    return wire_topics.TopicConfig(
        topic_name=config.name,
        read_queue_nums=config.read_queues,
        write_queue_nums=config.write_queues,
        perm=config.perm,
        topic_filter_type=config.filter_type,
        topic_sys_flag=config.sys_flag,
        order=config.order,
        attributes=config.attributes,
    )
