"""Describes schedules in words. Pure."""

from __future__ import annotations

import datetime as dt

from mq.client.schedules import Cron, Every, Once, Rule, ScheduleStatus
from mq.inspection.formatting import time_of


def tick_text(moment: dt.datetime) -> str:
    """Format the time of a tick, in UTC."""
    return time_of(round(moment.timestamp() * 1000)) or "-"


def rule_text(rule: Rule) -> str:
    """Describe when a schedule sends."""
    match rule:
        case Cron():
            return f"cron {rule.expression} {rule.time_zone}" + (" (both days)" if rule.days == "both" else "")
        case Every():
            return f"every {rule.interval.total_seconds():g}s"
        case Once():
            return f"at {tick_text(rule.at)}"


def state_text(status: ScheduleStatus) -> str:
    """Describe whether a schedule ticks."""
    if status.error:
        return "unusable"
    if not status.schedule.enabled:
        return "paused"
    return "active" if status.next else "over"
