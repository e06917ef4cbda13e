"""What all tests with real processes share."""

from __future__ import annotations

import os

SEGMENT_BYTES = 64 * 1024 * 1024

# Three replicas reserve three gigabytes with files of the usual length, for each of many clusters.
os.environ.setdefault("RAFTMQ_BROKER_SEGMENT_BYTES", str(SEGMENT_BYTES))
