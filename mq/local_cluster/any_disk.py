"""Servers whose data nobody keeps share a disk with whatever else is on the machine."""

from __future__ import annotations

from typing import Final

ANY_DISK: Final[dict[str, str]] = {"disk_warn_ratio": "1", "disk_expire_ratio": "1", "disk_full_ratio": "1"}
"""Settings of such brokers: however full the disk is, they delete nothing early and refuse nothing."""
