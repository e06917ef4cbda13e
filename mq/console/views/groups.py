"""The list of consumer groups, and one consumer group. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mq.client.message import MessageQueue
from mq.console.views.text import Paged, duration, number
from mq.inspection.members import Member, queue_text
from mq.inspection.wording import time_of
from mq.protocol.names import RETRY_PREFIX, SYSTEM_GROUPS
from mq.protocol.operator_bodies import GroupProgress, SubscriptionGroupConfig

Progress = Mapping[MessageQueue, GroupProgress]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group in the list. ``state`` is "bad" for one that is disabled or beyond the end."""

    name: str
    topics: str
    behind: str
    lag: str
    enabled: str
    state: str


@dataclass(frozen=True, slots=True)
class LagRow:
    """The progress of a consumer group in one queue.

    ``lag`` is how much older the last consumed message is than the present, while others wait; ``member`` who has the
    queue.
    """

    topic: str
    broker: str
    queue: int
    offset: str
    end: str
    behind: str
    lag: str
    last: str
    member: str
    state: str
    next_offset: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a consumer group."""

    client_id: str
    address: str
    language: str
    version: str
    queues: str
    unfinished: str


def own_groups(names: Sequence[str], *, with_system: bool) -> list[str]:
    """The names without groups of the brokers' own, unless they are wanted."""
    return [name for name in names if with_system or name not in SYSTEM_GROUPS]


def waiting(progress: Progress) -> int:
    """How many messages wait, redeliveries included; an offset beyond the end counts as nothing."""
    return sum(max(0, each.end - each.offset) for each in progress.values())


def lag_seconds(progress: Progress, now_ms: int) -> float | None:
    """How far behind the present a group is: since the store time of what it consumed last, where messages wait.

    None if nothing waits, or it is not known.
    """
    lags = [
        (now_ms - each.last_ms) / 1000
        for queue, each in progress.items()
        if each.offset < each.end and each.last_ms > 0 and not queue.topic.startswith(RETRY_PREFIX)
    ]
    return max(lags, default=None)


def rows(
    page: Paged[str],
    configs: Mapping[str, Mapping[str, SubscriptionGroupConfig]],
    progress: Mapping[str, Progress],
    now_ms: int,
) -> list[GroupRow]:
    """The groups of a page."""
    found = []
    for name in page.rows:
        own = progress.get(name, {})
        topics = sorted({queue.topic for queue in own if not queue.topic.startswith(RETRY_PREFIX)})
        enabled = all(each.consume_enable for each in configs.get(name, {}).values())
        is_beyond = any(each.offset > each.end for each in own.values())
        found.append(
            GroupRow(
                name=name,
                topics=", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "") or "-",
                behind=number(waiting(own)) if own else "-",
                lag=duration(lag_seconds(own, now_ms)),
                enabled="yes" if enabled else "DISABLED",
                state="bad" if is_beyond or not enabled else "",
            )
        )
    return found


def most_behind(names: Sequence[str], progress: Mapping[str, Progress]) -> list[str]:
    """The names, those with most messages waiting first."""
    return sorted(names, key=lambda name: (-waiting(progress.get(name, {})), name))


def lag_rows(progress: Progress, members: Sequence[Member], now_ms: int) -> list[LagRow]:
    """The queues of a consumer group."""
    holders = {queue: member.client.client_id for member in members for queue in member.queues or ()}
    found = []
    for queue, each in sorted(progress.items()):
        behind = each.end - each.offset
        lag = (now_ms - each.last_ms) / 1000 if behind > 0 and each.last_ms > 0 else 0.0 if behind <= 0 else None
        found.append(
            LagRow(
                topic=queue.topic,
                broker=queue.broker_name,
                queue=queue.queue_id,
                offset=number(each.offset),
                end=number(each.end),
                behind=f"beyond the end by {-behind:,}" if behind < 0 else number(behind),
                lag=duration(lag),
                last=time_of(each.last_ms) or "-",
                member=holders.get(queue, "-"),
                state="bad" if behind < 0 or (behind > 0 and members and queue not in holders and holders) else "",
                next_offset=each.offset,
            )
        )
    return found


def member_rows(members: Sequence[Member]) -> list[MemberRow]:
    """The members of a consumer group."""
    return [
        MemberRow(
            client_id=each.client.client_id,
            address=each.client.client_addr,
            language=each.client.language,
            version=str(each.client.version),
            queues="not known" if each.queues is None else ", ".join(map(queue_text, each.queues)) or "none",
            unfinished=number(each.unfinished),
        )
        for each in members
    ]


def settings_of(configs: Mapping[str, SubscriptionGroupConfig]) -> list[tuple[str, str]]:
    """The settings of a group, from any broker group."""
    if not configs:
        return []
    config = configs[min(configs)]
    return [
        ("consumes", "yes" if config.consume_enable else "DISABLED"),
        ("retries before a dead letter", number(config.retry_max_times)),
        ("broadcasting allowed", "yes" if config.consume_broadcast_enable else "no"),
        ("ordered (gRPC)", "yes" if config.consume_message_orderly else "no"),
        ("broker groups", ", ".join(sorted(configs))),
    ]
