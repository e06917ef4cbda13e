"""Measures the cost of consuming from raftmq and from other systems, in one run.

Messages of 1 KiB. A backlog is drained by one consumer and by eight, with positions or with an acknowledgement of each
message (POP); messages are sent at a steady rate, each when it is due, to 1, 4 and 16 groups, and latency is the time
from when a message was due to when a consumer has it. All systems have the same load generator; then the usual Python
client of some. Systems that cannot run on this machine are left out and named. ``python -m benchmarks.peers.consuming``
(``make bench-peers-consuming``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.peers.__main__ import PEERS, run, say
from benchmarks.peers.consuming.cases import CASES, CaseMeasurements
from benchmarks.peers.consuming.clients import CLIENTS, WITH_CLIENTS
from benchmarks.peers.consuming.load import BY_POSITION
from benchmarks.peers.consuming.page import BEGIN, END, section
from benchmarks.peers.consuming.turns import Arguments, ConsumerResults, measure
from benchmarks.peers.peer import Peer
from benchmarks.procfs import REAL_TIME_HELP, run_before_others
from benchmarks.report.run_record import RunRecord, earlier_run

DOCUMENT = "docs/benchmarks/peers-consuming.md"


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-peers-consuming", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [peer.name for peer in PEERS.values()]
    parser.add_argument("--peer", action="append", default=[], choices=names, help="only this one (repeatable)")
    parser.add_argument(
        "--case", action="append", default=[], choices=[case.name for case in CASES], help="only this one (repeatable)"
    )
    parser.add_argument("--quick", action="store_true", help="10 MB and two seconds; the page stays as it is")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each system")
    parser.add_argument("--megabytes", type=float, default=1000.0, help="of a backlog")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a steady rate")
    parser.add_argument("--jvm-warmup", type=float, default=60.0, help="seconds of it before, for servers in Java")
    parser.add_argument("--after", type=Path, metavar="RESULTS", help="keep what this run measured of the others")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--real-time", action="store_true", help=REAL_TIME_HELP)
    parser.add_argument("--no-write", action="store_true", help=f"leave {DOCUMENT} as it is")
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.rounds, args.megabytes, args.seconds, args.jvm_warmup = 1, 10.0, 2.0, 2.0
    args.no_write |= args.quick or bool(args.case)  # the page has all cases
    return args


def main() -> None:
    """Measure, print, and write the page and benchmarks/results/."""
    args = parse_arguments(sys.argv[1:])
    if args.real_time:
        run_before_others()
    try:
        outcome = ConsumerResults() if args.after is None else earlier_run(args.after, ConsumerResults)
    except (OSError, ValueError) as error:
        sys.exit(f"bench: {error}")

    def prepare(peer: Peer) -> str | None:
        reason = peer.missing_programs() if peer.wire in BY_POSITION else "no message broker: it has no consumers"
        if reason is None:
            peer.prepare()
            if peer.name in WITH_CLIENTS:
                CLIENTS[peer.wire].install()
            outcome.measured[peer.name] = CaseMeasurements(peer.version())
        return reason

    run(args.peer, args.dir, outcome.left_out, prepare, partial(measure, args=args, outcome=outcome, say=say))
    if not args.no_write and any(peer.samples for peer in outcome.measured.values()):
        record, peers = RunRecord("peers-consuming"), list(PEERS.values())
        record.keep(**asdict(outcome))
        text = section(peers, outcome, args, **record.about)
        record.publish(text, (BEGIN, END))


if __name__ == "__main__":
    main()
