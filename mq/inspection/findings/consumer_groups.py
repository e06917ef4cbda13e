"""Finds problems of consumer groups in a survey. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mq.client.message import MessageQueue
from mq.inspection.findings.finding import Finding, Severity
from mq.inspection.formatting import some_of, time_of
from mq.inspection.survey import AT_RISK, HOUR_MS, Consumers, Survey
from mq.protocol.requests.consumer_groups import ClientConnectionData
from mq.protocol.requests.group_progress import GroupProgress

STUCK_MS: Final = 60_000
"""A group that consumed a message that is younger than this may just be slow."""
FRESH_MS: Final = HOUR_MS
"""A dead letter younger than this is worth a warning."""


def consumer_findings(survey: Survey) -> Iterator[Finding]:
    """Yield all findings about consumer groups, by group."""
    consumers = survey.consumers
    if consumers is None:
        yield Finding(
            Severity.WARNING,
            "consumer groups",
            f"were not looked at: {survey.consumers_reason}",
            "run raftmq doctor again when the brokers answer; with accounts, as an administrator",
            "docs/operations.md#diagnose-a-problem",
        )
        return
    for group, progress in consumers.after.items():
        lags = {queue: each for queue, each in progress.items() if queue in consumers.ends and each.offset < each.end}
        yield from _beyond_end(group, progress)
        yield from _deleted_unread(group, lags, consumers)
        yield from _at_risk(group, lags, consumers)
        yield from _at_risk_by_size(group, lags, consumers)
        yield from _at_risk_in_log(group, lags, consumers)
        yield from _stuck_groups(group, lags, consumers)
    yield from _disagreements(consumers)
    yield from _dead_letters(consumers)


def _beyond_end(group: str, progress: Mapping[MessageQueue, GroupProgress]) -> Iterator[Finding]:
    beyond = [queue for queue, each in progress.items() if each.offset > each.end]
    if beyond:
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"has offsets beyond the end of {_queues(beyond)}: it will miss the next messages there",
            f"raftmq consumer-group reset {group} {beyond[0].topic} last",
            "docs/troubleshooting.md#a-groups-offset-is-beyond-the-end-of-a-queue",
        )


def _deleted_unread(group: str, lags: Mapping[MessageQueue, GroupProgress], consumers: Consumers) -> Iterator[Finding]:
    counts = {q: consumers.ends[q].min_offset - each.offset for q, each in lags.items()}
    counts = {queue: count for queue, count in counts.items() if count > 0}
    if counts:
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"did not consume {sum(counts.values()):,} messages of {_queues(counts)} before retention deleted them",
            "raise retention_hours, or consume faster; the messages are in backups only",
            "docs/operations.md#the-disk-fills-up",
        )


def _at_risk(group: str, lags: Mapping[MessageQueue, GroupProgress], consumers: Consumers) -> Iterator[Finding]:
    counts = {
        queue: consumers.at_risk[queue] - max(each.offset, consumers.ends[queue].min_offset)
        for queue, each in lags.items()
        if queue in consumers.at_risk
    }
    counts = {queue: count for queue, count in counts.items() if count > 0}
    for hours in sorted({h for queue in counts if (h := consumers.hours_of(queue.topic)) is not None}):
        some = {queue: count for queue, count in counts.items() if consumers.hours_of(queue.topic) == hours}
        own = sorted({queue.topic for queue in some} & consumers.topic_hours.keys())
        more_time = (
            f"give the topic more time: raftmq topic update {own[0]} --retention-hours HOURS"
            if own
            else "raise retention_hours of the brokers for now"
        )
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"has not consumed {sum(some.values()):,} messages of {_queues(some)} that are older than "
            f"{AT_RISK * hours:g} h: retention deletes them when they are {hours:g} h old",
            f"consume them, or {more_time}",
            "docs/operations.md#the-disk-fills-up",
        )


def _at_risk_by_size(group: str, lags: Mapping[MessageQueue, GroupProgress], consumers: Consumers) -> Iterator[Finding]:
    """The unread messages among the oldest of a topic that keeps some bytes and has deleted messages."""
    for topic in sorted({queue.topic for queue in lags} & consumers.topic_bytes.keys()):
        counts: dict[MessageQueue, int] = {}
        for queue, each in lags.items():
            begin, end = consumers.ends[queue].min_offset, consumers.ends[queue].max_offset
            soon = end - int(AT_RISK * (end - begin))
            if queue.topic == topic and begin > 0 and (count := soon - max(each.offset, begin)) > 0:
                counts[queue] = count
        if counts:
            limit = consumers.topic_bytes[topic]
            yield Finding(
                Severity.WARNING,
                _subject(group),
                f"has not consumed {sum(counts.values()):,} messages of {_queues(counts)} that are among the oldest "
                f"quarter of what the topic has: they go first when it has more than {limit:,} bytes (reserve.bytes)",
                f"consume them, or let the topic keep more: raftmq topic update {topic} --retention-bytes BYTES",
                "docs/topics.md#keep-messages-of-a-topic-for-less-time",
            )


def _at_risk_in_log(group: str, lags: Mapping[MessageQueue, GroupProgress], consumers: Consumers) -> Iterator[Finding]:
    """Find unread messages that are deleted next because the log of their broker group is near its size limit."""
    for broker, limit in sorted(consumers.log_bytes.items()):
        counts = {
            queue: count
            for queue, each in lags.items()
            if queue.broker_name == broker
            and queue in consumers.soon_by_size
            and (count := consumers.soon_by_size[queue] - max(each.offset, consumers.ends[queue].min_offset)) > 0
        }
        if counts:
            yield Finding(
                Severity.WARNING,
                _subject(group),
                f"has not consumed {sum(counts.values()):,} messages of {_queues(counts)} that are among the oldest of "
                f"the log of {broker}: they go next when it has more than {limit:,} bytes (retention_bytes)",
                "consume them, or raise retention_bytes of the brokers for now",
                "docs/operations.md#the-disk-fills-up",
            )


def _stuck_groups(group: str, lags: Mapping[MessageQueue, GroupProgress], consumers: Consumers) -> Iterator[Finding]:
    if not lags:
        return
    lag = sum(each.end - each.offset for each in lags.values())
    config = consumers.configs.get(group)
    members = consumers.members.get(group)
    if config is not None and not config.consume_enable:
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"is disabled; {lag:,} messages wait for it",
            f"raftmq consumer-group update {group} --enabled",
            "docs/commands.md",
        )
        return
    if members == []:
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"has no members; {lag:,} messages wait for it{_since(lags, consumers.now_ms)}",
            f"start its consumers; if nobody needs it: raftmq consumer-group delete {group}",
            "docs/troubleshooting.md#a-consumer-stops-without-an-error",
        )
        return
    before = consumers.before.get(group, {})
    queues = {
        queue: each
        for queue, each in lags.items()
        if queue in before
        and before[queue].offset == each.offset
        and before[queue].offset < before[queue].end
        and consumers.now_ms - each.last_ms > STUCK_MS
    }
    if queues:
        count = sum(each.end - each.offset for each in queues.values())
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"made no progress for {consumers.watched_seconds:.0f} s in {_queues(queues)}, where {count:,} messages "
            f"wait{_since(queues, consumers.now_ms)}; members: "
            f"{'the brokers did not say which' if members is None else _members(members)}",
            "look at the logs of these members; if one message fails again and again: raftmq consumer-group skip",
            "docs/troubleshooting.md#a-queue-stops-one-message-always-fails",
        )


def _since(queues: Mapping[MessageQueue, GroupProgress], now_ms: int) -> str:
    """Say when the last consumed message was stored: the waiting ones are younger."""
    last_ms = max((each.last_ms for each in queues.values()), default=0)
    if last_ms <= 0 or last_ms > now_ms:
        return ""
    return f", the last message it consumed is from {time_of(last_ms)}"


def _disagreements(consumers: Consumers) -> Iterator[Finding]:
    for group, members in consumers.differing.items():
        text = some_of([f"{client_id}: {subscribes or 'nothing'}" for client_id, subscribes in members], 3)
        yield Finding(
            Severity.WARNING,
            _subject(group),
            f"has members that subscribe to different things, and what one of them does not want is skipped for all: "
            f"{text}",
            "give all of them the same topics and expressions; use a group for each that wants other messages",
            "docs/troubleshooting.md#members-of-a-group-subscribe-to-different-things",
        )


def _dead_letters(consumers: Consumers) -> Iterator[Finding]:
    for group, ends in consumers.dead_letters.items():
        count = sum(each.max_offset - each.min_offset for each in ends)
        last_ms = max(each.last_update_ms for each in ends)
        is_fresh = consumers.now_ms - last_ms < FRESH_MS
        last = f", the last one at {time_of(last_ms)}" if last_ms > 0 else ""
        yield Finding(
            Severity.WARNING if is_fresh else Severity.NOTICE,
            _subject(group),
            f"has {count:,} dead letter{'s' if count != 1 else ''}{last}",
            f"raftmq dlq list {group}",
            "docs/pending-messages.md#dead-letters-and-delayed-messages",
        )


def _subject(group: str) -> str:
    return f"consumer group {group}"


def _queues(queues: Mapping[MessageQueue, object] | list[MessageQueue]) -> str:
    """The queues by topic: ``Orders broker-a/0, broker-a/3``."""
    names = [f"{queue.topic} {queue.broker_name}/{queue.queue_id}" for queue in sorted(queues)]
    return some_of(names)


def _members(members: list[ClientConnectionData]) -> str:
    return some_of([f"{each.client_id} at {each.client_addr} ({each.language})" for each in members])
