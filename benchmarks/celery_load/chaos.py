"""Tests whether Celery's tasks survive while workers, leaders and connections are broken.

Three brokers, three workers with two processes each, and two producers; all clients reach the brokers through relays.
Every few seconds something breaks, in turn: a worker with its pool is killed (SIGKILL), the leader is killed, the
connections stand still, one process of a pool is killed, the connections are reset. Of the tasks, a tenth has a
countdown, and a twentieth belongs to chords, whose results are in Redis; some take up to a second, and some longer than
their visibility. Each must run, not before its time, and again only if the process of the run before was killed.

`python -m benchmarks celery-chaos` writes docs/reports/celery-chaos.md. With `--dir`, it leaves `result.json` there;
`--sum` writes the report of several such runs.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import trio

from benchmarks.celery_load.chaos_account import (
    ACKNOWLEDGED_SECONDS,
    VISIBILITY_SECONDS,
    Progress,
    Result,
    account,
    runs_of,
    sent_of,
    sum_accounts,
)
from benchmarks.celery_load.redis import open_redis, redis_missing
from benchmarks.celery_load.relay import RELAYED_HOST, Relays, open_relays
from benchmarks.celery_load.workers import Workers
from benchmarks.procfs import load_average, machine
from benchmarks.suites.case_load import ROOT
from mq.cli.errors import run_trio
from mq.client.errors import ClientError
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK

WORKERS = ("one", "two", "three")
PRODUCERS = 2
FAULT_EVERY_SECONDS = 12.0
FAULTS = ("worker killed", "leader killed", "connections stood still", "pool process killed", "connections reset")
DOWN_SECONDS = 2.0
"""Until a leader that was killed is started again; a worker is at once."""
CUT_SECONDS = 4.0
RESTART_TRIES = 4
"""Minutes for the restart of a broker, less one."""
STUCK_SECONDS = 90.0
"""Seconds without the end of a task after which nothing more is broken."""
DRAIN_SECONDS_MAX = 300.0
"""Seconds to wait after that for missing tasks."""
RESULT = "result.json"
REPORT = ROOT / "docs" / "reports" / "celery-chaos.md"


class Arguments(argparse.Namespace):
    """The options of the command line."""

    tasks: int
    seed: int
    dir: Path | None
    sum: list[Path] | None
    no_write: bool


@dataclass(slots=True)
class Chaos:
    """One run: its processes, and how often each fault was injected."""

    args: Arguments
    directory: Path
    cluster: DevCluster
    relays: Relays
    workers: Workers
    broken: Counter[str] = field(default_factory=Counter)
    producers_ended: bool = False

    @property
    def notes(self) -> Path:
        """The file to which tasks write when they begin and end."""
        return self.directory / "notes"

    async def produce(self) -> None:
        """Send all tasks. Raises subprocess.CalledProcessError."""
        each = self.args.tasks // PRODUCERS
        module = [sys.executable, "-m", "benchmarks.celery_load.chaos_producer"]
        async with trio.open_nursery() as nursery:
            for number in range(PRODUCERS):
                output = (self.directory / f"sent-{number}").open("wb")
                command = [*module, str(each), str(self.args.seed + number)]
                errors = (self.directory / f"producer-{number}.log").open("wb")
                nursery.start_soon(
                    partial(
                        trio.run_process,
                        command,
                        stdout=output,
                        stderr=errors,
                        env={**os.environ, **self.workers.environment},
                    )
                )
        self.producers_ended = True

    async def break_things(self, until: trio.CancelScope) -> None:
        """Inject one fault after the other until ``until`` is cancelled. Then restart all brokers and workers."""
        rng = random.Random(self.args.seed)
        with until:
            while True:
                for fault in FAULTS:
                    await trio.sleep(FAULT_EVERY_SECONDS)
                    with trio.CancelScope(shield=True):  # each fault that has begun is mended
                        await self._break(fault, rng)

    async def _break(self, fault: str, rng: random.Random) -> None:
        self.broken[fault] += 1
        name = rng.choice(WORKERS)
        match fault:
            case "worker killed":
                self.workers.kill(name)
                await self.workers.start(name)
            case "pool process killed":
                self.workers.kill_pool_process(name, rng.randrange(100))
            case "leader killed":
                leader = await self.cluster.leader()
                self.cluster.kill(leader)
                await trio.sleep(DOWN_SECONDS)
                await self.cluster.start(leader)
                await self._wait_ready()
            case "connections stood still":
                await self.relays.stand_still(CUT_SECONDS)
            case _:
                await self.relays.cut(CUT_SECONDS)

    async def _wait_ready(self) -> None:
        """Wait until all brokers run: on a machine that has more to do than it can, that may take minutes."""
        for _ in range(RESTART_TRIES):
            try:
                await self.cluster.wait_ready()
            except ServersFailed:
                self.cluster.check()  # one that has ended does not come
            else:
                return
        await self.cluster.wait_ready()

    async def wait_for_tasks(self, faults_scope: trio.CancelScope) -> None:
        """Wait until all sent tasks have ended, and redeliveries have arrived.

        Things are broken until the former. Returns also if nothing more happens: the account says what is lost.
        """
        tasks: dict[str, str | None] = {}
        progress, read = Progress(), 0
        last = trio.current_time()
        while True:
            await trio.sleep(1)
            self.workers.check()
            with self.notes.open("rb") as file:
                file.seek(read)
                chunk = file.read()
            read += len(chunk)
            if progress.feed(chunk):
                last = trio.current_time()
            if self.producers_ended:
                tasks = tasks or self.read_sent()[0]
                is_done = progress.ended >= tasks.keys()
                if is_done or trio.current_time() > last + STUCK_SECONDS:
                    faults_scope.cancel()
                quiet = VISIBILITY_SECONDS + 5 if is_done else DRAIN_SECONDS_MAX
                if trio.current_time() > last + quiet:
                    return

    def read_sent(self) -> tuple[dict[str, str | None], int, list[str]]:
        """Return the lines that the producers have printed, parsed by `sent_of`."""
        lines: list[str] = []
        for number in range(PRODUCERS):
            lines += (self.directory / f"sent-{number}").read_text().splitlines()
        return sent_of(lines)


async def play(args: Arguments, directory: Path) -> Result:
    """Execute the run. Raises ServersFailed, ClientError, OSError, subprocess.CalledProcessError."""
    load, begin = load_average(), trio.current_time()
    ports = Ports.free(3)
    (directory / "notes").touch()
    async with (
        open_relays((ports.namesrv, *ports.clients)) as relays,
        DevCluster.open(directory / "brokers", ports=ports, settings=ANY_DISK, client_host=RELAYED_HOST) as cluster,
    ):
        with ExitStack() as stack:
            redis_port, _ = stack.enter_context(open_redis(directory / "redis"))
            environment = {
                "CHAOS_BROKER": f"raftmq://{RELAYED_HOST}:{ports.namesrv}",
                "CHAOS_BACKEND": f"redis://127.0.0.1:{redis_port}/0",
                "CHAOS_DIRECTORY": str(directory),
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            }
            workers = Workers("benchmarks.celery_load.chaos_app", directory, environment)
            stack.callback(workers.close)
            for name in WORKERS:
                await workers.start(name)
            chaos = Chaos(args, directory, cluster, relays, workers)
            async with trio.open_nursery() as nursery:
                faults_scope = trio.CancelScope()
                nursery.start_soon(chaos.break_things, faults_scope)
                nursery.start_soon(chaos.produce)
                await chaos.wait_for_tasks(faults_scope)
            tasks, chords, errors = chaos.read_sent()
            runs = runs_of(chaos.notes.read_text().splitlines())
            total = account(tasks, chords, runs, dict(workers.kills), may_be_sent=bool(errors))
    return Result(total, errors, dict(chaos.broken), trio.current_time() - begin, load)


def markdown(results: list[Result], *, command: str) -> str:
    """Write the page about one run, or about several consecutive runs."""
    total = sum_accounts(results)
    faults: Counter[str] = Counter()
    for each in results:
        faults.update(each.broken)
    loads = sorted(each.load_average for each in results)
    load = f"{loads[0]:.1f}" if len(loads) == 1 else f"{loads[0]:.1f} to {loads[-1]:.1f}"
    seconds = sum(each.seconds for each in results)
    runs = "" if len(results) == 1 else f" in {len(results)} runs, each with new brokers"
    cut_short = [each for each in total.again if each.is_traced and each.before.ended is None]
    traced_ends = [each for each in total.again if each.is_traced and each.before.ended is not None]
    latest = max(
        (each.killed - each.before.ended for each in traced_ends if each.killed and each.before.ended), default=0.0
    )
    late = sorted(total.late_seconds) or [0.0]
    rows = [
        ("tasks that were sent", total.sent),
        ("of these with a countdown", total.delayed),
        ("of these parts and bodies of chords", f"{total.chords * 10:,}, of {total.chords:,} chords"),
        ("sends that raised an error", sum(len(each.errors) for each in results)),
        ("**lost**", len(total.lost)),
        ("ran before they were due", len(total.early)),
        ("ran again", len(total.again)),
        ("- their process was killed while they ran", len(cut_short)),
        (
            "- their process was killed when they had ended, before that was acknowledged",
            f"{len(traced_ends)}, at most {latest:.2f} s before",
        ),
        ("- **for no such reason**", len(total.untraced_runs)),
    ]
    lines = [
        "# Celery while everything breaks",
        "",
        f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        f"Machine: {machine()}; servers, workers and producers share it.",
        f"Load average before: {load}.",
        "",
        f"Three brokers, {len(WORKERS)} workers with two processes each, {PRODUCERS} producers; visibility",
        f"{VISIBILITY_SECONDS:g} s. All clients reach the servers through relays. Tasks are acknowledged late, and",
        f"results are in Redis. One thing was broken after the other, {FAULT_EVERY_SECONDS:g} s",
        f"after the last one was mended, for {seconds:,.0f} s{runs}:",
        "",
        *(f"- {fault}: {faults[fault]} times" for fault in FAULTS),
        "",
        f"Killed is SIGKILL, of a worker with its pool; connections stood still or were refused for {CUT_SECONDS:g} s.",
        f"Tasks take up to a second; one of 5,000 takes {1.3 * VISIBILITY_SECONDS:g} s.",
        "",
        "| | |",
        "|---|---:|",
        *(f"| {name} | {value if isinstance(value, str) else f'{value:,}'} |" for name, value in rows),
        "",
        f"Delayed tasks began {late[len(late) // 2]:.2f} s (median), {late[-1]:.2f} s (maximum) after they were due.",
        "Each run of a task notes its process and its times, and the program notes each process that it kills: a run",
        "is followed by another one only if its process was killed while it ran, or within",
        f"{ACKNOWLEDGED_SECONDS:g} s after its end.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Execute a run, and write the report. Exit code 1 if a task was lost, ran too early, or twice without cause."""
    parser = argparse.ArgumentParser(
        prog="make bench-celery-chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the data goes, and stays; default: a temporary directory")
    parser.add_argument(
        "--sum", type=Path, nargs="+", metavar="DIR", help="run nothing: report on what runs left there"
    )
    parser.add_argument("--no-write", action="store_true", help=f"leave {REPORT.name} as it is")
    args = parser.parse_args(namespace=Arguments())
    if (reason := redis_missing()) is not None:
        parser.exit(2, f"bench: {reason}\n")
    try:
        results = [_read(each) for each in args.sum] if args.sum else [_play(args)]
    except (
        ServersFailed,
        ClientError,
        OSError,
        msgspec.DecodeError,
        subprocess.CalledProcessError,
    ) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)
    arguments_text = " ".join(sys.argv[1:])
    page = markdown(
        results, command="make bench-celery-chaos" + (f' ARGS="{arguments_text}"' if arguments_text else "")
    )
    print(page)
    total = sum_accounts(results)
    for what in ("lost", "untraced_runs", "early", "unknown"):
        if wrong := getattr(total, what):
            print(f"{what}: {wrong[:8]}", file=sys.stderr)
    for text in [text for each in results for text in each.errors][:8]:
        print(f"error of a send: {text}", file=sys.stderr)
    if not args.no_write:
        REPORT.write_text(page)
    sys.exit(0 if total.is_good else 1)


def _play(args: Arguments) -> Result:
    """Do one run, whose result is left in `--dir`."""
    with ExitStack() as stack:
        if args.dir is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raftmq-celery-")))
        else:
            (directory := args.dir.resolve()).mkdir(parents=True)
        result = run_trio(partial(play, args, directory))
        (directory / RESULT).write_bytes(msgspec.json.encode(result))
    return result


def _read(directory: Path) -> Result:
    return msgspec.json.decode((directory / RESULT).read_bytes(), type=Result)


if __name__ == "__main__":
    main()
