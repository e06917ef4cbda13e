"""Writes a run as a section of docs/benchmarks/peers.md. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.peers.peer import Peer
from benchmarks.peers.samples import LOADS, Load, PeerMeasurements, Spread
from benchmarks.peers.turns import Arguments, PeerResults

OTHERS_MAX = 0.1
"""Cores used by other processes above which the page mentions them."""
PICTURE = "images/peers.svg"
BEGIN = "<!-- measured by `make bench-peers`: begin -->"
END = "<!-- measured by `make bench-peers`: end -->"


def section(
    peers: Sequence[Peer], outcome: PeerResults, args: Arguments, *, command: str, machine: str, date: str
) -> str:
    """Write the section of the page: how the systems were measured, the systems, and a table for each load."""
    loads = outcome.load_averages
    lines = [
        f"Command: `{command}`. Date: {date}. Load average before each turn: {min(loads):.1f} to {max(loads):.1f}, "
        f"before the first one {loads[0]:.1f}.",
        f"Machine: {machine}; servers and load generators share it.",
        f"{outcome.rounds} rounds, in which the systems took turns; in each turn {args.windows} windows of "
        f"{args.seconds:g} s of each load, after a warm-up, which lasted {args.jvm_warmup:g} s for servers in Java.",
        _others(outcome),
        "Figures are medians over all windows, with minimum and maximum in brackets.",
        "",
    ]
    if outcome.rounds < args.rounds:
        lines += [
            f"The time limit of {args.limit:g} s ended the run before {args.rounds} rounds were complete.",
            "",
        ]
    peers_measured = [peer for peer in peers if peer.name in outcome.measured]
    lines += [
        f"![Rate and latency of each system](../{PICTURE})",
        "",
        "| name | system | version | replicas | acknowledged when it is | settings | memory of all servers, MiB |",
        "|---|---|---|---:|---|---|---:|",
        *(_row_of_system(peer, outcome.measured[peer.name]) for peer in peers_measured),
        "",
    ]
    for load in LOADS:
        rows = [_row(peer, load, outcome.measured[peer.name]) for peer in peers_measured]
        lines += [
            f"## {load.about[0].upper()}{load.about[1:]}",
            "",
            "| name | acknowledged when it is | msgs/s | p50 ms | p99 ms | CPU of all servers, us/msg "
            "| generator us/msg, core |",
            "|---|---|---:|---:|---:|---:|---:|",
            *(row for row in rows if row is not None),
            "",
        ]
    failures = [f"- {peer.name}: {what}" for peer in peers_measured for what in outcome.measured[peer.name].failures]
    if failures:
        lines += ["Failures in this run; a refused load was retried once:", "", *failures, ""]
    if outcome.left_out:
        lines += ["Not measured, because this machine does not have the software:", ""]
        lines += [f"- {name}: {reason}" for name, reason in outcome.left_out.items()]
        lines += [""]
    return "\n".join(lines).rstrip()


def _others(outcome: PeerResults) -> str:
    """The sentence about other load on the machine."""
    each = [
        sample.others for peer in outcome.measured.values() for samples in peer.samples.values() for sample in samples
    ]
    if not each:
        return "No message was acknowledged."
    text = f"Other processes used {statistics.median(each):.2f} cores meanwhile ({min(each):.2f} to {max(each):.2f})."
    if statistics.median(each) < OTHERS_MAX:
        return text
    return (
        f"{text} **The machine was busy**: rates are lower and latencies longer than on an idle one, above all "
        "for servers with a JIT compiler. CPU per message depends less on the load."
    )


def _row_of_system(peer: Peer, measurements: PeerMeasurements) -> str:
    memory = "-"
    if measurements.resident_mib:
        resident, anonymous = (
            statistics.median(measurements.resident_mib),
            statistics.median(measurements.anonymous_mib),
        )
        memory = f"{resident:,.0f}; {anonymous:,.0f} without files"
    return (
        f"| {peer.name} | {peer.system} | {measurements.version} | {peer.replicas} | {peer.durability} "
        f"| {peer.settings} | {memory} |"
    )


def _row(peer: Peer, load: Load, measurements: PeerMeasurements) -> str | None:
    rate = measurements.spread(load, lambda sample: sample.messages_per_second)
    p50 = measurements.spread(load, lambda sample: sample.p50_ms)
    p99 = measurements.spread(load, lambda sample: sample.p99_ms)
    servers = measurements.spread(load, lambda sample: sample.servers_us)
    generator = measurements.spread(load, lambda sample: sample.generator_us)
    core = measurements.spread(load, lambda sample: sample.generator_core)
    if rate is None or p50 is None or p99 is None or servers is None or generator is None or core is None:
        return None
    return (
        f"| {peer.name} | {peer.durability} | {_whole(rate)} | {_exact(p50)} | {_exact(p99)} | {_tenths(servers)} "
        f"| {generator.median:.1f}, {100 * core.median:.0f} % |"
    )


def _whole(spread: Spread) -> str:
    return f"{spread.median:,.0f} ({spread.least:,.0f} to {spread.most:,.0f})"


def _exact(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.least:.2f} to {spread.most:.2f})"


def _tenths(spread: Spread) -> str:
    return f"{spread.median:,.1f} ({spread.least:,.1f} to {spread.most:,.1f})"
