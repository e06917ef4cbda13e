"""Lists what waits in a broker for its time: messages (delayed, popped or to be retried), transactions, schedules."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Literal, NamedTuple

from mq.broker.context import BrokerContext
from mq.broker.recurring.rule import next_due, rule_of
from mq.broker.schedule.level_delivery import marks_of
from mq.broker.transaction.check_back import SAMPLES
from mq.client.message import ReceivedMessage
from mq.protocol import properties as props
from mq.protocol.messages.delay import DELAY_LEVELS_MS, due_ms
from mq.protocol.messages.records import Host, StoredMessage
from mq.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, NO_OFFSET, QueueOffset
from mq.protocol.requests.schedules import DUE_MS, SCHEDULE, ScheduleDefinition
from mq.testing.stored import record_at, to_received

PendingKind = Literal["delayed", "popped", "transaction", "schedule"]

_CHECK_SLACK_MS = 200
"""Each check-back is late by up to this, also behind the one before: the broker looks several times a second."""


class Pending(NamedTuple):
    """Something that waits in a broker for its time.

    Attributes:
        kind: ``delayed`` until it is delivered, also to be retried; ``popped`` until its invisible time ends;
            ``transaction`` until the next check-back; ``schedule`` until its next tick.
        topic: where it is delivered, or from which topic it was popped.
        due_ms: when, in epoch milliseconds by the clock of the brokers.
        message: as it is stored, or, of a schedule, as it will be.
    """

    kind: PendingKind
    topic: str
    due_ms: int
    message: ReceivedMessage

    @property
    def due_at(self) -> dt.datetime:
        """The time when the message is due, in UTC."""
        return dt.datetime.fromtimestamp(self.due_ms / 1000, tz=dt.UTC)


def pending_of(context: BrokerContext) -> list[Pending]:
    """List all messages, transactions and schedules that wait in the broker, by due time."""
    entries = [
        *_levels(context),
        *_timers(context),
        *_pops(context),
        *_transactions(context),
        *_ticks(context),
    ]
    return sorted(entries, key=lambda each: each.due_ms)


def _levels(context: BrokerContext) -> Iterator[Pending]:
    metadata = context.metadata
    for level in range(1, len(DELAY_LEVELS_MS) + 1):
        queue = context.store.get(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            begin = QueueOffset(max(metadata.delay_offsets.get(level, FIRST_OFFSET), queue.min_offset))
            for offset in list(marks_of(metadata, level).open_offsets(begin, queue.max_offset)):
                record = record_at(context, queue, offset)
                topic = record.properties.get(props.REAL_TOPIC, record.topic)
                due = due_ms(record.store_timestamp_ms, level - 1)
                yield Pending("delayed", topic, due, to_received(context, record))


def _timers(context: BrokerContext) -> Iterator[Pending]:
    for queue_id in context.store.ends(TIMER_TOPIC):
        queue = context.store.get(TIMER_TOPIC, queue_id)
        if queue is not None:
            marks = context.metadata.marks.get(TIMER_TOPIC, queue_id)
            for offset in list(marks.open_offsets(queue.min_offset, queue.max_offset)):
                record = record_at(context, queue, offset)
                due = int(record.properties.get(props.TIMER_OUT_MS, "0"))
                topic = record.properties.get(props.REAL_TOPIC, record.topic)
                yield Pending("delayed", topic, due, to_received(context, record))


def _pops(context: BrokerContext) -> Iterator[Pending]:
    for (_, topic, queue_id), pops in list(context.metadata.pops.queues.items()):
        queue = context.store.get(topic, queue_id)
        if queue is None:
            continue
        waits = [
            (start + bit, pop_time_ms + checkpoint.invisible_ms)
            for (start, pop_time_ms), checkpoint in pops.open.items()
            for bit in _bits(checkpoint.bits)
        ]
        if pops.ordered is not None and (until := pops.ordered.blocked_until_ms()) > context.wall_clock_ms():
            # Afterwards they are there for the next pop, which may never come: nothing more happens by time.
            waits += [(pops.ordered.start + bit, until) for bit in _bits(pops.ordered.bits)]
        for offset, until in waits:
            if queue.min_offset <= offset < queue.max_offset:
                yield Pending(
                    "popped", topic, until, to_received(context, record_at(context, queue, QueueOffset(offset)))
                )


def _transactions(context: BrokerContext) -> Iterator[Pending]:
    queue = context.store.get(HALF_TOPIC, 0)
    if queue is None:
        return
    settings, now_ms = context.settings, context.wall_clock_ms()
    first_ms = round(settings.transaction_timeout_seconds * 1000) + _CHECK_SLACK_MS
    interval_ms = round((settings.transaction_check_seconds + between_checks(context)) * 1000) + _CHECK_SLACK_MS
    marks = context.metadata.marks.get(HALF_TOPIC, 0)
    for offset in list(marks.open_offsets(queue.min_offset, queue.max_offset)):
        record = record_at(context, queue, offset)
        due = record.store_timestamp_ms + first_ms
        if due <= now_ms:
            due += ((now_ms - due) // interval_ms + 1) * interval_ms
        topic = record.properties.get(props.REAL_TOPIC, record.topic)
        yield Pending("transaction", topic, due, to_received(context, record))


def _ticks(context: BrokerContext) -> Iterator[Pending]:
    for schedule in context.metadata.schedules.table.values():
        definition = schedule.definition
        due = next_due(rule_of(definition), definition, schedule.settled_ms) if definition.enabled else None
        if due is not None:
            message = to_received(context, _to_be_sent(definition, due))
            yield Pending("schedule", definition.topic, due, message)


def _to_be_sent(definition: ScheduleDefinition, due: int) -> StoredMessage:
    properties = definition.properties | {SCHEDULE: definition.name, DUE_MS: str(due)}
    if definition.tags:
        properties[props.TAGS] = definition.tags
    if definition.keys:
        properties[props.KEYS] = " ".join(definition.keys)
    nowhere = Host("127.0.0.1", 0)
    return StoredMessage(
        topic=definition.topic,
        queue_id=max(definition.queue_id, 0),
        queue_offset=NO_OFFSET,
        physical_offset=LOG_BEGIN,
        size=0,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=due,
        born_host=nowhere,
        store_timestamp_ms=due,
        store_host=nowhere,
        reconsume_times=0,
        prepared_offset=LOG_BEGIN,
        body=definition.body,
        properties=properties,
    )


def between_checks(context: BrokerContext) -> float:
    """Return the seconds from a check-back until the broker records it and starts to wait for the next."""
    return context.settings.transaction_check_seconds / SAMPLES + _CHECK_SLACK_MS / 1000


def _bits(bits: int) -> Iterator[int]:
    return (number for number in range(bits.bit_length()) if bits >> number & 1)
