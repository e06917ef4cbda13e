"""The exception that a checker raises when a promise was broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken."""
