"""Gives each broker a file system in an image file. Cutting the power of such a disk loses unsynced data.

ext4 is shut down without writing its journal or anything else (ioctl EXT4_IOC_SHUTDOWN, the same number as xfs has),
and mounted again. Synced data survives, unsynced data is lost, as after a power failure. Needs root, `mkfs.ext4`
(e2fsprogs) and loop devices.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from jepsen.deployments.leftovers import PREFIX

IMAGE_BYTES = 1024 * 1024 * 1024
"""Sparse: takes as much as is written."""
OWN_DISK = {"disk_warn_ratio": "0.75", "disk_expire_ratio": "0.8", "disk_full_ratio": "0.9"}
"""Settings of brokers with disks of their own, which are filled on purpose: as in production."""
_SHUTDOWN, _WITHOUT_LOG = 0x8004587D, 2
_CANARY_BYTES = 65536
_SYNCED, _UNSYNCED = "synced", "unsynced"


def unavailable() -> str | None:
    """Return the reason that disks are not available here, as text; None if they are."""
    if os.geteuid() != 0:
        return "only root may mount the disks of brokers"
    if shutil.which("mkfs.ext4") is None:
        return "not installed: mkfs.ext4 (apt install e2fsprogs)"
    return None if Path("/dev/loop-control").exists() else "this machine has no loop devices"


@dataclass(frozen=True, slots=True)
class PowerLossEffect:
    """The effect of a power loss on two test files: whether it lost the unsynced one, and kept the synced one."""

    unsynced_gone: bool
    synced_kept: bool
    nbytes: int
    """The number of bytes of the broker's files that differ from memory."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of one broker: the file ``image``, mounted at ``point``."""

    image: Path
    point: Path

    async def mount(self) -> None:
        """Mount the disk. Raises subprocess.CalledProcessError."""
        await _run("mount", "-o", "loop", str(self.image), str(self.point))

    async def unmount(self) -> None:
        """Write cached data, unless the disk was shut down, and unmount it. Raises subprocess.CalledProcessError."""
        await _run("umount", str(self.point))

    def shut_down(self) -> None:
        """Make the disk fail at once: it loses cached data, and refuses every write. Raises OSError."""
        descriptor = os.open(self.point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG))
        finally:
            os.close(descriptor)

    async def lose_power(self) -> PowerLossEffect:
        """Simulate a power failure of the machine of a broker that was killed just before.

        Raises OSError, subprocess.CalledProcessError.
        """
        before = await trio.to_thread.run_sync(self._last_writes)
        self.shut_down()
        await self.unmount()
        await self.mount()
        return await trio.to_thread.run_sync(self._compare, before)

    def _last_writes(self) -> dict[Path, bytes]:
        """Write a synced and an unsynced file; returns all files as they are in memory."""
        for name, sync in ((_SYNCED, True), (_UNSYNCED, False)):
            (self.point / name).unlink(missing_ok=True)
            _write(self.point / name, sync=sync)
        return _contents(self.point)

    def _compare(self, before: dict[Path, bytes]) -> PowerLossEffect:
        after = _contents(self.point)
        synced_path, unsynced_path = self.point / _SYNCED, self.point / _UNSYNCED
        others = (before.keys() | after.keys()) - {synced_path, unsynced_path}
        nbytes = sum(_difference(before.get(path, b""), after.get(path, b"")) for path in others)
        return PowerLossEffect(
            after.get(unsynced_path) != before[unsynced_path], after.get(synced_path) == before[synced_path], nbytes
        )


def _write(path: Path, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(b"x" * _CANARY_BYTES)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)


def _contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _difference(one: bytes, other: bytes) -> int:
    if one == other:
        return 0
    byte_count = sum(a != b for a, b in zip(one, other, strict=False))
    return byte_count + abs(len(one) - len(other))


@asynccontextmanager
async def open_disks(directory: Path, nodes: tuple[str, ...]) -> AsyncIterator[dict[str, Disk]]:
    """Mount a disk for each broker until the block ends. Then copy its files to ``directory``, by the broker's name.

    Raises OSError, subprocess.CalledProcessError.
    """
    disks: dict[str, Disk] = {}
    mounts: list[str] = []
    try:
        for node in nodes:
            disks[node] = disk = Disk(directory / f"{node}.img", directory / f"{PREFIX}{node}")
            with disk.image.open("wb") as image:
                image.truncate(IMAGE_BYTES)
            disk.point.mkdir()
            await _run("mkfs.ext4", "-q", "-F", str(disk.image))
            await disk.mount()
            mounts.append(node)
        yield disks
    finally:
        with trio.CancelScope(shield=True):  # copies of the files of this run
            for node in mounts:
                disk = disks[node]
                if (data := disk.point / "data").is_dir():
                    await trio.to_thread.run_sync(shutil.copytree, data, directory / node)
                await disk.unmount()
                disk.point.rmdir()
                disk.image.unlink()


async def _run(*command: str) -> None:
    await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT)
