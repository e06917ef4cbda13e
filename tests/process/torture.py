"""A group of real processes under torment, with producers and consumers that keep going.

    python -m tests.process.torture --seconds 120 --seed 7
    python -m tests.process.torture --kinds fall_behind,kill_in_reset --retention-bytes 3000000

Everything that a seed decides repeats; what the machine decides does not. It prints a summary, and exits with 1 and a
line for each promise that was broken. Torments are chosen by name, see ``--help``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from mq.cli.dev_cluster import DevCluster
from mq.cli.logs import configure_logging
from mq.client import Admin, NoRoute
from tests.process import torture_disks, torture_members
from tests.process.torture_group import Group, founders_ports, group_ports
from tests.process.torture_history import judge
from tests.process.torture_kinds import KINDS
from tests.process.torture_logs import compare_logs
from tests.process.torture_run import QUEUES, TOPIC, Torture
from tests.process.torture_wire import HEAL_SECONDS_MAX

# Their torments are registered by importing them.
_MODULES = (torture_disks, torture_members)

MIB = 1024 * 1024
RSS_BYTES_MAX = 300 * MIB
ENOUGH = 100
"""How many messages must still be stored when the torments are over."""
SETTINGS = {
    # Small files roll often, and checkpoints and flushes meet the kills.
    "segment_bytes": str(MIB),
    "message_bytes_max": str(256 * 1024),
    "checkpoint_seconds": "0.5",
    "offset_commit_seconds": "0.05",
}
SHORT_LOG = {
    "segment_bytes": str(128 * 1024),
    "message_bytes_max": "60000",
    "entry_bytes_max": "32768",
    "retention_check_seconds": "0.3",
    "catch_up_bytes_per_second": str(2 * MIB),
}
"""With ``retention_bytes``: the log's base moves all the time."""

PROCESSES = (
    "kill_leader",
    "kill_leader",
    "kill_follower",
    "kill_both_followers",
    "kill_all",
    "pause_leader_long",
    "pause_leader_shortly",
    "pause_follower",
    "stop_one",
    "restart_namesrv",
)
"""What is done when nothing is chosen."""


async def torment(run: Torture, kinds: Sequence[str], seconds: float) -> None:
    """Break something, let it be for a while, and repeat; each kind at least once."""
    ends = trio.current_time() + seconds
    kinds = run.rng.sample(kinds, len(kinds))
    for count, name in enumerate(itertools.cycle(kinds)):
        if trio.current_time() > ends and count >= (len(set(kinds)) if len(kinds) < len(PROCESSES) else 0):
            return
        run.say(f"{trio.current_time() - ends + seconds:6.1f} s  {name}")
        try:
            await KINDS[name](run)
            await run.wait_leader()
        except trio.TooSlowError:
            run.broken(f"{name}: what was awaited did not happen in time")
            raise
        run.done[name] += 1
        await trio.sleep(run.rng.uniform(0.2, 2.0))


async def create_topic(cluster: DevCluster) -> None:
    """Create the topic, as soon as the leader is known to the name server."""
    async with Admin(cluster.namesrv) as admin:
        with trio.fail_after(HEAL_SECONDS_MAX):
            while True:
                try:
                    await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
                except NoRoute:
                    await trio.sleep(0.1)
                else:
                    return


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run showed."""

    violations: list[str]
    summary: dict[str, Any]


async def torture(
    directory: Path,
    *,
    seconds: float,
    seed: int,
    kinds: Sequence[str] = PROCESSES,
    retention_bytes: int | None = None,
    durability: str = "quorum-fsync",
    say: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Torture a group in ``directory`` for so long, let it heal, and judge it."""
    ports = group_ports()
    settings = {**SETTINGS, "durability": durability}
    if retention_bytes is not None:
        settings |= {**SHORT_LOG, "retention_bytes": str(retention_bytes)}
    async with DevCluster.open(directory, ports=founders_ports(ports), settings=settings) as cluster:
        group = Group(cluster, ports, settings)
        # A log that is cut must not be cut faster than consumers read it.
        run = Torture(group, random.Random(seed), say, pause_seconds=0.0 if retention_bytes is None else 0.05)
        await create_topic(cluster)
        async with trio.open_nursery() as clients:
            clients.start_soon(cluster.watch)
            clients.start_soon(group.watch_memory)
            for number in range(len(ports.clients)):
                clients.start_soon(run.watch_offsets, f"n{number}")
            clients.start_soon(run.consume, False)
            clients.start_soon(run.consume, True)
            async with trio.open_nursery() as producers:
                producers.start_soon(partial(run.produce, "one", in_flight=1, retry_unknown=True))
                producers.start_soon(partial(run.produce, "once", in_flight=2, retry_unknown=False))
                producers.start_soon(partial(run.produce, "many", in_flight=12, retry_unknown=True))
                await torment(run, kinds, seconds)
                await run.flow(ENOUGH)
                run.stop_sending.set()
            say("healing")
            for node in group.members:
                if not group.is_running(node):
                    await group.start(node)
            await run.wait_leader()
            await run.wait_delivered()
            clients.cancel_scope.cancel()
        await run.settle()
        replicas = {node: await run.read_replica(node) for node in group.members}
        cluster.check()
        history = run.history
    await group.unmount()
    violations = judge(history, replicas) + compare_logs({node: group.commitlog(node) for node in group.members})
    if group.rss_max > RSS_BYTES_MAX:
        violations.append(f"a broker took {group.rss_max // MIB} MiB of memory")
    deliveries = history.deliveries
    summary = {
        "seed": seed,
        "sent": len(history.sent),
        "acknowledged": len(history.acknowledged),
        "refused": sum(message.refused for message in history.sent),
        "delivered": len(history.delivered),
        "duplicates": deliveries - len(history.delivered),
        "gone before they were read": history.undelivered([0] * QUEUES),
        "stored offsets asked": len(history.stored_offsets),
        "members": group.members,
        "bases": {node: served.base_pos for node, served in replicas.items()},
        "record bytes": {node: sum(len(q.records) for q in served.queues) for node, served in replicas.items()},
        "memory MiB": group.rss_max // MIB,
        **run.done,
    }
    return Verdict(violations, summary)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog=f"Kinds: {', '.join(sorted(KINDS))}, or all."
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(PROCESSES), help="by name, separated by commas")
    parser.add_argument("--retention-bytes", type=int, help="cut the log to this; default: keep everything")
    parser.add_argument("--durability", default="quorum-fsync")
    parser.add_argument("--dir", type=Path, default=None, help="where data and logs go; kept")
    arguments = parser.parse_args()
    configure_logging("error")
    kinds = sorted(KINDS) if arguments.kinds == "all" else arguments.kinds.split(",")
    if unknown := set(kinds) - KINDS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(sorted(KINDS))}")
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="raftmq-torture-"))
    print(f"seed {arguments.seed}, data and logs in {directory}", flush=True)  # noqa: T201
    verdict = trio.run(
        partial(
            torture,
            directory,
            seconds=arguments.seconds,
            seed=arguments.seed,
            kinds=kinds,
            retention_bytes=arguments.retention_bytes,
            durability=arguments.durability,
            say=partial(print, flush=True),
        )
    )
    print(json.dumps(verdict.summary, indent=2))  # noqa: T201
    for violation in verdict.violations:
        print("BROKEN:", violation)  # noqa: T201
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
