"""Creates topics without an operator: the internal ones, and those of first messages."""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.state.commands import PutTopic, TopicConfig, encode_command
from mq.broker.state.metadata import Metadata
from mq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from mq.protocol.messages.delay import LEVEL_MAX, TIMER_SLOTS
from mq.protocol.names import (
    AUTO_CREATE_TEMPLATE,
    BENCHMARK_TOPIC,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    UNENDED_TOPIC,
    NameRefused,
    check_topic,
    reply_topic,
)
from mq.store.dispatch import META_TOPIC


def auto_create(
    metadata: Metadata, topic: str, template: str, default_queue_nums: int, timestamp_ms: int
) -> PutTopic | None:
    """Return the command that creates ``topic`` for its first message; None if the rules do not allow it.

    The template must exist and have PERM_INHERIT; it determines the permissions. The number of queues is
    ``default_queue_nums`` as requested by the sender, at most the template's number. None for an existing topic, and
    for a deleted one that can be restored: a producer that still runs would make that impossible.
    """
    if topic in metadata.topics or topic == META_TOPIC or not metadata.has_room_for_topic(topic):
        return None
    if topic in metadata.deleted_topics.rows:
        return None
    config = metadata.topics.get(template)
    if config is None or not config.perm & PERM_INHERIT:
        return None
    queues = min(default_queue_nums, config.write_queues)
    if queues < 1:
        return None
    try:
        check_topic(topic)
    except NameRefused:
        return None
    new_config = TopicConfig(
        name=topic,
        read_queues=queues,
        write_queues=queues,
        perm=config.perm & ~PERM_INHERIT,
        filter_type=config.filter_type,
    )
    return PutTopic(config=new_config, timestamp_ms=timestamp_ms, unless_there=True)


def explain_missing_topic(metadata: Metadata, topic: str) -> str:
    """Return why a message does not create its topic, and what an operator can do about it."""
    if topic in metadata.deleted_topics.rows:
        return (
            f"topic {topic} was deleted; `raftmq topic restore` brings it back with its messages, and `raftmq topic "
            "create` begins a new one; a message may create it after `raftmq topic delete --no-restore`"
        )
    return f"topic {topic} does not exist, apply first please!"


def missing_system_topics(
    metadata: Metadata, cluster: str, broker: str, timestamp_ms: int, *, default_topic_queues: int = 8
) -> list[bytes]:
    """Return encoded commands that create the missing internal topics."""
    return [
        encode_command(PutTopic(config=config, timestamp_ms=timestamp_ms, unless_there=True))
        for config in _system_topics(cluster, broker, default_topic_queues)
        if config.name not in metadata.topics
    ]


def _system_topics(cluster: str, broker: str, default_topic_queues: int) -> Iterator[TopicConfig]:
    usual = PERM_READ | PERM_WRITE
    rules: list[tuple[str, int, int]] = [
        (AUTO_CREATE_TEMPLATE, default_topic_queues, usual | PERM_INHERIT),
        (SELF_TEST_TOPIC, 1, usual),
        (BENCHMARK_TOPIC, 1024, usual),
        (SCHEDULE_TOPIC, LEVEL_MAX, usual),
        (TIMER_TOPIC, TIMER_SLOTS, usual),
        (HALF_TOPIC, 1, usual),
        (HALF_OP_TOPIC, 1, usual),
        (UNENDED_TOPIC, 1, usual),
        (cluster, 16, usual | PERM_INHERIT),
        (broker, 1, usual | PERM_INHERIT),
        (TRACE_TOPIC, 1, usual),
        (reply_topic(cluster), 1, usual),
    ]
    seen: set[str] = set()
    for name, queues, perm in rules:
        if name not in seen and _is_topic_name(name):
            seen.add(name)
            yield TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm, system=True)


def _is_topic_name(name: str) -> bool:
    # Names of clusters and brokers may be invalid for topics; then there is no topic of that name.
    try:
        check_topic(name)
    except NameRefused:
        return False
    return True
