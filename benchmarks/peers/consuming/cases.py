"""Defines the cases to measure for each system, and the measurements as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from benchmarks.peers.consuming.job import DRAIN, PACE, ConsumerJob
from benchmarks.wires.consumer import PULLED_MAX
from mq.client.consume.pull_loop import PullSettings

RATE = 500.0
MANY_AT_ONCE = PullSettings().batch_max
CONSUMERS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """``about``: as a heading. ``by_client``: by the usual Python client of each system, not by our load generator.
    ``joins``: only where a request can confirm several messages, each by itself. ``many_at_once``: only where consumers
    limit the messages of an answer; our library's number, not the smaller one of stock clients.
    """

    name: str
    about: str
    kind: str
    consumers: int = 1
    groups: int = 1
    confirms_each: bool = False
    by_client: bool = False
    joins: bool = False
    many_at_once: bool = False


_drain, _pace = partial(Case, kind=DRAIN), partial(Case, kind=PACE)
CASES = (
    _drain("drain-1", "a backlog, one consumer, which confirms its position"),
    _drain(
        "drain-1-many",
        f"a backlog, one consumer, pulls of up to {MANY_AT_ONCE} messages as our library sends them",
        many_at_once=True,
    ),
    _drain("drain-8", f"a backlog, {CONSUMERS} consumers of a group, which confirm positions", consumers=CONSUMERS),
    _drain(
        "drain-8-many",
        f"a backlog, {CONSUMERS} consumers of a group, pulls of up to {MANY_AT_ONCE} messages",
        consumers=CONSUMERS,
        many_at_once=True,
    ),
    _drain(
        "drain-8-each",
        f"a backlog, {CONSUMERS} consumers of a group, which confirm each message",
        consumers=CONSUMERS,
        confirms_each=True,
    ),
    _drain(
        "drain-8-joined",
        f"a backlog, {CONSUMERS} consumers of a group, which confirm each message, those of a POP in one request",
        consumers=CONSUMERS,
        confirms_each=True,
        joins=True,
    ),
    _pace("pace-1", f"{RATE:g} messages/s to one group, which confirms its position"),
    _pace("pace-4", f"{RATE:g} messages/s, all of them to each of 4 groups", groups=4),
    _pace("pace-16", f"{RATE:g} messages/s, all of them to each of 16 groups", groups=16),
    _pace("pace-1-each", f"{RATE:g} messages/s to one group, which confirms each message", confirms_each=True),
    _drain("client-drain", "a backlog, one process with the usual Python client", by_client=True),
    _pace("client-pace", f"{RATE:g} messages/s, one process with the usual Python client", by_client=True),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. CPU is in microseconds per received message; in `PACE` it includes the CPU of sending."""

    messages_per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    servers_us: float
    client_us: float
    missing: int
    load_average: float


@dataclass(slots=True)
class CaseMeasurements:
    """All measurements of a system, by case, and its failures."""

    version: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def job_of(case: Case, base: ConsumerJob, group: str) -> ConsumerJob:
    """Return the load generator's job for a case. ``base`` has the servers, the number of messages, and the seconds."""
    return ConsumerJob(
        kind=case.kind,
        wire=base.wire,
        address=base.address,
        pids=base.pids,
        messages=base.messages,
        body_bytes=base.body_bytes,
        group=group,
        groups=case.groups,
        consumers=case.consumers,
        confirms_each=case.confirms_each,
        joins=case.joins,
        pulled_max=MANY_AT_ONCE if case.many_at_once else PULLED_MAX,
        rate=RATE,
        seconds=base.seconds,
        namesrv=base.namesrv,
    )
