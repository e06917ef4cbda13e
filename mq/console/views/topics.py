"""Rows of the list of topics and of the page of one topic. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mq.client.message import MessageQueue
from mq.console.views.text import ListPage, duration, number, size
from mq.inspection.cluster import GroupStatus
from mq.inspection.cluster_queries import MessageCount
from mq.inspection.formatting import time_of
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, is_system_topic, reply_topic
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.broker import BrokerStatsData
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.topic_use import QueueSize, Sender, TopicUse
from mq.protocol.requests.topics import QueueEnds, TopicConfig

SENDERS_SHOWN_MAX: Final = 100
_KINDS = ("ordinary", "retry", "dead letters", "system")


def own_topics(groups: Sequence[GroupStatus]) -> frozenset[str]:
    """Return the topics named like clusters and broker groups, which RocketMQ's brokers use themselves."""
    names = {name for group in groups for name in (group.cluster, group.group)}
    return frozenset(names | {reply_topic(group.cluster) for group in groups})


def kind_of(topic: str, own: Collection[str] = ()) -> str:
    """Describe the purpose of a topic. ``own`` are the topics from `own_topics`."""
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead letters"
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    return "system" if topic in own or is_system_topic(topic) else "ordinary"


def names_of_kind(names: Sequence[str], kind: str, own: Collection[str]) -> list[str]:
    """Return the names of one kind, or all names for an unknown kind."""
    return [name for name in names if kind_of(name, own) == kind] if kind in _KINDS else list(names)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A row of the list of topics."""

    name: str
    kind: str
    queues: str
    access: str
    type: str
    brokers: str
    messages: str


def rows(
    page: ListPage[str],
    configs: Mapping[str, Mapping[str, TopicConfig]],
    counts: Mapping[str, MessageCount],
    own: Collection[str],
) -> list[TopicRow]:
    """Return the rows of the topics on one page of the list."""
    topic_rows = []
    for name in page.rows:
        of_brokers = configs.get(name, {})
        any_one = next(iter(of_brokers.values()), None)
        count = counts.get(name)
        topic_rows.append(
            TopicRow(
                name=name,
                kind=kind_of(name, own),
                queues=number(sum(each.read_queue_nums for each in of_brokers.values())) if of_brokers else "-",
                access="-" if any_one is None else access_of(any_one.perm),
                type="-" if any_one is None else type_of(any_one),
                brokers=", ".join(sorted(of_brokers)) or "-",
                messages=number(None if count is None else count.messages),
            )
        )
    return topic_rows


def access_of(perm: int) -> str:
    """Describe what clients may do with a topic of these permissions."""
    words = [word for bit, word in ((4, "read"), (2, "write")) if perm & bit]
    return " and ".join(words) or "none"


def type_of(config: TopicConfig) -> str:
    """Return the type of the topic's messages."""
    return dict(config.attributes).get(MESSAGE_TYPE_ATTRIBUTE) or "-"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of the list of a topic's queues."""

    broker: str
    queue: int
    first: int
    end: int
    first_text: str
    end_text: str
    messages: str
    nbytes: str
    last: str


@dataclass(frozen=True, slots=True)
class SenderRow:
    """A row of the list of clients that sent the newest messages of a topic."""

    client: str
    address: str
    language: str
    version: str
    group: str
    messages: str
    last: str


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A row of the list of consumer groups that read a topic."""

    group: str
    behind: str
    behind_count: int
    last: str
    note: str


def sizes_of(use: Mapping[str, TopicUse]) -> dict[tuple[str, int], QueueSize]:
    """Return the sizes of a topic's queues, by broker group and queue id."""
    return {(broker, each.queue_id): each for broker, own in use.items() for each in own.queues}


def bytes_words(sizes: Collection[QueueSize]) -> str:
    """Format the bytes of all queues together; with ``about`` if not all messages were counted."""
    if not sizes:
        return "-"
    about = "" if all(each.is_exact for each in sizes) else "about "
    return f"{about}{size(sum(each.nbytes for each in sizes))}"


def sender_rows(use: Mapping[str, TopicUse], now_ms: int) -> list[SenderRow]:
    """Return the senders of a topic's newest messages, the latest first, at most `SENDERS_SHOWN_MAX`."""
    by_client: dict[tuple[str, str], list[Sender]] = {}
    for topic_use in use.values():
        for each in topic_use.senders:
            by_client.setdefault((each.address, each.client_id), []).append(each)
    senders = []
    for own in sorted(by_client.values(), key=lambda some: -max(each.last_ms for each in some))[:SENDERS_SHOWN_MAX]:
        one = own[0]
        senders.append(
            SenderRow(
                client=one.client_id or "not connected as a producer now",
                address=one.address or "not in its messages",
                language=one.language or "-",
                version=str(one.version) if one.version else "-",
                group=one.group or "-",
                messages=number(sum(each.messages for each in own)),
                last=duration(max(0, now_ms - max(each.last_ms for each in own)) / 1000) + " ago",
            )
        )
    return senders


def queue_rows(ends: Mapping[MessageQueue, QueueEnds], sizes: Mapping[tuple[str, int], QueueSize]) -> list[QueueRow]:
    """Return a row for each queue of a topic."""
    return [
        QueueRow(
            queue.broker_name,
            queue.queue_id,
            each.min_offset,
            each.max_offset,
            number(each.min_offset),
            number(each.max_offset),
            number(each.max_offset - each.min_offset),
            bytes_words([own] if (own := sizes.get((queue.broker_name, queue.queue_id))) is not None else []),
            time_of(each.last_update_ms) or "-",
        )
        for queue, each in sorted(ends.items())
    ]


def only_offsets(
    progress: Mapping[str, Mapping[MessageQueue, GroupProgress]],
    offsets: Mapping[str, Mapping[MessageQueue, int]],
    ends: Mapping[MessageQueue, QueueEnds],
) -> dict[str, dict[MessageQueue, GroupProgress]]:
    """Return the groups with an offset in these queues that brokers leave out of the progress of all groups.

    These were never created or were deleted, as is usual for groups that assign queues to themselves, or have members
    that no longer subscribe to the topic. A queue without an offset counts as not begun.
    """
    topics = {queue.topic for queue in ends}
    progress_by_group = {}
    for group, own in offsets.items():
        if group in SYSTEM_GROUPS or any(queue.topic in topics for queue in progress.get(group, ())):
            continue
        if any(queue in ends for queue in own):
            progress_by_group[group] = {
                queue: GroupProgress(each.max_offset, QueueOffset(own.get(queue, 0))) for queue, each in ends.items()
            }
    return progress_by_group


def reader_rows(
    topic: str,
    progress: Mapping[str, Mapping[MessageQueue, GroupProgress]],
    only: Mapping[str, Mapping[MessageQueue, GroupProgress]],
    groups: Collection[str],
) -> list[ReaderRow]:
    """Return the consumer groups with offsets in a topic, the furthest behind first. ``only`` are the groups from
    `only_offsets`, ``groups`` the created ones.
    """
    readers = []
    for group, queues in {**progress, **only}.items():
        own = {queue: each for queue, each in queues.items() if queue.topic == topic}
        if own:
            behind = sum(max(0, each.end - each.offset) for each in own.values())
            last_ms = max((each.last_ms for each in own.values()), default=0)
            note = ""
            if group in only:
                note = "its members no longer subscribe to it" if group in groups else "it has offsets only"
            readers.append(ReaderRow(group, number(behind), behind, time_of(last_ms) or "-", note))
    return sorted(readers, key=lambda row: (-row.behind_count, row.group))


def settings_of(configs: Mapping[str, TopicConfig]) -> list[tuple[str, str]]:
    """Return the settings of a topic as name and value. If broker groups differ, the value names them."""
    by_name: dict[str, dict[str, str]] = {}
    for broker, config in sorted(configs.items()):
        values = {
            "read queues": str(config.read_queue_nums),
            "write queues": str(config.write_queue_nums),
            "access": access_of(config.perm),
            "ordered": "yes" if config.order else "no",
        } | {f"attribute {name}": value for name, value in sorted(dict(config.attributes).items())}
        for name, value in values.items():
            by_name.setdefault(name, {})[broker] = value
    return [(name, _one_or_each(values, len(configs))) for name, values in by_name.items()]


def _one_or_each(values: Mapping[str, str], brokers: int) -> str:
    if len(set(values.values())) == 1 and len(values) == brokers:
        return next(iter(values.values()))
    return ", ".join(f"{broker}: {value}" for broker, value in values.items())


def sent_words(messages: Mapping[str, BrokerStatsData], nbytes: Mapping[str, BrokerStatsData]) -> str:
    """Describe the messages and bytes per second sent to a topic over the last minute, at all broker groups."""
    per_second = sum(each.stats_minute.tps for each in messages.values())
    bytes_per_second = sum(each.stats_minute.tps for each in nbytes.values())
    return f"{per_second:,.1f}/s, {size(round(bytes_per_second))}/s"


def total(ends: Mapping[MessageQueue, QueueEnds]) -> str:
    """Return how many messages a topic has."""
    return number(sum(each.max_offset - each.min_offset for each in ends.values()))


def age_of_last(ends: Mapping[MessageQueue, QueueEnds], now_ms: int) -> str:
    """Describe how long ago the last message was stored."""
    last_ms = max((each.last_update_ms for each in ends.values()), default=0)
    return duration((now_ms - last_ms) / 1000) + " ago" if last_ms > 0 else "never"
