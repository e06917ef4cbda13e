"""Shows the history of a message: its steps in order of time, and the progress of each consumer group. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mq.client.message import MessageQueue, ReceivedMessage
from mq.console.views.messages import message_link
from mq.inspection.dead_letters import death_reason
from mq.inspection.formatting import time_of
from mq.inspection.tracing import trace_events
from mq.protocol.messages.trace import MessageTrace
from mq.protocol.names import DEAD_LETTER_PREFIX, SYSTEM_GROUPS, dead_letter_topic, pop_retry_topic, retry_topic
from mq.protocol.requests.group_progress import GroupProgress


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to a message. ``whose`` clock gave the time; ``link`` leads to the copy that was made."""

    at: str
    what: str
    whose: str
    link: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """The progress of a consumer group in the message's queue."""

    group: str
    words: str
    state: str


def timeline(
    message: ReceivedMessage,
    story: MessageTrace | None,
    copies: Sequence[tuple[str, ReceivedMessage]],
    *,
    hide_bodies: bool,
) -> list[TimelineEvent]:
    """Return the steps of a message, the earliest first.

    ``copies`` are those that brokers made for a redelivery or as a dead letter, each with its consumer group.
    """
    record = message.record
    steps = [
        (record.born_timestamp_ms, "a producer", f"sent by {record.born_host.ip}:{record.born_host.port}", "", ""),
        (
            record.store_timestamp_ms,
            "the broker",
            f"stored by {record.store_host.ip}:{record.store_host.port} in {message.queue.broker_name}/"
            f"{message.queue.queue_id} at {record.queue_offset:,}",
            "",
            "",
        ),
    ]
    for group, copy in copies:
        if (copy.queue, copy.queue_offset) == (message.queue, message.queue_offset):
            continue
        is_dead = copy.record.topic.startswith(DEAD_LETTER_PREFIX)
        reason = "" if hide_bodies or not is_dead else death_reason(copy)
        if is_dead:
            what = f"given up by {group}" + (f": {reason}" if reason else "")
        else:
            what = f"to be delivered to {group} again, the {copy.record.reconsume_times}. time"
        steps.append((copy.record.store_timestamp_ms, "the broker", what, message_link(copy), "bad" if is_dead else ""))
    if story is not None:
        steps += [(event.at_ms, "a client", event.text, "", "") for event in trace_events(story)]
    return [
        TimelineEvent(time_of(at_ms) or "-", what, whose, to, state)
        for at_ms, whose, what, to, state in sorted(steps, key=lambda step: step[0])
    ]


def group_states(
    queue: MessageQueue, offset: int, progress: Mapping[str, Mapping[MessageQueue, GroupProgress]]
) -> list[GroupState]:
    """Return the progress of the consumer groups that read the queue, by name."""
    states = []
    for group, queues in sorted(progress.items()):
        own = queues.get(queue)
        if own is None or group in SYSTEM_GROUPS:
            continue
        if own.offset > offset:
            states.append(GroupState(group, f"has got it: its offset is {own.offset:,}", "good"))
        elif own.offset == offset:
            states.append(GroupState(group, "stands at it: it is the next one", ""))
        else:
            states.append(GroupState(group, f"has not come to it: {offset - own.offset:,} are before it", ""))
    return states


def copy_topics(groups: Sequence[str], topic: str, topics: Sequence[str]) -> list[tuple[str, str]]:
    """Return the existing retry and dead letter topics of these groups for a topic, each with its group."""
    topic_names = set(topics)
    return [
        (group, name)
        for group in groups
        for name in (retry_topic(group), pop_retry_topic(group, topic), dead_letter_topic(group))
        if name in topic_names
    ]
