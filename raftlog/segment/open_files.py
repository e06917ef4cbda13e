"""Open segment files: at most a few dozen, and none closed while in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Final

from raftlog.segment.disk import Disk

DESCRIPTORS_MAX: Final = 64


class Descriptor:
    """An open file in use: ``with`` gives the descriptor, and leaving releases it."""

    __slots__ = ("_lock", "_on_idle", "doomed", "fd", "users")

    def __init__(self, fd: int, lock: threading.Lock, on_idle: Callable[[int], None]) -> None:
        self.fd = fd
        self.users = 0
        self.doomed = False
        self._lock = lock
        self._on_idle = on_idle

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self.users -= 1
            assert self.users >= 0, f"descriptor {self.fd} is in use {self.users} times"
            if self.doomed and not self.users:
                self._on_idle(self.fd)


class OpenFiles:
    """Keeps descriptors open by the start of their file, for any thread.

    At most `DESCRIPTORS_MAX` recently used ones are open, plus those in use.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Descriptor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, start: int, path: Callable[[int], str]) -> Descriptor:
        """The file at ``start``, opened if necessary, for one ``with``. Raises `OSError`."""
        with self._lock:
            descriptor = self._open.get(start)
            if descriptor is None:
                descriptor = self._add(start, self._disk.open(path(start)))
            else:
                self._open.move_to_end(start)
            descriptor.users += 1
            return descriptor

    def put(self, start: int, fd: int) -> None:
        """Take over an open descriptor. One of a file that this one replaces is closed as soon as it is not in use."""
        with self._lock:
            if (previous := self._open.pop(start, None)) is not None:
                self._doom(previous)
            self._add(start, fd)

    def forget(self, start: int) -> None:
        """Close a file as soon as it is not in use."""
        with self._lock:
            if (descriptor := self._open.pop(start, None)) is not None:
                self._doom(descriptor)

    def close(self) -> None:
        """Close all files, those in use afterwards."""
        with self._lock:
            while self._open:
                self._doom(self._open.popitem()[1])

    def _add(self, start: int, fd: int) -> Descriptor:
        descriptor = Descriptor(fd, self._lock, self._disk.close)
        self._open[start] = descriptor
        if len(self._open) > DESCRIPTORS_MAX:
            idle = next((key for key, other in self._open.items() if not other.users and other is not descriptor), None)
            if idle is not None:
                self._doom(self._open.pop(idle))
        return descriptor

    def _doom(self, descriptor: Descriptor) -> None:
        descriptor.doomed = True
        if not descriptor.users:
            self._disk.close(descriptor.fd)
