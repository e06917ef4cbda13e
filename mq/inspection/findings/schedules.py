"""Finds problems of schedules in a survey. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mq.inspection.findings.finding import Finding, Severity
from mq.inspection.survey import Survey


def schedule_findings(survey: Survey) -> Iterator[Finding]:
    """Yield a finding for each schedule whose messages are not sent, by name."""
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
