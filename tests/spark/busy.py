"""How Spark says that this machine is too busy: a Python process of it did not start within ten seconds."""

from __future__ import annotations

from typing import Final

_WORDS: Final = ("Timed out while waiting for the Python worker", "Python worker failed to connect back")


def is_too_busy(error: Exception) -> bool:
    """Whether the same may succeed when it is tried again; Spark itself does not."""
    return any(words in str(error) for words in _WORDS)
