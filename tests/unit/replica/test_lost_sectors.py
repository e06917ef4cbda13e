"""A sector of a running node's disk cannot be read any more: the node repairs its log and goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog.segment import RealDisk
from tests.unit.replica.members import led_group

BODIES = [b"%04d" % number + bytes(196) for number in range(200)]
BLOCK_BYTES = 4096


class BadBlock:
    """The first block of a file: nobody can read it until it is written as a whole."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = str(path)
        self.is_lost = False
        for name in ("pread", "pread_disk", "pread_cached", "is_cached"):
            monkeypatch.setattr(RealDisk, name, self._reading(getattr(RealDisk, name)))
        monkeypatch.setattr(RealDisk, "pwritev", self._writing(RealDisk.pwritev))

    def _reading(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def read(disk: RealDisk, fd: int, length: int, offset: int) -> Any:
            if self.is_lost and offset < BLOCK_BYTES and os.readlink(f"/proc/self/fd/{fd}") == self._path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(disk, fd, length, offset)

        return read

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(disk: RealDisk, fd: int, buffers: list[bytes], offset: int) -> int:
            if offset == 0 and sum(map(len, buffers)) >= BLOCK_BYTES:
                self.is_lost &= os.readlink(f"/proc/self/fd/{fd}") != self._path
            return real(disk, fd, buffers, offset)

        return write


async def test_scrub_finds_a_lost_sector_that_peers_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with led_group(tmp_path, bodies=BODIES) as (nodes, leader):
        for member in nodes.others(leader):
            await member.until(lambda member: member.application.bodies == BODIES)
        hurt = nodes.others(leader)[0]
        assert hurt.replica.log.segments()[0].closed
        await hurt.stop()
        block = BadBlock(hurt.directory / f"{0:020d}", monkeypatch)
        before = (hurt.directory / f"{0:020d}").read_bytes()
        block.is_lost = True
        await nodes.start(hurt)
        await hurt.until(lambda member: not block.is_lost and member.application.bodies == BODIES)
        assert (hurt.directory / f"{0:020d}").read_bytes() == before
        assert not hurt.ended.is_set()
