"""What is counted begins and ends with a call that nothing else makes; callgrind writes a dump at each."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

MARK = "getsid"
"""The function of the C library that `Counting` calls."""


class Counting:
    """Notes what was counted, in order: names, and how many messages it was for."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, int]] = []

    @contextmanager
    def of(self, name: str, messages: int) -> Iterator[None]:
        """What the block does is counted; garbage is collected before."""
        gc.collect()
        self.counted.append((name, messages))
        os.getsid(0)
        try:
            yield
        finally:
            os.getsid(0)
