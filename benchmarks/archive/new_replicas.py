"""Measures how fast a new replica gets its log from the archive, in a running group and in a new one."""

from __future__ import annotations

import json
import resource
import sys
import time
from functools import partial
from pathlib import Path

import trio

from benchmarks.archive.cold_reads import range_rate
from benchmarks.archive.groups import URL, archiving_group, fill_group, runtime, wait_archived, wait_until
from benchmarks.backup import disk_rates, size_of
from benchmarks.suites.case_load import ROOT, Arguments, Note, create_topics
from benchmarks.suites.figures import Figure
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.local_cluster import HOST, DevCluster, Processes, open_processes
from mq.local_cluster.port_reservation import OWN_PORTS
from raftlog.segment.ranges_ahead import RANGES_AT_ONCE

DATA_BYTES = 1_200_000_000
KEPT_BYTES = 1_000_000_000
"""A replica gets files, not entries, since the oldest are deleted locally."""
PROBE_BYTES = 500_000_000
RESTORE_PERCENT = 50.0
NODE_IDS = {"archive": "n7", "leader": "n8"}
"""The ids of the new replicas, by the source of their log."""
WITHOUT_ARCHIVE = ("archive_", "local_retention_")
"""Settings that a replica lacks which gets everything from the leader."""


async def measure_join(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the case ``join`` of the package."""
    data, retention_bytes, probe = (
        each // (100 if args.quick else 1) for each in (DATA_BYTES, KEPT_BYTES, PROBE_BYTES)
    )
    settings = {"local_retention_bytes": str(retention_bytes)}
    async with archiving_group(directory, 3, quick=args.quick, settings=settings) as (cluster, storage):
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        await fill_group(cluster, leader, data)
        await wait_archived(cluster, base_moves=True)
        took: dict[str, tuple[float, int, int]] = {}
        leader = await cluster.leader()
        dead = next(each for each in cluster.node_ids if each != leader)
        with open_processes(directory / "joined") as processes:
            for source in ("archive", "leader"):
                took[source] = await _replace_member(cluster, processes, dead, source)
                dead = NODE_IDS[source]
        nbytes, archived_bytes = took["archive"][1], took["archive"][2]
        note(Figure("join", "bytes of the log", nbytes / 1e9, "GB"))
        note(Figure("join", "of them from the archive", 100 * archived_bytes / nbytes, "%"))
        note(Figure("join", "from the leader alone", took["leader"][0], "s"))
        note(Figure("join", "with the archive", took["archive"][0], "s", took["leader"][0]))
        note(Figure("join", "with the archive, a second", nbytes / 1e6 / took["archive"][0], "MB/s"))
        stored_bytes = size_of(storage.files("broker-a/log"))
        before = await trio.to_thread.run_sync(disk_rates, directory / "probe-before", probe)
        command = [sys.executable, "-m", "mq.cli", "restore", URL, f"r0={directory / 'restored'}"]
        command += ["--peers", "r0@127.0.0.1:10931", "--endpoint-url", storage.url]
        begin, cpu_begin = time.monotonic(), _cpu_of_children()
        await trio.run_process(command, cwd=ROOT, capture_stdout=True)
        seconds, cpu = time.monotonic() - begin, _cpu_of_children() - cpu_begin
        ranges = partial(range_rate, storage.url, storage.files("broker-a/log"), RANGES_AT_ONCE)
        read_rate = await trio.to_thread.run_sync(ranges)
        after = await trio.to_thread.run_sync(disk_rates, directory / "probe-after", probe)
    rate, write_rate = stored_bytes / 1e6 / seconds, max(before[0], after[0])
    note(Figure("restore", "the archive", stored_bytes / 1e9, "GB"))
    note(Figure("restore", "the disk writes a plain file", write_rate, "MB/s"))
    note(Figure("restore", "one replica", rate, "MB/s"))
    note(
        Figure(
            "restore", "share of what the disk writes", 100 * rate / write_rate, "%", RESTORE_PERCENT, is_limit=False
        )
    )
    note(Figure("restore", f"ranges of 4 MiB, {RANGES_AT_ONCE} at a time, as it reads", read_rate, "MB/s"))
    note(Figure("restore", "share of these ranges", 100 * rate / read_rate, "%"))
    note(Figure("restore", "CPU of raftmq restore for each GB", 1e9 * cpu / stored_bytes, "s/GB"))


def _cpu_of_children() -> float:
    """CPU seconds of the child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _replace_member(cluster: DevCluster, processes: Processes, dead: str, source: str) -> tuple[float, int, int]:
    """Kill ``dead``, and let a new replica take its place, which gets the log from ``source``.

    Returns the seconds from then until it has the leader's log, the bytes of its log, and the number of them that came
    from the archive.
    """
    node = NODE_IDS[source]
    settings = {
        name: value
        for name, value in cluster.settings.items()
        if name != "segment_bytes" and (source == "archive" or not name.startswith(WITHOUT_ARCHIVE))
    }
    clients = OWN_PORTS.reserve(2)
    replication = clients + 1
    command = [sys.executable, "-m", "mq.cli", "broker", "--join", "--node-id", node, "--namesrv", cluster.namesrv]
    command += ["--listen", f"{HOST}:{clients}", "--replication-listen", f"{HOST}:{replication}"]
    command += ["--data-dir", str(processes.logs / node), "--set", f"secret_file={cluster.secret_file}"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    processes.start(node, command, directory=ROOT)
    await processes.wait_listening(node, replication)
    if dead in cluster.node_ids:
        cluster.kill(dead)
    else:
        processes.kill(dead)
    async with Admin(cluster.namesrv) as admin:
        leader = await cluster.leader()
        due = (await runtime(admin, cluster.address(leader)))["raftmq.commitIndex"]
        replace = [sys.executable, "-m", "mq.cli", "group", "replace", dead, f"{node}@{HOST}:{replication}"]
        begin = time.monotonic()
        await trio.run_process([*replace, "--namesrv", cluster.namesrv], cwd=ROOT, capture_stdout=True)

        async def has_all() -> bool:
            try:
                return (await runtime(admin, f"{HOST}:{clients}"))["raftmq.appliedIndex"] >= due
            except (ClientError, OSError):
                return False

        await wait_until(f"{node} has caught up", has_all, 300)
        seconds = time.monotonic() - begin
    lines = processes.log_path(node).read_text(errors="replace").splitlines()
    installs = [json.loads(line) for line in lines if '"install_fetched"' in line]
    nbytes = size_of(processes.logs / node / "commitlog")
    return seconds, nbytes, sum(each["archived_bytes"] for each in installs)
