"""A disk whose page cache is always empty, and which notes what reads it."""

from __future__ import annotations

import threading

import trio

from raftlog import RealDisk


class Reads:
    """What is read of the log's files: by threads, and by the event loop."""

    def __init__(self) -> None:
        self.brought = 0
        self.by_loop = 0
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.fails = False
        self.only_first_waits = False
        """Whether the gate holds only the first read of a thread."""

    def note(self) -> None:
        if threading.current_thread().name.startswith("reader-"):
            waits = not (self.only_first_waits and self.asked.is_set())
            self.asked.set()
            assert not waits or self.gate.wait(60), "nobody let it read"
            if self.fails:
                raise OSError(5, "no such luck")
            self.brought += 1
        elif threading.current_thread() is threading.main_thread():
            self.by_loop += 1

    async def wait_asked(self) -> None:
        assert await trio.to_thread.run_sync(self.asked.wait, 60), "no thread read anything"


def cold_disk(noted: Reads) -> type[RealDisk]:
    """A disk of which every read is noted, and none is served by the page cache."""

    class Disk(RealDisk):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            noted.note()
            return super().pread(fd, length, offset)

        def is_cached(self, fd: int, length: int, offset: int) -> bool:
            return False

    return Disk
