"""Measures how much a backup slows down the producers of a group, and how fast a group is restored from it.

- ``backup``: three replicas hold 10 GB of messages, all on the same disk. Then messages of 1 KiB are sent at 20,000 a
  second, while `raftmq backup` copies the log of a follower at its default rate. In one window of four the backup is
  stopped (SIGSTOP), so that windows with and without it are neighbours. A latency begins when its message was due.
  The load survives a change of the leader: it counts failed sends, and sends to the new leader from the next round on.
- ``restore``: `raftmq restore` makes a replica from a backup of 3 GB. In front of it and after it, the rate is measured
  at which the same disk takes a plain file. Neither finds its input in the page cache.

Real processes and files, the default durability. ``python -m benchmarks.backup`` (``make bench-backup``).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import trio

from benchmarks.cases import Window
from benchmarks.load.generators import ROOT, cpu_meters, drive, share_out
from benchmarks.load.job import Job
from benchmarks.load.open_loop import PacedJob
from benchmarks.load.report import Report
from benchmarks.produce import windows_of
from benchmarks.suites.case_load import Arguments, Measure, Note, create_topics
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite, kept_logs
from mq.local_cluster import HOST, DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds

DATA_BYTES = 10_000_000_000
DATA_BYTES_MIN = 1_000_000_000
FILL_BODY_BYTES = 256 * 1024
FILL_SECONDS = 10.0
FILL_SECONDS_MAX = 150.0
"""A slow machine stores less."""
RATE = 20_000.0
BODY_BYTES = 1024
WINDOW_SECONDS = 8.0
WINDOWS = 4
"""Windows of a round: one without the backup, three with it."""
RESTORE_SECONDS = 90.0
"""Left for the other case."""
CONNECT_SECONDS = 1.5
RESTORED_BYTES = 3_000_000_000
PROBE_BYTES = 1_000_000_000
PIECE_BYTES = 1 << 20
COPIES = 4
"""Copies of the data: one for each replica, one in the backup."""
LOAD_BYTES = 28_000_000_000
"""The bytes that the load, indexes and reserved segments add on all replicas in seven minutes. With less room, the
leader refuses sends or hands over.
"""
POLL_SECONDS = 0.1
COMMIT_NOTE_SECONDS = 2.0
"""Seconds until a replica has noted the commit position: a backup copies nothing newer."""
IN_FLIGHT = 1024
"""The most requests on each connection: half a second's messages altogether wait no longer than that for a slot."""
COST_PERCENT = 10.0
_TINY = 1e-9
"""Instead of the zero of a short window in which a busy machine stored nothing."""
DISK_FULL_PERCENT = 97.0
"""Above it, the disk may have filled up during the run."""
DISK_PERCENT = 80.0


def data_bytes(quick: bool, free: int) -> int:
    """Return the bytes of messages to store: those for which ``free`` bytes of disk have room, less a tenth."""
    return (
        DATA_BYTES // 100 if quick else max(DATA_BYTES_MIN, min(DATA_BYTES, (int(0.9 * free) - LOAD_BYTES) // COPIES))
    )


async def measure_backup(args: Arguments, directory: Path, note: Note) -> None:
    until = trio.current_time() + args.limit - RESTORE_SECONDS
    data = data_bytes(args.quick, _free_bytes(directory))
    async with DevCluster.open(directory / "replicas", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        nbytes, seconds = await _fill(cluster, leader, data)
        note(Figure("fill", "bodies of 256 KiB, each on three replicas", nbytes / 1e9, "GB"))
        note(Figure("fill", "bodies a second", nbytes / 1e6 / seconds, "MB/s"))
        load = LoadWithBackup(cluster, directory / "backup", 1.0 if args.quick else WINDOW_SECONDS)
        try:
            await load.run(until)
        finally:  # figures from before a failure are kept
            for figure in load.figures():
                note(figure)
            disk = shutil.disk_usage(directory)
            used_part = 100 * (1 - disk.free / (disk.used + disk.free))
            note(Figure("producers", "of the disk in use at the end", used_part, "%", DISK_FULL_PERCENT, is_limit=True))
            if load.moves or load.failed:
                print(f"bench: sends failed, or the leader changed{kept_logs(directory)}", file=sys.stderr)


async def measure_restore(args: Arguments, directory: Path, note: Note) -> None:
    _free_bytes(directory)
    data, probe = (nbytes // 100 if args.quick else nbytes for nbytes in (RESTORED_BYTES, PROBE_BYTES))
    backup, replicas = directory / "backup", directory / "replicas"
    async with DevCluster.open(replicas, nodes=1, ports=Ports.free(1), settings=ANY_DISK) as cluster:
        await create_topics(cluster, 1, "n0")
        await _fill(cluster, "n0", data)
        await trio.sleep(COMMIT_NOTE_SECONDS)
        command = [sys.executable, "-m", "mq.cli", "backup", str(backup), "--data-dir", str(replicas / "n0")]
        await trio.run_process([*command, "--leader", "--rate", "0"], cwd=ROOT, capture_stdout=True)
    shutil.rmtree(replicas)
    for figure in await trio.to_thread.run_sync(_restore, backup, directory, probe):
        note(figure)


def _free_bytes(directory: Path) -> int:
    """Create a directory, and return the free bytes of its disk."""
    directory.mkdir(parents=True)
    return shutil.disk_usage(directory).free


async def _fill(cluster: DevCluster, leader: str, nbytes: int) -> tuple[int, float]:
    """Store at least ``nbytes`` bytes of bodies, unless that takes too long; returns stored bytes and seconds."""
    stored_bytes, seconds = 0, 0.0
    while stored_bytes < nbytes and seconds < FILL_SECONDS_MAX:
        job = _job(cluster, leader, FILL_BODY_BYTES, 8, FILL_SECONDS if nbytes > 1e9 else 1.0, 1)
        reports, _ = await drive(share_out(job), [])
        stored_bytes += FILL_BODY_BYTES * sum(sum(report.messages) for report in reports)
        seconds += job.window_seconds
    return stored_bytes, seconds


def _job(
    cluster: DevCluster,
    leader: str,
    body: int,
    in_flight: int,
    seconds: float,
    windows: int,
    connect_seconds: float = CONNECT_SECONDS,
) -> Job:
    return Job(
        address=(HOST, cluster.port(leader)),
        connections=4,
        in_flight=in_flight,
        body_bytes=body,
        begin=time.clock_gettime(time.CLOCK_MONOTONIC) + connect_seconds,
        window_seconds=seconds,
        windows=windows,
        first_slot=1,
    )


class Copying(Protocol):
    """A process that copies the log while the load runs; see `BackupProcess`."""

    seconds: float
    cpu: float
    nbytes: int

    @property
    def has_ended(self) -> bool: ...
    async def work(self, seconds: float) -> bool: ...
    def kill(self) -> None: ...


class BackupProcess:
    """Runs `raftmq backup`, stops it and continues it.

    ``seconds`` is the time while it was not stopped, ``cpu`` its CPU seconds in that time; ``nbytes`` is the number of
    copied bytes, once it has ended.
    """

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._command = command
        self._output = output
        self._process: trio.Process | None = None
        self.seconds = self.cpu = 0.0
        self.nbytes = 0

    @property
    def is_running(self) -> bool:
        """Whether the backup has begun and not ended. It may be stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether the backup is complete. Raises ServersFailed if it has failed."""
        code = None if self._process is None else self._process.poll()
        if code:
            raise ServersFailed(f"raftmq backup ended with exit code {code}")
        return code == 0

    async def work(self, seconds: float) -> bool:
        """Let the backup run for ``seconds``, then stop it. Returns whether it had work for all that time."""
        if self._process is None:
            with self._output.open("wb") as output:
                self._process = await trio.lowlevel.open_process(self._command, stdout=output, cwd=ROOT)
        elif self.is_running:
            self._process.send_signal(signal.SIGCONT)
        begin, cpu = trio.current_time(), cpu_seconds(self._process.pid)
        with trio.move_on_after(seconds):
            while self.is_running:
                await trio.sleep(POLL_SECONDS)
                self.cpu += max(0.0, -cpu + (cpu := cpu_seconds(self._process.pid)))
        self.seconds += trio.current_time() - begin
        if self.is_running:
            self._process.send_signal(signal.SIGSTOP)
            return True
        if self.has_ended:
            self.nbytes = json.loads(self._output.read_text())["copied_bytes"]
        return False

    def kill(self) -> None:
        """Kill the backup, unless it has ended."""
        if self._process is not None and self.is_running:
            self._process.kill()


class LoadWithBackup:
    """Sends messages at a rate, in rounds of windows, while `raftmq backup` copies a follower's log to ``target``.

    ``off`` are the windows without the backup, ``on`` the windows that it worked through. ``failed`` sends were refused
    or got no answer; ``refusals`` is the number of connections on which this happened, by the error. ``moves`` says for
    each change of the leader why the old one stopped leading.
    """

    def __init__(
        self,
        cluster: DevCluster,
        target: Path,
        window_seconds: float,
        copying: Copying | None = None,
        *,
        rate: float = RATE,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        """``copying`` copies the log, by default `raftmq backup`; ``rate`` is in messages a second; load generators
        begin ``connect_seconds`` before the first window.
        """
        self.off = list[Window]()
        self.on = list[Window]()
        self.failed = 0
        self.refusals: Counter[str] = Counter()
        self.moves = list[str]()
        self._cluster = cluster
        self._target = target
        self._window_seconds = window_seconds
        self._rate = rate
        self._connect_seconds = connect_seconds
        self._backup = copying

    async def run(self, until: float) -> None:
        """Run rounds until the backup has ended, or until the time ``until`` on trio's clock.

        Raises:
            ServersFailed, GeneratorFailed: earlier windows stay.
        """
        cluster = self._cluster
        leader = await cluster.leader()
        source = next(node for node in cluster.node_ids if node != leader)
        command = [sys.executable, "-m", "mq.cli", "backup", str(self._target), "--namesrv", cluster.namesrv, "--json"]
        command += ["--data-dir", str(cluster.directory / source)]
        if self._backup is None:
            self._backup = BackupProcess(command, self._target.with_suffix(".log"))
        backup = self._backup
        try:
            for number in itertools.count():
                await self._round(await cluster.leader(), 0 if number % 2 == 0 else WINDOWS - 1)
                if backup.has_ended or trio.current_time() + WINDOWS * self._window_seconds + CONNECT_SECONDS > until:
                    return
        finally:
            backup.kill()
            self.moves = [cause for node in cluster.node_ids for cause in causes_of_moves(cluster.log_path(node))]

    async def _round(self, leader: str, without: int) -> None:
        cluster, backup = self._cluster, self._backup
        assert backup is not None, "a round before the backup"
        meters = cpu_meters([cluster.pid(node) for node in sorted(cluster.node_ids, key=lambda node: node != leader)])
        job = _job(cluster, leader, BODY_BYTES, IN_FLIGHT, self._window_seconds, WINDOWS, self._connect_seconds)
        reports, cpu, work_flags = list[Report](), list[list[float]](), list[bool | None]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_follow, job, backup, without, work_flags)
            reports, cpu = await drive([PacedJob(job, self._rate, survives=True)], meters, "benchmarks.load.open_loop")
        cluster.check()
        for report in reports:
            self.failed += report.failed
            self.refusals.update(report.refusals)
        windows = windows_of(reports, cpu, job.window_seconds)
        self.off += [window for window, has_worked in zip(windows, work_flags, strict=True) if has_worked is None]
        self.on += [window for window, has_worked in zip(windows, work_flags, strict=True) if has_worked]

    def figures(self) -> list[Figure]:
        """Return the figures of the windows so far."""
        rows = figures_of(self.off, self.on) if self.off and self.on else []
        rows.append(Figure("producers", "sends that failed", self.failed, "", 0))
        for error, count in sorted(self.refusals.items()):
            rows.append(Figure("producers", f"connections on which sends failed: {error}", count, ""))
        rows.append(Figure("producers", "changes of the leader", len(self.moves), "", 0))
        for cause in sorted(set(self.moves)):
            rows.append(Figure("producers", f"changes of the leader, cause {cause}", self.moves.count(cause), ""))
        if (backup := self._backup) is not None and backup.seconds:
            nbytes = backup.nbytes or size_of(self._target)
            rows.append(Figure("backup", "copied while messages were produced", nbytes / 1e9, "GB"))
            rows.append(Figure("backup", "copied a second, pauses left out", nbytes / 1e6 / backup.seconds, "MB/s"))
            rows.append(Figure("backup", "CPU of the backup", 1e9 * backup.cpu / max(nbytes, 1), "s/GB"))
        return rows


def causes_of_moves(log: Path) -> list[str]:
    """Return why a replica stopped leading, for each time, from its log; see docs/recovery.md."""
    causes, role = list[str](), ""
    for line in log.read_text().splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == "role_changed":
            if role == "leader":
                causes.append(event["cause"])
            role = event["role"]
    return causes


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def _follow(job: Job, backup: Copying, without: int, work_flags: list[bool | None]) -> None:
    """Let the backup work in all windows but one; notes for each whether it did, None for that one."""
    for window in range(job.windows):
        end = job.begin + (window + 1) * job.window_seconds
        await trio.sleep(max(0.0, end - job.window_seconds - time.clock_gettime(time.CLOCK_MONOTONIC)))
        if window == without:
            work_flags.append(None)
        else:
            work_flags.append(await backup.work(max(0.0, end - time.clock_gettime(time.CLOCK_MONOTONIC))))


def figures_of(off: Sequence[Window], on: Sequence[Window], what: str = "a backup") -> list[Figure]:
    """Return medians of the windows without and with a backup, and their differences."""

    def median(windows: Sequence[Window], name: str) -> float:
        return statistics.median(float(getattr(window, name)) for window in windows)

    figures = [Figure("producers", f"windows with {what}", len(on), "")]
    names = (
        ("messages_per_second", "messages/s", "/s"),
        ("p50_ms", "p50", "ms"),
        ("p99_ms", "p99", "ms"),
        ("leader_us", "CPU of the leader", "us/message"),
    )
    for name, text, unit in names:
        without, with_it = median(off, name), median(on, name)
        figures.append(Figure("producers", f"{text}, without {what}", without, unit))
        figures.append(Figure("producers", f"{text}, with {what}", with_it, unit))
        if name == "messages_per_second":
            figures.append(
                Figure("producers", "lost rate", 100 * (1 - with_it / max(without, _TINY)), "%", COST_PERCENT)
            )
        else:
            goal = None if name == "p99_ms" else COST_PERCENT
            figures.append(Figure("producers", f"{text}, growth", 100 * (with_it / max(without, _TINY) - 1), "%", goal))
    without, with_it = (statistics.median(sum(each.follower_us) for each in windows) for windows in (off, on))
    figures.append(Figure("producers", f"CPU of both followers, without {what}", without, "us/message"))
    figures.append(Figure("producers", f"CPU of both followers, with {what}", with_it, "us/message"))
    return figures


def _restore(backup: Path, directory: Path, probe: int) -> list[Figure]:
    """Restore one replica. Before and after that, the disk is measured with a plain file."""
    nbytes = size_of(backup)
    before = disk_rates(directory / "probe", probe)
    _forget(backup)
    command = [sys.executable, "-m", "mq.cli", "restore", str(backup), f"n0={directory / 'restored'}"]
    command += ["--peers", "n0@127.0.0.1:10931,n1@127.0.0.1:10932,n2@127.0.0.1:10933"]
    begin = time.monotonic()
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds = time.monotonic() - begin
    after = disk_rates(directory / "probe", probe)
    write_rate, read = (max(rates) for rates in zip(before, after, strict=True))
    rate = nbytes / 1e6 / seconds
    return [
        Figure("restore", "the backup", nbytes / 1e9, "GB"),
        Figure("restore", "the disk writes a plain file", write_rate, "MB/s"),
        Figure("restore", "the disk reads it", read, "MB/s"),
        Figure("restore", "one replica", rate, "MB/s"),
        Figure("restore", "share of what the disk writes", 100 * rate / write_rate, "%", DISK_PERCENT, is_limit=False),
    ]


def disk_rates(path: Path, nbytes: int) -> tuple[float, float]:
    """Write a plain file and sync it, then read it from the disk. Returns both rates in MB/s."""
    piece = os.urandom(PIECE_BYTES)
    begin = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(nbytes // PIECE_BYTES):
            file.write(piece)
        os.fsync(file.fileno())
        write_seconds = time.monotonic() - begin
    _forget(path.parent)
    begin = time.monotonic()
    with path.open("rb", buffering=0) as file:
        while file.read(PIECE_BYTES):
            pass
    read = time.monotonic() - begin
    path.unlink()
    return nbytes / 1e6 / write_seconds, nbytes / 1e6 / read


def _forget(directory: Path) -> None:
    """Take the files of a directory out of the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


CASES: dict[str, Measure] = {"backup": measure_backup, "restore": measure_restore}

BACKUP = Suite("backup", __doc__, CASES)

if __name__ == "__main__":
    BACKUP.main()
