"""Schedules in words, and what is wrong with them. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from mq.client.schedules import Cron, Every, Once, Rule, ScheduleStatus
from mq.inspection.findings import Finding, Severity
from mq.inspection.formatting import time_of
from mq.inspection.survey import Survey


def tick_text(moment: dt.datetime) -> str:
    """The time of a tick, in UTC."""
    return time_of(round(moment.timestamp() * 1000)) or "-"


def rule_text(rule: Rule) -> str:
    """When a schedule ticks."""
    match rule:
        case Cron():
            return f"cron {rule.expression} {rule.time_zone}" + (" (both days)" if rule.days == "both" else "")
        case Every():
            return f"every {rule.interval.total_seconds():g}s"
        case Once():
            return f"at {tick_text(rule.at)}"


def state_text(status: ScheduleStatus) -> str:
    """Whether a schedule ticks."""
    if status.error:
        return "unusable"
    if not status.schedule.enabled:
        return "paused"
    return "active" if status.next else "over"


def schedule_findings(survey: Survey) -> Iterator[Finding]:
    """The schedules whose messages are not sent, by name."""
    for each in survey.schedules:
        name, topic = each.schedule.name, each.schedule.topic
        if each.error:
            yield Finding(
                Severity.WARNING,
                f"schedule {name}",
                f"is not sent by {each.broker_name}: {each.error}",
                f"replace it: raftmq schedule create --replace {name} ...",
                "docs/schedules.md#broker-group-of-a-schedule",
            )
        elif (each.broker_name, name) in survey.orphaned_schedules:
            yield Finding(
                Severity.WARNING,
                f"schedule {name}",
                f"skips its ticks: {each.broker_name} does not have topic {topic}, or takes no messages for it",
                f"raftmq topic describe {topic}; create, restore or open it, or raftmq schedule delete {name}",
                "docs/schedules.md#broker-group-of-a-schedule",
            )
