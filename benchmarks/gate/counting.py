"""The counted code begins and ends with a call that nothing else makes; callgrind writes a dump at each."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

MARK = "getsid"
"""The function of the C library that `Counting` calls."""


class Counting:
    """Records what was counted, in order: names, and numbers of messages."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, int]] = []

    @contextmanager
    def of(self, name: str, messages: int) -> Iterator[None]:
        """Count the code of the block; garbage is collected before."""
        gc.collect()
        self.counted.append((name, messages))
        os.getsid(0)
        try:
            yield
        finally:
            os.getsid(0)
