"""Collects all findings of a survey, and counts what it covered. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mq.inspection.findings.consumer_groups import consumer_findings
from mq.inspection.findings.finding import Finding, Severity, worst_first
from mq.inspection.findings.replicas import replica_findings
from mq.inspection.findings.schedules import schedule_findings
from mq.inspection.survey import Survey


def findings_of(survey: Survey) -> list[Finding]:
    """Return all findings, the worst first."""
    return worst_first([*replica_findings(survey), *consumer_findings(survey), *schedule_findings(survey)])


def survey_counts(survey: Survey) -> dict[str, int]:
    """Count the servers and groups in the survey, and its schedules if there are some."""
    counts = {
        "name_servers": len(survey.name_servers),
        "broker_groups": len(survey.groups),
        "replicas": sum(len(group.replicas) for group in survey.groups),
        "consumer_groups": len(survey.consumers.after) if survey.consumers else 0,
        "schedules": len(survey.schedules),
    }
    return {name: count for name, count in counts.items() if count or name != "schedules"}


def summary(findings: Sequence[Finding]) -> str:
    """Describe the numbers of findings in a sentence."""
    counts = Counter(finding.severity for finding in findings)
    words = [f"{counts[each]} {_plural(each, counts[each])}" for each in sorted(counts, reverse=True)]
    return f"{', '.join(words)}." if words else "Nothing is wrong."


def _plural(severity: Severity, count: int) -> str:
    return severity.word if count == 1 or severity is Severity.CRITICAL else f"{severity.word}s"
