"""Limits shared by several parts of a broker."""

from __future__ import annotations

CHECKS_MAX = 100
"""Maximum number of check-backs per half message; the replicated state counts no further."""
