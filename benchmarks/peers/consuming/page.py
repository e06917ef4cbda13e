"""Writes a run as a page of the docs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.peers.consuming.cases import CASES, RATE, Case, CaseMeasurements, Sample
from benchmarks.peers.consuming.clients import CLIENTS
from benchmarks.peers.consuming.job import DRAIN
from benchmarks.peers.consuming.turns import Arguments, ConsumerResults
from benchmarks.peers.peer import Peer

BUSY = 2.0
"""The load average from which on rates and latencies say more about the machine than about the servers."""
BEGIN = "<!-- measured by `make bench-peers-consuming`: begin -->"
END = "<!-- measured by `make bench-peers-consuming`: end -->"
BASE = "pace-1"
HOW: Mapping[str, tuple[str, str]] = {
    "rocketmq": ("pulls of up to 32, which store the position", "POP of up to 32, an ACK for each"),
    "nats": ("pull consumer, `ack_policy: all` (several consumers: `explicit`)", "pull consumer, `explicit`"),
    "kafka": ("fetches, positions stored every 5 s", "not measured"),
    "amqp": ("`basic.ack` with `multiple`", "`basic.ack` for each"),
}
"""For each protocol: how a position is confirmed, and how each message."""


def section(
    peers: Sequence[Peer], outcome: ConsumerResults, args: Arguments, *, command: str, machine: str, date: str
) -> str:
    """Write the section of the page: how the systems were measured, the systems, and a table for each case."""
    peers_measured = [peer for peer in peers if peer.name in outcome.measured]
    loads = [
        sample.load_average
        for each in outcome.measured.values()
        for samples in each.samples.values()
        for sample in samples
    ]
    lines = [
        f"Command: `{command}`. Date: {date}. Load average before each measurement: {min(loads):.1f} to "
        f"{max(loads):.1f}, median {statistics.median(loads):.1f}.",
        f"Machine: {machine}; servers and load generators share it.",
        f"Messages of 1 KiB. A backlog is {args.megabytes:g} MB of bodies ({args.messages:,} messages), sent just "
        f"before, so that it is in memory. A steady rate lasts {args.seconds:g} s; servers in Java get "
        f"{args.jvm_warmup:g} s of it before. Median of {args.rounds} round{'s' * (args.rounds != 1)}.",
    ]
    if statistics.median(loads) >= BUSY:
        lines.append(
            "**The machine was busy with other work**: rates are lower and latencies longer than on an idle one. "
            "Compare CPU, and figures of one table with each other."
        )
    lines += [
        "",
        "| name | system | version | a message is stored when it is | position | each message |",
        "|---|---|---|---|---|---|",
        *(
            f"| {peer.name} | {peer.system} | {outcome.measured[peer.name].version} | {peer.durability} "
            f"| {' | '.join(HOW[peer.wire])} |"
            for peer in peers_measured
        ),
    ]
    for case in CASES:
        rows = [
            _row(peer, case, outcome.measured[peer.name])
            for peer in peers_measured
            if case.name in outcome.measured[peer.name].samples
        ]
        if rows:
            lines += ["", f"## {case.about[0].upper()}{case.about[1:]}", "", *_head(case), *rows]
    lines += ["", *_goals(outcome.measured)]
    failures = [f"- {peer.name}: {what}" for peer in peers_measured for what in outcome.measured[peer.name].failures]
    if failures:
        lines += ["", "Failures in this run:", "", *failures]
    if outcome.left_out:
        lines += ["", "Not measured:", "", *(f"- {name}: {reason}" for name, reason in outcome.left_out.items())]
    return "\n".join(lines)


def _head(case: Case) -> list[str]:
    if case.kind == DRAIN:
        return [
            "| name | msgs/s | CPU of all servers, us/msg | msgs/s per core of the servers | client us/msg |",
            "|---|---:|---:|---:|---:|",
        ]
    return [
        "| name | p50 ms | p99 ms | p99.9 ms | CPU of all servers, us/msg received | client us/msg | not received |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]


def _row(peer: Peer, case: Case, measurements: CaseMeasurements) -> str:
    def of(figure: Callable[[Sample], float]) -> float:
        return _median(measurements, case.name, figure)

    name = f"{peer.name} with {CLIENTS[peer.wire].name}" if case.by_client else peer.name
    servers, client = of(lambda sample: sample.servers_us), of(lambda sample: sample.client_us)
    if case.kind == DRAIN:
        rate = of(lambda sample: sample.messages_per_second)
        per_core = f"{1e6 / servers:,.0f}" if servers else "-"
        return f"| {name} | {rate:,.0f} | {servers:.1f} | {per_core} | {client:.1f} |"
    times = of(lambda sample: sample.p50_ms), of(lambda sample: sample.p99_ms), of(lambda sample: sample.p999_ms)
    gaps = sum(sample.missing for sample in measurements.samples[case.name])
    return f"| {name} | {' | '.join(f'{each:.2f}' for each in times)} | {servers:.0f} | {client:.0f} | {gaps:,} |"


def _median(measurements: CaseMeasurements, case: str, figure: Callable[[Sample], float]) -> float:
    return statistics.median(figure(sample) for sample in measurements.samples[case])


def _goals(measurements: Mapping[str, CaseMeasurements]) -> list[str]:
    """The comparisons within one run: all groups with one, and ours with the other systems."""
    lines = []
    for name, each in measurements.items():
        if {BASE, "pace-16"} <= each.samples.keys():
            one = _median(each, BASE, lambda sample: sample.servers_us)
            all_groups = 16 * _median(each, "pace-16", lambda sample: sample.servers_us)
            if one:
                lines.append(f"| {name} | {all_groups / one:.1f} |")
    if lines:
        head = f"What servers spend on a message with 16 groups, as a multiple of one group ({RATE:g} messages/s):"
        return [head, "", "| name | times |", "|---|---:|", *lines]
    return []
