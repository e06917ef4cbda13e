"""Builds a library that fakes the clock and the disk of a broker (shim.c), and controls it by shared pages."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import trio

_SOURCE = Path(__file__).with_suffix(".c")
_VARIABLE = "RAFTMQ_JEPSEN_SHIM"
_PAGE_BYTES = 4096
_ORDERS, _HITS = struct.Struct("=5q"), struct.Struct("=3q")


def unavailable() -> str | None:
    """The reason that the library cannot be built here, as text; None if it can."""
    return None if shutil.which("cc") is not None else "not installed: cc, a C compiler (apt install gcc)"


class Shim:
    """The faked clock and disk of one broker. Restarts of the broker keep them.

    Attributes:
        path: the control page.
    """

    def __init__(self, library: Path, path: Path) -> None:
        self._library = library
        self.path = path
        path.write_bytes(bytes(_PAGE_BYTES))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE_BYTES)
        self._hits_before = (0, 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._page.close()

    @property
    def files(self) -> tuple[Path, Path]:
        """The two files that a process with the variables in `environment` reads."""
        return self._library, self.path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process load the library."""
        return {"LD_PRELOAD": str(self._library), _VARIABLE: str(self.path)}

    def order(
        self,
        *,
        skew_seconds: float = 0.0,
        strobe_seconds: float = 0.0,
        write_errno: int = 0,
        sync_errno: int = 0,
        sync_seconds: float = 0.0,
    ) -> None:
        """Replace the faults of the broker's clock and disk. Without arguments: end all faults.

        Args:
            skew_seconds: added to the wall clock.
            strobe_seconds: the skew is on and off for this long in turn; 0: always on.
            write_errno: error of writes to files; 0: they work.
            sync_errno: error of syncs; 0: they work.
            sync_seconds: additional time of each sync.
        """
        self._hits_before = self._hits()
        skew, strobe = int(skew_seconds * 1e9), int(strobe_seconds * 1e9)
        _ORDERS.pack_into(self._page, 0, skew, strobe, write_errno, sync_errno, int(sync_seconds * 1e6))

    @property
    def wrong_times(self) -> int:
        """The number of wrong times that the broker has read since the last `order`."""
        return self._hits()[0] - self._hits_before[0]

    @property
    def failed_writes(self) -> int:
        """The number of the broker's writes that have failed since the last `order`."""
        return self._hits()[1] - self._hits_before[1]

    @property
    def hit_syncs(self) -> int:
        """The number of the broker's syncs that have failed or were slow since the last `order`."""
        return self._hits()[2] - self._hits_before[2]

    def _hits(self) -> tuple[int, int, int]:
        clock, write, sync = _HITS.unpack_from(self._page, _ORDERS.size)
        return clock, write, sync


@asynccontextmanager
async def open_shims(directory: Path, nodes: tuple[str, ...]) -> AsyncIterator[Mapping[str, Shim]]:
    """Build the library, and create a page for each broker. Raises OSError, subprocess.CalledProcessError."""
    library = directory / "shim.so"
    build = ["cc", "-O2", "-shared", "-fPIC", "-o", os.fspath(library), os.fspath(_SOURCE), "-ldl"]
    await trio.run_process(build, capture_stderr=True)
    with ExitStack() as stack:
        yield {node: stack.enter_context(Shim(library, directory / f"{node}.shim")) for node in nodes}
