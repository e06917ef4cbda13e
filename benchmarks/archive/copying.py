"""Measures what archiving costs the leader, its clients, and the follower that archives."""

from __future__ import annotations

import hashlib
import os
import signal
import statistics
import time
from contextlib import suppress
from pathlib import Path

import trio

from benchmarks.archive.groups import archiving_group, fill_group, wait_until
from benchmarks.backup import LoadWithBackup, figures_of, size_of
from benchmarks.cases import Window
from benchmarks.procfs import process_tree
from benchmarks.suites.case_load import Arguments, Note, create_topics
from benchmarks.suites.figures import Figure
from jepsen.deployments.object_storage import ObjectStorage
from mq.local_cluster import DevCluster
from mq.monitoring.cpu_time import cpu_seconds

DATA_BYTES = 2_000_000_000
RATE_BYTES = 50_000_000
"""Archived in a second. The store of the benchmark compares checksums, so nothing but indexes is read back."""
RATE = 10_000.0
"""Messages a second meanwhile."""
WINDOW_SECONDS = 7.0
ROUNDS_SECONDS = 45.0
FOLLOWER_PERCENT = 3.0
LEADER_PERCENT = 2.0
"""Nothing, as far as windows that are neighbours can tell."""
POLL_SECONDS = 0.02
WORKER = b"mq.store.archive.worker"


class ArchiverProcess:
    """The process that archives, on whichever replica. `Copying` explains why it is stopped and continued.

    ``nbytes`` is the number of bytes that came into the store while it was not stopped.
    """

    def __init__(self, cluster: DevCluster, storage: ObjectStorage) -> None:
        self._cluster = cluster
        self._objects = storage.files("")
        self._pid = 0
        self.seconds = self.cpu = 0.0
        self.nbytes = 0

    async def wait_begun(self) -> None:
        """Wait until the process exists, and stop it at once. Raises ServersFailed."""

        async def is_there() -> bool:
            await trio.lowlevel.checkpoint()
            return self._find()

        await wait_until("a replica begins to archive", is_there)
        self._signal(signal.SIGSTOP)

    def _find(self) -> bool:
        for node in self._cluster.node_ids:
            for pid in process_tree(self._cluster.pid(node)):
                with suppress(OSError):
                    if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                        self._pid = pid
                        return True
        return False

    def _signal(self, signal_number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal_number)

    @property
    def _is_running(self) -> bool:
        return Path(f"/proc/{self._pid}").exists()

    @property
    def has_ended(self) -> bool:
        """Whether the process has archived all files."""
        return not self._is_running

    async def work(self, seconds: float) -> bool:
        self._signal(signal.SIGCONT)
        begin, cpu, size_before = trio.current_time(), cpu_seconds(self._pid), size_of(self._objects)
        with trio.move_on_after(seconds):
            while self._is_running:
                await trio.sleep(POLL_SECONDS)
                self.cpu += max(0.0, -cpu + (cpu := cpu_seconds(self._pid)))
        self._signal(signal.SIGSTOP)
        self.seconds += trio.current_time() - begin
        self.nbytes += size_of(self._objects) - size_before
        return self._is_running

    def kill(self) -> None:
        """Continue the process, so that its broker can end it."""
        self._signal(signal.SIGCONT)


async def measure_archiving(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the case ``archiving`` of the package."""
    settings = {"archive_bytes_per_second": str(RATE_BYTES)}
    async with archiving_group(directory, 3, quick=args.quick, settings=settings) as (cluster, storage):
        await storage.kill()  # nothing is archived before the load
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        data = DATA_BYTES // (100 if args.quick else 1)
        await fill_group(cluster, leader, data)
        note(Figure("archiving", "waited to be archived", data / 1e9, "GB"))
        await storage.start()
        process = ArchiverProcess(cluster, storage)
        await process.wait_begun()
        window = 1.0 if args.quick else WINDOW_SECONDS
        load = LoadWithBackup(cluster, directory / "none", window, process, rate=RATE, connect_seconds=6.0)
        await load.run(trio.current_time() + (0 if args.quick else ROUNDS_SECONDS))
    on = [each for each in load.on if each.follower_us]
    for figure in figures_of(load.off, on, "archiving") if load.off and on else []:
        if figure.name in ("p50, growth", "lost rate"):
            continue
        goal = LEADER_PERCENT if figure.name == "CPU of the leader, growth" else None
        note(Figure("archiving", figure.name, figure.value, figure.unit, goal))
    if load.off and on:
        note(Figure("archiving", "CPU of the followers for it", _cores_percent(load.off, on), "% of a core"))
    if process.seconds:
        note(Figure("archiving", "archived", process.nbytes / 1e6 / process.seconds, "MB/s"))
        share = 100 * process.cpu / process.seconds
        note(Figure("archiving", "CPU of the process that archives", share, "% of a core", FOLLOWER_PERCENT))
        note(Figure("archiving", "CPU of it for each GB", 1e9 * process.cpu / max(process.nbytes, 1), "s/GB"))
        note(Figure("archiving", "of that SHA-256, alone", sha256_seconds(), "s/GB"))
    note(Figure("archiving", "sends that failed", load.failed, "", 0))


def sha256_seconds(nbytes: int = 1 << 28, piece_bytes: int = 1 << 20) -> float:
    """Return the CPU seconds that hashing a GB takes, in pieces as the archiver hashes them."""
    piece, checksum = os.urandom(piece_bytes), hashlib.sha256()
    begin = time.thread_time()
    for _ in range(nbytes // piece_bytes):
        checksum.update(piece)
    return (time.thread_time() - begin) * 1e9 / nbytes


def _cores_percent(off: list[Window], on: list[Window]) -> float:
    """Return the additional CPU use of followers while one archives, in percent of a core."""

    def used(windows: list[Window]) -> float:
        return statistics.median(sum(each.follower_us) * each.messages_per_second / 1e4 for each in windows)

    return used(on) - used(off)
