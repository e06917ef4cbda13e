"""Puts the same loads on raftmq and on other systems, in one run.

Messages of 1 KiB: one at a time, 64 single sends in flight, 4 connections with 256 in flight each, and batches where
the system has them. Systems take turns, round by round; each starts in an empty directory. Only produce is measured.
Systems that cannot run on this machine are left out and named. ``python -m benchmarks.peers`` (``make bench-peers``).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.load.generators import ROOT
from benchmarks.peers.etcd import ETCD
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.nats import NATS
from benchmarks.peers.page import BEGIN, END, PICTURE, section
from benchmarks.peers.peer import Peer
from benchmarks.peers.picture import draw
from benchmarks.peers.rabbitmq import RABBITMQ
from benchmarks.peers.raftmq import RAFTMQ
from benchmarks.peers.rocketmq import ROCKETMQ
from benchmarks.peers.samples import PeerMeasurements
from benchmarks.peers.turns import Arguments, PeerResults, measure
from benchmarks.procfs import load_average
from benchmarks.report.run_record import RunRecord, earlier_run
from mq.cli.errors import run_trio
from tests.interop.clients import BuildFailed

PEERS = {peer.name: peer for peer in (*RAFTMQ, *ROCKETMQ, *KAFKA, *NATS, *RABBITMQ, *ETCD)}
"""The peers by name, in the order of the turns and of the tables."""


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], choices=list(PEERS), help="only this one (repeatable)")
    parser.add_argument("--quick", action="store_true", help="one round of short windows; the page stays as it is")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system")
    parser.add_argument("--windows", type=int, default=2, help="measured windows of a load in each turn")
    parser.add_argument("--seconds", type=float, default=1.25, help="length of a window")
    parser.add_argument("--warmup", type=float, default=0.5, help="seconds before the first window of a load")
    parser.add_argument("--first-warmup", type=float, default=5.0, help="seconds of load before the first one")
    parser.add_argument("--jvm-warmup", type=float, default=60.0, help="the same for servers in Java")
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds; no round begins that would take longer")
    parser.add_argument("--after", type=Path, metavar="RESULTS", help="count the rounds of this earlier run, too")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmarks/peers.md as it is")
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.rounds, args.windows, args.seconds, args.warmup = 1, 1, 1.0, 0.3
        args.first_warmup = args.jvm_warmup = 1.0
    args.no_write |= args.quick or bool(args.peer)  # the page is of one run of all
    return args


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


def prepare(peer: Peer, outcome: PeerResults) -> str | None:
    """Prepare a peer. Returns the reason if this machine cannot run it. Raises the errors of `Peer.prepare`."""
    if (reason := peer.missing_programs()) is None:
        peer.prepare()
        before = outcome.measured.setdefault(peer.name, PeerMeasurements(peer.version()))
        if before.version != peer.version():
            sys.exit(f"bench: the earlier run measured {before.version}, and this is {peer.version()}")
    return reason


def run(
    names: Sequence[str],
    directory: Path | None,
    left_out: dict[str, str],
    prepares: Callable[[Peer], str | None],
    measure: Callable[[Sequence[Peer], Path], Awaitable[None]],
) -> None:
    """Measure the peers ``names``, or all if empty, in a temporary directory. Exits on Ctrl-C.

    ``prepares`` is as `prepare`; the reason is added to ``left_out``.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background, where shells ignore it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # cleans up in the same way
    ready = []
    try:
        for peer in PEERS.values():
            if names and peer.name not in names:
                continue
            try:
                reason = prepares(peer)
            except (BuildFailed, OSError, subprocess.CalledProcessError) as error:
                reason = str(error)
            if reason is None:
                ready.append(peer)
            else:
                left_out[peer.name] = reason
                say(f"{peer.name} is left out: {reason}")
        say(f"load average {load_average():.1f}; {', '.join(peer.name for peer in ready)}")
        with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=directory) as place:
            run_trio(partial(measure, ready, Path(place)))
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; the page stays as it is, and only complete rounds are in benchmarks/results")


def main() -> None:
    """Measure, print, and write docs/benchmarks/peers.md, its picture and benchmarks/results/."""
    args = parse_arguments(sys.argv[1:])
    try:
        outcome = PeerResults() if args.after is None else earlier_run(args.after, PeerResults)
    except (OSError, ValueError) as error:
        sys.exit(f"bench: {error}")
    prepares = partial(prepare, outcome=outcome)
    on_measure = (lambda _: None) if args.no_write else keep
    rounds = partial(measure, args=args, outcome=outcome, say=say, keep=on_measure)
    run(args.peer, args.dir, outcome.left_out, prepares, rounds)
    if not args.no_write:
        write(list(PEERS.values()), outcome, args)


def keep(outcome: PeerResults) -> RunRecord:
    """Write the results so far to benchmarks/results/, where ``--after`` can continue."""
    record = RunRecord("peers")
    record.keep(**asdict(outcome))
    return record


def write(peers: Sequence[Peer], outcome: PeerResults, args: Arguments) -> None:
    """Write a run to docs/benchmarks/peers.md and benchmarks/results/."""
    record = keep(outcome)
    (ROOT / "docs" / PICTURE).write_text(draw(peers, outcome.measured))
    text = section(peers, outcome, args, **record.about)
    record.publish(text, (BEGIN, END))


if __name__ == "__main__":
    main()
