"""Deletes topics in all tables of the metadata, and drops deleted topics for good.

Until a deleted topic is forgotten, its consume queues stay as they are; see `mq.broker.state.deleted_topics`. A replica
that fills its queues from the log behind a snapshot knows the metadata of a later entry: `queue_effects` says what a
command does to queues then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mq.broker.state.changes import Changes
from mq.broker.state.commands import (
    Command,
    DataVersion,
    DeleteTopic,
    ForgetTopic,
    PutTopic,
    TopicConfig,
)
from mq.broker.state.deleted_topics import DeletedTopic, DeletedTopics, offset_numbers
from mq.broker.state.expired_messages import expired_by
from mq.broker.state.former_topics import FormerTopics
from mq.broker.state.lite_offsets import ExpireLiteTopics
from mq.broker.state.nested_tables import NestedTables
from mq.broker.state.pop_checkpoints import PopCheckpoints
from mq.broker.state.request_modes import RequestModes
from mq.broker.state.table import StateTable
from mq.broker.state.topic_births import TopicBirths
from mq.broker.state.younger_queues import YoungerQueues
from mq.protocol.numbers import FIRST_OFFSET, NO_OFFSET, QueueOffset
from mq.protocol.requests.lite_attributes import is_lite

QueueEnds = Callable[[str], Mapping[int, QueueOffset]]
"""The ends of a topic's queues, by queue id."""


class Tables(Protocol):
    """The part of `mq.broker.state.metadata.Metadata` that deletions and restores use."""

    topics: dict[str, TopicConfig]
    topic_identities: dict[str, str]
    consumer_offsets: NestedTables[tuple[str, str], int, QueueOffset]
    offset_resets: NestedTables[tuple[str, str], int, QueueOffset]
    forbidden: set[tuple[str, str]]
    data_version: DataVersion
    former_topics: FormerTopics
    younger_queues: YoungerQueues
    pops: PopCheckpoints
    request_modes: RequestModes
    deleted_topics: DeletedTopics
    births: TopicBirths
    parts: dict[str, StateTable]

    def topic_identity(self, name: str, /) -> str:
        """Return a topic's identity; empty if it does not exist or has none."""
        ...

    def has_room_for_topic(self, name: str, /) -> bool:
        """Whether a topic of this name exists, or there is room for it."""
        ...

    def has_room_for_offsets(self, group: str, topic: str, /) -> bool:
        """Whether the limits allow ``group`` to store offsets of ``topic``."""
        ...

    def remove_offsets(self, *, topic: str) -> int:
        """Remove the offsets of all groups in a topic; returns their number."""
        ...

    def remove_locks(self, *, topic: str) -> None:
        """Unlock all queues of a topic."""
        ...


def delete_topic(metadata: Tables, command: DeleteTopic, queue_ends: QueueEnds) -> Changes:
    """Apply `DeleteTopic`: delete a topic, so that it can be restored if the command says so."""
    name = command.name
    config = metadata.topics.get(name)
    if command.restorable and config is not None and is_lite(config.attributes):
        return Changes()  # the leader did not know yet that it is one
    ends, former = queue_ends(name), metadata.former_topics
    assert config is None or name not in metadata.deleted_topics.rows, f"{name} is there, and can be restored"
    row = None
    if command.restorable and config is not None:
        row = _row_of(metadata, command, ends)
    if command.continued:
        former.delete(name, ends, [key[0] for key in metadata.consumer_offsets if key[1] == name])
    else:
        former.forget(name)
    if config is None:
        if command.restorable and name in metadata.deleted_topics.rows:
            return Changes()  # deleted once more
        companions = replace_deleted(metadata, name)
        # Messages may have arrived after an earlier deletion; dropping them must not depend on the state.
        return Changes(deleted_topics=(*companions, name))
    del metadata.topics[name]
    metadata.topic_identities.pop(name, None)
    offset_count = metadata.remove_offsets(topic=name)
    if not command.continued:
        # Otherwise they expire: an ordered consumer that still relies on one may read the next topic.
        metadata.remove_locks(topic=name)
    metadata.forbidden = {pair for pair in metadata.forbidden if pair[1] != name}
    for part in metadata.parts.values():
        # Some stay until the topic is forgotten.
        if row is None or (part is not metadata.request_modes and part is not metadata.births):
            part.topic_deleted(name)
    metadata.pops.lite_parent_deleted(name)
    metadata.data_version = metadata.data_version.next(command.timestamp_ms)
    if row is None:
        return Changes(topics=(name,), deleted_topics=(name,), offsets=offset_count)
    metadata.deleted_topics.rows[name] = row
    return Changes(topics=(name,), hidden_topics=(name,), offsets=offset_count)


def forget_topic(metadata: Tables, command: ForgetTopic, queue_ends: QueueEnds) -> Changes:
    """Apply `ForgetTopic`: drop a deleted topic, unless its queues have changed since the command was made."""
    if command.name not in metadata.deleted_topics.rows or dict(queue_ends(command.name)) != dict(command.ends):
        return Changes()
    _forget(metadata, command.name)
    return Changes(deleted_topics=(command.name,))


def replace_deleted(metadata: Tables, name: str) -> tuple[str, ...]:
    """Discard the deleted topic ``name``, because a new topic takes its name. It can no longer be restored.

    Returns the topics that were deleted along with it, whose queues are dropped. Its own queues begin where they ended.
    """
    row = metadata.deleted_topics.rows.get(name)
    if row is None:
        return ()
    if name not in metadata.former_topics.deleted_topics:
        # Many topics were deleted since, and its name was dropped from the former ones.
        metadata.former_topics.delete(name, dict(enumerate(row.ends)), row.offsets)
    companions = [each for each in metadata.deleted_topics.companions(name) if each != name]
    for each in (name, *companions):
        _forget(metadata, each)
    return tuple(companions)


def queue_effects(command: Command, metadata: Tables, queue_ends: QueueEnds) -> Changes:
    """Return a command's changes to consume queues, also if the metadata is at a later entry already."""
    match command:
        case PutTopic(config=config):
            # If it was deleted in between, its earlier messages are deleted by now.
            row = metadata.deleted_topics.rows.get(config.name)
            begins = metadata.former_topics.begins.get(config.name, ()) if row is None else row.begins
            return Changes(expired=tuple((config.name, number, begin) for number, begin in enumerate(begins) if begin))
        case ForgetTopic(name=name, ends=ends):
            if name in metadata.topics or name in metadata.deleted_topics.rows:
                return Changes()  # it was restored before, or created again later
            return Changes(expired=tuple((name, number, end) for number, end in ends))
        case _:
            return Changes(deleted_topics=dropped_by(command, queue_ends), expired=expired_by(command))


def dropped_by(command: Command, queue_ends: QueueEnds) -> tuple[str, ...]:
    """Return the topics whose queues a command drops, without the use of the metadata."""
    match command:
        case DeleteTopic(name=name, restorable=False):
            return (name,)
        case ExpireLiteTopics(rows=rows):
            return tuple(queue for queue, end in rows if queue_ends(queue).get(0, NO_OFFSET) == end)
        case _:
            return ()


def _row_of(metadata: Tables, command: DeleteTopic, ends: Mapping[int, QueueOffset]) -> DeletedTopic:
    name = command.name
    offsets = {
        group: {queue_id: _first_unacked(metadata, group, name, queue_id, at) for queue_id, at in table.items()}
        for (group, topic), table in metadata.consumer_offsets.items()
        if topic == name and table
    }
    resets = {
        group: {queue_id: at for queue_id, at in table.items() if offsets[group][queue_id] == at}
        for (group, topic), table in metadata.offset_resets.items()
        if topic == name
    }
    firsts = {group: metadata.younger_queues.first_queue(group, name) for group in offsets}
    return DeletedTopic(
        config=metadata.topics[name],
        identity=metadata.topic_identity(name),
        deleted_ms=command.timestamp_ms,
        by=command.by,
        along_with=command.along_with,
        begins=list(metadata.former_topics.begins.get(name, ())),
        ends=[ends.get(number, FIRST_OFFSET) for number in range(max(ends, default=-1) + 1)],
        offsets={group: offset_numbers(offsets[group]) for group in sorted(offsets)},
        resets={group: offset_numbers(resets[group]) for group in sorted(resets) if resets[group]},
        younger={group: first for group, first in firsts.items() if first is not None},
        forbidden=sorted(group for group, topic in metadata.forbidden if topic == name),
    )


def _first_unacked(metadata: Tables, group: str, topic: str, queue_id: int, offset: QueueOffset) -> QueueOffset:
    """Return a group's offset, or an earlier popped message that is open: a restore redelivers it."""
    first = metadata.pops.get((group, topic, queue_id)).first_open()
    return offset if first is None else max(min(offset, first), metadata.former_topics.begin(topic, queue_id))


def _forget(metadata: Tables, name: str) -> None:
    del metadata.deleted_topics.rows[name]
    metadata.request_modes.topic_deleted(name)
    metadata.births.topic_deleted(name)
