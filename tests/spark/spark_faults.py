"""Errors of Spark itself after which the same succeeds when it is tried again."""

from __future__ import annotations

from typing import Final

_TOO_BUSY: Final = ("Timed out while waiting for the Python worker", "Python worker failed to connect back")
"""A Python process did not start within ten seconds."""


def may_be_tried_again(error: Exception) -> bool:
    """Whether the same may succeed when it is tried again; Spark itself does not."""
    text = str(error)
    return any(words in text for words in _TOO_BUSY)
