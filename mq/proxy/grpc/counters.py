"""The counters of a gRPC server."""

from __future__ import annotations

from collections import Counter

from mq.proxy.grpc.status import Status


class GrpcCounters:
    """Counts what happened since the start, and the calls and connections that are open now.

    Attributes:
        calls: ended calls by path and status; calls of paths without a method have the path ``unknown``.
        connections: open now.
        streams: calls that are open now.
        received_bytes, sent_bytes: of HTTP/2, without TLS.
        close_counts: connections that the server closed, by reason.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, Status]] = Counter()
        self.close_counts: Counter[str] = Counter()
        self.connections = 0
        self.streams = 0
        self.received_bytes = 0
        self.sent_bytes = 0
