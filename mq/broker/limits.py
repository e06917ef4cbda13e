"""Limits that several parts of a broker must agree on."""

from __future__ import annotations

CHECKS_MAX = 100
"""How often a producer may be asked about a half message at most; the replicated state counts no further."""
