"""The job and the result of a load generator of consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.wires.consumer import PULLED_MAX

FILL, DRAIN, PACE = "fill", "drain", "pace"


@dataclass(frozen=True, slots=True)
class ConsumerJob:
    """The load on the servers at ``address``, which speak the protocol ``wire``.

    Attributes:
        kind: `FILL`: send ``messages``. `DRAIN`: receive that many, as fast as they come. `PACE`: send ``rate`` a
            second for ``seconds``, each when it is due, while every group receives all of them.
        pids: of the servers, for their CPU time.
        group: of consumers; a new name for each job.
        groups: their number, of one consumer each, in `PACE`.
        consumers: of the one group in `DRAIN`.
        confirms_each, joins, pulled_max: see `benchmarks.wires.consumer.Share`.
        namesrv: for our own client library.
        warm_up: seconds of load before the measured ones, in `PACE`.
    """

    kind: str
    wire: str
    address: tuple[str, int]
    pids: Sequence[int] = ()
    messages: int = 0
    body_bytes: int = 1024
    group: str = ""
    groups: int = 1
    consumers: int = 1
    confirms_each: bool = False
    joins: bool = False
    pulled_max: int = PULLED_MAX
    rate: float = 0.0
    seconds: float = 0.0
    warm_up: float = 1.0
    limit_seconds: float = 300.0
    namesrv: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerResult:
    """The result of a job: ``messages`` were received in ``seconds``, or sent if it was `FILL`.

    Latencies are from when messages were due to when they were received, in the buckets of `benchmarks.load.report`.
    ``missing``: messages that had not come at the end. ``server_seconds``, ``client_seconds``: of CPU, of all servers
    and of the load generator.
    """

    messages: int
    seconds: float
    server_seconds: float
    client_seconds: float
    latencies: dict[int, int] = field(default_factory=dict)
    missing: int = 0
