"""Plans a mirror: which queues to copy, and into which target queues. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from mq.cli.mirror.state import MirroredQueue
from mq.protocol.codes import PERM_READ, PERM_WRITE
from mq.protocol.names import RETRY_PREFIX, is_system_topic, reply_topic
from mq.protocol.requests.topics import TopicConfig

Topics = Mapping[str, Mapping[str, TopicConfig]]
"""Maps a topic to its settings in each broker group."""

QUEUES_MAX: Final = 9_000
"""Brokers remember the sequence numbers of 10,000 producers, and each queue is one."""
_INTERNAL: Final = frozenset(
    {"RMQ_SYS_TRACE_TOPIC", "DefaultHeartBeatSyncerTopic", "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT"}
)
_INTERNAL_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "%SYS%", "%LMQ%", f"{RETRY_PREFIX}CID_RMQ_SYS_", "CID_RMQ_SYS_")
_OF_TOOLS: Final = frozenset({f"{RETRY_PREFIX}TOOLS_CONSUMER", f"{RETRY_PREFIX}SCHEDULE_CONSUMER"})


class TargetUnusable(Exception):
    """The target cannot store any copy. The message says what to do."""


class Choice(NamedTuple):
    """The topics to mirror, by patterns such as ``orders-*``; all topics if ``patterns`` is empty."""

    patterns: Sequence[str] = ()
    exclusions: Sequence[str] = ()

    def takes(self, name: str) -> bool:
        """Whether a topic is mirrored. For retry and dead letter topics, the name of the group counts, too."""
        names = {name, name.removeprefix(RETRY_PREFIX).removeprefix("%DLQ%")}
        if any(fnmatchcase(each, pattern) for each in names for pattern in self.exclusions):
            return False
        return not self.patterns or any(fnmatchcase(each, pattern) for each in names for pattern in self.patterns)


class NewTopic(NamedTuple):
    """A topic to create in a broker group of the target, or a mirrored topic that needs more queues there."""

    broker: str
    config: TopicConfig


class Extension(NamedTuple):
    """Additions to a mirror: new queues, topics to create, and topics that are left out, with the reason.

    ``refusals``: what to do about topics whose new queues the target cannot take. ``unreadable_queues``: numbers of
    queues that the source no longer has, or only to write.
    """

    queues: list[MirroredQueue]
    topics: list[NewTopic]
    left_out: dict[str, str]
    unreadable_queues: frozenset[int] = frozenset()
    refusals: Mapping[str, str] = MappingProxyType({})


def target_name(topic: str) -> str:
    """Return the name of a topic at the target. In RocketMQ 5, retry topics of pops contain a plus sign."""
    return topic.replace("+", "_") if topic.startswith(RETRY_PREFIX) else topic


def own_names(clusters: Mapping[str, Collection[str]]) -> set[str]:
    """Return the topics named like clusters and broker groups, with which tools test sending."""
    brokers = {broker for each in clusters.values() for broker in each}
    return {*clusters, *brokers, *map(reply_topic, clusters)}


def is_internal(topic: str, own: Collection[str]) -> bool:
    """Whether brokers need the topic for themselves. Such topics are not mirrored."""
    return (
        is_system_topic(topic)
        or topic in own
        or topic in _INTERNAL
        or topic in _OF_TOOLS
        or topic.startswith(_INTERNAL_PREFIXES)
    )


def extend(
    mirrored_queues: Iterable[MirroredQueue],
    source: Topics,
    target: Topics,
    *,
    target_brokers: Sequence[str],
    own: Collection[str],
    choice: Choice,
) -> Extension:
    """Plan the queues and topics that the mirror of the chosen topics still lacks. Raises TargetUnusable.

    Each source queue gets a separate target queue, which keeps its order. A broker group of the same name is
    preferred; otherwise source groups are assigned to target groups in turn, and the queues of the second one follow
    those of the first, so that producers that choose queues by a sharding key choose the corresponding one.
    """
    queues = list(mirrored_queues)
    present = {(each.topic, each.broker, each.queue_id) for each in queues}
    number = max((each.number for each in queues), default=-1) + 1
    new_queues: list[MirroredQueue] = []
    left_out: dict[str, str] = {}
    source_brokers = sorted({broker for rows in source.values() for broker in rows})
    target_of = assignment(source_brokers, target_brokers)
    topics: set[str] = set()
    ends: dict[tuple[str, str], int] = {}
    for each in queues:
        goal = each.target_topic, each.target_broker
        ends[goal] = max(ends.get(goal, 0), each.target_queue + 1)
    for topic in sorted(source):
        if is_internal(topic, own) or not choice.takes(topic):
            continue
        for broker, config in sorted(source[topic].items()):
            if not config.perm & PERM_READ:
                left_out[topic] = f"it is not readable in {broker}: give it the permission to read, perm 6, first"
                continue
            goal = target_name(topic), target_of[broker]
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
                if (topic, broker, queue_id) in present:
                    continue
                queue = MirroredQueue(number, topic, broker, queue_id, *goal, ends.get(goal, 0))
                ends[goal] = queue.target_queue + 1
                number += 1
                queues.append(queue)
                new_queues.append(queue)
                topics.add(topic)
    if len(queues) > QUEUES_MAX:
        raise TargetUnusable(
            f"{len(queues)} queues are to be mirrored; maximum: {QUEUES_MAX}. Choose some topics with --topics, and "
            "mirror the other ones later"
        )
    known_count = len(queues) - len(new_queues)
    new_topics, reasons = _new_topics(topics, queues, known_count, ends, source, target)
    new_queues = [each for each in new_queues if each.topic not in reasons]
    ended_numbers = _queues_at_end([*queues[:known_count], *new_queues], source, source_brokers)
    return Extension(new_queues, new_topics, left_out, ended_numbers, reasons)


def _queues_at_end(queues: Iterable[MirroredQueue], source: Topics, source_brokers: Collection[str]) -> frozenset[int]:
    """The numbers of queues that brokers refuse to read. Not those of a missing broker group, which may return."""
    numbers: set[int] = set()
    for each in queues:
        config = source.get(each.topic, {}).get(each.broker)
        queues_there = 0 if config is None else config.read_queue_nums
        if each.broker in source_brokers and each.queue_id >= queues_there:
            numbers.add(each.number)
    return frozenset(numbers)


def assignment(source_brokers: Sequence[str], target_brokers: Sequence[str]) -> dict[str, str]:
    """Assign a broker group of the target to each of the source's. Raises TargetUnusable."""
    if not target_brokers:
        raise TargetUnusable("the target has no broker group: start its brokers first")
    others = [broker for broker in target_brokers if broker not in source_brokers] or list(target_brokers)
    targets: dict[str, str] = {}
    turn = 0
    for broker in source_brokers:
        if broker in target_brokers:
            targets[broker] = broker
        else:
            targets[broker] = others[turn % len(others)]
            turn += 1
    return targets


def _new_topics(
    topics: Collection[str],
    queues: Sequence[MirroredQueue],
    known_count: int,
    ends: Mapping[tuple[str, str], int],
    source: Topics,
    target: Topics,
) -> tuple[list[NewTopic], dict[str, str]]:
    """The topics that the target lacks, and for each topic whose queues it cannot take, the reason and what to do."""
    new_topics: list[NewTopic] = []
    reasons: dict[str, str] = {}
    own_ends: dict[tuple[str, str], int] = {}
    for each in queues[:known_count]:
        goal = each.target_topic, each.target_broker
        own_ends[goal] = max(own_ends.get(goal, 0), each.target_queue + 1)
    origins: dict[str, dict[str, set[str]]] = {}
    for each in queues:
        origins.setdefault(each.topic, {}).setdefault(each.target_broker, set()).add(each.broker)
    for topic in sorted(topics):
        name = target_name(topic)
        new: list[NewTopic] = []
        for broker, from_brokers in sorted(origins[topic].items()):
            queue_count = ends[name, broker]
            config = _merge(
                name, queue_count, [source[topic][each] for each in sorted(from_brokers & source[topic].keys())]
            )
            there = target.get(name, {}).get(broker)
            if there is None:
                new.append(NewTopic(broker, config))
                continue
            fewest = min(there.read_queue_nums, there.write_queue_nums)
            if fewest < queue_count and fewest == own_ends.get((name, broker)):
                larger = msgspec.structs.replace(there, read_queue_nums=queue_count, write_queue_nums=queue_count)
                new.append(NewTopic(broker, larger))
                continue
            why = ""
            if fewest < queue_count:
                why = (
                    f"topic {name} has {fewest} queues in {broker} at the target, and {queue_count} are needed: "
                    f"raftmq topic update {name} --queues {queue_count}"
                )
            elif not there.perm & PERM_WRITE:
                why = f"topic {name} is not writable at the target: raftmq topic update {name} --perm rw"
            if why:
                reasons[topic] = f"{why}. Or leave it out: raftmq mirror --exclude {topic}"
        if topic not in reasons:
            new_topics += new
    return new_topics, reasons


def _merge(name: str, queues: int, configs: Sequence[TopicConfig]) -> TopicConfig:
    """The settings of a topic that takes the queues of one or more source groups."""
    first = configs[0]
    attributes = {key.removeprefix("+"): value for key, value in first.attributes.items()}
    return TopicConfig(
        name,
        queues,
        queues,
        first.perm & PERM_READ | PERM_READ | PERM_WRITE,
        first.topic_filter_type,
        first.topic_sys_flag,
        any(each.order for each in configs),
        attributes,
    )
