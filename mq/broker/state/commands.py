"""The commands that change the replicated metadata of a broker group, and the values in them.

They are bodies of records in the log. A command is validated when it is encoded and again when it is decoded. An
unknown command stops the replica (`CommandUnknown`): skipping it would make this replica's state diverge. For the
effect of commands see `mq.broker.state.metadata`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, TypeAlias, cast, get_args

import cbor2
import msgspec
from msgspec import Meta

from mq.broker.state.archived_log import NoteArchived, NoteTier
from mq.broker.state.check_cursors import AdvanceChecks
from mq.broker.state.completion_marks import CompleteEntries, SkipEntries
from mq.broker.state.expired_messages import ExpireMessages
from mq.broker.state.filter_programs import PutFilter
from mq.broker.state.format_level import RaiseLevel
from mq.broker.state.lite_offsets import ExpireLiteTopics, ResetLiteOffsets
from mq.broker.state.pop_checkpoints import NUMBER_BYTES_MAX, AckMessages, DeferMessage, PopMessages
from mq.broker.state.removed_members import RemoveOrReadmit
from mq.broker.state.request_modes import PutRequestMode
from mq.broker.state.schedules import DeleteSchedule, PutSchedule, SettleTick, SwitchSchedule
from mq.broker.state.table import CommandInvalid, CommandUnknown, TableCommand, check_range
from mq.broker.state.user_quotas import PutUserQuota
from mq.broker.state.users import CreateUser, DeletePolicies, DeleteUser, PutPolicies, UpdateUser
from mq.protocol.codes import PERM_READ, PERM_WRITE
from mq.protocol.messages.delay import LEVEL_MAX
from mq.protocol.names import NameRefused, check_group, check_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.wire.fields import INT32_MAX
from mq.store.dispatch import META_TOPIC
from raftlog.safe_cbor import decode_safe

QUEUES_MAX = 16_384
"""Readable or writable queues of one topic; far above what is used, far below what would hurt."""

CLIENT_ID_LENGTH_MAX = 255
"""Characters of a client id."""

DELETER_LENGTH_MAX = 255
"""Characters that say who deleted a topic."""

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

ATTRIBUTES_BYTES_MAX = 1024
"""Total size of the attributes of a topic or a group."""

_INT64_MAX = 2**63 - 1


# -- values ------------------------------------------------------------------------------------------------------------


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a topic. ``perm`` is a sum of PERM_READ, PERM_WRITE and PERM_INHERIT."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    system: bool = False
    """Internal topic of the broker; clients may not change or delete it."""
    filter_type: str = "SINGLE_TAG"
    attributes: dict[str, str] = {}
    """Attributes from newer tools, such as the message type. Stored and returned."""


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The configuration of a consumer group.

    Default values are not written, so that older releases can read groups that do not use newer fields.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_times_max: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    consume_orderly: bool = False
    """Stored and returned: RocketMQ's proxy reads it, and pops in order for the gRPC clients of such a group."""
    attributes: dict[str, str] = {}
    """The attributes; from format level 5 on."""


class DataVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts the changes of topics and groups. Name servers and tools compare it."""

    counter: Annotated[int, Meta(ge=0, le=_INT64_MAX)] = 0
    timestamp_ms: Annotated[int, Meta(ge=0, le=_INT64_MAX)] = 0

    def next(self, timestamp_ms: int) -> DataVersion:
        """Return the version after a change at ``timestamp_ms``."""
        return DataVersion(self.counter + 1, timestamp_ms)


# -- commands ----------------------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the commands of this module. Its tag names the command in the log."""


class PutTopic(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="put_topic"):
    """Create a topic, or replace its configuration.

    With ``unless_there`` an existing one is not changed: automatic creation never replaces anything.
    """

    config: TopicConfig
    timestamp_ms: int
    unless_there: bool = False


class DeleteTopic(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="delete_topic"):
    """Delete a topic and all offsets of groups in it. A later topic of that name starts without messages.

    With ``continued``, its queue offsets continue the deleted topic's offsets (`mq.broker.state.former_topics`).
    Otherwise they begin at 0, as before format level 3.

    With ``restorable``, its queues stay, and `RestoreTopic` brings it back (`mq.broker.state.deleted_topics`), from
    format level 7 on. A topic with lite topics is not deleted then. ``along_with`` is the topic with which it comes
    back; ``by`` says who deleted it.
    """

    name: str
    timestamp_ms: int
    continued: bool = False
    restorable: bool = False
    along_with: str = ""
    by: str = ""


class RestoreTopic(_Command, frozen=True, kw_only=True, tag="restore_topic"):
    """Restore a deleted topic, and the retry topics that were deleted with it.

    Changes nothing if there is a topic of its name, or if it cannot be restored.
    """

    name: str
    timestamp_ms: int


class ForgetTopic(_Command, frozen=True, kw_only=True, tag="forget_topic"):
    """Drop the queues of a deleted topic. It cannot be restored any more.

    ``ends`` are the ends of its queues, by queue id, when this was decided. If a queue has grown since, the topic
    stays.
    """

    name: str
    ends: list[tuple[int, QueueOffset]]


class PutGroup(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="put_group"):
    """Create a consumer group, or replace its configuration.

    With ``unless_there`` an existing one is not changed: automatic creation never replaces anything.
    """

    config: GroupConfig
    timestamp_ms: int
    unless_there: bool = False


class DeleteGroup(_Command, frozen=True, kw_only=True, tag="delete_group"):
    """Delete a consumer group; with ``remove_offsets``, also its offsets."""

    name: str
    timestamp_ms: int
    remove_offsets: bool = False


class CommitOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Advance consumer offsets: (group, topic, queue id, next offset to consume). Lower offsets change nothing."""

    offsets: list[tuple[str, str, int, QueueOffset]]


class ResetOffset(_Command, frozen=True, kw_only=True, tag="reset_offset"):
    """Set one consumer offset, even to a lower value. No other command moves an offset back.

    With ``restart``, running consumers have to restart there: until one has, their commits are ignored.
    """

    group: str
    topic: str
    queue_id: int
    offset: QueueOffset
    restart: bool = False


class ForbidTopic(_Command, frozen=True, kw_only=True, tag="forbid_topic"):
    """Forbid a group to read a topic, or allow it again."""

    group: str
    topic: str
    forbidden: bool


class LockQueues(_Command, frozen=True, kw_only=True, tag="lock_queues"):
    """Lock queues (topic, queue id) for a client of a group, whoever held them: the leader saw that they are free."""

    group: str
    client_id: str
    queues: list[tuple[str, int]]


class UnlockQueues(_Command, frozen=True, kw_only=True, tag="unlock_queues"):
    """Unlock those of these queues that a client of a group holds."""

    group: str
    client_id: str
    queues: list[tuple[str, int]]


class AdvanceDelay(_Command, frozen=True, kw_only=True, tag="advance_delay"):
    """Record that the messages of a delay level below ``offset`` were delivered. A lower offset changes nothing."""

    level: int
    offset: QueueOffset


class PutReplica(_Command, frozen=True, kw_only=True, tag="put_replica"):
    """Set the client address of a replica, an IP address and a port, for the other replicas."""

    node_id: str
    address: str


_AsWritten: TypeAlias = (
    PutTopic
    | DeleteTopic
    | RestoreTopic
    | ForgetTopic
    | PutGroup
    | DeleteGroup
    | ResetOffset
    | LockQueues
    | UnlockQueues
    | AdvanceDelay
    | PutReplica
    | ForbidTopic
    | CompleteEntries
    | SkipEntries
    | PutRequestMode
    | RaiseLevel
    | AdvanceChecks
    | PopMessages
    | AckMessages
    | DeferMessage
    | CreateUser
    | UpdateUser
    | DeleteUser
    | PutUserQuota
    | RemoveOrReadmit
    | PutPolicies
    | DeletePolicies
    | PutSchedule
    | DeleteSchedule
    | SwitchSchedule
    | SettleTick
    | ResetLiteOffsets
    | ExpireLiteTopics
    | ExpireMessages
    | NoteArchived
    | PutFilter
    | NoteTier
)
"""Commands whose fields are encoded as they are."""
Command: TypeAlias = _AsWritten | CommitOffsets

OffsetRow = tuple[str, str, list[int]]
"""Encoded consumer offsets: group, topic, and alternating queue ids and offsets. Few containers make CBOR fast."""


class _WrittenOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="commit_offsets"):
    """The encoding of `CommitOffsets`."""

    offsets: list[OffsetRow]


_Written: TypeAlias = _AsWritten | _WrittenOffsets


_KINDS: Final = {kind.__struct_config__.tag: kind for kind in get_args(_Written)}


def encode_command(command: Command) -> bytes:
    """Return the body of a command's record. Raises CommandInvalid for invalid values."""
    _check_command(command)
    wire_form: _Written = _write_offsets(command) if isinstance(command, CommitOffsets) else command
    body: bytes = cbor2.dumps(msgspec.to_builtins(wire_form))
    return body


def decode_command(body: bytes) -> Command:
    """Decode the body of a committed command's record. Raises CommandUnknown for any invalid bytes."""
    try:
        fields = decode_safe(body, number_bytes_max=NUMBER_BYTES_MAX)
        # Decoding with the union of all types would take ten times as long.
        name = fields.get("kind") if isinstance(fields, dict) else None
        kind = _KINDS.get(name) if isinstance(name, str) else None
        wire_form: _Written = msgspec.convert(fields, kind or _Written)
        command = _read_offsets(wire_form) if isinstance(wire_form, _WrittenOffsets) else wire_form
        _check_command(command)
    except (ValueError, msgspec.ValidationError, CommandInvalid) as error:
        raise CommandUnknown(f"metadata command of {len(body)} bytes: {error}") from error
    return command


def _write_offsets(command: CommitOffsets) -> _WrittenOffsets:
    rows: dict[tuple[str, str], list[int]] = {}
    for group, topic, queue_id, offset in command.offsets:
        rows.setdefault((group, topic), []).extend((queue_id, offset))
    return _WrittenOffsets([(group, topic, row) for (group, topic), row in rows.items()])


def _read_offsets(wire_form: _WrittenOffsets) -> CommitOffsets:
    return CommitOffsets(
        offsets=[
            (group, topic, queue_id, offset)
            for group, topic, row in wire_form.offsets
            for queue_id, offset in offset_pairs(group, topic, row)
        ]
    )


def offset_pairs(group: str, topic: str, row: list[int]) -> Iterator[tuple[int, QueueOffset]]:
    """Yield pairs of queue id and offset from a flat row. Raises CommandInvalid if a queue id has no offset."""
    if len(row) % 2:
        raise CommandInvalid(f"offsets of {group} in {topic}: {len(row)} numbers cannot be divided into pairs")
    return zip(row[::2], cast("list[QueueOffset]", row[1::2]), strict=True)


def _check_command(command: Command) -> None:
    try:
        if isinstance(command, TableCommand):  # the most frequent kind
            command.check()
            return
        match command:
            case PutTopic(config=topic, timestamp_ms=timestamp_ms):
                _check_topic_config(topic)
                check_range("timestamp_ms", timestamp_ms, 0, _INT64_MAX)
            case DeleteTopic(name=name, timestamp_ms=timestamp_ms) | RestoreTopic(name=name, timestamp_ms=timestamp_ms):
                check_topic(name)
                check_range("timestamp_ms", timestamp_ms, 0, _INT64_MAX)
                if isinstance(command, DeleteTopic):
                    check_range("length of by", len(command.by), 0, DELETER_LENGTH_MAX)
            case ForgetTopic(name=name, ends=ends):
                check_topic(name)
                for queue_id, end in ends:
                    check_range("queue_id", queue_id, 0, INT32_MAX)
                    check_range("end", end, 0, _INT64_MAX)
            case PutGroup(config=group, timestamp_ms=timestamp_ms):
                _check_group_config(group)
                check_range("timestamp_ms", timestamp_ms, 0, _INT64_MAX)
            case DeleteGroup(name=name, timestamp_ms=timestamp_ms):
                check_group(name)
                check_range("timestamp_ms", timestamp_ms, 0, _INT64_MAX)
            case CommitOffsets(offsets=offsets):
                _check_offsets(offsets)
            case ResetOffset():
                _check_offsets([(command.group, command.topic, command.queue_id, command.offset)])
            case ForbidTopic(group=name, topic=topic_name):
                check_group(name)
                check_topic(topic_name)
            case LockQueues() | UnlockQueues():
                _check_locks(command)
            case AdvanceDelay(level=level, offset=offset):
                check_range("level", level, 1, LEVEL_MAX)
                check_range("offset", offset, 0, _INT64_MAX)
            case PutReplica():
                check_range("length of node_id", len(command.node_id), 1, 64)
                check_range("length of address", len(command.address), 3, 64)
    except NameRefused as error:
        raise CommandInvalid(str(error)) from error


def _check_topic_config(topic: TopicConfig) -> None:
    check_topic(topic.name)
    if topic.name == META_TOPIC:
        raise CommandInvalid(f"topic {META_TOPIC} is reserved for replicating metadata and cannot have queues")
    check_range("read_queues", topic.read_queues, 0, QUEUES_MAX)
    check_range("write_queues", topic.write_queues, 0, QUEUES_MAX)
    check_range("perm", topic.perm, 0, 15)
    check_range("sys_flag", topic.sys_flag, 0, INT32_MAX)
    if topic.filter_type not in FILTER_TYPES:
        raise CommandInvalid(f"filter_type is {topic.filter_type[:40]!r}; allowed: {' and '.join(FILTER_TYPES)}")
    _check_attributes(topic.attributes)


def _check_attributes(attributes: dict[str, str]) -> None:
    nbytes = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    check_range("size of attributes", nbytes, 0, ATTRIBUTES_BYTES_MAX)


def _check_group_config(group: GroupConfig) -> None:
    check_group(group.name)
    attributes = sum(len(name.encode()) + len(value.encode()) for name, value in group.attributes.items())
    check_range("size of attributes", attributes, 0, ATTRIBUTES_BYTES_MAX)
    check_range("retry_queues", group.retry_queues, 0, QUEUES_MAX)
    check_range("retry_times_max", group.retry_times_max, -1, INT32_MAX)
    for name in ("broker_id", "which_broker_when_consume_slowly"):
        check_range(name, getattr(group, name), -_INT64_MAX, _INT64_MAX)
    _check_attributes(group.attributes)


def _check_offsets(offsets: list[tuple[str, str, int, QueueOffset]]) -> None:
    for group in {row[0] for row in offsets}:
        check_group(group)
    for topic in {row[1] for row in offsets}:
        check_topic(topic)
    for _, _, queue_id, offset in offsets:
        check_range("queue_id", queue_id, 0, INT32_MAX)
        check_range("offset", offset, 0, _INT64_MAX)


def _check_locks(command: LockQueues | UnlockQueues) -> None:
    check_group(command.group)
    check_range("client_id length", len(command.client_id), 1, CLIENT_ID_LENGTH_MAX)
    for topic in {topic for topic, _ in command.queues}:
        check_topic(topic)
    for _, queue_id in command.queues:
        check_range("queue_id", queue_id, 0, INT32_MAX)
