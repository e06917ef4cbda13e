"""The limits of the SDK. Applications use the defaults; tests use smaller ones. Options of clients are their arguments
instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The limits of one client; times are in seconds."""

    warn_after_seconds: float = 10.0
    """Moments without name servers, brokers and leaders are normal; a longer wait is worth a warning."""
    warn_every_seconds: float = 30.0
    """Time until the next one."""
    missing_seconds: float = 10.0
    """A topic that is missing for so long is worth a warning. Consumers often start before the first message creates
    it.
    """
    remind_seconds: float = 10.0
    """Seconds after which an open consumer with handlers logs a warning if `run` was not called."""
    leave_commit_seconds: float = 5.0
    """Seconds for the last offsets of a member that leaves: as long as an election after a leader was killed."""
    stay_connected_seconds: float = 5.0
    """Interval at which a producer of transactions looks whether it is connected to all replicas."""
    leader_seconds: float = 5.0
    """Seconds to wait for a leader in operators' requests: a group that lost it has a new one before, unless most of
    its replicas are down.
    """
    election_seconds: float = 10.0
    """Seconds to create a topic at a broker group that loses its leader meanwhile."""
    sample_seconds: float = 5.0
    """Interval at which metrics of the present are sampled, such as how long the oldest handler has run."""
    trace_records_max: int = 4096
    """Trace records that wait to be sent; further ones are dropped."""
    trace_send_seconds: float = 5.0
    """Time to send a message with trace records."""
    close_warn_seconds: float = 10.0
    """Between two warnings that the thread of a synchronous client is still busy."""


DEFAULT: Final = ClientLimits()

TEST_MIN: Final = ClientLimits(
    warn_after_seconds=0.1,
    warn_every_seconds=0.1,
    missing_seconds=0.0,
    remind_seconds=0.01,
    leave_commit_seconds=0.3,
    stay_connected_seconds=0.05,
    leader_seconds=0.1,
    election_seconds=0.2,
    sample_seconds=0.01,
    trace_records_max=50,
    trace_send_seconds=0.1,
    close_warn_seconds=0.05,
)
"""For tests."""
