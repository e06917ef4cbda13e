"""``python -m jepsen.nats``: does the harness detect that another system loses acknowledged messages?

By default NATS' JetStream acknowledges before any disk has synced, and syncs every two minutes. When all servers lose
power, acknowledged messages are lost. With ``--sync-interval always`` none may be. ``--write`` puts the result into
docs/jepsen.md.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from checkers.verdict import EXIT_CANNOT_RUN, EXIT_UNKNOWN, exit_code, in_words
from jepsen.deployments import disks
from jepsen.judge import REPORT, judge, read_history
from jepsen.nats.client import NatsError
from jepsen.nats.servers import DEFAULT, NatsFailed, version_of
from jepsen.nats.trial import WORKLOAD, Trial, carry_out, counts_of
from jepsen.planted_bugs import PAGE, put_lines
from mq.cli.errors import run_trio

BEGIN = "<!-- written by python -m jepsen.nats -->\n"
HEAD = "| server | acknowledged | lost | verdict |\n|---|---:|---:|---|\n"
ALWAYS = "always"
KNOWS_ALWAYS = (2, 12)
"""Older servers refuse the value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial; returns the exit code of its verdict."""
    parser = argparse.ArgumentParser(prog="python -m jepsen.nats", description="Take the power of three nats-servers.")
    parser.add_argument("--server", default="nats-server", metavar="PROGRAM", help="default: nats-server of the PATH")
    parser.add_argument("--sync-interval", choices=(DEFAULT, ALWAYS), default=DEFAULT)
    parser.add_argument("--time", type=float, default=8.0, help="seconds of appends before each loss of power")
    parser.add_argument("--rounds", type=int, default=2, help="losses of power")
    parser.add_argument("--seed", type=int, default=None, help="drawn if not given")
    parser.add_argument("--store", type=Path, default=Path("store"), help="where directories of runs are made")
    parser.add_argument("--write", action="store_true", help=f"put the result into {PAGE.name}")
    options = parser.parse_args(arguments)
    program = shutil.which(options.server)
    if (reason := _why_not(program, options.server, options.sync_interval)) is not None:
        sys.stderr.write(f"jepsen.nats: {reason}\n")
        return EXIT_CANNOT_RUN
    assert program is not None, "nothing was found, and no reason given"
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    trial = Trial(
        os.path.abspath(program), version_of(program), options.sync_interval, options.time, options.rounds, seed
    )
    directory = options.store.resolve() / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{WORKLOAD}-power-loss"
    directory.mkdir(parents=True)
    sys.stdout.write(f"{trial.command}\n")
    since = time.monotonic_ns()

    def say(text: str) -> None:
        sys.stdout.write(f"{(time.monotonic_ns() - since) / 1e9:6.1f} s  {text}\n")
        sys.stdout.flush()

    try:
        run_trio(partial(carry_out, trial, directory, say))
    except (NatsError, NatsFailed, OSError, trio.BrokenResourceError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"jepsen.nats: the trial failed: {error}\n")
        return EXIT_UNKNOWN
    verdict = judge(directory)
    counts = counts_of(read_history(directory))
    for result in verdict.results:
        for anomaly, count in result.anomalies.items():
            say(f"{anomaly}, {count} times: {result.examples[anomaly][0]}")
        for reason in result.unknown:
            say(reason)
    word = in_words(verdict.valid)
    say(f"{trial.system}: {counts.lost:,} of {counts.acknowledged:,} acknowledged messages are lost")
    say(f"{word}; the page is {directory / REPORT}")
    if options.write:
        line = f"| {trial.system} | {counts.acknowledged:,} | {counts.lost:,} | {word} |"
        PAGE.write_text(put_lines(PAGE.read_text(), [line], begin=BEGIN, head=HEAD))
    return exit_code(verdict.valid)


def _why_not(program: str | None, name: str, sync_interval: str) -> str | None:
    """Why the trial is not available here, as text; None if it is."""
    if program is None:
        return f"not installed: {name}; Debian has it as apt-get install nats-server"
    if (reason := disks.unavailable()) is not None:
        return reason
    version = version_of(program)
    if sync_interval == ALWAYS and tuple(map(int, version.split(".")[:2])) < KNOWS_ALWAYS:
        newer = "go install github.com/nats-io/nats-server/v2@v2.12.1"
        return f"nats-server {version} does not know sync_interval: always; {newer} makes one that does, see --server"
    return None


if __name__ == "__main__":
    sys.exit(main())
