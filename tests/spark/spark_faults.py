"""Errors of Spark itself after which the same succeeds when it is tried again."""

from __future__ import annotations

from typing import Final

_TOO_BUSY: Final = ("Timed out while waiting for the Python worker", "Python worker failed to connect back")
"""A Python process did not start within ten seconds."""
_RACE: Final = ("Task not serializable", "Task serialization failed: java.lang.IllegalStateException: Illegal size")
"""Two queries begin at once: one serializes its tasks with the environment of the data source's Python processes, to
which the other one adds its variables.
"""


def may_be_tried_again(error: Exception) -> bool:
    """Whether the same may succeed when it is tried again; Spark itself does not."""
    text = str(error)
    return any(words in text for words in (*_TOO_BUSY, *_RACE))
