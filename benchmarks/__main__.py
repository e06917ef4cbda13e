"""`python -m benchmarks CASE`: the benchmarks that start their own brokers; `make bench-CASE` runs one.

Each case is a module with its own options: `python -m benchmarks steady --help`. To measure a cluster that runs
already, use `raftmq bench`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple


class Case(NamedTuple):
    """A benchmark. ``module``: the module that measures. ``about``: what it measures, and the page it writes."""

    module: str
    about: str


CASES: Final[dict[str, Case]] = {
    "produce": Case("benchmarks.produce", "msgs/s, latency and CPU per message; writes its page"),
    "peers-consuming": Case(
        "benchmarks.peers.consuming", "consumers of raftmq beside those of other systems; writes its page"
    ),
    "peers": Case("benchmarks.peers", "raftmq beside RocketMQ, NATS, RabbitMQ, etcd if installed; writes its page"),
    "gate": Case("benchmarks.gate", "instructions per message against a committed baseline; needs valgrind"),
    "steady": Case("benchmarks.steady", "a load of a minute, and the work that follows it; writes its page"),
    "paced": Case("benchmarks.paced", "latency at half of the maximum rate; writes its page"),
    "goals": Case(
        "benchmarks.report.goals", "measures nothing: writes which goals the last results meet, and docs/performance.md"
    ),
    "critical-path": Case("benchmarks.critical_path", "who waits for what while a message is stored; writes its page"),
    "low-rate": Case("benchmarks.low_rate", "few messages: latency, CPU, wake-ups; writes its page"),
    "client": Case("benchmarks.client", "throughput of one process of the SDK; writes its page"),
    "memory": Case("benchmarks.memory", "memory under a load of half an hour; writes its page"),
    "curves": Case("benchmarks.curves", "CPU per message with more connections, queues, ...; writes its page"),
    "store": Case("benchmarks.store", "many queues, restarts: goals of the message store; writes its page"),
    "delays-transactions-pop": Case(
        "benchmarks.delays_transactions_pop", "delays, timers, transactions, POP; writes its page"
    ),
    "metrics": Case("benchmarks.scraping", "CPU and delays of a scrape of /metrics; writes its page"),
    "backup": Case("benchmarks.backup", "the effect of a backup on clients and brokers; writes its page"),
    "archive": Case(
        "benchmarks.archive", "archives in object storage: cost, cold reads, new replicas; writes its page"
    ),
    "fairness": Case("benchmarks.fairness", "latency of a client beside demanding ones; writes its page"),
    "filter": Case("benchmarks.filtering", "filters beside the broker: CPU, and bytes to consumers; writes its page"),
    "exactly-once": Case(
        "benchmarks.failover.exactly_once", "delayed and transactional messages while leaders die; writes a report"
    ),
    "failover": Case("benchmarks.failover", "how long writes stop when a leader fails; writes a report"),
    "celery": Case(
        "benchmarks.celery_load.noop", "Celery's tasks on raftmq, Redis and RabbitMQ; writes docs/celery.md"
    ),
    "celery-chaos": Case(
        "benchmarks.celery_load.chaos", "Celery's tasks while everything breaks; needs Redis; writes a report"
    ),
    "proxy": Case("benchmarks.proxy", "raftmq proxy beside RocketMQ's: CPU, latency, memory"),
    "pulling": Case("benchmarks.pulling", "the cost of delivering messages"),
    "rolling-upgrade": Case("benchmarks.failover.rolling_upgrade", "sends while replicas are upgraded one by one"),
    "spark": Case("benchmarks.spark", "throughput of Spark; make bench-spark sets it up"),
    "spark-kafka": Case("benchmarks.spark.kafka", "Spark beside Kafka; make bench-spark-kafka sets it up"),
    "spark-sink": Case("benchmarks.spark.sink", "writes of Spark's tasks, without Spark"),
}


def table() -> str:
    """Format the table of all cases for a terminal."""
    return "\n".join(f"  {name:24s} {case.about}" for name, case in CASES.items())


def main(arguments: Sequence[str]) -> None:
    """Run one case with the remaining arguments. Exits with code 2 if the case does not exist."""
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks CASE [options]\n\n{table()}")
        return
    if name not in CASES:
        problem = f"no case {name!r}" if name else "which case?"
        print(f"benchmarks: {problem}; cases are:\n{table()}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"make bench-{name}", *arguments[1:]]
    runpy.run_module(CASES[name].module, run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main(sys.argv[1:])
