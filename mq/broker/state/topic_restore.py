"""Restores a deleted topic in all tables of the metadata.

`mq.broker.state.topic_deletion` has taken the topic out of them; its consume queues have stayed as they were.
"""

from __future__ import annotations

from mq.broker.state.changes import Changes
from mq.broker.state.commands import RestoreTopic, offset_pairs
from mq.broker.state.deleted_topics import DeletedTopic
from mq.broker.state.topic_deletion import Tables


def restore_topic(metadata: Tables, command: RestoreTopic) -> Changes:
    """Apply `RestoreTopic`: restore a deleted topic, if the limits allow it."""
    rows, name = metadata.deleted_topics.rows, command.name
    if name not in rows or not metadata.has_room_for_topic(name):
        return Changes()
    names: list[str] = []
    for each in (name, *metadata.deleted_topics.companions(name)):
        if metadata.has_room_for_topic(each):
            _bring_back(metadata, rows.pop(each))
            names.append(each)
    metadata.data_version = metadata.data_version.next(command.timestamp_ms)
    return Changes(topics=tuple(names))


def _bring_back(metadata: Tables, row: DeletedTopic) -> None:
    name = row.config.name
    assert name not in metadata.topics, f"{name} is restored, and is there"
    metadata.former_topics.bring_back(name, row.begins)
    metadata.topics[name] = row.config
    if row.identity:
        metadata.topic_identities[name] = row.identity
    for group, numbers in row.offsets.items():
        if metadata.has_room_for_offsets(group, name):
            metadata.consumer_offsets.to_change((group, name)).update(offset_pairs(group, name, numbers))
            if group in row.resets:
                resets = metadata.offset_resets.to_change((group, name))
                resets.update(offset_pairs(group, name, row.resets[group]))
            if group in row.younger:
                metadata.younger_queues.topic_grew(name, row.younger[group], [group])
    metadata.forbidden = metadata.forbidden | {(group, name) for group in row.forbidden}
