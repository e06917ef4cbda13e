"""The job of a load generator that keeps messages in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.load.frames import QUEUES


@dataclass(frozen=True, slots=True)
class Job:
    """``begin``: when the first window begins, on CLOCK_MONOTONIC, which all processes share; before it is warm-up.
    ``first_slot``: number of the first message slot, so that workers differ in opaque and unique key. ``topics``: the
    number of topics in whose queues slots take turns, ``queues`` in each. ``batch``: messages in each request; 1 for
    requests without batches. ``wire``: the server's protocol, a name of `closed_loop.WIRES`. ``cores``: run on these
    only; none for all. ``keys``: sign requests with this access key and secret key. ``tls_ca``: use TLS; the authority
    of the server's certificate. ``must_be_in_time``: end with `STARTED_LATE` if the first window began before all
    connections were there; else that window has fewer messages. ``lite_topics``: the number of lite topics in which
    slots take turns; 0 for none.
    """

    address: tuple[str, int]
    connections: int
    in_flight: int
    body_bytes: int
    begin: float
    window_seconds: float
    windows: int
    first_slot: int
    topics: int = 1
    batch: int = 1
    wire: str = "rocketmq"
    cores: Sequence[int] = ()
    queues: int = QUEUES
    keys: tuple[str, str] | None = None
    tls_ca: str | None = None
    must_be_in_time: bool = False
    lite_topics: int = 0

    def at(self, begin: float) -> Job:
        """Return the job with another begin."""
        return replace(self, begin=begin)
