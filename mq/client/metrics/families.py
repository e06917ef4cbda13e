"""The names, labels and descriptions of all metrics of clients."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

COMMON: Final = ("client", "kind", "client_group")
"""Labels of all metrics, before their own."""

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Upper bounds of the buckets of histograms, in seconds."""


class Family(NamedTuple):
    """One metric; `raftmq_client_` comes before its name in Prometheus, and `raftmq.client.` in OpenTelemetry."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    """The labels of this family, after COMMON."""
    text: str
    unit: str = "1"
    """The unit, as OpenTelemetry writes it."""
    semantic: str = ""
    """The family's name in OpenTelemetry's conventions for messaging, if they have one."""


SENT: Final = Family(
    "messages_sent",
    "counter",
    ("topic", "outcome"),
    "Messages whose send has ended: stored, not_stored, unknown (may be stored), cancelled (may be stored), or oneway.",
    "{message}",
    "messaging.client.sent.messages",
)
SENT_BYTES: Final = Family("sent_bytes", "counter", ("topic",), "Bytes of stored bodies, as they were sent.", "By")
SEND_SECONDS: Final = Family(
    "send_seconds",
    "histogram",
    ("topic", "outcome"),
    "From the start of a send, or of a batch, to its outcome, with all attempts.",
    "s",
    "messaging.client.operation.duration",
)
SEND_RETRIES: Final = Family(
    "send_retries", "counter", ("topic", "reason"), "Attempts to send that were made again or put off.", "{attempt}"
)
SENDS_IN_FLIGHT: Final = Family("sends_in_flight", "gauge", (), "Messages whose outcome is not known yet.", "{message}")
RECEIVED: Final = Family(
    "messages_received",
    "counter",
    ("topic",),
    "Messages that the application got, each time it got them.",
    "{message}",
    "messaging.client.consumed.messages",
)
RECEIVED_BYTES: Final = Family("received_bytes", "counter", ("topic",), "Bytes of their bodies.", "By")
REDELIVERED: Final = Family(
    "messages_redelivered", "counter", ("topic",), "Those of them that the group had got before.", "{message}"
)
SETTLED: Final = Family(
    "messages_settled",
    "counter",
    ("topic", "outcome"),
    "Messages that the application is done with for now: done, retried (here), sent_back (to a broker), "
    "dead_letter, skipped.",
    "{message}",
)
END_TO_END_SECONDS: Final = Family(
    "end_to_end_seconds",
    "histogram",
    ("topic",),
    "From the time at which the sender made a message to its first delivery; by the clocks of both machines.",
    "s",
)
HANDLER_SECONDS: Final = Family(
    "handler_seconds",
    "histogram",
    ("topic", "outcome"),
    "Calls of handlers (done or failed), and deliveries until they were settled (done or retried).",
    "s",
    "messaging.process.duration",
)
HANDLERS_RUNNING: Final = Family("handlers_running", "gauge", (), "Handlers and deliveries at work.", "{handler}")
OLDEST_HANDLER_SECONDS: Final = Family(
    "oldest_handler_seconds", "gauge", (), "For how long the oldest of them has been at work; 0 without one.", "s"
)
LAG: Final = Family(
    "lag_messages",
    "gauge",
    ("topic",),
    "Messages of the queues of this member that are not finished; of every 15 s. NaN if a leader did not answer.",
    "{message}",
)
CONNECTIONS: Final = Family("open_connections", "gauge", (), "Open connections to servers.", "{connection}")
RECONNECTS: Final = Family("reconnects", "counter", (), "Connections to a server to which there was one before.")
EVENTS: Final = Family("events", "counter", ("event",), "Events of the client, as on_event gets them.")

ALL: Final = (
    *(SENT, SENT_BYTES, SEND_SECONDS, SEND_RETRIES, SENDS_IN_FLIGHT),
    *(RECEIVED, RECEIVED_BYTES, REDELIVERED, SETTLED, END_TO_END_SECONDS),
    *(HANDLER_SECONDS, HANDLERS_RUNNING, OLDEST_HANDLER_SECONDS, LAG),
    *(CONNECTIONS, RECONNECTS, EVENTS),
)
