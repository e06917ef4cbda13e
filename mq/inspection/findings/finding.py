"""A finding: a problem, its severity, its remedy, and the page that says more."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """The severity of a finding."""

    NOTICE = 1
    """Nothing fails; an operator should know."""
    WARNING = 2
    """Something fails, or will fail unless an operator acts."""
    CRITICAL = 3
    """Messages are refused or lost now."""

    @property
    def word(self) -> str:
        """The name in lower case."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """``subject`` is a broker group, replica, server or consumer group; ``what`` a sentence about it without a period.

    ``page`` is a page of the documentation, with a heading if there is one.
    """

    severity: Severity
    subject: str
    what: str
    remedy: str
    page: str

    def as_json(self) -> dict[str, str]:
        """The finding as JSON."""
        return {
            "severity": self.severity.word,
            "subject": self.subject,
            "what": self.what,
            "remedy": self.remedy,
            "page": self.page,
        }


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, the worst first; equally bad ones in their order."""
    return sorted(findings, key=lambda finding: -finding.severity)
