"""Converts times and durations of the gRPC protocol to milliseconds, and back. Pure."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

TIME_MS_MAX: Final = 2**63 - 1
"""Brokers know no later time; a client can name one."""
_NANOS: Final = 1_000_000


def duration(ms: int) -> Duration:
    """Convert milliseconds to a duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * _NANOS)


def duration_ms(value: Duration) -> int:
    """Convert a duration to milliseconds, rounded up."""
    return value.seconds * 1000 - -value.nanos // _NANOS


def timestamp(ms: int) -> Timestamp:
    """Convert milliseconds since the epoch to a timestamp."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * _NANOS)


def timestamp_ms(value: Timestamp) -> int:
    """Convert a timestamp to milliseconds since the epoch, rounded up."""
    return value.seconds * 1000 - -value.nanos // _NANOS
