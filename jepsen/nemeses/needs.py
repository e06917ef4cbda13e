"""What a kind of fault needs beyond processes and links, and why that cannot be had here."""

from __future__ import annotations

import os
from collections.abc import Iterable

from jepsen.deployments import disks

OWN_DISKS = frozenset({"power-loss"})
"""Kinds under which each broker has a file system of its own."""


def why_not(kind: str) -> str | None:
    """Why a kind of fault cannot be had here, whatever the back end; None when it can."""
    if kind == "disk-full" and os.geteuid() != 0:
        return "only root may mount a small file system"
    if kind in OWN_DISKS:
        return disks.unavailable()
    return None


def needs_disks(kinds: Iterable[str]) -> bool:
    """Whether one of the kinds needs disks."""
    return not OWN_DISKS.isdisjoint(kinds)
