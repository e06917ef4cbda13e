"""Rows of the list of consumer groups and of the page of one group. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mq.client.message import MessageQueue
from mq.console.views.text import ListPage, duration, number
from mq.inspection.formatting import some_of, time_of
from mq.inspection.members import Member, disagreement, queue_text, removed_member_text
from mq.protocol.names import RETRY_PREFIX, SYSTEM_GROUPS
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.relayed import ProcessQueueInfo
from mq.protocol.requests.removed_members import KeptOutMember

Progress = Mapping[MessageQueue, GroupProgress]

IDLE_MS: Final = 60_000
"""A member that finishes nothing for so long, or asks for nothing, is named."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group in the list. ``state`` is "bad" if it is paused, or beyond the end of a queue."""

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
    """A row of the list of a consumer group's members."""

    client_id: str
    address: str
    language: str
    version: str
    queues: str
    unfinished: str
    finished: str
    fetched: str


@dataclass(frozen=True, slots=True)
class RemovedMemberRow:
    """A row of the list of clients that were removed from a consumer group."""

    client_id: str
    words: str


def own_groups(names: Sequence[str], *, with_system: bool) -> list[str]:
    """Return the names without the brokers' own groups, unless ``with_system`` is set."""
    return [name for name in names if with_system or name not in SYSTEM_GROUPS]


def waiting_count(progress: Progress) -> int:
    """Return how many messages wait, redeliveries included. An offset beyond the end counts as 0."""
    return sum(max(0, each.end - each.offset) for each in progress.values())


def lag_seconds(progress: Progress, now_ms: int) -> float | None:
    """Return how many seconds ago the last consumed message was stored: the maximum over queues with waiting messages.

    Returns None if no message waits, or the time is unknown.
    """
    lags = [
        (now_ms - each.last_ms) / 1000
        for queue, each in progress.items()
        if each.offset < each.end and each.last_ms > 0 and not queue.topic.startswith(RETRY_PREFIX)
    ]
    return max(lags, default=None)


def rows(
    page: ListPage[str],
    configs: Mapping[str, Mapping[str, SubscriptionGroupConfig]],
    progress: Mapping[str, Progress],
    now_ms: int,
) -> list[GroupRow]:
    """Return the rows of the consumer groups on one page of the list."""
    group_rows = []
    for name in page.rows:
        own = progress.get(name, {})
        topics = sorted({queue.topic for queue in own if not queue.topic.startswith(RETRY_PREFIX)})
        is_enabled = all(each.consume_enable for each in configs.get(name, {}).values())
        is_beyond = any(each.offset > each.end for each in own.values())
        group_rows.append(
            GroupRow(
                name=name,
                topics=", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "") or "-",
                behind=number(waiting_count(own)) if own else "-",
                lag=duration(lag_seconds(own, now_ms)),
                enabled="yes" if is_enabled else "DISABLED",
                state="bad" if is_beyond or not is_enabled else "",
            )
        )
    return group_rows


def most_behind(names: Sequence[str], progress: Mapping[str, Progress]) -> list[str]:
    """Sort names of groups by the number of waiting messages, the largest first."""
    return sorted(names, key=lambda name: (-waiting_count(progress.get(name, {})), name))


def lag_rows(progress: Progress, members: Sequence[Member], now_ms: int) -> list[LagRow]:
    """Return one row for each queue of a consumer group, with its lag and the member that reads it."""
    holders = {queue: member.client.client_id for member in members for queue in member.queues or ()}
    queue_rows = []
    for queue, each in sorted(progress.items()):
        behind = each.end - each.offset
        lag = (now_ms - each.last_ms) / 1000 if behind > 0 and each.last_ms > 0 else 0.0 if behind <= 0 else None
        queue_rows.append(
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
    return queue_rows


def member_rows(members: Sequence[Member], now_ms: int) -> list[MemberRow]:
    """Return one row for each member of a consumer group."""
    return [
        MemberRow(
            client_id=each.client.client_id,
            address=each.client.client_addr,
            language=each.client.language,
            version=str(each.client.version),
            queues="any, it pops"
            if each.takes_no_queues
            else "not known"
            if each.queues is None
            else ", ".join(map(queue_text, each.queues)) or "none",
            unfinished=number(each.unfinished_count),
            finished=_ago(_last(each, "last_consume_timestamp"), now_ms),
            fetched=_ago(_last(each, "last_pull_timestamp"), now_ms),
        )
        for each in members
    ]


def removed_member_rows(members: Sequence[KeptOutMember]) -> list[RemovedMemberRow]:
    """Return a row for each client that an operator removed and that may not join yet."""
    return [RemovedMemberRow(each.client_id, removed_member_text(each)) for each in members]


def _last(member: Member, name: str) -> int:
    return max((getattr(each, name) for each in (member.queues or {}).values()), default=0)


def _ago(at_ms: int, now_ms: int) -> str:
    """The time since ``at_ms`` by the clock of this machine, in words; a dash if it is not known."""
    return f"{duration((now_ms - at_ms) / 1000)} ago" if at_ms > 0 else "-"


def reasons(
    progress: Progress,
    members: Sequence[Member] | None,
    configs: Mapping[str, SubscriptionGroupConfig],
    now_ms: int,
) -> list[str]:
    """List possible reasons why messages of a group wait or are not consumed, as sentences.

    ``members`` is None if the members are unknown.
    """
    texts = []
    if (lines := disagreement(members or ())) != []:
        texts.append(
            "Its members subscribe to different things, and what one of them does not want is skipped for all: "
            f"{some_of(lines, 3)}."
        )
    lags = {
        queue: each
        for queue, each in progress.items()
        if each.offset < each.end and not queue.topic.startswith(RETRY_PREFIX)
    }
    if not lags:
        return texts
    if any(not each.consume_enable for each in configs.values()):
        texts.append("The group is paused: its members get no messages.")
    if members is None:
        return texts
    if not members:
        return [*texts, "Nobody consumes for it: start its consumers."]
    assigned_queues = {queue for member in members for queue in member.queues or ()}
    are_known = all(each.queues is not None for each in members)
    if are_known and (alone := [queue for queue in lags if queue not in assigned_queues]):
        texts.append(f"No member has {_names(alone)}, where messages wait.")
    for member in members:
        own = {queue: each for queue, each in (member.queues or {}).items() if queue in lags}
        if idle := [queue for queue, each in own.items() if each.cached_msg_count and _is_idle(each, now_ms)]:
            since = min(own[queue].last_consume_timestamp for queue in idle)
            texts.append(
                f"{member.client.client_id} has messages of {_names(idle)} and finished none for "
                f"{duration((now_ms - since) / 1000)}: look at its log; if one message fails again and again, it can "
                "be skipped."
            )
        if silent := [queue for queue, each in own.items() if not each.cached_msg_count and _is_silent(each, now_ms)]:
            texts.append(
                f"{member.client.client_id} fetches nothing of {_names(silent)} although messages wait there: it is "
                "paused, or hangs."
            )
    return texts or ["Its members finish messages: it is slower than they come, or catches up."]


def _names(queues: Sequence[MessageQueue]) -> str:
    return some_of([queue_text(queue) for queue in sorted(queues)], 3)


def _is_idle(queue: ProcessQueueInfo, now_ms: int) -> bool:
    return 0 < queue.last_consume_timestamp < now_ms - IDLE_MS


def _is_silent(queue: ProcessQueueInfo, now_ms: int) -> bool:
    return 0 < queue.last_pull_timestamp < now_ms - IDLE_MS


def settings_of(configs: Mapping[str, SubscriptionGroupConfig]) -> list[tuple[str, str]]:
    """Return the settings of a group as name and value, from any one broker group."""
    if not configs:
        return []
    config = configs[min(configs)]
    return [
        ("consumes", "yes" if config.consume_enable else "no: the group is paused"),
        ("retries before a dead letter", number(config.retry_max_times)),
        ("broadcasting allowed", "yes" if config.consume_broadcast_enable else "no"),
        ("ordered (gRPC)", "yes" if config.consume_message_orderly else "no"),
        ("broker groups", ", ".join(sorted(configs))),
    ]
