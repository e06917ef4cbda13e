"""Settings for brokers with throwaway data, which run however full the disk is."""

from __future__ import annotations

from typing import Final

ANY_DISK: Final[dict[str, str]] = {"disk_warn_ratio": "1", "disk_expire_ratio": "1", "disk_full_ratio": "1"}
"""However full the disk is, these brokers delete nothing early and refuse nothing."""
