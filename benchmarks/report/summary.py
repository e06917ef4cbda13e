"""Writes the tables of docs/performance.md from the newest results of the benchmarks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.report.consuming_goals import load_of, median, samples_of

PEERS: Final = {
    "raftmq": "raftmq, on disk",
    "rocketmq-single": "RocketMQ, one broker, on disk",
    "rabbitmq": "RabbitMQ quorum queues, on disk",
    "nats-always": "NATS JetStream R3, on disk",
    "kafka-flush": "Kafka, each message synced",
    "etcd": "etcd, on disk",
    "raftmq-memory": "raftmq, page cache",
    "rocketmq-dledger": "RocketMQ with DLedger, page cache",
    "kafka": "Kafka, page cache",
    "nats-2.12": "NATS JetStream R3, page cache",
}
"""The systems in the order of the table, and where a message is when it is acknowledged."""


def send_lines(raw: Mapping[str, Any]) -> list[str]:
    """Write the rows of the last `make bench` with three replicas, from the windows with the median rates."""
    lines = [
        f"Measured {raw['date'][:10]} by `make bench` ([all cases](benchmarks/produce.md)).",
        "",
        "| three replicas, synced by a majority | msgs/s | p50 ms | p99 ms | leader us/msg | follower us/msg |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for each in raw["measurements"]:
        case = each["case"]
        if case["nodes"] != 3:
            continue
        windows = sorted(each["windows"], key=lambda window: window["messages_per_second"])
        window = windows[len(windows) // 2]
        body = f"{case['body_bytes']} B" if case["body_bytes"] < 1024 else f"{case['body_bytes'] // 1024} KiB"
        followers = max(window["follower_us"])
        lines.append(
            f"| {body}, {case['connections']}x{case['in_flight']} | {window['messages_per_second']:,.0f} "
            f"| {window['p50_ms']:.2f} | {window['p99_ms']:.2f} | {window['leader_us']:.1f} | {followers:.1f} |"
        )
    return lines


def beside_others(sends: Mapping[str, Any] | None, consumer_run: Mapping[str, Any] | None) -> list[str]:
    """Write the medians of the last runs beside other systems; "-" for a missing measurement."""
    consumer_samples = {} if consumer_run is None else samples_of(consumer_run)
    about = []
    if sends is not None:
        about.append(f"Sending was measured {sends['date'][:10]} ([all of it](benchmarks/peers.md))")
    if consumer_run is not None:
        about.append(
            f"consuming {consumer_run['date'][:10]}, with a load average of {load_of(consumer_samples):.0f} "
            "([all of it](benchmarks/peers-consuming.md))"
        )
    lines = [
        f"{', '.join(about)}. MB/s per core: of bodies, by the CPU of all servers, pipelined.",
        "",
        "| 1 KiB | one in flight, p50 ms | 64 in flight, msgs/s | pipelined, msgs/s | MB/s per core "
        "| backlog, msgs/s per core | 500 msgs/s to a consumer: p50 ms | CPU us/msg |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, system in PEERS.items():
        send_samples = {} if sends is None else sends["measured"].get(name, {}).get("samples", {})
        if not send_samples and name not in consumer_samples:
            continue
        servers = _median(send_samples.get("4x256", ()), "servers_us")
        backlog = median(consumer_samples, name, "drain-1", "servers_us")
        figures = (
            _format(_median(send_samples.get("1x1", ()), "p50_ms"), 2),
            _format(_median(send_samples.get("64x1", ()), "messages_per_second")),
            _format(_median(send_samples.get("4x256", ()), "messages_per_second")),
            _format(1024 / servers if servers else None, 1),
            _format(1e6 / backlog if backlog else None),
            _format(median(consumer_samples, name, "pace-1", "p50_ms"), 2),
            _format(median(consumer_samples, name, "pace-1", "servers_us")),
        )
        lines.append(f"| {system} | {' | '.join(figures)} |")
    return lines


def by_benchmark(goals: Iterable[tuple[str, str, bool, str]]) -> list[str]:
    """Count the goals that each benchmark meets. ``goals``: benchmark, date, whether it is met, name."""
    goals_of: dict[str, list[tuple[str, bool, str]]] = {}
    for benchmark, date, is_met, what in goals:
        goals_of.setdefault(benchmark, []).append((date, is_met, what))
    lines = ["| benchmark | measured | goals met | missed first |", "|---|---|---:|---|"]
    for benchmark, each in goals_of.items():
        met_count = sum(is_met for _, is_met, _ in each)
        first_missed = next((what for _, is_met, what in each if not is_met), "-")
        page = f"[{benchmark}](benchmarks/{benchmark}.md)"
        lines.append(f"| {page} | {each[0][0][:10]} | {met_count} of {len(each)} | {first_missed} |")
    return lines


def _median(samples: Sequence[Mapping[str, Any]], figure: str) -> float | None:
    return statistics.median(float(sample[figure]) for sample in samples) if samples else None


def _format(value: float | None, decimals: int = 0) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"
