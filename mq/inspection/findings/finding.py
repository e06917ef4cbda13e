"""A finding: a problem, its severity, its remedy, and the page of the documentation about it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """The urgency of a finding."""

    NOTICE = 1
    """Nothing fails; an operator should know."""
    WARNING = 2
    """Something fails, or will fail unless an operator acts."""
    CRITICAL = 3
    """Messages are refused or lost now."""

    @property
    def word(self) -> str:
        """The name of the severity in lower case."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of ``subject``: a broker group, replica, server or consumer group. ``what``: a sentence, no period.

    ``page`` is a page of the documentation, with a heading if there is one.
    """

    severity: Severity
    subject: str
    what: str
    remedy: str
    page: str

    def as_json(self) -> dict[str, str]:
        """Return the finding for JSON."""
        return {
            "severity": self.severity.word,
            "subject": self.subject,
            "what": self.what,
            "remedy": self.remedy,
            "page": self.page,
        }


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings, the worst first; equally bad ones keep their order."""
    return sorted(findings, key=lambda finding: -finding.severity)
